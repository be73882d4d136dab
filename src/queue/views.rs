//! What reads answer: jobs, dead letters and queues as they are, with nothing decided.

use std::time::Duration;

use crate::domain::{
    Attempt, Breaker, BreakerState, DeadReason, Degraded, Delivery, Failure, Forced, JobEvent, JobId, Measured, Pause,
    Progress, QueueName, Spec, State, Timestamp,
};
use crate::queue::encoding::Unknown;
use bytes::Bytes;

#[derive(Clone, Debug)]
pub struct JobView {
    pub queue: QueueName,
    pub spec: Spec,
    /// Its stored record or its result fails its checksum; only known where they were read.
    pub corrupt: bool,
    pub state: State,
    /// When it became, or becomes, ready.
    pub ready_at: Option<Timestamp>,
    /// While LEASED: when it had become ready, which is where it would go back to.
    pub old_place: Option<Timestamp>,
    pub progress: Progress,
    /// While LEASED.
    pub delivery: Option<Delivery>,
    pub death: Option<Death>,
    /// While COMPLETED.
    pub completed_at: Option<Timestamp>,
    /// What its Ack carried, where the body was read too.
    pub result: Bytes,
    /// The first 10 and the last 40, whole where the failure is the first or the last.
    pub attempts: Vec<Attempt>,
    /// The first 10 and the last 40.
    pub events: Vec<JobEvent>,
    pub last_failure: Option<Failure>,
    /// READY jobs that go first, counted up to a bound.
    pub ahead: Option<Ahead>,
    /// Of its queue; may be over.
    pub pause: Option<Pause>,
    /// Of its breaker key, or else of its queue.
    pub breaker: Breaker,
    /// An operator's word about the queue's own breaker: OPEN holds the jobs of all keys.
    pub forced: Option<Forced>,
    /// What was counted of the queue's jobs, and of those of its breaker key: limits are compared with it.
    pub measured: Measured,
    pub measured_of_key: Measured,
    /// The breaker key that a failure named last, where it is not the one that it was enqueued with.
    pub learnt_key: Option<String>,
    pub unknown: UnknownFields,
}

impl JobView {
    pub fn breaker_key(&self) -> Option<&str> {
        self.learnt_key.as_deref().or(self.spec.breaker_key.as_deref())
    }
}

/// What a newer server has written of a job, which an import carries on. That of its own record is known where its body was
/// read too.
#[derive(Clone, Debug, Default)]
pub struct UnknownFields {
    pub(crate) job: Unknown,
    pub(crate) history: Unknown,
}

/// A breaker, and what is counted for it in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BreakerView {
    pub breaker: Breaker,
    /// Failures that speak since the last success.
    pub failures: u32,
    /// While HALF_OPEN: probes whose outcome is waited for.
    pub probes: u64,
    /// Ready jobs.
    pub held: u64,
    /// Failures of this outage that did not count.
    pub uncounted: u64,
    /// What its load comes to, by what a success takes.
    pub per_second: f64,
    /// While RECOVERING: about how long until the ready jobs have left.
    pub drain: Option<Duration>,
    pub degraded: Option<Degraded>,
    pub usual_share: f64,
}

impl BreakerView {
    /// Of dead letters nothing else is known.
    pub(crate) fn of_dead_letters(breaker: &Breaker) -> Self {
        Self { breaker: breaker.clone(), ..Self::default() }
    }
}

/// The breakers of one queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BreakerViews {
    pub work: BreakerView,
    /// By breaker key.
    pub keys: Vec<BreakerView>,
    pub dead_letters: BreakerView,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    pub jobs: usize,
    /// There are more than that.
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// Its place in the queue's order of death.
    pub number: u64,
    pub reason: DeadReason,
    pub died_at: Timestamp,
    pub overflow: bool,
    pub context: DeathContext,
}

/// The state of things at death: depths of the queue and of its dead letters, and their breakers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeathContext {
    pub ready: u64,
    pub scheduled: u64,
    pub retrying: u64,
    pub leased: u64,
    /// Overflow included.
    pub dead: u64,
    pub overflow: u64,
    pub queue_breaker: BreakerState,
    pub dlq_breaker: BreakerState,
}

