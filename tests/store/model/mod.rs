//! The queue once more, as a program that is plainly right: maps and loops, written from the specification.
//!
//! What becomes of a failed delivery is `domain::decision`'s to say here as there; everything around it is not shared.

mod breakers;
mod operate;
mod outcomes;
mod work;

use crate::steps::{Op, name};
pub(crate) use breakers::Breaker;
use redrive::domain::{
    Attempt, DeadReason, Delivery, Failure, JobEventKind, Progress, QueueName, Reading, Settings, State, StoreClock,
    Timestamp,
};
use redrive::env::{Clock, ManualClock};
use redrive::queue::EnqueueOutcome;
use redrive::queue::Refusal;
use redrive::queue::{Acked, Cancelled, Extended, IdleReason, SkipReason, Totals};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// A job's id: the caller's own, or the store's for the n-th job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Id {
    Made(usize),
    Own(u8),
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) queue: usize,
    /// Which one it was to come to its queue.
    pub(crate) arrived: u64,
    pub(crate) id: Id,
    key: Option<u8>,
    body: u8,
    priority: i8,
    enqueued_at: Timestamp,
    expires_at: Option<Timestamp>,
    pub(crate) place: Place,
    pub(crate) progress: Progress,
    pub(crate) last_attempt: Option<Attempt>,
    pub(crate) last_failure: Option<Failure>,
    /// All that there were.
    pub(crate) events: Vec<(JobEventKind, Timestamp)>,
    /// Of the lease that completed it.
    pub(crate) result: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) enum Place {
    Ready(Timestamp),
    Scheduled(Timestamp),
    Leased(Box<Out>),
    Dead(Death),
    /// Since then.
    Completed(Timestamp),
    Cancelled(Timestamp),
}

#[derive(Clone, Debug)]
pub(crate) struct Out {
    pub(crate) delivery: Delivery,
    ready_at: Timestamp,
    request: Option<u8>,
    pub(crate) checkpoint: String,
    /// Of the queue's breaker when it was handed out.
    transitions: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    pub(crate) number: u64,
    pub(crate) reason: DeadReason,
    pub(crate) overflow: bool,
    pub(crate) died_at: Timestamp,
}

impl Job {
    fn note(&mut self, kind: JobEventKind, now: Timestamp) {
        self.progress.events += 1;
        self.events.push((kind, now));
    }

    /// The first 10 and the last 40.
    pub(crate) fn kept_events(&self) -> Vec<(JobEventKind, Timestamp)> {
        let last = self.events.len().saturating_sub(40).max(10);
        self.events.iter().take(10).chain(self.events.iter().skip(last)).copied().collect()
    }

    pub(crate) fn state(&self) -> State {
        match self.place {
            Place::Ready(_) => State::Ready,
            Place::Scheduled(_) if self.progress.deliveries > 0 => State::Retrying,
            Place::Scheduled(_) => State::Scheduled,
            Place::Leased(_) => State::Leased,
            Place::Dead(_) => State::Dead,
            Place::Completed(_) => State::Completed,
            Place::Cancelled(_) => State::Cancelled,
        }
    }

    pub(crate) fn waits_since(&self) -> Option<Timestamp> {
        match self.place {
            Place::Ready(at) | Place::Scheduled(at) => Some(at),
            _ => None,
        }
    }

    fn dead(&self) -> Option<Death> {
        match self.place {
            Place::Dead(death) => Some(death),
            _ => None,
        }
    }

    fn is_overdue(&self, now: Timestamp) -> bool {
        self.progress.deadline(self.expires_at).is_some_and(|at| at <= now)
    }
}

/// Who has a key; with a time, a job that is done.
#[derive(Clone, Copy, Debug)]
struct Holder {
    job: usize,
    id: Id,
    body: u8,
    free_at: Option<Timestamp>,
}

