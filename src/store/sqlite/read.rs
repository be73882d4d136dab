//! Reads by SQL alone, on any connection: all of a reader's, and the rare ones of the writer.

use super::{
    cache::{SharedVolatile, Sums},
    rows::{self, Column},
    schema::{KEYED_TABLES, ROW_TABLES},
};
use crate::{
    domain::ids::QueueName,
    store::storage::{
        Counter, CounterGroup, Entry, Found, Index, Len, Mark, Member, Position, Read, RecordKey,
        Table,
    },
};
use bytes::Bytes;
use rusqlite::{Connection, Params, Result, Row, params_from_iter};
use std::sync::LazyLock;

/// What is asked of each table, by its place in `Table::ALL`: a record, a page of them, and the queues that have one.
static TABLES: LazyLock<Vec<Option<[String; 3]>>> = LazyLock::new(|| {
    let sql = |table: Table| {
        let is_table = |(other, _): &&(Table, &str)| *other == table;
        let row_tables = ROW_TABLES.iter().chain(&[(Table::Lease, "lease")]);
        let (key, (_, table)) = match row_tables.clone().find(is_table) {
            Some(found) => ("number", found),
            None => ("key", KEYED_TABLES.iter().find(is_table)?),
        };
        Some([
            format!("SELECT record FROM {table} WHERE queue = ?1 AND {key} = ?2"),
            format!(
                "SELECT {key}, record FROM {table} WHERE queue = ?1 AND {key} > ?2 ORDER BY {key} LIMIT ?3"
            ),
            format!(
                "SELECT name FROM queue CROSS JOIN {table} USING (queue) WHERE {key} = ?1 ORDER BY name"
            ),
        ])
    };
    Table::ALL.into_iter().map(sql).collect()
});

/// How the entries of an index stand in a table: its name, and the columns of its order.
struct Shape {
    columns: usize,
    forward: String,
    reverse: String,
}

impl Shape {
    fn new(table: &str, columns: &[&str]) -> Self {
        let list = columns.join(", ");
        let marks = vec!["?"; columns.len()].join(", ");
        let sql = |order: String| {
            format!(
                "SELECT {list} FROM {table} WHERE ({list}) > ({marks}) AND ({list}) < ({marks}) \
                 ORDER BY {order} LIMIT ?"
            )
        };
        let reverse = format!("{} DESC", columns.join(" DESC, "));
        Self { columns: columns.len(), forward: sql(list.clone()), reverse: sql(reverse) }
    }

    fn of(index: Index) -> &'static Self {
        static SHAPES: LazyLock<[Shape; 4]> = LazyLock::new(|| {
            [
                Shape::new("ready", &["slot", "place", "member"]),
                Shape::new("waiting", &["slot", "at", "line", "member"]),
                Shape::new("lease", &["queue", "expiry", "number"]),
                Shape::new("entry", &["slot", "score", "member"]),
            ]
        });
        match index {
            Index::Ready => &SHAPES[0],
            Index::Scheduled | Index::Retrying => &SHAPES[1],
            Index::Leased => &SHAPES[2],
            _ => &SHAPES[3],
        }
    }
}

/// One queue.
#[derive(Clone, Copy)]
pub(super) struct QueueReader<'a> {
    pub(super) connection: &'a Connection,
    pub(super) queue: i64,
}

