//! ListDeadLetters and Requeue.

use super::{Broker, Error, Refusal};
use crate::{
    domain::{
        dead_filter::DeadFilter,
        ids::{DeadPart, JobId, QueueName},
    },
    store::{
        DeadLetterPage, DeadLetterQuery, Deaths, Refused, RequestId, Requeue, RequeueRefused,
        Requeued, Search, SkipReason, Store, Which,
    },
};

#[derive(Clone, Debug)]
pub struct RequeueRequest {
    pub part: DeadPart,
    pub which: Selector,
    pub target: Option<QueueName>,
    pub keep_attempts: bool,
    pub dry_run: bool,
    /// From an earlier answer.
    pub among: Option<Deaths>,
    pub request: Option<RequestId>,
}

/// Exactly one way to say which dead letters are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    Ids(Vec<JobId>),
    Filter { filter: DeadFilter, limit: usize },
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
        let which = self.which(request.which, request.among);
        let configured = self.is_configured(&queue);
        let missing = if configured { missing(&which) } else { Vec::new() };
        let requeue = Requeue {
            part: request.part,
            which,
            target: request.target,
            keep_attempts: request.keep_attempts,
            dry_run: request.dry_run,
            request: request.request,
        };
        match self.store.requeue(self.ask(), requeue).await? {
            Ok(requeued) => Ok(requeued),
            Err(RequeueRefused::NoSuchQueue) if configured => {
                Ok(Requeued { skipped: missing, ..Requeued::default() })
            }
            Err(RequeueRefused::NoSuchQueue) => Err(self.unknown_queue(queue)),
            Err(RequeueRefused::RequestIdTaken) => Err(request_id_taken()),
            Err(RequeueRefused::TooManyQueues { limit }) => {
                Err(Refusal::NotAdded(Refused::TooManyQueues { limit }).into())
            }
        }
    }

    pub(super) fn which(&self, selector: Selector, among: Option<Deaths>) -> Which {
        match selector {
            Selector::Ids(ids) => Which::Ids(ids),
            Selector::Filter { filter, limit } => {
                let limit = limit.min(self.limits.bulk_max);
                Which::Found {
                    search: Search { filter, look_at: self.limits.filtered },
                    limit,
                    among,
                }
            }
            Selector::Oldest(limit) | Selector::All { limit } => {
                Which::Oldest { limit: limit.min(self.limits.bulk_max), among }
            }
        }
    }

    pub(super) fn unknown_queue(&self, queue: QueueName) -> Error {
        Refusal::QueueNotFound { queue }.into()
    }
}

pub(super) fn request_id_taken() -> Error {
    let message = "was used for a call with other fields within the last 10 minutes; repeat that \
                   call as it was, or use a new id";
    Refusal::Field { field: "request_id".into(), message: message.into() }.into()
}

/// A queue that is configured and was never used has no dead letters: all that were named are not there.
pub(super) fn missing(which: &Which) -> Vec<(JobId, SkipReason)> {
    match which {
        Which::Ids(ids) => ids.iter().map(|id| (id.clone(), SkipReason::JobNotFound)).collect(),
        _ => Vec::new(),
    }
}
