//! The calls: each runs one verb. Calls of one kind that wait for the same engine may be joined and run as one.

use super::context::{CallContext, after_some};
use super::enqueue::{self, Incoming};
use super::handover::UndeliveredClaim;
use super::refusal::{self, Error, Refusal};
use super::{
    breakers, cancel, claim, cross_queue, dead_letters, get_job, import, list_jobs, queues, requeue, settle, sweep,
    undelivered,
};
use crate::domain::{BreakerName, JobId, QueueName, Settings, Timestamp};
use crate::queue::{
    BreakerOrder, BreakerView, BreakerViews, Cancelled, Claim, Claimed, DeadCountQuery, DeadCounts, DeadLetterPage,
    DeadLetterQuery, Enqueued, Import, Imported, JobPage, JobQuery, JobView, NewPause, Purge, Purged, QueueView,
    Requeue, Requeued, Settled, Settlements, Stats, Sweep, Swept, sizes,
};
use crate::store::Result;
use crate::store::storage::{Batch, Mark, Reads, Storage, Write};
use std::{sync::Arc, time::Duration};

/// A queue that is empty and unused for so long is forgotten.
const QUEUE_FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// What a job takes of memory beside its texts, and a queue that a claim names.
const JOB_BYTES: usize = 512;
const SHARE_BYTES: usize = 128;

/// A call that changes something, and what comes with it.
#[derive(Debug)]
pub struct Call {
    pub settings: Arc<Settings>,
    pub seed: u64,
    pub verb: Verb,
}

#[derive(Debug)]
pub enum Verb {
    Enqueue(Vec<Incoming>),
    Claim(Claim),
    Settle(Settlements),
    Undelivered(UndeliveredClaim),
    /// Of these queues.
    Sweep(Sweep, Vec<QueueName>),
    /// When these queues next have something due.
    NextDue(Vec<QueueName>),
    /// The same, and what is ready in them: other servers may have done anything.
    Look(Vec<QueueName>),
    /// Makes those of the queues that are not there.
    Register(Vec<QueueName>),
    /// Forgets those of the queues that are empty and unused.
    Forget(Vec<QueueName>),
    /// When workers of this server asked for these queues: other servers are to know it.
    NoteClaims(Vec<(QueueName, Timestamp)>),
    Requeue(Requeue),
    Purge(Purge),
    Pause(QueueName, Option<NewPause>),
    Breakers(Vec<QueueName>),
    SetBreaker(BreakerName, BreakerOrder),
    /// With the caller's reason.
    Cancel(JobId, Option<QueueName>, String),
    RunNow(JobId, Option<QueueName>, String),
    Import(Box<Import>),
}

/// Each verb has the answer of its name; any may be refused.
#[derive(Debug)]
pub enum Answer {
    Refused(Refusal),
    Enqueue(Vec<Result<Enqueued, Refusal>>),
    /// None: another server works on the same request.
    Claim(Option<Claimed>),
    Settle(Settled),
    Done,
    /// With the next due time of each queue.
    Sweep(Swept, Vec<(QueueName, Option<Timestamp>)>),
    Requeue(Requeued),
    Purge(Purged),
    Breakers(Vec<BreakerViews>),
    SetBreaker(BreakerView),
    Cancel(Cancelled),
    Import(Vec<Imported>),
}

impl Call {
    /// About what it takes of memory and disk.
    pub fn bytes(&self) -> usize {
        match &self.verb {
            Verb::Enqueue(jobs) => jobs.iter().map(|job| job.bytes() + JOB_BYTES).sum(),
            Verb::Settle(settlements) => settlements.bytes(),
            Verb::Claim(claim) => claim.settle.bytes() + claim.shares.len() * SHARE_BYTES,
            Verb::Import(import) => import.jobs.iter().map(sizes::of_view).sum(),
            _ => 0,
        }
    }

    /// Jobs or settlements that it is about.
    pub fn items(&self) -> usize {
        self.parts().0.iter().sum()
    }

    /// It adds jobs: refused while the disk is nearly full.
    pub fn adds_jobs(&self) -> bool {
        matches!(self.verb, Verb::Enqueue(_) | Verb::Import(_))
    }

    /// It ends leases, or does what was accepted earlier: it finds room when others are refused.
    pub fn has_reserve(&self) -> bool {
        match &self.verb {
            Verb::Claim(claim) => !claim.settle.is_empty(),
            Verb::Settle(_) | Verb::Undelivered(_) | Verb::Sweep(..) | Verb::NextDue(_) | Verb::Look(_) => true,
            Verb::Register(_) | Verb::Forget(_) | Verb::NoteClaims(_) => true,
            Verb::Enqueue(_) | Verb::Requeue(_) | Verb::Purge(_) | Verb::Pause(..) | Verb::Breakers(_) => false,
            Verb::SetBreaker(..) | Verb::Cancel(..) | Verb::RunNow(..) | Verb::Import(_) => false,
        }
    }

