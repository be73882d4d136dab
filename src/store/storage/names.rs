//! Tables, indexes, members, versions and counters by name.

use super::Fence;
use crate::domain::Timestamp;
use bytes::Bytes;

/// The kinds of records. The letter is the name of the table where names must be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// `Only`: pause, and the state of the dead letters.
    Queue,
    /// `Group`: 13 bytes, see [`Version`].
    Version,
    /// `Group`: a breaker.
    Breaker,
    /// `Only`: what a closed breaker has counted. An engine for one process may keep it in memory alone.
    Outcomes,
    /// `Number`: what never changes about a job.
    Job,
    /// `Number`: a body too large to stand in its job's record.
    Body,
    /// `Number`: what a job has been through, and where it is.
    History,
    /// `Part`: one ended delivery.
    Attempt,
    /// `Part`: one thing that was done to the job beside its deliveries.
    Event,
    /// `Part`: the first (0) and the last (1) failure, whole.
    Failure,
    /// `Number`: a delivery that runs. Its expiry stands beside the record, see [`Write::PutLease`].
    Lease,
    /// `Number`: a dead letter. Begins with its number of death.
    Dead,
    /// `Number`: what the Ack of a job that is kept carried.
    Result,
    /// `Text`: the job that has a caller's own id.
    Id,
    /// `Text`: the job that has, or had, an idempotency key.
    Key,
    /// `Text`: a call that may be said again.
    Request,
    /// `Number`: a job on its way to another queue, or the mark of one that has arrived or left.
    Move,
}

impl Table {
    pub const ALL: [Self; 17] = [
        Self::Queue,
        Self::Version,
        Self::Breaker,
        Self::Outcomes,
        Self::Job,
        Self::Body,
        Self::History,
        Self::Attempt,
        Self::Event,
        Self::Failure,
        Self::Lease,
        Self::Dead,
        Self::Result,
        Self::Id,
        Self::Key,
        Self::Request,
        Self::Move,
    ];

    pub fn letter(self) -> char {
        match self {
            Self::Queue => 'q',
            Self::Version => 'v',
            Self::Breaker => 'b',
            Self::Outcomes => 'o',
            Self::Job => 'j',
            Self::Body => 'B',
            Self::History => 'h',
            Self::Attempt => 'a',
            Self::Event => 'e',
            Self::Failure => 'f',
            Self::Lease => 'l',
            Self::Dead => 'd',
            Self::Result => 'R',
            Self::Id => 'i',
            Self::Key => 'k',
            Self::Request => 'r',
            Self::Move => 'm',
        }
    }

    pub fn of_letter(letter: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.letter() as u8 == letter)
    }
}

/// A record's key within its queue and table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordKey {
    Only,
    Group(u16),
    Number(u64),
    Part(u64, u8),
    Text(Box<str>),
}

/// The queue as a whole, where groups are named.
pub const WHOLE_QUEUE: u16 = u16::MAX;
/// Jobs without a breaker key.
pub const NO_GROUP: u16 = 0;

/// Ordered sets of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Index {
    /// `Position`, score 0: in the order in which jobs are handed out.
    Ready,
    /// `Position` by `ready_at`: jobs for later.
    Scheduled,
    /// The same: jobs that failed, in backoff.
    Retrying,
    /// `Number` by expiry: written with `Lease` alone.
    Leased,
    /// `Probe` by its start.
    Probe,
    /// `Number` by number of death: dead letters within `max_entries`.
    Dead,
    /// The same: those that found no room. Disjoint from `Dead`, one sequence of deaths.
    Overflow,
    /// `Number` by when it was done.
    Completed,
    /// Jobs that were cancelled and are kept, by when.
    Cancelled,
    /// `Number` by deadline, while the job waits or is leased.
    Deadline,
    /// `Text` of a key whose job is done, by when it is free.
    FinishedKey,
    /// `Record` by when it is to be removed.
    Expires,
}

