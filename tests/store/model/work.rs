//! Enqueue and claim: how jobs come in and go out.

use super::{Added, Answer, Holder, Id, Job, Model, Out, Place};
use crate::steps::{New, name};
use redrive::domain::{DeadReason, Delivery, JobEventKind, Lease, OnConflict, Progress, State, Timestamp};
use redrive::queue::EnqueueOutcome;
use redrive::queue::IdleReason;
use redrive::queue::Refusal;

impl Model {
    // ---- enqueue ----

    pub(super) fn enqueue(&mut self, new: &New) -> Result<Added, Refusal> {
        self.queues.entry(new.queue).or_default();
        let holder = new
            .key
            .and_then(|key| self.keys.get(&(new.queue, key)).copied())
            .filter(|holder| holder.free_at.is_none_or(|at| at > self.now));
        let by_id = new.id.and_then(|id| self.find(new.queue, Id::Own(id)));
        let ended = new.id.and_then(|id| self.ended_id(new.queue, Id::Own(id)));
        let rejects = new.on_conflict == OnConflict::RejectDifferent;
        let body_of_id = by_id.map(|number| self.jobs[&number].body).or_else(|| ended.map(|ended| ended.body));
        if rejects && body_of_id.is_some_and(|body| body != new.body) {
            return Err(Refusal::IdTaken);
        }
        if rejects && holder.is_some_and(|holder| holder.body != new.body) {
            return Err(Refusal::KeyTaken);
        }
        let job_of_id = by_id.or_else(|| ended.map(|ended| ended.job));
        if let Some(holder) = holder
            && new.id.is_some_and(|id| job_of_id.is_some_and(|n| n != holder.job) || Id::Own(id) != holder.id)
        {
            return Err(Refusal::IdAndKeyDiffer);
        }
        let gone = holder.filter(|holder| holder.free_at.is_some()).map(|holder| holder.id);
        if let Some(id) = gone.or_else(|| ended.and_then(|_| new.id.map(Id::Own))) {
            return Ok(Added { id, outcome: EnqueueOutcome::Existing, state: State::Completed, run_at: None });
        }
        if let Some(number) = holder.map(|holder| holder.job).or(by_id) {
            let job = &self.jobs[&number];
            let waits = matches!(job.state(), State::Ready | State::Scheduled);
            if new.on_conflict == OnConflict::ReplaceWaiting && waits && job.progress.deliveries == 0 {
                return Ok(self.replace(number, new));
            }
            return Ok(Added {
                id: job.id,
                outcome: EnqueueOutcome::Existing,
                state: job.state(),
                run_at: job.waits_since(),
            });
        }
        let limit = self.settings(new.queue).max_depth;
        let done = |job: &Job| matches!(job.state(), State::Dead | State::Completed | State::Cancelled);
        let alive = self.count(new.queue, |job| !done(job)) as u64;
        if let Some(limit) = limit.filter(|limit| alive >= *limit) {
            return Err(Refusal::QueueFull { limit });
        }
        let number = self.made;
        self.made += 1;
        let id = new.id.map_or(Id::Made(number), Id::Own);
        new.id.map(|id| self.ended_ids.remove(&(new.queue, id)));
        let run_at = self.now.after(new.delay);
        self.arrivals += 1;
        let job = Job {
            queue: new.queue,
            arrived: self.arrivals,
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
            events: Vec::new(),
            result: None,
        };
        let state = job.state();
        self.jobs.insert(number, job);
        self.hold_key(number);
        self.change(new.queue, |totals| totals.enqueued += 1);
        Ok(Added { id, outcome: EnqueueOutcome::Added, state, run_at: Some(run_at) })
    }

    /// All of it but its id.
    fn replace(&mut self, number: usize, new: &New) -> Added {
        self.drop_key(number);
        let run_at = self.now.after(new.delay);
        let place = self.wait(run_at);
        self.arrivals += 1;
        let (arrived, now) = (self.arrivals, self.now);
        let expires_at = new.expires.map(|after| now.after(after));
        let Some(job) = self.jobs.get_mut(&number) else { unreachable!("it waits") };
        *job = Job {
            arrived,
            key: new.key,
            body: new.body,
            priority: new.priority,
            enqueued_at: now,
            expires_at,
            place,
            progress: Progress { events: job.progress.events, ..Progress::default() },
            ..job.clone()
        };
        job.note(JobEventKind::Replaced, now);
        let added = Added { id: job.id, outcome: EnqueueOutcome::Replaced, state: job.state(), run_at: Some(run_at) };
        self.hold_key(number);
        added
    }

