//! The queues that there are: their names and numbers, known to all servers. Numbers of jobs, which are unique in the store.

use super::{
    Core,
    connection::Arg,
    guards::Guards,
    keys::QueueKeys,
    record::{NUMBER_MAX, Number, QUEUE_MAX},
    reply::{Reply, bytes_of},
    scripts::{ADOPT, MAKE_QUEUE},
};
use crate::{
    domain::ids::QueueName,
    store::{Refused, StoreError},
};
use redis::Value;
use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

/// Numbers that a server takes at once; those that it does not use are nobody's.
const NUMBERS_AT_ONCE: u64 = 1_000;
/// How often a queue may be forgotten while somebody wants it.
const FORGOTTEN_MAX: usize = 10;

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: QueueName,
    pub(super) number: u64,
    pub(super) keys: QueueKeys,
    pub(super) guards: Guards,
}

/// What this server remembers of them.
#[derive(Debug, Default)]
pub(super) struct Registry {
    by_name: RwLock<HashMap<QueueName, Arc<Queue>>>,
    by_number: RwLock<HashMap<u64, Arc<Queue>>>,
    numbers: Mutex<Range<u64>>,
}

impl Registry {
    fn of_name(&self, name: &QueueName) -> Option<Arc<Queue>> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn of_number(&self, number: u64) -> Option<Arc<Queue>> {
        self.by_number.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Whoever was first is kept: what is counted for a queue is counted once.
    fn remember(&self, queue: Queue) -> Arc<Queue> {
        let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = by_name.get(&queue.name).filter(|it| it.number == queue.number) {
            return known.clone();
        }
        let queue = Arc::new(queue);
        by_name.insert(queue.name.clone(), queue.clone());
        let mut by_number = self.by_number.write().unwrap_or_else(PoisonError::into_inner);
        by_number.insert(queue.number, queue.clone());
        queue
    }

    /// All that this server knows of.
    pub(super) fn all(&self) -> Vec<Arc<Queue>> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn forget(&self, queue: &Queue) {
        let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        if by_name.get(&queue.name).is_some_and(|known| known.number == queue.number) {
            by_name.remove(&queue.name);
        }
        let mut by_number = self.by_number.write().unwrap_or_else(PoisonError::into_inner);
        by_number.remove(&queue.number);
    }

    fn take_number(&self) -> Option<Number> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.next().map(Number)
    }

    fn stock(&self, numbers: Range<u64>) {
        *self.numbers.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
    }
}

impl Core {
    fn queue_of(&self, name: QueueName, number: u64) -> Arc<Queue> {
        let keys = self.names.queue(&name);
        self.registry.remember(Queue { name, number, keys, guards: Guards::default() })
    }

    /// The queue of this name. None: nobody has made it.
    pub(super) async fn find(&self, name: &QueueName) -> Result<Option<Arc<Queue>>, StoreError> {
        if let Some(queue) = self.registry.of_name(name) {
            return Ok(Some(queue));
        }
        let [names, ..] = self.names.registry();
        let mut command = redis::cmd("HGET");
        command.arg(&names).arg(name.as_str());
        let found = bytes_of(self.redis.command(&names, command).await?);
        let number = found.and_then(|number| std::str::from_utf8(&number).ok()?.parse().ok());
        Ok(number.map(|number| self.queue_of(name.clone(), number)))
    }

    /// The queue of this number, which a lease names.
    pub(super) async fn find_number(&self, number: u64) -> Result<Option<Arc<Queue>>, StoreError> {
        if let Some(queue) = self.registry.of_number(number) {
            return Ok(Some(queue));
        }
        let [_, numbers, ..] = self.names.registry();
        let mut command = redis::cmd("HGET");
        command.arg(&numbers).arg(number);
        let found = bytes_of(self.redis.command(&numbers, command).await?);
        let name = found.and_then(|name| QueueName::parse(std::str::from_utf8(&name).ok()?));
        Ok(name.map(|name| self.queue_of(name, number)))
    }

    /// The queue of this name, made on first use.
    pub(super) async fn queue_for(
        &self,
        name: &QueueName,
    ) -> Result<Result<Arc<Queue>, Refused>, StoreError> {
        if let Some(queue) = self.registry.of_name(name) {
            return Ok(Ok(queue));
        }
        for _ in 0..FORGOTTEN_MAX {
            let limit = self.options.max_queues;
            let args = vec![name.as_str().into(), (limit as u64).into(), QUEUE_MAX.into()];
            let made = self.redis.run(&MAKE_QUEUE, &self.names.registry(), args).await?;
            let number = match made {
                Value::Int(number) => number.cast_unsigned(),
                _ => 0,
            };
            if number == 0 {
                return Ok(Err(Refused::TooManyQueues { limit }));
            }
            let queue = self.queue_of(name.clone(), number);
            let args = vec![Arg::from(number)];
            let (_, mut reply) = self.run(&ADOPT, &queue, args).await?;
            if reply.int()? == 1 {
                return Ok(Ok(queue));
            }
            self.complete_forgetting(&queue).await?;
        }
        Err(StoreError::Unavailable(format!("the queue {name} is forgotten again and again")))
    }

    /// All queues by name.
    pub(super) async fn all_queues(&self) -> Result<Vec<Arc<Queue>>, StoreError> {
        let [names, ..] = self.names.registry();
        let mut command = redis::cmd("HGETALL");
        command.arg(&names);
        let all = match self.redis.command(&names, command).await? {
            Value::Map(entries) => Value::Array(
                entries.into_iter().flat_map(|(name, number)| [name, number]).collect(),
            ),
            other => other,
        };
        let mut all = Reply::of(all)?;
        let mut queues = Vec::new();
        while all.left() > 0 {
            let (name, number) = (all.text()?, all.count()?);
            let Some(name) = QueueName::parse(&name) else { continue };
            let known = self.registry.of_name(&name).filter(|known| known.number == number);
            queues.push(known.unwrap_or_else(|| self.queue_of(name, number)));
        }
        queues.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(queues)
    }

    /// A number for a new job, never given before.
    pub(super) async fn next_number(&self) -> Result<Number, StoreError> {
        loop {
            if let Some(number) = self.registry.take_number() {
                return Ok(number);
            }
            let key = self.names.next_number();
            let mut command = redis::cmd("INCRBY");
            command.arg(&key).arg(NUMBERS_AT_ONCE);
            // Asking twice costs some numbers and nothing else.
            let last = match self.redis.command(&key, command).await? {
                Value::Int(last) => last.cast_unsigned(),
                _ => return Err(StoreError::Unavailable("there are no numbers for jobs".into())),
            };
            if last > NUMBER_MAX {
                return Err(StoreError::Unavailable("all numbers for jobs are used up".into()));
            }
            self.registry.stock(last + 1 - NUMBERS_AT_ONCE..last + 1);
        }
    }
}
