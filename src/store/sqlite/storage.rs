//! The writer's storage: prepared statements over one connection, and the cache. It knows tables, indexes and fences.
//!
//! A transaction is `begin`, any number of calls, `save` and a commit; after a failure a rollback and `reload`.

use super::cache::{Cache, CachedQueue, StoreRow, Sums};
use super::failure::Failure;
use super::read::{self, QueueReader};
use super::rows;
use super::schema::{Kind, kind};
use super::statements::Statements;
use super::volatile::SharedVolatile;
use super::{lock, writer::Shared};
use crate::domain::{Kept, QueueName, Timestamp};
use crate::store::StoreError;
use crate::store::storage::{
    Applied, Batch, Found, Index, Len, Member, NO_GROUP, Read, Reads, RecordKey, Storage, Table, Take, Taken,
    lease_group,
};
use bytes::Bytes;
use rusqlite::{Connection, Result, Statement};
use std::future::{Ready, ready};
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Range;

pub(super) type Answer<T> = Ready<std::result::Result<T, StoreError>>;
/// Table, row, place in the answer.
type Wanted = (Table, i64, usize);

/// What a transaction has written so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Written {
    Nothing,
    /// Promotions and numbers given out: they would be made again, so they need not reach the disk by themselves.
    Repeatable,
    Changes,
}

pub struct SqliteStorage<'c> {
    pub(super) connection: &'c Connection,
    pub(super) sql: Statements<'c>,
    pub(super) cache: Cache,
    pub(super) volatile: SharedVolatile,
    pub(super) now: Timestamp,
    pub(super) written: Written,
    scratch: Vec<u8>,
    /// What went wrong in this transaction, if it was the database.
    pub(super) failure: Option<Failure>,
}

impl<'c> SqliteStorage<'c> {
    pub(super) fn open(connection: &'c Connection, volatile: SharedVolatile, shared: &Shared) -> Result<Self> {
        let mut time = lock(&shared.time);
        let mut storage = Self {
            connection,
            sql: Statements::prepare(connection)?,
            cache: Cache::load(connection)?,
            volatile,
            now: time.now(shared.clock.read()),
            written: Written::Nothing,
            scratch: Vec::new(),
            failure: None,
        };
        connection.execute("INSERT OR IGNORE INTO queue VALUES (0, '', x'')", [])?;
        // From here on callers may see the time, and after a restart it must not be earlier.
        storage.save(time.kept())?;
        Ok(storage)
    }

    pub(super) fn begin(&mut self, now: Timestamp) -> Result<()> {
        self.now = now;
        self.written = Written::Nothing;
        self.failure = None;
        self.sql.begin.execute([]).map(drop)
    }

    /// What is written once per transaction: the sums of queues that changed, or else the store's own row.
    pub(super) fn save(&mut self, kept: Kept) -> Result<()> {
        self.cache.saves += 1;
        let Cache { saves, next_number, next_queue, .. } = self.cache;
        self.scratch.clear();
        StoreRow { saves, kept, next_number, next_queue }.write_to(&mut self.scratch);
        if self.cache.changed.is_empty() {
            return self.sql.save.execute((0, &self.scratch[..])).map(drop);
        }
        while let Some(at) = self.cache.changed.pop() {
            let queue = &mut self.cache.queues[at];
            queue.is_changed = false;
            self.scratch.truncate(StoreRow::LEN);
            queue.sums.write_to(&mut self.scratch);
            self.sql.save.execute((queue.id, &self.scratch[..]))?;
        }
        Ok(())
    }

    /// Reads back what is kept in memory, after a transaction that failed. Numbers that were given stay given, and what is in
    /// memory alone stays as it is.
    pub(super) fn reload(&mut self) -> Result<()> {
        let before = std::mem::replace(&mut self.cache, Cache::load(self.connection)?);
        self.cache.next_number = self.cache.next_number.max(before.next_number);
        self.cache.next_queue = self.cache.next_queue.max(before.next_queue);
        Ok(())
    }

    /// A failure of the database is remembered: the transaction is lost with it, whatever the caller does.
    fn failed(&mut self, error: rusqlite::Error) -> StoreError {
        self.failure.get_or_insert_with(|| error.into()).error()
    }

