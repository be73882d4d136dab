//! What the benchmarks measure: the verbs on SQLite, driven from one thread, and the pure functions below them.
//!
//! Nothing is fsynced and the clock stands still, so that only the work itself is left.

#![allow(dead_code, reason = "no benchmark needs all of it")]

pub(crate) mod callgrind;
pub(crate) mod server;

use bytes::Bytes;
use redrive::domain::{
    Body, BreakerFacts, BreakerKind, BreakerName, Delivery, Failure, JobId, Lease, Leased, NewJob, OnConflict, Outcome,
    Progress, QueueName, RandomFractions, RetryDecision, Settings, Spec, Timestamp, decide,
};
use redrive::env::ManualClock;
use redrive::queue::hosts::sqlite::SqliteStore;
use redrive::queue::{Ack, BreakerOrder, Claim, Depths, JobQuery, Nack, Settlements, Share, Sweep};
use redrive::queue::{Event, EventKind, Setup, Subscriber, Subscribers};
use redrive::store::sqlite::{Durability, Options};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{path::Path, sync::Arc, sync::LazyLock, time::Duration};

pub(crate) const PAYLOAD: usize = 256;

pub(crate) fn queue() -> QueueName {
    QueueName::parse("bench").expect("a queue's name")
}

pub(crate) fn failure() -> Outcome {
    let failure = Failure::new("SmtpTimeout", "no answer from mx1 after 30 s");
    Outcome::Failed { failure, permanent: false, retry_after: None }
}

/// A store, and the one thread that calls it.
pub(crate) struct Subject {
    store: SqliteStore,
    runtime: tokio::runtime::Runtime,
    clock: Arc<ManualClock>,
}

impl Subject {
    pub(crate) fn open(directory: &Path) -> Self {
        let options = Options { durability: Durability::None, reserve_bytes: 0, ..Options::new(directory) };
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_800_000_000)));
        // The queue's breaker would rightly hold back work of which every attempt fails.
        let mut settings = Settings::default();
        Arc::make_mut(&mut settings.defaults).breaker.disabled = true;
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let limits = SqliteStore::default_limits();
        let store = SqliteStore::open_sqlite(options, limits, clock.clone(), setup(settings));
        let store = runtime.block_on(store).expect("the store opens");
        Self { store, runtime, clock }
    }

    pub(crate) fn enqueue(&mut self, jobs: usize) {
        let jobs = (0..jobs).map(|_| new_job()).collect();
        let added = self.runtime.block_on(self.store.enqueue(jobs));
        assert!(added.expect("the store is well").iter().all(Result::is_ok));
    }

    /// Jobs with a breaker key.
    pub(crate) fn enqueue_of(&mut self, key: &str, jobs: usize) {
        let jobs = (0..jobs).map(|_| NewJob { breaker_key: Some(key.into()), ..new_job() }).collect();
        let added = self.runtime.block_on(self.store.enqueue(jobs));
        assert!(added.expect("the store is well").iter().all(Result::is_ok));
    }

    /// An operator holds the jobs of a breaker key.
    pub(crate) fn hold(&mut self, key: &str) {
        let name = BreakerName { queue: queue(), kind: BreakerKind::Work, key: key.into() };
        let order = BreakerOrder::Force { open: true, reason: String::new() };
        self.runtime.block_on(self.store.set_breaker(name, order)).expect("the store is well");
    }

    pub(crate) fn claim(&mut self, jobs: usize) -> Vec<Lease> {
        let claim = Claim {
            shares: vec![Share { queue: queue(), first: usize::MAX }],
            max_jobs: jobs,
            max_bytes: usize::MAX,
            lease_duration: None,
            worker_id: "worker-1".into(),
            request_id: String::new(),
            settle: Settlements::default(),
        };
        let claimed = self.runtime.block_on(self.store.claim(claim));
        let claimed = claimed.expect("the store is well").jobs.delivered();
        assert_eq!(claimed.len(), jobs, "so many are ready");
        claimed.into_iter().map(|job| job.delivery.lease).collect()
    }

    pub(crate) fn ack(&mut self, leases: Vec<Lease>) {
        let ack = |lease| Ack { lease, note: String::new(), result: Bytes::new(), breaker_key: String::new() };
        let acks = leases.into_iter().map(ack).collect();
        self.settle(Settlements { acks, ..Settlements::default() });
    }

    pub(crate) fn nack(&mut self, leases: Vec<Lease>) {
        self.end(leases, &failure());
    }

    pub(crate) fn end(&mut self, leases: Vec<Lease>, outcome: &Outcome) {
        let nack = |lease| Nack { lease, outcome: outcome.clone(), checkpoint: String::new() };
        let nacks = leases.into_iter().map(nack).collect();
        self.settle(Settlements { nacks, ..Settlements::default() });
    }

    fn settle(&mut self, settlements: Settlements) {
        let settled = self.runtime.block_on(self.store.settle(settlements));
        let settled = settled.expect("the store is well");
        assert!(settled.acks.iter().all(Result::is_ok) && settled.nacks.iter().all(Result::is_ok));
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
    }

    /// Makes ready what is due, as much as one call does.
    pub(crate) fn promote(&mut self) -> usize {
        let sweep = Sweep {
            spare_made_before: Timestamp::default(),
            spare_until: Timestamp::default(),
            asked_at: Timestamp::MAX,
        };
        self.runtime.block_on(self.store.sweep(sweep)).expect("the store is well").promoted
    }

    pub(crate) fn depths(&mut self) -> Depths {
        let queues = self.runtime.block_on(self.store.queues(None, 10)).expect("the store is well");
        queues.first().map(|queue| queue.depths).unwrap_or_default()
    }

    pub(crate) fn stats(&mut self) {
        let stats = self.runtime.block_on(self.store.stats(Some(queue())));
        stats.expect("the store is well");
    }

    pub(crate) fn first_page(&mut self) -> usize {
        let query = JobQuery {
            queue: queue(),
            state: None,
            job_type: None,
            after: None,
            limit: 100,
            full: false,
            max_bytes: usize::MAX,
            looks_max: usize::MAX,
        };
        let page = self.runtime.block_on(self.store.jobs(query)).expect("the store is well");
        page.jobs.len()
    }

    pub(crate) fn close(self) {
        self.runtime.block_on(self.store.close());
    }
}