impl Index {
    pub const ALL: [Self; 12] = [
        Self::Ready,
        Self::Scheduled,
        Self::Retrying,
        Self::Leased,
        Self::Probe,
        Self::Dead,
        Self::Overflow,
        Self::Completed,
        Self::Cancelled,
        Self::Deadline,
        Self::FinishedKey,
        Self::Expires,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Scheduled => "scheduled",
            Self::Retrying => "retrying",
            Self::Leased => "leased",
            Self::Probe => "probe",
            Self::Dead => "dead",
            Self::Overflow => "overflow",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::FinishedKey => "finished",
            Self::Expires => "expires",
        }
    }
}

/// Where a job waits: ordered by group, priority_rank, ready_at and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    pub group: u16,
    /// 0 goes first.
    pub rank: u8,
    pub ready_at: Timestamp,
    pub number: u64,
    /// Bit 0: it has a `History`.
    pub tag: u8,
}

/// [`Position::tag`]: it has a `History`.
pub const HAS_HISTORY_TAG: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    Position(Position),
    Number(u64),
    Probe { epoch: u32, number: u64 },
    Text(Box<str>),
    Record(Table, RecordKey),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    pub score: u64,
    pub member: Member,
}

impl Entry {
    pub fn number(score: u64, number: u64) -> Self {
        Self { score, member: Member::Number(number) }
    }

    /// In `Scheduled` and `Retrying`.
    pub fn waiting(position: Position) -> Self {
        Self { score: position.ready_at.millis(), member: Member::Position(position) }
    }

    /// In `Ready`.
    pub fn ready(position: Position) -> Self {
        Self { score: 0, member: Member::Position(position) }
    }
}

/// The state of the queue as a whole, or of a group: changes whenever what may be handed out of it is decided anew, so that a
/// server whose facts are old takes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    pub state: GroupState,
    /// The breaker's transition count, which every lease remembers.
    pub epoch: u32,
    /// A counter would repeat itself after a failover that lost writes.
    pub random: [u8; 8],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupState {
    #[default]
    Free,
    /// May be taken from by those who hand in a rule for this very version.
    NeedsRule,
    Held,
}

impl Version {
    pub const LENGTH: usize = 13;

    pub fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        out[0] = match self.state {
            GroupState::Free => 0,
            GroupState::NeedsRule => 1,
            GroupState::Held => 2,
        };
        out[1..5].copy_from_slice(&self.epoch.to_be_bytes());
        out[5..].copy_from_slice(&self.random);
        out
    }

    /// A missing or damaged one is as new.
    pub fn read(record: Option<&[u8]>) -> Self {
        let Some(bytes) = record.and_then(|record| <[u8; Self::LENGTH]>::try_from(record).ok()) else {
            return Self::default();
        };
        let state = match bytes[0] {
            0 => GroupState::Free,
            1 => GroupState::NeedsRule,
            _ => GroupState::Held,
        };
        let epoch = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
        let mut random = [0; 8];
        random.copy_from_slice(&bytes[5..]);
        Self { state, epoch, random }
    }

    /// Holds while it is still this one.
    pub fn fence(&self, group: u16) -> Fence {
        let key = RecordKey::Group(group);
        if *self == Self::default() {
            Fence::Absent(Table::Version, key)
        } else {
            Fence::Is(Table::Version, key, Bytes::copy_from_slice(&self.bytes()))
        }
    }
}

/// Sums that every server adds to. Removed at zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counter {
    /// By its number, below [`Counter::TOTALS`].
    Total(u8),
    /// Dead letters by type of error.
    ErrorType(Box<str>),
    /// Acks under an epoch of the queue's breaker. An engine for one process may keep it in memory alone.
    Succeeded(u32),
}

impl Counter {
    pub const TOTALS: u8 = 16;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterGroup {
    Totals,
    ErrorTypes,
    /// Of one epoch.
    Succeeded(u32),
}

/// A time that only rises. An engine for one process may keep it in memory alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mark {
    /// The last Ack under an epoch.
    LastSuccess(u32),
    /// The last time that a worker asked for jobs.
    LastClaim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Len {
    Table(Table),
    Index(Index),
}
