//! The engine that keeps its data in memory: for tests, and for a server whose jobs need not outlive it.
//!
//! It is the contract in its plainest form, which the other engines are compared with step by step. No call waits for
//! anything: the first poll of its future completes it.

mod ordered_index;
mod queue_data;
mod take;

use super::Result;
use super::storage::{Applied, Batch, Found, Read, Reads, RecordKey, Storage, Table, Take, Taken};
use crate::domain::{QueueName, StoreClock, Timestamp};
use crate::env::Clock;
pub(super) use queue_data::QueueData;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle; clones are handles on the same data.
#[derive(Clone, Debug)]
pub struct MemoryStorage {
    data: Arc<Mutex<Data>>,
    time: Arc<Mutex<StoreClock>>,
    clock: Arc<dyn Clock>,
}

#[derive(Clone, Debug, PartialEq)]
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

    /// The same data once more, which goes its own way from then on.
    pub fn copied(&self, clock: Arc<dyn Clock>) -> Self {
        let data = lock(&self.data).clone();
        Self { data: Arc::new(Mutex::new(data)), ..self.restarted(clock) }
    }

    /// Whether another one holds the same, down to the bytes.
    pub fn holds_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.data, &other.data) || *lock(&self.data) == *lock(&other.data)
    }

    /// `change` gets the queue, store time, and how many leases there are of all queues.
    fn change<T>(&self, queue: &QueueName, change: impl FnOnce(&mut QueueData, Timestamp, usize) -> T) -> Option<T> {
        let now = self.now();
        let Data { queues, leases, .. } = &mut *lock(&self.data);
        let queue = queues.get_mut(queue)?;
        let before = queue.leases();
        let changed = change(queue, now, *leases);
        *leases = *leases - before + queue.leases();
        Some(changed)
    }
}

impl Reads for MemoryStorage {
    fn now(&self) -> Timestamp {
        lock(&self.time).now(self.clock.read())
    }

    async fn read(&mut self, queue: &QueueName, reads: &[Read]) -> Result<Option<Vec<Found>>> {
        let data = lock(&self.data);
        Ok(data.queues.get(queue).map(|queue| reads.iter().map(|read| queue.read(read)).collect()))
    }

    async fn queues(&mut self, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        let data = lock(&self.data);
        let beyond = data.queues.range::<QueueName, _>((after.map_or(Unbounded, Excluded), Unbounded));
        Ok(beyond.take(limit).map(|(name, _)| name.clone()).collect())
    }

    async fn holders(&mut self, table: Table, key: &RecordKey) -> Result<Vec<QueueName>> {
        let data = lock(&self.data);
        let holders = data.queues.iter().filter(|(_, queue)| queue.record(table, key).is_some());
        Ok(holders.map(|(name, _)| name.clone()).collect())
    }
}

impl Storage for MemoryStorage {
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Result<Applied> {
        Ok(self.change(queue, |queue, now, _| queue.apply(batch, now)).unwrap_or(Applied::NoQueue))
    }

    async fn take(&mut self, queue: &QueueName, take: &Take<'_>) -> Result<Option<Taken>> {
        Ok(self.change(queue, |queue, now, leases| queue.take(take, take.max_leases.saturating_sub(leases), now)))
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> Result<bool> {
        let now = self.now();
        let queues = &mut lock(&self.data).queues;
        let is_there = queues.contains_key(queue);
        if !is_there && queues.len() < max {
            queues.insert(queue.clone(), QueueData::new(now));
            return Ok(true);
        }
        Ok(is_there)
    }

    async fn forget(&mut self, queue: &QueueName, unused_since: Timestamp) -> Result<bool> {
        let queues = &mut lock(&self.data).queues;
        let is_unused = queues.get(queue).is_some_and(|queue| queue.is_unused(unused_since));
        Ok(is_unused && queues.remove(queue).is_some())
    }

    async fn numbers(&mut self, count: u64) -> Result<Range<u64>> {
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
