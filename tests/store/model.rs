//! The queue once more, as a program that is plainly right: maps and loops, written from the specification.
//!
//! What becomes of a failed delivery is `domain::verdict`'s to say here as there; everything around it is not shared.

use crate::machine::{New, Op, Pick};
use redrive::{
    domain::{
        failure::Failure,
        job::{Attempt, DeadReason, Delivery, Next, Progress, State},
        lease::Lease,
        settings::Settings,
        store_clock::{Reading, StoreClock},
        time::Timestamp,
        verdict::{Chance, Ending, Leased, judge},
    },
    env::{Clock, ManualClock},
    store::{Acked, Extended, IdleReason, LeaseLost, Refused, SkipReason, Totals},
};
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
}

#[derive(Clone, Debug)]
pub(crate) enum Place {
    Ready(Timestamp),
    Scheduled(Timestamp),
    Leased(Box<Out>),
    Dead(Death),
}

#[derive(Clone, Debug)]
pub(crate) struct Out {
    pub(crate) delivery: Delivery,
    ready_at: Timestamp,
    request: Option<u8>,
    checkpoint: String,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    pub(crate) number: u64,
    pub(crate) reason: DeadReason,
    pub(crate) overflow: bool,
    pub(crate) died_at: Timestamp,
}

impl Job {
    pub(crate) fn state(&self) -> State {
        match self.place {
            Place::Ready(_) => State::Ready,
            Place::Scheduled(_) => State::Scheduled,
            Place::Leased(_) => State::Leased,
            Place::Dead(_) => State::Dead,
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

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) totals: Totals,
    deaths: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Added {
    pub(crate) id: Id,
    pub(crate) deduplicated: bool,
    pub(crate) state: State,
    pub(crate) run_at: Option<Timestamp>,
}

/// What the store must answer.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Nothing,
    Enqueued(Vec<Result<Added, Refused>>),
    Claimed {
        jobs: Vec<usize>,
        again: bool,
        idle: Vec<(IdleReason, Option<Timestamp>)>,
        dead: Vec<Id>,
    },
    Acked(Result<Acked, LeaseLost>),
    Nacked(Box<Result<Attempt, LeaseLost>>),
    Extended(Result<Extended, LeaseLost>),
    NoSuchQueue,
    Requeued {
        ids: Vec<Id>,
        skipped: Vec<(Id, SkipReason)>,
        has_more: bool,
        cutoff: u64,
    },
    Swept {
        promoted: usize,
        expired: Vec<Id>,
        dead: Vec<Id>,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) now: Timestamp,
    clock: StoreClock,
    reading: Reading,
    settings: Arc<Settings>,
    pub(crate) jobs: BTreeMap<usize, Job>,
    pub(crate) queues: BTreeMap<usize, Queue>,
    keys: BTreeMap<(usize, u8), Holder>,
    /// Every lease there ever was: its job, and which of its deliveries.
    pub(crate) leases: Vec<(usize, u32)>,
    pub(crate) made: usize,
    pub(crate) answer: Answer,
}

impl Model {
    pub(crate) fn new(start: Duration, settings: Arc<Settings>) -> Self {
        let reading = ManualClock::at(start).read();
        let mut clock = StoreClock::start(None, reading);
        Self {
            now: clock.now(reading),
            clock,
            reading,
            settings,
            jobs: BTreeMap::new(),
            queues: BTreeMap::new(),
            keys: BTreeMap::new(),
            leases: Vec::new(),
            made: 0,
            answer: Answer::Nothing,
        }
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        self.answer = match op {
            Op::Enqueue(jobs) => {
                Answer::Enqueued(jobs.iter().map(|job| self.enqueue(job)).collect())
            }
            Op::Claim { shares, max_jobs, request } => self.claim(shares, *max_jobs, *request),
            Op::Ack(lease) => Answer::Acked(self.ack(*lease)),
            Op::Nack { lease, ending, checkpoint } => {
                Answer::Nacked(Box::new(self.nack(*lease, ending, checkpoint)))
            }
            Op::Extend { lease, duration, checkpoint } => {
                Answer::Extended(self.extend(*lease, *duration, checkpoint))
            }
            Op::Unclaim(lease) => self.unclaim(*lease),
            Op::Requeue { queue, pick, overflow, target, keep_attempts, dry_run } => {
                self.requeue(*queue, pick, *overflow, *target, *keep_attempts, *dry_run)
            }
            Op::Sweep => self.sweep(),
            Op::Advance(by) => {
                let micros = u64::try_from(by.as_micros()).expect("not that long");
                self.reading.wall_us += micros;
                self.reading.boot_us += micros;
                Answer::Nothing
            }
            Op::JumpWall(seconds) => {
                self.reading.wall_us =
                    self.reading.wall_us.saturating_add_signed(seconds * 1_000_000);
                Answer::Nothing
            }
            Op::Reopen { reboot } => {
                if *reboot {
                    self.reading.boot_id += 1;
                    self.reading.boot_us = 0;
                }
                self.clock = StoreClock::start(Some(self.clock.kept()), self.reading);
                Answer::Nothing
            }
        };
        self.now = self.clock.now(self.reading);
    }

