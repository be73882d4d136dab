//! What the benchmarks measure: the verbs on SQLite, driven from one thread, and the pure functions below them.
//!
//! Nothing is fsynced and the clock stands still, so that only the work itself is left.

#![allow(dead_code, reason = "no benchmark needs all of it")]

pub(crate) mod callgrind;
pub(crate) mod server;

use bytes::Bytes;
use redrive::{
    domain::{
        failure::Failure,
        ids::{JobId, QueueName},
        job::{Body, Delivery, Expiry, NewJob, Progress, Spec, Start},
        lease::Lease,
        settings::Settings,
        time::Timestamp,
        verdict::{Chance, Ending, Leased, Standing, Verdict, judge},
    },
    env::ManualClock,
    queue::hosts::sqlite::SqliteStore,
    store::{
        Ack, Ask, BreakerNotice, Claim, DeadNotice, Depths, JobQuery, Listener, Nack, Settlements,
        Share, Store, Sweep,
        sqlite::{Durability, Options},
    },
};
use std::{path::Path, sync::Arc, time::Duration};

pub(crate) const PAYLOAD: usize = 256;

pub(crate) fn queue() -> QueueName {
    QueueName::parse("bench").expect("a queue's name")
}

pub(crate) fn failure() -> Ending {
    let failure = Failure::new("SmtpTimeout", "no answer from mx1 after 30 s");
    Ending::Failed { failure, permanent: false, retry_after: None }
}

/// A store, and the one thread that calls it.
pub(crate) struct Subject {
    store: SqliteStore,
    settings: Arc<Settings>,
    runtime: tokio::runtime::Runtime,
    clock: Arc<ManualClock>,
    calls: u64,
}

impl Subject {
    pub(crate) fn open(directory: &Path) -> Self {
        let options =
            Options { durability: Durability::None, reserve_bytes: 0, ..Options::new(directory) };
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_800_000_000)));
        // The queue's breaker would rightly hold back work of which every attempt fails.
        let mut settings = Settings::default();
        Arc::make_mut(&mut settings.defaults).breaker.disabled = true;
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let limits = SqliteStore::default_limits();
        let store = SqliteStore::open_sqlite(options, limits, clock.clone(), Arc::new(Nobody));
        let store = runtime.block_on(store).expect("the store opens");
        Self { store, settings: Arc::new(settings), runtime, clock, calls: 0 }
    }

    fn ask(&mut self) -> Ask {
        self.calls += 1;
        Ask { settings: self.settings.clone(), seed: self.calls }
    }

    pub(crate) fn enqueue(&mut self, jobs: usize) {
        let jobs = (0..jobs).map(|_| new_job()).collect();
        let ask = self.ask();
        let added = self.runtime.block_on(self.store.enqueue(ask, jobs));
        assert!(added.expect("the store is well").iter().all(Result::is_ok));
    }

    pub(crate) fn claim(&mut self, jobs: usize) -> Vec<Lease> {
        let ask = self.ask();
        let claim = Claim {
            shares: vec![Share { queue: queue(), first: usize::MAX }],
            max_jobs: jobs,
            max_bytes: usize::MAX,
            lease_duration: None,
            worker_id: "worker-1".into(),
            request_id: String::new(),
            settle: Settlements::default(),
        };
        let claimed = self.runtime.block_on(self.store.claim(ask, claim));
        let claimed = claimed.expect("the store is well").jobs;
        assert_eq!(claimed.len(), jobs, "so many are ready");
        claimed.into_iter().map(|job| job.delivery.lease).collect()
    }

    pub(crate) fn ack(&mut self, leases: Vec<Lease>) {
        let ack = |lease| Ack { lease, note: String::new(), result: Bytes::new() };
        let acks = leases.into_iter().map(ack).collect();
        self.settle(Settlements { acks, ..Settlements::default() });
    }

    pub(crate) fn nack(&mut self, leases: Vec<Lease>) {
        self.end(leases, &failure());
    }

    pub(crate) fn end(&mut self, leases: Vec<Lease>, ending: &Ending) {
        let nack = |lease| Nack { lease, ending: ending.clone(), checkpoint: String::new() };
        let nacks = leases.into_iter().map(nack).collect();
        self.settle(Settlements { nacks, ..Settlements::default() });
    }

    fn settle(&mut self, settlements: Settlements) {
        let ask = self.ask();
        let settled = self.runtime.block_on(self.store.settle(ask, settlements));
        let settled = settled.expect("the store is well");
        assert!(settled.acks.iter().all(Result::is_ok) && settled.nacks.iter().all(Result::is_ok));
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
    }

    /// Makes ready what is due, as much as one call does.
    pub(crate) fn promote(&mut self) -> usize {
        let sweep =
            Sweep { spare_made_before: Timestamp::default(), spare_until: Timestamp::default() };
        let ask = self.ask();
        self.runtime.block_on(self.store.sweep(ask, sweep)).expect("the store is well").promoted
    }

    pub(crate) fn depths(&mut self) -> Depths {
        let queues = self.runtime.block_on(self.store.queues(None, 10)).expect("the store is well");
        queues.first().map(|queue| queue.depths).unwrap_or_default()
    }

    pub(crate) fn stats(&mut self) {
        let stats = self.runtime.block_on(self.store.stats(Some(queue())));
        assert!(stats.expect("the store is well").is_some());
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
        page.expect("the queue is there").jobs.len()
    }

    pub(crate) fn close(self) {
        self.runtime.block_on(self.store.close());
    }
}

/// Who is told nothing.
pub(crate) struct Nobody;

impl Listener for Nobody {
    fn available(&self, _: &QueueName, _: usize) {}
    fn come_due(&self, _: &QueueName) {}
    fn due(&self, _: Timestamp) {}
    fn died(&self, _: &DeadNotice) {}
    fn cancel_requested(&self, _: Lease) {}
    fn breaker(&self, _: &BreakerNotice) {}
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
        start: Start::Now,
        expiry: Expiry::Never,
        policy: None,
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
    }
}

/// The second attempt of a job with three retries has failed.
pub(crate) fn judged() -> Verdict {
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
        breaker: Standing::default(),
    };
    let settings = Settings::default();
    judge(leased, failure(), &settings.defaults, now, Chance { jitter: 0.4, spread: 0.6 })
}
