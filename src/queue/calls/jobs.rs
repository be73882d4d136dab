//! What is asked of jobs, and what is answered.

use crate::domain::{Attempt, Delivery, Failure, JobId, Lease, Outcome, Progress, QueueName, Spec, State, Timestamp};
use crate::queue::{Handover, InHand, Notifier, Refusal};
use std::{sync::Arc, time::Duration};

// ---- enqueue ----

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
    pub id: JobId,
    pub outcome: EnqueueOutcome,
    pub state: State,
    pub run_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueOutcome {
    Added,
    /// A job with this id or key was there already.
    Existing,
    /// It stands in the place of a job that waited.
    Replaced,
}

// ---- claim ----

#[derive(Clone, Debug)]
pub struct Claim {
    /// In this order; each queue may give `first` jobs before any gives more.
    pub shares: Vec<Share>,
    pub max_jobs: usize,
    pub max_bytes: usize,
    /// None: the queue's.
    pub lease_duration: Option<Duration>,
    pub worker_id: String,
    /// Empty: none.
    pub request_id: String,
    pub settle: Settlements,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub queue: QueueName,
    pub first: usize,
}

#[derive(Debug, Default)]
pub struct Claimed {
    pub now: Timestamp,
    pub jobs: Handover,
    pub settled: Settled,
    /// With no jobs: why, one for each queue asked.
    pub idle: Vec<Idle>,
    /// Which answer this is; a later one may hand out the same leases again.
    pub answer: u64,
    /// What the jobs take of memory until they are received.
    pub in_hand: InHand,
    /// It has only settled: too much is in hand, and it must run again.
    pub(crate) crowded: bool,
}

impl Claimed {
    /// From here on its jobs return, unless they are delivered.
    pub(crate) fn guard(&mut self, request_id: &str, notifier: &Arc<Notifier>) {
        self.jobs.guard(self.answer, request_id, self.now, notifier.clone());
    }
}

/// A job on its way to a worker.
#[derive(Clone, Debug)]
pub struct Delivered {
    pub queue: QueueName,
    pub spec: Spec,
    pub progress: Progress,
    pub delivery: Delivery,
    pub last_failure: Option<Failure>,
    /// The breaker key that a failure named last.
    pub learnt_key: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    pub queue: QueueName,
    pub reason: IdleReason,
    /// When asking again makes sense.
    pub until: Option<Timestamp>,
    /// The key whose breaker or limit it is. Empty: the queue's own.
    pub breaker_key: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleReason {
    Draining,
    NoSuchQueue,
    Paused,
    BreakerOpen,
    Limited,
    NotDue,
    Empty,
}

// ---- settle ----

#[derive(Clone, Debug, Default)]
pub struct Settlements {
    pub acks: Vec<Ack>,
    pub nacks: Vec<Nack>,
    pub extensions: Vec<Extend>,
}

/// About what a settlement takes of memory beside its texts, and what its answer takes.
pub const SETTLEMENT_BYTES: usize = 512;
/// And one that is refused before it gets here, with what is wrong with it.
pub const REFUSED_BYTES: usize = 1_024;

impl Settlements {
    /// About what it takes of memory.
    pub fn bytes(&self) -> usize {
        let acks = self.acks.iter().map(|ack| ack.note.len() + ack.result.len());
        let nacks = self.nacks.iter().map(|nack| nack.outcome.bytes() + nack.checkpoint.len());
        let extensions = self.extensions.iter().map(|extend| extend.checkpoint.len());
        self.items() * SETTLEMENT_BYTES + acks.chain(nacks).chain(extensions).sum::<usize>()
    }

    pub fn items(&self) -> usize {
        self.acks.len() + self.nacks.len() + self.extensions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items() == 0
    }
}

#[derive(Clone, Debug)]
pub struct Ack {
    pub lease: Lease,
    pub note: String,
    pub result: bytes::Bytes,
    /// What the job depended on, as was known only when it ran. Empty: its own key.
    pub breaker_key: String,
}

#[derive(Clone, Debug)]
pub struct Nack {
    pub lease: Lease,
    pub outcome: Outcome,
    /// Empty: keeps the earlier one.
    pub checkpoint: String,
}

#[derive(Clone, Debug)]
pub struct Extend {
    pub lease: Lease,
    /// None: the lease's own.
    pub duration: Option<Duration>,
    /// Empty: keeps the earlier one.
    pub checkpoint: String,
}

/// One result for each item, in the order of the call.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    pub acks: Vec<Result<Acked, Refusal>>,
    pub nacks: Vec<Result<Attempt, Refusal>>,
    pub extensions: Vec<Result<Extended, Refusal>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// It was removed before, or is kept and was completed by this very lease.
    pub already_gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    /// The longest that this delivery can be extended to.
    pub run_until: Timestamp,
    pub expires_at: Timestamp,
    pub cancel_requested: bool,
}

// ---- what time does ----

#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// One that comes late ends no lease: the server stood still meanwhile, and what was sent to it in time is not read yet.
    pub asked_at: Timestamp,
    /// Leases made before this are left alone until `spare_until`: their workers get a chance to come back.
    pub spare_made_before: Timestamp,
    pub spare_until: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub struct Swept {
    pub promoted: usize,
    pub expired: Vec<ExpiredLease>,
    /// Dead letters that were kept for as long as their queue keeps them.
    pub retention_expired: usize,
    /// The same of completed jobs.
    pub completed_removed: usize,
    /// It came late, and there were leases to end.
    pub late: bool,
    /// When the next sweep has something to do; now, if this one stopped at its bound.
    pub next: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredLease {
    pub queue: QueueName,
    pub id: JobId,
    pub attempt: Attempt,
}
