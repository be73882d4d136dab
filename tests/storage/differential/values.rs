//! Keys, members and records out of a few bytes, from spaces so small that calls meet.

use crate::fixture::{history_record, job_record};
use bytes::Bytes;
use redrive::domain::Timestamp;
use redrive::store::storage::{
    Entry, GroupState, Index, Len, Member, NO_GROUP, Position, RecordKey, Table, Version, WHOLE_QUEUE, flag,
};

/// What one part of a call is made of: which kind it is, and four choices within it.
pub(super) type Seed = [u8; 5];

pub(super) const QUEUES: u8 = 3;
/// Times are whole ticks apart.
pub(super) const TICK: u64 = 10;

pub(super) fn pick<T: Clone>(choices: &[T], by: u8) -> T {
    choices[usize::from(by) % choices.len()].clone()
}

/// Other numbers in each queue: a store gives none twice.
pub(super) fn number(queue: u8, by: u8) -> u64 {
    1 + u64::from(by % 8) * u64::from(QUEUES) + u64::from(queue)
}

pub(super) fn time(start: Timestamp, by: u8) -> Timestamp {
    Timestamp::from_millis(start.millis() + u64::from(by % 8) * TICK)
}

pub(super) fn key(table: Table, queue: u8, by: u8, part: u8) -> RecordKey {
    match table {
        Table::Queue | Table::Outcomes => RecordKey::Only,
        Table::Version => RecordKey::Group(pick(&[NO_GROUP, WHOLE_QUEUE], part)),
        Table::Breaker => RecordKey::Group(pick(&[NO_GROUP, 1, 256], part)),
        Table::Attempt | Table::Event => RecordKey::Part(number(queue, by), 1 + part % 3),
        Table::Failure => RecordKey::Part(number(queue, by), part % 2),
        Table::Id | Table::Key | Table::Request => RecordKey::Text(pick(&["a", "ab", "B"], by).into()),
        _ => RecordKey::Number(number(queue, by)),
    }
}

pub(super) fn record(table: Table, by: u8, more: u8) -> Bytes {
    let size = u32::from(by % 8) * 10;
    match table {
        Table::Job => job_record(size, more & (flag::OWN_ID | flag::LOOK | flag::BODY)),
        Table::History => {
            let traits = flag::HISTORY | more & flag::RETRIED;
            history_record(size, traits, u32::from(by), u32::from(more))
        }
        Table::Version => {
            let state = pick(&[GroupState::Free, GroupState::NeedsRule, GroupState::Held], by);
            let version = Version { state, epoch: u32::from(more % 2), random: [1 + by % 2; 8] };
            Bytes::copy_from_slice(&version.bytes())
        }
        _ => vec![by % 2; usize::from(more % 4)].into(),
    }
}

fn position(queue: u8, start: Timestamp, by: u8, more: u8, at: u8) -> Position {
    let ready_at = time(start, at);
    Position { group: 0, rank: more % 2, ready_at, number: number(queue, by), tag: more >> 1 & 1 }
}

/// An entry as verbs write it: the score of a position follows from it.
pub(super) fn entry(index: Index, queue: u8, start: Timestamp, choices: [u8; 3]) -> Entry {
    let [by, more, at] = choices;
    let score = time(start, at).millis();
    let member = match index {
        Index::Ready => return Entry::ready(position(queue, start, by, more, at)),
        Index::Scheduled | Index::Retrying => {
            return Entry::waiting(position(queue, start, by, more, at));
        }
        Index::Probe => Member::Probe { epoch: u32::from(more % 2), number: number(queue, by) },
        Index::FinishedKey => Member::Text(pick(&["a", "ab", "B"], by).into()),
        Index::Expires => {
            let table = pick(&[Table::Request, Table::Id, Table::Move], more);
            Member::Record(table, key(table, queue, by, 0))
        }
        _ => Member::Number(number(queue, by)),
    };
    Entry { score, member }
}

/// The lengths that every engine knows.
pub(super) fn lengths() -> Vec<Len> {
    let tables = [Table::Job, Table::Lease, Table::Dead].map(Len::Table);
    tables.into_iter().chain(Index::ALL.map(Len::Index)).collect()
}
