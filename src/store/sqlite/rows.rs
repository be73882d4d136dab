//! How keys, members and positions stand in columns.

use super::schema::{KEYED_TABLES, ROW_TABLES};
use crate::{
    domain::time::Timestamp,
    store::storage::{Index, Member, Position, RecordKey, Table},
};
use bytes::Bytes;
use rusqlite::{
    Row, ToSql,
    types::{ToSqlOutput, Value, ValueRef},
};

/// A column whose type depends on the table or the index.
#[derive(Clone, Debug)]
pub(super) enum Column<'a> {
    Int(i64),
    Text(&'a str),
    Bytes(Vec<u8>),
}

impl ToSql for Column<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Int(int) => ToSqlOutput::Owned(Value::Integer(*int)),
            Self::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}

/// Its place in [`ROW_TABLES`].
pub(super) fn row_table(table: Table) -> Option<usize> {
    ROW_TABLES.iter().position(|(other, _)| *other == table)
}

/// Its place in [`KEYED_TABLES`].
pub(super) fn keyed_table(table: Table) -> Option<usize> {
    KEYED_TABLES.iter().position(|(other, _)| *other == table)
}

/// Records that are read from memory alone.
pub(super) fn is_cached(table: Table) -> bool {
    matches!(table, Table::Queue | Table::Version | Table::Breaker)
}

/// The row of a number or of a part.
pub(super) fn row_of(key: &RecordKey) -> i64 {
    match key {
        RecordKey::Number(number) => number.cast_signed(),
        RecordKey::Part(number, part) => part_row(*number, *part),
        // No table has this row.
        _ => -1,
    }
}

pub(super) fn part_row(number: u64, part: u8) -> i64 {
    (number << 8 | u64::from(part)).cast_signed()
}

pub(super) fn key_column(key: &RecordKey) -> Column<'_> {
    match key {
        RecordKey::Only => Column::Int(0),
        RecordKey::Group(group) => Column::Int((*group).into()),
        RecordKey::Number(_) | RecordKey::Part(..) => Column::Int(row_of(key)),
        RecordKey::Text(text) => Column::Text(text),
    }
}

pub(super) fn read_key(table: Table, column: ValueRef<'_>) -> Option<RecordKey> {
    match column {
        ValueRef::Text(text) => Some(RecordKey::Text(std::str::from_utf8(text).ok()?.into())),
        ValueRef::Integer(row) => Some(match table {
            Table::Queue | Table::Outcomes => RecordKey::Only,
            Table::Version | Table::Breaker => RecordKey::Group(u16::try_from(row).ok()?),
            Table::Attempt | Table::Failure => {
                RecordKey::Part(row.cast_unsigned() >> 8, (row & 0xff) as u8)
            }
            _ => RecordKey::Number(row.cast_unsigned()),
        }),
        _ => None,
    }
}

/// Where the entries of an index begin in its table.
pub(super) fn slot(queue: i64, index: Index) -> i64 {
    match index {
        Index::Ready => queue << 16,
        Index::Scheduled => queue << 1,
        Index::Retrying => queue << 1 | 1,
        Index::Leased => queue,
        other => queue << 4 | other as i64,
    }
}

pub(super) fn member_column(index: Index, member: &Member) -> Column<'_> {
    match member {
        Member::Number(number) => Column::Int(number.cast_signed()),
        Member::Text(text) => Column::Text(text),
        other => Column::Bytes(other.bytes(index)),
    }
}

pub(super) fn read_member(index: Index, column: ValueRef<'_>) -> Option<Member> {
    match column {
        ValueRef::Integer(number) => Some(Member::Number(number.cast_unsigned())),
        ValueRef::Text(text) => Some(Member::Text(std::str::from_utf8(text).ok()?.into())),
        ValueRef::Blob(bytes) => Member::read(index, bytes),
        _ => None,
    }
}

fn member_of(position: &Position) -> i64 {
    part_row(position.number, position.tag)
}

/// A row of `ready`: slot, place, member.
pub(super) fn ready_row(queue: i64, position: &Position) -> [i64; 3] {
    let place = u64::from(position.rank) << 48 | position.ready_at.millis();
    [queue << 16 | i64::from(position.group), place.cast_signed(), member_of(position)]
}

pub(super) fn read_ready(slot: i64, place: i64, member: i64) -> Position {
    let (place, member) = (place.cast_unsigned(), member.cast_unsigned());
    Position {
        group: (slot & 0xffff) as u16,
        rank: (place >> 48) as u8,
        ready_at: Timestamp::from_millis(place & 0xffff_ffff_ffff),
        number: member >> 8,
        tag: (member & 0xff) as u8,
    }
}

/// A row of `waiting` behind its slot: at, line, member.
pub(super) fn waiting_row(position: &Position) -> [i64; 3] {
    let line = i64::from(position.group) << 8 | i64::from(position.rank);
    [position.ready_at.millis().cast_signed(), line, member_of(position)]
}

pub(super) fn read_waiting(at: i64, line: i64, member: i64) -> Position {
    let member = member.cast_unsigned();
    Position {
        group: (line >> 8) as u16,
        rank: (line & 0xff) as u8,
        ready_at: Timestamp::from_millis(at.cast_unsigned()),
        number: member >> 8,
        tag: (member & 0xff) as u8,
    }
}

pub(super) fn position(member: &Member) -> Option<&Position> {
    match member {
        Member::Position(position) => Some(position),
        _ => None,
    }
}

/// The one copy out of a row.
pub(super) fn record(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(column)?.as_blob()?))
}

pub(super) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
