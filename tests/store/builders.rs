//! Jobs, claims and outcomes in few words.

use redrive::domain::{
    Body, DeadFilter, DeadPart, Failure, Glob, Jitter, JobId, NewJob, OnConflict, Outcome, PolicyOverride, QueueName,
    QueueSettings, State, Timestamp, When,
};
use redrive::queue::Refusal;
use redrive::queue::{Claim, DeadLetterQuery, JobQuery, Purge, Requeue, Search, Settlements, Share, Sweep, Which};
use std::time::Duration;

pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::parse(name).expect("a queue's name")
}

pub(crate) fn job(name: &str) -> NewJob {
    NewJob {
        queue: queue(name),
        id: None,
        key: None,
        job_type: "mail".into(),
        content_type: "text/plain".into(),
        headers: Vec::new(),
        body: Body::Text("body".into()),
        priority: 0,
        start: None,
        expiry: None,
        policy: None,
        on_conflict: OnConflict::default(),
        key_ttl: None,
        breaker_key: None,
    }
}

/// What a test says about a job.
pub(crate) trait With {
    fn id(self, id: &str) -> Self;
    fn key(self, key: &str) -> Self;
    fn body(self, body: &str) -> Self;
    fn priority(self, priority: i8) -> Self;
    fn delay(self, delay: Duration) -> Self;
    fn expires(self, after: Duration) -> Self;
    fn retries(self, max_retries: u32) -> Self;
}

impl With for NewJob {
    fn id(mut self, id: &str) -> Self {
        self.id = Some(JobId::parse(id));
        self
    }

    fn key(mut self, key: &str) -> Self {
        self.key = Some(key.into());
        self
    }

    fn body(mut self, body: &str) -> Self {
        self.body = Body::Text(body.to_owned().into());
        self
    }

    fn priority(mut self, priority: i8) -> Self {
        self.priority = priority;
        self
    }

    fn delay(mut self, delay: Duration) -> Self {
        self.start = Some(When::After(delay));
        self
    }

    fn expires(mut self, after: Duration) -> Self {
        self.expiry = Some(When::After(after));
        self
    }

    fn retries(mut self, max_retries: u32) -> Self {
        self.policy = Some(Box::new(PolicyOverride { max_retries: Some(max_retries), ..PolicyOverride::default() }));
        self
    }
}

pub(crate) fn claim_of(queues: &[&str], max_jobs: usize) -> Claim {
    let share = |name: &&str| Share { queue: queue(name), first: usize::MAX };
    Claim {
        shares: queues.iter().map(share).collect(),
        max_jobs,
        max_bytes: 7 << 19,
        lease_duration: None,
        worker_id: "worker".into(),
        request_id: String::new(),
        settle: Settlements::default(),
    }
}

/// Each queue with how many it may give first.
pub(crate) fn claim_shares(shares: &[(&str, usize)], max_jobs: usize) -> Claim {
    let share = |(name, first): &(&str, usize)| Share { queue: queue(name), first: *first };
    Claim { shares: shares.iter().map(share).collect(), ..claim_of(&[], max_jobs) }
}

pub(crate) fn failed(error_type: &str) -> Outcome {
    failed_with(Failure::new(error_type, "it did not work"))
}

pub(crate) fn failed_with(failure: Failure) -> Outcome {
    Outcome::Failed { failure, permanent: false, retry_after: None }
}

pub(crate) fn failed_retry_after(retry_after: Duration) -> Outcome {
    Outcome::Failed {
        failure: Failure::new("Busy", "come back later"),
        permanent: false,
        retry_after: Some(retry_after),
    }
}

pub(crate) fn permanent() -> Outcome {
    Outcome::Failed { failure: Failure::new("Hopeless", "it will never work"), permanent: true, retry_after: None }
}

pub(crate) fn released() -> Outcome {
    Outcome::Released { retry_after: None, keep_position: false }
}

/// Delays exactly as the strategy says, by the same policy for every error.
pub(crate) fn without_jitter(queue: &mut QueueSettings) {
    queue.policy.jitter = Jitter::None;
    queue.patient = None;
}

/// Every lease may end.
pub(crate) fn sweep_all() -> Sweep {
    let (never, always) = (Timestamp::default(), Timestamp::from_millis(u64::MAX));
    Sweep { asked_at: always, spare_made_before: never, spare_until: never }
}

pub(crate) fn dead_query(name: &str) -> DeadLetterQuery {
    DeadLetterQuery {
        part: DeadPart::parse(name).expect("a queue's dead letters"),
        after: 0,
        limit: 1_000,
        search: None,
        full: true,
        max_bytes: usize::MAX,
    }
}

pub(crate) fn jobs_of(name: &str) -> JobQuery {
    JobQuery {
        queue: queue(name),
        state: None,
        job_type: None,
        after: None,
        limit: 1_000,
        full: false,
        max_bytes: usize::MAX,
        looks_max: usize::MAX,
    }
}

pub(crate) fn requeue_of(name: &str, which: Which) -> Requeue {
    Requeue {
        part: DeadPart::parse(name).expect("a queue's dead letters"),
        which,
        target: None,
        keep_attempts: false,
        reason: String::new(),
        dry_run: false,
        request: None,
    }
}

pub(crate) fn purge_of(name: &str, which: Which) -> Purge {
    let part = DeadPart::parse(name).expect("a queue's dead letters");
    Purge { part, which, dry_run: false, request: None }
}

/// What dead letters of this type of error are found by.
pub(crate) fn of_type(error_type: &str) -> DeadFilter {
    DeadFilter { error_type: Some(Glob::new(error_type)), ..DeadFilter::default() }
}

pub(crate) fn search(filter: DeadFilter) -> Search {
    Search { filter, look_at: 10_000 }
}

pub(crate) fn found(filter: DeadFilter, limit: usize) -> Which {
    Which::Found { search: search(filter), limit, among: None }
}

pub(crate) fn oldest(limit: usize) -> Which {
    Which::Oldest { limit, among: None }
}

pub(crate) fn no_queue(name: &str) -> Refusal {
    Refusal::QueueNotFound { queue: queue(name) }
}

pub(crate) fn no_job(id: &str) -> Refusal {
    Refusal::JobNotFound { id: id.into(), searched: None }
}

pub(crate) fn wrong_state(id: &str, state: State) -> Refusal {
    Refusal::WrongState { id: id.into(), state }
}
