//! What follows from the end of a delivery: for its job, for its breaker, and for the step or bucket it belongs to.

use super::super::downstream::SECOND;
use super::{Event, Running, Simulation, id, micros, ms, seconds};
use redrive::domain::{
    BreakerEpoch, BreakerFacts, Delivery, EndedDelivery, Failure, Lease, Leased, Next, Outcome, Progress, QueueName,
    Successes, Timestamp, decide,
};
use std::time::Duration;

impl Simulation {
    pub(super) fn ended(&mut self, number: usize, now: u64) {
        let Some(mut running) = self.jobs[number].running.take() else { return };
        self.free += 1;
        self.out -= 1;
        let group = &mut self.groups[running.group];
        group.leased -= 1;
        group.probes.retain(|(_, job)| *job != number);
        match running.error.take() {
            None => self.succeeded(number, &running, now),
            Some(failure) => self.failed(number, &running, failure, now),
        }
        self.after_outcome(running.group, now);
    }

    fn succeeded(&mut self, number: usize, running: &Running, now: u64) {
        let (settings, started) = (&self.scenario.settings.breaker, ms(running.started));
        let group = &mut self.groups[running.group];
        let job = &mut self.jobs[number];
        if running.ramp || running.epoch.probe {
            let transitions = group.breaker.transitions;
            group.breaker.succeed(&mut group.stats, running.epoch, started, settings, ms(now));
            group.note_transition(transitions);
        } else if running.epoch.transitions == group.breaker.transitions {
            group.sums.add(Successes::of(started, ms(now), job.progress.tries > 0));
            group.last_success = Some(ms(now));
        }
        job.done = true;
        self.last_done = now;
        self.waits[job.target].push((now - job.enqueued) / 1_000);
        self.finished(number, now);
    }

    fn failed(&mut self, number: usize, running: &Running, failure: Failure, now: u64) {
        let settings = &self.scenario.settings;
        let at = ms(now);
        let job = &mut self.jobs[number];
        // A failure names the dependency: its outcome is that key's, if the delivery began after its last transition.
        let own = if self.services.len() > 1 { job.target + 1 } else { 0 };
        let group = &mut self.groups[own];
        let mut epoch = running.epoch;
        if running.group != own {
            let current = group.breaker.log.last().is_none_or(|last| ms(running.started) >= last.at);
            let transitions = if current { group.breaker.transitions } else { u64::MAX };
            epoch = BreakerEpoch { transitions, probe: false };
        }
        if group.breaker.outage.is_none() {
            group.stats.absorb(group.sums, group.last_success);
            group.stats.roll(at);
        }
        let breaker = BreakerFacts {
            state: group.breaker.state(&settings.breaker, at),
            counts: group.breaker.counts_failure(&group.stats, epoch, &settings.breaker, at),
            counts_hold: group.breaker.counts_hold(epoch, &settings.breaker, at),
            probe_at: group.breaker.probe_at(&settings.breaker, at),
            of_key: false,
        };
        let delivery = delivery(&self.queue, number, &job.progress, ms(running.started), epoch.probe);
        let retry_after = self.services[job.target].is.retry_after.filter(|_| failure.http_status == 429);
        let leased = Leased {
            delivery: &delivery,
            progress: &job.progress,
            policy: self.scenario.policy.as_ref(),
            expires_at: None,
            breaker,
        };
        let first = job.progress.tries == 0;
        let outcome = Outcome::Failed { failure, permanent: false, retry_after };
        let decision = decide(leased, outcome, settings, at, self.rng.fractions());
        let ended = EndedDelivery {
            epoch,
            job: &id(number),
            number: number as u64,
            delivery: job.progress.deliveries,
            started_at: ms(running.started),
            first,
            counted: decision.attempt.counted,
        };
        if !decision.attempt.counted {
            self.last_uncounted = Some(now);
        }
        job.progress = decision.progress;
        job.group = own;
        let (transitions, was_closed) = (group.breaker.transitions, group.breaker.outage.is_none());
        group.breaker.fail(&mut group.stats, &ended, decision.signal, &settings.breaker, at, self.rng.unit());
        if group.note_transition(transitions) && was_closed {
            group.unseen_until = now + self.scenario.stale_ms * 1_000;
        }
        match decision.next {
            Next::Later { at } => self.at(micros(at).max(now), Event::Ready(number)),
            Next::Behind { .. } | Next::OldPlace => self.make_ready(number, now),
            Next::DeadLetter(_) | Next::Cancelled => self.died(number, now),
        }
        self.return_counted(own, now);
        if own != running.group {
            self.after_outcome(own, now);
        }
    }

