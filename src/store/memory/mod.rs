//! The engine that keeps its data in memory: for tests, and for a server whose jobs need not outlive it.
//!
//! It is the contract in its plainest form, which the other engines are compared with step by step. No call waits for
//! anything: the first poll of its future completes it.

mod ordered_index;
mod queue_data;
mod take;

use super::{
    StoreError,
    storage::{Applied, Batch, Found, Read, Reads, RecordKey, Storage, Table, Take, Taken},
};
use crate::{
    domain::{ids::QueueName, store_clock::StoreClock, time::Timestamp},
    env::Clock,
};
use queue_data::QueueData;
use std::{
    collections::BTreeMap,
    ops::{
        Bound::{Excluded, Unbounded},
        Range,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A handle; clones are handles on the same data.
#[derive(Clone, Debug)]
pub struct MemoryStorage {
    data: Arc<Mutex<Data>>,
    time: Arc<Mutex<StoreClock>>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct Data {
    queues: BTreeMap<QueueName, QueueData>,
    next_number: u64,
    /// Of all queues: counting those of each queue at every take would cost more than the take.
    leases: usize,
}

impl MemoryStorage {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let time = StoreClock::start(None, clock.read());
        // Number 0 is never given: where numbers are bytes it may mean "none".
        let data = Data { queues: BTreeMap::new(), next_number: 1, leases: 0 };
        Self { data: Arc::new(Mutex::new(data)), time: Arc::new(Mutex::new(time)), clock }
    }

    /// The same data as a server finds it that starts again: store time goes on from where it was.
    pub fn restarted(&self, clock: Arc<dyn Clock>) -> Self {
        let time = StoreClock::start(Some(lock(&self.time).kept()), clock.read());
        Self { data: self.data.clone(), time: Arc::new(Mutex::new(time)), clock }
    }
}

impl Reads for MemoryStorage {
    fn now(&self) -> Timestamp {
        lock(&self.time).now(self.clock.read())
    }

    async fn read(
        &mut self,
        queue: &QueueName,
        reads: &[Read],
    ) -> Result<Option<Vec<Found>>, StoreError> {
        let data = lock(&self.data);
        Ok(data.queues.get(queue).map(|queue| reads.iter().map(|read| queue.read(read)).collect()))
    }

    async fn queues(
        &mut self,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueName>, StoreError> {
        let data = lock(&self.data);
        let beyond =
            data.queues.range::<QueueName, _>((after.map_or(Unbounded, Excluded), Unbounded));
        Ok(beyond.take(limit).map(|(name, _)| name.clone()).collect())
    }

    async fn holders(
        &mut self,
        table: Table,
        key: &RecordKey,
    ) -> Result<Vec<QueueName>, StoreError> {
        let data = lock(&self.data);
        let holders = data.queues.iter().filter(|(_, queue)| queue.record(table, key).is_some());
        Ok(holders.map(|(name, _)| name.clone()).collect())
    }
}

impl Storage for MemoryStorage {
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Result<Applied, StoreError> {
        let now = self.now();
        let mut data = lock(&self.data);
        let data = &mut *data;
        let Some(queue) = data.queues.get_mut(queue) else {
            return Ok(Applied::NoQueue);
        };
        let leases = queue.leases();
        let applied = queue.apply(batch, now);
        data.leases = data.leases - leases + queue.leases();
        Ok(applied)
    }

    async fn take(
        &mut self,
        queue: &QueueName,
        take: &Take<'_>,
    ) -> Result<Option<Taken>, StoreError> {
        let now = self.now();
        let mut data = lock(&self.data);
        let data = &mut *data;
        let Some(queue) = data.queues.get_mut(queue) else {
            return Ok(None);
        };
        let taken = queue.take(take, take.max_leases.saturating_sub(data.leases), now);
        data.leases += taken.jobs.len();
        Ok(Some(taken))
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> Result<bool, StoreError> {
        let now = self.now();
        let mut data = lock(&self.data);
        if data.queues.contains_key(queue) {
            return Ok(true);
        }
        if data.queues.len() >= max {
            return Ok(false);
        }
        data.queues.insert(queue.clone(), QueueData::new(now));
        Ok(true)
    }

    async fn forget(
        &mut self,
        queue: &QueueName,
        unused_since: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut data = lock(&self.data);
        let unused = data.queues.get(queue).is_some_and(|queue| queue.is_unused(unused_since));
        if unused {
            data.queues.remove(queue);
        }
        Ok(unused)
    }

    async fn numbers(&mut self, count: u64) -> Result<Range<u64>, StoreError> {
        let mut data = lock(&self.data);
        let first = data.next_number;
        data.next_number += count;
        Ok(first..data.next_number)
    }
}

/// A panic while it was locked says nothing about the other queues: the data stays in use.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
