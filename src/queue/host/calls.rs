//! The store's calls, each handed to its verb.

use super::{Host, IN_PROGRESS, Queues, SWEPT_AT_ONCE, wrong_answer};
use crate::domain::{BreakerKind, BreakerName, DeadPart, JobId, NewJob, QueueName, Timestamp};
use crate::queue::api::{Answer, Verb, View, Viewed};
use crate::queue::enqueue::Incoming;
use crate::queue::find;
use crate::queue::handover::UndeliveredClaim;
use crate::queue::refusal::{Error, Refusal, Result};
use crate::queue::settle::named_once;
use crate::queue::{
    BreakerOrder, BreakerView, BreakerViews, Cancelled, Claim, Claimed, DeadCountQuery, DeadCounts, DeadLetterPage,
    DeadLetterQuery, Enqueued, Import, Imported, JobPage, JobQuery, JobView, NewPause, Purge, Purged, QueueView,
    Requeue, Requeued, Settled, Settlements, Stats, Sweep, Swept,
};
use crate::store::{self, Health};

/// Each call has the answer of its name; another one says nothing about what was written.
macro_rules! answer {
    ($answer:expr, $own:path) => {
        match $answer {
            $own(answer) => Ok(answer),
            _ => Err(Error::from(wrong_answer())),
        }
    };
}

impl<H: Host> Queues<H> {
    /// Store time.
    pub fn now(&self) -> Timestamp {
        self.host.now()
    }

    /// Adds jobs; each is added or refused by itself. Durable when answered.
    pub async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Result<Enqueued, Refusal>>> {
        let jobs = jobs.into_iter().map(Incoming::new).collect();
        answer!(self.call(Verb::Enqueue(jobs)).await?, Answer::Enqueue)
    }

    /// Settles, then leases what is there, in one transaction. Never waits for work.
    ///
    /// If the answer does not reach its caller, the jobs return to their old positions: at once, or after
    /// [`crate::queue::ABANDONED_CLAIM_KEPT`] where the call has a request id, so that repeating it finds them.
    pub async fn claim(&self, mut claim: Claim) -> Result<Claimed> {
        self.note_claims(claim.shares.iter().map(|share| &share.queue));
        self.follow().await?;
        let (settle, named_again) = named_once(std::mem::take(&mut claim.settle));
        let (mut settle, mut first_settled, mut turn) = (Some(settle), None, None);
        loop {
            // What it settles is settled the first time.
            let wanted = Claim { settle: settle.take().unwrap_or_default(), ..claim.clone() };
            let answer = self.submit(Verb::Claim(wanted), claim.request_id.clone())?;
            match self.answer(answer).await? {
                Answer::Claim(Some(claimed)) if claimed.crowded => {
                    first_settled.get_or_insert(claimed.settled);
                    // In turn: all of them at once would keep the store from those that free what is in hand.
                    if turn.is_none() {
                        turn = self.crowded.acquire().await.ok();
                    }
                    tokio::time::sleep(IN_PROGRESS).await;
                }
                Answer::Claim(Some(mut claimed)) => {
                    claimed.settled = first_settled.unwrap_or(claimed.settled);
                    named_again.put_back(&mut claimed.settled);
                    return Ok(claimed);
                }
                Answer::Claim(None) => tokio::time::sleep(IN_PROGRESS).await,
                _ => return Err(wrong_answer().into()),
            }
        }
    }

