//! A job: what never changes about it, what does, and the ways from one state to the next.
//!
//! ```text
//!  Enqueue ──► SCHEDULED ──(due)──► READY ──Claim──► LEASED ──Ack──► done
//!                  ▲                  ▲                 │
//!                  │                  └── released ─────┤
//!                  └── failed, retries left ────────────┤
//!                                                       └── beyond hope ──► DEAD ──Requeue──► READY
//! ```
//! What becomes of a LEASED job that was not acknowledged is decided in `retry.rs`.

use super::breaker::BreakerState;
use super::failure::Failure;
use super::ids::{JobId, QueueName};
use super::lease::Lease;
use super::macros::named;
use super::policy::PolicyOverride;
use super::sameness::{Sameness, sameness};
use super::time::Timestamp;
use bytes::Bytes;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// For its first time.
    Scheduled,
    /// In backoff after a failure, or released until a time.
    Retrying,
    Ready,
    Leased,
    Completed,
    /// Kept like a completed one.
    Cancelled,
    Dead,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Body {
    #[default]
    None,
    /// UTF-8.
    Text(Bytes),
    Data(Bytes),
}

impl Body {
    pub fn bytes(&self) -> &Bytes {
        static NOTHING: Bytes = Bytes::new();
        match self {
            Self::None => &NOTHING,
            Self::Text(bytes) | Self::Data(bytes) => bytes,
        }
    }
}

/// A time that a producer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    After(Duration),
    At(Timestamp),
}

impl When {
    fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::After(delay) => now.after(delay),
            Self::At(at) => at,
        }
    }
}

/// A job as a producer hands it in.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub queue: QueueName,
    /// The caller's own id; otherwise the server makes one.
    pub id: Option<JobId>,
    pub key: Option<String>,
    pub job_type: String,
    pub content_type: String,
    pub headers: Vec<(String, String)>,
    pub body: Body,
    pub priority: i8,
    /// When it may first run; none: now.
    pub start: Option<When>,
    /// When it is not worth running any more.
    pub expiry: Option<When>,
    pub policy: Option<Box<PolicyOverride>>,
    pub on_conflict: OnConflict,
    /// How long its key is held from now on, instead of the queue's `key_retention`.
    pub key_ttl: Option<Duration>,
    /// What its worker depends on: the breaker of this key holds it.
    pub breaker_key: Option<String>,
}

/// What follows where another job has its id or key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The other one, if it is the same job; otherwise a refusal.
    #[default]
    RejectDifferent,
    /// The other one.
    ReturnExisting,
    /// This one in its place, if it waits and was never delivered; otherwise the other one.
    ReplaceWaiting,
}

impl NewJob {
    /// About what it takes of memory and disk.
    pub fn bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.body.bytes().len() + headers + self.job_type.len() + self.content_type.len()
    }

    /// Enqueue: the job as it is kept, and whether it is READY or SCHEDULED.
    pub fn admit(self, now: Timestamp, id: JobId) -> (Spec, State) {
        // A time that has passed means now; the job has not been waiting since then.
        let run_at = self.start.map_or(now, |start| start.from(now).max(now));
        let expires_at = self.expiry.map(|expiry| expiry.from(now));
        let state = if run_at > now { State::Scheduled } else { State::Ready };
        let spec = Spec {
            id,
            key: self.key,
            job_type: self.job_type,
            content_type: self.content_type,
            headers: self.headers,
            body: self.body,
            priority: self.priority,
            enqueued_at: now,
            run_at,
            expires_at,
            policy: self.policy,
            key_ttl: self.key_ttl,
            breaker_key: self.breaker_key,
        };
        (spec, state)
    }

    /// Whether it is the same job as another under the same id or key.
    pub fn sameness(&self) -> Sameness {
        sameness(&self.job_type, &self.content_type, &self.body)
    }
}

