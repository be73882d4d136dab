//! Compare and batch: every fence holds and every write is made, or nothing is.

use super::{
    cache::First,
    rows::{self, Column},
    schema::ROW_TABLES,
    storage::{SqliteStorage, Written},
};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    store::storage::{
        Applied, Batch, Counter, Done, Entry, Fence, Index, Len, Mark, RecordKey, Table, Was, Write,
    },
};
use bytes::Bytes;
use rusqlite::Result;
use std::borrow::Cow;

/// Of `Done` at the same time.
const WAITING: [Index; 2] = [Index::Scheduled, Index::Retrying];

/// A `Put` whose insert is also the look of its `Absent` fence.
struct Claim<'b> {
    table: Table,
    key: &'b RecordKey,
    record: &'b Bytes,
    is_made: bool,
}

/// Rows that are written together, table by table. It belongs to one call: what a failed one leaves must not be written later.
#[derive(Default)]
struct Pending<'b> {
    deletes: [Vec<(i64, i64)>; ROW_TABLES.len()],
    lease_deletes: Vec<(i64, i64)>,
    puts: [Vec<(i64, Cow<'b, [u8]>)>; ROW_TABLES.len()],
    leases: Vec<(u64, u64, &'b Bytes)>,
    ready: Vec<[i64; 3]>,
    waiting: [Vec<[i64; 3]>; 2],
    entries: [Vec<(u64, Column<'b>)>; Index::ALL.len()],
}

impl SqliteStorage<'_> {
    pub(super) fn apply_now(&mut self, name: &QueueName, batch: &Batch) -> Result<Applied> {
        let Some(at) = self.queue(name) else { return Ok(Applied::NoQueue) };
        let mut done = Done::default();
        let mut claims = claims(batch);
        let failed = self.fences(at, &batch.fences, &mut claims, &mut done.told)?;
        if !failed.is_empty() {
            return Ok(Applied::Changed(failed));
        }
        self.writes(at, &batch.writes, &claims, &mut done)?;
        done.ready = self.cache.queues[at].sums.ready();
        Ok(Applied::Done(done))
    }

    // ---- fences ----

    fn fences(
        &mut self,
        at: usize,
        fences: &[Fence],
        claims: &mut [Claim<'_>],
        told: &mut Vec<Bytes>,
    ) -> Result<Vec<(usize, Was)>> {
        let mut failed = Vec::new();
        // Fence and claim.
        let mut later = Vec::new();
        for (place, fence) in fences.iter().enumerate() {
            if let Fence::Absent(table, key) = fence
                && let Some(claim) = claim_of(claims, later.len(), *table, key)
            {
                later.push((place, claim));
            } else if let Some(was) = self.fails(at, fence, told)? {
                failed.push((place, was));
            }
        }
        if later.is_empty() {
            return Ok(failed);
        }
        let others_hold = failed.is_empty();
        for (place, claim) in later {
            let Claim { table, key, record, is_made } = &mut claims[claim];
            if others_hold && self.insert_keyed(at, *table, key, record)? {
                *is_made = true;
            } else if let Some(found) = self.record(at, *table, key)? {
                failed.push((place, Was::Record(Some(found))));
            }
        }
        if !failed.is_empty() {
            for claim in claims.iter().filter(|claim| claim.is_made) {
                self.delete_keyed(at, claim.table, claim.key)?;
            }
            failed.sort_unstable_by_key(|(place, _)| *place);
        }
        Ok(failed)
    }

    /// What a fence that does not hold finds.
    fn fails(&mut self, at: usize, fence: &Fence, told: &mut Vec<Bytes>) -> Result<Option<Was>> {
        let begins = |record: Option<&[u8]>, prefix: &Bytes| match record {
            Some(record) if record.starts_with(prefix) => None,
            other => Some(Was::Record(other.map(Bytes::copy_from_slice))),
        };
        match fence {
            Fence::Begins(table, key, prefix) => {
                self.look(at, *table, key, |record| begins(record, prefix))
            }
            Fence::Tell(table, key, prefix) => {
                let record = self.record(at, *table, key)?;
                let was = begins(record.as_deref(), prefix);
                if was.is_none() {
                    told.extend(record);
                }
                Ok(was)
            }
            Fence::Is(table, key, whole) => self.look(at, *table, key, |record| match record {
                Some(record) if record == whole => None,
                other => Some(Was::Record(other.map(Bytes::copy_from_slice))),
            }),
            // No number is above the highest.
            Fence::Absent(Table::Job, RecordKey::Number(number))
                if *number > self.cache.highest_job =>
            {
                Ok(None)
            }
            Fence::Absent(table, key) => self.look(at, *table, key, |record| {
                record.map(|record| Was::Record(Some(Bytes::copy_from_slice(record))))
            }),
            Fence::At(index, entry) => {
                let score = self.score(at, *index, &entry.member)?;
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

    // ---- writes ----

    fn writes(
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
                write if is_volatile(write) => {
                    self.write_volatile(at, write);
                    self.cache.queues[at].sums.used_at = self.now;
                    Written::Nothing
                }
                Write::Put(table, key, _)
                    if is_claimable(*table)
                        && claims.next().is_some_and(|claim| claim.is_made && claim.key == key) =>
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
                if self.cache.lease(id, *number).is_some() {
                    self.sql.put_lease_record.execute((number.cast_signed(), &record[..]))?;
                    self.cache.put_lease_record(id, *number, record.clone());
                }
            }
            Write::Put(table, key, record) => match rows::row_table(*table) {
                Some(rows) => {
                    if let (Table::Job, RecordKey::Number(number)) = (table, key) {
                        self.cache.highest_job = self.cache.highest_job.max(*number);
                    }
                    pending.puts[rows].push((rows::row_of(key), Cow::Borrowed(record)));
                }
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
                Some(rows) => {
                    let row = rows::row_of(key);
                    pending.deletes[rows].push((row, row));
                }
                None => self.delete_keyed(at, *table, key)?,
            },
            Write::DeleteParts(table, number) => {
                if let Some(rows) = rows::row_table(*table) {
                    let parts = (rows::part_row(*number, 0), rows::part_row(*number, u8::MAX));
                    pending.deletes[rows].push(parts);
                }
            }
            Write::Insert(index, entry) => insert(id, *index, entry, pending),
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
                let mut whole = death.to_be_bytes().to_vec();
                whole.extend_from_slice(record);
                if let Some(rows) = rows::row_table(Table::Dead) {
                    pending.puts[rows].push((number.cast_signed(), Cow::Owned(whole)));
                }
                pending.entries[*index as usize].push((death, Column::Int(number.cast_signed())));
                done.deaths.push(death);
            }
            Write::Add(Counter::Total(total), count) => queue.sums.add_total(*total, *count),
            Write::Add(Counter::ErrorType(name), count) => {
                let sum: i64 =
                    self.sql.add_error_type.query_row((id, &**name, count), |row| row.get(0))?;
                if sum == 0 {
                    self.sql.delete_error_type.execute((id, &**name))?;
                }
            }
            // See `writes`.
            Write::Add(Counter::Succeeded(_), _) | Write::Raise(..) | Write::Promote(_) => {}
        }
        Ok(())
    }

    fn write_volatile(&mut self, at: usize, write: &Write) {
        let mut volatile = self.volatile.lock();
        let queue = volatile.entry(self.cache.queues[at].id).or_default();
        match write {
            Write::Put(_, _, record) => queue.outcomes = Some(record.clone()),
            Write::Delete(..) => queue.outcomes = None,
            Write::Add(Counter::Succeeded(epoch), count) => {
                let sum = queue.succeeded.entry(*epoch).or_default();
                *sum += count;
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
    }

    fn put_keyed(
        &mut self,
        at: usize,
        table: Table,
        key: &RecordKey,
        record: &Bytes,
    ) -> Result<()> {
        if !self.insert_keyed(at, table, key, record)?
            && let Some(keyed) = rows::keyed_table(table)
        {
            let columns = (self.cache.queues[at].id, rows::key_column(key), &record[..]);
            self.sql.keyed[keyed].update.execute(columns)?;
        }
        if rows::is_cached(table) {
            self.cache.queues[at].records.insert((table, key.clone()), record.clone());
        }
        Ok(())
    }

    /// False: there is one.
    fn insert_keyed(
        &mut self,
        at: usize,
        table: Table,
        key: &RecordKey,
        record: &Bytes,
    ) -> Result<bool> {
        let Some(keyed) = rows::keyed_table(table) else { return Ok(true) };
        let queue = &mut self.cache.queues[at];
        let columns = (queue.id, rows::key_column(key), &record[..]);
        let inserted = self.sql.keyed[keyed].insert.execute(columns)?;
        queue.sums.add(Len::Table(table), inserted);
        Ok(inserted > 0)
    }

    fn delete_keyed(&mut self, at: usize, table: Table, key: &RecordKey) -> Result<()> {
        let Some(keyed) = rows::keyed_table(table) else { return Ok(()) };
        let queue = &mut self.cache.queues[at];
        let deleted = self.sql.keyed[keyed].delete.execute((queue.id, rows::key_column(key)))?;
        queue.sums.subtract(Len::Table(table), deleted);
        if rows::is_cached(table) {
            queue.records.remove(&(table, key.clone()));
        }
        Ok(())
    }

    fn remove(&mut self, at: usize, index: Index, entry: &Entry) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let removed = match (index, rows::position_of(entry)) {
            (Index::Ready, Some(position)) => {
                self.sql.delete_ready.execute(rows::ready_row(queue.id, position))?
            }
            (Index::Scheduled | Index::Retrying, Some(position)) => {
                let slot = rows::waiting_slot(queue.id, index).unwrap_or(-1);
                let [due, line, member] = rows::waiting_row(position.ready_at.millis(), position);
                let first = &mut queue.first_due[usize::from(index == Index::Retrying)];
                if *first == First::At(position.ready_at.millis()) {
                    *first = First::Unknown;
                }
                self.sql.delete_waiting.execute([slot, due, line, member])?
            }
            (Index::Ready | Index::Scheduled | Index::Retrying | Index::Leased, _) => 0,
            _ => {
                let slot = rows::entry_slot(queue.id, index);
                self.sql.delete_entry.execute((slot, rows::member_column(index, &entry.member)))?
            }
        };
        queue.sums.subtract(Len::Index(index), removed);
        Ok(())
    }

    /// Writes what has been gathered: deletes first.
    fn flush(&mut self, at: usize, mut pending: Pending<'_>) -> Result<()> {
        let id = self.cache.queues[at].id;
        for (table, ranges) in pending.deletes.iter_mut().enumerate() {
            let mut deleted = 0;
            merge(ranges, |first, last| {
                deleted += self.sql.rows[table].delete.execute((first, last, id))?;
                Ok(())
            })?;
            self.cache.queues[at].sums.subtract(Len::Table(ROW_TABLES[table].0), deleted);
        }
        merge(&mut pending.lease_deletes, |first, last| {
            self.sql.delete_leases.execute((first, last, id)).map(drop)
        })?;
        for (table, rows) in pending.puts.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
            self.put_rows(at, table, rows)?;
        }
        self.put_leases(at, &pending.leases, |(number, expiry, record)| {
            (*number, *expiry, record)
        })?;
        self.insert_ready(at, &pending.ready)?;
        for (which, rows) in pending.waiting.iter().enumerate().filter(|(_, rows)| !rows.is_empty())
        {
            self.insert_waiting(at, which, rows)?;
        }
        for (index, entries) in Index::ALL.into_iter().zip(&pending.entries) {
            if !entries.is_empty() {
                self.insert_entries(at, index, entries)?;
            }
        }
        Ok(())
    }

    fn put_rows(&mut self, at: usize, table: usize, rows: &[(i64, Cow<'_, [u8]>)]) -> Result<()> {
        let id = self.cache.queues[at].id;
        let sql = &mut self.sql.rows[table];
        let inserted = sql.insert.execute(rows, |columns, (row, record)| {
            columns.bind(row)?;
            columns.bind(id)?;
            columns.bind(&record[..])
        })?;
        self.cache.queues[at].sums.add(Len::Table(ROW_TABLES[table].0), inserted);
        if inserted == rows.len() {
            return Ok(());
        }
        // Some were there. Those of this queue are replaced,
        let put = sql.put.execute(rows, |columns, (row, record)| {
            columns.bind(row)?;
            columns.bind(id)?;
            columns.bind(&record[..])
        })?;
        if put == rows.len() {
            return Ok(());
        }
        // and those of another one become this one's: a number is in one queue at a time.
        let (table, name) = ROW_TABLES[table];
        for (row, record) in rows {
            let sql = format!("SELECT queue FROM {name} WHERE number = ?1");
            let owner: i64 = self.connection.query_row(&sql, [row], |found| found.get(0))?;
            if owner != id {
                let sql = format!("UPDATE {name} SET queue = ?2, record = ?3 WHERE number = ?1");
                self.connection.execute(&sql, (row, id, &record[..]))?;
                self.cache.queues[at].sums.add(Len::Table(table), 1);
                if let Some(other) = self.cache.queues.iter().position(|queue| queue.id == owner) {
                    self.cache.queues[other].sums.subtract(Len::Table(table), 1);
                    self.wrote(other, Written::Changes);
                }
            }
        }
        Ok(())
    }

    pub(super) fn put_leases<T>(
        &mut self,
        at: usize,
        leases: &[T],
        parts: impl Fn(&T) -> (u64, u64, &Bytes),
    ) -> Result<()> {
        let id = self.cache.queues[at].id;
        self.sql.put_lease.execute(leases, |columns, lease| {
            let (number, expiry, record) = parts(lease);
            columns.bind(number.cast_signed())?;
            columns.bind(id)?;
            columns.bind(expiry.cast_signed())?;
            columns.bind(&record[..])
        })?;
        for lease in leases {
            let (number, expiry, record) = parts(lease);
            self.cache.put_lease(at, number, expiry, record.clone());
        }
        Ok(())
    }

    fn insert_ready(&mut self, at: usize, rows: &[[i64; 3]]) -> Result<()> {
        let inserted = self
            .sql
            .insert_ready
            .execute(rows, |columns, row| row.iter().try_for_each(|column| columns.bind(column)))?;
        self.cache.queues[at].sums.add(Len::Index(Index::Ready), inserted);
        Ok(())
    }

    fn insert_waiting(&mut self, at: usize, which: usize, rows: &[[i64; 3]]) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let slot = queue.id << 1 | which as i64;
        let inserted = self.sql.insert_waiting.execute(rows, |columns, row| {
            columns.bind(slot)?;
            row.iter().try_for_each(|column| columns.bind(column))
        })?;
        queue.sums.add(Len::Index(WAITING[which]), inserted);
        let earliest = rows.iter().map(|row| row[0].cast_unsigned()).min();
        queue.first_due[which] = match (queue.first_due[which], earliest) {
            (First::None, Some(due)) => First::At(due),
            (First::At(first), Some(due)) => First::At(first.min(due)),
            (first, _) => first,
        };
        Ok(())
    }

    pub(super) fn insert_entries(
        &mut self,
        at: usize,
        index: Index,
        entries: &[(u64, Column<'_>)],
    ) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let slot = rows::entry_slot(queue.id, index);
        let inserted = self.sql.insert_entry.execute(entries, |columns, (score, member)| {
            columns.bind(slot)?;
            columns.bind(member)?;
            columns.bind(score.cast_signed())
        })?;
        queue.sums.add(Len::Index(index), inserted);
        if inserted < entries.len() {
            // Members that were there get their new score.
            for (score, member) in entries {
                self.sql.update_entry.execute((slot, member, score.cast_signed()))?;
            }
        }
        Ok(())
    }

    // ---- promotion ----

    /// Up to so many due entries of each of `Retrying` and `Scheduled` become `Ready`.
    pub(super) fn promote(&mut self, at: usize, limit: usize) -> Result<usize> {
        let mut promoted = 0;
        for which in 0..WAITING.len() {
            let is_due = self.first_due(at, which)?.is_some_and(|due| due <= self.now.millis());
            if !is_due || limit == 0 {
                continue;
            }
            let id = self.cache.queues[at].id;
            let slot = id << 1 | which as i64;
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
            queue.sums.subtract(Len::Index(WAITING[which]), due.len());
            queue.first_due[which] = First::Unknown;
            promoted += due.len();
        }
        Ok(promoted)
    }

    fn first_due(&mut self, at: usize, which: usize) -> Result<Option<u64>> {
        let queue = &mut self.cache.queues[at];
        if queue.first_due[which] == First::Unknown {
            let mut found = self.sql.first_due.query([queue.id << 1 | which as i64])?;
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

/// Tables by key whose records are not in memory.
fn is_claimable(table: Table) -> bool {
    matches!(table, Table::Id | Table::Key | Table::Request | Table::Move)
}

/// The puts that may be the look of a fence, in their order.
fn claims(batch: &Batch) -> Vec<Claim<'_>> {
    let claim = |write| match write {
        &Write::Put(table, ref key, ref record) if is_claimable(table) => {
            Some(Claim { table, key, record, is_made: false })
        }
        _ => None,
    };
    batch.writes.iter().filter_map(claim).collect()
}

/// Fences and puts mostly come in the same order.
fn claim_of(claims: &[Claim<'_>], near: usize, table: Table, key: &RecordKey) -> Option<usize> {
    let is_it = |claim: &Claim<'_>| claim.table == table && claim.key == key;
    match claims.get(near) {
        Some(claim) if is_it(claim) => Some(near),
        _ => claims.iter().position(is_it),
    }
}

fn is_volatile(write: &Write) -> bool {
    matches!(
        write,
        Write::Put(Table::Outcomes, ..)
            | Write::Delete(Table::Outcomes, _)
            | Write::Add(Counter::Succeeded(_), _)
            | Write::Raise(..)
    )
}

fn insert<'b>(queue: i64, index: Index, entry: &'b Entry, pending: &mut Pending<'b>) {
    match (index, rows::position_of(entry)) {
        (Index::Ready, Some(position)) => pending.ready.push(rows::ready_row(queue, position)),
        (Index::Scheduled | Index::Retrying, Some(position)) => {
            let row = rows::waiting_row(position.ready_at.millis(), position);
            pending.waiting[usize::from(index == Index::Retrying)].push(row);
        }
        // Written with its lease alone.
        (Index::Ready | Index::Scheduled | Index::Retrying | Index::Leased, _) => {}
        _ => {
            let member = rows::member_column(index, &entry.member);
            pending.entries[index as usize].push((entry.score, member));
        }
    }
}

/// Ranges that follow on each other are deleted as one.
fn merge(ranges: &mut [(i64, i64)], mut delete: impl FnMut(i64, i64) -> Result<()>) -> Result<()> {
    ranges.sort_unstable();
    for run in ranges.chunk_by(|range, next| range.1 + 1 >= next.0) {
        delete(run[0].0, run.iter().map(|range| range.1).max().unwrap_or(run[0].1))?;
    }
    Ok(())
}