    fn settings(&self, queue: usize) -> Arc<redrive::domain::settings::QueueSettings> {
        self.settings.queue(&crate::machine::name(queue)).clone()
    }

    fn change(&mut self, queue: usize, change: impl FnOnce(&mut Totals)) {
        change(&mut self.queues.entry(queue).or_default().totals);
    }

    pub(crate) fn find(&self, queue: usize, id: Id) -> Option<usize> {
        self.jobs
            .iter()
            .find(|(_, job)| job.queue == queue && job.id == id)
            .map(|(number, _)| *number)
    }

    fn count(&self, queue: usize, which: impl Fn(&Job) -> bool) -> usize {
        self.jobs.values().filter(|job| job.queue == queue && which(job)).count()
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

    // ---- enqueue ----

    fn enqueue(&mut self, new: &New) -> Result<Added, Refused> {
        self.queues.entry(new.queue).or_default();
        let holder = new
            .key
            .and_then(|key| self.keys.get(&(new.queue, key)).copied())
            .filter(|holder| holder.free_at.is_none_or(|at| at > self.now));
        let by_id = new.id.and_then(|id| self.find(new.queue, Id::Own(id)));
        if by_id.is_some_and(|number| self.jobs[&number].body != new.body) {
            return Err(Refused::IdTaken);
        }
        if holder.is_some_and(|holder| holder.body != new.body) {
            return Err(Refused::KeyTaken);
        }
        if let Some(holder) = holder
            && new.id.is_some_and(|id| {
                by_id.is_some_and(|n| n != holder.job) || Id::Own(id) != holder.id
            })
        {
            return Err(Refused::IdAndKeyDiffer);
        }
        if let Some(holder) = holder.filter(|holder| holder.free_at.is_some()) {
            return Ok(Added {
                id: holder.id,
                deduplicated: true,
                state: State::Completed,
                run_at: None,
            });
        }
        if let Some(job) =
            holder.map(|holder| holder.job).or(by_id).map(|number| &self.jobs[&number])
        {
            return Ok(Added {
                id: job.id,
                deduplicated: true,
                state: job.state(),
                run_at: job.waits_since(),
            });
        }
        let limit = self.settings(new.queue).max_depth;
        let alive = self.count(new.queue, |job| job.dead().is_none()) as u64;
        if let Some(limit) = limit.filter(|limit| alive >= *limit) {
            return Err(Refused::QueueFull { limit });
        }
        let number = self.made;
        self.made += 1;
        let id = new.id.map_or(Id::Made(number), Id::Own);
        let run_at = self.now.after(new.delay);
        let job = Job {
            queue: new.queue,
            id,
            key: new.key,
            body: new.body,
            priority: new.priority,
            enqueued_at: self.now,
            expires_at: new.expires.map(|after| self.now.after(after)),
            place: self.wait(run_at),
            progress: Progress::default(),
            last_attempt: None,
            last_failure: None,
        };
        let state = job.state();
        self.jobs.insert(number, job);
        self.hold_key(number);
        self.change(new.queue, |totals| totals.enqueued += 1);
        Ok(Added { id, deduplicated: false, state, run_at: Some(run_at) })
    }

    fn hold_key(&mut self, number: usize) {
        let job = &self.jobs[&number];
        if let Some(key) = job.key {
            let holder = Holder { job: number, id: job.id, body: job.body, free_at: None };
            self.keys.insert((job.queue, key), holder);
        }
    }

    fn drop_key(&mut self, number: usize) {
        self.keys.retain(|_, holder| holder.job != number);
    }

    // ---- claim ----

    fn promote(&mut self, only: Option<usize>) -> usize {
        let mut promoted = 0;
        for job in self.jobs.values_mut() {
            if let Place::Scheduled(at) = job.place
                && at <= self.now
                && only.is_none_or(|queue| queue == job.queue)
            {
                job.place = Place::Ready(at);
                promoted += 1;
            }
        }
        promoted
    }

    fn claim(&mut self, shares: &[(usize, usize)], max_jobs: usize, request: Option<u8>) -> Answer {
        let before: Vec<usize> = self.jobs.iter()
            .filter(|(_, job)| matches!(&job.place, Place::Leased(out) if out.request.is_some() && out.request == request))
            .map(|(number, _)| *number)
            .collect();
        if !before.is_empty() {
            return Answer::Claimed {
                jobs: before,
                again: true,
                idle: Vec::new(),
                dead: Vec::new(),
            };
        }
        let (mut jobs, mut dead) = (Vec::new(), Vec::new());
        for &(queue, _) in shares {
            self.promote(Some(queue));
        }
        let rounds =
            shares.iter().copied().chain(shares.iter().map(|(queue, _)| (*queue, usize::MAX)));
        for (queue, most) in rounds {
            let mut given = 0;
            while jobs.len() < max_jobs
                && given < most
                && let Some(number) = self.first_ready(queue)
            {
                if self.jobs[&number].is_overdue(self.now) {
                    dead.push(self.jobs[&number].id);
                    self.bury(number, DeadReason::Expired);
                } else {
                    self.lease(number, request);
                    jobs.push(number);
                    given += 1;
                }
            }
        }
        let mut idle = Vec::new();
        if jobs.is_empty() {
            idle.extend(shares.iter().map(|(queue, _)| self.idle(*queue)));
        }
        Answer::Claimed { jobs, again: false, idle, dead }
    }

    fn first_ready(&self, queue: usize) -> Option<usize> {
        let ready =
            self.jobs.iter().filter(|(_, job)| job.queue == queue && job.state() == State::Ready);
        ready
            .min_by_key(|(_, job)| (-i16::from(job.priority), job.waits_since(), job.id))
            .map(|(number, _)| *number)
    }

    fn lease(&mut self, number: usize, request: Option<u8>) {
        let queue = self.jobs[&number].queue;
        let duration = self.settings(queue).lease_duration;
        let Some(job) = self.jobs.get_mut(&number) else {
            return;
        };
        let attempt = job.progress.deliver();
        let lease = Lease { number: number as u64, delivery: job.progress.deliveries, nonce: 0 };
        let delivery = Delivery {
            lease,
            attempt,
            worker_id: "worker".into(),
            started_at: self.now,
            expires_at: self.now.after(duration),
            duration,
            probe: false,
        };
        let ready_at = job.waits_since().unwrap_or_default();
        job.place =
            Place::Leased(Box::new(Out { delivery, ready_at, request, checkpoint: String::new() }));
        self.leases.push((number, lease.delivery));
    }

    fn idle(&self, queue: usize) -> (IdleReason, Option<Timestamp>) {
        if !self.queues.contains_key(&queue) {
            return (IdleReason::NoSuchQueue, None);
        }
        let due = self
            .jobs
            .values()
            .filter(|job| job.queue == queue && job.state() == State::Scheduled)
            .filter_map(Job::waits_since)
            .min();
        (if due.is_some() { IdleReason::NotDue } else { IdleReason::Empty }, due)
    }

    // ---- settle ----

    /// The job that a lease opens: only where it is the one that is out.
    pub(crate) fn opens(&self, lease: usize) -> Option<usize> {
        let (number, delivery) = self.leases[lease];
        let job = self.jobs.get(&number)?;
        matches!(&job.place, Place::Leased(out) if out.delivery.lease.delivery == delivery)
            .then_some(number)
    }

    fn ack(&mut self, lease: usize) -> Result<Acked, LeaseLost> {
        let Some(number) = self.opens(lease) else {
            let gone = !self.jobs.contains_key(&self.leases[lease].0);
            return if gone { Ok(Acked { already_gone: true }) } else { Err(LeaseLost) };
        };
        let Some(job) = self.jobs.remove(&number) else {
            return Err(LeaseLost);
        };
        let free_at = job.enqueued_at.after(self.settings(job.queue).key_retention);
        if free_at <= self.now {
            self.drop_key(number);
        }
        for holder in self.keys.values_mut().filter(|holder| holder.job == number) {
            holder.free_at = Some(free_at);
        }
        let retried = u64::from(job.progress.retries > 0);
        self.change(job.queue, |totals| {
            totals.completed += 1;
            totals.successful_retries += retried;
            totals.retried_finished += retried;
        });
        Ok(Acked { already_gone: false })
    }

    fn nack(
        &mut self,
        lease: usize,
        ending: &Ending,
        checkpoint: &str,
    ) -> Result<Attempt, LeaseLost> {
        if let Some(number) = self.opens(lease) {
            return Ok(self.end(number, ending.clone(), checkpoint));
        }
        let (number, delivery) = self.leases[lease];
        let job = self.jobs.get(&number).ok_or(LeaseLost)?;
        let said =
            job.last_attempt.clone().filter(|said| said.nacked && said.lease.delivery == delivery);
        said.filter(|_| job.progress.deliveries == delivery).ok_or(LeaseLost)
    }

    fn end(&mut self, number: usize, ending: Ending, checkpoint: &str) -> Attempt {
        let job = self.jobs[&number].clone();
        let Place::Leased(out) = &job.place else { unreachable!("it is out") };
        let settings = self.settings(job.queue);
        let expired = ending == Ending::Expired;
        let leased = Leased {
            delivery: &out.delivery,
            progress: &job.progress,
            policy: None,
            expires_at: job.expires_at,
        };
        let verdict = judge(leased, ending, &settings, self.now, Chance::default());
        let place = match verdict.next {
            Next::Later { at } | Next::Behind { at } => self.wait(at),
            Next::OldPlace => self.wait(out.ready_at),
            Next::Bury(_) => job.place.clone(),
        };
        let saved = [checkpoint, &out.checkpoint].into_iter().find(|text| !text.is_empty());
        let retried = verdict.progress.retries > job.progress.retries;
        let mut job = Job { place, progress: verdict.progress, ..job };
        if let Some(saved) = saved {
            job.progress.checkpoint = saved.to_owned();
        }
        job.last_attempt = Some(verdict.attempt.clone());
        job.last_failure = verdict.attempt.failure.clone().or(job.last_failure);
        self.change(job.queue, |totals| {
            totals.failed_attempts += u64::from(verdict.attempt.failure.is_some());
            totals.retries += u64::from(retried);
            totals.lease_expired += u64::from(expired);
        });
        self.jobs.insert(number, job);
        if let Next::Bury(reason) = verdict.next {
            self.bury(number, reason);
        }
        verdict.attempt
    }

    fn extend(
        &mut self,
        lease: usize,
        duration: Option<Duration>,
        checkpoint: &str,
    ) -> Result<Extended, LeaseLost> {
        let number = self.opens(lease).ok_or(LeaseLost)?;
        let longest = self.settings(self.jobs[&number].queue).max_run_time;
        let now = self.now;
        let Some(Job { place: Place::Leased(out), .. }) = self.jobs.get_mut(&number) else {
            return Err(LeaseLost);
        };
        let asked = now.after(duration.unwrap_or(out.delivery.duration));
        let delivery = &mut out.delivery;
        delivery.expires_at =
            delivery.expires_at.max(asked.min(delivery.started_at.after(longest)));
        if !checkpoint.is_empty() {
            out.checkpoint = checkpoint.to_owned();
        }
        Ok(Extended { expires_at: delivery.expires_at, cancel_requested: false })
    }

    fn unclaim(&mut self, lease: usize) -> Answer {
        if let Some(number) = self.opens(lease)
            && let Some(job) = self.jobs.get_mut(&number)
            && let Place::Leased(out) = &job.place
        {
            job.place = Place::Ready(out.ready_at);
        }
        Answer::Nothing
    }

    // ---- death and return ----

    fn bury(&mut self, number: usize, reason: DeadReason) {
        let queue = self.jobs[&number].queue;
        let settings = self.settings(queue);
        let kept = self.count(queue, |job| job.dead().is_some_and(|death| !death.overflow)) as u64;
        let overflow = kept >= settings.dead_letters.max_entries;
        if !settings.dead_jobs_hold_keys {
            self.drop_key(number);
        }
        let state = self.queues.entry(queue).or_default();
        state.deaths += 1;
        let death = Death { number: state.deaths, reason, overflow, died_at: self.now };
        if let Some(job) = self.jobs.get_mut(&number) {
            state.totals.dead_lettered += 1;
            state.totals.retried_finished += u64::from(job.progress.retries > 0);
            job.place = Place::Dead(death);
        }
    }

    fn requeue(
        &mut self,
        queue: usize,
        pick: &Pick,
        overflow: bool,
        target: Option<usize>,
        keep: bool,
        dry: bool,
    ) -> Answer {
        let Some(newest) = self.queues.get(&queue).map(|queue| queue.deaths) else {
            return Answer::NoSuchQueue;
        };
        let to = target.unwrap_or(queue);
        if !dry {
            self.queues.entry(to).or_default();
        }
        let part = |model: &Self, number: usize| {
            model.jobs[&number].dead().is_some_and(|death| death.overflow || !overflow)
        };
        let (mut ids, mut skipped, mut has_more, mut cutoff) =
            (Vec::new(), Vec::new(), false, newest);
        let candidates: Vec<(Id, Option<usize>)> = match pick {
            Pick::Ids(ids) => ids.iter().map(|id| (*id, self.find(queue, *id))).collect(),
            Pick::Oldest { limit, back } => {
                cutoff = newest.saturating_sub(*back);
                let mut dead = self.dead(queue);
                dead.retain(|(death, number)| *death <= cutoff && part(self, *number));
                has_more = dead.len() > *limit;
                dead.iter()
                    .take(*limit)
                    .map(|(_, number)| (self.jobs[number].id, Some(*number)))
                    .collect()
            }
        };
        for (id, number) in candidates {
            let Some(number) = number.filter(|number| part(self, *number)) else {
                skipped.push((id, SkipReason::JobNotFound));
                continue;
            };
            let holder = self.jobs[&number].key.and_then(|key| self.keys.get(&(to, key)));
            if to != queue && self.find(to, id).is_some() {
                skipped.push((id, SkipReason::IdTaken));
            } else if holder.is_some_and(|holder| holder.job != number && holder.free_at.is_none())
            {
                skipped.push((id, SkipReason::KeyTaken));
            } else {
                ids.push(id);
                if !dry {
                    self.revive(number, queue, to, keep);
                }
            }
        }
        Answer::Requeued { ids, skipped, has_more, cutoff }
    }

    fn revive(&mut self, number: usize, from: usize, to: usize, keep: bool) {
        self.drop_key(number);
        let moved = u64::from(from != to);
        if let Some(job) = self.jobs.get_mut(&number) {
            job.progress.requeue(self.now, job.expires_at, keep);
            job.place = Place::Ready(self.now);
            job.queue = to;
        }
        self.hold_key(number);
        self.change(from, |totals| {
            totals.requeued += 1;
            totals.moved_out += moved;
        });
        self.change(to, |totals| totals.moved_in += moved);
    }

    /// Promotions, then ended leases, then deadlines; each in the order of their times.
    fn sweep(&mut self) -> Answer {
        let promoted = self.promote(None);
        let (mut expired, mut dead) = (Vec::new(), Vec::new());
        let mut over: Vec<_> = self
            .jobs
            .iter()
            .filter_map(|(number, job)| match &job.place {
                Place::Leased(out) => Some((out.delivery.expires_at, *number)),
                _ => None,
            })
            .filter(|(at, _)| *at <= self.now)
            .collect();
        over.sort_unstable();
        for (_, number) in over {
            expired.push(self.jobs[&number].id);
            if let Next::Bury(_) = self.end(number, Ending::Expired, "").next {
                dead.push(self.jobs[&number].id);
            }
        }
        let mut late: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.waits_since().is_some() && job.is_overdue(self.now))
            .map(|(number, job)| (job.expires_at, *number))
            .collect();
        late.sort_unstable();
        for (_, number) in late {
            dead.push(self.jobs[&number].id);
            self.bury(number, DeadReason::Expired);
        }
        Answer::Swept { promoted, expired, dead }
    }
}
