//! Every job of one store is copied to another, with all that it has been through.
//!
//! The source is only read. What is in the target already is passed over by its id, so a copy that was cut off is
//! completed by beginning it again. No server may work with either of them meanwhile.

use crate::domain::{DeadReason, QueueName, State};
use crate::queue::{self, Host, Queues, Refusal};
use crate::queue::{
    BreakerViews, Depths, IMPORT_MAX, Import, Imported, JobPage, JobQuery, JobView, QueueHolds, QueueView,
};
use std::collections::HashMap;
use std::ops::Add;

/// Bytes that are on their way at the same time, about.
const PAGE_BYTES: usize = 8 << 20;
const QUEUES_AT_ONCE: usize = 1_000;
/// More is counted, but not listed.
const PROBLEMS_MAX: usize = 1_000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the source: {0}")]
    Source(queue::Error),
    #[error("the target: {0}")]
    Target(queue::Error),
    #[error("the target has no room for the queue {queue}: it may have {limit} queues")]
    TooManyQueues { queue: QueueName, limit: usize },
}

/// Called with the progress of a queue's copy: how many jobs of how many.
pub type OnProgress<'a> = dyn FnMut(&QueueName, u64, u64) + Send + 'a;

/// How [`Counts`] are named.
pub const STATES: [&str; 5] = ["waiting", "dead", "overflow", "completed", "cancelled"];

/// Jobs by where they are: waiting, dead (overflow included), overflow, completed, cancelled. Whether one that waits is READY or SCHEDULED is
/// a matter of the clock, and one that was leased waits again: they are counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub [u64; STATES.len()]);

impl Counts {
    fn of(depths: &Depths) -> Self {
        let Depths { ready, scheduled, retrying, leased, completed, cancelled, dead, overflow } = *depths;
        Self([ready + scheduled + retrying + leased, dead, overflow, completed, cancelled])
    }

    fn one(job: &JobView) -> Self {
        let overflow = job.death.as_ref().is_some_and(|death| death.overflow);
        let [dead, completed, cancelled] =
            [State::Dead, State::Completed, State::Cancelled].map(|state| job.state == state);
        Self([!dead && !completed && !cancelled, dead, overflow, completed, cancelled].map(u64::from))
    }

    pub fn jobs(&self) -> u64 {
        let [waiting, dead, _, completed, cancelled] = self.0;
        waiting + dead + completed + cancelled
    }

    /// The states that other counts differ in, with both.
    fn differences(&self, other: &Self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let pairs = self.0.into_iter().zip(other.0);
        let named = STATES.into_iter().zip(pairs).map(|(state, (one, other))| (state, one, other));
        named.filter(|(_, one, other)| one != other)
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|state| self.0[state] + other.0[state]))
    }
}

/// What a copy came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub queues: Vec<MovedQueue>,
    /// What is not as it should be; empty: everything is there.
    pub problems: Vec<String>,
    /// Found, but not listed.
    pub left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedQueue {
    pub name: QueueName,
    /// In the source.
    pub source: Counts,
    /// To the target, by this copy.
    pub added: Counts,
    /// Those that the target had already.
    pub there: Counts,
}

impl Report {
    pub fn is_whole(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, queue: &QueueName, what: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(format!("queue {queue}: {what}"));
        } else {
            self.left_out += 1;
        }
    }

    /// Whether all of a queue was read, and is in the target with what was there before.
    pub fn verify(&mut self, moved: &MovedQueue, before: Counts, after: Counts) {
        for (state, source, copied) in moved.source.differences(&(moved.added + moved.there)) {
            let what = format!("the source has {source} {state}, and {copied} are copied");
            self.problem(&moved.name, what);
        }
        for (state, expected, after) in (before + moved.added).differences(&after) {
            let what = format!("the target should have {expected} {state}, and it has {after}");
            self.problem(&moved.name, what);
        }
    }
}

/// Copies everything that is not in the target yet, and compares the counts.
pub async fn copy<S: Host, T: Host>(
    source: &Queues<S>, target: &Queues<T>, on_progress: &mut OnProgress<'_>,
) -> Result<Report, Error> {
    let queues = queues(source).await.map_err(Error::Source)?;
    let before = counts(target).await?;
    let mut copying = Copying { source, target, report: Report::default(), on_progress };
    for queue in queues {
        let moved = copying.queue(&queue).await?;
        copying.report.queues.push(moved);
    }
    let (mut report, after) = (copying.report, counts(target).await?);
    for moved in report.queues.clone() {
        let of = |counts: &HashMap<_, _>| counts.get(&moved.name).copied().unwrap_or_default();
        report.verify(&moved, of(&before), of(&after));
    }
    Ok(report)
}

