//! The storage contract: tables, indexes, counters and fences. Nothing here knows a retry from a breaker.
//!
//! A queue's data has two shapes: *records* in tables, by key, and *entries* in indexes, by score and then by the bytes of
//! their member. Both engines hold the same bytes under the same names; `queue::records` says what is in them. A verb reads,
//! decides, and applies one [`Batch`]: every fence holds and every write is made, or nothing is.

use super::StoreError;
use crate::domain::{ids::QueueName, time::Timestamp};
use bytes::Bytes;
use std::{future::Future, ops::Range};

/// What reads need: enough for every view.
pub trait Reads {
    /// Store time.
    fn now(&self) -> Timestamp;

    /// At one moment, in the order asked. `None`: there is no such queue.
    fn read(
        &mut self,
        queue: &QueueName,
        reads: &[Read],
    ) -> impl Future<Output = Result<Option<Vec<Found>>, StoreError>> + Send;

    /// Queues by name, those after `after`.
    fn queues(
        &mut self,
        after: Option<&QueueName>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<QueueName>, StoreError>> + Send;

    /// The queues that have a record under this key.
    fn holders(
        &mut self,
        table: Table,
        key: &RecordKey,
    ) -> impl Future<Output = Result<Vec<QueueName>, StoreError>> + Send;
}

/// One engine's data as a verb sees it.
pub trait Storage: Reads {
    /// All fences hold and all writes are made, or none: then what the fences found. [`Applied::NoQueue`]: there is no such
    /// queue.
    fn apply(
        &mut self,
        queue: &QueueName,
        batch: &Batch,
    ) -> impl Future<Output = Result<Applied, StoreError>> + Send;

    /// The first of `Ready` become leases. Promotes what is due before it looks. `None`: there is no such queue.
    fn take(
        &mut self,
        queue: &QueueName,
        take: &Take<'_>,
    ) -> impl Future<Output = Result<Option<Taken>, StoreError>> + Send;

