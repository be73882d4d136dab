//! A store in memory, calls on it, and what it holds.

use bytes::Bytes;
use redrive::domain::{
    Body, Failure, Jitter, JobId, Lease, NewJob, OnConflict, Outcome, PolicyOverride, QueueName, QueueSettings,
    Settings, Timestamp, When,
};
use redrive::env::ManualClock;
use redrive::queue::Refusal;
use redrive::queue::{self, Answer, CallContext, Event, Incoming, QueueMemory, StoreLimits, Verb, View, Viewed};
use redrive::queue::{Ack, Cancelled, Claim, Enqueued, JobPage, JobQuery, JobView, Nack, Settlements, Share};
use redrive::store::StoreError;
use redrive::store::memory::MemoryStorage;
use redrive::store::storage::{
    Applied, Batch, Entry, Found, Index, Len, Read, Reads, RecordKey, Storage, Table, Write,
};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Engines in this process answer at once.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    queue::poll_once(future).unwrap()
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::parse(name).unwrap()
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
        policy: Some(Box::new(PolicyOverride { jitter: Some(Jitter::None), ..PolicyOverride::default() })),
        on_conflict: OnConflict::default(),
        key_ttl: None,
        breaker_key: None,
    }
}

pub(crate) fn with_id(id: &str) -> NewJob {
    NewJob { id: Some(JobId::parse(id)), ..job("q") }
}

pub(crate) fn with_key(key: &str) -> NewJob {
    NewJob { key: Some(key.into()), ..job("q") }
}

pub(crate) fn with_body(job: NewJob, body: &str) -> NewJob {
    NewJob { body: Body::Text(body.to_owned().into()), ..job }
}

pub(crate) fn delayed(job: NewJob, by: Duration) -> NewJob {
    NewJob { start: Some(When::After(by)), ..job }
}

pub(crate) fn enqueue_of(jobs: Vec<NewJob>) -> Verb {
    Verb::Enqueue(jobs.into_iter().map(Incoming::new).collect())
}

