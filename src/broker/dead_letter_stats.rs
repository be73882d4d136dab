//! GetDeadLetterStats.

use super::{Broker, Error};
use crate::{
    domain::ids::QueueName,
    store::{DeadCount, DeadCountQuery, DeadCounts, Store},
};

/// Types of error that are shown of each queue.
const TYPES_SHOWN: usize = 20;

impl<S: Store> Broker<S> {
    /// Of one queue, or of those after `after` that have any.
    pub async fn dead_letter_stats(
        &self,
        queue: Option<QueueName>,
        after: Option<QueueName>,
        limit: usize,
    ) -> Result<DeadCounts, Error> {
        let query =
            DeadCountQuery { queue: queue.clone(), after, limit, types: TYPES_SHOWN, latest: 0 };
        let counts = self.store.dead_letter_counts(query).await?;
        match queue {
            Some(queue) if counts.queues.is_empty() => match self.is_configured(&queue) {
                true => Ok(DeadCounts { queues: vec![DeadCount::none(queue)], total: 0 }),
                false => Err(self.unknown_queue(queue)),
            },
            _ => Ok(counts),
        }
    }
}
