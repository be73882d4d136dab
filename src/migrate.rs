//! Moving house: every job of one store goes to another, with all that it has been through.
//!
//! The source is only read. What is in the target already is passed over by its id, so a move that was cut off is
//! completed by beginning it again. Nobody else may work with either of them meanwhile.

use crate::{
    domain::{
        ids::QueueName,
        job::{DeadReason, State},
    },
    store::{
        Ask, BreakerViews, Depths, JobPage, JobQuery, JobView, NEWCOMERS_MAX, Newcomers, QueueView,
        Refused, Standing, Store, StoreError, TakenIn,
    },
};
use std::{
    collections::HashMap,
    ops::{Add, AddAssign},
};

/// Bytes that are on their way at the same time, about.
const PAGE_BYTES: usize = 8 << 20;
const QUEUES_AT_ONCE: usize = 1_000;
/// More is counted, but not listed.
const PROBLEMS_MAX: usize = 1_000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the source: {0}")]
    Source(StoreError),
    #[error("the target: {0}")]
    Target(StoreError),
    #[error("the target has no room for the queue {queue}: it may have {limit} queues")]
    TooManyQueues { queue: QueueName, limit: usize },
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    pub queue: &'a QueueName,
    pub done: u64,
    pub of: u64,
}

/// Jobs by where they are. Whether one that waits is READY or SCHEDULED is a matter of the clock, and one that was out
/// waits again: they are counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub waiting: u64,
    /// Overflow included.
    pub dead: u64,
    pub overflow: u64,
    pub completed: u64,
}

impl Counts {
    fn of(depths: &Depths) -> Self {
        Self {
            waiting: depths.ready + depths.scheduled + depths.leased,
            dead: depths.dead,
            overflow: depths.overflow,
            completed: depths.completed,
        }
    }

    fn one(job: &JobView) -> Self {
        let overflow = job.death.as_ref().is_some_and(|death| death.overflow);
        match job.state {
            State::Ready | State::Scheduled | State::Leased => {
                Self { waiting: 1, ..Self::default() }
            }
            State::Dead => Self { dead: 1, overflow: u64::from(overflow), ..Self::default() },
            State::Completed => Self { completed: 1, ..Self::default() },
        }
    }

    pub fn jobs(&self) -> u64 {
        self.waiting + self.dead + self.completed
    }

    fn named(&self) -> [(&'static str, u64); 4] {
        [
            ("waiting", self.waiting),
            ("dead", self.dead),
            ("overflow", self.overflow),
            ("completed", self.completed),
        ]
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
            dead: self.dead + other.dead,
            overflow: self.overflow + other.overflow,
            completed: self.completed + other.completed,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// What a move came to.
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
    /// To the target, by this move.
    pub added: Counts,
    /// Those that the target had already.
    pub there: Counts,
}

impl Report {
    pub fn is_whole(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, queue: &QueueName, what: &str) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(format!("queue {queue}: {what}"));
        } else {
            self.left_out += 1;
        }
    }

    /// Whether all of a queue was read, and is in the target with what was there before.
    fn verify(&mut self, moved: &MovedQueue, before: Counts, after: Counts) {
        let copied = (moved.added + moved.there).named();
        for ((state, source), (_, copied)) in moved.source.named().into_iter().zip(copied) {
            if source != copied {
                let what = format!("the source has {source} {state}, and {copied} are copied");
                self.problem(&moved.name, &what);
            }
        }
        let expected = (before + moved.added).named();
        for ((state, expected), (_, after)) in expected.into_iter().zip(after.named()) {
            if expected != after {
                let what = format!("the target should have {expected} {state}, and it has {after}");
                self.problem(&moved.name, &what);
            }
        }
    }
}

/// Copies everything that is not in the target yet, and compares the counts.
pub async fn copy<S: Store, T: Store>(
    source: &S,
    target: &T,
    ask: &Ask,
    tell: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<Report, Error> {
    let queues = queues(source).await.map_err(Error::Source)?;
    let before = counts(target).await?;
    let mut copying = Copying { source, target, ask, report: Report::default(), tell };
    for queue in queues {
        let moved = copying.queue(&queue).await?;
        copying.report.queues.push(moved);
    }
    let mut report = copying.report;
    let after = counts(target).await?;
    for moved in report.queues.clone() {
        let of = |counts: &HashMap<_, _>| counts.get(&moved.name).copied().unwrap_or_default();
        report.verify(&moved, of(&before), of(&after));
    }
    Ok(report)
}

async fn queues<S: Store>(store: &S) -> Result<Vec<QueueView>, StoreError> {
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

async fn counts<T: Store>(target: &T) -> Result<HashMap<QueueName, Counts>, Error> {
    let queues = queues(target).await.map_err(Error::Target)?;
    Ok(queues.into_iter().map(|queue| (queue.name, Counts::of(&queue.depths))).collect())
}

struct Copying<'a, S, T> {
    source: &'a S,
    target: &'a T,
    ask: &'a Ask,
    report: Report,
    tell: &'a mut (dyn FnMut(Progress<'_>) + Send),
}

