//! Rows that are written together, table by table: many per statement, and neighbours by ranges.

use super::rows::{self, EntryRow};
use super::schema::ENTRY;
use super::storage::SqliteStorage;
use crate::store::storage::{Index, Len, Table};
use bytes::Bytes;
use rusqlite::{Result, ToSql};
use std::borrow::Cow;

/// A lease: number, expiry and record.
pub(super) type LeaseRow = (u64, u64, Bytes);

/// It belongs to one batch: what a failed one leaves must not be written with a later one.
#[derive(Default)]
pub(super) struct Pending<'b> {
    pub(super) deletes: [Vec<(i64, i64)>; Table::ALL.len()],
    pub(super) puts: [Vec<(i64, Cow<'b, [u8]>)>; Table::ALL.len()],
    pub(super) leases: Vec<LeaseRow>,
    pub(super) entries: [Vec<EntryRow<'b>>; Index::ALL.len()],
}

impl SqliteStorage<'_> {
    /// Deletes first.
    pub(super) fn flush(&mut self, at: usize, mut pending: Pending<'_>) -> Result<()> {
        for (table, ranges) in Table::ALL.into_iter().zip(&mut pending.deletes) {
            for (first, last) in merged(ranges) {
                self.delete_rows(at, table, first, last)?;
            }
        }
        for (table, rows) in Table::ALL.into_iter().zip(&pending.puts).filter(|(_, rows)| !rows.is_empty()) {
            self.put_rows(at, table, rows)?;
        }
        self.put_leases(at, pending.leases)?;
        for (index, entries) in Index::ALL.into_iter().zip(&pending.entries).filter(|(_, entries)| !entries.is_empty())
        {
            self.insert_entries(at, index, entries)?;
        }
        Ok(())
    }

    pub(super) fn delete_rows<K: ToSql>(&mut self, at: usize, table: Table, first: K, last: K) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let Some(sql) = &mut self.sql.tables[table as usize] else { return Ok(()) };
        let deleted = sql.delete.execute((queue.id, first, last))?;
        // Leases are counted in memory.
        if table != Table::Lease {
            queue.sums.subtract(Len::Table(table), deleted);
        }
        Ok(())
    }

    /// A number is of one queue, in all its life.
    pub(super) fn put_rows<K: ToSql>(&mut self, at: usize, table: Table, rows: &[(K, Cow<'_, [u8]>)]) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let id = queue.id;
        let Some(sql) = &mut self.sql.tables[table as usize] else { return Ok(()) };
        // One that comes alone is mostly there if the last one was.
        if let ([(key, record)], true) = (rows, sql.was_there)
            && sql.update.execute((id, key, &record[..]))? > 0
        {
            return Ok(());
        }
        let added =
            sql.insert.execute(rows, |columns, (key, record)| columns.bind(id)?.bind(key)?.bind(&record[..]))?;
        queue.sums.add(Len::Table(table), added);
        sql.was_there = added < rows.len();
        for (key, record) in rows.iter().filter(|_| sql.was_there) {
            sql.update.execute((id, key, &record[..]))?;
        }
        Ok(())
    }

    pub(super) fn put_leases(&mut self, at: usize, leases: Vec<LeaseRow>) -> Result<()> {
        let id = self.cache.queues[at].id;
        self.sql.put_lease.execute(&leases, |columns, (number, expiry, record)| {
            columns.bind(number.cast_signed())?.bind(id)?.bind(expiry.cast_signed())?.bind(&record[..])
        })?;
        for (number, expiry, record) in leases {
            self.cache.put_lease(at, number, expiry, record);
        }
        Ok(())
    }

    pub(super) fn insert_entries(&mut self, at: usize, index: Index, entries: &[EntryRow<'_>]) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let (slot, table) = (rows::slot(queue.id, index), rows::table_of(index));
        let inserted = self.sql.indexes[table]
            .insert
            .execute(entries, |columns, (score, member)| columns.bind(slot)?.bind(score)?.bind(member))?;
        queue.sums.add(Len::Index(index), inserted);
        if index == Index::Keyed {
            entries.iter().for_each(|(group, _)| queue.group_changed(*group as u16));
        }
        if let Some(Some(first)) = queue.first_due(index) {
            let due = entries.iter().map(|(score, _)| score.cast_unsigned() >> 8);
            *first = due.min().unwrap_or(*first).min(*first);
        }
        // Members that were there get their new score.
        for (score, member) in entries.iter().filter(|_| table == ENTRY && inserted < entries.len()) {
            self.sql.update_entry.execute((slot, score, member))?;
        }
        Ok(())
    }
}

/// Ranges that follow on each other, as one.
fn merged(ranges: &mut [(i64, i64)]) -> impl Iterator<Item = (i64, i64)> {
    ranges.sort_unstable();
    let runs = ranges.chunk_by(|range, next| range.1 + 1 >= next.0);
    runs.map(|run| (run[0].0, run.iter().map(|range| range.1).max().unwrap_or(run[0].1)))
}