pub(crate) struct Fixture {
    pub(crate) store: MemoryStorage,
    settings: Arc<Settings>,
    /// Of the last call.
    pub(crate) events: Vec<Event>,
    clock: Arc<ManualClock>,
    memory: QueueMemory,
    pub(crate) limits: StoreLimits,
    seed: u64,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_800_000_000)));
        Self {
            store: MemoryStorage::new(clock.clone()),
            settings: Arc::default(),
            events: Vec::new(),
            clock,
            memory: QueueMemory::default(),
            limits: StoreLimits { queues: 100, leases: 1_000, finished_keys: 1_000 },
            seed: 0,
        }
    }

    pub(crate) fn set(&mut self, change: impl FnOnce(&mut QueueSettings)) {
        change(Arc::make_mut(&mut Arc::make_mut(&mut self.settings).defaults));
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.store.now()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    pub(crate) fn try_run_at<S: Storage>(&mut self, mut store: S, verb: Verb) -> Result<Answer, StoreError> {
        self.seed += 1;
        let mut cx = CallContext::new(self.settings.clone(), self.seed, &self.memory, self.limits);
        let answer = at_once(queue::run(&mut store, &mut cx, verb));
        self.events = cx.events;
        answer
    }

    pub(crate) fn run_at<S: Storage>(&mut self, store: S, verb: Verb) -> Answer {
        self.try_run_at(store, verb).unwrap()
    }

    pub(crate) fn try_run(&mut self, verb: Verb) -> Result<Answer, StoreError> {
        self.try_run_at(self.store.clone(), verb)
    }

    /// Another server has changed what this one remembers.
    pub(crate) fn forget(&mut self) {
        self.memory = QueueMemory::default();
    }

    pub(crate) fn run(&mut self, verb: Verb) -> Answer {
        self.run_at(self.store.clone(), verb)
    }

    pub(crate) fn enqueue_all(&mut self, jobs: Vec<NewJob>) -> Vec<Result<Enqueued, Refusal>> {
        let Answer::Enqueue(answers) = self.run(enqueue_of(jobs)) else { panic!("an answer of another verb") };
        answers
    }

    pub(crate) fn try_enqueue(&mut self, job: NewJob) -> Result<Enqueued, Refusal> {
        self.enqueue_all(vec![job]).pop().unwrap()
    }

    pub(crate) fn enqueue(&mut self, job: NewJob) -> JobId {
        self.try_enqueue(job).unwrap().id
    }

    /// Leases the next job of `q`.
    pub(crate) fn claim(&mut self) -> Lease {
        let Answer::Claim(Some(claimed)) = self.run(Verb::Claim(Claim {
            shares: vec![Share { queue: queue("q"), first: usize::MAX }],
            max_jobs: 1,
            max_bytes: 1 << 20,
            lease_duration: None,
            worker_id: "w".into(),
            request_id: String::new(),
            settle: Settlements::default(),
        })) else {
            panic!("an answer of another verb")
        };
        claimed.jobs[0].delivery.lease.clone()
    }

    pub(crate) fn ack(&mut self, lease: Lease) {
        let acks = vec![Ack { lease, note: String::new(), result: Bytes::new(), breaker_key: String::new() }];
        self.run(Verb::Settle(Settlements { acks, ..Settlements::default() }));
    }

    pub(crate) fn fail(&mut self, lease: Lease, failure: Failure, permanent: bool) {
        let outcome = Outcome::Failed { failure, permanent, retry_after: None };
        let nacks = vec![Nack { lease, outcome, checkpoint: String::new() }];
        self.run(Verb::Settle(Settlements { nacks, ..Settlements::default() }));
    }

    pub(crate) fn cancel(&mut self, id: &str) -> Result<Cancelled, Refusal> {
        match self.run(Verb::Cancel(JobId::parse(id), None, String::new())) {
            Answer::Cancel(cancelled) => Ok(cancelled),
            Answer::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn run_now(&mut self, id: &str) -> Result<(), Refusal> {
        match self.run(Verb::RunNow(JobId::parse(id), None, String::new())) {
            Answer::Done => Ok(()),
            Answer::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn try_look(&mut self, view: View) -> Result<Viewed, StoreError> {
        at_once(queue::view(&mut self.store, view))
    }

    pub(crate) fn look(&mut self, view: View) -> Viewed {
        self.try_look(view).unwrap()
    }

    pub(crate) fn view(&mut self, id: &str) -> JobView {
        let Viewed::Job(mut views) = self.look(View::Job(JobId::parse(id), None)) else {
            panic!("an answer of another view")
        };
        assert_eq!(views.len(), 1, "{id}");
        views.remove(0)
    }

    pub(crate) fn page(&mut self, query: &JobQuery) -> Option<JobPage> {
        match self.look(View::Jobs(query.clone())) {
            Viewed::Jobs(page) => Some(page),
            Viewed::Refused(_) => None,
            other => panic!("{other:?}"),
        }
    }

    // ---- what is stored in `q` ----

    pub(crate) fn read(&mut self, read: Read) -> Found {
        at_once(self.store.read(&queue("q"), &[read])).unwrap().unwrap().remove(0)
    }

    pub(crate) fn len(&mut self, of: Len) -> u64 {
        self.read(Read::Len(of)).number()
    }

    pub(crate) fn entries(&mut self, index: Index) -> Vec<Entry> {
        self.read(Read::Range { index, after: None, up_to: None, limit: 10_000, reverse: false }).entries()
    }

    /// The numbers of the jobs that are ready, in their order.
    pub(crate) fn ready(&mut self) -> Vec<u64> {
        self.entries(Index::Ready).iter().filter_map(|entry| entry.member.job()).collect()
    }

    pub(crate) fn apply(&mut self, writes: Vec<Write>) {
        let batch = Batch { writes, ..Batch::default() };
        let applied = at_once(self.store.apply(&queue("q"), &batch)).unwrap();
        assert!(matches!(applied, Applied::Done(_)));
    }

    pub(crate) fn record(&mut self, table: Table, number: u64) -> Bytes {
        self.read(Read::Record(table, RecordKey::Number(number))).record().unwrap()
    }

    /// Changes a byte of a record.
    pub(crate) fn damage(&mut self, table: Table, number: u64, at: usize) {
        let mut record = self.record(table, number).to_vec();
        record[at] ^= 0x01;
        self.apply(vec![Write::Put(table, RecordKey::Number(number), record.into())]);
    }

    /// The tables and indexes that are not empty.
    pub(crate) fn kept(&mut self) -> Vec<String> {
        let mut kept = Vec::new();
        for table in Table::ALL {
            if !self.read(Read::Scan(table, None, 1)).scanned().is_empty() {
                kept.push(format!("{table:?}"));
            }
        }
        for index in Index::ALL {
            if !self.entries(index).is_empty() {
                kept.push(index.name().to_owned());
            }
        }
        kept
    }
}