    fn died(&mut self, number: usize, now: u64) {
        let job = &mut self.jobs[number];
        job.died = true;
        if let Some(started) = job.started.filter(|_| job.poison.is_some()) {
            self.slowest_death = self.slowest_death.max(now - started);
        }
        self.finished(number, now);
    }

    fn return_counted(&mut self, group: usize, now: u64) {
        for failure in std::mem::take(&mut self.groups[group].breaker.returned) {
            let number = failure.number as usize;
            let job = &mut self.jobs[number];
            job.progress.tries = job.progress.tries.saturating_sub(1);
            job.progress.uncounted += 1;
            if std::mem::take(&mut job.died) {
                self.backlog_left += usize::from(job.enqueued < self.back);
                self.left += 1;
                self.make_ready(number, now);
            }
        }
    }

    fn after_outcome(&mut self, number: usize, now: u64) {
        let settings = &self.scenario.settings.breaker;
        let group = &mut self.groups[number];
        match &group.breaker.outage {
            Some(outage) if outage.recovering => {
                if outage.recovery.step_is_over(&group.stats.step, &group.stats.usual, ms(now)) {
                    self.look(number, now);
                } else if group.look_at <= now {
                    let at = micros(outage.recovery.next_look(settings, ms(now)));
                    self.look_at(number, at);
                }
            }
            None if group.look_at <= now => {
                let at = micros(group.stats.bucket_ends_at(ms(now)));
                self.look_at(number, at);
            }
            _ => {}
        }
    }

    fn look_at(&mut self, group: usize, at: u64) {
        self.groups[group].look_at = at;
        self.at(at, Event::Look(group));
    }

    pub(super) fn look(&mut self, number: usize, now: u64) {
        let settings = &self.scenario.settings.breaker;
        let group = &mut self.groups[number];
        let at = ms(now);
        if group.breaker.outage.is_none() {
            group.stats.absorb(group.sums, group.last_success);
            group.stats.roll(at);
            let next = micros(group.stats.bucket_ends_at(at)).max(now + SECOND);
            return self.look_at(number, next);
        }
        group.meter.ready = group.ready.len() as u64;
        group.meter.leased = group.leased;
        let transitions = group.breaker.transitions;
        let meter = group.meter;
        if group.breaker.tick(&mut group.stats, &meter, settings, at) {
            group.meter.most_leased = group.leased;
        }
        group.note_transition(transitions);
        if let Some(outage) = group.breaker.outage.as_ref().filter(|outage| outage.recovering) {
            let drain = outage.recovery.drain(meter.ready, group.stats.took_ms, &group.stats.usual, (None, None));
            if let Some(drain) = drain.filter(|_| now >= self.back && self.drained.is_none()) {
                self.estimates.push((seconds(now - self.back), drain.as_secs_f64()));
            }
            let next = micros(outage.recovery.next_look(settings, at)).max(now + 1_000);
            self.look_at(number, next);
        }
    }

    /// It has drained once all that was enqueued before the end of the outage is done, and nothing has waited for over a second.
    fn finished(&mut self, number: usize, now: u64) {
        self.left -= 1;
        self.backlog_left -= usize::from(self.jobs[number].enqueued < self.back);
        if self.drained.is_none() && now >= self.back && self.backlog_left == 0 {
            let oldest = self.groups.iter().filter_map(|group| group.ready.front()).map(|(at, _)| *at).min();
            if oldest.is_none_or(|oldest| oldest + SECOND >= now) {
                self.drained = Some(now - self.back);
            }
        }
    }
}

fn delivery(queue: &QueueName, number: usize, progress: &Progress, started_at: Timestamp, probe: bool) -> Delivery {
    let lease = Lease {
        queue: queue.clone(),
        number: number as u64,
        delivery: progress.deliveries,
        nonce: 0,
        flags: 0,
        epoch: 0,
        started_at,
        duration_ms: 0,
        own_id: None,
    };
    let (attempt, expires_at, duration) = (progress.tries + 1, Timestamp::MAX, Duration::ZERO);
    Delivery { lease, attempt, worker_id: String::new(), started_at, expires_at, duration, probe }
}
