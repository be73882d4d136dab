//! Hints between servers: a script that makes jobs ready publishes how many there are on the channel of its queue.
//!
//! A hint may get lost, so correctness does not depend on one; that some may have been lost is a hint, too.

use super::Core;
use crate::{
    domain::ids::QueueName,
    store::{StoreError, redis::connection::Heard},
};
use std::sync::Arc;
use tokio::task::AbortHandle;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// So many jobs of a queue are ready.
    Ready(QueueName, u64),
    /// A message of the queue layer of another server.
    Message(QueueName, Vec<u8>),
    /// Hints may have been missed: look at every queue. The first one, and after every interruption.
    Missed,
}

/// Ends when dropped.
#[derive(Debug)]
pub struct Subscription(AbortHandle);

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// In front of messages of the queue layer.
const MESSAGE: u8 = b'!';

impl Core {
    pub(super) fn subscribe(
        self: &Arc<Self>,
        subscriber: impl Fn(Hint) + Send + Sync + 'static,
    ) -> Subscription {
        let mut messages = self.redis.hear(&self.names.channels());
        let core = self.clone();
        let task = tokio::spawn(async move {
            while let Some(heard) = messages.next().await {
                match heard {
                    Heard::Gap => subscriber(Hint::Missed),
                    Heard::Message { channel, payload } => {
                        let queue = core.names.queue_of_channel(&channel);
                        queue.and_then(|queue| hint(queue, &payload)).map(&subscriber);
                    }
                }
            }
        });
        Subscription(task.abort_handle())
    }

    pub(super) async fn publish(&self, queue: &QueueName, text: &[u8]) -> Result<(), StoreError> {
        let channel = self.names.key(queue, super::keys::Key::State);
        let mut command = redis::cmd("PUBLISH");
        command.arg(&channel).arg([&[MESSAGE], text].concat());
        self.redis.command(&channel, command).await.map(|_| ())
    }

    /// How many subscribers there are on every node.
    pub(super) async fn subscribers(&self) -> Result<u64, StoreError> {
        let mut command = redis::cmd("PUBLISH");
        command.arg(self.names.of_no_queue()).arg("");
        let counts = self.redis.on_every_primary(&command).await?;
        counts.iter().map(|(_, count)| Ok(super::reply::int_of(count)?.cast_unsigned())).sum()
    }
}

fn hint(queue: QueueName, payload: &[u8]) -> Option<Hint> {
    if let Some(text) = payload.strip_prefix(&[MESSAGE]) {
        return Some(Hint::Message(queue, text.to_vec()));
    }
    let ready = std::str::from_utf8(payload).ok()?.parse().ok()?;
    Some(Hint::Ready(queue, ready))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_messages_are_told_apart() {
        let queue = || QueueName::parse("emails").unwrap();
        assert_eq!(hint(queue(), b"17"), Some(Hint::Ready(queue(), 17)));
        assert_eq!(hint(queue(), b"!17"), Some(Hint::Message(queue(), b"17".to_vec())));
        assert_eq!(hint(queue(), b"seventeen"), None);
    }
}
