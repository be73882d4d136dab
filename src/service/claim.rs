//! Claim: a worker asks for jobs, and waits for them if it likes.

use super::{ConnectionBudget, Held, Service};
use crate::domain::QueueName;
use crate::queue::{Claim, Claimed, Idle, IdleReason, Settled, Settlements, Share};
use crate::queue::{Error, Handover, Host};
use std::{sync::Arc, time::Duration};

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
    /// Of the connection that the reply goes to.
    pub budget: Arc<ConnectionBudget>,
}

/// What becomes of a claim.
#[derive(Debug, Default)]
pub struct ClaimReply {
    pub claimed: Claimed,
    /// What the jobs take until they are read.
    pub held: Option<Held>,
    /// It has only settled, because too much that was sent to its connection waits to be read.
    pub overloaded: bool,
}

impl From<Claimed> for ClaimReply {
    fn from(claimed: Claimed) -> Self {
        Self { claimed, ..Self::default() }
    }
}

/// What a job takes in a reply beside its body.
const JOB_BYTES: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// In turn; how often each queue's turn comes, in the order of the queues.
    RoundRobin { weights: Vec<u32> },
    /// The first queue that has work, always.
    Strict,
}

impl<H: Host> Service<H> {
    pub async fn claim(&self, mut request: ClaimRequest) -> Result<ClaimReply, Error> {
        let settle = std::mem::take(&mut request.settle);
        let mut draining = self.draining.subscribe();
        if *draining.borrow() {
            let settled = self.queues.settle(settle).await?;
            return Ok(self.drained(&request, settled).into());
        }
        // Registered before looking: work that comes in between is not missed.
        let waiter = (!request.wait.is_zero()).then(|| self.waiters.register(request.queues.clone(), request.max_jobs));
        let patience = tokio::time::sleep(request.wait);
        tokio::pin!(patience);

        let mut reply = self.take(&request, settle).await?;
        while let Some(waiter) = &waiter
            && reply.claimed.jobs.is_empty()
            && !reply.overloaded
        {
            let mut over = false;
            tokio::select! {
                () = waiter.notified() => {}
                // A last look: why there is nothing may have changed meanwhile.
                () = &mut patience => over = true,
                // The block drops what it is handed, a guard that must not be held while waiting.
                () = async { drop(draining.wait_for(|draining| *draining).await) } => {
                    return Ok(self.drained(&request, reply.claimed.settled).into());
                }
            }
            let settled = reply.claimed.settled;
            reply = self.take(&request, Settlements::default()).await?;
            reply.claimed.settled = settled;
            if over {
                break;
            }
        }
        Ok(reply)
    }

    /// Settles, and takes what is there now.
    pub(super) async fn take(&self, request: &ClaimRequest, settle: Settlements) -> Result<ClaimReply, Error> {
        let Some(room) = request.budget.room_for_jobs() else {
            let settled = self.queues.settle(settle).await?;
            let claimed = Claimed { now: self.queues.now(), settled, ..Claimed::default() };
            return Ok(ClaimReply { claimed, held: None, overloaded: true });
        };
        let claim = Claim {
            shares: self.shares(request),
            max_jobs: request.max_jobs,
            max_bytes: request.max_bytes.min(room),
            lease_duration: request.lease_duration,
            worker_id: request.worker_id.clone(),
            request_id: request.request_id.clone(),
            settle,
        };
        let mut reply = ClaimReply::from(self.queues.claim(claim).await?);
        let ClaimReply { claimed, held, overloaded } = &mut reply;
        if !claimed.jobs.is_empty() {
            *held = request.budget.try_hold(claimed.in_hand.bytes() + claimed.jobs.len() * JOB_BYTES);
            *overloaded = held.is_none();
        }
        if *overloaded {
            // Dropped, they return to their old positions.
            claimed.jobs = Handover::default();
        }
        Ok(reply)
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
        let (reason, until) = (IdleReason::Draining, None);
        let idle = |queue: &QueueName| Idle { queue: queue.clone(), reason, until, breaker_key: String::new() };
        let idle = request.queues.iter().map(idle).collect();
        Claimed { now: self.queues.now(), idle, settled, ..Claimed::default() }
    }
}
