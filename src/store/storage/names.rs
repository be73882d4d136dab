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
    /// `Text`: the group of a breaker key. Its `Version` is written with it.
    Group,
    /// `Group`: what a closed breaker has counted. An engine for one process may keep it in memory alone.
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
    pub const ALL: [Self; 18] = [
        Self::Queue,
        Self::Version,
        Self::Breaker,
        Self::Group,
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
            Self::Group => 'g',
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

    /// It describes the queue itself and not its jobs: a queue that has nothing else can be forgotten.
    pub fn is_of_queue(self) -> bool {
        matches!(self, Self::Queue | Self::Version | Self::Breaker | Self::Group | Self::Outcomes)
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
/// A queue has at most so many others.
pub const GROUPS_MAX: u16 = 1_000;

/// The bits of an epoch that count transitions. The others are the group: a lease token says what an Ack has to remove.
const TRANSITIONS_BITS: u32 = 22;

/// The group whose breaker an epoch is of.
pub fn group_of(epoch: u32) -> u16 {
    (epoch >> TRANSITIONS_BITS) as u16
}

/// The epoch of a group's breaker after so many transitions.
pub fn epoch_of(group: u16, transitions: u64) -> u32 {
    let transitions = transitions & ((1 << TRANSITIONS_BITS) - 1);
    u32::from(group) << TRANSITIONS_BITS | transitions as u32
}

/// The transition count that an epoch is of, near this one: no lease outlives so many transitions that the bits repeat.
pub fn transitions_of(epoch: u32, near: u64) -> u64 {
    let mask = (1 << TRANSITIONS_BITS) - 1;
    (near & !mask) | (u64::from(epoch) & mask)
}

/// Ordered sets of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Index {
    /// `Position` without a group, score 0: in the order in which jobs are handed out.
    Ready,
    /// The same of jobs with a group: each group is a range.
    Keyed,
    /// `Position` by `ready_at`: jobs for later.
    Scheduled,
    /// The same: jobs that failed, in backoff.
    Retrying,
    /// `Number` by expiry: written with `Lease` alone.
    Leased,
    /// `Number` by group, where it has one. Written with the lease and by its position; what deletes such a lease also removes
    /// it here, so that others pay nothing for it.
    LeasedByGroup,
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
    pub const ALL: [Self; 14] = [
        Self::Ready,
        Self::Keyed,
        Self::Scheduled,
        Self::Retrying,
        Self::Leased,
        Self::LeasedByGroup,
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
            Self::Keyed => "keyed",
            Self::Scheduled => "scheduled",
            Self::Retrying => "retrying",
            Self::Leased => "leased",
            Self::LeasedByGroup => "leased_by_group",
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

impl Position {
    /// Where a job waits that may be handed out: of its group.
    pub fn ready_index(&self) -> Index {
        if self.group == NO_GROUP { Index::Ready } else { Index::Keyed }
    }

    /// The order in which jobs of several groups are handed out.
    pub fn turn(&self) -> (u8, Timestamp, u64) {
        (self.rank, self.ready_at, self.number)
    }
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

    /// In `Ready` and `Keyed`.
    pub fn ready(position: Position) -> Self {
        Self { score: 0, member: Member::Position(position) }
    }
}

/// The state of the queue as a whole, or of a group: changes whenever what may be handed out of it is decided anew, so that a
/// server whose facts are old takes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    pub state: GroupState,
    /// The breaker's transition count with its group, see [`epoch_of`]: every lease remembers it.
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
}

impl Counter {
    pub const TOTALS: u8 = 16;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterGroup {
    Totals,
    ErrorTypes,
}

/// Acks under one epoch of a breaker. An engine for one process may keep them in memory alone, and those of old epochs not
/// at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeSums {
    pub succeeded: u64,
    /// Those of them whose job had a counted failure before.
    pub retried: u64,
    pub took_ms: u64,
    /// Logarithms of what they took, in thousandths.
    pub ln_took: i64,
}

impl OutcomeSums {
    pub fn add(&mut self, more: &Self) {
        self.succeeded = self.succeeded.saturating_add(more.succeeded);
        self.retried = self.retried.saturating_add(more.retried);
        self.took_ms = self.took_ms.saturating_add(more.took_ms);
        self.ln_took = self.ln_took.saturating_add(more.ln_took);
    }
}

/// A time that only rises. An engine for one process may keep it in memory alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mark {
    /// The last time that a worker asked for jobs.
    LastClaim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Len {
    Table(Table),
    Index(Index),
}
