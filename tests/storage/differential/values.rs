//! Keys, members and records out of a few bytes, from spaces so small that calls meet.

use crate::fixture::{history_record, job_record};
use bytes::Bytes;
use redrive::domain::Timestamp;
use redrive::store::storage::{
    Entry, GroupState, Index, LEASE_TAIL, Len, Member, NO_GROUP, Position, RecordKey, Table, Version, WHOLE_QUEUE,
    epoch_of, flag,
};

/// What one part of a call is made of: which kind it is, and four choices within it.
pub(super) type Seed = [u8; 5];

pub(super) const QUEUES: u8 = 3;
/// Times are whole ticks apart.
pub(super) const TICK: u64 = 10;

pub(super) fn pick<T: Clone>(choices: &[T], by: u8) -> T {
    choices[usize::from(by) % choices.len()].clone()
}

pub(super) const GROUPS: [u16; 4] = [NO_GROUP, 1, 2, 256];
/// Of each job of a queue: a lease keeps its group.
const GROUP_OF: [u16; 12] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 256, 256];

/// Other numbers in each queue: a store gives none twice.
pub(super) fn number(queue: u8, by: u8) -> u64 {
    1 + u64::from(by % GROUP_OF.len() as u8) * u64::from(QUEUES) + u64::from(queue)
}

/// What a number was made by.
pub(super) fn by_of(number: u64) -> u8 {
    ((number - 1) / u64::from(QUEUES)) as u8
}

pub(super) fn group(number: u64) -> u16 {
    GROUP_OF[usize::from(by_of(number))]
}

/// Of one of the groups.
pub(super) fn epoch(by: u8) -> u32 {
    epoch_of(pick(&GROUPS, by / 2), u64::from(by % 2))
}

pub(super) fn time(start: Timestamp, by: u8) -> Timestamp {
    Timestamp::from_millis(start.millis() + u64::from(by % 8) * TICK)
}

pub(super) fn key(table: Table, queue: u8, by: u8, part: u8) -> RecordKey {
    match table {
        Table::Queue => RecordKey::Only,
        Table::Version => RecordKey::Group(pick(&[NO_GROUP, WHOLE_QUEUE, 1, 2, 256, 1], part)),
        Table::Breaker | Table::Outcomes => RecordKey::Group(pick(&[NO_GROUP, 1, 256], part)),
        Table::Attempt | Table::Event => RecordKey::Part(number(queue, by), 1 + part % 3),
        Table::Failure => RecordKey::Part(number(queue, by), part % 2),
        Table::Group | Table::Id | Table::Key | Table::Request => RecordKey::Text(pick(&["a", "ab", "B"], by).into()),
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
        // Records of the queue itself are never empty.
        Table::Queue | Table::Breaker | Table::Outcomes => vec![by % 2; 1 + usize::from(more % 4)].into(),
        _ => vec![by % 2; usize::from(more % 4)].into(),
    }
}

fn position(queue: u8, start: Timestamp, by: u8, more: u8, at: u8) -> Position {
    let (ready_at, number) = (time(start, at), number(queue, by));
    Position { group: group(number), rank: more % 2, ready_at, number, tag: more >> 1 & 1 }
}

/// As much of a lease as engines know.
pub(super) fn lease(number: u64, by: u8, more: u8) -> Bytes {
    let ready_at = Timestamp::from_millis(u64::from(by));
    let position = Position { group: group(number), rank: 0, ready_at, number, tag: 0 };
    let front = [by; LEASE_TAIL - Position::LENGTH];
    [&front[..], &position.bytes(), &[more; 3][..usize::from(more % 4)]].concat().into()
}

/// An entry as verbs write it: the score of a position follows from it.
pub(super) fn entry(index: Index, queue: u8, start: Timestamp, choices: [u8; 3]) -> Entry {
    let [by, more, at] = choices;
    let score = time(start, at).millis();
    let member = match index {
        Index::Ready | Index::Keyed => {
            // The next one that may stand there.
            let mut positions = (by % 64..).map(|by| position(queue, start, by, more, at));
            return Entry::ready(positions.find(|position| position.ready_index() == index).unwrap());
        }
        Index::Scheduled | Index::Retrying => {
            return Entry::waiting(position(queue, start, by, more, at));
        }
        Index::LeasedByGroup => return Entry::number(group(number(queue, by)).into(), number(queue, by)),
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