impl<S: Store, T: Store> Copying<'_, S, T> {
    async fn queue(&mut self, queue: &QueueView) -> Result<MovedQueue, Error> {
        let name = queue.name.clone();
        let source = Counts::of(&queue.depths);
        let mut moved =
            MovedQueue { name, source, added: Counts::default(), there: Counts::default() };
        self.standing(queue).await?;
        let mut after = None;
        loop {
            let query = JobQuery {
                queue: queue.name.clone(),
                state: None,
                job_type: None,
                after,
                limit: NEWCOMERS_MAX,
                full: true,
                max_bytes: PAGE_BYTES,
                looks_max: usize::MAX,
            };
            let page = self.source.jobs(query).await.map_err(Error::Source)?;
            let JobPage { jobs, next } = page.unwrap_or_default();
            let jobs = jobs.into_iter().map(|(_, job)| job).collect();
            self.jobs(&mut moved, jobs).await?;
            let done = (moved.added + moved.there).jobs();
            (self.tell)(Progress { queue: &queue.name, done, of: source.jobs() });
            after = next;
            if after.is_none() {
                return Ok(moved);
            }
        }
    }

    /// What holds the queue back comes first: nothing of it is handed out by somebody who is too early.
    async fn standing(&self, queue: &QueueView) -> Result<(), Error> {
        let ask = self.ask.clone();
        let breakers = self.source.breakers(ask, vec![queue.name.clone()]).await;
        let BreakerViews { work, dead_letters } =
            breakers.map_err(Error::Source)?.pop().unwrap_or_default();
        let now = self.target.now();
        let standing = Standing {
            pause: queue.pause.clone().filter(|pause| pause.holds(now)),
            work: work.breaker,
            dead_letters: dead_letters.breaker,
        };
        self.take_in(&queue.name, standing, Vec::new()).await.map(|_| ())
    }

    async fn jobs(&mut self, moved: &mut MovedQueue, jobs: Vec<JobView>) -> Result<(), Error> {
        let (jobs, damaged): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_sound);
        for job in damaged {
            let what = format!("{} is damaged and was not copied", job.spec.id);
            self.report.problem(&moved.name, &what);
        }
        let taken = self.take_in(&moved.name, Standing::default(), jobs.clone()).await?;
        for (job, taken) in jobs.iter().zip(taken) {
            let id = &job.spec.id;
            match taken {
                TakenIn::Added => moved.added += Counts::one(job),
                TakenIn::AlreadyThere if self.is_same(job).await? => {
                    moved.there += Counts::one(job);
                }
                TakenIn::AlreadyThere => {
                    let what =
                        format!("{id} was not copied: the target has another job of this id");
                    self.report.problem(&moved.name, &what);
                }
                TakenIn::KeyTaken => {
                    let what =
                        format!("{id} was not copied: another job in the target has its key");
                    self.report.problem(&moved.name, &what);
                }
            }
        }
        Ok(())
    }

    async fn take_in(
        &self,
        queue: &QueueName,
        standing: Standing,
        jobs: Vec<JobView>,
    ) -> Result<Vec<TakenIn>, Error> {
        let newcomers = Newcomers { queue: queue.clone(), standing, jobs };
        let taken = self.target.take_in(self.ask.clone(), newcomers).await;
        taken.map_err(Error::Target)?.map_err(|refused| match refused {
            Refused::TooManyQueues { limit } => {
                Error::TooManyQueues { queue: queue.clone(), limit }
            }
            other => Error::Target(StoreError::OutcomeUnknown(format!("{other:?}"))),
        })
    }

    /// Whether the job that the target has under this id is this one.
    async fn is_same(&self, job: &JobView) -> Result<bool, Error> {
        let found = self.target.job(job.spec.id.clone(), Some(job.queue.clone())).await;
        let found = found.map_err(Error::Target)?;
        Ok(found.iter().any(|there| there.spec == job.spec))
    }
}

/// A record that fails its checksum must not get a new one. A dead letter that died of that says so itself.
fn is_sound(job: &JobView) -> bool {
    let told = job.death.as_ref().is_some_and(|death| death.reason == DeadReason::Corrupt);
    !job.corrupt || told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_by_queue_and_state() {
        let name = QueueName::parse("q").unwrap();
        let source = Counts { waiting: 3, dead: 2, overflow: 1, completed: 0 };
        let added = Counts { waiting: 2, ..source };
        let moved = MovedQueue { name, source, added, there: Counts::default() };
        let before = Counts { waiting: 5, ..Counts::default() };
        let mut report = Report::default();
        report.verify(&moved, before, Counts { waiting: 7, dead: 1, overflow: 1, completed: 0 });
        assert_eq!(
            report.problems,
            [
                "queue q: the source has 3 waiting, and 2 are copied",
                "queue q: the target should have 2 dead, and it has 1",
            ]
        );
        let moved = MovedQueue { there: Counts { waiting: 1, ..Counts::default() }, ..moved };
        let mut report = Report::default();
        report.verify(&moved, before, before + added);
        assert!(report.is_whole(), "{report:?}");
    }
}
