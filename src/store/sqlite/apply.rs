//! Compare and batch: every fence holds and every write is made, or nothing is.

use super::cache::NEVER;
use super::pending::Pending;
use super::rows;
use super::schema::{Kind, WAITING, kind};
use super::storage::{SqliteStorage, Written};
use crate::domain::{QueueName, Timestamp};
use crate::store::storage::{Applied, Batch, Counter, Done, Entry, Fence, Index, Len, RecordKey, Table, Was, Write};
use bytes::Bytes;
use rusqlite::Result;
use std::borrow::Cow;

/// A write of the batch, by its place: a record by key that is not in memory.
type Put<'b> = (usize, Table, &'b RecordKey, &'b Bytes);
/// What was found by fences that fail, and the writes that are made: an insert is also the look of its `Absent` fence.
type Looked<'b> = (Vec<(usize, Was)>, Vec<Put<'b>>);

impl SqliteStorage<'_> {
    pub(super) fn apply_now(&mut self, name: &QueueName, batch: &Batch) -> Result<Applied> {
        let Some(at) = self.queue(name) else { return Ok(Applied::NoQueue) };
        let mut done = Done::default();
        let (failed, made) = self.fences(at, batch, &mut done.told)?;
        if !failed.is_empty() {
            return Ok(Applied::Changed(failed));
        }
        self.write_all(at, &batch.writes, &made, &mut done)?;
        done.ready = self.cache.queues[at].sums.ready();
        Ok(Applied::Done(done))
    }

    fn fences<'b>(&mut self, at: usize, batch: &'b Batch, told: &mut Vec<Bytes>) -> Result<Looked<'b>> {
        let (mut failed, mut made) = (Vec::new(), Vec::new());
        // They come in the order of their fences. One that does not is looked for before it is put, as others are.
        let mut puts = batch.writes.iter().enumerate().filter_map(keyed_put).collect::<Vec<_>>().into_iter();
        let mut later = Vec::new();
        for (place, fence) in batch.fences.iter().enumerate() {
            if let Fence::Absent(table, key) = fence
                && let Some(ahead) = puts.as_slice().iter().position(|put| (put.1, put.2) == (*table, key))
            {
                later.extend(puts.nth(ahead).map(|put| (place, put)));
            } else if let Some(was) = self.fails(at, fence, told)? {
                failed.push((place, was));
            }
        }
        let others_hold = failed.is_empty();
        for (place, put) in later {
            let (_, table, key, record) = put;
            if others_hold && self.insert_keyed(at, table, key, record)? {
                made.push(put);
            } else if let Some(found) = self.record(at, table, key)? {
                failed.push((place, Was::Record(Some(found))));
            }
        }
        if !failed.is_empty() {
            for (_, table, key, _) in made.drain(..) {
                self.delete_keyed(at, table, key)?;
            }
            failed.sort_unstable_by_key(|(place, _)| *place);
        }
        Ok((failed, made))
    }

    /// What a fence that does not hold finds.
    fn fails(&mut self, at: usize, fence: &Fence, told: &mut Vec<Bytes>) -> Result<Option<Was>> {
        match fence {
            // No number is above the highest.
            Fence::Absent(Table::Job, RecordKey::Number(number)) if *number > self.cache.highest_job => Ok(None),
            Fence::Tell(table, key, _) => {
                let record = self.record(at, *table, key)?;
                if !fence.holds(record.as_deref()) {
                    return Ok(Some(Was::Record(record)));
                }
                told.extend(record);
                Ok(None)
            }
            Fence::Begins(table, key, _) | Fence::Is(table, key, _) | Fence::Absent(table, key) => {
                self.look(at, *table, key, |record| {
                    (!fence.holds(record)).then(|| Was::Record(record.map(Bytes::copy_from_slice)))
                })
            }
            Fence::At(index, entry) => {
                let score = self.score_of(at, *index, entry.score, &entry.member)?;
                Ok((score != Some(entry.score)).then_some(Was::Score(score)))
            }
            Fence::Room { of, minus, add, limit } => {
                let sums = &self.cache.queues[at].sums;
                let taken_off: u64 = minus.iter().map(|of| sums.len(*of)).sum();
                let len = sums.len(*of).saturating_sub(taken_off);
                Ok((len.saturating_add(*add) > *limit).then_some(Was::Len(len)))
            }
        }
    }

    fn write_all(&mut self, at: usize, writes: &[Write], made: &[Put<'_>], done: &mut Done) -> Result<()> {
        let id = self.cache.queues[at].id;
        let mut pending = Pending::default();
        let mut made = made.iter().peekable();
        let mut written = Written::Nothing;
        for (place, write) in writes.iter().enumerate() {
            if made.next_if(|put| put.0 == place).is_some() {
                written = Written::Changes;
            } else if self.volatile.write(id, write, self.now) {
                if !matches!(write, Write::Raise(..)) {
                    self.cache.queues[at].sums.used_at = self.now;
                }
            } else if let Write::Promote(limit) = write {
                self.flush(at, std::mem::take(&mut pending))?;
                let promoted = self.promote(at, *limit)?;
                done.promoted += promoted;
                written = written.max(if promoted > 0 { Written::Repeatable } else { Written::Nothing });
            } else {
                written = Written::Changes;
                self.write(at, write, &mut pending, done)?;
            }
        }
        self.flush(at, pending)?;
        if written > Written::Nothing {
            self.wrote(at, written);
        }
        Ok(())
    }

    fn write<'b>(&mut self, at: usize, write: &'b Write, pending: &mut Pending<'b>, done: &mut Done) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let id = queue.id;
        match write {
            Write::Put(table, key, record) => match (kind(*table), key) {
                (Kind::Row(_), key) => {
                    if let (Table::Job, RecordKey::Number(number)) = (table, key) {
                        self.cache.highest_job = self.cache.highest_job.max(*number);
                    }
                    pending.puts[*table as usize].push((rows::row_of(key), Cow::Borrowed(record)));
                }
                (kind @ (Kind::Keyed(_) | Kind::Cached(_)), key) => {
                    if let Kind::Cached(_) = kind {
                        queue.records.insert((*table, key.clone()), record.clone());
                    }
                    self.put_rows(at, *table, &[(rows::key_column(key), Cow::Borrowed(&record[..]))])?;
                }
                (Kind::Lease, RecordKey::Number(number)) if self.cache.put_lease_record(id, *number, record) => {
                    self.sql.put_lease_record.execute((number.cast_signed(), &record[..]))?;
                }
                _ => {}
            },
            Write::PutLease { number, expires_at, record } => {
                pending.leases.push((*number, expires_at.millis(), record.clone()));
            }
            Write::Delete(table, key) => match (kind(*table), key) {
                (Kind::Keyed(_) | Kind::Cached(_), key) => self.delete_keyed(at, *table, key)?,
                (Kind::Lease, RecordKey::Number(number)) if !self.cache.delete_lease(at, *number) => {}
                (_, key) => pending.deletes[*table as usize].push((rows::row_of(key), rows::row_of(key))),
            },
            Write::DeleteParts(table, number) => {
                let parts = (rows::part_row(*number, 0), rows::part_row(*number, u8::MAX));
                pending.deletes[*table as usize].push(parts);
            }
            // It is written with its leases alone.
            Write::Insert(Index::Leased, _) | Write::Remove(Index::Leased, _) => {}
            Write::Insert(index, entry) => {
                pending.entries[*index as usize].push(rows::entry_row(*index, entry.score, &entry.member));
            }
            Write::Remove(index, entry) => self.remove(at, *index, entry)?,
            Write::Extend { number, expires_at } => {
                let asked = expires_at.millis();
                let expiry = self.cache.extend_lease(at, *number, asked);
                if expiry == Some(asked) {
                    self.sql.extend_lease.execute((number.cast_signed(), asked.cast_signed()))?;
                }
                // Without a lease there is nothing to extend: a fence on the lease comes with it.
                done.raised.push(expiry.map_or(*expires_at, Timestamp::from_millis));
            }
            Write::AppendDead { index, number, record } => {
                queue.sums.deaths += 1;
                let death = queue.sums.deaths;
                let (row, numbered) = (number.cast_signed(), [&death.to_be_bytes(), &record[..]].concat());
                pending.puts[Table::Dead as usize].push((row, Cow::Owned(numbered)));
                pending.entries[*index as usize].push((death.cast_signed(), row.into()));
                done.deaths.push(death);
            }
            Write::Add(Counter::Total(total), count) => queue.sums.add_total(*total, *count),
            Write::Add(Counter::ErrorType(name), count) => {
                let sum = self.sql.add_error_type.query_row((id, &**name, count), |row| row.get(0));
                if sum == Ok(0) {
                    self.sql.delete_error_type.execute((id, &**name))?;
                }
                sum.map(drop)?;
            }
            // See `write_all`.
            Write::Add(Counter::Succeeded(_), _) | Write::Raise(..) | Write::Promote(_) => {}
        }
        Ok(())
    }

    /// False: there is one.
    fn insert_keyed(&mut self, at: usize, table: Table, key: &RecordKey, record: &[u8]) -> Result<bool> {
        let queue = &mut self.cache.queues[at];
        let Some(sql) = &mut self.sql.tables[table as usize] else { return Ok(false) };
        let row = [(rows::key_column(key), record)];
        let inserted =
            sql.insert.execute(&row, |columns, (key, record)| columns.bind(queue.id)?.bind(key)?.bind(record))?;
        queue.sums.add(Len::Table(table), inserted);
        Ok(inserted > 0)
    }

    fn delete_keyed(&mut self, at: usize, table: Table, key: &RecordKey) -> Result<()> {
        if let Kind::Cached(_) = kind(table) {
            self.cache.queues[at].records.remove(&(table, key.clone()));
        }
        self.delete_rows(at, table, rows::key_column(key), rows::key_column(key))
    }

    fn remove(&mut self, at: usize, index: Index, entry: &Entry) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        if let Some(first) = queue.first_due(index) {
            *first = first.filter(|first| *first != entry.score);
        }
        let (score, member) = rows::entry_row(index, entry.score, &entry.member);
        let sql = &mut self.sql.indexes[rows::table_of(index)];
        let removed = sql.delete.execute((rows::slot(queue.id, index), score, member))?;
        queue.sums.subtract(Len::Index(index), removed);
        Ok(())
    }

    /// Up to so many due entries of each of `Retrying` and `Scheduled` become `Ready`.
    pub(super) fn promote(&mut self, at: usize, limit: usize) -> Result<usize> {
        let mut promoted = 0;
        for index in [Index::Scheduled, Index::Retrying] {
            if limit == 0 || self.first_due(at, index)? > self.now.millis() {
                continue;
            }
            let slot = rows::slot(self.cache.queues[at].id, index);
            let (mut due, mut last) = (Vec::new(), [0; 2]);
            let up_to = rows::last_score(index, Some(self.now.millis()));
            let mut found = self.sql.due.query([slot, up_to, rows::limit(limit)])?;
            while let Some(row) = found.next()? {
                last = [row.get(0)?, row.get(1)?];
                let [score, member] = rows::position_row(Index::Ready, &rows::read_position(index, last));
                due.push((score, member.into()));
            }
            drop(found);
            self.sql.indexes[WAITING].delete_first.execute([slot, last[0], last[1]])?;
            self.insert_entries(at, Index::Ready, &due)?;
            let queue = &mut self.cache.queues[at];
            queue.sums.subtract(Len::Index(index), due.len());
            queue.first_due(index).map(Option::take);
            promoted += due.len();
        }
        Ok(promoted)
    }

    /// Of an empty index: [`NEVER`].
    fn first_due(&mut self, at: usize, index: Index) -> Result<u64> {
        let queue = &mut self.cache.queues[at];
        let slot = rows::slot(queue.id, index);
        let Some(known) = queue.first_due(index) else { return Ok(NEVER) };
        if let Some(first) = known {
            return Ok(*first);
        }
        let mut found = self.sql.first_due.query([slot])?;
        let first = found.next()?.map(|row| row.get::<_, i64>(0)).transpose()?;
        Ok(*known.insert(first.map_or(NEVER, |first| first.cast_unsigned() >> 8)))
    }

    pub(super) fn next_due(&mut self, at: usize) -> Result<Option<Timestamp>> {
        let first = self.first_due(at, Index::Scheduled)?.min(self.first_due(at, Index::Retrying)?);
        Ok((first != NEVER).then(|| Timestamp::from_millis(first)))
    }
}

fn keyed_put((place, write): (usize, &Write)) -> Option<Put<'_>> {
    match write {
        Write::Put(table, key, record) if matches!(kind(*table), Kind::Keyed(_)) => Some((place, *table, key, record)),
        _ => None,
    }
}