/// Wants what the server's subscribers want, and does nothing with it.
struct Unused;

impl Subscriber for Unused {
    fn wants(&self, kind: EventKind) -> bool {
        kind != EventKind::Due
    }

    fn event(&self, _: &Event) {}
}

/// Every run has the same seeds.
pub(crate) fn setup(settings: Settings) -> Setup {
    let calls = AtomicU64::new(0);
    Setup {
        settings: Arc::new(settings),
        subscribers: Subscribers::default().with(Arc::new(Unused)),
        random: Arc::new(move || calls.fetch_add(1, Ordering::Relaxed)),
        ..Setup::default()
    }
}

pub(crate) fn new_job() -> NewJob {
    NewJob {
        queue: queue(),
        id: None,
        key: None,
        job_type: "send-welcome-email".into(),
        content_type: "application/octet-stream".into(),
        headers: Vec::new(),
        body: body(),
        priority: 0,
        start: None,
        expiry: None,
        policy: None,
        on_conflict: OnConflict::default(),
        key_ttl: None,
        breaker_key: None,
    }
}

pub(crate) fn body() -> Body {
    Body::Data(Bytes::from_static(&[7; PAYLOAD]))
}

/// A job as it is kept.
pub(crate) fn spec() -> Spec {
    let now = Timestamp::from_millis(1_800_000_000_000);
    Spec {
        id: JobId::Uuid(0x01a1_e278_f8f2_7000_8000_0000_06fb_66bd),
        key: None,
        job_type: "send-welcome-email".into(),
        content_type: "application/octet-stream".into(),
        headers: Vec::new(),
        body: body(),
        priority: 0,
        enqueued_at: now,
        run_at: now,
        expires_at: None,
        policy: None,
        key_ttl: None,
        breaker_key: None,
    }
}

/// A server makes its settings once.
static SETTINGS: LazyLock<Settings> = LazyLock::new(Settings::default);

/// The second attempt of a job with three retries has failed.
pub(crate) fn decided() -> RetryDecision {
    let now = Timestamp::from_millis(1_800_000_000_000);
    let delivery = Delivery {
        lease: Lease {
            queue: queue(),
            number: 7,
            delivery: 2,
            nonce: 99,
            flags: 0,
            epoch: 0,
            started_at: Timestamp::default(),
            duration_ms: 0,
            own_id: None,
        },
        attempt: 2,
        worker_id: "worker-1".into(),
        started_at: now,
        expires_at: now.after(Duration::from_secs(30)),
        duration: Duration::from_secs(30),
        probe: false,
    };
    let progress = Progress { deliveries: 2, tries: 1, ..Progress::default() };
    let leased = Leased {
        delivery: &delivery,
        progress: &progress,
        policy: None,
        expires_at: None,
        breaker: BreakerFacts::default(),
    };
    decide(leased, failure(), &SETTINGS.defaults, now, RandomFractions { jitter: 0.4, spread: 0.6 })
}
