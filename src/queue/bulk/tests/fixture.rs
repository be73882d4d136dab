//! A queue with dead letters, and servers that may be killed.

use super::super::*;
use crate::{
    domain::{
        failure::Failure,
        job::{Body, Expiry, NewJob, Start, State},
        settings::{QueueSettings, Settings},
        store_clock::Reading,
        time::Timestamp,
        verdict::Ending,
    },
    env::Clock,
    queue::{Answer, QueueMemory, StoreLimits, Verb, View, Viewed, enqueue::Incoming, poll_once},
    store::{
        Claim, Nack, Purge, Purged, Requeue, Requeued, Settlements, Share, Stats, Sweep, Totals,
        memory::MemoryStorage,
        storage::{Batch, Found, Reads, Take, Taken},
    },
};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

#[derive(Debug)]
pub(super) struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn read(&self) -> Reading {
        let us = self.0.load(Ordering::Relaxed);
        Reading { wall_us: us, boot_us: us, boot_id: 1 }
    }
}

pub(super) type Hook = Box<dyn FnOnce() + Send>;

/// A storage as one server has it: it may be killed at a batch, or others come before it.
pub(super) struct OneServer {
    pub(super) inner: MemoryStorage,
    /// Batches until something happens.
    pub(super) batches: usize,
    pub(super) then: Then,
}

pub(super) enum Then {
    Nothing,
    /// It is killed, and the batch is applied or not.
    Killed {
        applied: bool,
    },
    Others(Hook),
}

impl Reads for OneServer {
    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    async fn read(
        &mut self,
        queue: &QueueName,
        reads: &[Read],
    ) -> Result<Option<Vec<Found>>, StoreError> {
        self.inner.read(queue, reads).await
    }

    async fn queues(
        &mut self,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueName>, StoreError> {
        self.inner.queues(after, limit).await
    }

    async fn holders(
        &mut self,
        table: Table,
        key: &RecordKey,
    ) -> Result<Vec<QueueName>, StoreError> {
        self.inner.holders(table, key).await
    }
}

impl Storage for OneServer {
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Result<Applied, StoreError> {
        if self.batches > 0 {
            self.batches -= 1;
            return self.inner.apply(queue, batch).await;
        }
        match std::mem::replace(&mut self.then, Then::Nothing) {
            Then::Nothing => self.inner.apply(queue, batch).await,
            Then::Others(hook) => {
                hook();
                self.inner.apply(queue, batch).await
            }
            Then::Killed { applied } => {
                if applied {
                    self.inner.apply(queue, batch).await?;
                }
                self.then = Then::Killed { applied: false };
                Err(StoreError::OutcomeUnknown("the server was killed".into()))
            }
        }
    }

    async fn take(
        &mut self,
        queue: &QueueName,
        take: &Take<'_>,
    ) -> Result<Option<Taken>, StoreError> {
        self.inner.take(queue, take).await
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> Result<bool, StoreError> {
        self.inner.register(queue, max).await
    }

    async fn forget(
        &mut self,
        queue: &QueueName,
        unused_since: Timestamp,
    ) -> Result<bool, StoreError> {
        self.inner.forget(queue, unused_since).await
    }

    async fn numbers(&mut self, count: u64) -> Result<Range<u64>, StoreError> {
        self.inner.numbers(count).await
    }
}

#[derive(Clone)]
pub(super) struct Fixture {
    clock: Arc<TestClock>,
    storage: MemoryStorage,
    settings: Arc<Settings>,
}

pub(super) fn queue(name: &str) -> QueueName {
    QueueName::parse(name).unwrap()
}

pub(super) fn ids(range: Range<usize>) -> Vec<JobId> {
    range.map(|n| JobId::parse(&format!("job-{n:04}"))).collect()
}

pub(super) fn oldest(limit: usize) -> Which {
    Which::Oldest { limit, among: None }
}

pub(super) fn part(name: &str) -> DeadPart {
    DeadPart { queue: queue(name), overflow_only: false }
}

pub(super) fn request() -> Option<RequestId> {
    Some(RequestId { id: "r".into(), asked: [1; 32] })
}

pub(super) fn requeue_to(to: Option<&str>, which: Which, request: Option<RequestId>) -> Requeue {
    let target = to.map(queue);
    Requeue { part: part("q"), which, target, keep_attempts: false, dry_run: false, request }
}

pub(super) fn is_right(stats: &Stats) -> bool {
    let Stats { totals: t, held } = stats;
    let out = t.completed + t.purged + t.cancelled + t.retention_expired + t.moved_out;
    t.enqueued + t.moved_in == out + held
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with(QueueSettings::default())
    }

    pub(super) fn with(defaults: QueueSettings) -> Self {
        let clock = Arc::new(TestClock(AtomicU64::new(1_800_000_000_000_000)));
        let storage = MemoryStorage::new(clock.clone());
        let settings = Settings { defaults: Arc::new(defaults), ..Settings::default() };
        Self { clock, storage, settings: Arc::new(settings) }
    }

    pub(super) fn server(&self) -> OneServer {
        OneServer { inner: self.storage.clone(), batches: 0, then: Then::Nothing }
    }

