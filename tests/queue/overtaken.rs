//! A queue with dead letters, and servers that are killed at a batch, or overtaken by others before it.

use redrive::domain::{
    Body, DeadPart, Failure, JobId, NewJob, OnConflict, Outcome, QueueName, Settings, State, Timestamp,
};
use redrive::env::ManualClock;
use redrive::queue::{
    self, Answer, CallContext, Event, Incoming, QueueMemory, StoreLimits, Verb, View, Viewed, poll_once,
};
use redrive::queue::{
    Claim, DeadLetterQuery, Delivered, Nack, Purge, Purged, RequestId, Requeue, Requeued, Settlements, Share, Stats,
    Sweep, Totals, Which,
};
use redrive::store::memory::MemoryStorage;
use redrive::store::storage::{
    Applied, Batch, Found, Index, Member, Read, Reads, RecordKey, Storage, Table, Take, Taken,
};
use redrive::store::{Result, StoreError};
use std::{ops::Range, sync::Arc, time::Duration};

pub(crate) type Hook = Box<dyn FnOnce() + Send>;

/// A storage as one server has it: it may be killed at a batch, or others come before it.
pub(crate) struct OneServer {
    pub(crate) inner: MemoryStorage,
    /// Batches until something happens.
    pub(crate) batches: usize,
    pub(crate) then: Then,
}

pub(crate) enum Then {
    Nothing,
    /// It is killed, and the batch is applied or not.
    Killed {
        applied: bool,
    },
    Others(Hook),
    /// Others come before so many batches, each time; then, after so many more, this.
    Overtaken {
        lost: usize,
        by: Box<dyn FnMut() + Send>,
        batches: usize,
        then: Box<Then>,
    },
    /// The store is out of reach from then on: nothing is sent to it.
    Unreachable,
}

fn out_of_reach() -> StoreError {
    StoreError::Unavailable("it was not sent".into())
}

impl Reads for OneServer {
    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    async fn read(&mut self, queue: &QueueName, reads: &[Read]) -> Result<Option<Vec<Found>>> {
        self.inner.read(queue, reads).await
    }

    async fn queues(&mut self, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        self.inner.queues(after, limit).await
    }

    async fn holders(&mut self, table: Table, key: &RecordKey) -> Result<Vec<QueueName>> {
        self.inner.holders(table, key).await
    }
}

