//! Settle, sweep, requeue and purge: how deliveries and jobs end, and begin again.

use super::{Answer, Death, Id, Job, Model, Place};
use crate::steps::{Pick, name};
use redrive::domain::{
    Attempt, AttemptStatus, DeadReason, Glob, JobEventKind, Leased, Next, Outcome, RandomFractions, decide,
};
use redrive::queue::Refusal;
use redrive::queue::{Acked, Extended, REPLY_KEPT, SkipReason};
use std::time::Duration;

impl Model {
    // ---- settle ----

    /// The job that a lease opens: only where it is the one that is out.
    pub(crate) fn opens(&self, lease: usize) -> Option<usize> {
        let (number, delivery) = self.leases[lease];
        let job = self.jobs.get(&number)?;
        matches!(&job.place, Place::Leased(out) if out.delivery.lease.delivery == delivery).then_some(number)
    }

    pub(super) fn ack(&mut self, lease: usize) -> Result<Acked, Refusal> {
        let Some(number) = self.opens(lease) else {
            if self.has_moved(lease) {
                // Later than that, the queue that it left knows nothing of it.
                let until = self.moved[&self.leases[lease].0].1;
                return if until > self.swept_at { Err(Refusal::LeaseLost) } else { Ok(Acked { already_gone: true }) };
            }
            return self.ack_late(lease);
        };
        let job = self.jobs[&number].clone();
        if let Place::Leased(out) = &job.place {
            self.succeeded(job.queue, out.transitions, out.delivery.probe);
        }
        if self.settings(job.queue).completed_retention.is_some() {
            self.complete(number, lease);
        } else {
            self.remove(number);
        }
        self.completed(number, &job, true);
        Ok(Acked { already_gone: false })
    }

    /// Its lease is not out.
    fn ack_late(&mut self, lease: usize) -> Result<Acked, Refusal> {
        let (number, delivery) = self.leases[lease];
        let Some(job) = self.jobs.get(&number).filter(|job| job.result != Some(lease)).cloned() else {
            return Ok(Acked { already_gone: true });
        };
        let attempt = job.last_attempt.clone().filter(|attempt| {
            attempt.delivery == delivery
                && job.progress.deliveries == delivery
                && matches!(attempt.status, AttemptStatus::LeaseExpired | AttemptStatus::Interrupted)
                && attempt.redrives == job.progress.redrives
        });
        let mut attempt = attempt.ok_or(Refusal::LeaseLost)?;
        let is_dead = match job.place {
            Place::Ready(_) | Place::Scheduled(_) => false,
            Place::Dead(_) if matches!(attempt.next, Next::DeadLetter(_)) => true,
            _ => return Err(Refusal::LeaseLost),
        };
        let now = self.now;
        if is_dead {
            self.made_room(job.queue);
        }
        if self.settings(job.queue).completed_retention.is_none() {
            self.remove(number);
        } else if let Some(job) = self.jobs.get_mut(&number) {
            job.progress.complete_late(&mut attempt, &format!("note {lease}"), now);
            job.last_attempt = Some(attempt);
            job.result = Some(lease);
            job.place = Place::Completed(now);
            job.note(JobEventKind::AckedAfterLease, now);
        }
        self.completed(number, &job, !is_dead);
        Ok(Acked { already_gone: false })
    }