#[derive(Clone, Debug)]
pub struct DeadLetterPage {
    pub jobs: Vec<JobView>,
    /// Where the next page begins.
    pub next: Option<u64>,
    /// Of the part asked for.
    pub total: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadCounts {
    pub queues: Vec<DeadCount>,
    /// Of all queues asked for, on this page or not.
    pub total: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadCount {
    pub queue: QueueName,
    /// Overflow included.
    pub count: u64,
    pub overflow: u64,
    pub oldest: Option<Timestamp>,
    /// Most frequent first; empty where there was no failure.
    pub by_error_type: Vec<(String, u64)>,
    /// Last death first.
    pub latest: Vec<LatestDeath>,
}

impl DeadCount {
    pub fn none(queue: QueueName) -> Self {
        let (by_error_type, latest) = (Vec::new(), Vec::new());
        Self { queue, count: 0, overflow: 0, oldest: None, by_error_type, latest }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatestDeath {
    pub id: JobId,
    pub error_type: String,
    pub died_at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct QueueView {
    pub name: QueueName,
    pub depths: Depths,
    pub totals: Totals,
    pub oldest_ready_at: Option<Timestamp>,
    /// When a worker last asked for it.
    pub last_claim_at: Option<Timestamp>,
    /// May be over.
    pub pause: Option<Pause>,
    /// Of its work.
    pub breaker: Breaker,
}

impl QueueView {
    /// Of a queue that has no jobs yet.
    pub fn empty(name: QueueName) -> Self {
        let (depths, totals) = (Depths::default(), Totals::default());
        let breaker = Breaker::default();
        Self { name, depths, totals, oldest_ready_at: None, last_claim_at: None, pause: None, breaker }
    }
}

/// How many jobs are in which state now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    pub ready: u64,
    pub scheduled: u64,
    pub retrying: u64,
    pub leased: u64,
    /// Those that are kept.
    pub completed: u64,
    /// The same.
    pub cancelled: u64,
    /// Overflow included.
    pub dead: u64,
    pub overflow: u64,
}

impl Depths {
    /// Jobs that are neither done nor cancelled: those are among [`Totals`], whether they are kept or not.
    pub fn held(&self) -> u64 {
        self.ready + self.scheduled + self.retrying + self.leased + self.dead
    }

    /// No job in any state.
    pub fn is_empty(&self) -> bool {
        self.held() + self.completed + self.cancelled == 0
    }

    /// As a dead letter tells of them, with the breakers of its queue's work and of its dead letters.
    pub(crate) fn context(&self, [queue_breaker, dlq_breaker]: [BreakerState; 2]) -> DeathContext {
        let Self { ready, scheduled, retrying, leased, dead, overflow, .. } = *self;
        DeathContext { ready, scheduled, retrying, leased, dead, overflow, queue_breaker, dlq_breaker }
    }
}

/// Each counter once: its field, and its name where a change counts it.
macro_rules! totals {
    ($($(#[$doc:meta])* $field:ident $name:ident,)*) => {
        /// Since the queue was made. What came in is what went out and what is held: enqueued + moved_in = completed + purged +
        /// cancelled + retention_expired + moved_out + [`Depths::held`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Totals {
            $($(#[$doc])* pub $field: u64,)*
        }

        /// Their numbers in the store.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Total {
            $($name,)*
        }

        impl Totals {
            /// How many counters there are.
            pub const COUNT: usize = [$(Total::$name),*].len();

            /// In the order of the fields.
            pub fn values(&self) -> [u64; Self::COUNT] {
                [$(self.$field),*]
            }

            /// From [`Totals::values`].
            pub fn of([$($field),*]: [u64; Self::COUNT]) -> Self {
                Self { $($field),* }
            }
        }
    };
}

totals! {
    enqueued Enqueued,
    /// Counted when acked; the end of a kept one's retention counts nowhere.
    completed Completed,
    failed_attempts FailedAttempts,
    retries Retries,
    /// Jobs that succeeded after at least one retry.
    successful_retries SuccessfulRetries,
    /// Jobs that were retried and are finished.
    retried_finished RetriedFinished,
    dead_lettered DeadLettered,
    requeued Requeued,
    lease_expired LeaseExpired,
    purged Purged,
    cancelled Cancelled,
    /// Dead letters only.
    retention_expired RetentionExpired,
    moved_in MovedIn,
    moved_out MovedOut,
}

// An engine has room for all of them.
const _: () = assert!(Totals::COUNT <= crate::store::storage::Counter::TOTALS as usize);

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        let (mut sum, other) = (self.values(), other.values());
        for (sum, other) in sum.iter_mut().zip(other) {
            *sum += other;
        }
        *self = Self::of(sum);
    }
}

/// The counters of one queue, or of all queues that there ever were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub totals: Totals,
    /// Jobs that are not done now, as [`Depths::held`] counts them.
    pub held: u64,
}