/// An own id whose job has ended.
#[derive(Clone, Copy, Debug)]
struct EndedId {
    job: usize,
    body: u8,
    until: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) totals: Totals,
    deaths: u64,
    /// Until when, if it has an end; it may be over.
    pub(crate) paused: Option<Option<Timestamp>>,
    pub(crate) work: Breaker,
    /// Of its dead letters.
    pub(crate) dead_letters: Breaker,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Added {
    pub(crate) id: Id,
    pub(crate) outcome: EnqueueOutcome,
    pub(crate) state: State,
    pub(crate) run_at: Option<Timestamp>,
}

/// What the store must answer.
/// Why nothing was done to a job, as far as the model knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobRefused {
    NoSuchJob,
    Ambiguous { queues: Vec<QueueName> },
    WrongState { state: State },
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Nothing,
    Cancelled(Result<Cancelled, JobRefused>),
    Ran(Result<(), JobRefused>),
    Enqueued(Vec<Result<Added, Refusal>>),
    Claimed { jobs: Vec<usize>, again: bool, idle: Vec<(IdleReason, Option<Timestamp>)>, dead: Vec<Id> },
    Acked(Result<Acked, Refusal>),
    Nacked(Box<Result<Attempt, Refusal>>),
    Extended(Result<Extended, Refusal>),
    NoSuchQueue,
    Requeued { ids: Vec<Id>, skipped: Vec<(Id, SkipReason)>, has_more: bool, cutoff: u64 },
    Purged { count: u64, skipped: Vec<Id>, has_more: bool, cutoff: u64 },
    Swept { promoted: usize, expired: Vec<Id>, dead: Vec<Id>, removed: usize },
}

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) now: Timestamp,
    clock: StoreClock,
    reading: Reading,
    settings: Arc<Settings>,
    keeps_outcome_stats: bool,
    pub(crate) jobs: BTreeMap<usize, Job>,
    pub(crate) queues: BTreeMap<usize, Queue>,
    keys: BTreeMap<(usize, u8), Holder>,
    ended_ids: BTreeMap<(usize, u8), EndedId>,
    /// Every lease there ever was: its job, and which of its deliveries.
    pub(crate) leases: Vec<(usize, u32)>,
    pub(crate) made: usize,
    arrivals: u64,
    /// Jobs that left their queue, the deliveries that they had before, and how long the queue remembers: those leases are lost.
    moved: BTreeMap<usize, (u32, Timestamp)>,
    /// When the last sweep was.
    swept_at: Timestamp,
    pub(crate) answer: Answer,
}

/// The steps tell the story; where it begins is always the same.
impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Model")
    }
}