    pub(super) fn queue(&self, name: &QueueName) -> Option<usize> {
        self.cache.by_name.get(name).copied()
    }

    pub(super) fn wrote(&mut self, at: usize, written: Written) {
        self.written = self.written.max(written);
        self.cache.change(at, self.now);
    }

    pub(super) fn reader(&self, at: usize) -> QueueReader<'c> {
        QueueReader { connection: self.connection, queue: self.cache.queues[at].id }
    }

    pub(super) fn record(&mut self, at: usize, table: Table, key: &RecordKey) -> Result<Option<Bytes>> {
        match kind(table) {
            Kind::Cached(_) | Kind::Lease => Ok(self.cache.record(at, table, key).cloned()),
            _ => self.look(at, table, key, |record| record.map(Bytes::copy_from_slice)),
        }
    }

    /// Looks at a record without copying it.
    pub(super) fn look<T>(
        &mut self, at: usize, table: Table, key: &RecordKey, look: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<T> {
        let queue = self.cache.queues[at].id;
        match (kind(table), &mut self.sql.tables[table as usize]) {
            (Kind::Cached(_) | Kind::Lease, _) => Ok(look(self.cache.record(at, table, key).map(|record| &record[..]))),
            (_, Some(sql)) => look_at(&mut sql.get, (queue, rows::key_column(key)), look),
            (_, None) => Ok(look(self.volatile.outcomes(queue, key).as_deref())),
        }
    }

    pub(super) fn score_of(&self, at: usize, index: Index, near: u64, member: &Member) -> Result<Option<u64>> {
        let (Index::Leased | Index::LeasedByGroup, Member::Number(number)) = (index, member) else {
            return self.reader(at).score(index, near, member);
        };
        let lease = self.cache.lease(self.cache.queues[at].id, *number);
        Ok(match index {
            Index::Leased => lease.map(|lease| lease.expiry),
            _ => lease.map(|lease| lease_group(&lease.record)).filter(|group| *group != NO_GROUP).map(u64::from),
        })
    }

    fn read_one(&mut self, at: usize, read: &Read) -> Result<Found> {
        let CachedQueue { sums, leased, leased_by_group, .. } = &self.cache.queues[at];
        Ok(match read {
            Read::Record(table, key) => Found::Record(self.record(at, *table, key)?),
            Read::Score(index, member) => Found::Score(self.score_of(at, *index, 0, member)?),
            Read::Range { index: index @ (Index::Leased | Index::LeasedByGroup), after, up_to, limit, reverse } => {
                let of = if *index == Index::Leased { leased } else { leased_by_group };
                Found::Entries(read::numbers(of, after.as_ref(), *up_to, *limit, *reverse))
            }
            // Every failure asks for the probes that are out, and mostly there are none.
            Read::Range { index, .. } if sums.len(Len::Index(*index)) == 0 => Found::Entries(Vec::new()),
            read => self.reader(at).read(sums, &self.volatile, read)?,
        })
    }

    fn read_now(&mut self, queue: &QueueName, reads: &[Read]) -> Result<Option<Vec<Found>>> {
        let Some(at) = self.queue(queue) else { return Ok(None) };
        let mut found = Vec::with_capacity(reads.len());
        let mut rows_wanted = Vec::new();
        for (place, read) in reads.iter().enumerate() {
            if let Read::Record(table, key) = read
                && let Kind::Row(_) = kind(*table)
            {
                rows_wanted.push((*table, rows::row_of(key), place));
                found.push(Found::Record(None));
            } else {
                found.push(self.read_one(at, read)?);
            }
        }
        self.read_rows(at, &mut rows_wanted, &mut found)?;
        Ok(Some(found))
    }

    /// Neighbouring rows are read by one statement.
    pub(super) fn read_rows(&mut self, at: usize, wanted: &mut [Wanted], found: &mut [Found]) -> Result<()> {
        let queue = self.cache.queues[at].id;
        wanted.sort_unstable();
        for run in wanted.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 >= b.1) {
            let (table, first, _) = run[0];
            let last = run[run.len() - 1].1;
            let Some(sql) = &mut self.sql.tables[table as usize] else { continue };
            let mut rows = sql.range.query((queue, first, last))?;
            let mut run = run.iter().peekable();
            while run.peek().is_some()
                && let Some(row) = rows.next()?
            {
                let number: i64 = row.get(0)?;
                while run.next_if(|(_, wanted, _)| *wanted < number).is_some() {}
                while let Some((.., place)) = run.next_if(|(_, wanted, _)| *wanted == number) {
                    found[*place] = Found::Record(Some(rows::record(row, 1)?));
                }
            }
        }
        Ok(())
    }

    fn register_now(&mut self, name: &QueueName, max: usize) -> Result<bool> {
        if self.queue(name).is_some() {
            return Ok(true);
        }
        if self.cache.queues.len() >= max {
            return Ok(false);
        }
        // A number for each making: a queue of the same name that was forgotten is another one.
        let id = self.cache.next_queue.cast_signed();
        self.cache.next_queue += 1;
        self.sql.insert_queue.execute((id, name.as_str()))?;
        self.cache.push(CachedQueue::new(id, name.clone(), Sums::default()));
        self.wrote(self.cache.queues.len() - 1, Written::Changes);
        Ok(true)
    }

    fn forget_now(&mut self, name: &QueueName, unused_since: Timestamp) -> Result<bool> {
        let Some(at) = self.queue(name) else { return Ok(false) };
        let CachedQueue { id, sums, .. } = &self.cache.queues[at];
        if !sums.is_empty() || sums.used_at >= unused_since {
            return Ok(false);
        }
        let cached = Table::ALL.map(kind).into_iter().filter(|kind| matches!(kind, Kind::Cached(_)));
        for (name, _) in cached.filter_map(Kind::name_and_key).chain([("error_type", "name")]) {
            self.connection.execute(&format!("DELETE FROM {name} WHERE queue = ?1"), [id])?;
        }
        self.sql.delete_queue.execute([id])?;
        self.volatile.remove(*id);
        self.written = Written::Changes;
        self.cache.forget(at);
        Ok(true)
    }
}

