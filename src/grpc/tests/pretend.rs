//! A store that only pretends.

use crate::{
    domain::{
        ids::{JobId, QueueName},
        job::{NewJob, State},
        lease::Lease,
        time::Timestamp,
    },
    store::*,
};
use std::sync::{Arc, Mutex};

/// Has no jobs and takes any.
#[derive(Debug)]
pub(super) struct Pretend {
    pub(super) health: Mutex<Health>,
    pub(super) enqueued: Mutex<Vec<NewJob>>,
}

impl Store for Arc<Pretend> {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_000_000)
    }

    async fn enqueue(
        &self,
        _: Ask,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Result<Enqueued, Refused>>, StoreError> {
        let answer = |job: &NewJob| match job.job_type.as_str() {
            "full" => Err(Refused::QueueFull { limit: 1 }),
            _ => Ok(Enqueued {
                id: JobId::parse("made"),
                deduplicated: false,
                state: State::Ready,
                run_at: Some(self.now()),
            }),
        };
        let answers = jobs.iter().map(answer).collect();
        self.enqueued.lock().unwrap().extend(jobs);
        Ok(answers)
    }

    async fn claim(&self, _: Ask, claim: Claim) -> Result<Claimed, StoreError> {
        let idle =
            |share: Share| Idle { queue: share.queue, reason: IdleReason::Empty, until: None };
        let idle = claim.shares.into_iter().map(idle).collect();
        Ok(Claimed { now: self.now(), idle, ..Claimed::default() })
    }

    async fn settle(&self, _: Ask, settlements: Settlements) -> Result<Settled, StoreError> {
        Ok(Settled {
            acks: settlements.acks.iter().map(|_| Ok(Acked { already_gone: true })).collect(),
            nacks: settlements.nacks.iter().map(|_| Err(LeaseLost)).collect(),
            extends: settlements.extends.iter().map(|_| Err(LeaseLost)).collect(),
        })
    }

    async fn unclaim(&self, _: Vec<Lease>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn sweep(&self, _: Ask, _: Sweep) -> Result<Swept, StoreError> {
        Ok(Swept::default())
    }

    async fn requeue(
        &self,
        _: Ask,
        _: Requeue,
    ) -> Result<Result<Requeued, RequeueRefused>, StoreError> {
        Ok(Err(RequeueRefused::NoSuchQueue))
    }

    async fn job(&self, _: JobId, _: Option<QueueName>) -> Result<Vec<JobView>, StoreError> {
        Ok(Vec::new())
    }

    async fn dead_letters(&self, _: DeadLetterQuery) -> Result<Option<DeadLetterPage>, StoreError> {
        Ok(Some(DeadLetterPage { jobs: Vec::new(), next: None, total: 0 }))
    }

    async fn queues(&self, _: Option<QueueName>, _: usize) -> Result<Vec<QueueView>, StoreError> {
        Err(StoreError::Unavailable("pretending".into()))
    }

    fn health(&self) -> Health {
        self.health.lock().unwrap().clone()
    }

    async fn close(&self) {}
}