    pub(super) fn run_on(&self, mut server: OneServer, verb: Verb) -> Result<Answer, StoreError> {
        let memory = QueueMemory::default();
        let limits = StoreLimits { queues: 1_000, leases: 100_000 };
        let mut cx = CallContext::new(self.settings.clone(), 7, &memory, limits);
        poll_once(crate::queue::run(&mut server, &mut cx, verb)).and_then(|it| it)
    }

    pub(super) fn run(&self, verb: Verb) -> Answer {
        self.run_on(self.server(), verb).unwrap()
    }

    pub(super) fn requeue(&self, wanted: Requeue) -> Requeued {
        match self.run(Verb::Requeue(wanted)) {
            Answer::Requeue(requeued) => requeued.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn purge(&self, wanted: Purge) -> Purged {
        match self.run(Verb::Purge(wanted)) {
            Answer::Purge(purged) => purged.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Killed at this batch. True: the call was over before.
    pub(super) fn killed(&self, verb: Verb, batches: usize, applied: bool) -> bool {
        let then = Then::Killed { applied };
        let server = OneServer { batches, then, ..self.server() };
        self.run_on(server, verb).is_ok()
    }

    pub(super) fn enqueue(&self, name: &str, id: &JobId, key: Option<&str>) {
        let job = NewJob {
            queue: queue(name),
            id: Some(id.clone()),
            key: key.map(Into::into),
            job_type: "mail".into(),
            content_type: "text/plain".into(),
            headers: Vec::new(),
            body: Body::Text("body".into()),
            priority: 0,
            start: Start::Now,
            expiry: Expiry::Never,
            policy: None,
        };
        match self.run(Verb::Enqueue(vec![Incoming::new(job)])) {
            Answer::Enqueue(added) => assert!(added[0].is_ok(), "{added:?}"),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn claim(&self, name: &str, max_jobs: usize) -> Vec<crate::store::Delivered> {
        let claim = Claim {
            shares: vec![Share { queue: queue(name), first: max_jobs }],
            max_jobs,
            max_bytes: usize::MAX,
            lease_duration: None,
            worker_id: String::new(),
            request_id: String::new(),
            settle: Settlements::default(),
        };
        match self.run(Verb::Claim(claim)) {
            Answer::Claim(claimed) => claimed.unwrap().jobs,
            other => panic!("{other:?}"),
        }
    }

    /// Dead letters of `q`.
    pub(super) fn dead_letters(&self, ids: &[JobId]) {
        for id in ids {
            self.enqueue("q", id, None);
        }
        self.fail_all("q");
    }

    pub(super) fn fail_all(&self, name: &str) {
        let failure = Failure::new("E", "it did not work");
        let ending = Ending::Failed { failure, permanent: true, retry_after: None };
        let nack = |job: &crate::store::Delivered| Nack {
            lease: job.delivery.lease.clone(),
            ending: ending.clone(),
            checkpoint: String::new(),
        };
        let nacks = self.claim(name, 10_000).iter().map(nack).collect();
        self.run(Verb::Settle(Settlements { nacks, ..Settlements::default() }));
    }

    pub(super) fn advance(&self, time: Duration) {
        self.clock.0.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// What another server does in time.
    pub(super) fn sweep(&self) {
        let sweep =
            Sweep { spare_made_before: Timestamp::default(), spare_until: Timestamp::default() };
        self.run(Verb::Sweep(sweep, vec![queue("q"), queue("other")]));
    }

    pub(super) fn view(&self, view: View) -> Viewed {
        poll_once(crate::queue::view(&mut self.storage.clone(), view)).unwrap().unwrap()
    }

    /// Where the jobs of this id are.
    pub(super) fn places(&self, id: &JobId) -> Vec<(String, State)> {
        match self.view(View::Job(id.clone(), None)) {
            Viewed::Job(views) => {
                views.iter().map(|view| (view.queue.to_string(), view.state)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn listed(&self, name: &str) -> usize {
        let query = crate::store::DeadLetterQuery {
            part: part(name),
            after: 0,
            limit: 10_000,
            search: None,
            full: true,
            max_bytes: usize::MAX,
        };
        match self.view(View::DeadLetters(query)) {
            Viewed::DeadLetters(page) => page.map_or(0, |page| page.jobs.len()),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn totals(&self, name: &str) -> Totals {
        match self.view(View::Stats(Some(queue(name)))) {
            Viewed::Stats(stats) => {
                let stats = stats.unwrap_or_default();
                assert!(is_right(&stats), "{name}: {stats:?}");
                stats.totals
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn scan(&self, name: &str, table: Table) -> Vec<RecordKey> {
        let read = [Read::Scan(table, None, 100_000)];
        let found = poll_once(self.storage.clone().read(&queue(name), &read)).unwrap().unwrap();
        let records = found.into_iter().flatten().next().map(Found::scanned).unwrap_or_default();
        records.into_iter().map(|(key, _)| key).collect()
    }

    /// Nothing is left of jobs that are gone.
    pub(super) fn is_clean(&self, name: &str, jobs: usize) {
        assert_eq!(self.scan(name, Table::Job).len(), jobs, "{name}");
        let tables = [Table::Body, Table::Dead, Table::History, Table::Attempt, Table::Failure];
        for table in tables.into_iter().chain([Table::Id, Table::Key]) {
            assert!(self.scan(name, table).len() <= jobs, "{name} {table:?}");
        }
    }
}
