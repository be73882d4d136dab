//! The writer's storage: prepared statements over one connection, and the cache. It knows tables, indexes and fences.
//!
//! A transaction is `begin`, any number of calls, `commit`; after a failure `rollback` and `reload`.

use super::{
    cache::{Cache, CachedQueue, SharedVolatile, StoreRow, Sums},
    failure::Failure,
    read::{self, QueueReader},
    rows,
    schema::KEYED_TABLES,
    statements::Statements,
};
use crate::{
    domain::{ids::QueueName, store_clock::Kept, time::Timestamp},
    store::{
        StoreError,
        storage::{
            Applied, Batch, Entry, Found, Index, Member, Read, Reads, RecordKey, Storage, Table,
            Take, Taken,
        },
    },
};
use bytes::Bytes;
use rusqlite::{Connection, Result, Statement};
use std::{
    future::{Ready, ready},
    ops::{Bound, Range},
};

pub(super) type Answer<T> = Ready<std::result::Result<T, StoreError>>;

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
    failure: Option<Failure>,
}

impl<'c> SqliteStorage<'c> {
    pub(super) fn open(
        connection: &'c Connection,
        volatile: SharedVolatile,
        kept: Kept,
        now: Timestamp,
    ) -> Result<Self> {
        let cache = Cache::load(connection)?;
        let mut storage = Self {
            connection,
            sql: Statements::prepare(connection)?,
            cache,
            volatile,
            now,
            written: Written::Nothing,
            scratch: Vec::new(),
            failure: None,
        };
        let empty: &[u8] = &[];
        connection.execute("INSERT OR IGNORE INTO queue VALUES (0, '', ?1)", [empty])?;
        // From here on callers may be told the time, and after a restart it must not be earlier.
        storage.save_store(kept)?;
        Ok(storage)
    }

    // ---- transactions ----

    pub(super) fn begin(&mut self, now: Timestamp) -> Result<()> {
        self.now = now;
        self.written = Written::Nothing;
        self.failure = None;
        self.sql.begin.execute([]).map(drop)
    }

    /// What is written once per transaction: the sums of queues that changed, and the store's own row.
    pub(super) fn save(&mut self, kept: Kept) -> Result<()> {
        let (save, scratch) = (&mut self.sql.save, &mut self.scratch);
        self.cache.take_changed(|queue, sums| {
            sums.write(scratch);
            save.execute((queue, &scratch[..])).map(drop)
        })?;
        self.save_store(kept)
    }

    fn save_store(&mut self, kept: Kept) -> Result<()> {
        let (next_number, next_queue) = (self.cache.next_number, self.cache.next_queue);
        StoreRow { kept, next_number, next_queue }.write(&mut self.scratch);
        self.sql.save.execute((0, &self.scratch[..])).map(drop)
    }

    pub(super) fn commit(&mut self) -> Result<()> {
        self.sql.commit.execute([]).map(drop)
    }

    pub(super) fn rollback(&mut self) -> Result<()> {
        self.sql.rollback.execute([]).map(drop)
    }

    /// Reads back what is kept in memory, after a transaction that failed. Numbers that were given stay given, and what is in
    /// memory alone stays as it is.
    pub(super) fn reload(&mut self) -> Result<()> {
        let (next_number, next_queue) = (self.cache.next_number, self.cache.next_queue);
        self.cache = Cache::load(self.connection)?;
        self.cache.next_number = self.cache.next_number.max(next_number);
        self.cache.next_queue = self.cache.next_queue.max(next_queue);
        Ok(())
    }

    /// What went wrong in this transaction, if it was the database.
    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// A failure of the database is remembered: the transaction is lost with it, whatever the caller does.
    fn failed(&mut self, error: rusqlite::Error) -> StoreError {
        self.failure.get_or_insert_with(|| error.into()).error()
    }

    /// When the first waiting job of a queue is due, or its first lease ends.
    pub fn next_event(&mut self, queue: &QueueName) -> Option<Timestamp> {
        let at = self.queue(queue)?;
        let due = self.next_due(at).ok().flatten();
        let expiry = self.cache.queues[at].leased.first().map(|(expiry, _)| *expiry);
        due.into_iter().chain(expiry.map(Timestamp::from_millis)).min()
    }

    pub(super) fn queue(&self, name: &QueueName) -> Option<usize> {
        self.cache.by_name.get(name).copied()
    }

    pub(super) fn wrote(&mut self, at: usize, written: Written) {
        self.written = self.written.max(written);
        self.cache.change(at, self.now);
    }

    // ---- reads ----