impl QueueReader<'_> {
    pub(super) fn read(
        &self,
        sums: &Sums,
        volatile: &SharedVolatile,
        read: &Read,
    ) -> Result<Found> {
        let outcomes = || volatile.get(self.queue, |queue| queue.outcomes.clone());
        Ok(match read {
            Read::Record(Table::Outcomes, _) => Found::Record(outcomes()),
            Read::Record(table, key) => Found::Record(self.record(*table, key)?),
            Read::Score(index, member) => Found::Score(self.score(*index, member)?),
            Read::Range { index, after, up_to, limit, reverse } => {
                Found::Entries(self.range(*index, after.as_ref(), *up_to, *limit, *reverse)?)
            }
            Read::Ahead(position, most) => Found::Number(self.ahead(position, *most)?),
            Read::Len(Len::Table(Table::Outcomes)) => Found::Number(outcomes().is_some().into()),
            Read::Len(of) => Found::Number(sums.len(*of)),
            Read::Counters(CounterGroup::Totals) => Found::Counters(sums.totals()),
            Read::Counters(CounterGroup::ErrorTypes) => Found::Counters(self.error_types()?),
            Read::Counters(CounterGroup::Succeeded(epoch)) => {
                let count = volatile.get(self.queue, |queue| queue.succeeded.get(epoch).copied());
                let counter = count.map(|count| (Counter::Succeeded(*epoch), count));
                Found::Counters(counter.into_iter().collect())
            }
            Read::Mark(Mark::LastSuccess(epoch)) => {
                let mark = volatile.get(self.queue, |queue| queue.last_success.get(epoch).copied());
                Found::Score(mark.map(|at| at.millis()))
            }
            Read::Scan(Table::Outcomes, after, limit) => {
                let record = outcomes().filter(|_| after.is_none() && *limit > 0);
                Found::Scanned(record.map(|record| (RecordKey::Only, record)).into_iter().collect())
            }
            Read::Scan(table, after, limit) => {
                Found::Scanned(self.scan(*table, after.as_ref(), *limit)?)
            }
        })
    }

    fn record(&self, table: Table, key: &RecordKey) -> Result<Option<Bytes>> {
        let Some([get, ..]) = &TABLES[table as usize] else { return Ok(None) };
        let columns = (self.queue, rows::key_column(key));
        Ok(collect(self.connection, get, columns, |row| rows::record(row, 0).map(Some))?.pop())
    }

    fn scan(
        &self,
        table: Table,
        after: Option<&RecordKey>,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Bytes)>> {
        let Some([_, scan, _]) = &TABLES[table as usize] else { return Ok(Vec::new()) };
        // Before every number and every text.
        let after = after.map_or(Column::Int(-1), rows::key_column);
        collect(self.connection, scan, (self.queue, after, rows::limit(limit)), |row| {
            let Some(key) = rows::read_key(table, row.get_ref(0)?) else { return Ok(None) };
            Ok(Some((key, rows::record(row, 1)?)))
        })
    }

    /// Of an entry, as the columns of its index.
    fn columns<'e>(&self, index: Index, score: u64, member: &'e Member) -> Vec<Column<'e>> {
        let score = i64::try_from(score).unwrap_or(i64::MAX);
        match (index, member) {
            (Index::Ready, Member::Position(position)) => {
                rows::ready_row(self.queue, position).map(Column::Int).into()
            }
            (Index::Scheduled | Index::Retrying, Member::Position(position)) => {
                let [_, line, member] = rows::waiting_row(position);
                let slot = rows::slot(self.queue, index);
                [slot, score, line, member].map(Column::Int).into()
            }
            (index, member) => vec![
                Column::Int(rows::slot(self.queue, index)),
                Column::Int(score),
                rows::member_column(index, member),
            ],
        }
    }

    pub(super) fn score(&self, index: Index, member: &Member) -> Result<Option<u64>> {
        let queue = self.queue;
        let ready_at = rows::position(member).map_or(0, |position| position.ready_at.millis());
        let (sql, columns) = match index {
            Index::Ready => (
                "SELECT 0 FROM ready WHERE slot = ?1 AND place = ?2 AND member = ?3",
                self.columns(index, 0, member),
            ),
            Index::Scheduled | Index::Retrying => (
                "SELECT at FROM waiting WHERE slot = ?1 AND at = ?2 AND line = ?3 AND member = ?4",
                self.columns(index, ready_at, member),
            ),
            Index::Leased => (
                "SELECT expiry FROM lease WHERE queue = ?1 AND number = ?2",
                vec![Column::Int(queue), rows::member_column(index, member)],
            ),
            _ => (
                "SELECT score FROM entry WHERE slot = ?1 AND member = ?2",
                vec![Column::Int(rows::slot(queue, index)), rows::member_column(index, member)],
            ),
        };
        let score = |row: &Row<'_>| row.get::<_, i64>(0).map(|score| Some(score.cast_unsigned()));
        Ok(collect(self.connection, sql, params_from_iter(columns), score)?.pop())
    }

    pub(super) fn range(
        &self,
        index: Index,
        after: Option<&Entry>,
        up_to: Option<u64>,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<Entry>> {
        let shape = Shape::of(index);
        let (first_slot, last_slot) = match index {
            Index::Ready => (self.queue << 16, self.queue << 16 | 0xffff),
            _ => (rows::slot(self.queue, index), rows::slot(self.queue, index)),
        };
        let mut lower = vec![Column::Int(-1); shape.columns];
        lower[0] = Column::Int(first_slot);
        // Behind every number, every text and the bytes of every member.
        let mut upper = vec![Column::Bytes(vec![0xff; 16]); shape.columns];
        upper[0] = Column::Int(last_slot);
        if let (true, Some(score)) = (index != Index::Ready, up_to) {
            upper[1] = Column::Int(i64::try_from(score).unwrap_or(i64::MAX));
        }
        match after {
            Some(after) if !reverse => lower = self.columns(index, after.score, &after.member),
            Some(after) if up_to.is_none_or(|score| after.score <= score) => {
                upper = self.columns(index, after.score, &after.member);
            }
            _ => {}
        }
        let sql = if reverse { &shape.reverse } else { &shape.forward };
        let limit = Column::Int(rows::limit(limit));
        let columns = params_from_iter(lower.into_iter().chain(upper).chain([limit]));
        collect(self.connection, sql, columns, |row| {
            Ok(match index {
                Index::Ready => {
                    Some(Entry::ready(rows::read_ready(row.get(0)?, row.get(1)?, row.get(2)?)))
                }
                Index::Scheduled | Index::Retrying => {
                    Some(Entry::waiting(rows::read_waiting(row.get(1)?, row.get(2)?, row.get(3)?)))
                }
                _ => {
                    let score = row.get::<_, i64>(1)?.cast_unsigned();
                    let member = rows::read_member(index, row.get_ref(2)?);
                    member.map(|member| Entry { score, member })
                }
            })
        })
    }

    fn ahead(&self, position: &Position, most: usize) -> Result<u64> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM ready \
                   WHERE slot >= ?1 AND (slot, place, member) < (?2, ?3, ?4) LIMIT ?5)";
        let [slot, place, member] = rows::ready_row(self.queue, position);
        let columns = [self.queue << 16, slot, place, member, rows::limit(most)];
        let mut statement = self.connection.prepare_cached(sql)?;
        statement.query_row(columns, |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
    }

    fn error_types(&self) -> Result<Vec<(Counter, i64)>> {
        let sql = "SELECT name, count FROM error_type WHERE queue = ?1 ORDER BY name";
        collect(self.connection, sql, [self.queue], |row| {
            Ok(Some((Counter::ErrorType(row.get_ref(0)?.as_str()?.into()), row.get(1)?)))
        })
    }
}

