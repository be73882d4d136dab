//! Breakers once more: the whole story is kept, and every question asked of it anew.

use super::{Answer, Id, Job, Model, Place};
use redrive::domain::{BreakerFacts, BreakerSettings, BreakerState, Signal, Timestamp};
use redrive::queue::IdleReason;
use std::collections::BTreeSet;

#[derive(Clone, Debug, Default)]
pub(crate) struct Breaker {
    pub(crate) transitions: u64,
    pub(crate) trips: u32,
    pub(crate) open: Option<Opened>,
    pub(crate) forced: Option<bool>,
    /// Outcomes while it was closed, as far back as the store knows: when, and who failed.
    story: Vec<(Timestamp, Option<Id>)>,
    /// Dead letters that found no room, one after the other.
    pub(crate) full: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) probe_at: Timestamp,
    pub(crate) successes: u32,
    pub(crate) failed_probe: Option<Id>,
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

    /// Memory does not outlive the process.
    pub(super) fn restart(&mut self, keeps_outcome_stats: bool) {
        if !keeps_outcome_stats {
            self.story.clear();
        }
    }

    /// Who failed since the last success, repeats included.
    fn row(&self) -> Vec<Id> {
        self.story.iter().rev().map_while(|(_, failed)| *failed).collect()
    }

    pub(crate) fn failed(&self, settings: &BreakerSettings) -> u32 {
        let different: BTreeSet<_> = self.row().into_iter().collect();
        (different.len() as u32).min(settings.failure_threshold)
    }

    fn is_outage(&self, settings: &BreakerSettings, now: Timestamp) -> bool {
        let row = self.row().len();
        let before = &self.story[..self.story.len() - row];
        let quiet = before.last().is_none_or(|(at, _)| now.since(*at) >= settings.quiet_period);
        let failures = before.iter().filter(|(_, failed)| failed.is_some()).count();
        let mut needed = 0.0;
        if before.len() >= 20 && failures > 0 {
            let p = failures as f64 / before.len() as f64;
            let most = f64::from(4 * settings.failure_threshold);
            needed = ((1e-6f64).ln() / p.ln() - 1e-9).min(most);
        }
        self.failed(settings) >= settings.failure_threshold && quiet && row as f64 >= needed
    }

    fn trip(&mut self, probe_at: Timestamp, probe: Option<Id>) {
        let row = self.row().len();
        self.story.truncate(self.story.len() - row);
        let failed_probe = probe.or_else(|| self.open.and_then(|open| open.failed_probe));
        self.open = Some(Opened { probe_at, successes: 0, failed_probe });
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
        let transitions = self.transitions + 1;
        let trips = if forced.is_some() { self.trips } else { 0 };
        *self = Self { transitions, trips, forced, ..Self::default() };
    }
}

impl Model {
    fn work(&self, queue: usize) -> &Breaker {
        &self.queues[&queue].work
    }

    pub(super) fn work_state(&self, queue: usize) -> BreakerState {
        self.work(queue).state(&self.settings(queue).breaker, self.now)
    }

    /// Probes that have a slot, by when they lose it.
    pub(crate) fn probes(&self, queue: usize) -> Vec<Timestamp> {
        let settings = self.settings(queue);
        let transitions = self.work(queue).transitions;
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
            BreakerState::Closed => None,
            BreakerState::Open => {
                let breaker = self.work(queue);
                let open = breaker.open.filter(|_| breaker.forced.is_none());
                Some((IdleReason::BreakerOpen, open.map(|open| open.probe_at)))
            }
            BreakerState::HalfOpen => {
                let most = self.settings(queue).breaker.half_open_max_calls as usize;
                let until = probes.iter().min().copied();
                (probes.len() >= most).then_some((IdleReason::Limited, until))
            }
        }
    }

    /// The next to be handed out, and whether as a probe.
    pub(super) fn next_out(&self, queue: usize) -> Option<(usize, bool)> {
        if self.held_back(queue).is_some() {
            return None;
        }
        let probe = self.work_state(queue) == BreakerState::HalfOpen;
        let avoided = self.work(queue).open.and_then(|open| open.failed_probe);
        let avoided = avoided.filter(|_| probe).and_then(|id| self.find(queue, id));
        let others = self.first_ready_but(queue, avoided);
        others.or_else(|| self.first_ready_but(queue, None)).map(|number| (number, probe))
    }

    pub(super) fn breaker_facts(&self, queue: usize, sent: u64, probe: bool) -> BreakerFacts {
        let settings = self.settings(queue);
        let breaker = self.work(queue);
        let state = self.work_state(queue);
        let current = breaker.transitions == sent;
        let free = breaker.forced.is_none() && !settings.breaker.disabled;
        let counts_hold = free
            && match state {
                BreakerState::Open => true,
                BreakerState::Closed => current,
                BreakerState::HalfOpen => current && probe,
            };
        let open = breaker.open.as_ref().filter(|_| breaker.forced.is_none() && state == BreakerState::Open);
        BreakerFacts { state, counts_hold, probe_at: open.map(|open| open.probe_at) }
    }

    pub(super) fn succeeded(&mut self, queue: usize, sent: u64, probe: bool) {
        let (settings, state, now) = (self.settings(queue), self.work_state(queue), self.now);
        let breaker = &mut self.queues.entry(queue).or_default().work;
        if breaker.transitions != sent {
            return;
        }
        if state == BreakerState::HalfOpen && probe {
            breaker.probe_succeeds(&settings.breaker);
        }
        if breaker.state(&settings.breaker, now) == BreakerState::Closed {
            breaker.story.push((now, None));
        }
    }

    pub(super) fn failed(&mut self, queue: usize, sent: u64, probe: bool, id: Id, signal: Signal) {
        let (settings, now) = (self.settings(queue), self.now);
        let BreakerFacts { state, counts_hold, .. } = self.breaker_facts(queue, sent, probe);
        let breaker = &mut self.queues.entry(queue).or_default().work;
        let current = breaker.transitions == sent;
        let wait = settings.breaker.recovery_timeout;
        match (state, signal) {
            (_, Signal::None) => {}
            (BreakerState::Open, Signal::Hold { hold, .. }) if counts_hold => {
                if let Some(open) = &mut breaker.open {
                    open.probe_at = open.probe_at.max(now.after(hold));
                }
            }
            (_, Signal::Hold { hold, .. }) if counts_hold => {
                breaker.trip(now.after(hold), probe.then_some(id));
            }
            (BreakerState::Closed, Signal::Failure { .. }) if current => {
                breaker.story.push((now, Some(id)));
                let free = breaker.forced.is_none() && !settings.breaker.disabled;
                if free && breaker.is_outage(&settings.breaker, now) {
                    breaker.trip(now.after(wait), None);
                }
            }
            (BreakerState::HalfOpen, Signal::Failure { .. } | Signal::Expired) if current && probe => {
                breaker.trip(now.after(wait), Some(id));
            }
            _ => {}
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
                breaker.trip(now.after(settings.recovery_timeout), None);
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
        let queue = self.queues.entry(queue).or_default();
        let breaker = if dead_letters { &mut queue.dead_letters } else { &mut queue.work };
        breaker.set(forced);
        Answer::Nothing
    }
}
