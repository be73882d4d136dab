//! What the writer keeps in memory: the sums of every queue, its small records, and all leases.

use super::schema::{Kind, kind};
use super::{read, rows};
use crate::domain::{Kept, QueueName, Timestamp};
use crate::store::storage::{Counter, Heads, Index, Len, NO_GROUP, RecordKey, Table, lease_group};
use bytes::Bytes;
use rusqlite::Connection;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// Numbers are no caller's choice: one multiplication mixes them well enough.
#[derive(Clone, Copy, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (number ^ number >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Lengths and totals of a queue: the column `sums`.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) used_at: Timestamp,
    /// Numbers of death given so far.
    pub(super) deaths: u64,
    /// Of tables, then of indexes.
    lens: [u64; Table::ALL.len() + Index::ALL.len()],
    totals: Vec<i64>,
}

impl Sums {
    pub(super) fn len(&self, of: Len) -> u64 {
        self.lens[place(of)]
    }

    pub(super) fn add(&mut self, of: Len, count: usize) {
        self.lens[place(of)] += count as u64;
    }

    fn set(&mut self, of: Len, count: usize) {
        self.lens[place(of)] = count as u64;
    }

    pub(super) fn subtract(&mut self, of: Len, count: usize) {
        let len = &mut self.lens[place(of)];
        *len = len.saturating_sub(count as u64);
    }

    pub(super) fn ready(&self) -> u64 {
        self.len(Len::Index(Index::Ready))
    }

    /// It has no jobs, and nothing that they have left.
    pub(super) fn is_empty(&self) -> bool {
        let tables = Table::ALL.into_iter().filter(|table| !table.is_of_queue());
        tables.map(Len::Table).chain(Index::ALL.map(Len::Index)).all(|of| self.len(of) == 0)
    }

    pub(super) fn add_total(&mut self, total: u8, count: i64) {
        let at = usize::from(total);
        if self.totals.len() <= at {
            self.totals.resize(at + 1, 0);
        }
        self.totals[at] = self.totals[at].saturating_add(count);
    }

    /// Those that are not zero.
    pub(super) fn totals(&self) -> Vec<(Counter, i64)> {
        let totals = (0..).zip(&self.totals).filter(|(_, count)| **count != 0);
        totals.map(|(at, count)| (Counter::Total(at), *count)).collect()
    }

    /// Behind the store's own.
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        let totals = self.totals.iter().map(|count| count.cast_unsigned());
        put_integers(out, [self.used_at.millis(), self.deaths].into_iter().chain(self.lens).chain(totals));
    }

    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut numbers = integers(bytes).skip(StoreRow::LEN / size_of::<u64>());
        let mut next = || numbers.next().unwrap_or(0);
        Self {
            used_at: Timestamp::from_millis(next()),
            deaths: next(),
            lens: std::array::from_fn(|_| next()),
            totals: numbers.map(u64::cast_signed).collect(),
        }
    }
}

fn place(of: Len) -> usize {
    match of {
        Len::Table(table) => table as usize,
        Len::Index(index) => Table::ALL.len() + index as usize,
    }
}

fn put_integers(out: &mut Vec<u8>, numbers: impl Iterator<Item = u64>) {
    numbers.for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn integers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number))
}

/// The store's own: what of its clock is kept, and the next numbers. It is written with every transaction, in front of the sums
/// of each queue that changed, so that this is one row; the one with the highest number of saves is the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreRow {
    pub(super) saves: u64,
    pub(super) kept: Kept,
    pub(super) next_number: u64,
    pub(super) next_queue: u64,
}

impl StoreRow {
    pub(super) const LEN: usize = 7 * size_of::<u64>();

    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        let Kept { time_us, boot_us, boot_id } = self.kept;
        let numbers = [self.saves, time_us, boot_us, self.next_number, self.next_queue, boot_id as u64];
        put_integers(out, numbers.into_iter().chain([(boot_id >> 64) as u64]));
    }

    /// None: the store is new.
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Option<Self>> {
        let rows = read::collect(connection, "SELECT sums FROM queue", [], usize::MAX, |row| {
            let mut numbers = integers(row.get_ref(0)?.as_blob()?);
            let mut next = || numbers.next().unwrap_or(0);
            let (saves, time_us, boot_us, next_number, next_queue) = (next(), next(), next(), next(), next());
            let boot_id = u128::from(next()) | u128::from(next()) << 64;
            Ok(Some(Self { saves, kept: Kept { time_us, boot_us, boot_id }, next_number, next_queue }))
        });
        Ok(rows?.into_iter().max_by_key(|store| store.saves).filter(|store| store.saves > 0))
    }
}

