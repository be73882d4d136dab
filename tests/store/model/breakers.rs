//! Breakers once more. What the functions of the domain decide is tested there; here it is what the store tells them, and
//! what it makes of their answers. The ramp is switched off: it depends on more than a model can follow.

use super::{Answer, Id, Job, Model, Place};
use redrive::domain::{
    self, BreakerEpoch, BreakerFacts, BreakerSettings, BreakerState, DeadReason, EndedDelivery, JobEventKind, JobId,
    OutcomeStats, Rng, Signal, Successes, Timestamp,
};
use redrive::queue::IdleReason;

/// A breaker of work, with what it knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) breaker: domain::Breaker,
    /// None: nothing was counted yet.
    stats: Option<OutcomeStats>,
    sums: Successes,
    last_success: Option<Timestamp>,
    /// Of jobs that failed, as the breaker knows them.
    pub(crate) ids: Vec<(JobId, Id)>,
}

impl Work {
    /// Memory does not outlive the process.
    pub(super) fn restart(&mut self, keeps_outcome_stats: bool) {
        if !keeps_outcome_stats {
            (self.stats, self.sums, self.last_success) = (None, Successes::default(), None);
        }
    }

    fn begin_epoch(&mut self) {
        (self.sums, self.last_success) = (Successes::default(), None);
    }

    /// What is known now.
    fn known(&self, now: Timestamp) -> OutcomeStats {
        let mut stats = match &self.stats {
            Some(stats) => stats.clone(),
            None => OutcomeStats::new(self.breaker.usual.clone(), now),
        };
        if self.breaker.outage.is_none() {
            stats.absorb(self.sums, self.last_success);
        }
        stats
    }

    pub(crate) fn streak(&self, now: Timestamp) -> u32 {
        self.known(now).streak
    }
}

/// A breaker of dead letters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breaker {
    pub(crate) transitions: u64,
    pub(crate) trips: u32,
    pub(crate) open: Option<Opened>,
    pub(crate) forced: Option<bool>,
    /// Dead letters that found no room, one after the other.
    pub(crate) full: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) probe_at: Timestamp,
    pub(crate) successes: u32,
}

impl Breaker {
    pub(crate) fn state(&self, settings: &BreakerSettings, now: Timestamp) -> BreakerState {
        match (self.forced, self.open) {
            (Some(true), _) => BreakerState::Open,
            (Some(false), _) | (None, None) => BreakerState::Closed,
            _ if settings.disabled => BreakerState::Closed,
            (None, Some(open)) if open.probe_at > now => BreakerState::Open,
            (None, Some(_)) => BreakerState::HalfOpen,
        }
    }

    fn trip(&mut self, probe_at: Timestamp) {
        self.open = Some(Opened { probe_at, successes: 0 });
        self.transitions += 1;
        self.trips += 1;
    }

    fn probe_succeeds(&mut self, settings: &BreakerSettings) {
        if let Some(open) = &mut self.open {
            open.successes += 1;
            if open.successes >= settings.success_threshold {
                self.close();
            }
        }
    }

    fn close(&mut self) {
        self.open = None;
        self.transitions += 1;
    }

    fn set(&mut self, forced: Option<bool>) {
        if forced.is_some() && self.forced == forced {
            self.full = 0;
            return;
        }
        let transitions = self.transitions + 1;
        let trips = if forced.is_some() { self.trips } else { 0 };
        *self = Self { transitions, trips, forced, ..Self::default() };
    }
}

impl Model {
    fn work(&self, queue: usize) -> &Work {
        &self.queues[&queue].work
    }

    pub(super) fn work_state(&self, queue: usize) -> BreakerState {
        self.work(queue).breaker.state(&self.settings(queue).breaker, self.now)
    }

    /// Probes that have a slot, by when they lose it.
    pub(crate) fn probes(&self, queue: usize) -> Vec<Timestamp> {
        let settings = self.settings(queue);
        let transitions = self.work(queue).breaker.transitions;
        let out = |job: &Job| match &job.place {
            Place::Leased(out) if out.delivery.probe && out.transitions == transitions => {
                Some(out.delivery.started_at.after(settings.breaker.recovery_timeout))
            }
            _ => None,
        };
        let jobs = self.jobs.values().filter(|job| job.queue == queue);
        jobs.filter_map(out).filter(|end| *end > self.now).collect()
    }

