//! A queue, its slots and its downstreams over virtual time: the breaker, admission and retries are the real functions.

use super::downstream::{Downstream, SECOND, Service, error};
use redrive::domain::{
    Admission, Breaker, BreakerEpoch, BreakerFacts, BreakerState, Delivery, EndedDelivery, JobId, Lease, Leased, Meter,
    Next, OutcomeStats, Outcome, PATIENCE, PolicyOverride, Progress, QueueName, QueueSettings, Recovery, Rng, Successes,
    Timestamp, decide,
};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// A job that fails whatever the downstream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Poison {
    /// As an error that says nothing of the downstream.
    Own,
    /// As HTTP 500.
    Http500,
}

#[derive(Clone)]
pub(super) struct Scenario {
    pub(super) jobs: usize,
    /// Jobs that are enqueued a second.
    pub(super) rate: f64,
    /// The last job is enqueued then at the latest.
    pub(super) slots: usize,
    /// A worker's own time for each job.
    pub(super) overhead_ms: f64,
    /// One for each breaker key; jobs go to them in turn.
    pub(super) downstreams: Vec<Downstream>,
    /// Keys are given at Enqueue; otherwise failures name them.
    pub(super) keys_given: bool,
    /// One in so many is poison.
    pub(super) poison: Option<(usize, Poison)>,
    pub(super) settings: QueueSettings,
    pub(super) policy: Option<PolicyOverride>,
    pub(super) end: f64,
    pub(super) seed: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            jobs: 10_000,
            rate: 40.0,
            slots: 20,
            overhead_ms: 5.0,
            downstreams: vec![Downstream::default()],
            keys_given: true,
            poison: None,
            settings: QueueSettings::default(),
            policy: None,
            end: 330.0,
            seed: 1,
        }
    }
}

#[derive(Debug)]
pub(super) struct Results {
    pub(super) done: usize,
    pub(super) dead: usize,
    pub(super) good_dead: usize,
    pub(super) poison_left: usize,
    /// Attempts that good jobs lost.
    pub(super) counted: u64,
    pub(super) failed: u64,
    pub(super) calls: u64,
    pub(super) falls: u32,
    pub(super) peak: usize,
    /// Seconds after the downstream came back.
    pub(super) first_success: Option<f64>,
    pub(super) drained: Option<f64>,
    pub(super) trips: u32,
    /// The longest time in which work waited, the downstream was well, and nothing was handed out.
    pub(super) idle_while_well: f64,
    /// Milliseconds from ready to done, of good jobs, sorted; of each downstream.
    pub(super) waits: Vec<Vec<u64>>,
}

impl Results {
    pub(super) fn p99(&self, downstream: usize) -> u64 {
        let waits = &self.waits[downstream];
        waits.get(waits.len() * 99 / 100).copied().unwrap_or_default()
    }
}

struct Job {
    enqueued: u64,
    target: usize,
    group: usize,
    poison: Option<Poison>,
    progress: Progress,
    died: bool,
    done: bool,
    /// Of its last counted failure: the delivery.
    ready_at: u64,
}

/// One breaker with what it guards.
struct Guard {
    breaker: Breaker,
    stats: OutcomeStats,
    sums: Successes,
    last_success: Option<Timestamp>,
    ready: BTreeSet<(u64, usize)>,
    leased: u64,
    /// Starts of the probes of this epoch, and their jobs.
    probes: Vec<(Timestamp, usize)>,
    meter: Meter,
    tokens: f64,
    tokens_at: u64,
    look_at: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Enqueue,
    Ready(usize),
    Ended(usize),
    Wake,
    Look(usize),
}

struct Running {
    started: u64,
    epoch: BreakerEpoch,
    group: usize,
    ramp: bool,
    error: Option<redrive::domain::Failure>,
    delivery: u32,
}

pub(super) struct Simulation {
    scenario: Scenario,
    services: Vec<Service>,
    guards: Vec<Guard>,
    jobs: Vec<Job>,
    running: Vec<Option<Running>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    free: usize,
    rng: Rng,
    rate_tokens: f64,
    rate_at: u64,
    queue: QueueName,
    waiting_since: Option<u64>,
    idle_while_well: u64,
    drained: Option<u64>,
    left: usize,
    waits: Vec<Vec<u64>>,
    wake_at: u64,
    out: u64,
}

