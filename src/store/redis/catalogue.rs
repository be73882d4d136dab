//! The queues that there are, with their generations; numbers for jobs.
//!
//! A queue's generation is new at every making and is compared by every script on it; the store's own is compared by every
//! call to the catalogue. So a Redis that was emptied or replaced is noticed at the next call.

use super::clock::NodeTime;
use super::keys::Key;
use super::reply::{Reply, int_of};
use super::scripts::QUEUE;
use super::{Core, lock};
use crate::domain::{QueueName, Timestamp};
use crate::env;
use crate::store::{Result, StoreError};
use redis::{ToRedisArgs, Value};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Numbers that a server takes at once; those that it does not use are lost.
const NUMBERS_AT_ONCE: u64 = 1_000;
/// Numbers of jobs have 48 bits.
const NUMBER_MAX: u64 = (1 << 48) - 1;
/// How often a queue may be forgotten while it is registered.
const ROUNDS_MAX: usize = 10;

/// One queue, as long as it has this generation.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: QueueName,
    pub(super) generation: String,
    /// Of the node that has the queue, in a Cluster.
    pub(super) time: NodeTime,
    /// It has had a group: scripts that know none refuse.
    has_groups: AtomicBool,
}

impl Queue {
    /// True.
    pub(super) fn note_groups(&self) -> bool {
        self.has_groups.store(true, Ordering::Relaxed);
        true
    }
}

/// What this server remembers.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    queues: Mutex<HashMap<QueueName, Arc<Queue>>>,
    numbers: Mutex<Range<u64>>,
}

impl Catalogue {
    pub(super) fn has_groups(&self, name: &QueueName) -> bool {
        lock(&self.queues).get(name).is_some_and(|queue| queue.has_groups.load(Ordering::Relaxed))
    }

    fn known(&self, name: &QueueName) -> Option<Arc<Queue>> {
        lock(&self.queues).get(name).cloned()
    }

    fn remember(&self, name: &QueueName, generation: &str) -> Arc<Queue> {
        let mut queues = lock(&self.queues);
        if let Some(known) = queues.get(name).filter(|known| known.generation == generation) {
            return known.clone();
        }
        let (name, generation) = (name.clone(), generation.to_owned());
        let queue = Arc::new(Queue { name, generation, time: NodeTime::default(), has_groups: AtomicBool::new(false) });
        queues.insert(queue.name.clone(), queue.clone());
        queue
    }

    pub(super) fn drop_known(&self, queue: &Queue) {
        let mut queues = lock(&self.queues);
        if queues.get(&queue.name).is_some_and(|known| known.generation == queue.generation) {
            queues.remove(&queue.name);
        }
    }

    fn take_numbers(&self, count: u64) -> Option<Range<u64>> {
        let mut numbers = lock(&self.numbers);
        let end = numbers.start.checked_add(count).filter(|end| *end <= numbers.end)?;
        let taken = numbers.start..end;
        numbers.start = end;
        Some(taken)
    }
}

impl Core {
    /// The queue of this name. None: there is no such queue.
    pub(super) async fn find(&self, name: &QueueName) -> Result<Option<Arc<Queue>>> {
        if let Some(queue) = self.catalogue.known(name) {
            return Ok(Some(queue));
        }
        let generation = self.generation(name).await?;
        Ok((!generation.is_empty()).then(|| self.catalogue.remember(name, &generation)))
    }

    /// As the catalogue has it. Empty: there is no such queue.
    async fn generation(&self, name: &QueueName) -> Result<String> {
        let [key, ..] = self.names.catalogue();
        let fields = ["~store", name.as_str()];
        let mut found = Reply::of(self.redis.query(&key, redis::cmd("HMGET").arg(&key).arg(&fields)).await?)?;
        self.check_store(&found.text()?)?;
        found.text()
    }

    /// Registers a queue. False: there are `max` others.
    pub(super) async fn register_queue(&self, name: &QueueName, max: usize) -> Result<bool> {
        self.writable()?;
        if self.catalogue.known(name).is_some() {
            return Ok(true);
        }
        // One that another server has registered is found by a read.
        if self.read_part(name, &[]).await?.is_some() {
            return Ok(true);
        }
        for _ in 0..ROUNDS_MAX {
            let fresh = format!("{:016x}", env::random::<u64>());
            let generation = self.catalogue("register", (name.as_str(), max, fresh)).await?.text()?;
            if generation.is_empty() {
                return Ok(false);
            }
            let mut adopted = Reply::of(self.run_queue("adopt", name, &generation, "").await?)?;
            let (is_new, found) = (adopted.int()? == 1, adopted.text()?);
            if found.is_empty() {
                // It was closed and not removed: a server stopped in between.
                self.remove_closed(name, &generation).await?;
            } else if found != generation {
                // The catalogue has lost it, in a failover: the queue and its jobs are still there.
                self.catalogue("adopt", (name.as_str(), generation, found)).await?;
            } else if !is_new || self.generation(name).await? == generation {
                self.catalogue.remember(name, &generation);
                return Ok(true);
            }
        }
        Err(StoreError::Unavailable(format!("the queue {name} is forgotten again and again")))
    }

    /// Closes a queue that is not used, then removes it. False: it stays.
    pub(super) async fn forget_queue(&self, name: &QueueName, unused_since: Timestamp) -> Result<bool> {
        self.writable()?;
        let Some(queue) = self.find(name).await? else { return Ok(false) };
        let must_be_empty_from = Key::all().1 + 1;
        let args = (unused_since.millis(), must_be_empty_from);
        let closed = self.run_queue("close", name, &queue.generation, args).await?;
        self.catalogue.drop_known(&queue);
        if int_of(&closed)? != 1 {
            return Ok(false);
        }
        self.remove_closed(name, &queue.generation).await?;
        Ok(true)
    }

    async fn remove_closed(&self, name: &QueueName, generation: &str) -> Result<()> {
        self.catalogue("forget", (name.as_str(), generation)).await?;
        self.run_queue("remove", name, generation, "").await.map(drop)
    }

    async fn run_queue(&self, verb: &str, name: &QueueName, of: &str, more: impl ToRedisArgs) -> Result<Value> {
        let keys = self.names.keys(name, &Key::all().0);
        self.redis.run(&QUEUE, &keys, (verb, of, self.time.now().millis(), more)).await
    }

    /// Names in their order, those after `after`.
    pub(super) async fn names_after(&self, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        self.readable()?;
        let [_, key, _] = self.names.catalogue();
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut command = redis::cmd("ZRANGE");
        command.arg(&key).arg(from).arg("+").arg("BYLEX").arg("LIMIT").arg(0).arg(limit);
        let names = Reply::of(self.redis.query(&key, &command).await?)?.rest(Reply::text)?;
        Ok(names.iter().filter_map(|name| QueueName::parse(name)).collect())
    }

    /// Numbers never given before. Asking twice costs some numbers and nothing else.
    pub(super) async fn take_numbers(&self, count: u64) -> Result<Range<u64>> {
        self.writable()?;
        loop {
            if let Some(numbers) = self.catalogue.take_numbers(count) {
                return Ok(numbers);
            }
            let block = count.max(NUMBERS_AT_ONCE);
            let last = self.catalogue("numbers", block).await?.count()?;
            if last > NUMBER_MAX {
                return Err(StoreError::Unavailable("all numbers for jobs are used up".into()));
            }
            *lock(&self.catalogue.numbers) = last + 1 - block..last + 1;
        }
    }
}
