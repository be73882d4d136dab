//! ListDeadLetters and Requeue.

use super::{Broker, Error, Refusal};
use crate::{
    domain::ids::{DeadPart, JobId, QueueName},
    store::{
        DeadLetterPage, DeadLetterQuery, Deaths, Refused, Requeue, RequeueRefused, Requeued,
        SkipReason, Store, Which,
    },
};

#[derive(Clone, Debug)]
pub struct RequeueRequest {
    pub part: DeadPart,
    pub which: RequeueSelector,
    pub target: Option<QueueName>,
    pub keep_attempts: bool,
    pub dry_run: bool,
    /// From an earlier answer.
    pub among: Option<Deaths>,
}

/// Exactly one way to say which dead letters are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequeueSelector {
    Ids(Vec<JobId>),
    Oldest(usize),
    All { limit: usize },
}

impl<S: Store> Broker<S> {
    pub async fn list_dead_letters(&self, query: DeadLetterQuery) -> Result<DeadLetterPage, Error> {
        let queue = query.part.queue.clone();
        match self.store.dead_letters(query).await? {
            Some(page) => Ok(page),
            None if self.is_configured(&queue) => {
                Ok(DeadLetterPage { jobs: Vec::new(), next: None, total: 0 })
            }
            None => Err(self.unknown_queue(queue)),
        }
    }

    pub async fn requeue(&self, request: RequeueRequest) -> Result<Requeued, Error> {
        let queue = request.part.queue.clone();
        let which = match request.which {
            RequeueSelector::Ids(ids) => Which::Ids(ids),
            RequeueSelector::Oldest(limit) | RequeueSelector::All { limit } => {
                Which::Oldest { limit: limit.min(self.limits.bulk_max), among: request.among }
            }
        };
        let configured = self.is_configured(&queue);
        let named = match &which {
            Which::Ids(ids) if configured => ids.clone(),
            _ => Vec::new(),
        };
        let requeue = Requeue {
            part: request.part,
            which,
            target: request.target,
            keep_attempts: request.keep_attempts,
            dry_run: request.dry_run,
        };
        match self.store.requeue(self.ask(), requeue).await? {
            Ok(requeued) => Ok(requeued),
            Err(RequeueRefused::NoSuchQueue) if configured => {
                let skipped = named.into_iter().map(|id| (id, SkipReason::JobNotFound));
                Ok(Requeued { skipped: skipped.collect(), ..Requeued::default() })
            }
            Err(RequeueRefused::NoSuchQueue) => Err(self.unknown_queue(queue)),
            Err(RequeueRefused::TooManyQueues { limit }) => {
                Err(Refusal::NotAdded(Refused::TooManyQueues { limit }).into())
            }
        }
    }

    fn unknown_queue(&self, queue: QueueName) -> Error {
        Refusal::QueueNotFound { queue }.into()
    }
}