async fn queues<S: Host>(store: &Queues<S>) -> Result<Vec<QueueView>, queue::Error> {
    let mut all: Vec<QueueView> = Vec::new();
    loop {
        let after = all.last().map(|queue| queue.name.clone());
        let some = store.queues(after, QUEUES_AT_ONCE).await?;
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some);
    }
}

async fn counts<T: Host>(target: &Queues<T>) -> Result<HashMap<QueueName, Counts>, Error> {
    let queues = queues(target).await.map_err(Error::Target)?;
    Ok(queues.into_iter().map(|queue| (queue.name, Counts::of(&queue.depths))).collect())
}

struct Copying<'a, S, T> {
    source: &'a Queues<S>,
    target: &'a Queues<T>,
    report: Report,
    on_progress: &'a mut OnProgress<'a>,
}

impl<S: Host, T: Host> Copying<'_, S, T> {
    async fn queue(&mut self, queue: &QueueView) -> Result<MovedQueue, Error> {
        let name = queue.name.clone();
        let source = Counts::of(&queue.depths);
        let mut moved = MovedQueue { name, source, added: Counts::default(), there: Counts::default() };
        self.holds(queue).await?;
        let mut after = None;
        loop {
            let query = JobQuery {
                queue: queue.name.clone(),
                state: None,
                job_type: None,
                after,
                limit: IMPORT_MAX,
                full: true,
                max_bytes: PAGE_BYTES,
                looks_max: usize::MAX,
            };
            let JobPage { jobs, next } = self.source.jobs(query).await.map_err(Error::Source)?;
            let jobs = jobs.into_iter().map(|(_, job)| job).collect();
            self.jobs(&mut moved, jobs).await?;
            (self.on_progress)(&queue.name, (moved.added + moved.there).jobs(), source.jobs());
            after = next;
            if after.is_none() {
                return Ok(moved);
            }
        }
    }

    /// What holds the queue back comes first: nothing of it is handed out by a server that starts too early.
    async fn holds(&self, queue: &QueueView) -> Result<(), Error> {
        let breakers = self.source.breakers(vec![queue.name.clone()]).await;
        let BreakerViews { work, keys, dead_letters } = breakers.map_err(Error::Source)?.pop().unwrap_or_default();
        let now = self.target.now();
        let holds = QueueHolds {
            pause: queue.pause.clone().filter(|pause| pause.holds(now)),
            work: work.breaker,
            keys: keys.into_iter().map(|key| key.breaker).filter(|breaker| !breaker.is_at_rest()).collect(),
            dead_letters: dead_letters.breaker,
        };
        self.import(&queue.name, holds, Vec::new()).await.map(|_| ())
    }

    async fn jobs(&mut self, moved: &mut MovedQueue, jobs: Vec<JobView>) -> Result<(), Error> {
        let (jobs, damaged): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_sound);
        for job in damaged {
            self.report.problem(&moved.name, format!("{} is damaged and was not copied", job.spec.id));
        }
        let taken = self.import(&moved.name, QueueHolds::default(), jobs.clone()).await?;
        for (job, taken) in jobs.iter().zip(taken) {
            let one = Counts::one(job);
            let why = match taken {
                Imported::Added => {
                    moved.added = moved.added + one;
                    continue;
                }
                Imported::AlreadyThere if self.is_same(job).await? => {
                    moved.there = moved.there + one;
                    continue;
                }
                Imported::AlreadyThere => "the target has another job of this id",
                Imported::KeyTaken => "another job in the target has its key",
            };
            self.report.problem(&moved.name, format!("{} was not copied: {why}", job.spec.id));
        }
        Ok(())
    }

    async fn import(&self, queue: &QueueName, holds: QueueHolds, jobs: Vec<JobView>) -> Result<Vec<Imported>, Error> {
        let import = Import { queue: queue.clone(), holds, jobs };
        self.target.import(import).await.map_err(|error| match error {
            queue::Error::Refused(Refusal::TooManyQueues { limit }) => {
                Error::TooManyQueues { queue: queue.clone(), limit }
            }
            other => Error::Target(other),
        })
    }

    /// Whether the job that the target has under this id is this one.
    async fn is_same(&self, job: &JobView) -> Result<bool, Error> {
        let found = self.target.jobs_of_id(job.spec.id.clone(), Some(job.queue.clone())).await;
        Ok(found.map_err(Error::Target)?.iter().any(|there| there.spec == job.spec))
    }
}

/// A record that fails its checksum must not get a new one. A dead letter that died of that says so itself.
fn is_sound(job: &JobView) -> bool {
    !job.corrupt || job.death.as_ref().is_some_and(|death| death.reason == DeadReason::Corrupt)
}
