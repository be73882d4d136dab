//! The writes of a batch.

use super::{
    cache::First,
    fences::{Claim, is_claimable},
    pending::Pending,
    rows,
    storage::{SqliteStorage, Written},
};
use crate::{
    domain::time::Timestamp,
    store::storage::{Counter, Done, Entry, Index, Len, Mark, RecordKey, Table, Write},
};
use bytes::Bytes;
use rusqlite::Result;
use std::borrow::Cow;

/// By the last bit of their slots.
pub(super) const WAITING: [Index; 2] = [Index::Scheduled, Index::Retrying];

impl SqliteStorage<'_> {
    pub(super) fn write_all(
        &mut self,
        at: usize,
        writes: &[Write],
        claims: &[Claim<'_>],
        done: &mut Done,
    ) -> Result<()> {
        let mut pending = Pending::default();
        let mut claims = claims.iter();
        let mut written = Written::Nothing;
        for write in writes {
            let change = match write {
                Write::Promote(limit) => {
                    self.flush(at, std::mem::take(&mut pending))?;
                    let promoted = self.promote(at, *limit)?;
                    done.promoted += promoted;
                    if promoted > 0 { Written::Repeatable } else { Written::Nothing }
                }
                write if self.write_volatile(at, write) => Written::Nothing,
                // It was inserted when its fence was looked at.
                Write::Put(table, ..)
                    if is_claimable(*table) && claims.next().is_some_and(|claim| claim.is_made) =>
                {
                    Written::Changes
                }
                write => {
                    self.write(at, write, &mut pending, done)?;
                    Written::Changes
                }
            };
            written = written.max(change);
        }
        self.flush(at, pending)?;
        if written > Written::Nothing {
            self.wrote(at, written);
        }
        Ok(())
    }

    fn write<'b>(
        &mut self,
        at: usize,
        write: &'b Write,
        pending: &mut Pending<'b>,
        done: &mut Done,
    ) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let id = queue.id;
        match write {
            Write::Put(Table::Lease, RecordKey::Number(number), record) => {
                if self.cache.put_lease_record(id, *number, record) {
                    self.sql.put_lease_record.execute((number.cast_signed(), &record[..]))?;
                }
            }
            Write::Put(table, key, record) => match rows::row_table(*table) {
                Some(rows) => pending.puts[rows].push((rows::row_of(key), Cow::Borrowed(record))),
                None => self.put_keyed(at, *table, key, record)?,
            },
            Write::PutLease { number, expires_at, record } => {
                pending.leases.push((*number, expires_at.millis(), record));
            }
            Write::Delete(Table::Lease, RecordKey::Number(number)) => {
                if self.cache.delete_lease(at, *number) {
                    pending.lease_deletes.push((number.cast_signed(), number.cast_signed()));
                }
            }
            Write::Delete(table, key) => match rows::row_table(*table) {
                Some(rows) => pending.deletes[rows].push((rows::row_of(key), rows::row_of(key))),
                None => self.delete_keyed(at, *table, key)?,
            },
            Write::DeleteParts(table, number) => {
                if let Some(rows) = rows::row_table(*table) {
                    let parts = (rows::part_row(*number, 0), rows::part_row(*number, u8::MAX));
                    pending.deletes[rows].push(parts);
                }
            }
            Write::Insert(index, entry) => pending.insert(*index, entry),
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
                pending.append_dead(*index, queue.sums.deaths, *number, record);
                done.deaths.push(queue.sums.deaths);
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

    /// False: it is not in memory alone.
    fn write_volatile(&mut self, at: usize, write: &Write) -> bool {
        match write {
            Write::Put(Table::Outcomes, ..) | Write::Delete(Table::Outcomes, _) => {}
            Write::Add(Counter::Succeeded(_), _) | Write::Raise(..) => {}
            _ => return false,
        }
        self.cache.queues[at].sums.used_at = self.now;
        let mut volatile = self.volatile.lock();
        let queue = volatile.entry(self.cache.queues[at].id).or_default();
        match write {
            Write::Put(_, _, record) => queue.outcomes = Some(record.clone()),
            Write::Delete(..) => queue.outcomes = None,
            Write::Add(Counter::Succeeded(epoch), count) => {
                let sum = queue.succeeded.entry(*epoch).or_default();
                *sum = sum.saturating_add(*count);
                if *sum == 0 {
                    queue.succeeded.remove(epoch);
                }
            }
            Write::Raise(Mark::LastSuccess(epoch), to) => {
                let mark = queue.last_success.entry(*epoch).or_default();
                *mark = (*mark).max(*to);
            }
            _ => {}
        }
        queue.drop_old_epochs();
        true
    }

    fn put_keyed(
        &mut self,
        at: usize,
        table: Table,
        key: &RecordKey,
        record: &Bytes,
    ) -> Result<()> {
        let Some(keyed) = rows::keyed_table(table) else { return Ok(()) };
        if !self.insert_keyed(at, table, key, record)? {
            let columns = (self.cache.queues[at].id, rows::key_column(key), &record[..]);
            self.sql.keyed[keyed].update.execute(columns)?;
        }
        if rows::is_cached(table) {
            self.cache.queues[at].records.insert((table, key.clone()), record.clone());
        }
        Ok(())
    }

    /// False: there is one.
    pub(super) fn insert_keyed(
        &mut self,
        at: usize,
        table: Table,
        key: &RecordKey,
        record: &[u8],
    ) -> Result<bool> {
        let Some(keyed) = rows::keyed_table(table) else { return Ok(false) };
        let queue = &mut self.cache.queues[at];
        let columns = (queue.id, rows::key_column(key), record);
        let inserted = self.sql.keyed[keyed].insert.execute(columns)?;
        queue.sums.add(Len::Table(table), inserted);
        Ok(inserted > 0)
    }

    pub(super) fn delete_keyed(&mut self, at: usize, table: Table, key: &RecordKey) -> Result<()> {
        let Some(keyed) = rows::keyed_table(table) else { return Ok(()) };
        let queue = &mut self.cache.queues[at];
        let deleted = self.sql.keyed[keyed].delete.execute((queue.id, rows::key_column(key)))?;
        queue.sums.subtract(Len::Table(table), deleted);
        queue.records.remove(&(table, key.clone()));
        Ok(())
    }

    fn remove(&mut self, at: usize, index: Index, entry: &Entry) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let slot = rows::slot(queue.id, index);
        let removed = match (index, rows::position(&entry.member)) {
            (Index::Ready, Some(position)) => {
                self.sql.delete_ready.execute(rows::ready_row(queue.id, position))?
            }
            (Index::Scheduled | Index::Retrying, Some(position)) => {
                let first = &mut queue.first_due[usize::from(index == Index::Retrying)];
                if *first == First::At(position.ready_at.millis()) {
                    *first = First::Unknown;
                }
                let [due, line, member] = rows::waiting_row(position);
                self.sql.delete_waiting.execute([slot, due, line, member])?
            }
            (Index::Ready | Index::Scheduled | Index::Retrying | Index::Leased, _) => 0,
            _ => {
                let member = rows::member_column(index, &entry.member);
                self.sql.delete_entry.execute((slot, member))?
            }
        };
        queue.sums.subtract(Len::Index(index), removed);
        Ok(())
    }

    // ---- promotion ----

    /// Up to so many due entries of each of `Retrying` and `Scheduled` become `Ready`.
    pub(super) fn promote(&mut self, at: usize, limit: usize) -> Result<usize> {
        let mut promoted = 0;
        for (which, index) in WAITING.into_iter().enumerate() {
            let is_due = self.first_due(at, which)?.is_some_and(|due| due <= self.now.millis());
            if !is_due || limit == 0 {
                continue;
            }
            let id = self.cache.queues[at].id;
            let slot = rows::slot(id, index);
            let (mut due, mut last) = (Vec::new(), [0; 3]);
            let columns = [slot, self.now.millis().cast_signed(), rows::limit(limit)];
            let mut found = self.sql.due.query(columns)?;
            while let Some(row) = found.next()? {
                last = [row.get(0)?, row.get(1)?, row.get(2)?];
                due.push(rows::ready_row(id, &rows::read_waiting(last[0], last[1], last[2])));
            }
            drop(found);
            self.sql.delete_due.execute([slot, last[0], last[1], last[2]])?;
            self.insert_ready(at, &due)?;
            let queue = &mut self.cache.queues[at];
            queue.sums.subtract(Len::Index(index), due.len());
            queue.first_due[which] = First::Unknown;
            promoted += due.len();
        }
        Ok(promoted)
    }

    fn first_due(&mut self, at: usize, which: usize) -> Result<Option<u64>> {
        let queue = &mut self.cache.queues[at];
        if queue.first_due[which] == First::Unknown {
            let mut found = self.sql.first_due.query([rows::slot(queue.id, WAITING[which])])?;
            queue.first_due[which] = match found.next()? {
                Some(row) => First::At(row.get::<_, i64>(0)?.cast_unsigned()),
                None => First::None,
            };
        }
        Ok(match queue.first_due[which] {
            First::At(due) => Some(due),
            First::None | First::Unknown => None,
        })
    }

    pub(super) fn next_due(&mut self, at: usize) -> Result<Option<Timestamp>> {
        let due = [self.first_due(at, 0)?, self.first_due(at, 1)?];
        Ok(due.into_iter().flatten().min().map(Timestamp::from_millis))
    }
}
