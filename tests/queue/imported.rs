//! A store in memory that jobs are imported into, and jobs as another store shows them.

use bytes::Bytes;
use redrive::domain::{
    Attempt, AttemptStatus, Body, Breaker, BreakerState, DeadReason, Failure, JobEvent, JobEventKind, JobId, Measured,
    Next, Progress, QueueName, Settings, Spec, State, Timestamp,
};
use redrive::env::ManualClock;
use redrive::queue::Refusal;
use redrive::queue::{self, Answer, CallContext, DeathContext, Event, QueueMemory, StoreLimits, Verb, poll_once};
use redrive::queue::{Death, Import, Imported, JobView, QueueHolds, UnknownFields};
use redrive::store::Result;
use redrive::store::memory::MemoryStorage;
use redrive::store::storage::{
    Applied, Batch, Entry, Found, Index, LeaseTemplate, Len, Read, Reads, RecordKey, Rule, Storage, Table, Take, Taken,
    Version, WHOLE_QUEUE, Write,
};
use std::{ops::Range, sync::Arc, time::Duration};

/// When the tests begin, in seconds.
const START: u64 = 1_000_000_000;
/// Behind the position of a lease: the format, and which answer handed it out.
const LEASE_TAIL: [u8; 9] = [1, 0, 0, 0, 0, 0, 0, 0, 0];

pub(crate) struct Fixture {
    pub(crate) store: MemoryStorage,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) settings: Settings,
    pub(crate) max_queues: usize,
    pub(crate) memory: QueueMemory,
    /// Of the last call.
    pub(crate) events: Vec<Event>,
}

/// The engine in memory answers at once.
pub(crate) fn now<T>(future: impl Future<Output = Result<T>>) -> T {
    poll_once(future).unwrap().unwrap()
}

pub(crate) fn queue_name() -> QueueName {
    QueueName::parse("q").unwrap()
}

/// So many milliseconds after the tests begin.
pub(crate) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(START * 1_000 + millis)
}

pub(crate) fn number(number: u64) -> RecordKey {
    RecordKey::Number(number)
}