    pub(super) fn hold_key(&mut self, number: usize) {
        let job = &self.jobs[&number];
        if let Some(key) = job.key {
            let holder = Holder { job: number, id: job.id, body: job.body, free_at: None };
            self.keys.insert((job.queue, key), holder);
        }
    }

    pub(super) fn drop_key(&mut self, number: usize) {
        self.keys.retain(|_, holder| holder.job != number);
    }

    // ---- claim ----

    pub(super) fn promote(&mut self, only: Option<usize>) -> usize {
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

    pub(super) fn claim(&mut self, shares: &[(usize, usize)], max_jobs: usize, request: Option<u8>) -> Answer {
        let asked = |job: &Job| shares.iter().any(|(queue, _)| *queue == job.queue);
        let under_it =
            |job: &Job| matches!(&job.place, Place::Leased(out) if out.request.is_some() && out.request == request);
        let before: Vec<usize> =
            self.jobs.iter().filter(|(_, job)| under_it(job) && asked(job)).map(|(number, _)| *number).collect();
        if !before.is_empty() {
            return Answer::Claimed { jobs: before, again: true, idle: Vec::new(), dead: Vec::new() };
        }
        let (mut jobs, mut dead) = (Vec::new(), Vec::new());
        let rounds = shares.iter().copied().chain(shares.iter().map(|(queue, _)| (*queue, usize::MAX)));
        for (queue, most) in rounds {
            let mut given = 0;
            let is_asked = max_jobs == 0 || jobs.len() < max_jobs && most > 0;
            let is_held =
                matches!(self.idle(queue).0, IdleReason::NoSuchQueue | IdleReason::Paused | IdleReason::BreakerOpen);
            if is_asked && !is_held {
                self.promote(Some(queue));
            }
            while jobs.len() < max_jobs
                && given < most
                && !self.is_paused(queue)
                && self.queues.contains_key(&queue)
                && let Some((number, probe)) = self.next_out(queue)
            {
                if self.jobs[&number].is_overdue(self.now) {
                    dead.push(self.jobs[&number].id);
                    self.dead_letter(number, DeadReason::Expired);
                } else {
                    self.lease(number, request, probe);
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

    pub(super) fn first_ready_but(&self, queue: usize, avoided: Option<usize>) -> Option<usize> {
        let ready = self.jobs.iter().filter(|(_, job)| job.queue == queue && job.state() == State::Ready);
        ready
            .filter(|(number, _)| Some(**number) != avoided)
            .min_by_key(|(_, job)| (-i16::from(job.priority), job.waits_since(), job.arrived))
            .map(|(number, _)| *number)
    }

    pub(super) fn lease(&mut self, number: usize, request: Option<u8>, probe: bool) {
        let queue = self.jobs[&number].queue;
        let duration = self.settings(queue).lease_duration;
        let transitions = self.queues[&queue].work.breaker.transitions;
        let Some(job) = self.jobs.get_mut(&number) else {
            return;
        };
        let attempt = job.progress.deliver();
        let lease = Lease {
            queue: name(queue),
            number: number as u64,
            delivery: job.progress.deliveries,
            nonce: 0,
            flags: 0,
            epoch: 0,
            started_at: Timestamp::default(),
            duration_ms: 0,
            own_id: None,
        };
        self.leases.push((number, lease.delivery));
        let delivery = Delivery {
            lease,
            attempt,
            worker_id: "worker".into(),
            started_at: self.now,
            expires_at: self.now.after(duration),
            duration,
            probe,
        };
        let ready_at = job.waits_since().unwrap_or_default();
        let checkpoint = String::new();
        let out = Out { delivery, ready_at, request, checkpoint, transitions };
        job.place = Place::Leased(Box::new(out));
    }

    pub(super) fn idle(&self, queue: usize) -> (IdleReason, Option<Timestamp>) {
        if !self.queues.contains_key(&queue) {
            return (IdleReason::NoSuchQueue, None);
        }
        if self.is_paused(queue) {
            let until = self.queues.get(&queue).and_then(|queue| queue.paused);
            return (IdleReason::Paused, until.flatten());
        }
        if let Some(held_back) = self.held_back(queue) {
            return held_back;
        }
        if self.is_full(queue) && self.first_ready_but(queue, None).is_some() {
            return (IdleReason::Limited, None);
        }
        let due = self
            .jobs
            .values()
            .filter(|job| job.queue == queue && matches!(job.state(), State::Scheduled | State::Retrying))
            .filter_map(Job::waits_since)
            .min();
        (if due.is_some() { IdleReason::NotDue } else { IdleReason::Empty }, due)
    }
}
