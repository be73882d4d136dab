//! A queue, its slots and its downstreams over virtual time: the breaker, admission and retries are the real functions.

mod outcomes;

use super::downstream::{SECOND, Service};
use super::scenario::{Poison, Results, Scenario};
use redrive::domain::{
    Admission, Breaker, BreakerEpoch, Failure, Gate, Guard, JobId, Meter, OutcomeStats, PATIENCE, Probes, Progress,
    QueueName, Rate, Rng, Successes, Timestamp, Usual,
};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

struct Job {
    enqueued: u64,
    started: Option<u64>,
    target: usize,
    group: usize,
    poison: Option<Poison>,
    progress: Progress,
    died: bool,
    done: bool,
    running: Option<Running>,
}

struct Running {
    started: u64,
    epoch: BreakerEpoch,
    group: usize,
    ramp: bool,
    error: Option<Failure>,
}

/// One breaker with what it guards.
struct Group {
    breaker: Breaker,
    stats: OutcomeStats,
    sums: Successes,
    last_success: Option<Timestamp>,
    /// By when they became ready.
    ready: VecDeque<(u64, usize)>,
    leased: u64,
    /// Starts of the probes of this epoch, and their jobs.
    probes: Vec<(Timestamp, usize)>,
    meter: Meter,
    tokens: f64,
    tokens_at: u64,
    /// When its step or bucket is looked at next.
    look_at: u64,
    /// Until then another server has not seen that it opened.
    unseen_until: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Enqueue,
    Ready(usize),
    Ended(usize),
    Wake,
    Look(usize),
}

pub(super) struct Simulation {
    scenario: Scenario,
    services: Vec<Service>,
    groups: Vec<Group>,
    jobs: Vec<Job>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    free: usize,
    rng: Rng,
    rate_tokens: f64,
    rate_at: u64,
    queue: QueueName,
    /// Jobs that are out, and those that are neither done nor dead.
    out: u64,
    left: usize,
    wake_at: u64,
    waiting_since: Option<u64>,
    /// The end of the last outage.
    back: u64,
    idle_while_well: u64,
    last_uncounted: Option<u64>,
    last_done: u64,
    drained: Option<u64>,
    estimates: Vec<(f64, f64)>,
    /// Jobs that were enqueued before that, and of them those that are neither done nor dead.
    backlog: Option<usize>,
    backlog_left: usize,
    slowest_death: u64,
    waits: Vec<Vec<u64>>,
}

fn ms(now: u64) -> Timestamp {
    Timestamp::from_millis(1_000_000 + now / 1_000)
}

fn micros(at: Timestamp) -> u64 {
    at.millis().saturating_sub(1_000_000).saturating_mul(1_000)
}

fn id(number: usize) -> JobId {
    JobId::Uuid(number as u128)
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / SECOND as f64
}

