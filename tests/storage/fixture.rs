//! A store with one queue, and short words for what scenarios do with it.

use crate::engines::TestEngine;
use bytes::{BufMut, Bytes};
use redrive::domain::{QueueName, Timestamp};
use redrive::env::ManualClock;
use redrive::store::storage::{
    Applied, Batch, Done, Entry, Fence, Found, Index, LeaseTemplate, Len, Member, Position, Read, Reads, RecordKey,
    Rule, Storage, Table, Take, Taken, Version, Was, Write,
};
use std::{future::Future, sync::Arc, time::Duration};

/// Makes a test of each scenario on each engine.
macro_rules! on_every_engine {
    ($($scenario:ident),+ $(,)?) => {
        on_every_engine! { memory: $crate::engines::Memory; $($scenario),+ }
        on_every_engine! { sqlite: $crate::sqlite::Sqlite; $($scenario),+ }
        on_every_engine! { redis: $crate::on_redis::OnOne; $($scenario),+ }
        on_every_engine! { redis_cluster: $crate::on_redis::OnCluster; $($scenario),+ }
        on_every_engine! { valkey: $crate::on_redis::OnValkey; $($scenario),+ }
    };
    ($module:ident: $engine:ty; $($scenario:ident),+) => {
        mod $module {
            $(
                #[test]
                fn $scenario() {
                    $crate::fixture::run::<$engine, _>(super::$scenario);
                }
            )+
        }
    };
}

pub(crate) struct Fixture<E> {
    engine: Option<E>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) queue: QueueName,
}

pub(crate) fn run<E: TestEngine, F: Future<Output = ()>>(scenario: impl FnOnce(Fixture<E>) -> F) {
    runtime().block_on(async { scenario(Fixture::new().await).await });
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A whole second, so that the milliseconds of tests are easy to read.
pub(crate) fn manual_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Duration::from_secs(1_000_000_000)))
}

impl<E: TestEngine> Fixture<E> {
    pub(crate) async fn new() -> Self {
        let clock = manual_clock();
        let engine = Some(E::open(clock.clone()).await);
        let mut fixture = Self { engine, clock, queue: name("jobs") };
        fixture.register("jobs").await;
        fixture
    }

    pub(crate) fn storage(&mut self) -> &mut E::Storage {
        self.engine.as_mut().expect("the store is open").storage()
    }

    pub(crate) async fn reopen(&mut self) {
        let engine = self.engine.take().expect("the store is open");
        self.engine = Some(engine.reopen().await);
    }

    pub(crate) fn now(&mut self) -> Timestamp {
        self.storage().now()
    }

    /// Store time, so much later.
    pub(crate) fn at(&mut self, millis: u64) -> Timestamp {
        self.now().after(Duration::from_millis(millis))
    }

