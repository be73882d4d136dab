//! A job: what never changes about it, what does, and the ways from one state to the next.
//!
//! ```text
//!  Enqueue ──► SCHEDULED ──(due)──► READY ──Claim──► LEASED ──Ack──► done
//!                  ▲                  ▲                 │
//!                  │                  └── released ─────┤
//!                  └── failed, retries left ────────────┤
//!                                                       └── beyond hope ──► DEAD ──Requeue──► READY
//! ```
//! The verdict on a LEASED job that was not acknowledged is in `verdict.rs`.

pub use super::sameness::Sameness;
use super::{
    breaker::BreakerState, failure::Failure, ids::JobId, ids::QueueName, lease::Lease,
    policy::PolicyOverride, time::Timestamp,
};
use bytes::Bytes;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Scheduled,
    Ready,
    Leased,
    Completed,
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

/// When a new job may first run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    #[default]
    Now,
    After(Duration),
    At(Timestamp),
}

/// When a job is not worth running any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    #[default]
    Never,
    After(Duration),
    At(Timestamp),
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
    pub start: Start,
    pub expiry: Expiry,
    pub policy: Option<Box<PolicyOverride>>,
}

impl NewJob {
    /// About what it takes of memory and disk.
    pub fn bytes(&self) -> usize {
        let headers: usize =
            self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.body.bytes().len() + headers + self.job_type.len() + self.content_type.len()
    }

    /// Enqueue: the job as it is kept, and whether it is READY or SCHEDULED.
    pub fn admit(self, now: Timestamp, id: JobId) -> (Spec, State) {
        let run_at = match self.start {
            Start::Now => now,
            Start::After(delay) => now.after(delay),
            // A time that has passed means now; the job has not been waiting since then.
            Start::At(at) => at.max(now),
        };
        let expires_at = match self.expiry {
            Expiry::Never => None,
            Expiry::After(delay) => Some(now.after(delay)),
            Expiry::At(at) => Some(at),
        };
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
        };
        (spec, state)
    }
}

impl NewJob {
    /// Whether it is the same job as another under the same id or key.
    pub fn sameness(&self) -> Sameness {
        super::sameness::sameness(&self.job_type, &self.content_type, &self.body)
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
}

impl Spec {
    /// Whether it is the same job as another under the same id or key.
    pub fn sameness(&self) -> Sameness {
        super::sameness::sameness(&self.job_type, &self.content_type, &self.body)
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
    pub redrives: u32,
    /// Attempts ever written to the history.
    pub recorded: u32,
    /// Retries ever scheduled; a requeue does not start it again.
    pub retries: u32,
    /// The last computed delay, for decorrelated jitter.
    pub last_delay: Option<Duration>,
    pub cancel_requested: bool,
    /// A requeue cleared a deadline that had passed.
    pub deadline_cleared: bool,
    pub first_failed_at: Option<Timestamp>,
    pub last_failed_at: Option<Timestamp>,
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
        Attempt {
            number: delivery.attempt,
            delivery: delivery.lease.delivery,
            nonce: delivery.lease.nonce,
            status: AttemptStatus::Succeeded,
            worker_id: delivery.worker_id.clone(),
            started_at: delivery.started_at,
            ended_at: now,
            note: note.to_owned(),
            failure: None,
            next: Next::OldPlace,
            delay: None,
            retries_left: 0,
            counted: true,
            probe: delivery.probe,
            nacked: false,
            breaker: BreakerState::default(),
            rule: String::new(),
            explanation: String::new(),
        }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptStatus {
    Running,
    Succeeded,
    Failed,
    LeaseExpired,
    Released,
    Interrupted,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadReason {
    Exhausted,
    NonRetryable,
    Expired,
    WouldMissDeadline,
    Cancelled,
    Corrupt,
}

impl DeadReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "EXHAUSTED",
            Self::NonRetryable => "NON_RETRYABLE",
            Self::Expired => "EXPIRED",
            Self::WouldMissDeadline => "WOULD_MISS_DEADLINE",
            Self::Cancelled => "CANCELLED",
            Self::Corrupt => "CORRUPT",
        }
    }
}

/// Where a job goes after a delivery that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// SCHEDULED: a retry, or a release with a time.
    Later { at: Timestamp },
    /// READY, behind its priority level.
    Behind { at: Timestamp },
    /// READY, where it was before it was claimed.
    OldPlace,
    /// DEAD.
    Bury(DeadReason),
}

