//! Reads by SQL alone, on any connection: all of a reader's, and the rare ones of the writer.

use super::{
    rows::{self, Column},
    schema::{KEYED_TABLES, ROW_TABLES},
};
use crate::{
    domain::ids::QueueName,
    store::storage::{Counter, Entry, Index, Member, Position, RecordKey, Table},
};
use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, Params, Result, Row, params_from_iter};
use std::sync::LazyLock;

/// What is asked of each table, by its place in `Table::ALL`.
struct TableSql {
    get: String,
    scan: String,
    holders: String,
}

static TABLES: LazyLock<Vec<Option<TableSql>>> = LazyLock::new(|| {
    let sql = |table: Table| {
        let is_table = |(other, _): &&(Table, &str)| *other == table;
        let lease = [(Table::Lease, "lease")];
        if let Some((_, name)) = ROW_TABLES.iter().chain(&lease).find(is_table) {
            return Some(TableSql {
                get: format!("SELECT record FROM {name} WHERE queue = ?1 AND number = ?2"),
                scan: format!(
                    "SELECT number, record FROM {name} WHERE queue = ?1 AND number > ?2 ORDER BY number LIMIT ?3"
                ),
                holders: format!(
                    "SELECT name FROM {name} JOIN queue USING (queue) WHERE number = ?1"
                ),
            });
        }
        let (_, name) = KEYED_TABLES.iter().find(is_table)?;
        Some(TableSql {
            get: format!("SELECT record FROM {name} WHERE queue = ?1 AND key = ?2"),
            scan: format!(
                "SELECT key, record FROM {name} WHERE queue = ?1 AND key > ?2 ORDER BY key LIMIT ?3"
            ),
            holders: format!(
                "SELECT name FROM queue CROSS JOIN {name} USING (queue) WHERE key = ?1 ORDER BY name"
            ),
        })
    };
    Table::ALL.into_iter().map(sql).collect()
});

/// One queue.
#[derive(Clone, Copy)]
pub(super) struct QueueReader<'a> {
    pub(super) connection: &'a Connection,
    pub(super) queue: i64,
}

