//! Rows that are written together, table by table: many per statement, and neighbours by ranges.

use super::{
    apply::WAITING,
    cache::First,
    rows::{self, Column},
    schema::ROW_TABLES,
    storage::{SqliteStorage, Written},
};
use crate::store::storage::{Entry, Index, Len, Table};
use bytes::Bytes;
use rusqlite::Result;
use std::borrow::Cow;

/// It belongs to one batch: what a failed one leaves must not be written with a later one.
#[derive(Default)]
pub(super) struct Pending<'b> {
    pub(super) deletes: [Vec<(i64, i64)>; ROW_TABLES.len()],
    pub(super) lease_deletes: Vec<(i64, i64)>,
    pub(super) puts: [Vec<(i64, Cow<'b, [u8]>)>; ROW_TABLES.len()],
    pub(super) leases: Vec<(u64, u64, &'b Bytes)>,
    entries: [Vec<&'b Entry>; Index::ALL.len()],
    deaths: Vec<(Index, u64, u64)>,
}

impl<'b> Pending<'b> {
    pub(super) fn insert(&mut self, index: Index, entry: &'b Entry) {
        self.entries[index as usize].push(entry);
    }

    pub(super) fn append_dead(&mut self, index: Index, death: u64, number: u64, record: &[u8]) {
        let record = [&death.to_be_bytes(), record].concat();
        if let Some(dead) = rows::row_table(Table::Dead) {
            self.puts[dead].push((number.cast_signed(), Cow::Owned(record)));
        }
        self.deaths.push((index, death, number));
    }
}

impl SqliteStorage<'_> {
    /// Deletes first.
    pub(super) fn flush(&mut self, at: usize, mut pending: Pending<'_>) -> Result<()> {
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
        for (index, entries) in Index::ALL.into_iter().zip(&pending.entries) {
            let positions = || entries.iter().filter_map(|entry| rows::position(&entry.member));
            match index {
                _ if entries.is_empty() => {}
                Index::Ready => {
                    let rows = positions().map(|position| rows::ready_row(id, position));
                    self.insert_ready(at, &rows.collect::<Vec<_>>())?;
                }
                Index::Scheduled | Index::Retrying => {
                    let rows: Vec<_> = positions().map(rows::waiting_row).collect();
                    self.insert_waiting(at, (index == Index::Retrying).into(), &rows)?;
                }
                // Written with its lease alone.
                Index::Leased => {}
                _ => {
                    let members = entries.iter().map(|entry| &entry.member);
                    let columns = members.map(|member| rows::member_column(index, member));
                    let scores = entries.iter().map(|entry| entry.score);
                    self.insert_entries(at, index, &scores.zip(columns).collect::<Vec<_>>())?;
                }
            }
        }
        for dead in pending.deaths.chunk_by(|dead, next| dead.0 == next.0) {
            let column =
                |(_, death, number): &(_, u64, u64)| (*death, Column::Int(number.cast_signed()));
            self.insert_entries(at, dead[0].0, &dead.iter().map(column).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn put_rows(&mut self, at: usize, table: usize, rows: &[(i64, Cow<'_, [u8]>)]) -> Result<()> {
        let id = self.cache.queues[at].id;
        let (sql, (of, name)) = (&mut self.sql.rows[table], ROW_TABLES[table]);
        if of == Table::Job {
            let highest = rows.iter().map(|(row, _)| row.cast_unsigned()).max();
            self.cache.highest_job = highest.unwrap_or(0).max(self.cache.highest_job);
        }
        let inserted = sql.insert.execute(rows, |columns, (row, record)| {
            columns.bind(row)?;
            columns.bind(id)?;
            columns.bind(&record[..])
        })?;
        self.cache.queues[at].sums.add(Len::Table(of), inserted);
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
        let mut owner =
            self.connection.prepare(&format!("SELECT queue FROM {name} WHERE number = ?1"))?;
        let mut take = self
            .connection
            .prepare(&format!("UPDATE {name} SET queue = ?2, record = ?3 WHERE number = ?1"))?;
        for (row, record) in rows {
            let owner: i64 = owner.query_row([row], |found| found.get(0))?;
            if owner != id {
                take.execute((row, id, &record[..]))?;
                self.cache.queues[at].sums.add(Len::Table(of), 1);
                if let Some(other) = self.cache.queues.iter().position(|queue| queue.id == owner) {
                    self.cache.queues[other].sums.subtract(Len::Table(of), 1);
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

    pub(super) fn insert_ready(&mut self, at: usize, rows: &[[i64; 3]]) -> Result<()> {
        let inserted = self
            .sql
            .insert_ready
            .execute(rows, |columns, row| row.iter().try_for_each(|column| columns.bind(column)))?;
        self.cache.queues[at].sums.add(Len::Index(Index::Ready), inserted);
        Ok(())
    }

    fn insert_waiting(&mut self, at: usize, which: usize, rows: &[[i64; 3]]) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let slot = rows::slot(queue.id, WAITING[which]);
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
        let slot = rows::slot(queue.id, index);
        let inserted = self.sql.insert_entry.execute(entries, |columns, (score, member)| {
            columns.bind(slot)?;
            columns.bind(member)?;
            columns.bind(score.cast_signed())
        })?;
        queue.sums.add(Len::Index(index), inserted);
        // Members that were there get their new score.
        for (score, member) in entries.iter().filter(|_| inserted < entries.len()) {
            self.sql.update_entry.execute((slot, member, score.cast_signed()))?;
        }
        Ok(())
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