    /// Why a breaker keeps a claim from getting anything, and until when.
    pub(super) fn held_back(&self, queue: usize) -> Option<(IdleReason, Option<Timestamp>)> {
        let probes = self.probes(queue);
        match self.work_state(queue) {
            BreakerState::Closed | BreakerState::Recovering => None,
            BreakerState::Open => {
                let breaker = &self.work(queue).breaker;
                let outage = breaker.outage.as_ref().filter(|_| breaker.forced.is_none());
                Some((IdleReason::BreakerOpen, outage.map(|outage| outage.probe_at)))
            }
            BreakerState::HalfOpen => {
                let most = self.settings(queue).breaker.half_open_max_calls as usize;
                let until = probes.iter().min().copied();
                (probes.len() >= most).then_some((IdleReason::Limited, until))
            }
        }
    }

    /// As many are leased as may be.
    pub(super) fn is_full(&self, queue: usize) -> bool {
        let leased = |job: &&Job| job.queue == queue && matches!(job.place, Place::Leased(_));
        let most = self.settings(queue).max_in_flight;
        most.is_some_and(|most| self.jobs.values().filter(leased).count() as u64 >= most)
    }

    /// The next to be handed out, and whether as a probe.
    pub(super) fn next_out(&self, queue: usize) -> Option<(usize, bool)> {
        if self.held_back(queue).is_some() || self.is_full(queue) {
            return None;
        }
        let probe = self.work_state(queue) == BreakerState::HalfOpen;
        let work = self.work(queue);
        let avoided = work.breaker.outage.as_ref().and_then(|outage| outage.failed_probe.as_ref());
        let avoided = avoided.and_then(|id| work.ids.iter().find(|(known, _)| known == id));
        let avoided = avoided.filter(|_| probe).and_then(|(_, id)| self.find(queue, *id));
        let others = self.first_ready_but(queue, avoided);
        others.or_else(|| self.first_ready_but(queue, None)).map(|number| (number, probe))
    }

    pub(super) fn breaker_facts(&mut self, queue: usize, sent: u64, probe: bool) -> BreakerFacts {
        let (settings, now) = (self.settings(queue), self.now);
        let settings = &settings.breaker;
        let work = &mut self.queues.entry(queue).or_default().work;
        let mut stats = work.known(now);
        if work.breaker.outage.is_none() && stats.roll(now) {
            work.stats = Some(stats.clone());
        }
        let (breaker, epoch) = (&work.breaker, BreakerEpoch { transitions: sent, probe });
        BreakerFacts {
            state: breaker.state(settings, now),
            counts: breaker.counts_failure(&stats, epoch, settings, now),
            counts_hold: breaker.counts_hold(epoch, settings, now),
            probe_at: breaker.probe_at(settings, now),
            of_key: false,
        }
    }

    pub(super) fn succeeded(&mut self, queue: usize, sent: u64, probe: bool, started_at: Timestamp, retried: bool) {
        let (settings, now) = (self.settings(queue), self.now);
        let work = &mut self.queues.entry(queue).or_default().work;
        if probe {
            let mut stats = work.known(now);
            let transitions = work.breaker.transitions;
            let epoch = BreakerEpoch { transitions: sent, probe };
            work.breaker.succeed(&mut stats, epoch, started_at, &settings.breaker, now);
            work.stats = Some(stats);
            if work.breaker.transitions != transitions {
                work.begin_epoch();
            }
        } else if work.breaker.transitions == sent {
            work.sums.add(Successes::of(started_at, now, retried));
            work.last_success = Some(now);
        }
    }

    pub(super) fn failed(&mut self, number: usize, sent: u64, probe: bool, first: bool, signal: Signal) {
        let job = &self.jobs[&number];
        let Place::Leased(out) = &job.place else { unreachable!("it is out") };
        let (queue, delivery, started_at, id) = (job.queue, job.progress.deliveries, out.delivery.started_at, job.id);
        let (settings, now) = (self.settings(queue), self.now);
        let work = &mut self.queues.entry(queue).or_default().work;
        let name = JobId::parse(&format!("{id:?}"));
        work.ids.push((name.clone(), id));
        let before = work.known(now);
        let mut stats = before.clone();
        let epoch = BreakerEpoch { transitions: sent, probe };
        let counted = work.breaker.counts_failure(&stats, epoch, &settings.breaker, now);
        let ended = EndedDelivery { epoch, job: &name, number: number as u64, delivery, started_at, first, counted };
        let transitions = work.breaker.transitions;
        let unit = Rng::new(now.millis() ^ transitions << 40).unit();
        work.breaker.fail(&mut stats, &ended, signal, &settings.breaker, now, unit);
        if stats != before {
            work.stats = Some(stats);
        }
        if work.breaker.transitions != transitions {
            work.begin_epoch();
        }
    }