impl QueueReader<'_> {
    pub(super) fn record(&self, table: Table, key: &RecordKey) -> Result<Option<Bytes>> {
        let Some(sql) = &TABLES[table as usize] else { return Ok(None) };
        let mut statement = self.connection.prepare_cached(&sql.get)?;
        let mut found = statement.query((self.queue, rows::key_column(key)))?;
        found.next()?.map(|row| rows::record(row, 0)).transpose()
    }

    pub(super) fn scan(
        &self,
        table: Table,
        after: Option<&RecordKey>,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Bytes)>> {
        let Some(sql) = &TABLES[table as usize] else { return Ok(Vec::new()) };
        // Before every number and every text.
        let after = after.map_or(Column::Int(-1), rows::key_column);
        let statement = self.connection.prepare_cached(&sql.scan)?;
        collect(statement, (self.queue, after, rows::limit(limit)), |row| {
            let Some(key) = rows::read_key(table, row.get_ref(0)?) else { return Ok(None) };
            Ok(Some((key, rows::record(row, 1)?)))
        })
    }

    pub(super) fn score(&self, index: Index, member: &Member) -> Result<Option<u64>> {
        let queue = self.queue;
        let (sql, columns): (_, Vec<Column<'_>>) = match (index, member) {
            (Index::Ready, Member::Position(position)) => (
                "SELECT 0 FROM ready WHERE slot = ?1 AND place = ?2 AND member = ?3",
                rows::ready_row(queue, position).map(Column::Int).into(),
            ),
            (Index::Scheduled | Index::Retrying, Member::Position(position)) => {
                let slot = rows::waiting_slot(queue, index).unwrap_or(-1);
                let row = rows::waiting_row(position.ready_at.millis(), position);
                (
                    "SELECT at FROM waiting WHERE slot = ?1 AND at = ?2 AND line = ?3 AND member = ?4",
                    std::iter::once(slot).chain(row).map(Column::Int).collect(),
                )
            }
            (Index::Leased, Member::Number(number)) => (
                "SELECT expiry FROM lease WHERE queue = ?1 AND number = ?2",
                vec![Column::Int(queue), Column::Int(number.cast_signed())],
            ),
            (Index::Ready | Index::Scheduled | Index::Retrying | Index::Leased, _) => {
                return Ok(None);
            }
            _ => (
                "SELECT score FROM entry WHERE slot = ?1 AND member = ?2",
                vec![
                    Column::Int(rows::entry_slot(queue, index)),
                    rows::member_column(index, member),
                ],
            ),
        };
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut found = statement.query(params_from_iter(columns))?;
        found.next()?.map(|row| row.get::<_, i64>(0).map(i64::cast_unsigned)).transpose()
    }

    pub(super) fn range(
        &self,
        index: Index,
        after: Option<&Entry>,
        up_to: Option<u64>,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<Entry>> {
        let up_to = up_to.map_or(i64::MAX, |score| i64::try_from(score).unwrap_or(i64::MAX));
        let limit = rows::limit(limit);
        let edge = if reverse { i64::MAX } else { -1 };
        let position = after.and_then(rows::position_of);
        match index {
            Index::Ready => {
                let (low, high) = (self.queue << 16, self.queue << 16 | 0xffff);
                let [slot, place, member] = match position {
                    Some(position) => rows::ready_row(self.queue, position),
                    None if reverse => [high, edge, edge],
                    None => [low, edge, edge],
                };
                let sql = if reverse {
                    "SELECT slot, place, member FROM ready WHERE slot >= ?1 AND (slot, place, member) < (?2, ?3, ?4) \
                     ORDER BY slot DESC, place DESC, member DESC LIMIT ?5"
                } else {
                    "SELECT slot, place, member FROM ready WHERE slot <= ?1 AND (slot, place, member) > (?2, ?3, ?4) \
                     ORDER BY slot, place, member LIMIT ?5"
                };
                let bound = if reverse { low } else { high };
                collect(
                    self.connection.prepare_cached(sql)?,
                    [bound, slot, place, member, limit],
                    |row| {
                        let position = rows::read_ready(row.get(0)?, row.get(1)?, row.get(2)?);
                        Ok(Some(Entry::ready(position)))
                    },
                )
            }
            Index::Scheduled | Index::Retrying => {
                let slot = rows::waiting_slot(self.queue, index).unwrap_or(-1);
                let row = after.zip(position).map(|(after, at)| rows::waiting_row(after.score, at));
                let [at, line, member] = row.unwrap_or([edge; 3]);
                let sql = if reverse {
                    "SELECT at, line, member FROM waiting WHERE slot = ?1 AND (at, line, member) < (?2, ?3, ?4) \
                     AND at <= ?5 ORDER BY at DESC, line DESC, member DESC LIMIT ?6"
                } else {
                    "SELECT at, line, member FROM waiting WHERE slot = ?1 AND (at, line, member) > (?2, ?3, ?4) \
                     AND at <= ?5 ORDER BY at, line, member LIMIT ?6"
                };
                let columns = [slot, at, line, member, up_to, limit];
                collect(self.connection.prepare_cached(sql)?, columns, |row| {
                    let position = rows::read_waiting(row.get(0)?, row.get(1)?, row.get(2)?);
                    Ok(Some(Entry::waiting(position)))
                })
            }
            Index::Leased => {
                let (score, member) = match after {
                    Some(after) => {
                        (after.score.cast_signed(), rows::member_column(index, &after.member))
                    }
                    None => (edge, Column::Int(edge)),
                };
                let sql = if reverse {
                    "SELECT expiry, number FROM lease WHERE queue = ?1 AND (expiry, number) < (?2, ?3) AND expiry <= ?4 \
                     ORDER BY expiry DESC, number DESC LIMIT ?5"
                } else {
                    "SELECT expiry, number FROM lease WHERE queue = ?1 AND (expiry, number) > (?2, ?3) AND expiry <= ?4 \
                     ORDER BY expiry, number LIMIT ?5"
                };
                let columns = (self.queue, score, member, up_to, limit);
                collect(self.connection.prepare_cached(sql)?, columns, |row| read_entry(index, row))
            }
            _ => {
                let (score, member) = match after {
                    Some(after) => {
                        (after.score.cast_signed(), rows::member_column(index, &after.member))
                    }
                    // Behind every member.
                    None => (edge, Column::Bytes(vec![0xff; 16])),
                };
                let sql = if reverse {
                    "SELECT score, member FROM entry WHERE slot = ?1 AND (score, member) < (?2, ?3) AND score <= ?4 \
                     ORDER BY score DESC, member DESC LIMIT ?5"
                } else {
                    "SELECT score, member FROM entry WHERE slot = ?1 AND (score, member) > (?2, ?3) AND score <= ?4 \
                     ORDER BY score, member LIMIT ?5"
                };
                let columns = (rows::entry_slot(self.queue, index), score, member, up_to, limit);
                collect(self.connection.prepare_cached(sql)?, columns, |row| read_entry(index, row))
            }
        }
    }

    pub(super) fn ahead(&self, position: &Position, most: usize) -> Result<u64> {
        let [slot, place, member] = rows::ready_row(self.queue, position);
        let sql = "SELECT count(*) FROM (SELECT 1 FROM ready WHERE slot >= ?1 AND (slot, place, member) < (?2, ?3, ?4) \
             LIMIT ?5)";
        let columns = [self.queue << 16, slot, place, member, rows::limit(most)];
        let count: i64 =
            self.connection.prepare_cached(sql)?.query_row(columns, |row| row.get(0))?;
        Ok(count.cast_unsigned())
    }

    pub(super) fn error_types(&self) -> Result<Vec<(Counter, i64)>> {
        let sql = "SELECT name, count FROM error_type WHERE queue = ?1 ORDER BY name";
        collect(self.connection.prepare_cached(sql)?, [self.queue], |row| {
            Ok(Some((Counter::ErrorType(row.get_ref(0)?.as_str()?.into()), row.get(1)?)))
        })
    }
}

fn read_entry(index: Index, row: &Row<'_>) -> Result<Option<Entry>> {
    let score = row.get::<_, i64>(0)?.cast_unsigned();
    Ok(rows::read_member(index, row.get_ref(1)?).map(|member| Entry { score, member }))
}

/// By name.
pub(super) fn holders(
    connection: &Connection,
    table: Table,
    key: &RecordKey,
) -> Result<Vec<QueueName>> {
    let Some(sql) = &TABLES[table as usize] else { return Ok(Vec::new()) };
    let statement = connection.prepare_cached(&sql.holders)?;
    collect(statement, [rows::key_column(key)], |row| {
        Ok(QueueName::parse(row.get_ref(0)?.as_str()?))
    })
}

pub(super) fn collect<T>(
    mut statement: CachedStatement<'_>,
    columns: impl Params,
    read: impl Fn(&Row<'_>) -> Result<Option<T>>,
) -> Result<Vec<T>> {
    let mut found = statement.query(columns)?;
    let mut out = Vec::new();
    while let Some(row) = found.next()? {
        out.extend(read(row)?);
    }
    Ok(out)
}
