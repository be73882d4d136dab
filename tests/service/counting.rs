//! A store that counts how often claims look into it, and otherwise does what the one inside does.

use redrive::{
    domain::{
        breaker::BreakerName,
        ids::{JobId, QueueName},
        job::NewJob,
        time::Timestamp,
    },
    store::{
        Ask, BreakerOrder, BreakerView, BreakerViews, Cancelled, Claim, Claimed, DeadCountQuery,
        DeadCounts, DeadLetterPage, DeadLetterQuery, Enqueued, Health, JobPage, JobQuery,
        JobRefused, JobView, NewPause, Newcomers, Purge, PurgeRefused, Purged, QueueRefused,
        QueueView, Refused, Requeue, RequeueRefused, Requeued, Settled, Settlements, Stats, Store,
        StoreError, Sweep, Swept, TakenIn, Unanswered,
    },
};
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Counting<S> {
    inner: S,
    looks: watch::Sender<usize>,
}

impl<S> Counting<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, looks: watch::Sender::new(0) }
    }

    /// Claims that have looked so far.
    pub(crate) fn looks(&self) -> usize {
        *self.looks.borrow()
    }

    /// Resolves once so many claims have looked.
    pub(crate) async fn looked(&self, times: usize) {
        let mut looks = self.looks.subscribe();
        looks.wait_for(|looks| *looks >= times).await.expect("the sender is here");
    }
}

impl<S: Store> Store for Counting<S> {
    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    async fn enqueue(
        &self,
        ask: Ask,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Result<Enqueued, Refused>>, StoreError> {
        self.inner.enqueue(ask, jobs).await
    }

    async fn claim(&self, ask: Ask, claim: Claim) -> Result<Claimed, StoreError> {
        let claimed = self.inner.claim(ask, claim).await;
        self.looks.send_modify(|looks| *looks += 1);
        claimed
    }

    async fn settle(&self, ask: Ask, settlements: Settlements) -> Result<Settled, StoreError> {
        self.inner.settle(ask, settlements).await
    }

    async fn unclaim(&self, unanswered: Unanswered) -> Result<(), StoreError> {
        self.inner.unclaim(unanswered).await
    }

    async fn sweep(&self, ask: Ask, sweep: Sweep) -> Result<Swept, StoreError> {
        self.inner.sweep(ask, sweep).await
    }

    async fn requeue(
        &self,
        ask: Ask,
        requeue: Requeue,
    ) -> Result<Result<Requeued, RequeueRefused>, StoreError> {
        self.inner.requeue(ask, requeue).await
    }

    async fn purge(&self, purge: Purge) -> Result<Result<Purged, PurgeRefused>, StoreError> {
        self.inner.purge(purge).await
    }

    async fn job(&self, id: JobId, queue: Option<QueueName>) -> Result<Vec<JobView>, StoreError> {
        self.inner.job(id, queue).await
    }

    async fn dead_letters(
        &self,
        query: DeadLetterQuery,
    ) -> Result<Option<DeadLetterPage>, StoreError> {
        self.inner.dead_letters(query).await
    }

    async fn dead_letter_counts(&self, query: DeadCountQuery) -> Result<DeadCounts, StoreError> {
        self.inner.dead_letter_counts(query).await
    }

    async fn queues(
        &self,
        after: Option<QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueView>, StoreError> {
        self.inner.queues(after, limit).await
    }

    async fn pause(
        &self,
        ask: Ask,
        queue: QueueName,
        pause: Option<NewPause>,
    ) -> Result<Result<(), QueueRefused>, StoreError> {
        self.inner.pause(ask, queue, pause).await
    }

    async fn breakers(
        &self,
        ask: Ask,
        queues: Vec<QueueName>,
    ) -> Result<Vec<BreakerViews>, StoreError> {
        self.inner.breakers(ask, queues).await
    }

    async fn set_breaker(
        &self,
        ask: Ask,
        name: BreakerName,
        order: BreakerOrder,
    ) -> Result<Result<BreakerView, QueueRefused>, StoreError> {
        self.inner.set_breaker(ask, name, order).await
    }

    async fn cancel(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<Cancelled, JobRefused>, StoreError> {
        self.inner.cancel(id, queue).await
    }

    async fn run_now(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<(), JobRefused>, StoreError> {
        self.inner.run_now(id, queue).await
    }

    async fn jobs(&self, query: JobQuery) -> Result<Option<JobPage>, StoreError> {
        self.inner.jobs(query).await
    }

    async fn stats(&self, queue: Option<QueueName>) -> Result<Option<Stats>, StoreError> {
        self.inner.stats(queue).await
    }

    async fn take_in(
        &self,
        ask: Ask,
        newcomers: Newcomers,
    ) -> Result<Result<Vec<TakenIn>, Refused>, StoreError> {
        self.inner.take_in(ask, newcomers).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn notices(&self) -> Vec<String> {
        self.inner.notices()
    }

    fn outages(&self) -> u64 {
        self.inner.outages()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