pub(super) fn look_at<T>(
    statement: &mut Statement<'_>, columns: impl rusqlite::Params, look: impl FnOnce(Option<&[u8]>) -> T,
) -> Result<T> {
    let mut found = statement.query(columns)?;
    Ok(match found.next()? {
        Some(row) => look(Some(row.get_ref(0)?.as_blob()?)),
        None => look(None),
    })
}

/// The futures are always ready: the work is done when they are made.
#[expect(refining_impl_trait, reason = "callers that know the engine need not wait")]
impl Reads for SqliteStorage<'_> {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn read(&mut self, queue: &QueueName, reads: &[Read]) -> Answer<Option<Vec<Found>>> {
        ready(self.read_now(queue, reads).map_err(|error| self.failed(error)))
    }

    fn queues(&mut self, after: Option<&QueueName>, limit: usize) -> Answer<Vec<QueueName>> {
        let after = after.map_or(Unbounded, Excluded);
        let names = self.cache.by_name.range::<QueueName, _>((after, Unbounded)).take(limit);
        ready(Ok(names.map(|(name, _)| name.clone()).collect()))
    }

    fn holders(&mut self, table: Table, key: &RecordKey) -> Answer<Vec<QueueName>> {
        ready(read::holders(self.connection, table, key).map_err(|error| self.failed(error)))
    }
}

#[expect(refining_impl_trait, reason = "callers that know the engine need not wait")]
impl Storage for SqliteStorage<'_> {
    fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Answer<Applied> {
        ready(self.apply_now(queue, batch).map_err(|error| self.failed(error)))
    }

    fn take(&mut self, queue: &QueueName, take: &Take<'_>) -> Answer<Option<Taken>> {
        ready(self.take_now(queue, take).map_err(|error| self.failed(error)))
    }

    fn register(&mut self, queue: &QueueName, max: usize) -> Answer<bool> {
        ready(self.register_now(queue, max).map_err(|error| self.failed(error)))
    }

    fn forget(&mut self, queue: &QueueName, unused_since: Timestamp) -> Answer<bool> {
        ready(self.forget_now(queue, unused_since).map_err(|error| self.failed(error)))
    }

    fn numbers(&mut self, count: u64) -> Answer<Range<u64>> {
        let first = self.cache.next_number;
        self.cache.next_number += count;
        self.written = self.written.max(Written::Repeatable);
        ready(Ok(first..first + count))
    }
}