    /// A queue exists from its first registration until it is forgotten. False: there are `max` others.
    fn register(
        &mut self,
        queue: &QueueName,
        max: usize,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Removes a queue that has nothing but `Queue`, `Version`, `Breaker` and counters, and that no batch or take has written to
    /// since then. False: it stays.
    fn forget(
        &mut self,
        queue: &QueueName,
        unused_since: Timestamp,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Numbers for new jobs, each given once in the life of a store.
    fn numbers(
        &mut self,
        count: u64,
    ) -> impl Future<Output = Result<Range<u64>, StoreError>> + Send;
}

// ---- names ----

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
    pub const ALL: [Self; 16] = [
        Self::Queue,
        Self::Version,
        Self::Breaker,
        Self::Outcomes,
        Self::Job,
        Self::Body,
        Self::History,
        Self::Attempt,
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
    /// `Number` by deadline, while the job waits or is leased.
    Deadline,
    /// `Text` of a key whose job is done, by when it is free.
    FinishedKey,
    /// `Record` by when it is to be removed.
    Expires,
}

impl Index {
    pub const ALL: [Self; 11] = [
        Self::Ready,
        Self::Scheduled,
        Self::Retrying,
        Self::Leased,
        Self::Probe,
        Self::Dead,
        Self::Overflow,
        Self::Completed,
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
        let Some(bytes) = record.and_then(|record| <[u8; Self::LENGTH]>::try_from(record).ok())
        else {
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
    /// By its place in [`super::Totals::values`].
    Total(u8),
    /// Dead letters by type of error.
    ErrorType(Box<str>),
    /// Acks under an epoch of the queue's breaker. An engine for one process may keep it in memory alone.
    Succeeded(u32),
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Len {
    Table(Table),
    Index(Index),
}

// ---- read ----

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    Record(Table, RecordKey),
    /// The score of a member; none: it is not there. Of a `Lease`: its expiry.
    Score(Index, Member),
    /// Entries in their order, or against it. `after`: beyond this entry, which need not be there. `up_to`: with at most this
    /// score.
    Range {
        index: Index,
        after: Option<Entry>,
        up_to: Option<u64>,
        limit: usize,
        reverse: bool,
    },
    /// How many entries of `Ready` stand before this one, counted up to so many.
    Ahead(Position, usize),
    /// Of a table: `Job`, `Lease` and `Dead` at least.
    Len(Len),
    /// All that are not zero.
    Counters(CounterGroup),
    Mark(Mark),
    /// Records of a table by key, those after `after`. For verification.
    Scan(Table, Option<RecordKey>, usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Record(Option<Bytes>),
    Score(Option<u64>),
    Entries(Vec<Entry>),
    Number(u64),
    Counters(Vec<(Counter, i64)>),
    Scanned(Vec<(RecordKey, Bytes)>),
}

impl Found {
    pub fn record(self) -> Option<Bytes> {
        match self {
            Self::Record(record) => record,
            _ => None,
        }
    }

    pub fn score(&self) -> Option<u64> {
        match self {
            Self::Score(score) => *score,
            _ => None,
        }
    }

    pub fn entries(self) -> Vec<Entry> {
        match self {
            Self::Entries(entries) => entries,
            _ => Vec::new(),
        }
    }

    pub fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            _ => 0,
        }
    }

    pub fn counters(self) -> Vec<(Counter, i64)> {
        match self {
            Self::Counters(counters) => counters,
            _ => Vec::new(),
        }
    }

    pub fn scanned(self) -> Vec<(RecordKey, Bytes)> {
        match self {
            Self::Scanned(records) => records,
            _ => Vec::new(),
        }
    }
}

// ---- apply ----

/// No record is written twice in a batch, and none is fenced by two of `Begins`, `Tell`, `Is` and `Absent`. Removals stand
/// first: a full Redis refuses only batches that begin with something else, which only those that add jobs may.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub fences: Vec<Fence>,
    pub writes: Vec<Write>,
    pub publish: Publish,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The record is there and begins with these bytes.
    Begins(Table, RecordKey, Bytes),
    /// The same, and where the batch is applied the record comes back.
    Tell(Table, RecordKey, Bytes),
    /// The record is there and is this.
    Is(Table, RecordKey, Bytes),
    Absent(Table, RecordKey),
    At(Index, Entry),
    /// `of` without `minus`, with `add` more, is at most `limit`.
    Room {
        of: Len,
        minus: &'static [Len],
        add: u64,
        limit: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Put(Table, RecordKey, Bytes),
    /// The lease and its entry in `Leased`.
    PutLease {
        number: u64,
        expires_at: Timestamp,
        record: Bytes,
    },
    /// Of a lease: its entry in `Leased` too.
    Delete(Table, RecordKey),
    /// All records of these tables whose keys are parts of this number.
    DeleteParts(Table, u64),
    Insert(Index, Entry),
    Remove(Index, Entry),
    /// The lease ends then, or later where it did so already. The end comes back in `raised`.
    Extend {
        number: u64,
        expires_at: Timestamp,
    },
    /// The next number of death is the score, and stands in 8 bytes in front of the record.
    AppendDead {
        index: Index,
        number: u64,
        record: Bytes,
    },
    Add(Counter, i64),
    Raise(Mark, Timestamp),
    /// Up to so many due entries of each of `Retrying` and `Scheduled` become `Ready`.
    Promote(usize),
}

/// Whether other servers are told that jobs are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Publish {
    #[default]
    Never,
    /// If there were none before.
    IfFirst,
    /// If there are any: a slot came free, or the queue goes on.
    Always,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    Done(Done),
    /// What each fence that failed found, by its place among the fences.
    Changed(Vec<(usize, Was)>),
    NoQueue,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Entries of `Ready` after the batch.
    pub ready: u64,
    pub promoted: usize,
    /// The records of `Tell` fences.
    pub told: Vec<Bytes>,
    /// The ends of `Extend` writes.
    pub raised: Vec<Timestamp>,
    /// The numbers of `AppendDead` writes.
    pub deaths: Vec<u64>,
}

/// What a fence that failed found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Was {
    Record(Option<Bytes>),
    Score(Option<u64>),
    Len(u64),
}

// ---- take ----

#[derive(Clone, Debug)]
pub struct Take<'a> {
    /// Of the queue as a whole.
    pub whole: Version,
    pub rule: Rule,
    pub jobs: usize,
    pub bytes: usize,
    /// The first job is taken whatever its size.
    pub first_fits: bool,
    /// Due entries to promote, of each index.
    pub promote: usize,
    pub lease: LeaseTemplate<'a>,
    /// Leases that the store may have, of all queues, where the engine bounds them.
    pub max_leases: usize,
}

/// What the jobs without a breaker key may do.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    pub version: Version,
    /// For every lease taken under it.
    pub flags: u8,
    /// This job only if there is no other.
    pub pass_over: Option<u64>,
    pub probes: Option<Probes>,
}

