//! Claim: a worker asks for jobs, and waits for them if it likes.

use super::Service;
use crate::domain::QueueName;
use crate::queue::{Claim, Claimed, Idle, IdleReason, Settled, Settlements, Share};
use crate::queue::{Error, Host};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// At least one, each once.
    pub queues: Vec<QueueName>,
    pub order: Order,
    pub max_jobs: usize,
    pub max_bytes: usize,
    pub wait: Duration,
    pub lease_duration: Option<Duration>,
    pub worker_id: String,
    pub request_id: String,
    pub settle: Settlements,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// In turn; how often each queue's turn comes, in the order of the queues.
    RoundRobin { weights: Vec<u32> },
    /// The first queue that has work, always.
    Strict,
}

impl<H: Host> Service<H> {
    pub async fn claim(&self, mut request: ClaimRequest) -> Result<Claimed, Error> {
        let settle = std::mem::take(&mut request.settle);
        let mut draining = self.draining.subscribe();
        if *draining.borrow() {
            let settled = self.queues.settle(settle).await?;
            return Ok(self.drained(&request, settled));
        }
        // Registered before looking: work that comes in between is not missed.
        let waiter = (!request.wait.is_zero()).then(|| self.waiters.register(request.queues.clone(), request.max_jobs));
        let patience = tokio::time::sleep(request.wait);
        tokio::pin!(patience);

        let mut claimed = self.take(&request, settle).await?;
        while let Some(waiter) = &waiter
            && claimed.jobs.is_empty()
        {
            let mut over = false;
            tokio::select! {
                () = waiter.notified() => {}
                // A last look: why there is nothing may have changed meanwhile.
                () = &mut patience => over = true,
                // The block drops what it is handed, a guard that must not be held while waiting.
                () = async { drop(draining.wait_for(|draining| *draining).await) } => {
                    return Ok(self.drained(&request, claimed.settled));
                }
            }
            let settled = claimed.settled;
            claimed = Claimed { settled, ..self.take(&request, Settlements::default()).await? };
            if over {
                break;
            }
        }
        Ok(claimed)
    }

    /// Settles, and takes what is there now.
    pub(super) async fn take(&self, request: &ClaimRequest, settle: Settlements) -> Result<Claimed, Error> {
        let claim = Claim {
            shares: self.shares(request),
            max_jobs: request.max_jobs,
            max_bytes: request.max_bytes,
            lease_duration: request.lease_duration,
            worker_id: request.worker_id.clone(),
            request_id: request.request_id.clone(),
            settle,
        };
        self.queues.claim(claim).await
    }

    fn shares(&self, request: &ClaimRequest) -> Vec<Share> {
        match &request.order {
            Order::Strict => {
                let share = |queue: &QueueName| Share { queue: queue.clone(), first: usize::MAX };
                request.queues.iter().map(share).collect()
            }
            Order::RoundRobin { weights } => {
                let queues: Vec<_> = request.queues.iter().cloned().zip(weights.iter().copied()).collect();
                self.round_robin.take(&queues, request.max_jobs)
            }
        }
    }

    fn drained(&self, request: &ClaimRequest, settled: Settled) -> Claimed {
        let idle = |queue: &QueueName| Idle { queue: queue.clone(), reason: IdleReason::Draining, until: None };
        let idle = request.queues.iter().map(idle).collect();
        Claimed { now: self.queues.now(), idle, settled, ..Claimed::default() }
    }
}