    pub(super) fn reader(&self, at: usize) -> QueueReader<'c> {
        QueueReader { connection: self.connection, queue: self.cache.queues[at].id }
    }

    pub(super) fn record(
        &mut self,
        at: usize,
        table: Table,
        key: &RecordKey,
    ) -> Result<Option<Bytes>> {
        if let (Table::Lease, RecordKey::Number(number)) = (table, key) {
            let lease = self.cache.lease(self.cache.queues[at].id, *number);
            return Ok(lease.map(|lease| lease.record.clone()));
        }
        self.look(at, table, key, |record| record.map(Bytes::copy_from_slice))
    }

    /// Looks at a record without copying it.
    pub(super) fn look<T>(
        &mut self,
        at: usize,
        table: Table,
        key: &RecordKey,
        look: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<T> {
        let queue = &self.cache.queues[at];
        if let Some(table) = rows::row_table(table) {
            return look_at(&mut self.sql.rows[table].get, (rows::row_of(key), queue.id), look);
        }
        match (table, key) {
            (Table::Lease, RecordKey::Number(number)) => {
                Ok(look(self.cache.lease(queue.id, *number).map(|lease| &lease.record[..])))
            }
            (Table::Outcomes, _) => {
                let record = self.volatile.get(queue.id, |queue| queue.outcomes.clone());
                Ok(look(record.as_deref()))
            }
            (table, key) if rows::is_cached(table) => {
                Ok(look(queue.records.get(&(table, key.clone())).map(|record| &record[..])))
            }
            (table, key) => match rows::keyed_table(table) {
                Some(keyed) => {
                    let columns = (queue.id, rows::key_column(key));
                    look_at(&mut self.sql.keyed[keyed].get, columns, look)
                }
                None => Ok(look(None)),
            },
        }
    }

    pub(super) fn score(&self, at: usize, index: Index, member: &Member) -> Result<Option<u64>> {
        match (index, member) {
            (Index::Leased, Member::Number(number)) => {
                let lease = self.cache.lease(self.cache.queues[at].id, *number);
                Ok(lease.map(|lease| lease.expiry))
            }
            _ => self.reader(at).score(index, member),
        }
    }

    fn leased(
        &self,
        at: usize,
        after: Option<&Entry>,
        up_to: Option<u64>,
        limit: usize,
        reverse: bool,
    ) -> Vec<Entry> {
        let after = after.and_then(|after| after.member.job().map(|number| (after.score, number)));
        let beyond = after.map_or(Bound::Unbounded, Bound::Excluded);
        let fits = |(expiry, _): &&(u64, u64)| up_to.is_none_or(|score| *expiry <= score);
        let entry = |(expiry, number): &(u64, u64)| Entry::number(*expiry, *number);
        let leased = &self.cache.queues[at].leased;
        if reverse {
            let found = leased.range((Bound::Unbounded, beyond)).rev();
            found.skip_while(|lease| !fits(lease)).take(limit).map(entry).collect()
        } else {
            let found = leased.range((beyond, Bound::Unbounded));
            found.take_while(fits).take(limit).map(entry).collect()
        }
    }

    fn read_one(&mut self, at: usize, read: &Read) -> Result<Found> {
        Ok(match read {
            Read::Record(table, key) => Found::Record(self.record(at, *table, key)?),
            Read::Score(index, member) => Found::Score(self.score(at, *index, member)?),
            Read::Range { index: Index::Leased, after, up_to, limit, reverse } => {
                Found::Entries(self.leased(at, after.as_ref(), *up_to, *limit, *reverse))
            }
            read => self.reader(at).read(&self.cache.queues[at].sums, &self.volatile, read)?,
        })
    }

    fn read_now(&mut self, queue: &QueueName, reads: &[Read]) -> Result<Option<Vec<Found>>> {
        let Some(at) = self.queue(queue) else { return Ok(None) };
        let mut found = Vec::with_capacity(reads.len());
        // Table, row, place in the answer.
        let mut rows_wanted: Vec<(usize, i64, usize)> = Vec::new();
        for (place, read) in reads.iter().enumerate() {
            if let Read::Record(table, key) = read
                && let Some(table) = rows::row_table(*table)
            {
                rows_wanted.push((table, rows::row_of(key), place));
                found.push(Found::Record(None));
            } else {
                found.push(self.read_one(at, read)?);
            }
        }
        self.read_rows(at, &mut rows_wanted, &mut found)?;
        Ok(Some(found))
    }

    /// Neighbouring rows are read by one statement.
    fn read_rows(
        &mut self,
        at: usize,
        wanted: &mut [(usize, i64, usize)],
        found: &mut [Found],
    ) -> Result<()> {
        let queue = self.cache.queues[at].id;
        wanted.sort_unstable();
        for run in wanted.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 >= b.1) {
            let (table, first, place) = run[0];
            let last = run[run.len() - 1].1;
            let sql = &mut self.sql.rows[table];
            if first == last {
                let record = look_at(&mut sql.get, (first, queue), |record| {
                    record.map(Bytes::copy_from_slice)
                })?;
                run.iter()
                    .skip(1)
                    .for_each(|(.., place)| found[*place] = Found::Record(record.clone()));
                found[place] = Found::Record(record);
                continue;
            }
            let mut rows = sql.range.query((first, last, queue))?;
            let mut run = run.iter().peekable();
            while let Some(row) = rows.next()? {
                let number: i64 = row.get(0)?;
                while run.next_if(|(_, wanted, _)| *wanted < number).is_some() {}
                while let Some((.., place)) = run.next_if(|(_, wanted, _)| *wanted == number) {
                    found[*place] = Found::Record(Some(rows::record(row, 1)?));
                }
            }
        }
        Ok(())
    }

    // ---- the catalogue ----

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
        let empty: &[u8] = &[];
        self.sql.insert_queue.execute((id, name.as_str(), empty))?;
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
        let cached = KEYED_TABLES.iter().filter(|(table, _)| rows::is_cached(*table));
        for name in cached.map(|(_, name)| *name).chain(["error_type"]) {
            self.connection.execute(&format!("DELETE FROM {name} WHERE queue = ?1"), [id])?;
        }
        self.sql.delete_queue.execute([id])?;
        self.volatile.lock().remove(id);
        self.written = Written::Changes;
        self.cache.forget(at);
        Ok(true)
    }
}

fn look_at<T>(
    statement: &mut Statement<'_>,
    columns: impl rusqlite::Params,
    look: impl FnOnce(Option<&[u8]>) -> T,
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
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.cache.by_name.range::<QueueName, _>((after, Bound::Unbounded)).take(limit);
        ready(Ok(names.map(|(name, _)| name.clone()).collect()))
    }

    fn holders(&mut self, table: Table, key: &RecordKey) -> Answer<Vec<QueueName>> {
        ready(
            read::holders(self.connection, &self.volatile, table, key)
                .map_err(|error| self.failed(error)),
        )
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