/// One entry of a job's history. Holds all that the answer to a repeated Nack needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub number: u32,
    /// Number and nonce of the delivery: a repeated Nack finds its own attempt by them.
    pub delivery: u32,
    pub nonce: u64,
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
    /// Of the queue, after this ending.
    pub breaker: BreakerState,
    pub rule: String,
    pub explanation: String,
}

impl Attempt {
    /// Whether it is how the delivery of this lease ended, if it is an attempt of the lease's job.
    pub fn is_of(&self, lease: &Lease) -> bool {
        (self.delivery, self.nonce) == (lease.delivery, lease.nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requeue_starts_again_and_keeps_what_must_never_go_back() {
        let mut progress = Progress {
            deliveries: 9,
            tries: 4,
            releases: 3,
            interruptions: 2,
            uncounted: 1,
            cancel_requested: true,
            last_delay: Some(Duration::from_secs(1)),
            recorded: 8,
            ..Progress::default()
        };
        let now = Timestamp::from_millis(10);
        progress.requeue(now, Some(Timestamp::from_millis(10)), false);
        assert_eq!(progress.deliveries, 9);
        assert_eq!(progress.recorded, 8);
        assert_eq!(progress.redrives, 1);
        assert_eq!(progress.deliver(), 1);
        assert!(!progress.cancel_requested);
        assert_eq!((progress.releases, progress.interruptions, progress.uncounted), (0, 0, 0));
        assert_eq!(progress.deadline(Some(now)), None);
    }

    #[test]
    fn a_success_uses_up_a_try_and_is_the_last_entry_of_the_history() {
        let lease = Lease {
            queue: QueueName::parse("emails").unwrap(),
            number: 1,
            delivery: 9,
            nonce: 7,
            flags: 0,
            epoch: 0,
            started_at: Timestamp::default(),
            duration_ms: 0,
            own_id: None,
        };
        let delivery = Delivery {
            lease,
            attempt: 4,
            worker_id: "w".into(),
            started_at: Timestamp::from_millis(10),
            expires_at: Timestamp::from_millis(90),
            duration: Duration::from_millis(80),
            probe: false,
        };
        let mut progress = Progress { tries: 3, recorded: 8, ..Progress::default() };
        let attempt = progress.complete(&delivery, "sent", Timestamp::from_millis(30));
        assert_eq!((progress.tries, progress.recorded), (4, 9));
        assert_eq!((attempt.status, attempt.number), (AttemptStatus::Succeeded, 4));
        assert_eq!((attempt.delivery, attempt.nonce), (9, 7));
        assert_eq!((attempt.counted, attempt.nacked), (true, false));
        assert_eq!((attempt.worker_id.as_str(), attempt.note.as_str()), ("w", "sent"));
        assert_eq!(attempt.ended_at.since(attempt.started_at), Duration::from_millis(20));
    }

    #[test]
    fn a_requeue_that_keeps_attempts_goes_on_counting() {
        let mut progress = Progress { tries: 4, deliveries: 4, ..Progress::default() };
        progress.requeue(Timestamp::from_millis(10), None, true);
        assert_eq!(progress.deliver(), 5);
    }

    #[test]
    fn a_deadline_that_has_not_passed_survives_a_requeue() {
        let mut progress = Progress::default();
        let later = Some(Timestamp::from_millis(11));
        progress.requeue(Timestamp::from_millis(10), later, false);
        assert_eq!(progress.deadline(later), later);
    }
}
