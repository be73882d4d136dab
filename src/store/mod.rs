//! The store contract: one verb per change that must be atomic.
//!
//! A store owns the one clock (`now`) and nothing else that could be a matter of opinion: what happens to a job is decided
//! by the pure functions of `domain`, which an engine calls between reading the facts and writing the consequence, under the
//! fence of the lease. Randomness and the settings come with each call. Refusals are values; a [`StoreError`] means that
//! the engine itself is unwell, and that nothing of the call was applied unless it says so.

pub mod embedded;
mod operator;
mod view;

pub use operator::*;
pub use view::*;

use crate::domain::{
    dead_filter::DeadFilter,
    failure::Failure,
    ids::{DeadPart, JobId, QueueName},
    job::{Attempt, DeadReason, Delivery, NewJob, Progress, Spec, State},
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

    /// Does a bounded part of what time has made due: promotions, ended leases and pauses, deadlines, dead letters whose
    /// retention is over, forgotten keys.
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
    ) -> impl Answer<Result<(), PauseRefused>>;

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

    /// Whether the engine can take writes, and if not, why.
    fn health(&self) -> Health;

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

/// What a store tells while it works. Called after the commit; must return quickly.
pub trait Listener: Send + Sync + 'static {
    /// Something has become available: this queue could hand out so many jobs now. Never told of one that is paused.
    fn available(&self, queue: &QueueName, jobs: usize);

    /// `sweep` has something to do at this time.
    fn due(&self, at: Timestamp);

    /// A job has become a dead letter.
    fn died(&self, notice: &DeadNotice);
}

/// The engine is unwell.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    #[error("the disk is nearly full: {0}")]
    DiskLow(String),
    #[error("too much is waiting to be written: {0}")]
    Overloaded(String),
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Enqueue is refused, everything else goes on.
    DiskLow(String),
    /// No writes.
    Stopped(String),
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
        let leases = jobs.iter().map(|job| job.delivery.lease).collect();
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
    /// When the next sweep has something to do; now, if this one stopped at its bound.
    pub next: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredLease {
    pub queue: QueueName,
    pub id: JobId,
    pub attempt: Attempt,
}

/// For the log line that every dead letter gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadNotice {
    pub queue: QueueName,
    pub id: JobId,
    pub job_type: String,
    pub reason: DeadReason,
    pub attempts: u32,
    pub error_type: String,
    pub overflow: bool,
}

// ---- dead letters ----

#[derive(Clone, Debug)]
pub struct Requeue {
    pub part: DeadPart,
    pub which: Which,
    pub target: Option<QueueName>,
    pub keep_attempts: bool,
    pub dry_run: bool,
    pub request: Option<RequestId>,
}

/// A call that may come again: within [`REPLY_KEPT`] it gets the answer of the first time, and nothing more happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    pub id: String,
    /// The sum of all that the call asks for: under the same id nothing else may be asked.
    pub asked: [u8; 32],
}

/// How long the answer to a call with a request id is remembered.
pub const REPLY_KEPT: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    Ids(Vec<JobId>),
    /// The first so many in the order of death. `among`: goes on with an earlier call's set.
    Oldest {
        limit: usize,
        among: Option<Deaths>,
    },
    /// The first so many that the search finds.
    Found {
        search: Search,
        limit: usize,
        among: Option<Deaths>,
    },
}

/// Looks for dead letters in the order of death.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    pub filter: DeadFilter,
    /// Records that one call looks at, at most.
    pub look_at: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requeued {
    pub ids: Vec<JobId>,
    pub skipped: Vec<(JobId, SkipReason)>,
    pub has_more: bool,
    /// What going on meets: not what was skipped, and not what died since the first call.
    pub left: Deaths,
}

/// A stretch of a queue's order of death.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deaths {
    pub after: u64,
    pub up_to: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequeueRefused {
    NoSuchQueue,
    /// The target would have to be made.
    TooManyQueues {
        limit: usize,
    },
    /// Another call had it.
    RequestIdTaken,
}

#[derive(Clone, Debug)]
pub struct Purge {
    pub part: DeadPart,
    pub which: Which,
    pub dry_run: bool,
    pub request: Option<RequestId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    pub count: u64,
    pub skipped: Vec<(JobId, SkipReason)>,
    pub has_more: bool,
    /// What going on meets: not what died since the first call.
    pub left: Deaths,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeRefused {
    NoSuchQueue,
    /// Another call had it.
    RequestIdTaken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    JobNotFound,
    KeyTaken,
    IdTaken,
    DataCorrupt,
}

#[derive(Clone, Debug)]
pub struct DeadLetterQuery {
    pub part: DeadPart,
    /// Those that died after this one.
    pub after: u64,
    pub limit: usize,
    /// Only what it finds: the page may be short, or empty, and still have a next one.
    pub search: Option<Search>,
    /// Bodies and headers too.
    pub full: bool,
    /// Ends the page early.
    pub max_bytes: usize,
}

#[derive(Clone, Debug)]
pub struct DeadCountQuery {
    /// This queue, whether it has any. None: by name, those that have some.
    pub queue: Option<QueueName>,
    pub after: Option<QueueName>,
    pub limit: usize,
    /// For each queue so many types of error, the most frequent first.
    pub types: usize,
    /// And so many of those that died last.
    pub latest: usize,
}
