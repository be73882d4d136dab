//! A store in memory, and jobs as another store shows them.

use super::import;
use crate::{
    domain::{
        breaker::{Breaker, BreakerState},
        failure::Failure,
        ids::{JobId, QueueName},
        job::{Attempt, AttemptStatus, Body, DeadReason, Next, Progress, Spec, State},
        settings::Settings,
        time::Timestamp,
    },
    env::ManualClock,
    queue::context::{CallContext, Event, QueueMemory, StoreLimits},
    store::{
        Death, JobView, Newcomers, Refused, Standing, TakenIn,
        memory::MemoryStorage,
        storage::{
            Applied, Batch, Entry, Found, Index, LeaseTemplate, Len, Member, Read, Reads,
            RecordKey, Rule, Storage, Table, Take, Taken, Version, Write,
        },
    },
};
use bytes::Bytes;
use std::{future::Future, sync::Arc, time::Duration};

/// When the tests begin, in seconds.
const START: u64 = 1_000_000_000;

pub(crate) struct Fixture {
    pub(crate) store: MemoryStorage,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) queue: QueueName,
    pub(crate) settings: Settings,
    pub(crate) memory: QueueMemory,
    pub(crate) events: Vec<Event>,
}

pub(crate) fn run<F: Future<Output = ()>>(test: impl FnOnce(Fixture) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(test(Fixture::new()));
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
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(START)));
        Self {
            store: MemoryStorage::new(clock.clone()),
            clock,
            queue: QueueName::parse("q").unwrap(),
            settings: Settings::default(),
            memory: QueueMemory::default(),
            events: Vec::new(),
        }
    }

    pub(crate) async fn try_import(
        &mut self,
        standing: Standing,
        jobs: Vec<JobView>,
        queues: usize,
    ) -> Result<Vec<TakenIn>, Refused> {
        let mut store = self.store.clone();
        self.import_to(&mut store, standing, jobs, queues).await
    }

    pub(crate) async fn import_to<S: Storage>(
        &mut self,
        store: &mut S,
        standing: Standing,
        jobs: Vec<JobView>,
        queues: usize,
    ) -> Result<Vec<TakenIn>, Refused> {
        let limits = StoreLimits { queues, leases: 1_000 };
        let settings = Arc::new(self.settings.clone());
        let mut cx = CallContext::new(settings, 7, &self.memory, limits);
        let newcomers = Newcomers { queue: self.queue.clone(), standing, jobs };
        let taken = import(store, &mut cx, newcomers).await.unwrap();
        self.events = cx.events;
        taken
    }

    pub(crate) async fn import(&mut self, jobs: Vec<JobView>) -> Vec<TakenIn> {
        self.try_import(Standing::default(), jobs, 10).await.unwrap()
    }

    pub(crate) async fn read(&mut self, read: Read) -> Found {
        self.store.read(&self.queue, &[read]).await.unwrap().unwrap().remove(0)
    }

    pub(crate) async fn record(&mut self, table: Table, key: RecordKey) -> Option<Bytes> {
        self.read(Read::Record(table, key)).await.record()
    }

    pub(crate) async fn score(&mut self, index: Index, member: Member) -> Option<u64> {
        self.read(Read::Score(index, member)).await.score()
    }

    pub(crate) async fn entries(&mut self, index: Index) -> Vec<Entry> {
        let range = Read::Range { index, after: None, up_to: None, limit: 1_000, reverse: false };
        self.read(range).await.entries()
    }

    /// The jobs of an index, in its order.
    pub(crate) async fn jobs(&mut self, index: Index) -> Vec<u64> {
        self.entries(index).await.iter().filter_map(|entry| entry.member.job()).collect()
    }

    pub(crate) async fn len(&mut self, of: Len) -> u64 {
        self.read(Read::Len(of)).await.number()
    }

    pub(crate) async fn write(&mut self, writes: Vec<Write>) {
        let batch = Batch { writes, ..Batch::default() };
        let applied = self.store.apply(&self.queue, &batch).await.unwrap();
        assert!(matches!(applied, Applied::Done(_)), "{applied:?}");
    }

    /// The number of the job that has an own id.
    pub(crate) async fn number_of(&mut self, id: &str) -> u64 {
        let record = self.record(Table::Id, text(id)).await.expect("there is such a job");
        crate::queue::records::read_id(&record).unwrap().number
    }

    pub(crate) async fn take(&mut self, jobs: usize, rule: Rule) -> Taken {
        let whole = self.record(Table::Version, RecordKey::Group(u16::MAX)).await;
        let whole = Version::read(whole.as_deref());
        take(&mut self.store, &self.queue, jobs, rule, whole).await
    }
}

/// Leases jobs as a claim does.
pub(crate) async fn take<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    jobs: usize,
    rule: Rule,
    whole: Version,
) -> Taken {
    let tail = crate::queue::records::lease_tail(&Default::default());
    let now = store.now();
    let take = Take {
        whole,
        rule,
        jobs,
        bytes: usize::MAX,
        first_fits: true,
        promote: 100,
        lease: LeaseTemplate {
            started_at: now,
            expires_at: now.after(Duration::from_secs(30)),
            duration_ms: 30_000,
            seed: 3,
            tail: &tail,
        },
        max_leases: 1_000,
    };
    store.take(queue, &take).await.unwrap().expect("the queue is there")
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
    };
    JobView {
        queue: QueueName::parse("q").unwrap(),
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
        last_failure: None,
        ahead: None,
        pause: None,
        breaker: Breaker::default(),
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
    let kept = crate::queue::state_changes::kept_attempts(times);
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
    job.attempts[0].next = Next::Bury(DeadReason::Exhausted);
    let context = vec![("ready".to_owned(), "4".to_owned())];
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

pub(crate) fn with_key(mut job: JobView, key: &str) -> JobView {
    job.spec.key = Some(key.into());
    job
}

fn attempt(n: u32, failure: Option<Failure>, next: Timestamp) -> Attempt {
    Attempt {
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