/// When the first job of an index without jobs is due.
pub(super) const NEVER: u64 = u64::MAX;

pub(super) struct CachedQueue {
    pub(super) id: i64,
    pub(super) name: QueueName,
    pub(super) sums: Sums,
    /// `Queue`, `Version`, `Breaker` and `Group`.
    pub(super) records: BTreeMap<(Table, RecordKey), Bytes>,
    /// Expiry and number.
    pub(super) leased: BTreeSet<(u64, u64)>,
    /// Group and number.
    pub(super) leased_by_group: BTreeSet<(u64, u64)>,
    /// None: nothing has asked for them yet.
    pub(super) heads: Option<Heads>,
    /// Groups whose positions or versions have changed since.
    pub(super) stale_heads: BTreeSet<u16>,
    /// Of `Scheduled` and of `Retrying`; none: it is not known.
    first_due: [Option<u64>; 2],
    pub(super) is_changed: bool,
}

impl CachedQueue {
    pub(super) fn new(id: i64, name: QueueName, sums: Sums) -> Self {
        Self {
            id,
            name,
            sums,
            records: BTreeMap::new(),
            leased: BTreeSet::new(),
            leased_by_group: BTreeSet::new(),
            heads: None,
            stale_heads: BTreeSet::new(),
            first_due: [None; 2],
            is_changed: false,
        }
    }

    pub(super) fn group_changed(&mut self, group: u16) {
        if self.heads.is_some() {
            self.stale_heads.insert(group);
        }
    }

    fn put_lease(&mut self, number: u64, expiry: u64, group: u16) {
        self.leased.insert((expiry, number));
        if group != NO_GROUP {
            self.leased_by_group.insert((group.into(), number));
        }
    }

    fn count_leases(&mut self) {
        let CachedQueue { sums, leased, leased_by_group, .. } = self;
        sums.set(Len::Table(Table::Lease), leased.len());
        sums.set(Len::Index(Index::Leased), leased.len());
        sums.set(Len::Index(Index::LeasedByGroup), leased_by_group.len());
    }