/// Leases are probes: at most so many of this epoch that started after that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    pub most: u64,
    pub started_after: Timestamp,
}

#[derive(Clone, Debug)]
pub struct LeaseTemplate<'a> {
    pub started_at: Timestamp,
    pub expires_at: Timestamp,
    pub duration_ms: u32,
    /// Of the nonces.
    pub seed: u64,
    /// Stands behind the position in every record.
    pub tail: &'a [u8],
}

#[derive(Clone, Debug, Default)]
pub struct Taken {
    pub jobs: Vec<TakenJob>,
    /// Entries of `Ready` that are left.
    pub ready: u64,
    pub promoted: usize,
    /// The first due time, if fewer were taken than asked.
    pub next_due: Option<Timestamp>,
    /// The bytes were not enough for the next one.
    pub bytes_full: bool,
    /// There is no room for more leases.
    pub leases_full: bool,
    /// The queue or its group is of another version: nothing was taken.
    pub changed: bool,
    /// All probes are out: one of them started then.
    pub oldest_probe: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub struct TakenJob {
    pub number: u64,
    /// The first bytes of the lease, which its token holds.
    pub lease: [u8; LEASE_FENCE],
    pub attempt: u32,
    pub position: Position,
    /// None: it is not there, which only damage explains.
    pub job: Option<Bytes>,
    pub history: Option<Bytes>,
    pub last_failure: Option<Bytes>,
    pub body: Option<Bytes>,
}

// ---- the bytes that an engine knows ----
//
// A lease: delivery 4, nonce 8, flags 1, epoch 4, started_at 6, duration 4 (these never change while it lives, and are in its
// token), attempt 4, position 16, then the tail of the template. A Job begins with its size in a reply 4, traits 1. A History
// begins with its size in a reply 4, traits 1, deliveries 4, tries 4. flags = those of the rule | traits of Job and History.

/// The bytes of a lease that its token holds.
pub const LEASE_FENCE: usize = 27;
/// Where a lease's tail begins.
pub const LEASE_TAIL: usize = LEASE_FENCE + 4 + Position::LENGTH;

/// Traits and flags: one byte, the same bits in Job, History, rules and leases.
pub mod flag {
    /// Its id is the caller's own: there is a record in `Id`.
    pub const OWN_ID: u8 = 1;
    /// It has a key or a deadline, or an id that no token holds: an Ack has to read the job.
    pub const LOOK: u8 = 2;
    /// There is a `History`.
    pub const HISTORY: u8 = 4;
    /// The body is in `Body`.
    pub const BODY: u8 = 8;
    /// It has been retried.
    pub const RETRIED: u8 = 16;
    // 32: it has a group; 128: it was handed out under a ramp. Both come with breaker keys.
    /// It is a breaker's probe.
    pub const PROBE: u8 = 64;
}

fn put_48(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes()[2..]);
}

fn read_48(bytes: &[u8]) -> Option<u64> {
    let mut all = [0; 8];
    all[2..].copy_from_slice(bytes.get(..6)?);
    Some(u64::from_be_bytes(all))
}

impl Position {
    pub const LENGTH: usize = 16;

    /// In `Scheduled`, `Retrying` and leases: all of it.
    pub fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        out[..2].copy_from_slice(&self.group.to_be_bytes());
        out[2] = self.rank;
        out[3..9].copy_from_slice(&self.ready_at.millis().to_be_bytes()[2..]);
        out[9..15].copy_from_slice(&self.number.to_be_bytes()[2..]);
        out[15] = self.tag;
        out
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LENGTH] = bytes.try_into().ok()?;
        Some(Self {
            group: u16::from_be_bytes([bytes[0], bytes[1]]),
            rank: bytes[2],
            ready_at: Timestamp::from_millis(read_48(&bytes[3..])?),
            number: read_48(&bytes[9..])?,
            tag: bytes[15],
        })
    }

    pub fn has_history(&self) -> bool {
        self.tag & HAS_HISTORY_TAG != 0
    }
}

impl RecordKey {
    /// The key as a field name.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Only => {}
            Self::Group(group) => out.extend_from_slice(&group.to_be_bytes()),
            Self::Number(number) => put_48(&mut out, *number),
            Self::Part(number, part) => {
                put_48(&mut out, *number);
                out.push(*part);
            }
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
        }
        out
    }

    pub fn read(table: Table, bytes: &[u8]) -> Option<Self> {
        Some(match table {
            Table::Queue | Table::Outcomes => Self::Only,
            Table::Version | Table::Breaker => {
                Self::Group(u16::from_be_bytes(bytes.try_into().ok()?))
            }
            Table::Attempt | Table::Failure => Self::Part(read_48(bytes)?, *bytes.get(6)?),
            Table::Id | Table::Key | Table::Request => {
                Self::Text(std::str::from_utf8(bytes).ok()?.into())
            }
            Table::Job
            | Table::Body
            | Table::History
            | Table::Lease
            | Table::Dead
            | Table::Result
            | Table::Move => Self::Number(read_48(bytes)?),
        })
    }
}