impl Storage for OneServer {
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Result<Applied> {
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
            Then::Overtaken { lost, mut by, batches, then } => {
                by();
                if lost > 1 {
                    self.then = Then::Overtaken { lost: lost - 1, by, batches, then };
                } else {
                    (self.batches, self.then) = (batches, *then);
                }
                self.inner.apply(queue, batch).await
            }
            Then::Unreachable => {
                self.then = Then::Unreachable;
                Err(out_of_reach())
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

    async fn take(&mut self, queue: &QueueName, take: &Take<'_>) -> Result<Option<Taken>> {
        if matches!((self.batches, &self.then), (0, Then::Unreachable)) {
            return Err(out_of_reach());
        }
        self.inner.take(queue, take).await
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> Result<bool> {
        self.inner.register(queue, max).await
    }

    async fn forget(&mut self, queue: &QueueName, unused_since: Timestamp) -> Result<bool> {
        self.inner.forget(queue, unused_since).await
    }

    async fn numbers(&mut self, count: u64) -> Result<Range<u64>> {
        self.inner.numbers(count).await
    }
}

#[derive(Clone)]
pub(crate) struct Fixture {
    clock: Arc<ManualClock>,
    storage: MemoryStorage,
    settings: Arc<Settings>,
}

pub(crate) fn named(name: &str) -> QueueName {
    QueueName::parse(name).unwrap()
}

pub(crate) fn ids(range: Range<usize>) -> Vec<JobId> {
    range.map(|n| JobId::parse(&format!("job-{n:04}"))).collect()
}

pub(crate) fn oldest(limit: usize) -> Which {
    Which::Oldest { limit, among: None }
}

pub(crate) fn part(name: &str) -> DeadPart {
    DeadPart { queue: named(name), overflow_only: false }
}

pub(crate) fn request() -> Option<RequestId> {
    Some(RequestId { id: "r".into(), asked: [1; 32] })
}

pub(crate) fn requeue_to(to: Option<&str>, which: Which, request: Option<RequestId>) -> Requeue {
    let target = to.map(named);
    let (keep_attempts, reason, dry_run) = (false, String::new(), false);
    Requeue { part: part("q"), which, target, keep_attempts, reason, dry_run, request }
}

pub(crate) fn is_right(stats: &Stats) -> bool {
    let Stats { totals: t, held } = stats;
    let out = t.completed + t.purged + t.cancelled + t.retention_expired + t.moved_out;
    t.enqueued + t.moved_in == out + held
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_800_000_000)));
        let storage = MemoryStorage::new(clock.clone());
        Self { clock, storage, settings: Arc::default() }
    }

    pub(crate) fn server(&self) -> OneServer {
        OneServer { inner: self.storage.clone(), batches: 0, then: Then::Nothing }
    }

    pub(crate) fn run_on(&self, server: OneServer, verb: Verb) -> Result<Answer> {
        self.run_and_tell(server, verb).0
    }

    /// With what the call tells.
    pub(crate) fn run_and_tell(&self, mut server: OneServer, verb: Verb) -> (Result<Answer>, Vec<Event>) {
        let memory = QueueMemory::default();
        let limits = StoreLimits { queues: 1_000, leases: 100_000, finished_keys: 1_000 };
        let mut cx = CallContext::new(self.settings.clone(), 7, &memory, limits);
        let answer = poll_once(queue::run(&mut server, &mut cx, verb)).and_then(|it| it);
        (answer, cx.events)
    }

    pub(crate) fn run(&self, verb: Verb) -> Answer {
        self.run_on(self.server(), verb).unwrap()
    }

    pub(crate) fn requeue(&self, wanted: Requeue) -> Requeued {
        match self.run(Verb::Requeue(wanted)) {
            Answer::Requeue(requeued) => requeued,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn purge(&self, wanted: Purge) -> Purged {
        match self.run(Verb::Purge(wanted)) {
            Answer::Purge(purged) => purged,
            other => panic!("{other:?}"),
        }
    }

    /// Killed at this batch. True: the call was over before.
    pub(crate) fn killed(&self, verb: Verb, batches: usize, applied: bool) -> bool {
        let then = Then::Killed { applied };
        let server = OneServer { batches, then, ..self.server() };
        self.run_on(server, verb).is_ok()
    }

    pub(crate) fn enqueue(&self, name: &str, id: &JobId, key: Option<&str>) {
        self.enqueue_body(name, id, key, "body");
    }

    fn enqueue_body(&self, name: &str, id: &JobId, key: Option<&str>, body: &str) {
        let job = NewJob {
            queue: named(name),
            id: Some(id.clone()),
            key: key.map(Into::into),
            job_type: "mail".into(),
            content_type: "text/plain".into(),
            headers: Vec::new(),
            body: Body::Text(body.to_owned().into()),
            priority: 0,
            start: None,
            expiry: None,
            policy: None,
            on_conflict: OnConflict::default(),
            key_ttl: None,
            breaker_key: None,
        };
        match self.run(Verb::Enqueue(vec![Incoming::new(job)])) {
            Answer::Enqueue(added) => assert!(added[0].is_ok(), "{added:?}"),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn claim(&self, name: &str, max_jobs: usize) -> Vec<Delivered> {
        let claim = Claim {
            shares: vec![Share { queue: named(name), first: max_jobs }],
            max_jobs,
            max_bytes: usize::MAX,
            lease_duration: None,
            worker_id: String::new(),
            request_id: String::new(),
            settle: Settlements::default(),
        };
        match self.run(Verb::Claim(claim)) {
            Answer::Claim(claimed) => claimed.unwrap().jobs.delivered(),
            other => panic!("{other:?}"),
        }
    }

    /// Dead letters of `q`.
    pub(crate) fn dead_letters(&self, ids: &[JobId]) {
        for id in ids {
            self.enqueue("q", id, None);
        }
        self.fail_all("q");
    }

    /// Of `q`, with bodies of these lengths.
    pub(crate) fn large_dead_letters(&self, lengths: &[usize]) {
        for (id, length) in ids(0..lengths.len()).iter().zip(lengths) {
            self.enqueue_body("q", id, None, &"x".repeat(*length));
        }
        self.fail_all("q");
    }

    pub(crate) fn fail_all(&self, name: &str) {
        let failure = Failure::new("E", "it did not work");
        let outcome = Outcome::Failed { failure, permanent: true, retry_after: None };
        let nack = |job: &Delivered| Nack {
            lease: job.delivery.lease.clone(),
            outcome: outcome.clone(),
            checkpoint: String::new(),
        };
        let nacks = self.claim(name, 10_000).iter().map(nack).collect();
        self.run(Verb::Settle(Settlements { nacks, ..Settlements::default() }));
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// What another server does in time.
    pub(crate) fn sweep(&self) {
        let asked_at = Timestamp::from_millis(u64::MAX);
        let sweep = Sweep { asked_at, spare_made_before: Timestamp::default(), spare_until: Timestamp::default() };
        self.run(Verb::Sweep(sweep, vec![named("q"), named("other")]));
    }

    pub(crate) fn view(&self, view: View) -> Viewed {
        poll_once(queue::view(&mut self.storage.clone(), view)).unwrap().unwrap()
    }

    /// Where the jobs of this id are.
    pub(crate) fn places(&self, id: &JobId) -> Vec<(String, State)> {
        match self.view(View::Job(id.clone(), None)) {
            Viewed::Job(views) => views.iter().map(|view| (view.queue.to_string(), view.state)).collect(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn listed(&self, name: &str) -> usize {
        let query = DeadLetterQuery {
            part: part(name),
            after: 0,
            limit: 10_000,
            search: None,
            full: true,
            max_bytes: usize::MAX,
        };
        match self.view(View::DeadLetters(query)) {
            Viewed::DeadLetters(page) => page.jobs.len(),
            Viewed::Refused(_) => 0,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn totals(&self, name: &str) -> Totals {
        match self.view(View::Stats(Some(named(name)))) {
            Viewed::Refused(_) => Default::default(),
            Viewed::Stats(stats) => {
                assert!(is_right(&stats), "{name}: {stats:?}");
                stats.totals
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn scan(&self, name: &str, table: Table) -> Vec<RecordKey> {
        let read = [Read::Scan(table, None, 100_000)];
        let found = poll_once(self.storage.clone().read(&named(name), &read)).unwrap().unwrap();
        let records = found.into_iter().flatten().next().map(Found::scanned).unwrap_or_default();
        records.into_iter().map(|(key, _)| key).collect()
    }

    /// Nothing is left of jobs that are gone.
    pub(crate) fn is_clean(&self, name: &str, jobs: usize) {
        assert_eq!(self.scan(name, Table::Job).len(), jobs, "{name}");
        let tables = [Table::Body, Table::Dead, Table::History, Table::Attempt, Table::Failure];
        for table in tables.into_iter().chain([Table::Key]) {
            assert!(self.scan(name, table).len() <= jobs, "{name} {table:?}");
        }
        let range = Read::Range { index: Index::Expires, after: None, up_to: None, limit: 100_000, reverse: false };
        let found = poll_once(self.storage.clone().read(&named(name), &[range])).unwrap().unwrap();
        let ends = found.into_iter().flatten().flat_map(Found::entries);
        let held = ends.filter(|end| matches!(end.member, Member::Record(Table::Id, _))).count();
        assert!(self.scan(name, Table::Id).len() - held <= jobs, "{name} {held}");
    }
}
