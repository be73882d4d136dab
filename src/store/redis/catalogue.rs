//! The queues that there are, with their generations; numbers for jobs.
//!
//! A queue's generation is new at every making and is compared by every script on it; the store's own is compared by every
//! call to the catalogue. So a Redis that was emptied or replaced is noticed at the next call.

use super::{
    Core,
    clock::NodeTime,
    keys::Key,
    lock,
    reply::{Reply, int_of, unexpected},
    scripts::QUEUE,
};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    env,
    store::{StoreError, redis::connection::Arg},
};
use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex},
};

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
}

/// What this server remembers.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    queues: Mutex<HashMap<QueueName, Arc<Queue>>>,
    numbers: Mutex<Range<u64>>,
}

impl Catalogue {
    pub(super) fn clear(&self) {
        lock(&self.queues).clear();
        *lock(&self.numbers) = 0..0;
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
        let queue = Arc::new(Queue { name, generation, time: NodeTime::default() });
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
    pub(super) async fn find(&self, name: &QueueName) -> Result<Option<Arc<Queue>>, StoreError> {
        if let Some(queue) = self.catalogue.known(name) {
            return Ok(Some(queue));
        }
        let generation = self.generation(name).await?;
        Ok(generation.map(|generation| self.catalogue.remember(name, &generation)))
    }

    async fn generation(&self, name: &QueueName) -> Result<Option<String>, StoreError> {
        let store = self.store_generation();
        let [key, ..] = self.names.catalogue();
        let mut command = redis::cmd("HMGET");
        command.arg(&key).arg("~store").arg(name.as_str());
        let mut found = Reply::of(self.redis.command(&key, command).await?)?;
        self.check_store(&found.text()?, &store)?;
        let generation = found.bytes()?.map(|bytes| String::from_utf8(bytes.into()));
        generation.transpose().map_err(|_| unexpected())
    }

    /// Registers a queue. False: there are `max` others.
    pub(super) async fn register_queue(
        &self,
        name: &QueueName,
        max: usize,
    ) -> Result<bool, StoreError> {
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
            let args = vec![name.as_str().into(), (max as u64).into(), fresh.as_str().into()];
            let generation = self.catalogue("register", args).await?.text()?;
            if generation.is_empty() {
                return Ok(false);
            }
            let mut adopted = Reply::of(self.run_queue("adopt", name, &generation, &[]).await?)?;
            let (is_new, found) = (adopted.int()? == 1, adopted.text()?);
            if found.is_empty() {
                // It was closed and not removed: a server stopped in between.
                self.remove_closed(name, &generation).await?;
            } else if found != generation {
                // The catalogue has lost it, in a failover: the queue and its jobs are still there.
                let args = [name.as_str(), &generation, &found].map(Arg::from).to_vec();
                self.catalogue("adopt", args).await?;
            } else if !is_new || self.generation(name).await?.as_ref() == Some(&generation) {
                self.catalogue.remember(name, &generation);
                return Ok(true);
            }
        }
        Err(StoreError::Unavailable(format!("the queue {name} is forgotten again and again")))
    }

    /// Closes a queue that is not used, then removes it. False: it stays.
    pub(super) async fn forget_queue(
        &self,
        name: &QueueName,
        unused_since: Timestamp,
    ) -> Result<bool, StoreError> {
        self.writable()?;
        let Some(queue) = self.find(name).await? else { return Ok(false) };
        let must_be_empty_from = Key::all().1 as u64 + 1;
        let args = [Arg::from(unused_since.millis()), must_be_empty_from.into()];
        let closed = self.run_queue("close", name, &queue.generation, &args).await?;
        self.catalogue.drop_known(&queue);
        if int_of(&closed)? != 1 {
            return Ok(false);
        }
        self.remove_closed(name, &queue.generation).await?;
        Ok(true)
    }

    async fn remove_closed(&self, name: &QueueName, generation: &str) -> Result<(), StoreError> {
        self.catalogue("forget", [name.as_str(), generation].map(Arg::from).to_vec()).await?;
        self.run_queue("remove", name, generation, &[]).await.map(|_| ())
    }

    async fn run_queue(
        &self,
        verb: &str,
        name: &QueueName,
        generation: &str,
        more: &[Arg],
    ) -> Result<redis::Value, StoreError> {
        let keys = self.names.keys(name, &Key::all().0);
        let now = Arg::from(self.time.now().millis());
        let mut args = vec![Arg::from(verb), generation.into(), now];
        args.extend_from_slice(more);
        self.redis.run(&QUEUE, &keys, args).await
    }

    /// Names in their order, those after `after`.
    pub(super) async fn names_after(
        &self,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueName>, StoreError> {
        self.readable()?;
        let [_, key, _] = self.names.catalogue();
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut command = redis::cmd("ZRANGE");
        command.arg(&key).arg(from).arg("+").arg("BYLEX").arg("LIMIT").arg(0).arg(limit);
        let mut found = Reply::of(self.redis.command(&key, command).await?)?;
        let mut names = Vec::with_capacity(found.left());
        while found.left() > 0 {
            names.extend(QueueName::parse(&found.text()?));
        }
        Ok(names)
    }

    /// Whether a queue's hash has this field.
    pub(super) async fn has(
        &self,
        name: &QueueName,
        key: Key,
        field: &[u8],
    ) -> Result<bool, StoreError> {
        let key = self.names.key(name, key);
        let mut command = redis::cmd("HEXISTS");
        command.arg(&key).arg(field);
        Ok(int_of(&self.redis.command(&key, command).await?)? == 1)
    }

    /// Numbers never given before. Asking twice costs some numbers and nothing else.
    pub(super) async fn take_numbers(&self, count: u64) -> Result<Range<u64>, StoreError> {
        self.writable()?;
        loop {
            if let Some(numbers) = self.catalogue.take_numbers(count) {
                return Ok(numbers);
            }
            let block = count.max(NUMBERS_AT_ONCE);
            let last = self.catalogue("numbers", vec![block.into()]).await?.count()?;
            if last > NUMBER_MAX {
                let why = "all numbers for jobs are used up";
                return Err(StoreError::Unavailable(why.into()));
            }
            *lock(&self.catalogue.numbers) = last + 1 - block..last + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_a_row_or_not_at_all() {
        let catalogue = Catalogue::default();
        assert_eq!(catalogue.take_numbers(1), None);
        *lock(&catalogue.numbers) = 1..11;
        assert_eq!(catalogue.take_numbers(4), Some(1..5));
        assert_eq!(catalogue.take_numbers(7), None);
        assert_eq!(catalogue.take_numbers(6), Some(5..11));
    }
}