    /// Workers wait for jobs of these queues.
    pub fn note_claims<'q>(&self, queues: impl Iterator<Item = &'q QueueName>) {
        self.notifier.memory().claimed(queues, self.host.now());
    }

    /// The queues that workers of this server have asked for, whether they are there.
    pub fn claimed_queues(&self) -> Vec<QueueName> {
        self.notifier.memory().claimed_queues()
    }

    /// Ends or prolongs leases, in the order acks, nacks, extensions.
    pub async fn settle(&self, settlements: Settlements) -> Result<Settled> {
        let (settlements, named_again) = named_once(settlements);
        let mut settled = answer!(self.call(Verb::Settle(settlements)).await?, Answer::Settle)?;
        named_again.put_back(&mut settled);
        Ok(settled)
    }

    /// Takes back jobs whose claim was never answered. A lease that has ended, or that a later answer handed out again, is
    /// passed over; a job that was cancelled while it was out is removed.
    pub async fn unclaim(&self, undelivered: UndeliveredClaim) -> Result<()> {
        Ok(self.run(Verb::Undelivered(undelivered)).await.map(drop)?)
    }

    /// Does a bounded part of what time has made due: promotions, ended leases and pauses, deadlines, dead letters and
    /// completed jobs whose retention is over, forgotten keys.
    pub async fn sweep(&self, sweep: Sweep) -> store::Result<Swept> {
        self.follow().await?;
        self.schedule_all().await?;
        let now = self.host.now();
        let due = self.notifier.take_due(now, SWEPT_AT_ONCE);
        // A claim that was not delivered makes its queue due: what was noted since the last look is returned before the note
        // is gone.
        let swept = match self.return_undelivered().await {
            Ok(()) => self.run(Verb::Sweep(sweep, due.clone())).await,
            Err(error) => Err(error),
        };
        match swept {
            Ok(Answer::Sweep(mut swept, next)) => {
                swept.next = self.notifier.swept(&next);
                self.tidy().await?;
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

    /// Sends dead letters back to work.
    pub async fn requeue(&self, requeue: Requeue) -> Result<Requeued> {
        answer!(self.call(Verb::Requeue(requeue)).await?, Answer::Requeue)
    }

    /// Removes dead letters for good.
    pub async fn purge(&self, purge: Purge) -> Result<Purged> {
        answer!(self.call(Verb::Purge(purge)).await?, Answer::Purge)
    }

    /// The jobs of this id, with their history: one in each queue that has it.
    pub async fn jobs_of_id(&self, id: JobId, queue: Option<QueueName>) -> Result<Vec<JobView>> {
        answer!(self.view(View::Job(id, queue)).await?, Viewed::Job)
    }

    /// The one job of this id.
    pub async fn job(&self, id: JobId, queue: Option<QueueName>) -> Result<JobView> {
        let found = self.jobs_of_id(id.clone(), queue.clone()).await?;
        find::only(&id, queue.as_ref(), found, |view| &view.queue).map_err(|refusal| self.refused(refusal))
    }

    /// The job that last had this key.
    pub async fn job_of_key(&self, queue: QueueName, key: String) -> Result<JobView> {
        let found: Vec<JobView> = answer!(self.view(View::JobOfKey(queue.clone(), key.clone())).await?, Viewed::Job)?;
        let not_found = || find::key_not_found(&key, &queue);
        found.into_iter().next().ok_or_else(|| self.refused(not_found()))
    }

    /// A page of dead letters in their order of death.
    pub async fn dead_letters(&self, query: DeadLetterQuery) -> Result<DeadLetterPage> {
        answer!(self.view(View::DeadLetters(query)).await?, Viewed::DeadLetters)
    }

    /// Dead letters, counted.
    pub async fn dead_letter_counts(&self, query: DeadCountQuery) -> Result<DeadCounts> {
        answer!(self.view(View::DeadLetterCounts(query)).await?, Viewed::DeadLetterCounts)
    }

    /// Queues by name, those after `after`.
    pub async fn queues(&self, after: Option<QueueName>, limit: usize) -> Result<Vec<QueueView>> {
        let mut queues: Vec<QueueView> = answer!(self.view(View::Queues(after, limit)).await?, Viewed::Queues)?;
        for queue in &mut queues {
            // What the store has is of all servers, and a little older.
            queue.last_claim_at = queue.last_claim_at.max(self.notifier.memory().last_claim(&queue.name));
        }
        Ok(queues)
    }

    /// Refused where there is no such queue.
    pub async fn check_queue(&self, queue: &QueueName) -> Result<()> {
        let part = DeadPart { queue: queue.clone(), overflow_only: false };
        let (search, full) = (None, false);
        let query = DeadLetterQuery { part, after: 0, limit: 0, search, full, max_bytes: 0 };
        self.dead_letters(query).await.map(drop)
    }

    /// What was counted since a queue was made; the sum over all queues where none is named.
    pub async fn stats(&self, queue: Option<QueueName>) -> Result<Stats> {
        answer!(self.view(View::Stats(queue)).await?, Viewed::Stats)
    }

    /// Pauses a queue, in place of an earlier pause, or with `None` resumes it. A configured queue is made if need be.
    pub async fn pause(&self, queue: QueueName, pause: Option<NewPause>) -> Result<()> {
        self.call(Verb::Pause(queue, pause)).await.map(drop)
    }

    /// The breakers of each queue; those of a queue that is not there are as new.
    pub async fn breakers(&self, queues: Vec<QueueName>) -> Result<Vec<BreakerViews>> {
        answer!(self.call(Verb::Breakers(queues)).await?, Answer::Breakers)
    }

    pub async fn breaker(&self, name: &BreakerName) -> Result<BreakerView> {
        self.check_queue(&name.queue).await.map_err(|error| match error {
            Error::Refused(_) => Refusal::BreakerNotFound { name: name.to_string() }.into(),
            error => error,
        })?;
        let views = self.breakers(vec![name.queue.clone()]).await?.pop().unwrap_or_default();
        let of_key = |view: &BreakerView| view.breaker.key == name.key;
        match name.kind {
            BreakerKind::Work if name.key.is_empty() => Some(views.work),
            BreakerKind::Work => views.keys.into_iter().find(of_key),
            BreakerKind::DeadLetters => Some(views.dead_letters),
        }
        .ok_or_else(|| Refusal::BreakerNotFound { name: name.to_string() }.into())
    }

    /// The breakers of every queue by its name: each queue's own, those of its breaker keys, that of its dead letters; those after
    /// `after`.
    pub async fn breakers_after(
        &self, after: Option<BreakerName>, limit: usize,
    ) -> Result<Vec<(BreakerName, BreakerView)>> {
        // Of the queue where the page before ended, some may be left.
        let begun = after.as_ref().map(|after| after.queue.clone());
        let queues = self.queues(begun.clone(), limit).await?;
        let names: Vec<_> = begun.into_iter().chain(queues.into_iter().map(|queue| queue.name)).collect();
        let views = self.breakers(names.clone()).await?;
        let all = names.into_iter().zip(views).flat_map(|(queue, BreakerViews { work, keys, dead_letters })| {
            let of = |kind| move |view: BreakerView| (kind, view);
            let work = std::iter::once(work).chain(keys).map(of(BreakerKind::Work));
            let views = work.chain(std::iter::once(dead_letters).map(of(BreakerKind::DeadLetters)));
            let name = move |(kind, view): (BreakerKind, BreakerView)| {
                (BreakerName { queue: queue.clone(), kind, key: view.breaker.key.clone() }, view)
            };
            views.map(name)
        });
        let order = |name: &BreakerName| (name.queue.clone(), name.kind == BreakerKind::DeadLetters, name.key.clone());
        let last = after.as_ref().map(order);
        Ok(all.filter(|(name, _)| last.as_ref().is_none_or(|last| order(name) > *last)).take(limit).collect())
    }

    /// Forces or resets a breaker. A configured queue is made if need be.
    pub async fn set_breaker(&self, name: BreakerName, order: BreakerOrder) -> Result<BreakerView> {
        answer!(self.call(Verb::SetBreaker(name, order)).await?, Answer::SetBreaker)
    }

    /// Removes a job that waits, or asks for the end of one that is leased.
    pub async fn cancel(&self, id: JobId, queue: Option<QueueName>, reason: String) -> Result<Cancelled> {
        answer!(self.call(Verb::Cancel(id, queue, reason)).await?, Answer::Cancel)
    }

    /// SCHEDULED → READY now; a READY one stays as it is.
    pub async fn run_now(&self, id: JobId, queue: Option<QueueName>, reason: String) -> Result<()> {
        self.call(Verb::RunNow(id, queue, reason)).await.map(drop)
    }

    /// A page of a queue's jobs.
    pub async fn jobs(&self, query: JobQuery) -> Result<JobPage> {
        answer!(self.view(View::Jobs(query)).await?, Viewed::Jobs)
    }

    /// Adds jobs of another store under their own ids, each by itself; makes their queue if need be.
    pub async fn import(&self, import: Import) -> Result<Vec<Imported>> {
        answer!(self.call(Verb::Import(Box::new(import))).await?, Answer::Import)
    }

    /// Whether the engine can take writes, and if not, why.
    pub fn health(&self) -> Health {
        self.host.health()
    }

    /// What operators should know of how the engine does, oldest first; empty when all is well.
    pub fn warnings(&self) -> Vec<String> {
        self.host.warnings()
    }

    /// How often the engine was out of reach for longer than leases bear, and has come back.
    pub fn outages(&self) -> u64 {
        self.host.outages()
    }

    /// Lets what was accepted become durable, then closes. Later calls are refused.
    pub async fn close(&self) {
        // Jobs of callers that have gone return now: later no process remembers them.
        drop(self.return_undelivered().await);
        self.host.close().await;
    }
}
