//! GetStats: what was counted since the store was made.

use super::{Broker, Error, Refusal};
use crate::{
    domain::ids::QueueName,
    store::{Stats, Store},
};

impl<S: Store> Broker<S> {
    /// Of one queue, or of all together.
    pub async fn get_stats(&self, queue: Option<QueueName>) -> Result<Stats, Error> {
        match (self.store.stats(queue.clone()).await?, queue) {
            (Some(stats), _) => Ok(stats),
            (None, Some(queue)) if !self.is_configured(&queue) => {
                Err(Refusal::QueueNotFound { queue }.into())
            }
            (None, _) => Ok(Stats::default()),
        }
    }
}