    /// None: its jobs are not for later.
    pub(super) fn first_due(&mut self, index: Index) -> Option<&mut Option<u64>> {
        match index {
            Index::Scheduled => Some(&mut self.first_due[0]),
            Index::Retrying => Some(&mut self.first_due[1]),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct CachedLease {
    pub(super) queue: i64,
    pub(super) expiry: u64,
    pub(super) record: Bytes,
}

#[derive(Default)]
pub(super) struct Cache {
    pub(super) queues: Vec<CachedQueue>,
    pub(super) by_name: BTreeMap<QueueName, usize>,
    pub(super) leases: HashMap<u64, CachedLease, BuildHasherDefault<NumberHasher>>,
    pub(super) saves: u64,
    pub(super) next_number: u64,
    pub(super) next_queue: u64,
    /// No job has a number above this.
    pub(super) highest_job: u64,
    /// Queues whose sums are to be written.
    pub(super) changed: Vec<usize>,
}

impl Cache {
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let mut cache = Self::default();
        let highest: Option<i64> = connection.query_row("SELECT max(number) FROM job", [], |row| row.get(0))?;
        cache.highest_job = highest.map_or(0, i64::cast_unsigned);
        let store = StoreRow::load(connection)?.map_or((0, 1, 1), |it| (it.saves, it.next_number, it.next_queue));
        (cache.saves, cache.next_number, cache.next_queue) = (store.0, store.1.max(cache.highest_job + 1), store.2);
        let mut by_id = HashMap::<i64, usize>::new();
        let queues = "SELECT queue, name, sums FROM queue WHERE queue > 0";
        read::for_each(connection, queues, |row| {
            if let Some(name) = QueueName::parse(row.get_ref(1)?.as_str()?) {
                let sums = Sums::read(row.get_ref(2)?.as_blob()?);
                by_id.insert(row.get(0)?, cache.queues.len());
                cache.push(CachedQueue::new(row.get(0)?, name, sums));
            }
            Ok(())
        })?;
        for table in Table::ALL {
            let Kind::Cached(name) = kind(table) else { continue };
            let records = format!("SELECT queue, key, record FROM {name}");
            read::for_each(connection, &records, |row| {
                let key = rows::read_key(table, row.get_ref(1)?);
                if let (Some(queue), Some(key)) = (by_id.get(&row.get(0)?), key) {
                    cache.queues[*queue].records.insert((table, key), rows::record(row, 2)?);
                }
                Ok(())
            })?;
        }
        let leases = "SELECT number, queue, expiry, record FROM lease";
        read::for_each(connection, leases, |row| {
            let (number, queue, expiry) = (row.get::<_, i64>(0)?, row.get(1)?, row.get::<_, i64>(2)?);
            let (number, expiry) = (number.cast_unsigned(), expiry.cast_unsigned());
            if let Some(at) = by_id.get(&queue) {
                let lease = CachedLease { queue, expiry, record: rows::record(row, 3)? };
                cache.queues[*at].put_lease(number, expiry, lease_group(&lease.record));
                cache.leases.insert(number, lease);
            }
            Ok(())
        })?;
        Ok(cache)
    }

    pub(super) fn push(&mut self, queue: CachedQueue) {
        self.by_name.insert(queue.name.clone(), self.queues.len());
        self.queues.push(queue);
    }

    pub(super) fn forget(&mut self, at: usize) {
        let queue = self.queues.swap_remove(at);
        self.by_name.remove(&queue.name);
        if let Some(moved) = self.queues.get(at) {
            self.by_name.insert(moved.name.clone(), at);
        }
        let queues = self.queues.iter().enumerate().filter(|(_, queue)| queue.is_changed);
        self.changed = queues.map(|(at, _)| at).collect();
    }

    /// Its sums are written with the transaction.
    pub(super) fn change(&mut self, at: usize, now: Timestamp) {
        let queue = &mut self.queues[at];
        queue.sums.used_at = now;
        if !std::mem::replace(&mut queue.is_changed, true) {
            self.changed.push(at);
        }
    }

    /// Of a table that is in memory.
    pub(super) fn record(&self, at: usize, table: Table, key: &RecordKey) -> Option<&Bytes> {
        let queue = &self.queues[at];
        match (table, key) {
            (Table::Lease, RecordKey::Number(number)) => self.lease(queue.id, *number).map(|lease| &lease.record),
            _ => queue.records.get(&(table, key.clone())),
        }
    }

    pub(super) fn lease(&self, queue: i64, number: u64) -> Option<&CachedLease> {
        self.leases.get(&number).filter(|lease| lease.queue == queue)
    }

    /// In place of the one that was there.
    pub(super) fn put_lease(&mut self, at: usize, number: u64, expiry: u64, record: Bytes) {
        self.delete_lease(at, number);
        let queue = &mut self.queues[at];
        queue.put_lease(number, expiry, lease_group(&record));
        queue.count_leases();
        self.leases.insert(number, CachedLease { queue: queue.id, expiry, record });
    }

    /// Its expiry stays. False: there is none.
    pub(super) fn put_lease_record(&mut self, queue: i64, number: u64, record: &Bytes) -> bool {
        let lease = self.leases.get_mut(&number).filter(|lease| lease.queue == queue);
        lease.map(|lease| lease.record = record.clone()).is_some()
    }

    /// False: there is none.
    pub(super) fn delete_lease(&mut self, at: usize, number: u64) -> bool {
        let queue = &mut self.queues[at];
        let Entry::Occupied(lease) = self.leases.entry(number) else { return false };
        if lease.get().queue != queue.id {
            return false;
        }
        let lease = lease.remove();
        queue.leased.remove(&(lease.expiry, number));
        let group = lease_group(&lease.record);
        if group != NO_GROUP {
            queue.leased_by_group.remove(&(group.into(), number));
        }
        queue.count_leases();
        true
    }

    /// The end of the lease after it.
    pub(super) fn extend_lease(&mut self, at: usize, number: u64, expiry: u64) -> Option<u64> {
        let queue = &mut self.queues[at];
        let lease = self.leases.get_mut(&number).filter(|lease| lease.queue == queue.id)?;
        if lease.expiry < expiry {
            queue.leased.remove(&(lease.expiry, number));
            queue.leased.insert((expiry, number));
            lease.expiry = expiry;
        }
        Some(lease.expiry)
    }
}
