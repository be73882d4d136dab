//! What the writer keeps in memory: the sums of every queue, its small records, and all leases.

use super::{read, rows, schema::KEYED_TABLES};
use crate::{
    domain::{ids::QueueName, store_clock::Kept, time::Timestamp},
    store::storage::{Counter, Index, Len, RecordKey, Table},
};
use bytes::Bytes;
use rusqlite::Connection;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Numbers are no caller's choice: one multiplication mixes them well enough.
#[derive(Clone, Copy, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
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
    tables: [u64; Table::ALL.len()],
    indexes: [u64; Index::ALL.len()],
    totals: Vec<i64>,
}

impl Sums {
    pub(super) fn len(&self, of: Len) -> u64 {
        match of {
            Len::Table(table) => self.tables[table as usize],
            Len::Index(index) => self.indexes[index as usize],
        }
    }

    pub(super) fn add(&mut self, of: Len, count: usize) {
        *self.len_mut(of) += count as u64;
    }

    pub(super) fn subtract(&mut self, of: Len, count: usize) {
        let len = self.len_mut(of);
        *len = len.saturating_sub(count as u64);
    }

    fn len_mut(&mut self, of: Len) -> &mut u64 {
        match of {
            Len::Table(table) => &mut self.tables[table as usize],
            Len::Index(index) => &mut self.indexes[index as usize],
        }
    }

    pub(super) fn ready(&self) -> u64 {
        self.indexes[Index::Ready as usize]
    }

    /// Nothing but `Queue`, `Version`, `Breaker` and counters.
    pub(super) fn is_empty(&self) -> bool {
        self.indexes.iter().all(|len| *len == 0)
            && Table::ALL.iter().all(|table| {
                rows::is_cached(*table)
                    || *table == Table::Outcomes
                    || self.tables[*table as usize] == 0
            })
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

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        let numbers = [self.used_at.millis(), self.deaths].into_iter();
        let totals = self.totals.iter().map(|count| count.cast_unsigned());
        for number in numbers.chain(self.tables).chain(self.indexes).chain(totals) {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut numbers = integers(bytes);
        let mut next = || numbers.next().unwrap_or(0);
        Self {
            used_at: Timestamp::from_millis(next()),
            deaths: next(),
            tables: std::array::from_fn(|_| next()),
            indexes: std::array::from_fn(|_| next()),
            totals: numbers.map(u64::cast_signed).collect(),
        }
    }
}

fn integers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number))
}

/// The store's own row: what of its clock is kept, and the next numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreRow {
    pub(super) kept: Kept,
    pub(super) next_number: u64,
    pub(super) next_queue: u64,
}

impl StoreRow {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        for number in [self.kept.time_us, self.kept.boot_us, self.next_number, self.next_queue] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.kept.boot_id.to_le_bytes());
    }

    /// None: the store is new.
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Option<Self>> {
        let mut statement = connection.prepare("SELECT sums FROM queue WHERE queue = 0")?;
        let mut found = statement.query([])?;
        let Some(row) = found.next()? else { return Ok(None) };
        let mut numbers = integers(row.get_ref(0)?.as_blob()?);
        let mut next = || numbers.next().unwrap_or(0);
        let (time_us, boot_us, next_number, next_queue) = (next(), next(), next(), next());
        let boot_id = u128::from(next()) | u128::from(next()) << 64;
        Ok(Some(Self { kept: Kept { time_us, boot_us, boot_id }, next_number, next_queue }))
    }
}

/// The first score of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    Unknown,
    None,
    At(u64),
}

pub(super) struct CachedQueue {
    pub(super) id: i64,
    pub(super) name: QueueName,
    pub(super) sums: Sums,
    /// `Queue`, `Version` and `Breaker`.
    pub(super) records: BTreeMap<(Table, RecordKey), Bytes>,
    /// Expiry and number.
    pub(super) leased: BTreeSet<(u64, u64)>,
    /// Of `Scheduled` and of `Retrying`.
    pub(super) first_due: [First; 2],
    is_changed: bool,
}