    /// `finishes`: it was not finished before.
    fn completed(&mut self, number: usize, job: &Job, finishes: bool) {
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
            totals.retried_finished += if finishes { retried } else { 0 };
        });
    }

    fn complete(&mut self, number: usize, lease: usize) {
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(&number)
            && let Place::Leased(out) = &job.place
        {
            let note = format!("note {lease}");
            job.last_attempt = Some(job.progress.complete(&out.delivery, &note, now));
            if !out.checkpoint.is_empty() {
                job.progress.checkpoint.clone_from(&out.checkpoint);
            }
            job.result = Some(lease);
            job.place = Place::Completed(now);
        }
    }

    pub(super) fn nack(&mut self, lease: usize, outcome: &Outcome, checkpoint: &str) -> Result<Attempt, Refusal> {
        if let Some(number) = self.opens(lease) {
            return Ok(self.end(number, outcome.clone(), checkpoint));
        }
        if self.has_moved(lease) {
            return Err(Refusal::LeaseLost);
        }
        let (number, delivery) = self.leases[lease];
        let job = self.jobs.get(&number).ok_or(Refusal::LeaseLost)?;
        let said = job.last_attempt.clone().filter(|said| said.nacked && said.delivery == delivery);
        said.filter(|_| job.progress.deliveries == delivery).ok_or(Refusal::LeaseLost)
    }

    pub(super) fn end(&mut self, number: usize, outcome: Outcome, checkpoint: &str) -> Attempt {
        let job = self.jobs[&number].clone();
        let Place::Leased(out) = &job.place else { unreachable!("it is out") };
        let settings = self.settings(job.queue);
        let expired = outcome == Outcome::Expired;
        let leased = Leased {
            delivery: &out.delivery,
            progress: &job.progress,
            policy: None,
            expires_at: job.expires_at,
            breaker: self.breaker_facts(job.queue, out.transitions, out.delivery.probe),
        };
        let mut decision = decide(leased, outcome, &settings, self.now, RandomFractions::default());
        let (sent, probe, signal) = (out.transitions, out.delivery.probe, decision.signal.clone());
        self.failed(job.queue, sent, probe, job.id, signal);
        decision.attempt.breaker = self.work_state(job.queue);
        let place = match decision.next {
            Next::Later { at } | Next::Behind { at } => self.wait(at),
            Next::OldPlace => self.wait(out.ready_at),
            Next::DeadLetter(_) | Next::Cancelled => job.place.clone(),
        };
        let saved = [checkpoint, &out.checkpoint].into_iter().find(|text| !text.is_empty());
        let retried = decision.progress.retries > job.progress.retries;
        let mut job = Job { place, progress: decision.progress, ..job };
        if let Some(saved) = saved {
            job.progress.checkpoint = saved.to_owned();
        }
        job.last_attempt = Some(decision.attempt.clone());
        job.last_failure = decision.attempt.failure.clone().or(job.last_failure);
        self.change(job.queue, |totals| {
            totals.failed_attempts += u64::from(decision.attempt.failure.is_some());
            totals.retries += u64::from(retried);
            totals.lease_expired += u64::from(expired);
        });
        self.jobs.insert(number, job);
        if let Next::DeadLetter(reason) = decision.next {
            self.dead_letter(number, reason);
        }
        if decision.next == Next::Cancelled {
            self.end_cancelled(number);
        }
        decision.attempt
    }

    pub(super) fn extend(
        &mut self, lease: usize, duration: Option<Duration>, checkpoint: &str,
    ) -> Result<Extended, Refusal> {
        let number = self.opens(lease).ok_or(Refusal::LeaseLost)?;
        let longest = self.settings(self.jobs[&number].queue).max_run_time;
        let now = self.now;
        let Some(Job { place: Place::Leased(out), progress, .. }) = self.jobs.get_mut(&number) else {
            return Err(Refusal::LeaseLost);
        };
        let asked = now.after(duration.unwrap_or(out.delivery.duration));
        let delivery = &mut out.delivery;
        delivery.expires_at = delivery.expires_at.max(asked.min(delivery.started_at.after(longest)));
        if !checkpoint.is_empty() {
            out.checkpoint = checkpoint.to_owned();
        }
        let cancel_requested = progress.cancel_requested;
        let run_until = delivery.started_at.after(longest);
        Ok(Extended { run_until, expires_at: delivery.expires_at, cancel_requested })
    }

    /// The job of this lease went to another queue since.
    fn has_moved(&self, lease: usize) -> bool {
        let (number, delivery) = self.leases[lease];
        self.moved.get(&number).is_some_and(|(before, _)| delivery <= *before)
    }

    pub(super) fn unclaim(&mut self, lease: usize) -> Answer {
        if let Some(number) = self.opens(lease)
            && let Some(job) = self.jobs.get_mut(&number)
            && let Place::Leased(out) = &job.place
        {
            job.place = Place::Ready(out.ready_at);
            if job.progress.cancel_requested {
                self.end_cancelled(number);
            }
        }
        Answer::Nothing
    }

    // ---- death and return ----

    pub(super) fn dead_letter(&mut self, number: usize, reason: DeadReason) {
        let queue = self.jobs[&number].queue;
        let settings = self.settings(queue);
        let overflow = self.finds_no_room(queue);
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

    pub(super) fn requeue(
        &mut self, queue: usize, pick: &Pick, overflow: bool, target: Option<usize>, keep: bool, dry: bool,
    ) -> Answer {
        let Some(newest) = self.queues.get(&queue).map(|queue| queue.deaths) else {
            return Answer::NoSuchQueue;
        };
        let to = target.unwrap_or(queue);
        if !dry {
            self.queues.entry(to).or_default();
        }
        let (mut ids, mut skipped) = (Vec::new(), Vec::new());
        // A dry run says what a real one would do: there, the first of several with one key takes it.
        let mut would_take = Vec::new();
        let (candidates, has_more, cutoff) = self.picked(queue, pick, overflow, newest);
        for (id, number) in candidates {
            let named_before = ids.contains(&id);
            let Some(number) = number.filter(|n| self.is_part(*n, overflow) && !named_before) else {
                skipped.push((id, SkipReason::JobNotFound));
                continue;
            };
            let key = self.jobs[&number].key;
            let holder = key.and_then(|key| self.keys.get(&(to, key)));
            let is_held = holder.is_some_and(|holder| holder.job != number && holder.free_at.is_none());
            if to != queue && (self.find(to, id).is_some() || self.ended_id(to, id).is_some()) {
                skipped.push((id, SkipReason::IdTaken));
            } else if is_held || key.is_some_and(|key| would_take.contains(&key)) {
                skipped.push((id, SkipReason::KeyTaken));
            } else {
                ids.push(id);
                if dry {
                    would_take.extend(key);
                } else {
                    self.put_back(number, queue, to, keep);
                }
            }
        }
        Answer::Requeued { ids, skipped, has_more, cutoff }
    }

    fn is_part(&self, number: usize, overflow: bool) -> bool {
        self.jobs[&number].dead().is_some_and(|death| death.overflow || !overflow)
    }

    /// Who is meant, whether there is more behind them, and the newest death that could be.
    fn picked(&self, queue: usize, pick: &Pick, overflow: bool, newest: u64) -> (Vec<(Id, Option<usize>)>, bool, u64) {
        let (limit, back, wanted) = match pick {
            Pick::Ids(ids) => {
                let found = ids.iter().map(|id| (*id, self.find(queue, *id))).collect();
                return (found, false, newest);
            }
            Pick::Oldest { limit, back } => (*limit, *back, None),
            Pick::Found { error_type, limit, back } => (*limit, *back, Some(*error_type)),
        };
        let cutoff = newest.saturating_sub(back);
        let mut left = self
            .dead(queue)
            .into_iter()
            .filter(|(death, number)| *death <= cutoff && self.is_part(*number, overflow))
            .peekable();
        let mut found = Vec::new();
        while found.len() < limit
            && let Some((_, number)) = left.next()
        {
            let job = &self.jobs[&number];
            let died_of = job.last_failure.as_ref().map(|failure| failure.error_type.as_str());
            let fits = wanted.is_none_or(|wanted| died_of.is_some_and(|died_of| Glob::new(wanted).matches(died_of)));
            if fits {
                found.push((job.id, Some(number)));
            }
        }
        (found, left.peek().is_some(), cutoff)
    }

    pub(super) fn purge(&mut self, queue: usize, pick: &Pick, overflow: bool, dry: bool) -> Answer {
        let Some(newest) = self.queues.get(&queue).map(|queue| queue.deaths) else {
            return Answer::NoSuchQueue;
        };
        let (candidates, has_more, cutoff) = self.picked(queue, pick, overflow, newest);
        let (mut gone, mut skipped) = (Vec::new(), Vec::new());
        for (id, number) in candidates {
            match number {
                Some(number) if !gone.contains(&number) && self.is_part(number, overflow) => {
                    gone.push(number);
                }
                _ => skipped.push(id),
            }
        }
        let count = gone.len() as u64;
        if !dry {
            for number in gone {
                self.drop_key(number);
                self.remove(number);
                self.made_room(queue);
            }
            self.change(queue, |totals| totals.purged += count);
        }
        Answer::Purged { count, skipped, has_more, cutoff }
    }

    pub(super) fn put_back(&mut self, number: usize, from: usize, to: usize, keep: bool) {
        self.drop_key(number);
        let moved = u64::from(from != to);
        if let Some(job) = self.jobs.get_mut(&number) {
            job.progress.requeue(self.now, job.expires_at, keep);
            let kind = if moved > 0 { JobEventKind::Moved } else { JobEventKind::Requeued };
            job.note(kind, self.now);
            job.place = Place::Ready(self.now);
            job.queue = to;
            if from != to {
                self.arrivals += 1;
                job.arrived = self.arrivals;
                if let Id::Own(id) = job.id {
                    self.ended_ids.remove(&(to, id));
                }
                let kept = self.settings.queue(&name(from)).max_run_time.max(REPLY_KEPT);
                self.moved.insert(number, (job.progress.deliveries, self.now.after(kept)));
            }
        }
        self.made_room(from);
        self.hold_key(number);
        self.change(from, |totals| {
            totals.requeued += 1;
            totals.moved_out += moved;
        });
        self.change(to, |totals| totals.moved_in += moved);
    }

    /// Promotions, then ended leases, then deadlines; each in the order of their times. Then what was kept for long enough.
    pub(super) fn sweep(&mut self) -> Answer {
        self.swept_at = self.now;
        let promoted = self.promote(None);
        self.end_pauses();
        let (mut expired, mut dead) = (Vec::new(), Vec::new());
        let mut over: Vec<_> = self
            .jobs
            .iter()
            .filter_map(|(number, job)| match &job.place {
                Place::Leased(out) => Some((out.delivery.expires_at, job.arrived, *number)),
                _ => None,
            })
            .filter(|(at, ..)| *at <= self.now)
            .collect();
        over.sort_unstable();
        for (_, _, number) in over {
            expired.push(self.jobs[&number].id);
            if let Next::DeadLetter(_) = self.end(number, Outcome::Expired, "").next {
                dead.push(self.jobs[&number].id);
            }
        }
        let mut late: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.waits_since().is_some() && job.is_overdue(self.now))
            .map(|(number, job)| (job.expires_at, job.arrived, *number))
            .collect();
        late.sort_unstable();
        for (_, _, number) in late {
            dead.push(self.jobs[&number].id);
            self.dead_letter(number, DeadReason::Expired);
        }
        let is_over = |job: &Job| match job.place {
            Place::Completed(at) | Place::Cancelled(at) => {
                let retention = self.settings.queue(&name(job.queue)).completed_retention;
                retention.is_none_or(|retention| at.after(retention) <= self.now)
            }
            _ => false,
        };
        let gone: Vec<_> = self.jobs.iter().filter(|(_, job)| is_over(job)).map(|(number, _)| *number).collect();
        for number in &gone {
            self.remove(*number);
        }
        Answer::Swept { promoted, expired, dead, removed: gone.len() }
    }
}