pub(crate) fn text(text: &str) -> RecordKey {
    RecordKey::Text(text.into())
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(START)));
        Self {
            store: MemoryStorage::new(clock.clone()),
            clock,
            settings: Settings::default(),
            max_queues: 10,
            memory: QueueMemory::default(),
            events: Vec::new(),
        }
    }

    pub(crate) fn run<S: Storage>(&mut self, store: &mut S, verb: Verb) -> Answer {
        let limits = StoreLimits { queues: self.max_queues, leases: 1_000, finished_keys: 1_000 };
        let mut cx = CallContext::new(Arc::new(self.settings.clone()), 7, &self.memory, limits);
        let answer = now(queue::run(store, &mut cx, verb));
        self.events = cx.events;
        answer
    }

    pub(crate) fn import_to<S: Storage>(
        &mut self, store: &mut S, holds: QueueHolds, jobs: Vec<JobView>,
    ) -> Result<Vec<Imported>, Refusal> {
        let import = Import { queue: queue_name(), holds, jobs };
        match self.run(store, Verb::Import(Box::new(import))) {
            Answer::Import(taken) => Ok(taken),
            Answer::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn import(&mut self, jobs: Vec<JobView>) -> Vec<Imported> {
        self.import_to(&mut self.store.clone(), QueueHolds::default(), jobs).unwrap()
    }

    pub(crate) fn read(&mut self, read: Read) -> Found {
        now(self.store.read(&queue_name(), &[read])).unwrap().remove(0)
    }

    pub(crate) fn record(&mut self, table: Table, key: RecordKey) -> Option<Bytes> {
        self.read(Read::Record(table, key)).record()
    }

    pub(crate) fn entries(&mut self, index: Index) -> Vec<Entry> {
        self.read(Read::Range { index, after: None, up_to: None, limit: 1_000, reverse: false }).entries()
    }

    /// The jobs of an index, in its order.
    pub(crate) fn jobs(&mut self, index: Index) -> Vec<u64> {
        self.entries(index).iter().filter_map(|entry| entry.member.job()).collect()
    }

    pub(crate) fn len(&mut self, of: Len) -> u64 {
        self.read(Read::Len(of)).number()
    }

    pub(crate) fn write(&mut self, writes: Vec<Write>) {
        let batch = Batch { writes, ..Batch::default() };
        let applied = now(self.store.apply(&queue_name(), &batch));
        assert!(matches!(applied, Applied::Done(_)), "{applied:?}");
    }

    /// The number of the job that has an own id.
    pub(crate) fn number_of(&mut self, id: &str) -> u64 {
        let record = self.record(Table::Id, text(id)).expect("there is such a job");
        record[..6].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Leases jobs as a claim does.
    pub(crate) fn take(&mut self, jobs: usize, rule: Rule) -> Taken {
        let whole = self.record(Table::Version, RecordKey::Group(WHOLE_QUEUE));
        let now_at = self.store.now();
        let take = Take {
            whole: Rule::whole(Version::read(whole.as_deref())),
            groups: &[rule],
            jobs,
            bytes: usize::MAX,
            first_fits: true,
            promote: 100,
            lease: LeaseTemplate {
                started_at: now_at,
                expires_at: now_at.after(Duration::from_secs(30)),
                duration_ms: 30_000,
                seed: 3,
                tail: &LEASE_TAIL,
            },
            max_leases: 1_000,
        };
        now(self.store.take(&queue_name(), &take)).expect("the queue is there")
    }
}

// ---- a store that something happens to ----

type OnRead = Box<dyn FnMut(&mut MemoryStorage, &QueueName, &[Read]) -> Option<Vec<Found>> + Send>;

/// A store whose reads are what `read` says, and where `writes` come before the first batch.
pub(crate) struct Hooked {
    pub(crate) store: MemoryStorage,
    pub(crate) read: OnRead,
    pub(crate) writes: Vec<Write>,
}

impl Hooked {
    pub(crate) fn new(store: &MemoryStorage) -> Self {
        let read: OnRead = Box::new(|store, queue, reads| now(store.read(queue, reads)));
        Self { store: store.clone(), read, writes: Vec::new() }
    }
}

impl Reads for Hooked {
    fn now(&self) -> Timestamp {
        self.store.now()
    }

    async fn read(&mut self, queue: &QueueName, reads: &[Read]) -> Result<Option<Vec<Found>>> {
        Ok((self.read)(&mut self.store, queue, reads))
    }

    async fn queues(&mut self, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        self.store.queues(after, limit).await
    }

    async fn holders(&mut self, table: Table, key: &RecordKey) -> Result<Vec<QueueName>> {
        self.store.holders(table, key).await
    }
}

impl Storage for Hooked {
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Result<Applied> {
        let writes = std::mem::take(&mut self.writes);
        self.store.apply(queue, &Batch { writes, ..Batch::default() }).await?;
        self.store.apply(queue, batch).await
    }

    async fn take(&mut self, queue: &QueueName, take: &Take<'_>) -> Result<Option<Taken>> {
        self.store.take(queue, take).await
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> Result<bool> {
        self.store.register(queue, max).await
    }

    async fn forget(&mut self, queue: &QueueName, unused_since: Timestamp) -> Result<bool> {
        self.store.forget(queue, unused_since).await
    }

    async fn numbers(&mut self, count: u64) -> Result<Range<u64>> {
        self.store.numbers(count).await
    }
}

// ---- jobs ----

/// Waits since the tests began.
pub(crate) fn ready(id: &str) -> JobView {
    let spec = Spec {
        id: JobId::parse(id),
        key: None,
        job_type: "mail".into(),
        content_type: "text/plain".into(),
        headers: vec![("trace".into(), "7".into())],
        body: Body::Text("body".into()),
        priority: 0,
        enqueued_at: at(0),
        run_at: at(0),
        expires_at: None,
        policy: None,
        key_ttl: None,
        breaker_key: None,
    };
    JobView {
        queue: queue_name(),
        spec,
        corrupt: false,
        state: State::Ready,
        ready_at: Some(at(0)),
        old_place: None,
        progress: Progress::default(),
        delivery: None,
        death: None,
        completed_at: None,
        result: Bytes::new(),
        attempts: Vec::new(),
        events: Vec::new(),
        last_failure: None,
        ahead: None,
        pause: None,
        breaker: Breaker::default(),
        forced: None,
        measured: Measured::default(),
        measured_of_key: Measured::default(),
        learnt_key: None,
        unknown: UnknownFields::default(),
    }
}

pub(crate) fn scheduled(id: &str, millis: u64) -> JobView {
    let mut job = ready(id);
    (job.state, job.ready_at, job.spec.run_at) = (State::Scheduled, Some(at(millis)), at(millis));
    job
}

/// Was tried so often, and waits for the next attempt.
pub(crate) fn failed(id: &str, times: u32, millis: u64) -> JobView {
    let mut job = ready(id);
    (job.state, job.ready_at) = (State::Scheduled, Some(at(millis)));
    let failure = |n: u32| Failure::new(&format!("E{n}"), "long ".repeat(200));
    // The first 10 and the last 40 are kept.
    let kept = (1..=times.min(10)).chain(times.saturating_sub(39).max(11)..=times);
    job.attempts = kept.map(|n| attempt(n, Some(failure(n)), at(millis))).collect();
    job.last_failure = Some(failure(times));
    job.progress = Progress {
        deliveries: times,
        tries: times,
        recorded: times,
        retries: times,
        first_failed_at: Some(at(1)),
        last_failed_at: Some(at(u64::from(times))),
        ..Progress::default()
    };
    job
}

pub(crate) fn dead(id: &str, died: u64, overflow: bool) -> JobView {
    let mut job = failed(id, 1, 0);
    (job.state, job.ready_at) = (State::Dead, None);
    job.attempts[0].next = Next::DeadLetter(DeadReason::Exhausted);
    let context = DeathContext { ready: 3, ..DeathContext::default() };
    let (reason, died_at) = (DeadReason::Exhausted, at(died));
    job.death = Some(Death { number: 90 + died, reason, died_at, overflow, context });
    job
}

pub(crate) fn completed(id: &str, done: u64, result: &'static str) -> JobView {
    let mut job = ready(id);
    (job.state, job.ready_at) = (State::Completed, None);
    job.completed_at = Some(at(done));
    job.result = Bytes::from_static(result.as_bytes());
    job.attempts = vec![Attempt { status: AttemptStatus::Succeeded, ..attempt(1, None, at(0)) }];
    job.progress = Progress { deliveries: 1, tries: 1, recorded: 1, ..Progress::default() };
    job
}

pub(crate) fn with_events(mut job: JobView, count: u32) -> JobView {
    let event = |n: u32| JobEvent::new(at(n.into()), JobEventKind::RunNow, &n.to_string(), "detail".into());
    job.progress.events = count;
    job.events = (1..=count.min(10)).chain(count.saturating_sub(39).max(11)..=count).map(event).collect();
    job
}

pub(crate) fn with_key(mut job: JobView, key: &str) -> JobView {
    job.spec.key = Some(key.into());
    job
}

fn attempt(n: u32, failure: Option<Failure>, next: Timestamp) -> Attempt {
    Attempt {
        redrives: 0,
        number: n,
        delivery: n,
        nonce: 40 + u64::from(n),
        status: AttemptStatus::Failed,
        worker_id: "w".into(),
        started_at: at(0),
        ended_at: at(u64::from(n)),
        note: String::new(),
        failure,
        next: Next::Later { at: next },
        delay: None,
        retries_left: 3,
        counted: true,
        probe: false,
        nacked: true,
        breaker: BreakerState::Closed,
        rule: String::new(),
        explanation: String::new(),
    }
}