/// By name.
pub(super) fn holders(
    connection: &Connection,
    volatile: &SharedVolatile,
    table: Table,
    key: &RecordKey,
) -> Result<Vec<QueueName>> {
    let name = |row: &Row<'_>| Ok(QueueName::parse(row.get_ref(0)?.as_str()?));
    if let Some([.., holders]) = &TABLES[table as usize] {
        return collect(connection, holders, [rows::key_column(key)], name);
    }
    let sql = "SELECT name, queue FROM queue WHERE queue > 0 ORDER BY name";
    collect(connection, sql, [], |row| {
        let outcomes = volatile.get(row.get(1)?, |queue| queue.outcomes.clone());
        Ok(name(row)?.filter(|_| outcomes.is_some()))
    })
}

pub(super) fn collect<T>(
    connection: &Connection,
    sql: &str,
    columns: impl Params,
    read: impl Fn(&Row<'_>) -> Result<Option<T>>,
) -> Result<Vec<T>> {
    let mut out = Vec::new();
    for_each(connection, sql, columns, |row| {
        out.extend(read(row)?);
        Ok(())
    })?;
    Ok(out)
}

pub(super) fn for_each(
    connection: &Connection,
    sql: &str,
    columns: impl Params,
    mut each: impl FnMut(&Row<'_>) -> Result<()>,
) -> Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = statement.query(columns)?;
    while let Some(row) = found.next()? {
        each(row)?;
    }
    Ok(())
}
