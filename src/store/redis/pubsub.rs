//! Hints between servers: a script that makes jobs ready publishes how many there are on the channel of its queue.
//!
//! A hint may get lost, so correctness does not depend on one; that some may have been lost is a hint, too.

use super::connection::{PubSubEvent, Task};
use super::keys::STATE;
use super::reply::int_of;
use super::{Core, RedisStorage};
use crate::{domain::QueueName, store::Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// So many jobs of a queue are ready.
    Ready(QueueName, u64),
    /// A message of the queue layer of another server.
    Message(QueueName, Vec<u8>),
    /// Hints may have been missed: look at every queue. The first one, and after every interruption.
    Missed,
}

/// In front of messages of the queue layer.
const MESSAGE: u8 = b'!';

impl RedisStorage {
    /// Calls `subscriber` with every hint until the task is dropped. It must not block.
    pub fn subscribe(&self, subscriber: impl Fn(Hint) + Send + Sync + 'static) -> Task {
        let mut messages = self.core.redis.subscribe(&self.core.names.channels());
        let core = self.core.clone();
        Task::spawn(async move {
            while let Some(event) = messages.next().await {
                let hint = match event {
                    PubSubEvent::Gap => Some(Hint::Missed),
                    PubSubEvent::Message { channel, payload } => core.hint(&channel, &payload),
                };
                hint.map(&subscriber);
            }
        })
    }

    /// Sends a message to the subscribers of all servers, this one included. It may get lost.
    pub async fn publish(&self, queue: &QueueName, message: &[u8]) -> Result<()> {
        let channel = self.core.names.key(queue, STATE);
        let mut command = redis::cmd("PUBLISH");
        command.arg(&channel).arg([&[MESSAGE], message].concat());
        self.core.redis.command(&channel, command).await.map(drop)
    }

    /// How many servers subscribe to this namespace, in any database of this Redis.
    pub async fn subscribers(&self) -> Result<u64> {
        let channel = self.core.names.of_no_queue();
        let counts = self.core.redis.on_every_primary(redis::cmd("PUBLISH").arg(channel).arg("")).await?;
        counts.iter().map(|count| Ok(int_of(count)?.cast_unsigned())).sum()
    }
}

impl Core {
    fn hint(&self, channel: &[u8], payload: &[u8]) -> Option<Hint> {
        let queue = self.names.queue_of_channel(channel)?;
        if let Some(text) = payload.strip_prefix(&[MESSAGE]) {
            return Some(Hint::Message(queue, text.to_vec()));
        }
        let ready = std::str::from_utf8(payload).ok()?.parse().ok()?;
        Some(Hint::Ready(queue, ready))
    }
}
