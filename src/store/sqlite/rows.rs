//! How keys, members and positions stand in columns.

use super::schema::{ENTRY, LEASE, READY, TIMED, WAITING};
use crate::domain::{QueueName, Timestamp};
use crate::store::storage::{Entry, Index, Member, NO_GROUP, Position, RecordKey, Table};
use bytes::Bytes;
use rusqlite::Row;
use rusqlite::types::{ToSqlOutput, ValueRef};

/// A column whose type depends on the table or the index.
pub(super) type Column<'a> = ToSqlOutput<'a>;

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
        RecordKey::Only => 0.into(),
        RecordKey::Group(group) => (*group).into(),
        RecordKey::Number(_) | RecordKey::Part(..) => row_of(key).into(),
        RecordKey::Text(text) => (**text).into(),
    }
}

pub(super) fn read_key(table: Table, column: ValueRef<'_>) -> Option<RecordKey> {
    match column {
        ValueRef::Text(text) => Some(RecordKey::Text(std::str::from_utf8(text).ok()?.into())),
        ValueRef::Integer(row) => Some(match table {
            Table::Queue | Table::Outcomes => RecordKey::Only,
            Table::Version | Table::Breaker => RecordKey::Group(u16::try_from(row).ok()?),
            Table::Attempt | Table::Event | Table::Failure => {
                RecordKey::Part(row.cast_unsigned() >> 8, (row & 0xff) as u8)
            }
            _ => RecordKey::Number(row.cast_unsigned()),
        }),
        _ => None,
    }
}

pub(super) fn table_of(index: Index) -> usize {
    match index {
        Index::Ready => READY,
        Index::Scheduled | Index::Retrying => WAITING,
        Index::FinishedKey => TIMED,
        Index::Probe
        | Index::Dead
        | Index::Overflow
        | Index::Completed
        | Index::Cancelled
        | Index::Deadline
        | Index::Expires => ENTRY,
        Index::Leased => LEASE,
    }
}

pub(super) fn slot(queue: i64, index: Index) -> i64 {
    if index == Index::Leased { queue } else { queue << 4 | index as i64 }
}

pub(super) type EntryRow<'a> = (i64, Column<'a>);

pub(super) fn entry_row(index: Index, score: u64, member: &Member) -> EntryRow<'_> {
    let score = i64::try_from(score).unwrap_or(i64::MAX);
    match member {
        Member::Position(position) => {
            let [score, member] = position_row(index, position);
            (score, member.into())
        }
        Member::Number(number) => (score, number.cast_signed().into()),
        Member::Text(text) => (score, (**text).into()),
        other => (score, other.bytes(index).into()),
    }
}

/// Of the entries up to this score the last.
pub(super) fn last_score(index: Index, up_to: Option<u64>) -> i64 {
    match up_to {
        Some(score) if table_of(index) == WAITING => (score.min(TIME_MAX) << 8 | 0xff).cast_signed(),
        Some(score) if index != Index::Ready => i64::try_from(score).unwrap_or(i64::MAX),
        _ => i64::MAX,
    }
}

/// Of a row with score and member. None: it cannot be read.
pub(super) fn read_entry(index: Index, row: &Row<'_>) -> rusqlite::Result<Option<Entry>> {
    let score: i64 = row.get(0)?;
    let member = match row.get_ref(1)? {
        ValueRef::Integer(member) if table_of(index) <= WAITING => {
            let position = read_position(index, [score, member]);
            let entry = if index == Index::Ready { Entry::ready } else { Entry::waiting };
            return Ok(Some(entry(position)));
        }
        ValueRef::Integer(number) => Some(Member::Number(number.cast_unsigned())),
        ValueRef::Text(text) => std::str::from_utf8(text).ok().map(|text| Member::Text(text.into())),
        ValueRef::Blob(bytes) => Member::read(index, bytes),
        _ => None,
    };
    Ok(member.map(|member| Entry { score: score.cast_unsigned(), member }))
}

/// The latest time: 48 bits.
const TIME_MAX: u64 = (1 << 48) - 1;

/// Ready jobs are ordered by rank and time, those for later by time and rank. All are without a group.
pub(super) fn position_row(index: Index, position: &Position) -> [i64; 2] {
    let (rank, ready_at) = (u64::from(position.rank), position.ready_at.millis());
    let score = if index == Index::Ready { rank << 48 | ready_at } else { ready_at << 8 | rank };
    [score.cast_signed(), part_row(position.number, position.tag)]
}

pub(super) fn read_position(index: Index, row: [i64; 2]) -> Position {
    let [score, member] = row.map(i64::cast_unsigned);
    let (rank, ready_at) =
        if index == Index::Ready { (score >> 48, score & TIME_MAX) } else { (score & 0xff, score >> 8) };
    let (ready_at, number) = (Timestamp::from_millis(ready_at), member >> 8);
    Position { group: NO_GROUP, rank: rank as u8, ready_at, number, tag: (member & 0xff) as u8 }
}

/// The one copy out of a row.
pub(super) fn record(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(column)?.as_blob()?))
}

/// None: it is no name.
pub(super) fn name(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<QueueName>> {
    Ok(QueueName::parse(row.get_ref(column)?.as_str()?))
}

pub(super) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
