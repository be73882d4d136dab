//! The storage contract: tables, indexes, counters and fences. Nothing here knows a retry from a breaker.
//!
//! A queue's data has two shapes: *records* in tables, by key, and *entries* in indexes, by score and then by the bytes of
//! their member. Both engines hold the same bytes under the same names; `queue::records` says what is in them. A verb reads,
//! decides, and applies one [`Batch`]: every fence holds and every write is made, or nothing is.

mod bytes;
mod fence;
mod lease;
mod limits;
mod line;
mod names;

pub use self::bytes::{LEASE_FENCE, LEASE_TAIL, flag, lease_group};
pub use lease::{FAILURES, JobHead, NewLease};
pub(super) use limits::Measures;
pub use limits::{Meter, Probes, Ramp, Rule, Stop, StoppedBy};
pub(super) use line::{Chosen, Head, Heads, ReadyJobs, Rules};
pub use names::*;

use super::Result;
pub use crate::domain::Rate;
use crate::domain::{QueueName, Timestamp};
use ::bytes::Bytes;
use std::{future::Future, ops::Range};

/// The format of all records. A build reads a store whose `min_reader` is up to this, and writes to one whose `min_writer` is;
/// `script/upgrade-check` builds with the next number.
pub const FORMAT: u8 = if cfg!(redrive_next_format) { 2 } else { 1 };
/// This version, which stands in a store as the one that its format needs.
pub const VERSION: &str = if cfg!(redrive_next_format) { "9.9.9" } else { env!("CARGO_PKG_VERSION") };

/// What reads need: enough for every view.
pub trait Reads {
    /// Store time.
    fn now(&self) -> Timestamp;

    /// At one moment, in the order asked. `None`: there is no such queue.
    fn read(&mut self, queue: &QueueName, reads: &[Read]) -> impl Future<Output = Result<Option<Vec<Found>>>> + Send;

    /// Queues by name, those after `after`.
    fn queues(
        &mut self, after: Option<&QueueName>, limit: usize,
    ) -> impl Future<Output = Result<Vec<QueueName>>> + Send;

    /// The queues that have a record under this key.
    fn holders(&mut self, table: Table, key: &RecordKey) -> impl Future<Output = Result<Vec<QueueName>>> + Send;
}

/// One engine's data as a verb sees it.
pub trait Storage: Reads {
    /// All fences hold and all writes are made, or none: then what the fences found. [`Applied::NoQueue`]: there is no such
    /// queue.
    fn apply(&mut self, queue: &QueueName, batch: &Batch) -> impl Future<Output = Result<Applied>> + Send;

    /// The first of `Ready` and `Keyed` become leases, within the rules handed in. Promotes what is due before it looks. `None`:
    /// there is no such queue.
    fn take(&mut self, queue: &QueueName, take: &Take<'_>) -> impl Future<Output = Result<Option<Taken>>> + Send;

    /// A queue exists from its first registration until it is forgotten. False: there are `max` others.
    fn register(&mut self, queue: &QueueName, max: usize) -> impl Future<Output = Result<bool>> + Send;

    /// Removes a queue that has nothing but `Queue`, `Version`, `Breaker`, `Group`, `Outcomes`, counters, sums and meters, and that no batch or take has written to
    /// since then. False: it stays.
    fn forget(&mut self, queue: &QueueName, unused_since: Timestamp) -> impl Future<Output = Result<bool>> + Send;

    /// Numbers for new jobs, each given once in the life of a store.
    fn numbers(&mut self, count: u64) -> impl Future<Output = Result<Range<u64>>> + Send;
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
    /// How many entries of `Ready`, or of its group in `Keyed`, stand before this one, counted up to so many.
    Ahead(Position, usize),
    /// Of a table: `Job`, `Lease` and `Dead` at least.
    Len(Len),
    /// All that are not zero.
    Counters(CounterGroup),
    Mark(Mark),
    /// What was counted under an epoch.
    Sums(u32),
    /// Of a group, or of the whole queue.
    Meter(u16),
    /// Records of a table by key, those after `after`. For verification.
    Scan(Table, Option<RecordKey>, usize),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    Record(Option<Bytes>),
    Score(Option<u64>),
    Entries(Vec<Entry>),
    Number(u64),
    Counters(Vec<(Counter, i64)>),
    /// And when the last success was.
    Sums(OutcomeSums, Option<Timestamp>),
    Meter(Option<Meter>),
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

    pub fn sums(&self) -> (OutcomeSums, Option<Timestamp>) {
        match self {
            Self::Sums(sums, last) => (*sums, *last),
            _ => Default::default(),
        }
    }

    pub fn meter(&self) -> Option<Meter> {
        match self {
            Self::Meter(meter) => *meter,
            _ => None,
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
    /// The lease and its entries in `Leased` and `LeasedByGroup`. One that is there keeps its group.
    PutLease {
        number: u64,
        expires_at: Timestamp,
        record: Bytes,
    },
    /// Of a lease: its entry in `Leased` too, but not that in [`Index::LeasedByGroup`].
    Delete(Table, RecordKey),
    /// All records of these tables whose keys are parts of this number.
    DeleteParts(Table, u64),
    /// A member that is there gets this score. In `FinishedKey` one with another score is removed by the caller.
    Insert(Index, Entry),
    /// With the score that it has.
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
    /// Alone it does not make the queue one that is used.
    Raise(Mark, Timestamp),
    /// Adds to what was counted under an epoch. The last success was then, or later.
    Count {
        epoch: u32,
        sums: OutcomeSums,
        at: Timestamp,
    },
    /// Nothing asks for the sums of this epoch again.
    ForgetSums(u32),
    /// Up to so many due entries of each of `Retrying` and `Scheduled` become `Ready` or `Keyed`.
    Promote(usize),
}

/// Whether other servers are notified that jobs are ready.
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
    /// Entries of `Ready` after the batch, and those of `Keyed` if a group that is not held has one.
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

/// Jobs are taken in the order of [`Position::turn`], over `Ready` and all groups. A group without a rule is taken from where its
/// version says `Free`, is reported where it needs a rule and its turn comes, and is left alone where it is held.
#[derive(Clone, Debug)]
pub struct Take<'a> {
    /// Of [`WHOLE_QUEUE`]: what all groups may do together. Its flags and `pass_over` mean nothing.
    pub whole: Rule,
    /// One for [`NO_GROUP`], then those of other groups. A held one may be among them.
    pub groups: &'a [Rule],
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
    /// Entries of `Ready` that are left, and those of `Keyed` if a group that is not held has one.
    pub ready: u64,
    pub promoted: usize,
    /// The first due time, if fewer were taken than asked.
    pub next_due: Option<Timestamp>,
    /// The bytes were not enough for the next one.
    pub bytes_full: bool,
    /// There is no room for more leases.
    pub leases_full: bool,
    /// Groups of another version than that of their rule, of which nothing was taken, and those that need a rule.
    /// [`WHOLE_QUEUE`] stands alone: nothing was done.
    pub changed: Vec<u16>,
    /// Rules under which jobs stayed ready, if fewer were taken than asked. In their order.
    pub stops: Vec<Stop>,
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