impl Simulation {
    pub(super) fn run(scenario: Scenario) -> Results {
        let services = scenario.downstreams.iter().cloned().map(Service::new).collect::<Vec<_>>();
        let groups = if services.len() > 1 { services.len() + 1 } else { 1 };
        let mut simulation = Self {
            free: scenario.slots,
            rng: Rng::new(scenario.seed),
            groups: (0..groups).map(|_| Group::new()).collect(),
            waits: vec![Vec::new(); services.len()],
            back: services.iter().map(|service| service.watched_from).max().unwrap_or(0),
            services,
            jobs: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            rate_tokens: 1.0,
            rate_at: 0,
            queue: QueueName::parse("q").unwrap(),
            out: 0,
            left: scenario.jobs,
            wake_at: u64::MAX,
            waiting_since: None,
            idle_while_well: 0,
            last_uncounted: None,
            last_done: 0,
            drained: None,
            estimates: Vec::new(),
            backlog: None,
            backlog_left: 0,
            slowest_death: 0,
            scenario,
        };
        simulation.at(0, Event::Enqueue);
        simulation.go();
        simulation.results()
    }

    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((time, self.order, event)));
    }

    fn go(&mut self) {
        let mut end = (self.scenario.end * SECOND as f64) as u64;
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if let Some(drained) = self.drained {
                let more = self.scenario.end_after_drained * SECOND as f64;
                end = end.min(self.back.saturating_add(drained).saturating_add(more as u64));
            }
            if now > end || self.left == 0 {
                break;
            }
            if now >= self.back {
                self.backlog.get_or_insert(self.backlog_left);
            }
            self.watch_idle(now);
            match event {
                Event::Enqueue => self.enqueue(now),
                Event::Ready(job) => self.make_ready(job, now),
                Event::Ended(job) => self.ended(job, now),
                Event::Wake => self.wake_at = u64::MAX,
                Event::Look(group) if self.groups[group].look_at != now => continue,
                Event::Look(group) => self.look(group, now),
            }
            self.hand_out(now);
        }
    }

    /// Nothing has happened since the last event, so what was true then was true until now.
    fn watch_idle(&mut self, now: u64) {
        let idle = self.out == 0
            && self.free > 0
            && self.groups.iter().any(|group| !group.ready.is_empty())
            && self.services.iter().all(|service| service.is_well(now));
        if idle {
            let since = *self.waiting_since.get_or_insert(now);
            self.idle_while_well = self.idle_while_well.max(now - since);
        } else {
            self.waiting_since = None;
        }
    }

    fn enqueue(&mut self, now: u64) {
        let number = self.jobs.len();
        let targets = self.services.len();
        let target = number % targets;
        let poison = self.scenario.poison.filter(|(share, _)| self.rng.unit() < *share).map(|(_, poison)| poison);
        let group = if self.scenario.keys_given && targets > 1 { target + 1 } else { 0 };
        self.jobs.push(Job {
            enqueued: now,
            started: None,
            target,
            group,
            poison,
            progress: Progress::default(),
            died: false,
            done: false,
            running: None,
        });
        self.backlog_left += usize::from(now < self.back);
        self.make_ready(number, now);
        if self.jobs.len() < self.scenario.jobs {
            let gap = -(1.0 - self.rng.unit()).ln() / self.scenario.rate;
            self.at(now + (gap * SECOND as f64) as u64, Event::Enqueue);
        }
    }

    fn make_ready(&mut self, job: usize, now: u64) {
        self.groups[self.jobs[job].group].ready.push_back((now, job));
    }

    fn wake(&mut self, at: u64) {
        if at < self.wake_at {
            self.wake_at = at;
            self.at(at, Event::Wake);
        }
    }

    // ---- hand out ----

    fn hand_out(&mut self, now: u64) {
        if let Some((from, to)) = self.scenario.away
            && (from..to).contains(&seconds(now))
        {
            return self.wake((to * SECOND as f64) as u64);
        }
        while self.free > 0 && self.groups.iter().any(|group| !group.ready.is_empty()) {
            if !self.may_by_limits(now) {
                break;
            }
            let heads = (0..self.groups.len()).filter_map(|group| Some((self.head(group, now)?, group)));
            // The group whose job was ready first.
            let Some(((_, index, probe), group)) = heads.min() else { break };
            self.start(group, index, probe, now);
        }
        for group in &mut self.groups {
            if group.ready.is_empty() {
                group.meter.empty_at = ms(now);
            }
        }
    }

    fn may_by_limits(&mut self, now: u64) -> bool {
        let settings = &self.scenario.settings;
        if settings.max_in_flight.is_some_and(|most| self.out >= most) {
            return false;
        }
        let Some(rate) = settings.max_rate else { return true };
        let Rate { per_second: rate, burst } = rate.rate();
        self.rate_tokens = (self.rate_tokens + (now - self.rate_at) as f64 * rate / 1e6).min(burst);
        self.rate_at = now;
        if self.rate_tokens < 1.0 {
            let waits = ((1.0 - self.rate_tokens) / rate * 1e6).ceil() as u64 + 1;
            self.wake(now + waits);
            return false;
        }
        true
    }

    /// The first job of a group that may leave: since when it is ready, where it is, and whether it is a probe.
    fn head(&mut self, number: usize, now: u64) -> Option<((u64, usize), usize, bool)> {
        let settings = &self.scenario.settings.breaker;
        let group = &mut self.groups[number];
        let first = *group.ready.front()?;
        if now < group.unseen_until {
            return Some((first, 0, false));
        }
        let probes = group.probes.iter().map(|(start, _)| *start);
        let guard = Guard { breaker: &group.breaker, settings, took_ms: group.stats.took_ms };
        let gate = Gate { guard: Some(guard), ..Gate::default() };
        let allowed = match gate.admission(probes, ms(now)) {
            Admission::Jobs(allowed) => allowed,
            Admission::Held { until, .. } => {
                if let Some(until) = until {
                    self.wake(micros(until).max(now + 1_000));
                }
                return None;
            }
        };
        if let Some(Probes { not_first, .. }) = allowed.probes {
            let avoided = not_first == Some(&id(first.1)) && group.ready.len() > 1;
            let index = usize::from(avoided);
            return Some((group.ready[index], index, true));
        }
        let Some(Rate { per_second, burst }) = allowed.ramp else { return Some((first, 0, false)) };
        group.meter.asked_at = ms(now);
        group.tokens = (group.tokens + (now - group.tokens_at) as f64 * per_second / 1e6).min(burst);
        group.tokens_at = now;
        let has_slot = allowed.leased.is_none_or(|most| group.leased < most);
        if has_slot && group.tokens >= 1.0 {
            return Some((first, 0, false));
        }
        if ms(now).since(group.meter.empty_at) > PATIENCE {
            group.meter.held_at = ms(now);
        }
        if has_slot {
            let waits = ((1.0 - group.tokens) / per_second * 1e6).ceil() as u64 + 1;
            self.wake(now + waits);
        }
        None
    }

    fn start(&mut self, group_number: usize, index: usize, probe: bool, now: u64) {
        let group = &mut self.groups[group_number];
        let Some((_, number)) = group.ready.remove(index) else { return };
        group.leased += 1;
        let unseen = now < group.unseen_until;
        let ramp = !unseen && group.breaker.outage.as_ref().is_some_and(|outage| outage.recovering);
        if ramp {
            group.tokens -= 1.0;
            group.meter.most_leased = group.meter.most_leased.max(group.leased);
        }
        if probe {
            group.probes.push((ms(now), number));
        }
        if self.scenario.settings.max_rate.is_some() {
            self.rate_tokens -= 1.0;
        }
        self.free -= 1;
        self.out += 1;
        let transitions = group.breaker.transitions - u64::from(unseen);
        let job = &mut self.jobs[number];
        job.started.get_or_insert(now);
        job.progress.deliveries += 1;
        let mut answer = self.services[job.target].call(now, &mut self.rng);
        if answer.error.is_none() {
            answer.error = job.poison.map(|poison| match poison {
                Poison::Bug => Failure::new("Bug", ""),
                Poison::Http500 => Failure { http_status: 500, ..Failure::new("HTTP500", "") },
            });
        }
        let epoch = BreakerEpoch { transitions, probe };
        job.running = Some(Running { started: now, epoch, group: group_number, ramp, error: answer.error });
        let overhead = (self.scenario.overhead_ms * 1e3) as u64;
        self.at(now + answer.after + overhead, Event::Ended(number));
    }

    fn results(mut self) -> Results {
        self.waits.iter_mut().for_each(|waits| waits.sort_unstable());
        let count = |which: &dyn Fn(&Job) -> bool| self.jobs.iter().filter(|job| which(job)).count();
        let sum = |of: &dyn Fn(&Service) -> u64| self.services.iter().map(of).sum::<u64>();
        let first_success = self.services.iter().filter_map(|service| service.first_success).min();
        Results {
            done: count(&|job| job.done),
            dead: count(&|job| job.died),
            good_dead: count(&|job| job.died && job.poison.is_none()),
            poison: count(&|job| job.poison.is_some()),
            poison_dead: count(&|job| job.died && job.poison.is_some()),
            counted: self.jobs.iter().filter(|job| job.poison.is_none()).map(|job| u64::from(job.progress.tries)).sum(),
            failed: sum(&|service| service.failed),
            calls: sum(&|service| service.calls_made),
            falls: sum(&|service| service.falls.len() as u64) as u32,
            falls_of_one_recovery: self.services.iter().map(Service::falls_of_one_recovery).max().unwrap_or(0),
            peak: self.services.iter().map(|service| service.peak).max().unwrap_or(0),
            first_success: first_success.map(|at| seconds(at.saturating_sub(self.back))),
            drained: self.drained.map(seconds),
            estimates: self.estimates,
            backlog: self.backlog.unwrap_or(0),
            trips: self.groups.iter().map(|group| group.breaker.trips).sum(),
            idle_while_well: seconds(self.idle_while_well),
            last_uncounted: self.last_uncounted.map(seconds),
            last_done: seconds(self.last_done),
            slowest_death: seconds(self.slowest_death),
            waits: self.waits,
        }
    }
}

impl Group {
    fn new() -> Self {
        Self {
            breaker: Breaker::default(),
            stats: OutcomeStats::new(Usual::default(), ms(0)),
            sums: Successes::default(),
            last_success: None,
            ready: VecDeque::new(),
            leased: 0,
            probes: Vec::new(),
            meter: Meter::default(),
            tokens: 1.0,
            tokens_at: 0,
            look_at: 0,
            unseen_until: 0,
        }
    }

    /// True: there was one, and another epoch has begun.
    fn note_transition(&mut self, before: u64) -> bool {
        if self.breaker.transitions == before {
            return false;
        }
        self.sums = Successes::default();
        self.last_success = None;
        self.probes.clear();
        self.meter.most_leased = 0;
        self.tokens = 1.0;
        self.look_at = 0;
        true
    }
}