fn ms(now: u64) -> Timestamp {
    Timestamp::from_millis(1_000_000 + now / 1_000)
}

fn micros(at: Timestamp) -> u64 {
    at.millis().saturating_sub(1_000_000).saturating_mul(1_000)
}

impl Simulation {
    pub(super) fn run(scenario: Scenario) -> Results {
        let groups = scenario.downstreams.len() + 1;
        let services = scenario.downstreams.iter().cloned().map(Service::new).collect::<Vec<_>>();
        let guard = |_| Guard {
            breaker: Breaker::default(),
            stats: OutcomeStats::new(Default::default(), ms(0)),
            sums: Successes::default(),
            last_success: None,
            ready: BTreeSet::new(),
            leased: 0,
            probes: Vec::new(),
            meter: Meter::default(),
            tokens: 1.0,
            tokens_at: 0,
            look_at: 0,
        };
        let mut simulation = Self {
            free: scenario.slots,
            rng: Rng::new(scenario.seed),
            guards: (0..groups).map(guard).collect(),
            waits: vec![Vec::new(); services.len()],
            services,
            jobs: Vec::new(),
            running: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            rate_tokens: 1.0,
            rate_at: 0,
            queue: QueueName::parse("q").unwrap(),
            waiting_since: None,
            idle_while_well: 0,
            drained: None,
            left: scenario.jobs,
            wake_at: u64::MAX,
            out: 0,
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
        let end = (self.scenario.end * SECOND as f64) as u64;
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now > end || self.left == 0 {
                break;
            }
            self.watch_idle(now);
            match event {
                Event::Enqueue => self.enqueue(now),
                Event::Ready(job) => self.make_ready(job, now),
                Event::Ended(job) => self.ended(job, now),
                Event::Wake => self.wake_at = u64::MAX,
                Event::Look(group) => {
                    if self.guards[group].look_at != now {
                        continue;
                    }
                    self.look(group, now);
                }
            }
            self.hand_out(now);
        }
    }

