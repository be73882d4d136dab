//! Storage that does one step at each poll, so that a test decides whose step is next.

use redrive::domain::{QueueName, Timestamp};
use redrive::store::StoreError;
use redrive::store::memory::MemoryStorage;
use redrive::store::storage::{Applied, Batch, Found, Read, Reads, RecordKey, Storage, Table, Take, Taken};
use std::{future::poll_fn, ops::Range, task::Poll};

#[derive(Clone)]
pub(crate) struct Stepped(pub(crate) MemoryStorage);

/// Ends at the second poll.
pub(crate) async fn turn() {
    let mut polled = false;
    poll_fn(|_| {
        if polled {
            return Poll::Ready(());
        }
        polled = true;
        Poll::Pending
    })
    .await;
}

impl Reads for Stepped {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn read(&mut self, queue: &QueueName, reads: &[Read]) -> Result<Option<Vec<Found>>, StoreError> {
        turn().await;
        self.0.read(queue, reads).await
    }

    async fn queues(&mut self, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>, StoreError> {
        turn().await;
        self.0.queues(after, limit).await
    }

    async fn holders(&mut self, table: Table, key: &RecordKey) -> Result<Vec<QueueName>, StoreError> {
        turn().await;
        self.0.holders(table, key).await
    }
}

impl Storage for Stepped {
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Result<Applied, StoreError> {
        turn().await;
        self.0.apply(queue, batch).await
    }

    async fn take(&mut self, queue: &QueueName, take: &Take<'_>) -> Result<Option<Taken>, StoreError> {
        turn().await;
        self.0.take(queue, take).await
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> Result<bool, StoreError> {
        turn().await;
        self.0.register(queue, max).await
    }

    async fn forget(&mut self, queue: &QueueName, unused_since: Timestamp) -> Result<bool, StoreError> {
        turn().await;
        self.0.forget(queue, unused_since).await
    }

    /// No other verb can notice it: no step of its own.
    async fn numbers(&mut self, count: u64) -> Result<Range<u64>, StoreError> {
        self.0.numbers(count).await
    }
}
