//! The store contract: one verb per change that must be atomic.
//!
//! A store owns the one clock (`now`) and nothing else that could be a matter of opinion: what happens to a job is decided
//! by the pure functions of `domain`, which an engine calls between reading the facts and writing the consequence, under the
//! fence of the lease. Randomness and the settings come with each call. Refusals are values; a [`StoreError`] means that
//! the engine itself is unwell, and that nothing of the call was applied unless it says so.

mod audit;
mod dead_letters;
mod error;
mod listener;
pub mod memory;
mod newcomers;
mod operator;
pub mod redis;
pub(crate) mod sizes;
pub mod sqlite;
pub mod storage;
mod view;

pub use audit::*;
pub use dead_letters::*;
pub use error::*;
pub use listener::*;
pub use newcomers::*;
pub use operator::*;
pub use view::*;

use crate::domain::{
    breaker::BreakerName,
    failure::Failure,
    ids::{JobId, QueueName},
    job::{Attempt, Delivery, NewJob, Progress, Spec, State},
    lease::Lease,
    settings::Settings,
    time::Timestamp,
    verdict::Ending,
};
use std::{future::Future, sync::Arc, time::Duration};

/// An answer that takes a while.
pub trait Answer<T>: Future<Output = Result<T, StoreError>> + Send {}
impl<T, F: Future<Output = Result<T, StoreError>> + Send> Answer<T> for F {}

pub trait Store: Send + Sync + 'static {
    /// Store time.
    fn now(&self) -> Timestamp;

    /// Adds jobs; each is added or refused by itself. Durable when answered.
    fn enqueue(&self, ask: Ask, jobs: Vec<NewJob>) -> impl Answer<Vec<Result<Enqueued, Refused>>>;

    /// Settles, then leases what is there, in one transaction. Never waits for work.
    ///
    /// If the caller goes away before the answer reaches it, the jobs return to their old places: at once, or after
    /// [`ABANDONED_CLAIM_KEPT`] where the call has a request id, so that repeating it finds them.
    fn claim(&self, ask: Ask, claim: Claim) -> impl Answer<Claimed>;

    /// Ends or prolongs leases, in the order acks, nacks, extends.
    fn settle(&self, ask: Ask, settlements: Settlements) -> impl Answer<Settled>;

    /// Takes back jobs whose claim was never answered. A lease that has ended, or that a later answer handed out again, is
    /// passed over; a job that was cancelled while it was out is removed.
    fn unclaim(&self, unanswered: Unanswered) -> impl Answer<()>;

    /// Does a bounded part of what time has made due: promotions, ended leases and pauses, deadlines, dead letters and
    /// completed jobs whose retention is over, forgotten keys.
    fn sweep(&self, ask: Ask, sweep: Sweep) -> impl Answer<Swept>;

    /// Sends dead letters back to work.
    fn requeue(&self, ask: Ask, requeue: Requeue) -> impl Answer<Result<Requeued, RequeueRefused>>;

    /// Removes dead letters for good.
    fn purge(&self, purge: Purge) -> impl Answer<Result<Purged, PurgeRefused>>;

    /// The jobs of this id, with their history: one in each queue that has it.
    fn job(&self, id: JobId, queue: Option<QueueName>) -> impl Answer<Vec<JobView>>;

    /// A page of dead letters in their order of death. `None`: no such queue.
    fn dead_letters(&self, query: DeadLetterQuery) -> impl Answer<Option<DeadLetterPage>>;

    /// Dead letters, counted. A queue that does not exist is left out.
    fn dead_letter_counts(&self, query: DeadCountQuery) -> impl Answer<DeadCounts>;

    /// Queues by name, those after `after`.
    fn queues(&self, after: Option<QueueName>, limit: usize) -> impl Answer<Vec<QueueView>>;

    /// The counters of one queue; of all together where none is named, forgotten ones included. `None`: no such queue.
    fn stats(&self, queue: Option<QueueName>) -> impl Answer<Option<Stats>>;

    /// Pauses a queue, in place of an earlier pause, or with `None` resumes it. A configured queue is made if need be.
    fn pause(
        &self,
        ask: Ask,
        queue: QueueName,
        pause: Option<NewPause>,
    ) -> impl Answer<Result<(), QueueRefused>>;

    /// The breakers of each queue; those of a queue that is not there are as new.
    fn breakers(&self, ask: Ask, queues: Vec<QueueName>) -> impl Answer<Vec<BreakerViews>>;

    /// Forces or resets a breaker. A configured queue is made if need be.
    fn set_breaker(
        &self,
        ask: Ask,
        name: BreakerName,
        order: BreakerOrder,
    ) -> impl Answer<Result<BreakerView, QueueRefused>>;

    /// Removes a job that waits, or asks for the end of one that is out.
    fn cancel(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> impl Answer<Result<Cancelled, JobRefused>>;

    /// SCHEDULED → READY now; a READY one stays as it is.
    fn run_now(&self, id: JobId, queue: Option<QueueName>) -> impl Answer<Result<(), JobRefused>>;

    /// A page of a queue's jobs. `None`: no such queue.
    fn jobs(&self, query: JobQuery) -> impl Answer<Option<JobPage>>;

    /// Takes in jobs of another store under their own ids, each by itself; makes their queue if need be. They count as
    /// moved in, and in the counters of all queues as if they had come from one that is no more.
    fn take_in(&self, ask: Ask, newcomers: Newcomers)
    -> impl Answer<Result<Vec<TakenIn>, Refused>>;

    /// Whether the engine can take writes, and if not, why.
    fn health(&self) -> Health;

    /// What operators should know of how the engine fares, oldest first; empty when all is well.
    fn notices(&self) -> Vec<String>;

    /// How often the engine was out of reach for longer than leases bear, and has come back.
    fn outages(&self) -> u64;

    /// Lets what was accepted become durable, then closes. Later calls are refused.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// How long the jobs of a claim with a request id stay leased for a caller who has gone.
pub const ABANDONED_CLAIM_KEPT: Duration = Duration::from_secs(10);

/// What a changing call brings along.
#[derive(Clone, Debug)]
pub struct Ask {
    pub settings: Arc<Settings>,
    /// Seed of all chance in this call.
    pub seed: u64,
}

// ---- enqueue ----

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
    pub id: JobId,
    pub deduplicated: bool,
    pub state: State,
    pub run_at: Option<Timestamp>,
}

