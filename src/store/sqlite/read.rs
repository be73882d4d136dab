//! Reads by SQL alone, on any connection: all of a reader's, and the rare ones of the writer.

use super::cache::Sums;
use super::failure::Failure;
use super::rows::{self, Column};
use super::schema::{INDEX_TABLES, TIMED, WAITING, kind};
use super::storage::Answer;
use super::volatile::SharedVolatile;
use crate::domain::{QueueName, Timestamp};
use crate::store::storage::{
    Counter, CounterGroup, Entry, Found, Index, Member, NO_GROUP, Position, Read, Reads, RecordKey, Table, lease_group,
};
use bytes::Bytes;
use rusqlite::{Connection, Params, Result, Row};
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::{future::ready, sync::LazyLock};

/// Reads beside the writer: each `read` sees one moment.
pub struct SqliteReader<'c> {
    pub(super) connection: &'c Connection,
    pub(super) volatile: SharedVolatile,
    pub(super) now: Timestamp,
}

impl SqliteReader<'_> {
    fn read_now(&self, name: &QueueName, reads: &[Read]) -> Result<Option<Vec<Found>>> {
        // Ends with a rollback, which is all that a transaction that has read needs.
        let transaction = self.connection.unchecked_transaction()?;
        let sql = "SELECT queue, sums FROM queue WHERE name = ?1";
        let queue = |row: &Row<'_>| Ok(Some((row.get(0)?, Sums::read(row.get_ref(1)?.as_blob()?))));
        let Some((queue, sums)) = collect(&transaction, sql, [name.as_str()], 1, queue)?.pop() else { return Ok(None) };
        let reader = QueueReader { connection: &transaction, queue };
        let found = reads.iter().map(|read| reader.read(&sums, &self.volatile, read));
        found.collect::<Result<_>>().map(Some)
    }
}

fn finished<T>(result: Result<T>) -> Answer<T> {
    ready(result.map_err(|error| Failure::from(error).error()))
}

#[expect(refining_impl_trait, reason = "callers that know the engine need not wait")]
impl Reads for SqliteReader<'_> {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn read(&mut self, queue: &QueueName, reads: &[Read]) -> Answer<Option<Vec<Found>>> {
        finished(self.read_now(queue, reads))
    }

    fn queues(&mut self, after: Option<&QueueName>, limit: usize) -> Answer<Vec<QueueName>> {
        // The store's own row has an empty name.
        let sql = "SELECT name FROM queue WHERE name > ?1 ORDER BY name";
        let after = [after.map_or("", QueueName::as_str)];
        finished(collect(self.connection, sql, after, limit, |row| rows::name(row, 0)))
    }

    fn holders(&mut self, table: Table, key: &RecordKey) -> Answer<Vec<QueueName>> {
        finished(holders(self.connection, table, key))
    }
}

/// What is asked of each table, by its place in `Table::ALL`: a record, a page of them, and the queues that have one.
static TABLES: LazyLock<Vec<Option<[String; 3]>>> = LazyLock::new(|| {
    let sql = |table: Table| {
        let (table, key) = kind(table).name_and_key()?;
        Some([
            format!("SELECT record FROM {table} WHERE queue = ?1 AND {key} = ?2"),
            format!("SELECT {key}, record FROM {table} WHERE queue = ?1 AND {key} > ?2 ORDER BY {key}"),
            format!("SELECT name FROM queue CROSS JOIN {table} USING (queue) WHERE {key} = ?1 ORDER BY name"),
        ])
    };
    Table::ALL.into_iter().map(sql).collect()
});

/// What is asked of the tables of indexes, and of `lease`: a range in its order and against it, an entry, and a member.
static INDEXES: LazyLock<Vec<[String; 4]>> = LazyLock::new(|| {
    let sql = |(table, [slot, score, member]): (&str, [&str; 3])| {
        let from = format!("SELECT {score}, {member} FROM {table} WHERE {slot} = ?1");
        let range = |order: &str| {
            format!(
                "{from} AND ({score}, {member}) > (?2, ?3) AND ({score}, {member}) < (?4, ?5) \
                 ORDER BY {score} {order}, {member} {order}"
            )
        };
        let entry = format!("{from} AND {score} = ?2 AND {member} = ?3");
        [range("ASC"), range("DESC"), entry, format!("{from} AND {member} = ?3")]
    };
    let tables = INDEX_TABLES.map(|table| (table, ["slot", "score", "member"]));
    tables.into_iter().chain([("lease", ["queue", "expiry", "number"])]).map(sql).collect()
});

