//! SQLite as the suite runs on it: every call is a transaction of the writer, and every read is compared with a reader's.

use crate::engines::TestEngine;
use redrive::domain::{QueueName, Timestamp};
use redrive::env::ManualClock;
use redrive::queue::poll_once;
use redrive::store::StoreError;
use redrive::store::sqlite::{Durability, Options, SqliteEngine, SqliteStorage, Work};
use redrive::store::storage::{
    Applied, Batch, Found, LeaseTemplate, Read, Reads, RecordKey, Storage, Table, Take, Taken,
};
use std::{any::Any, ops::Range, path::Path, sync::Arc};
use tempfile::TempDir;
use tokio::sync::oneshot;

type Answer = Box<dyn Any + Send>;
type Run = Box<dyn FnOnce(&mut SqliteStorage<'_>) -> Result<Answer, StoreError> + Send>;

pub(crate) struct Call {
    adds_jobs: bool,
    has_reserve: bool,
    run: Run,
}

/// Runs what it is handed.
pub(crate) struct Calls;

impl Work for Calls {
    type Call = Call;
    type Answer = Answer;
    type Reply = oneshot::Sender<Result<Answer, StoreError>>;

    fn answer(reply: Self::Reply, answer: Result<Answer, StoreError>) {
        drop(reply.send(answer));
    }

    fn bytes(_: &Call) -> usize {
        0
    }

    fn adds_jobs(call: &Call) -> bool {
        call.adds_jobs
    }

    fn has_reserve(call: &Call) -> bool {
        call.has_reserve
    }

    fn run(&mut self, storage: &mut SqliteStorage<'_>, calls: Vec<Call>) -> Result<Vec<Answer>, StoreError> {
        calls.into_iter().map(|call| (call.run)(storage)).collect()
    }
}

pub(crate) struct SqliteCalls(pub(crate) SqliteEngine<Calls>);

impl SqliteCalls {
    pub(crate) fn open(directory: &Path, clock: Arc<ManualClock>) -> Self {
        let mut options = Options::new(directory);
        options.durability = Durability::None;
        Self(SqliteEngine::open(options, clock, Calls).unwrap())
    }

    pub(crate) async fn call<T: Send + 'static>(
        &self, run: impl FnOnce(&mut SqliteStorage<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run(false, run).await
    }

    pub(crate) async fn run<T: Send + 'static>(
        &self, adds_jobs: bool, run: impl FnOnce(&mut SqliteStorage<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let run: Run = Box::new(|storage| Ok(Box::new(run(storage)?)));
        let (reply, answer) = oneshot::channel();
        self.0.submit(Call { adds_jobs, has_reserve: false, run }, reply)?;
        let answer = answer.await.expect("the writer answers")?;
        Ok(*answer.downcast().expect("the answer of this call"))
    }
}

pub(crate) fn done<T>(future: impl Future<Output = T>) -> T {
    poll_once(future).expect("it waits for nothing")
}

impl Reads for SqliteCalls {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn read(&mut self, queue: &QueueName, reads: &[Read]) -> Result<Option<Vec<Found>>, StoreError> {
        let asked = (queue.clone(), reads.to_vec());
        let found = self.call(move |storage| done(storage.read(&asked.0, &asked.1))).await?;
        let asked = (queue.clone(), reads.to_vec());
        let beside = self.0.read(move |reader| done(reader.read(&asked.0, &asked.1))).await?;
        assert_eq!(found, beside, "a reader finds what the writer finds: {reads:?}");
        Ok(found)
    }

    async fn queues(&mut self, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>, StoreError> {
        let asked = after.cloned();
        let found = self.call(move |storage| done(storage.queues(asked.as_ref(), limit))).await?;
        let asked = after.cloned();
        let beside = self.0.read(move |reader| done(reader.queues(asked.as_ref(), limit))).await?;
        assert_eq!(found, beside);
        Ok(found)
    }

    async fn holders(&mut self, table: Table, key: &RecordKey) -> Result<Vec<QueueName>, StoreError> {
        let asked = key.clone();
        let found = self.call(move |storage| done(storage.holders(table, &asked))).await?;
        let asked = key.clone();
        let beside = self.0.read(move |reader| done(reader.holders(table, &asked))).await?;
        assert_eq!(found, beside);
        Ok(found)
    }
}

impl Storage for SqliteCalls {
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Result<Applied, StoreError> {
        let (queue, batch) = (queue.clone(), batch.clone());
        self.call(move |storage| done(storage.apply(&queue, &batch))).await
    }

    async fn take(&mut self, queue: &QueueName, take: &Take<'_>) -> Result<Option<Taken>, StoreError> {
        let (queue, tail) = (queue.clone(), take.lease.tail.to_vec());
        let Take { whole, groups, jobs, bytes, first_fits, promote, lease, max_leases } = take.clone();
        let groups = groups.to_vec();
        let LeaseTemplate { started_at, expires_at, duration_ms, seed, .. } = lease;
        self.call(move |storage| {
            let tail = &tail[..];
            let lease = LeaseTemplate { started_at, expires_at, duration_ms, seed, tail };
            let groups = &groups[..];
            let take = Take { whole, groups, jobs, bytes, first_fits, promote, lease, max_leases };
            done(storage.take(&queue, &take))
        })
        .await
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> Result<bool, StoreError> {
        let queue = queue.clone();
        self.call(move |storage| done(storage.register(&queue, max))).await
    }

    async fn forget(&mut self, queue: &QueueName, unused_since: Timestamp) -> Result<bool, StoreError> {
        let queue = queue.clone();
        self.call(move |storage| done(storage.forget(&queue, unused_since))).await
    }

    async fn numbers(&mut self, count: u64) -> Result<Range<u64>, StoreError> {
        self.call(move |storage| done(storage.numbers(count))).await
    }
}

pub(crate) struct Sqlite {
    storage: SqliteCalls,
    clock: Arc<ManualClock>,
    directory: TempDir,
}

impl TestEngine for Sqlite {
    type Storage = SqliteCalls;

    const KEEPS_OUTCOMES: bool = false;
    const BOUNDS_LEASES: bool = true;
    const CASES: u32 = 64;

    async fn open(clock: Arc<ManualClock>) -> Self {
        let directory = TempDir::new().unwrap();
        Self { storage: SqliteCalls::open(directory.path(), clock.clone()), clock, directory }
    }

    async fn reopen(self) -> Self {
        let Self { storage, clock, directory } = self;
        storage.0.close().await;
        Self { storage: SqliteCalls::open(directory.path(), clock.clone()), clock, directory }
    }

    fn storage(&mut self) -> &mut SqliteCalls {
        &mut self.storage
    }
}