    /// Whether it can run together with this one, as one call.
    pub fn joins(&self, other: &Self) -> bool {
        let same_kind = matches!(
            (&self.verb, &other.verb),
            (Verb::Enqueue(_), Verb::Enqueue(_)) | (Verb::Settle(_), Verb::Settle(_))
        );
        same_kind && Arc::ptr_eq(&self.settings, &other.settings)
    }

    /// Takes over what another call asks for.
    pub fn join(&mut self, other: Self) {
        match (&mut self.verb, other.verb) {
            (Verb::Enqueue(jobs), Verb::Enqueue(more)) => jobs.extend(more),
            (Verb::Settle(items), Verb::Settle(more)) => {
                items.acks.extend(more.acks);
                items.nacks.extend(more.nacks);
                items.extensions.extend(more.extensions);
            }
            _ => {}
        }
    }

    /// How many answers it wants, to be taken out of those of a joined call.
    pub fn parts(&self) -> Parts {
        match &self.verb {
            Verb::Enqueue(jobs) => Parts([jobs.len(), 0, 0]),
            Verb::Settle(items) => Parts([items.acks.len(), items.nacks.len(), items.extensions.len()]),
            _ => Parts([0; 3]),
        }
    }
}

/// Jobs; or acks, nacks and extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts([usize; 3]);

impl Answer {
    /// The answers of the calls that were joined, in their order.
    pub fn split(self, parts: &[Parts]) -> Vec<Self> {
        match self {
            Self::Enqueue(all) => {
                let mut all = all.into_iter();
                let own = |Parts([jobs, ..]): &Parts| all.by_ref().take(*jobs).collect();
                parts.iter().map(own).map(Self::Enqueue).collect()
            }
            Self::Settle(all) => {
                let (mut acks, mut nacks) = (all.acks.into_iter(), all.nacks.into_iter());
                let mut extensions = all.extensions.into_iter();
                let own = |Parts([a, n, e]): &Parts| Settled {
                    acks: acks.by_ref().take(*a).collect(),
                    nacks: nacks.by_ref().take(*n).collect(),
                    extensions: extensions.by_ref().take(*e).collect(),
                };
                parts.iter().map(own).map(Self::Settle).collect()
            }
            other => vec![other],
        }
    }
}

/// Runs a verb. What it publishes is in `cx.events`, for after the commit.
pub async fn run<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, verb: Verb) -> Result<Answer> {
    match answer(store, cx, verb).await {
        Ok(answer) => Ok(answer),
        Err(Error::Refused(refusal)) => Ok(Answer::Refused(refusal)),
        Err(Error::Store(error)) => {
            cx.failed();
            Err(after_some(error, cx.begun))
        }
    }
}

async fn answer<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, verb: Verb) -> refusal::Result<Answer> {
    Ok(match verb {
        Verb::Enqueue(jobs) => Answer::Enqueue(enqueue::enqueue(store, cx, jobs).await?),
        Verb::Claim(wanted) => Answer::Claim(claim::claim(store, cx, wanted).await?),
        Verb::Settle(items) => Answer::Settle(settle::settle(store, cx, items).await?),
        Verb::Undelivered(claim) => {
            undelivered::undelivered(store, cx, &claim).await?;
            Answer::Done
        }
        Verb::Sweep(mut wanted, queues) => {
            let (mut swept, mut next) = (Swept::default(), Vec::with_capacity(queues.len()));
            for queue in queues {
                let at = sweep::sweep(store, cx, &queue, wanted, &mut swept).await?;
                next.push((queue, at));
                // What was done took its time: that is not late.
                wanted.asked_at = wanted.asked_at.max(store.now());
            }
            Answer::Sweep(swept, next)
        }
        Verb::NextDue(queues) => {
            let mut next = Vec::with_capacity(queues.len());
            for queue in queues {
                let at = sweep::next_due(store, cx, &queue).await?;
                next.push((queue, at));
            }
            Answer::Sweep(Swept::default(), next)
        }
        Verb::Look(queues) => {
            for queue in queues {
                if let Some(at) = sweep::next_due(store, cx, &queue).await? {
                    cx.due(&queue, at);
                }
                sweep::tell_ready(store, cx, &queue).await?;
            }
            Answer::Done
        }
        Verb::Register(queues) => {
            for queue in queues {
                if !store.register(&queue, cx.limits.queues).await? {
                    tracing::warn!(%queue, "a configured queue cannot be made: there are {} queues", cx.limits.queues);
                }
            }
            Answer::Done
        }
        Verb::Forget(queues) => {
            forget(store, cx, queues).await?;
            Answer::Done
        }
        Verb::NoteClaims(claims) => {
            for (queue, at) in claims {
                let writes = vec![Write::Raise(Mark::LastClaim, at)];
                // There may be no such queue.
                store.apply(&queue, &Batch { writes, ..Batch::default() }).await?;
            }
            Answer::Done
        }
        Verb::Requeue(wanted) => Answer::Requeue(requeue::requeue(store, cx, wanted).await?),
        Verb::Purge(wanted) => Answer::Purge(requeue::purge(store, cx, wanted).await?),
        Verb::Pause(queue, wanted) => {
            breakers::pause(store, cx, &queue, wanted.as_ref()).await?;
            Answer::Done
        }
        Verb::Breakers(queues) => Answer::Breakers(breakers::breakers(store, cx, &queues).await?),
        Verb::SetBreaker(name, order) => Answer::SetBreaker(breakers::set_breaker(store, cx, &name, &order).await?),
        Verb::Cancel(id, queue, reason) => {
            Answer::Cancel(cancel::cancel(store, cx, &id, queue.as_ref(), &reason).await?)
        }
        Verb::RunNow(id, queue, reason) => {
            cancel::run_now(store, cx, &id, queue.as_ref(), &reason).await?;
            Answer::Done
        }
        Verb::Import(jobs) => Answer::Import(import::import(store, cx, *jobs).await?),
    })
}