#[derive(Clone, Copy)]
pub(super) struct QueueReader<'a> {
    pub(super) connection: &'a Connection,
    pub(super) queue: i64,
}

impl QueueReader<'_> {
    pub(super) fn read(&self, sums: &Sums, volatile: &SharedVolatile, read: &Read) -> Result<Found> {
        if let Some(found) = volatile.read(self.queue, read) {
            return Ok(found);
        }
        Ok(match read {
            Read::Record(table, key) => Found::Record(self.record(*table, key)?),
            Read::Score(Index::LeasedByGroup, member) => {
                let leased = self.leased_by_group()?;
                let found = leased.into_iter().find(|(_, number)| *member == Member::Number(*number));
                Found::Score(found.map(|(group, _)| group))
            }
            Read::Score(index, member) => Found::Score(self.score(*index, 0, member)?),
            Read::Range { index: Index::LeasedByGroup, after, up_to, limit, reverse } => {
                let leased = self.leased_by_group()?;
                Found::Entries(numbers(&leased, after.as_ref(), *up_to, *limit, *reverse))
            }
            Read::Range { index, after, up_to, limit, reverse } => {
                Found::Entries(self.range(*index, after.as_ref(), *up_to, *limit, *reverse)?)
            }
            Read::Ahead(position, most) => Found::Number(self.ahead(position, *most)?),
            Read::Len(of) => Found::Number(sums.len(*of)),
            Read::Counters(CounterGroup::Totals) => Found::Counters(sums.totals()),
            Read::Counters(CounterGroup::ErrorTypes) => Found::Counters(self.error_types()?),
            Read::Scan(table, after, limit) => Found::Scanned(self.page(*table, after.as_ref(), *limit)?),
            // See `SharedVolatile::read`.
            Read::Mark(_) | Read::Sums(_) | Read::Meter(_) => Found::Score(None),
        })
    }

    fn record(&self, table: Table, key: &RecordKey) -> Result<Option<Bytes>> {
        let Some([get, ..]) = &TABLES[table as usize] else { return Ok(None) };
        let columns = (self.queue, rows::key_column(key));
        Ok(collect(self.connection, get, columns, 1, |row| rows::record(row, 0).map(Some))?.pop())
    }

    fn page(&self, table: Table, after: Option<&RecordKey>, limit: usize) -> Result<Vec<(RecordKey, Bytes)>> {
        let Some([_, page, _]) = &TABLES[table as usize] else { return Ok(Vec::new()) };
        // Before every number and every text.
        let after = after.map_or_else(|| Column::from(-1), rows::key_column);
        collect(self.connection, page, (self.queue, after), limit, |row| {
            let Some(key) = rows::read_key(table, row.get_ref(0)?) else { return Ok(None) };
            Ok(Some((key, rows::record(row, 1)?)))
        })
    }

    /// Where members are not looked for without their score, it is mostly `near`.
    pub(super) fn score(&self, index: Index, near: u64, member: &Member) -> Result<Option<u64>> {
        let (slot, (score, column)) = (rows::slot(self.queue, index), rows::entry_row(index, near, member));
        let find = |sql: &str| {
            let found =
                collect(self.connection, sql, (slot, score, &column), 1, |row| rows::read_entry(index, row))?.pop();
            Ok(found.map(|entry| entry.score))
        };
        let table = rows::table_of(index);
        let [.., entry, by_member] = &INDEXES[table];
        let found = if table <= TIMED { find(entry)? } else { None };
        if found.is_some() || table <= WAITING { Ok(found) } else { find(by_member) }
    }

    pub(super) fn range(
        &self, index: Index, after: Option<&Entry>, up_to: Option<u64>, limit: usize, reverse: bool,
    ) -> Result<Vec<Entry>> {
        let mut lower = (-1, Column::from(-1));
        // Behind every number, every text and the bytes of every member.
        let mut upper = (rows::last_score(index, up_to), Column::from(vec![0xff; 16]));
        match after {
            Some(after) if !reverse => lower = rows::entry_row(index, after.score, &after.member),
            Some(after) if up_to.is_none_or(|score| after.score <= score) => {
                upper = rows::entry_row(index, after.score, &after.member);
            }
            _ => {}
        }
        let columns = (rows::slot(self.queue, index), lower.0, lower.1, upper.0, upper.1);
        let sql = &INDEXES[rows::table_of(index)][usize::from(reverse)];
        collect(self.connection, sql, columns, limit, |row| rows::read_entry(index, row))
    }

    fn ahead(&self, position: &Position, most: usize) -> Result<u64> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM ready \
                   WHERE slot = ?1 AND (score, member) < (?2, ?3) AND score >= ?4 LIMIT ?5)";
        let index = position.ready_index();
        let (score, member) = rows::position_entry(index, position);
        // The score of a position with a group is its group.
        let columns = (rows::slot(self.queue, index), score, member, i64::from(position.group), rows::limit(most));
        let mut statement = self.connection.prepare_cached(sql)?;
        statement.query_row(columns, |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
    }

    fn leased_by_group(&self) -> Result<BTreeSet<(u64, u64)>> {
        let sql = "SELECT number, record FROM lease WHERE queue = ?1";
        let leases = collect(self.connection, sql, [self.queue], usize::MAX, |row| {
            let group = lease_group(row.get_ref(1)?.as_blob()?);
            let number: i64 = row.get(0)?;
            Ok((group != NO_GROUP).then_some((u64::from(group), number.cast_unsigned())))
        });
        Ok(leases?.into_iter().collect())
    }

    fn error_types(&self) -> Result<Vec<(Counter, i64)>> {
        let sql = "SELECT name, count FROM error_type WHERE queue = ?1 ORDER BY name";
        collect(self.connection, sql, [self.queue], usize::MAX, |row| {
            Ok(Some((Counter::ErrorType(row.get_ref(0)?.as_str()?.into()), row.get(1)?)))
        })
    }
}

