//! ListQueues.

use super::{Broker, Error};
use crate::{
    domain::{ids::QueueName, policy::RetryPolicy, time::Timestamp},
    store::{QueueView, Store},
};

#[derive(Clone, Debug)]
pub struct QueueReport {
    pub view: QueueView,
    /// The policy in force before job and rule.
    pub policy: RetryPolicy,
    pub now: Timestamp,
}

impl<S: Store> Broker<S> {
    pub async fn list_queues(
        &self,
        after: Option<QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueReport>, Error> {
        let settings = self.settings();
        let now = self.store.now();
        let views = self.store.queues(after, limit).await?;
        let report = |view: QueueView| {
            let policy = settings.queue(&view.name).policy.clone();
            QueueReport { view, policy, now }
        };
        Ok(views.into_iter().map(report).collect())
    }
}