/// Why one job was not added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The same id with another type or body.
    IdTaken,
    /// The same key with another type or body.
    KeyTaken,
    /// Id and key name two jobs.
    IdAndKeyDiffer,
    QueueFull {
        limit: u64,
    },
    TooManyQueues {
        limit: usize,
    },
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

#[derive(Clone, Debug, Default)]
pub struct Claimed {
    pub now: Timestamp,
    pub jobs: Vec<Delivered>,
    pub settled: Settled,
    /// With no jobs: why, one for each queue asked.
    pub idle: Vec<Idle>,
    /// Which answer this is; a later one may hand out the same leases again.
    pub answer: u64,
}

/// A claim whose answer never reached anybody.
#[derive(Clone, Debug, Default)]
pub struct Unanswered {
    pub leases: Vec<Lease>,
    /// Of [`Claimed::answer`].
    pub answer: u64,
    /// How long the jobs wait for the caller to come again.
    pub after: Duration,
}

impl Unanswered {
    /// `request_id`: the claim's; with one, its caller can come again.
    pub fn new(jobs: &[Delivered], answer: u64, request_id: &str) -> Self {
        let leases = jobs.iter().map(|job| job.delivery.lease.clone()).collect();
        let after = if request_id.is_empty() { Duration::ZERO } else { ABANDONED_CLAIM_KEPT };
        Self { leases, answer, after }
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
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    pub queue: QueueName,
    pub reason: IdleReason,
    /// When asking again makes sense.
    pub until: Option<Timestamp>,
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
    pub extends: Vec<Extend>,
}

impl Settlements {
    /// About what it takes of memory.
    pub fn bytes(&self) -> usize {
        let acks = self.acks.iter().map(|ack| ack.note.len() + ack.result.len());
        let nacks = self.nacks.iter().map(|nack| nack.ending.bytes() + nack.checkpoint.len());
        let extends = self.extends.iter().map(|extend| extend.checkpoint.len());
        acks.chain(nacks).chain(extends).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.acks.is_empty() && self.nacks.is_empty() && self.extends.is_empty()
    }
}

#[derive(Clone, Debug)]
pub struct Ack {
    pub lease: Lease,
    pub note: String,
    pub result: bytes::Bytes,
}

#[derive(Clone, Debug)]
pub struct Nack {
    pub lease: Lease,
    pub ending: Ending,
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

/// The lease has ended or been superseded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLost;

#[derive(Clone, Debug, Default)]
pub struct Settled {
    pub acks: Vec<Result<Acked, LeaseLost>>,
    pub nacks: Vec<Result<Attempt, LeaseLost>>,
    pub extends: Vec<Result<Extended, LeaseLost>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// It was removed before, or is kept and was completed by this very lease.
    pub already_gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    pub expires_at: Timestamp,
    pub cancel_requested: bool,
}

// ---- what time does ----

#[derive(Clone, Copy, Debug)]
pub struct Sweep {
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
    /// When the next sweep has something to do; now, if this one stopped at its bound.
    pub next: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredLease {
    pub queue: QueueName,
    pub id: JobId,
    pub attempt: Attempt,
}
