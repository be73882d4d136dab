//! The store's calls, each handed to its verb.

use super::{Fetch, Host, IN_PROGRESS, Queues, SWEPT_AT_ONCE, unanswered, wrong_answer};
use crate::{
    domain::{
        breaker::BreakerName,
        ids::{JobId, QueueName},
        job::NewJob,
        time::Timestamp,
    },
    queue::{
        api::{Answer, Call, Verb, View, Viewed},
        enqueue::Incoming,
    },
    store::{
        Ask, BreakerOrder, BreakerView, BreakerViews, Cancelled, Claim, Claimed, DeadCountQuery,
        DeadCounts, DeadLetterPage, DeadLetterQuery, Enqueued, Health, JobPage, JobQuery,
        JobRefused, JobView, NewPause, Newcomers, Purge, PurgeRefused, Purged, QueueRefused,
        QueueView, Refused, Requeue, RequeueRefused, Requeued, Settled, Settlements, Stats, Store,
        StoreError, Sweep, Swept, TakenIn, Unanswered,
    },
};

impl<H: Host> Store for Queues<H> {
    fn now(&self) -> Timestamp {
        self.host.now()
    }

    async fn enqueue(
        &self,
        ask: Ask,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Result<Enqueued, Refused>>, StoreError> {
        let jobs = jobs.into_iter().map(Incoming::new).collect();
        match self.call(ask, Verb::Enqueue(jobs)).await? {
            Answer::Enqueue(results) => Ok(results),
            _ => Err(wrong_answer()),
        }
    }

    async fn claim(&self, ask: Ask, claim: Claim) -> Result<Claimed, StoreError> {
        self.follow(&ask.settings).await?;
        let request_id = claim.request_id.clone();
        let mut settle = claim.clone();
        let mut claim = Some(claim);
        loop {
            let verb = Verb::Claim(claim.take().unwrap_or_else(|| settle.clone()));
            let call = Call { settings: ask.settings.clone(), seed: ask.seed, verb };
            let (reply, answer) = self.reply(request_id.clone());
            let mut fetch = Fetch { notifier: &self.notifier, answer, request_id: &request_id };
            self.host.submit(call, reply)?;
            match (&mut fetch.answer).await.unwrap_or_else(|_| Err(unanswered()))? {
                Answer::Claim(Some(claimed)) => return Ok(claimed),
                Answer::Claim(None) => {}
                _ => return Err(wrong_answer()),
            }
            // What it settles has been settled.
            settle.settle = Settlements::default();
            tokio::time::sleep(IN_PROGRESS).await;
        }
    }

    async fn settle(&self, ask: Ask, settlements: Settlements) -> Result<Settled, StoreError> {
        match self.call(ask, Verb::Settle(settlements)).await? {
            Answer::Settle(settled) => Ok(settled),
            _ => Err(wrong_answer()),
        }
    }

    async fn unclaim(&self, unanswered: Unanswered) -> Result<(), StoreError> {
        let seed = unanswered.answer;
        self.run(self.last_settings(), seed, Verb::Undelivered(unanswered)).await.map(drop)
    }

    async fn sweep(&self, ask: Ask, sweep: Sweep) -> Result<Swept, StoreError> {
        self.follow(&ask.settings).await?;
        self.schedule_all(&ask.settings).await?;
        let now = self.host.now();
        let due = self.notifier.take_due(now, SWEPT_AT_ONCE);
        if due.is_empty() {
            self.tidy(&ask).await?;
            return Ok(Swept { next: self.notifier.swept(&[]), ..Swept::default() });
        }
        // A claim that was not delivered makes its queue due: what was noted since the last look is returned before the note
        // is gone.
        let verb = Verb::Sweep(sweep, due.clone());
        let swept = match self.return_undelivered(&ask.settings).await {
            Ok(()) => self.run(ask.settings.clone(), ask.seed, verb).await,
            Err(error) => Err(error),
        };
        match swept {
            Ok(Answer::Sweep(mut swept, next)) => {
                swept.next = self.notifier.swept(&next);
                self.tidy(&ask).await?;
                Ok(swept)
            }
            Ok(_) => Err(wrong_answer()),
            Err(error) => {
                let again: Vec<_> = due.into_iter().map(|queue| (queue, Some(now))).collect();
                self.notifier.swept(&again);
                Err(error)
            }
        }
    }

    async fn requeue(
        &self,
        ask: Ask,
        requeue: Requeue,
    ) -> Result<Result<Requeued, RequeueRefused>, StoreError> {
        match self.call(ask, Verb::Requeue(requeue)).await? {
            Answer::Requeue(requeued) => Ok(requeued),
            _ => Err(wrong_answer()),
        }
    }

    async fn purge(&self, purge: Purge) -> Result<Result<Purged, PurgeRefused>, StoreError> {
        let ask = Ask { settings: self.last_settings(), seed: 0 };
        match self.call(ask, Verb::Purge(purge)).await? {
            Answer::Purge(purged) => Ok(purged),
            _ => Err(wrong_answer()),
        }
    }

    async fn job(&self, id: JobId, queue: Option<QueueName>) -> Result<Vec<JobView>, StoreError> {
        match self.host.view(View::Job(id, queue)).await? {
            Viewed::Job(views) => Ok(views),
            _ => Err(wrong_answer()),
        }
    }

    async fn dead_letters(
        &self,
        query: DeadLetterQuery,
    ) -> Result<Option<DeadLetterPage>, StoreError> {
        match self.host.view(View::DeadLetters(query)).await? {
            Viewed::DeadLetters(page) => Ok(page),
            _ => Err(wrong_answer()),
        }
    }

    async fn dead_letter_counts(&self, query: DeadCountQuery) -> Result<DeadCounts, StoreError> {
        match self.host.view(View::DeadLetterCounts(query)).await? {
            Viewed::DeadLetterCounts(counts) => Ok(counts),
            _ => Err(wrong_answer()),
        }
    }

    async fn queues(
        &self,
        after: Option<QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueView>, StoreError> {
        match self.host.view(View::Queues(after, limit)).await? {
            Viewed::Queues(queues) => Ok(queues),
            _ => Err(wrong_answer()),
        }
    }

    async fn stats(&self, queue: Option<QueueName>) -> Result<Option<Stats>, StoreError> {
        match self.host.view(View::Stats(queue)).await? {
            Viewed::Stats(stats) => Ok(stats),
            _ => Err(wrong_answer()),
        }
    }

    async fn pause(
        &self,
        ask: Ask,
        queue: QueueName,
        pause: Option<NewPause>,
    ) -> Result<Result<(), QueueRefused>, StoreError> {
        match self.call(ask, Verb::Pause(queue, pause)).await? {
            Answer::Pause(paused) => Ok(paused),
            _ => Err(wrong_answer()),
        }
    }

    async fn breakers(
        &self,
        ask: Ask,
        queues: Vec<QueueName>,
    ) -> Result<Vec<BreakerViews>, StoreError> {
        match self.call(ask, Verb::Breakers(queues)).await? {
            Answer::Breakers(views) => Ok(views),
            _ => Err(wrong_answer()),
        }
    }

    async fn set_breaker(
        &self,
        ask: Ask,
        name: BreakerName,
        order: BreakerOrder,
    ) -> Result<Result<BreakerView, QueueRefused>, StoreError> {
        match self.call(ask, Verb::SetBreaker(name, order)).await? {
            Answer::SetBreaker(view) => Ok(view),
            _ => Err(wrong_answer()),
        }
    }

    async fn cancel(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<Cancelled, JobRefused>, StoreError> {
        let ask = Ask { settings: self.last_settings(), seed: 0 };
        match self.call(ask, Verb::Cancel(id, queue)).await? {
            Answer::Cancel(cancelled) => Ok(cancelled),
            _ => Err(wrong_answer()),
        }
    }

    async fn run_now(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<(), JobRefused>, StoreError> {
        let ask = Ask { settings: self.last_settings(), seed: 0 };
        match self.call(ask, Verb::RunNow(id, queue)).await? {
            Answer::RunNow(done) => Ok(done),
            _ => Err(wrong_answer()),
        }
    }

    async fn jobs(&self, query: JobQuery) -> Result<Option<JobPage>, StoreError> {
        match self.host.view(View::Jobs(query)).await? {
            Viewed::Jobs(page) => Ok(page),
            _ => Err(wrong_answer()),
        }
    }

    async fn take_in(
        &self,
        ask: Ask,
        newcomers: Newcomers,
    ) -> Result<Result<Vec<TakenIn>, Refused>, StoreError> {
        match self.call(ask, Verb::Import(newcomers)).await? {
            Answer::Import(taken) => Ok(taken),
            _ => Err(wrong_answer()),
        }
    }

    fn health(&self) -> Health {
        self.host.health()
    }

    fn notices(&self) -> Vec<String> {
        self.host.warnings()
    }

    fn outages(&self) -> u64 {
        self.host.outages()
    }

    async fn close(&self) {
        // Jobs of callers who have gone return now: later no process remembers them.
        drop(self.return_undelivered(&self.last_settings()).await);
        self.host.close().await;
    }
}