impl CachedQueue {
    pub(super) fn new(id: i64, name: QueueName, sums: Sums) -> Self {
        let (records, leased) = (BTreeMap::new(), BTreeSet::new());
        let first_due = [First::Unknown; 2];
        Self { id, name, sums, records, leased, first_due, is_changed: false }
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
    leases: HashMap<u64, CachedLease, BuildHasherDefault<NumberHasher>>,
    pub(super) next_number: u64,
    pub(super) next_queue: u64,
    /// No job has a number above this.
    pub(super) highest_job: u64,
    changed: Vec<usize>,
}

impl Cache {
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let mut cache = Self::default();
        let store = StoreRow::load(connection)?;
        let highest: Option<i64> =
            connection.query_row("SELECT max(number) FROM job", [], |row| row.get(0))?;
        cache.highest_job = highest.map_or(0, i64::cast_unsigned);
        cache.next_number = store.map_or(1, |store| store.next_number).max(cache.highest_job + 1);
        cache.next_queue = store.map_or(1, |store| store.next_queue);
        let mut by_id = HashMap::<i64, usize>::new();
        let queues = "SELECT queue, name, sums FROM queue WHERE queue > 0";
        read::for_each(connection, queues, [], |row| {
            if let Some(name) = QueueName::parse(row.get_ref(1)?.as_str()?) {
                let sums = Sums::read(row.get_ref(2)?.as_blob()?);
                by_id.insert(row.get(0)?, cache.queues.len());
                cache.push(CachedQueue::new(row.get(0)?, name, sums));
            }
            Ok(())
        })?;
        for (table, name) in KEYED_TABLES.into_iter().filter(|(table, _)| rows::is_cached(*table)) {
            let records = format!("SELECT queue, key, record FROM {name}");
            read::for_each(connection, &records, [], |row| {
                let key = rows::read_key(table, row.get_ref(1)?);
                if let (Some(queue), Some(key)) = (by_id.get(&row.get(0)?), key) {
                    cache.queues[*queue].records.insert((table, key), rows::record(row, 2)?);
                }
                Ok(())
            })?;
        }
        let leases = "SELECT number, queue, expiry, record FROM lease";
        read::for_each(connection, leases, [], |row| {
            let (number, queue, expiry) =
                (row.get::<_, i64>(0)?, row.get(1)?, row.get::<_, i64>(2)?);
            let (number, expiry) = (number.cast_unsigned(), expiry.cast_unsigned());
            if let Some(at) = by_id.get(&queue) {
                let lease = CachedLease { queue, expiry, record: rows::record(row, 3)? };
                cache.queues[*at].leased.insert((expiry, number));
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

    /// The sums that are to be written.
    pub(super) fn take_changed(
        &mut self,
        mut save: impl FnMut(i64, &Sums) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        for at in self.changed.drain(..) {
            let queue = &mut self.queues[at];
            queue.is_changed = false;
            save(queue.id, &queue.sums)?;
        }
        Ok(())
    }

    pub(super) fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Of this queue.
    pub(super) fn lease(&self, queue: i64, number: u64) -> Option<&CachedLease> {
        self.leases.get(&number).filter(|lease| lease.queue == queue)
    }

    /// In place of the one that was there, of this queue or of another.
    pub(super) fn put_lease(&mut self, at: usize, number: u64, expiry: u64, record: Bytes) {
        if let Some(old) = self.leases.get(&number).map(|lease| lease.queue) {
            let is_old = |queue: &CachedQueue| queue.id == old;
            let of = Some(at).filter(|at| is_old(&self.queues[*at]));
            if let Some(of) = of.or_else(|| self.queues.iter().position(is_old)) {
                self.delete_lease(of, number);
            }
        }
        let queue = &mut self.queues[at];
        self.leases.insert(number, CachedLease { queue: queue.id, expiry, record });
        queue.leased.insert((expiry, number));
        queue.sums.add(Len::Table(Table::Lease), 1);
        queue.sums.add(Len::Index(Index::Leased), 1);
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
        queue.leased.remove(&(lease.remove().expiry, number));
        queue.sums.subtract(Len::Table(Table::Lease), 1);
        queue.sums.subtract(Len::Index(Index::Leased), 1);
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

// ---- what is in memory alone ----

const EPOCHS_MAX: usize = 64;

/// Of one queue: `Outcomes`, and counts and times under an epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct Volatile {
    pub(super) outcomes: Option<Bytes>,
    pub(super) succeeded: BTreeMap<u32, i64>,
    pub(super) last_success: BTreeMap<u32, Timestamp>,
}

impl Volatile {
    /// Only the last epochs are asked for again.
    pub(super) fn drop_old_epochs(&mut self) {
        if self.succeeded.len() > EPOCHS_MAX {
            self.succeeded.pop_first();
        }
        if self.last_success.len() > EPOCHS_MAX {
            self.last_success.pop_first();
        }
    }
}

/// By queue. Shared with the readers.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedVolatile(Arc<Mutex<HashMap<i64, Volatile>>>);

impl SharedVolatile {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<i64, Volatile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is in memory yet of a queue that is not there.
    pub(super) fn get<T>(&self, queue: i64, get: impl FnOnce(&Volatile) -> Option<T>) -> Option<T> {
        self.lock().get(&queue).and_then(get)
    }
}
