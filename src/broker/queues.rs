//! ListQueues, and which queues there are: those that the store has, and those that are configured.

use super::{Broker, Error};
use crate::{
    domain::{
        breaker::BreakerState,
        ids::{DeadPart, QueueName},
        policy::RetryPolicy,
        time::Timestamp,
    },
    store::{DeadLetterQuery, QueueView, Store},
};

#[derive(Clone, Debug)]
pub struct QueueReport {
    pub view: QueueView,
    /// The policy in force before job and rule.
    pub policy: RetryPolicy,
    /// Of its work.
    pub breaker: BreakerState,
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
        let mut views = self.store.queues(after.clone(), limit).await?;
        // A full page says nothing about what comes behind it.
        let last = views.last().filter(|_| views.len() >= limit).map(|view| view.name.clone());
        let on_page = |name: &&QueueName| {
            after.as_ref().is_none_or(|after| *name > after)
                && last.as_ref().is_none_or(|last| *name < last)
        };
        for name in settings.queues.keys().filter(on_page) {
            if let Err(at) = views.binary_search_by(|view| view.name.cmp(name)) {
                views.insert(at, QueueView::empty(name.clone()));
            }
        }
        views.truncate(limit);
        let report = |mut view: QueueView| {
            view.pause = view.pause.filter(|pause| pause.holds(now));
            let queue = settings.queue(&view.name);
            let breaker = view.breaker.state(&queue.breaker, now);
            QueueReport { view, policy: queue.policy.clone(), breaker, now }
        };
        Ok(views.into_iter().map(report).collect())
    }

    /// A queue exists once it is configured or enqueued to.
    pub(super) async fn queue_exists(&self, name: &QueueName) -> Result<bool, Error> {
        if self.is_configured(name) {
            return Ok(true);
        }
        let part = DeadPart { queue: name.clone(), overflow_only: false };
        let (search, full) = (None, false);
        let query = DeadLetterQuery { part, after: 0, limit: 0, search, full, max_bytes: 0 };
        Ok(self.store.dead_letters(query).await?.is_some())
    }

    pub(super) fn is_configured(&self, name: &QueueName) -> bool {
        self.settings().queues.contains_key(name)
    }
}