    fn watch_idle(&mut self, now: u64) {
        let ready = self.guards.iter().any(|guard| !guard.ready.is_empty());
        let well = self.services.iter().all(|service| service.is_well(now));
        if ready && well && self.free > 0 && self.out == 0 {
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
        let poison = self.scenario.poison.filter(|(one_in, _)| number % one_in == one_in - 1).map(|(_, poison)| poison);
        let group = if self.scenario.keys_given && targets > 1 { target + 1 } else { 0 };
        let progress = Progress::default();
        self.jobs.push(Job { enqueued: now, target, group, poison, progress, died: false, done: false, ready_at: now });
        self.running.push(None);
        self.make_ready(number, now);
        if self.jobs.len() < self.scenario.jobs {
            let gap = -(1.0 - self.rng.unit()).ln() / self.scenario.rate;
            self.at(now + (gap * SECOND as f64) as u64, Event::Enqueue);
        }
    }

    fn make_ready(&mut self, job: usize, now: u64) {
        let group = self.jobs[job].group;
        self.jobs[job].ready_at = now;
        self.guards[group].ready.insert((now, job));
    }

    fn wake(&mut self, at: u64) {
        if at < self.wake_at {
            self.wake_at = at;
            self.at(at, Event::Wake);
        }
    }

    // ---- hand out ----

    fn hand_out(&mut self, now: u64) {
        while self.free > 0 {
            if !self.may_by_rate(now) {
                break;
            }
            let mut first: Option<((u64, usize), usize, bool)> = None;
            for group in 0..self.guards.len() {
                if let Some((head, probe)) = self.head(group, now)
                    && first.is_none_or(|(other, ..)| head < other)
                {
                    first = Some((head, group, probe));
                }
            }
            let Some((head, group, probe)) = first else { break };
            self.start(head, group, probe, now);
        }
        for guard in &mut self.guards {
            if guard.ready.is_empty() {
                guard.meter.empty_at = ms(now);
            }
        }
    }

    fn may_by_rate(&mut self, now: u64) -> bool {
        let settings = &self.scenario.settings;
        if settings.max_in_flight.is_some_and(|most| self.out >= most) {
            return false;
        }
        let Some(rate) = settings.max_rate else { return true };
        let burst = (rate * 0.05).max(1.0);
        self.rate_tokens = (self.rate_tokens + (now - self.rate_at) as f64 * rate / 1e6).min(burst);
        self.rate_at = now;
        if self.rate_tokens < 1.0 {
            let waits = ((1.0 - self.rate_tokens) / rate * 1e6).ceil() as u64 + 1;
            if self.guards.iter().any(|guard| !guard.ready.is_empty()) {
                self.wake(now + waits);
            }
            return false;
        }
        true
    }

    /// The first job of a group that may leave, and whether it is a probe.
    fn head(&mut self, group: usize, now: u64) -> Option<((u64, usize), bool)> {
        let settings = &self.scenario.settings.breaker;
        let guard = &mut self.guards[group];
        let first = *guard.ready.first()?;
        let probes = guard.probes.iter().map(|(start, _)| *start);
        match guard.breaker.admission(settings, guard.stats.took_ms, probes, ms(now)) {
            Admission::All => Some((first, false)),
            Admission::Probes { not_first, .. } => {
                let is_avoided = |job: usize| not_first == Some(&id(job));
                let head = guard.ready.iter().copied().find(|(_, job)| !is_avoided(*job)).unwrap_or(first);
                Some((head, true))
            }
            Admission::Ramp { leased, per_second } => {
                let burst = Recovery::burst(per_second);
                guard.tokens = (guard.tokens + (now - guard.tokens_at) as f64 * per_second / 1e6).min(burst);
                guard.tokens_at = now;
                if guard.leased < leased && guard.tokens >= 1.0 {
                    return Some((first, false));
                }
                if ms(now).since(guard.meter.empty_at) > PATIENCE {
                    guard.meter.held_at = ms(now);
                }
                if guard.leased < leased {
                    let waits = ((1.0 - guard.tokens) / per_second * 1e6).ceil() as u64 + 1;
                    self.wake(now + waits);
                }
                None
            }
            Admission::Limited { until } | Admission::Held { until: Some(until) } => {
                self.wake(micros(until).max(now + 1_000));
                None
            }
            Admission::Held { until: None } => None,
        }
    }

    fn start(&mut self, head: (u64, usize), group: usize, probe: bool, now: u64) {
        let (_, number) = head;
        let guard = &mut self.guards[group];
        guard.ready.remove(&head);
        guard.leased += 1;
        self.out += 1;
        let ramp = guard.breaker.state(&self.scenario.settings.breaker, ms(now)) == BreakerState::Recovering;
        if ramp {
            guard.tokens -= 1.0;
            guard.meter.most_leased = guard.meter.most_leased.max(guard.leased);
        }
        if probe {
            guard.probes.push((ms(now), number));
        }
        if self.scenario.settings.max_rate.is_some() {
            self.rate_tokens -= 1.0;
        }
        self.free -= 1;
        let epoch = BreakerEpoch { transitions: guard.breaker.transitions, probe };
        let job = &mut self.jobs[number];
        job.progress.deliveries += 1;
        let mut answer = self.services[job.target].call(now, &mut self.rng);
        if answer.error.is_none()
            && let Some(poison) = job.poison
        {
            let (name, status) = if poison == Poison::Own { ("Bug", 0) } else { ("HTTP500", 500) };
            answer.error = Some(error(name, None, status));
        }
        let delivery = job.progress.deliveries;
        self.running[number] = Some(Running { started: now, epoch, group, ramp, error: answer.error, delivery });
        let overhead = (self.scenario.overhead_ms * 1e3) as u64;
        self.at(now + answer.after + overhead, Event::Ended(number));
    }

    // ---- outcomes ----

    fn ended(&mut self, number: usize, now: u64) {
        let Some(running) = self.running[number].take() else { return };
        self.free += 1;
        self.out -= 1;
        let group = running.group;
        let guard = &mut self.guards[group];
        guard.leased -= 1;
        guard.probes.retain(|(_, job)| *job != number);
        match running.error.clone() {
            None => self.succeeded(number, &running, now),
            Some(failure) => self.failed(number, &running, failure, now),
        }
        self.after_outcome(group, now);
    }

    fn succeeded(&mut self, number: usize, running: &Running, now: u64) {
        let (settings, started) = (&self.scenario.settings.breaker, ms(running.started));
        let guard = &mut self.guards[running.group];
        if running.ramp || running.epoch.probe {
            let transitions = guard.breaker.transitions;
            guard.breaker.succeed(&mut guard.stats, running.epoch, started, settings, ms(now));
            if guard.breaker.transitions != transitions {
                guard.new_epoch();
            }
        } else if running.epoch.transitions == guard.breaker.transitions {
            guard.sums.add(Successes::of(started, ms(now), self.jobs[number].progress.retries > 0));
            guard.last_success = Some(ms(now));
        }
        let job = &mut self.jobs[number];
        job.done = true;
        self.left -= 1;
        self.waits[job.target].push((now - job.enqueued) / 1_000);
        self.note_drained(now);
    }

    fn failed(&mut self, number: usize, running: &Running, failure: redrive::domain::Failure, now: u64) {
        let settings = &self.scenario.settings;
        let targets = self.services.len();
        let job = &mut self.jobs[number];
        // A failure names the dependency: its outcome is that key's, if the delivery began under it.
        let own = job.target + 1;
        let learns = targets > 1 && job.group != own;
        let group = if learns { own } else { running.group };
        let guard = &mut self.guards[group];
        let epoch = if learns {
            BreakerEpoch { transitions: guard.breaker.transitions, probe: false }
        } else {
            running.epoch
        };
        let at = ms(now);
        if guard.breaker.outage.is_none() {
            guard.stats.absorb(guard.sums, guard.last_success);
            guard.stats.roll(at);
        }
        let breaker = BreakerFacts {
            state: guard.breaker.state(&settings.breaker, at),
            counts: guard.breaker.counts_failure(&guard.stats, epoch, &settings.breaker, at),
            counts_hold: guard.breaker.counts_hold(epoch, &settings.breaker, at),
            probe_at: guard.breaker.probe_at(&settings.breaker, at),
        };
        let delivery = Delivery {
            lease: Lease {
                queue: self.queue.clone(),
                number: number as u64,
                delivery: running.delivery,
                nonce: 0,
                flags: 0,
                epoch: 0,
                started_at: ms(running.started),
                duration_ms: 0,
                own_id: None,
            },
            attempt: job.progress.tries + 1,
            worker_id: String::new(),
            started_at: ms(running.started),
            expires_at: Timestamp::MAX,
            duration: Default::default(),
            probe: epoch.probe,
        };
        let leased = Leased {
            delivery: &delivery,
            progress: &job.progress,
            policy: self.scenario.policy.as_ref(),
            expires_at: None,
            breaker,
        };
        let retry_after = (failure.http_status == 429).then(|| std::time::Duration::from_secs(1));
        let outcome = Outcome::Failed { failure, permanent: false, retry_after };
        let first = job.progress.tries == 0;
        let decision = decide(leased, outcome, settings, at, self.rng.fractions());
        job.progress = decision.progress;
        job.progress.deliveries = running.delivery;
        let job_id = id(number);
        let ended = EndedDelivery {
            epoch,
            job: &job_id,
            number: number as u64,
            delivery: running.delivery,
            started_at: ms(running.started),
            first,
        };
        let transitions = guard.breaker.transitions;
        guard.breaker.fail(&mut guard.stats, &ended, decision.signal, &settings.breaker, at, self.rng.unit());
        if guard.breaker.transitions != transitions {
            guard.new_epoch();
        }
        job.group = group;
        match decision.next {
            Next::Later { at } | Next::Behind { at } => {
                self.at(micros(at).max(now), Event::Ready(number));
            }
            Next::OldPlace => self.make_ready(number, now),
            Next::DeadLetter(_) | Next::Cancelled => {
                self.jobs[number].died = true;
                self.left -= 1;
                self.note_drained(now);
            }
        }
        self.return_counted(group, now);
        if group != running.group {
            self.after_outcome(group, now);
        }
    }

    fn return_counted(&mut self, group: usize, now: u64) {
        for failure in std::mem::take(&mut self.guards[group].breaker.returned) {
            let number = failure.number as usize;
            let job = &mut self.jobs[number];
            job.progress.tries = job.progress.tries.saturating_sub(1);
            job.progress.uncounted += 1;
            if job.died && !job.done {
                job.died = false;
                self.left += 1;
                self.make_ready(number, now);
            }
        }
    }

    fn after_outcome(&mut self, group: usize, now: u64) {
        let settings = &self.scenario.settings.breaker;
        let guard = &mut self.guards[group];
        match &guard.breaker.outage {
            Some(outage) if outage.recovering => {
                if outage.recovery.step_is_over(&guard.stats.step, &guard.stats.usual, ms(now)) {
                    self.look(group, now);
                } else if guard.look_at <= now {
                    let at = micros(outage.recovery.next_look(settings, ms(now)));
                    self.look_at(group, at);
                }
            }
            Some(_) => {}
            None if guard.look_at <= now => {
                let at = micros(guard.stats.bucket_ends_at(ms(now)));
                self.look_at(group, at);
            }
            None => {}
        }
    }

    fn look_at(&mut self, group: usize, at: u64) {
        self.guards[group].look_at = at;
        self.at(at, Event::Look(group));
    }

    fn look(&mut self, group: usize, now: u64) {
        let settings = &self.scenario.settings.breaker;
        let guard = &mut self.guards[group];
        let at = ms(now);
        if guard.breaker.outage.is_none() {
            guard.stats.absorb(guard.sums, guard.last_success);
            guard.stats.roll(at);
            let next = micros(guard.stats.bucket_ends_at(at)).max(now + SECOND);
            return self.look_at(group, next);
        }
        guard.meter.ready = guard.ready.len() as u64;
        guard.meter.leased = guard.leased;
        let transitions = guard.breaker.transitions;
        let meter = guard.meter;
        guard.breaker.tick(&mut guard.stats, &meter, settings, at);
        if guard.breaker.transitions != transitions {
            guard.new_epoch();
        }
        if let Some(outage) = guard.breaker.outage.as_ref().filter(|outage| outage.recovering) {
            let next = micros(outage.recovery.next_look(settings, at)).max(now + 1_000);
            self.look_at(group, next);
        }
    }

    fn note_drained(&mut self, now: u64) {
        let back = self.services.iter().map(|service| service.watched_from).max().unwrap_or(0);
        if self.drained.is_none() && now > back {
            // A second without a job that has waited for longer than that.
            let oldest = self.guards.iter().filter_map(|guard| guard.ready.first()).map(|(at, _)| *at).min();
            let behind = oldest.is_some_and(|oldest| oldest + SECOND < now);
            let waiting = self.jobs.iter().filter(|job| !job.done && !job.died && job.progress.retries > 0).count();
            if !behind && waiting == 0 {
                self.drained = Some(now - back);
            }
        }
    }

    fn results(mut self) -> Results {
        let back = self.services.iter().map(|service| service.watched_from).max().unwrap_or(0);
        self.waits.iter_mut().for_each(|waits| waits.sort_unstable());
        let good = |job: &&Job| job.poison.is_none();
        Results {
            done: self.jobs.iter().filter(|job| job.done).count(),
            dead: self.jobs.iter().filter(|job| job.died).count(),
            good_dead: self.jobs.iter().filter(good).filter(|job| job.died).count(),
            poison_left: self.jobs.iter().filter(|job| job.poison.is_some() && !job.died).count(),
            counted: self.jobs.iter().filter(good).map(|job| u64::from(job.progress.tries)).sum(),
            failed: self.services.iter().map(|service| service.failed).sum(),
            calls: self.services.iter().map(|service| service.calls_made).sum(),
            falls: self.services.iter().map(|service| service.falls).sum(),
            peak: self.services.iter().map(|service| service.peak).max().unwrap_or(0),
            first_success: self.services.iter().filter_map(|service| service.first_success).min().map(|at| {
                at.saturating_sub(back) as f64 / SECOND as f64
            }),
            drained: self.drained.map(|at| at as f64 / SECOND as f64),
            trips: self.guards.iter().map(|guard| guard.breaker.trips).sum(),
            idle_while_well: self.idle_while_well as f64 / SECOND as f64,
            waits: self.waits,
        }
    }
}

impl Guard {
    fn new_epoch(&mut self) {
        self.sums = Successes::default();
        self.last_success = None;
        self.probes.clear();
        self.meter.most_leased = 0;
        self.tokens = 1.0;
        self.look_at = 0;
    }
}

fn id(number: usize) -> JobId {
    JobId::Uuid(number as u128)
}