/// A range of an index of numbers, see [`Read::Range`].
pub(super) fn numbers(
    of: &BTreeSet<(u64, u64)>, after: Option<&Entry>, up_to: Option<u64>, limit: usize, reverse: bool,
) -> Vec<Entry> {
    let after = after.and_then(|after| after.member.job().map(|number| (after.score, number)));
    let beyond = after.map_or(Unbounded, Excluded);
    let fits = |(score, _): &&(u64, u64)| up_to.is_none_or(|most| *score <= most);
    let entry = |(score, number): &(u64, u64)| Entry::number(*score, *number);
    if reverse {
        let found = of.range((Unbounded, beyond)).rev();
        return found.skip_while(|found| !fits(found)).take(limit).map(entry).collect();
    }
    of.range((beyond, Unbounded)).take_while(fits).take(limit).map(entry).collect()
}

/// By name. What is in memory alone has no names to be found by.
pub(super) fn holders(connection: &Connection, table: Table, key: &RecordKey) -> Result<Vec<QueueName>> {
    let Some([.., holders]) = &TABLES[table as usize] else { return Ok(Vec::new()) };
    collect(connection, holders, [rows::key_column(key)], usize::MAX, |row| rows::name(row, 0))
}

/// Up to so many that `read` makes something of.
pub(super) fn collect<T>(
    connection: &Connection, sql: &str, columns: impl Params, limit: usize,
    mut read: impl FnMut(&Row<'_>) -> Result<Option<T>>,
) -> Result<Vec<T>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = statement.query(columns)?;
    let mut out = Vec::new();
    while out.len() < limit
        && let Some(row) = found.next()?
    {
        out.extend(read(row)?);
    }
    Ok(out)
}

pub(super) fn for_each(connection: &Connection, sql: &str, mut each: impl FnMut(&Row<'_>) -> Result<()>) -> Result<()> {
    collect::<()>(connection, sql, [], usize::MAX, |row| each(row).map(|()| None)).map(drop)
}