async fn forget<S: Storage>(store: &mut S, cx: &CallContext<'_>, queues: Vec<QueueName>) -> Result<()> {
    // A queue that was used in the very millisecond stays.
    let unused = store.now().millis().saturating_sub(QUEUE_FORGOTTEN_AFTER.as_millis() as u64) + 1;
    for queue in queues {
        if cx.settings.queues.contains_key(&queue) {
            continue;
        }
        let Some(facts) = super::facts::QueueFacts::read(store, &queue).await? else { continue };
        let at_rest =
            facts.queue.pause.is_none() && facts.breaker.is_at_rest() && facts.queue.dead_letters.is_at_rest();
        if at_rest && store.forget(&queue, Timestamp::from_millis(unused)).await? {
            cx.memory.forget(&queue);
        }
    }
    Ok(())
}

// ---- views ----

/// A call that only reads.
#[derive(Debug)]
pub enum View {
    Job(JobId, Option<QueueName>),
    JobOfKey(QueueName, String),
    DeadLetters(DeadLetterQuery),
    DeadLetterCounts(DeadCountQuery),
    Queues(Option<QueueName>, usize),
    Stats(Option<QueueName>),
    Jobs(JobQuery),
    /// The names alone.
    Names,
    /// How many jobs are on their way from one queue to another.
    Moving,
}

/// Each view has the answer of its name, that of a key a job's; any may be refused.
#[derive(Debug)]
pub enum Viewed {
    Refused(Refusal),
    Job(Vec<JobView>),
    DeadLetters(DeadLetterPage),
    DeadLetterCounts(DeadCounts),
    Queues(Vec<QueueView>),
    Stats(Stats),
    Jobs(JobPage),
    Names(Vec<QueueName>),
    Moving(u64),
}

pub async fn view<S: Reads>(store: &mut S, view: View) -> Result<Viewed> {
    match viewed(store, view).await {
        Ok(viewed) => Ok(viewed),
        Err(Error::Refused(refusal)) => Ok(Viewed::Refused(refusal)),
        Err(Error::Store(error)) => Err(error),
    }
}

async fn viewed<S: Reads>(store: &mut S, view: View) -> refusal::Result<Viewed> {
    Ok(match view {
        View::Job(id, queue) => Viewed::Job(get_job::job(store, &id, queue.as_ref()).await?),
        View::JobOfKey(queue, key) => Viewed::Job(get_job::job_of_key(store, &queue, &key).await?),
        View::DeadLetters(query) => Viewed::DeadLetters(dead_letters::dead_letters(store, &query).await?),
        View::DeadLetterCounts(query) => {
            Viewed::DeadLetterCounts(dead_letters::dead_letter_counts(store, &query).await?)
        }
        View::Queues(after, limit) => Viewed::Queues(queues::queues(store, after.as_ref(), limit).await?),
        View::Stats(queue) => Viewed::Stats(queues::stats(store, queue.as_ref()).await?),
        View::Jobs(query) => Viewed::Jobs(list_jobs::jobs(store, &query).await?),
        View::Moving => Viewed::Moving(cross_queue::moving(store).await?),
        View::Names => Viewed::Names(queues::all_queues(store).await?),
    })
}
