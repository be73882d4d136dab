//! For tests: a store in memory, and calls on it.

use super::{
    cancel,
    context::{CallContext, Event, QueueMemory, StoreLimits},
    enqueue::{self, Incoming},
    get_job, list_jobs,
    records::{self, LeaseTail},
};
use crate::{
    domain::{
        ids::{JobId, QueueName},
        job::{Body, Expiry, NewJob, Start},
        lease::Lease,
        settings::Settings,
        time::Timestamp,
    },
    env::ManualClock,
    store::{
        Cancelled, Enqueued, JobPage, JobQuery, JobRefused, JobView, Refused,
        memory::MemoryStorage,
        storage::{
            Applied, Batch, Entry, Found, Index, LeaseTemplate, Len, Read, Reads, RecordKey, Rule,
            Storage, Table, Take, Version, Write,
        },
    },
};
use bytes::Bytes;
use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Engines in this process answer at once.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits"),
    }
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
        start: Start::Now,
        expiry: Expiry::Never,
        policy: None,
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
    NewJob { start: Start::After(by), ..job }
}

pub(crate) struct Fixture {
    pub(crate) store: MemoryStorage,
    pub(crate) settings: Arc<Settings>,
    pub(crate) max_queues: usize,
    /// Of the last call.
    pub(crate) events: Vec<Event>,
    clock: Arc<ManualClock>,
    memory: QueueMemory,
    seed: u64,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_800_000_000)));
        Self {
            store: MemoryStorage::new(clock.clone()),
            settings: Arc::default(),
            max_queues: 100,
            events: Vec::new(),
            clock,
            memory: QueueMemory::default(),
            seed: 0,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.store.now()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    fn call<S: Clone, T>(
        &mut self,
        store: &S,
        run: impl AsyncFnOnce(&mut S, &mut CallContext<'_>) -> T,
    ) -> T {
        self.seed += 1;
        let limits = StoreLimits { queues: self.max_queues, leases: 1_000 };
        let mut cx = CallContext::new(self.settings.clone(), self.seed, &self.memory, limits);
        let answer = at_once(run(&mut store.clone(), &mut cx));
        self.events = cx.events;
        answer
    }

    pub(crate) fn enqueue_at<S: Storage + Clone>(
        &mut self,
        store: &S,
        jobs: Vec<NewJob>,
    ) -> Vec<Result<Enqueued, Refused>> {
        let jobs = jobs.into_iter().map(Incoming::new).collect();
        self.call(store, async |store, cx| enqueue::enqueue(store, cx, jobs).await.unwrap())
    }

    pub(crate) fn enqueue_all(&mut self, jobs: Vec<NewJob>) -> Vec<Result<Enqueued, Refused>> {
        self.enqueue_at(&self.store.clone(), jobs)
    }

    pub(crate) fn try_enqueue(&mut self, job: NewJob) -> Result<Enqueued, Refused> {
        self.enqueue_all(vec![job]).pop().unwrap()
    }

    pub(crate) fn enqueue(&mut self, job: NewJob) -> JobId {
        self.try_enqueue(job).unwrap().id
    }

    pub(crate) fn cancel(&mut self, id: &str) -> Result<Cancelled, JobRefused> {
        let id = JobId::parse(id);
        self.call(&self.store.clone(), async |store, cx| {
            cancel::cancel(store, cx, &id, None).await.unwrap()
        })
    }

    pub(crate) fn run_now(&mut self, id: &str) -> Result<(), JobRefused> {
        let id = JobId::parse(id);
        self.call(&self.store.clone(), async |store, cx| {
            cancel::run_now(store, cx, &id, None).await.unwrap()
        })
    }

    pub(crate) fn views(&mut self, id: &JobId) -> Vec<JobView> {
        at_once(get_job::job(&mut self.store, id, None)).unwrap()
    }

    pub(crate) fn view(&mut self, id: &JobId) -> JobView {
        let mut views = self.views(id);
        assert_eq!(views.len(), 1, "{id}");
        views.remove(0)
    }

    pub(crate) fn page(&mut self, query: &JobQuery) -> JobPage {
        at_once(list_jobs::jobs(&mut self.store, query)).unwrap().unwrap()
    }

    // ---- what is stored ----

    pub(crate) fn read(&mut self, read: Read) -> Found {
        at_once(self.store.read(&queue("q"), &[read])).unwrap().unwrap().remove(0)
    }

    pub(crate) fn len(&mut self, of: Len) -> u64 {
        self.read(Read::Len(of)).number()
    }

    pub(crate) fn entries(&mut self, index: Index) -> Vec<Entry> {
        self.read(super::facts::range(index, None, 10_000)).entries()
    }

    pub(crate) fn apply(&mut self, writes: Vec<Write>) {
        let batch = Batch { writes, ..Batch::default() };
        let applied = at_once(self.store.apply(&queue("q"), &batch)).unwrap();
        assert!(matches!(applied, Applied::Done(_)));
    }

    pub(crate) fn record(&mut self, table: Table, number: u64) -> Option<Bytes> {
        self.read(Read::Record(table, RecordKey::Number(number))).record()
    }

    /// Changes a byte of a record.
    pub(crate) fn damage(&mut self, table: Table, number: u64, at: usize) {
        let mut record = self.record(table, number).unwrap().to_vec();
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

    /// Leases the next job. The token as its worker has it.
    pub(crate) fn take(&mut self) -> Lease {
        let tail = LeaseTail { worker_id: "w".into(), ..LeaseTail::default() };
        let tail = records::lease_tail(&tail);
        let now = self.now();
        let duration = 30_000;
        let take = Take {
            whole: Version::default(),
            rule: Rule::default(),
            jobs: 1,
            bytes: 1 << 20,
            first_fits: true,
            promote: 100,
            lease: LeaseTemplate {
                started_at: now,
                expires_at: now.after(Duration::from_millis(duration)),
                duration_ms: duration as u32,
                seed: 7,
                tail: &tail,
            },
            max_leases: 1_000,
        };
        let taken = at_once(self.store.take(&queue("q"), &take)).unwrap().unwrap();
        let taken = &taken.jobs[0];
        let lease = Lease::of(queue("q"), taken.number, &taken.lease, None);
        let spec = records::read_job_head(taken.job.as_ref().unwrap()).unwrap();
        super::find::with_own_id(lease, &spec.id)
    }
}