    pub(crate) fn pass(&mut self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    pub(crate) async fn register(&mut self, queue: &str) {
        assert!(self.storage().register(&name(queue), 1_000).await.unwrap());
    }

    // ---- read ----

    pub(crate) async fn read(&mut self, read: Read) -> Found {
        let queue = self.queue.clone();
        let found = self.storage().read(&queue, &[read]).await.unwrap();
        found.expect("the queue is there").remove(0)
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

    // ---- apply ----

    pub(crate) async fn apply(&mut self, fences: Vec<Fence>, writes: Vec<Write>) -> Applied {
        let queue = self.queue.clone();
        let batch = Batch { fences, writes, ..Batch::default() };
        self.storage().apply(&queue, &batch).await.unwrap()
    }

    #[track_caller]
    pub(crate) fn done(applied: Applied) -> Done {
        match applied {
            Applied::Done(done) => done,
            other => panic!("not applied: {other:?}"),
        }
    }

    pub(crate) async fn write(&mut self, writes: Vec<Write>) -> Done {
        Self::done(self.apply(vec![], writes).await)
    }

    /// What the fences find that fail; nothing, if all hold.
    pub(crate) async fn failing(&mut self, fences: Vec<Fence>) -> Vec<(usize, Was)> {
        match self.apply(fences, vec![]).await {
            Applied::Changed(failed) => failed,
            Applied::Done(_) => vec![],
            Applied::NoQueue => panic!("the queue is not there"),
        }
    }

    /// A ready job, with its record.
    pub(crate) async fn add_ready(&mut self, position: Position) {
        let job = job_record(10, 0);
        self.write(vec![
            Write::Put(Table::Job, RecordKey::Number(position.number), job),
            Write::Insert(Index::Ready, Entry::ready(position)),
        ])
        .await;
    }

    /// Ready jobs with these numbers, in this order.
    pub(crate) async fn add_jobs(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.add_ready(position(0, number, number)).await;
        }
    }

    // ---- take ----

    /// So many, without any other limit.
    pub(crate) fn plain_take(&mut self, jobs: usize) -> OwnedTake {
        OwnedTake {
            whole: Rule::whole(Version::default()),
            rule: Rule::default(),
            others: Vec::new(),
            jobs,
            bytes: 1 << 20,
            first_fits: false,
            promote: 100,
            lease: LeaseTemplate {
                started_at: self.now(),
                expires_at: self.at(30_000),
                duration_ms: 30_000,
                seed: 7,
                tail: b"tail",
            },
            max_leases: 1_000_000,
        }
    }

    pub(crate) async fn take(&mut self, take: &OwnedTake) -> Taken {
        let (queue, groups) = (self.queue.clone(), take.groups());
        self.storage().take(&queue, &take.with(&groups)).await.unwrap().expect("the queue is there")
    }

    pub(crate) async fn take_jobs(&mut self, jobs: usize) -> Taken {
        let take = self.plain_take(jobs);
        self.take(&take).await
    }
}

/// A take that can be changed and made again.
#[derive(Clone, Debug)]
pub(crate) struct OwnedTake {
    pub(crate) whole: Rule,
    /// Of jobs without a group.
    pub(crate) rule: Rule,
    pub(crate) others: Vec<Rule>,
    pub(crate) jobs: usize,
    pub(crate) bytes: usize,
    pub(crate) first_fits: bool,
    pub(crate) promote: usize,
    pub(crate) lease: LeaseTemplate<'static>,
    pub(crate) max_leases: usize,
}

impl OwnedTake {
    pub(crate) fn groups(&self) -> Vec<Rule> {
        [&self.rule].into_iter().chain(&self.others).cloned().collect()
    }

    pub(crate) fn with<'a>(&self, groups: &'a [Rule]) -> Take<'a> {
        let Self { whole, jobs, bytes, first_fits, promote, lease, max_leases, .. } = self.clone();
        Take { whole, groups, jobs, bytes, first_fits, promote, lease, max_leases }
    }
}

pub(crate) fn name(queue: &str) -> QueueName {
    QueueName::parse(queue).unwrap()
}

pub(crate) fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

pub(crate) fn text(text: &str) -> RecordKey {
    RecordKey::Text(text.into())
}

/// Without a history.
pub(crate) fn position(rank: u8, ready_at: u64, number: u64) -> Position {
    Position { group: 0, rank, ready_at: Timestamp::from_millis(ready_at), number, tag: 0 }
}

/// As much of a `Job` as engines know.
pub(crate) fn job_record(size: u32, traits: u8) -> Bytes {
    let mut record = Vec::new();
    record.put_u32(size);
    record.put_u8(traits);
    record.put_slice(b"job");
    record.into()
}

/// The same of a `History`.
pub(crate) fn history_record(size: u32, traits: u8, deliveries: u32, tries: u32) -> Bytes {
    let mut record = Vec::new();
    record.put_u32(size);
    record.put_u8(traits);
    record.put_u32(deliveries);
    record.put_u32(tries);
    record.put_slice(b"history");
    record.into()
}

pub(crate) fn numbers_of(taken: &Taken) -> Vec<u64> {
    taken.jobs.iter().map(|job| job.number).collect()
}

/// For comparing with: the type of an empty array is not inferred.
pub(crate) const NO_JOBS: [u64; 0] = [];