/// What never changes about a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub id: JobId,
    pub key: Option<String>,
    pub job_type: String,
    pub content_type: String,
    pub headers: Vec<(String, String)>,
    pub body: Body,
    pub priority: i8,
    pub enqueued_at: Timestamp,
    pub run_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub policy: Option<Box<PolicyOverride>>,
    pub key_ttl: Option<Duration>,
    /// As it was enqueued with; a failure may have named another one since.
    pub breaker_key: Option<String>,
}

impl Spec {
    /// How long its key is held at least. `retention`: where it does not say so itself.
    pub fn key_until(&self, retention: Duration) -> Timestamp {
        self.enqueued_at.after(self.key_ttl.unwrap_or(retention))
    }

    /// Whether it is the same job as another under the same id or key.
    pub fn sameness(&self) -> Sameness {
        sameness(&self.job_type, &self.content_type, &self.body)
    }
}

/// What a job has been through. A fresh job has none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Every hand-over; never goes back.
    pub deliveries: u32,
    /// Tries that count against the policy's retries.
    pub tries: u32,
    pub releases: u32,
    pub interruptions: u32,
    /// Failures that a breaker kept from counting.
    pub uncounted: u32,
    /// The first of them since one counted.
    pub uncounted_since: Option<Timestamp>,
    pub redrives: u32,
    /// Attempts ever written to the history.
    pub recorded: u32,
    /// The same of events.
    pub events: u32,
    /// Retries ever scheduled; a requeue does not start it again.
    pub retries: u32,
    /// The last computed delay, for decorrelated jitter.
    pub last_delay: Option<Duration>,
    pub cancel_requested: bool,
    /// A requeue cleared a deadline that had passed.
    pub deadline_cleared: bool,
    pub first_failed_at: Option<Timestamp>,
    pub last_failed_at: Option<Timestamp>,
    /// Of the policy that decided the last failure. None: there was no failure, or no policy decided it.
    pub max_retries: Option<u32>,
    /// What the last attempt saved for the next one.
    pub checkpoint: String,
}

impl Progress {
    /// READY → LEASED. Says which attempt this delivery is.
    pub fn deliver(&mut self) -> u32 {
        self.deliveries += 1;
        self.tries + 1
    }

    /// LEASED → COMPLETED, where the job is kept. The entry for its history comes back.
    pub fn complete(&mut self, delivery: &Delivery, note: &str, now: Timestamp) -> Attempt {
        self.tries = delivery.attempt;
        self.recorded += 1;
        let (status, note, redrives) = (AttemptStatus::Succeeded, note.to_owned(), self.redrives);
        Attempt { status, note, counted: true, redrives, ..Attempt::of(delivery, now) }
    }

    /// COMPLETED after all: the Ack of a delivery that ended without one. Its entry in the history is the same.
    pub fn complete_late(&mut self, attempt: &mut Attempt, note: &str, now: Timestamp) {
        self.tries = self.tries.max(attempt.number);
        attempt.explanation = match attempt.status {
            AttemptStatus::Interrupted => "interrupted, and acked after that".into(),
            _ => format!("its lease expired at {}, and it was acked after that", attempt.ended_at),
        };
        (attempt.status, attempt.ended_at, attempt.counted) = (AttemptStatus::Succeeded, now, true);
        note.clone_into(&mut attempt.note);
    }

    /// DEAD → READY.
    pub fn requeue(&mut self, now: Timestamp, expires_at: Option<Timestamp>, keep_attempts: bool) {
        if !keep_attempts {
            self.tries = 0;
            self.last_delay = None;
        }
        self.releases = 0;
        self.interruptions = 0;
        self.uncounted = 0;
        self.uncounted_since = None;
        self.cancel_requested = false;
        self.deadline_cleared |= expires_at.is_some_and(|at| at <= now);
        self.redrives += 1;
    }

    /// The deadline in force.
    pub fn deadline(&self, expires_at: Option<Timestamp>) -> Option<Timestamp> {
        if self.deadline_cleared { None } else { expires_at }
    }
}