impl Member {
    /// The member as an index holds it.
    pub fn bytes(&self, index: Index) -> Vec<u8> {
        match self {
            // Its group is 0.
            Self::Position(position) if index == Index::Ready => position.bytes()[2..].to_vec(),
            Self::Position(position) => position.bytes().to_vec(),
            Self::Number(number) => RecordKey::Number(*number).bytes(),
            Self::Probe { epoch, number } => {
                let mut out = epoch.to_be_bytes().to_vec();
                put_48(&mut out, *number);
                out
            }
            Self::Text(text) => text.as_bytes().to_vec(),
            Self::Record(table, key) => {
                let mut out = vec![table.letter() as u8];
                out.extend(key.bytes());
                out
            }
        }
    }

    pub fn read(index: Index, bytes: &[u8]) -> Option<Self> {
        Some(match index {
            Index::Ready => {
                let mut whole = [0; Position::LENGTH];
                whole[2..].copy_from_slice(bytes.get(..14)?);
                Self::Position(Position::read(&whole)?)
            }
            Index::Scheduled | Index::Retrying => Self::Position(Position::read(bytes)?),
            Index::Leased | Index::Dead | Index::Overflow | Index::Completed | Index::Deadline => {
                Self::Number(read_48(bytes)?)
            }
            Index::Probe => Self::Probe {
                epoch: u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?),
                number: read_48(&bytes[4..])?,
            },
            Index::FinishedKey => Self::Text(std::str::from_utf8(bytes).ok()?.into()),
            Index::Expires => {
                let (letter, key) = bytes.split_first()?;
                let table = Table::of_letter(*letter)?;
                Self::Record(table, RecordKey::read(table, key)?)
            }
        })
    }

    /// The job that it is about.
    pub fn job(&self) -> Option<u64> {
        match self {
            Self::Position(position) => Some(position.number),
            Self::Number(number) | Self::Probe { number, .. } => Some(*number),
            Self::Text(_) | Self::Record(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_keys_read_back() {
        let position = Position {
            group: 0,
            rank: 200,
            ready_at: Timestamp::from_millis(1_800_000_000_123),
            number: 0xffff_ffff_fffe,
            tag: 1,
        };
        let record = Member::Record(Table::Request, RecordKey::Text("a:b".into()));
        for (index, member) in [
            (Index::Ready, Member::Position(position)),
            (Index::Retrying, Member::Position(position)),
            (Index::Leased, Member::Number(7)),
            (Index::Probe, Member::Probe { epoch: 9, number: 8 }),
            (Index::FinishedKey, Member::Text("key".into())),
            (Index::Expires, record),
            (Index::Expires, Member::Record(Table::Move, RecordKey::Number(3))),
        ] {
            assert_eq!(Member::read(index, &member.bytes(index)), Some(member));
        }
        for table in Table::ALL {
            assert_eq!(Table::of_letter(table.letter() as u8), Some(table));
        }
        let part = RecordKey::Part(5, 3);
        assert_eq!(RecordKey::read(Table::Attempt, &part.bytes()), Some(part));
    }

    #[test]
    fn bytes_of_positions_sort_as_positions_do() {
        let at = |rank, millis, number| Position {
            group: 0,
            rank,
            ready_at: Timestamp::from_millis(millis),
            number,
            tag: 0,
        };
        let ordered = [at(0, 9, 9), at(1, 1, 300), at(1, 256, 1), at(1, 256, 2), at(200, 0, 0)];
        for pair in ordered.windows(2) {
            assert!(pair[0] < pair[1] && pair[0].bytes() < pair[1].bytes());
        }
    }

    #[test]
    fn a_version_reads_back_and_a_new_one_is_absent() {
        let version = Version { state: GroupState::Held, epoch: 7, random: [3; 8] };
        assert_eq!(Version::read(Some(&version.bytes())), version);
        assert_eq!(Version::read(None), Version::default());
        assert!(matches!(Version::default().fence(0), Fence::Absent(..)));
    }
}