    /// What the sweep does for breakers of work: failures are returned, and buckets end.
    pub(super) fn look_at_outcomes(&mut self) {
        let (queues, now): (Vec<usize>, _) = (self.queues.keys().copied().collect(), self.now);
        for queue in queues {
            let returned = match self.queues.get_mut(&queue) {
                Some(queue) => std::mem::take(&mut queue.work.breaker.returned),
                None => continue,
            };
            for failure in returned {
                self.return_counted(failure.number as usize, failure.delivery, failure.at);
            }
            let work = &mut self.queues.entry(queue).or_default().work;
            let mut stats = work.known(now);
            if work.breaker.outage.is_none() && (stats.roll(now) || work.stats.is_none() && stats.seen.count > 0) {
                if stats.usual.is_news(&work.breaker.usual) {
                    work.breaker.usual = stats.usual.clone();
                }
                work.stats = Some(stats);
            }
        }
    }

    fn return_counted(&mut self, number: usize, delivery: u32, at: Timestamp) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&number).filter(|job| job.progress.tries > 0) else { return };
        let (queue, since) =
            (job.queue, if let Place::Leased(out) = &job.place { out.delivery.started_at } else { at });
        let died = job.dead().map(|death| death.reason);
        match (&mut job.place, died) {
            (Place::Leased(out), _) => out.delivery.attempt = (out.delivery.attempt - 1).max(1),
            (Place::Ready(_) | Place::Scheduled(_), _) => job.note(JobEventKind::ReturnedByBreaker, now),
            (_, Some(DeadReason::Exhausted)) if job.progress.deliveries == delivery => {
                let key = job.key;
                let holder = key.and_then(|key| self.keys.get(&(queue, key)));
                if holder.is_some_and(|holder| holder.job != number && holder.free_at.is_none()) {
                    return;
                }
                if let Some(job) = self.jobs.get_mut(&number) {
                    job.place = Place::Ready(now);
                    job.note(JobEventKind::ReturnedByBreaker, now);
                }
                self.hold_key(number);
                self.made_room(queue);
            }
            _ => return,
        }
        if let Some(job) = self.jobs.get_mut(&number) {
            job.progress.tries -= 1;
            job.progress.uncounted += 1;
            job.progress.uncounted_since.get_or_insert(since);
        }
    }

    /// A job dies: whether that is in the overflow.
    pub(super) fn finds_no_room(&mut self, queue: usize) -> bool {
        let (settings, now) = (self.settings(queue), self.now);
        let full = self.listed_dead(queue) >= settings.dead_letters.max_entries;
        let settings = &settings.dead_letters.breaker;
        let breaker = &mut self.queues.entry(queue).or_default().dead_letters;
        let state = breaker.state(settings, now);
        if state == BreakerState::Open {
            return true;
        }
        breaker.full = if full { breaker.full + 1 } else { 0 };
        if breaker.forced.is_none() && !settings.disabled {
            let half_open = state == BreakerState::HalfOpen;
            if full && (half_open || breaker.full >= settings.failure_threshold) {
                breaker.trip(now.after(settings.recovery_timeout));
                breaker.full = 0;
            } else if half_open {
                breaker.probe_succeeds(settings);
            }
        }
        full
    }

    pub(super) fn made_room(&mut self, queue: usize) {
        let room = self.listed_dead(queue) < self.settings(queue).dead_letters.max_entries;
        let breaker = &mut self.queues.entry(queue).or_default().dead_letters;
        if room && breaker.open.is_some() && breaker.forced.is_none() {
            breaker.close();
        }
    }

    fn listed_dead(&self, queue: usize) -> u64 {
        self.count(queue, |job| job.dead().is_some_and(|death| !death.overflow)) as u64
    }

    /// `forced`: open or closed; none: a reset.
    pub(super) fn set_breaker(&mut self, queue: usize, dead_letters: bool, forced: Option<bool>) -> Answer {
        let now = self.now;
        let queue = self.queues.entry(queue).or_default();
        if dead_letters {
            queue.dead_letters.set(forced);
            return Answer::Nothing;
        }
        let transitions = queue.work.breaker.transitions;
        match forced {
            Some(open) => queue.work.breaker.force(open, String::new(), now),
            None => queue.work.breaker.reset(now),
        }
        if queue.work.breaker.transitions == transitions {
            return Answer::Nothing;
        }
        queue.work.stats = Some(OutcomeStats::new(queue.work.breaker.usual.clone(), now));
        queue.work.begin_epoch();
        Answer::Nothing
    }
}