/// One delivery as its lease remembers it; becomes an [`Attempt`] when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub lease: Lease,
    pub attempt: u32,
    pub worker_id: String,
    pub started_at: Timestamp,
    pub expires_at: Timestamp,
    pub duration: Duration,
    /// It was a breaker's probe.
    pub probe: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttemptStatus {
    Running,
    Succeeded,
    #[default]
    Failed,
    LeaseExpired,
    Released,
    Interrupted,
    Cancelled,
}

named! {
    DeadReason {
        Exhausted = "EXHAUSTED",
        NonRetryable = "NON_RETRYABLE",
        Expired = "EXPIRED",
        WouldMissDeadline = "WOULD_MISS_DEADLINE",
        Corrupt = "CORRUPT",
    }
}

/// Where a job goes after a delivery that did not succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// SCHEDULED: a retry, or a release with a time.
    Later { at: Timestamp },
    /// READY, behind its priority level.
    Behind { at: Timestamp },
    /// READY, where it was before it was claimed.
    #[default]
    OldPlace,
    /// DEAD.
    DeadLetter(DeadReason),
    /// Gone, or kept like a completed one.
    Cancelled,
}

/// One entry of a job's history. Holds all that the answer to a repeated Nack needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    pub number: u32,
    /// Number and nonce of the delivery: a repeated Nack finds its own attempt by them.
    pub delivery: u32,
    pub nonce: u64,
    /// Of the job, when it ended: what a requeue has changed since is no longer its matter.
    pub redrives: u32,
    pub status: AttemptStatus,
    pub worker_id: String,
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    pub note: String,
    pub failure: Option<Failure>,
    /// Says nothing about a success: that job went nowhere.
    pub next: Next,
    pub delay: Option<Duration>,
    pub retries_left: u32,
    pub counted: bool,
    pub probe: bool,
    /// A worker's Nack ended it; repeating that Nack gets the same answer.
    pub nacked: bool,
    /// Of the queue, after this delivery.
    pub breaker: BreakerState,
    pub rule: String,
    pub explanation: String,
}

impl Attempt {
    /// A delivery that has just ended; how is not said yet.
    pub(super) fn of(delivery: &Delivery, now: Timestamp) -> Self {
        Self {
            number: delivery.attempt,
            delivery: delivery.lease.delivery,
            nonce: delivery.lease.nonce,
            worker_id: delivery.worker_id.clone(),
            started_at: delivery.started_at,
            ended_at: now,
            probe: delivery.probe,
            ..Self::default()
        }
    }

    /// Whether its worker may still ack it: it ended without a word of the worker, and nothing was decided about the job since.
    pub fn may_be_acked(&self, lease: &Lease, progress: &Progress) -> bool {
        let unsettled = matches!(self.status, AttemptStatus::LeaseExpired | AttemptStatus::Interrupted);
        unsettled && self.is_of(lease) && self.redrives == progress.redrives
    }

    /// Whether it is how the delivery of this lease ended, if it is an attempt of the lease's job.
    pub fn is_of(&self, lease: &Lease) -> bool {
        (self.delivery, self.nonce) == (lease.delivery, lease.nonce)
    }
}

/// Something that was done to a job beside its deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvent {
    pub at: Timestamp,
    pub kind: JobEventKind,
    /// The caller's name, where callers have names.
    pub by: String,
    /// What the caller gave as the reason.
    pub reason: String,
    /// For people.
    pub detail: String,
}

impl JobEvent {
    pub fn new(at: Timestamp, kind: JobEventKind, reason: &str, detail: String) -> Self {
        Self { at, kind, by: String::new(), reason: reason.to_owned(), detail }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEventKind {
    /// DEAD → READY in its queue.
    Requeued,
    /// DEAD in another queue → READY in this one.
    Moved,
    /// An Enqueue put another job in its place, under its id.
    Replaced,
    /// SCHEDULED or RETRYING → READY before its time.
    RunNow,
    /// Cancelled while a worker had it.
    CancelRequested,
    /// Its queue's breaker opened and took it back from its worker's failure.
    ReturnedByBreaker,
    /// Its worker acked it when its lease was over.
    AckedAfterLease,
}