impl Model {
    /// `keeps_outcome_stats`: what a closed breaker has counted outlives the process.
    pub(crate) fn new(start: Duration, settings: Arc<Settings>, keeps_outcome_stats: bool) -> Self {
        let reading = ManualClock::at(start).read();
        let mut clock = StoreClock::start(None, reading);
        Self {
            now: clock.now(reading),
            clock,
            reading,
            // All of them are configured.
            queues: (0..settings.queues.len()).map(|queue| (queue, Queue::default())).collect(),
            settings,
            keeps_outcome_stats,
            jobs: BTreeMap::new(),
            keys: BTreeMap::new(),
            ended_ids: BTreeMap::new(),
            leases: Vec::new(),
            made: 0,
            arrivals: 0,
            moved: BTreeMap::new(),
            swept_at: Timestamp::default(),
            answer: Answer::Nothing,
        }
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        self.answer = match op {
            Op::Enqueue(jobs) => Answer::Enqueued(jobs.iter().map(|job| self.enqueue(job)).collect()),
            Op::Claim { shares, max_jobs, request } => self.claim(shares, *max_jobs, *request),
            Op::Ack(lease) => Answer::Acked(self.ack(*lease)),
            Op::Nack { lease, outcome, checkpoint } => Answer::Nacked(Box::new(self.nack(*lease, outcome, checkpoint))),
            Op::Extend { lease, duration, checkpoint } => Answer::Extended(self.extend(*lease, *duration, checkpoint)),
            Op::Unclaim(lease) => self.unclaim(*lease),
            Op::Requeue { queue, pick, overflow, target, keep_attempts, dry_run } => {
                self.requeue(*queue, pick, *overflow, *target, *keep_attempts, *dry_run)
            }
            Op::Pause { queue, duration } => self.pause(*queue, *duration),
            Op::Resume(queue) => self.resume(*queue),
            Op::Cancel { id, queue } => Answer::Cancelled(self.cancel(*id, *queue)),
            Op::RunNow { id, queue } => Answer::Ran(self.run_now(*id, *queue)),
            Op::Purge { queue, pick, overflow, dry_run } => self.purge(*queue, pick, *overflow, *dry_run),
            Op::SetBreaker { queue, dead_letters, forced } => self.set_breaker(*queue, *dead_letters, *forced),
            Op::Sweep => self.sweep(),
            Op::Advance(by) => {
                let micros = u64::try_from(by.as_micros()).expect("not that long");
                self.reading.wall_us += micros;
                self.reading.boot_us += micros;
                Answer::Nothing
            }
            Op::JumpWall(seconds) => {
                self.reading.wall_us = self.reading.wall_us.saturating_add_signed(seconds * 1_000_000);
                Answer::Nothing
            }
            Op::Reopen { reboot } => {
                if *reboot {
                    self.reading.boot_id += 1;
                    self.reading.boot_us = 0;
                }
                for queue in self.queues.values_mut() {
                    queue.work.restart(self.keeps_outcome_stats);
                    queue.dead_letters.restart(self.keeps_outcome_stats);
                }
                self.clock = StoreClock::start(Some(self.clock.kept()), self.reading);
                Answer::Nothing
            }
        };
        self.now = self.clock.now(self.reading);
    }

    pub(crate) fn settings(&self, queue: usize) -> Arc<redrive::domain::QueueSettings> {
        self.settings.queue(&name(queue)).clone()
    }

    fn change(&mut self, queue: usize, change: impl FnOnce(&mut Totals)) {
        change(&mut self.queues.entry(queue).or_default().totals);
    }

    pub(crate) fn find(&self, queue: usize, id: Id) -> Option<usize> {
        self.jobs.iter().find(|(_, job)| job.queue == queue && job.id == id).map(|(number, _)| *number)
    }

    /// It has ended, and nothing stays of it but its own id for a while.
    fn remove(&mut self, number: usize) {
        if let Some(Job { id: Id::Own(id), queue, body, .. }) = self.jobs.remove(&number) {
            let until = self.now.after(Duration::from_secs(600));
            self.ended_ids.insert((queue, id), EndedId { job: number, body, until });
        }
    }

    fn ended_id(&self, queue: usize, id: Id) -> Option<EndedId> {
        let Id::Own(id) = id else { return None };
        self.ended_ids.get(&(queue, id)).copied().filter(|ended| ended.until > self.now)
    }

    fn count(&self, queue: usize, which: impl Fn(&Job) -> bool) -> usize {
        self.jobs.values().filter(|job| job.queue == queue && which(job)).count()
    }

    pub(crate) fn overflow(&self, queue: usize) -> u64 {
        self.count(queue, |job| job.dead().is_some_and(|death| death.overflow)) as u64
    }

    /// The dead letters of a queue in their order.
    pub(crate) fn dead(&self, queue: usize) -> Vec<(u64, usize)> {
        let mut dead: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.queue == queue)
            .filter_map(|(number, job)| Some((job.dead()?.number, *number)))
            .collect();
        dead.sort_unstable();
        dead
    }

    fn wait(&self, at: Timestamp) -> Place {
        if at <= self.now { Place::Ready(at) } else { Place::Scheduled(at) }
    }
}
