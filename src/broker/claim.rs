//! Claim: a worker asks for jobs, and waits for them if it likes.

use super::{Broker, Error, SettleReply, settle::named_once};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    store::{Claim, Claimed, Delivered, Idle, IdleReason, Settlements, Share, Store, Unanswered},
};
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
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// In turn; how often each queue's turn comes, in the order of the queues.
    RoundRobin { weights: Vec<u32> },
    /// The first queue that has work, always.
    Strict,
}

#[derive(Clone, Debug)]
pub struct ClaimReply {
    pub now: Timestamp,
    pub jobs: Vec<Delivered>,
    pub idle: Vec<Idle>,
    pub settled: SettleReply,
    /// Of the store: which answer this is.
    pub answer: u64,
}

impl<S: Store> Broker<S> {
    pub async fn claim(&self, mut request: ClaimRequest) -> Result<ClaimReply, Error> {
        let (settle, named_again) = named_once(std::mem::take(&mut request.settle));
        let mut draining = self.draining.subscribe();
        if *draining.borrow() {
            let settled = self.store.settle(self.ask(), settle).await?;
            return Ok(self.drained(&request, named_again.reply(settled)));
        }
        // Sitting down before looking: work that comes in between is not missed.
        let seat = (!request.wait.is_zero())
            .then(|| self.wakeups.sit(request.queues.clone(), request.max_jobs));
        let patience = tokio::time::sleep(request.wait);
        tokio::pin!(patience);

        let mut reply = self.look(&request, settle, |settled| named_again.reply(settled)).await?;
        while let Some(seat) = &seat
            && reply.jobs.is_empty()
        {
            tokio::select! {
                () = seat.woken() => {
                    let settled = reply.settled;
                    reply = self.look(&request, Settlements::default(), |_| settled).await?;
                }
                () = &mut patience => {
                    // A last look: why there is nothing may have changed meanwhile.
                    let settled = reply.settled;
                    return self.look(&request, Settlements::default(), |_| settled).await;
                }
                // The block drops what it is handed, a guard that must not be held while waiting.
                () = async { drop(draining.wait_for(|draining| *draining).await) } => {
                    return Ok(self.drained(&request, reply.settled));
                }
            }
        }
        Ok(reply)
    }

    /// For a claim whose answer never reached its caller: its jobs go back to their old places.
    pub fn unclaim(self: &Arc<Self>, unanswered: Unanswered) {
        let broker = self.clone();
        tokio::spawn(async move {
            if let Err(error) = broker.store.unclaim(unanswered).await {
                tracing::warn!(%error, "jobs of a caller who has gone wait for their leases to run out");
            }
        });
    }

    async fn look(
        &self,
        request: &ClaimRequest,
        settle: Settlements,
        reply: impl FnOnce(crate::store::Settled) -> SettleReply,
    ) -> Result<ClaimReply, Error> {
        let claimed = self.take(request, settle).await?;
        Ok(ClaimReply {
            now: claimed.now,
            jobs: claimed.jobs,
            idle: claimed.idle,
            settled: reply(claimed.settled),
            answer: claimed.answer,
        })
    }

    /// Settles, and takes what is there now.
    pub(super) async fn take(
        &self,
        request: &ClaimRequest,
        settle: Settlements,
    ) -> Result<Claimed, Error> {
        let claim = Claim {
            shares: self.shares(request),
            max_jobs: request.max_jobs,
            max_bytes: request.max_bytes,
            lease_duration: request.lease_duration,
            worker_id: request.worker_id.clone(),
            request_id: request.request_id.clone(),
            settle,
        };
        let mut claimed = self.store.claim(self.ask(), claim).await?;
        for idle in &mut claimed.idle {
            if idle.reason == IdleReason::NoSuchQueue && self.is_configured(&idle.queue) {
                idle.reason = IdleReason::Empty;
            }
        }
        Ok(claimed)
    }

    fn shares(&self, request: &ClaimRequest) -> Vec<Share> {
        match &request.order {
            Order::Strict => {
                let share = |queue: &QueueName| Share { queue: queue.clone(), first: usize::MAX };
                request.queues.iter().map(share).collect()
            }
            Order::RoundRobin { weights } => {
                let queues: Vec<_> =
                    request.queues.iter().cloned().zip(weights.iter().copied()).collect();
                self.turns.take(&queues, request.max_jobs)
            }
        }
    }

    fn drained(&self, request: &ClaimRequest, settled: SettleReply) -> ClaimReply {
        let idle = |queue: &QueueName| Idle {
            queue: queue.clone(),
            reason: IdleReason::Draining,
            until: None,
        };
        ClaimReply {
            now: self.store.now(),
            jobs: Vec::new(),
            idle: request.queues.iter().map(idle).collect(),
            settled,
            answer: 0,
        }
    }
}
