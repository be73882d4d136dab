//! How a queue comes back after an outage: by *load*, the jobs in flight on average. It is a real number: 0.3 is one job 30 %
//! of the time. It grows in steps while nothing fails or slows.

use super::{OutcomeStats, Step, Usual};
use crate::domain::rate::Rate;
use crate::domain::settings::BreakerSettings;
use crate::domain::time::Timestamp;
use std::time::Duration;

/// What the downstream bore before is safe: it starts with half of that.
const START: f64 = 0.5;
/// Where nothing is known.
const UNKNOWN_LOAD: f64 = 1.0;
const LEAST_LOAD: f64 = 0.05;
/// A step that went well lets half more out.
const GROWTH: f64 = 1.5;
/// A step lasts at least so long, and a full round of outcomes.
const STEP: Duration = Duration::from_secs(1);
/// Above the usual load a round has at least so many.
const ROUND: f64 = 5.0;
/// Successes that take this many times their usual time: it grows no more; or it shrinks.
const SLOWER: f64 = 1.3;
const MUCH_SLOWER: f64 = 1.6;
const SHRINK: f64 = 0.8;
/// Below this share of the load in flight, the workers' slots are the limit, and more load means nothing.
const USED: f64 = 0.7;
/// After a fall load stays below this share of the last good load, but not below so many times the usual one. Of 10,000 random
/// downstreams 56 are knocked over more than twice in one recovery, 341 drain late and 15 not at all; with 0.7 40, 438 and 29.
const CEILING: f64 = 0.8;
const CEILING_OF_USUAL: f64 = 1.25;
/// Of the load before a hold, so much is kept over it: what asked for the hold bore almost all of it.
const KEPT_OVER_A_HOLD: f64 = 0.7;
/// For so long: longer than a drain, so that there is one fall and not four.
const CEILING_LASTS: Duration = Duration::from_secs(60);
/// And so long after it fell above the last ceiling; not for ever, since by then the queue may get more jobs than were usual.
const LAST_CEILING_LASTS: Duration = Duration::from_secs(300);
/// More failures than so many standard deviations above the share so far, and so many besides, are not chance. With one besides,
/// 51 of these 10,000 are knocked over more than twice, 396 drain late and 21 not at all: small steps are worse by chance.
const DEVIATIONS: f64 = 2.0;
const BESIDES: f64 = 2.0;
/// A load that passed the last ceiling by this much and fell again.
const ABOVE: f64 = 1.05;
/// Nothing has waited for the ramp for so long: it is over.
const OVER_AFTER: Duration = Duration::from_secs(10);
/// A job that waits less than this does not wait for the ramp.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// How far growth is foreseen: that more than so many times the usual load is borne is not known.
const FORESEEN: f64 = 4.0;
/// What takes longer comes to no end as far as is known.
const DRAIN_MAX_SECONDS: f64 = 7.0 * 24.0 * 3600.0;
/// Hand-outs that were missed are made up for, up to this time's worth.
const BURST: f64 = 0.01;

/// The load, and what bounds it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovery {
    pub load: f64,
    /// Of the step before.
    pub previous_load: f64,
    /// No step goes below this.
    pub start_load: f64,
    pub ceiling: Option<f64>,
    /// The ceiling ends with the first step after this that goes well.
    pub ceiling_until: Option<Timestamp>,
    /// Of the last fall or hold; 0: there was none.
    pub last_ceiling: f64,
    /// Of failures, so far.
    pub share: f64,
    pub step_started: Timestamp,
    /// When jobs last had to wait for it.
    pub bound_at: Timestamp,
}

/// What hand-outs under the ramp have found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// When nothing was left to hand out.
    pub empty_at: Timestamp,
    /// When jobs that had waited were held back.
    pub held_at: Timestamp,
    /// When a worker last asked for jobs.
    pub asked_at: Timestamp,
    /// At once.
    pub most_leased: u64,
    /// Jobs that are ready, and leased, now.
    pub ready: u64,
    pub leased: u64,
}

impl Recovery {
    /// As an outage begins, or a hold.
    pub(super) fn before(stats: &mut OutcomeStats, hold: bool, now: Timestamp) -> Self {
        let usual = stats.usual_load(now);
        let start_load = usual.map_or(UNKNOWN_LOAD, |load| (load * START).max(LEAST_LOAD));
        let mut recovery = Self { load: start_load, start_load, ..Self::default() };
        if hold {
            recovery.load = usual.unwrap_or(UNKNOWN_LOAD);
            recovery.hold(now);
        }
        recovery
    }

    /// A downstream that was asked too much says when to ask again: most of the load is kept over that, and is the ceiling.
    pub(super) fn hold(&mut self, now: Timestamp) {
        let load = (KEPT_OVER_A_HOLD * self.load).max(LEAST_LOAD);
        self.stay_under(load, now);
        self.load = load;
    }

    /// A downstream that had come back has failed again.
    pub(super) fn fall(&mut self, usual: &Usual, now: Timestamp) {
        let last_good = self.load.min(self.previous_load);
        self.stay_under((CEILING * last_good).max(CEILING_OF_USUAL * usual.load.unwrap_or_default()), now);
        self.load = (self.load / 2.0).clamp(self.start_load / 8.0, self.start_load);
    }

    /// For a while; longer where the last ceiling had been passed.
    fn stay_under(&mut self, ceiling: f64, now: Timestamp) {
        let again = self.last_ceiling > 0.0 && self.load > ABOVE * self.last_ceiling;
        (self.ceiling, self.last_ceiling) = (Some(ceiling), ceiling);
        self.ceiling_until = Some(now.after(if again { LAST_CEILING_LASTS } else { CEILING_LASTS }));
    }

    pub(super) fn begin(&mut self, usual: &Usual, now: Timestamp) {
        self.previous_load = self.load;
        self.share = usual.share;
        self.step_started = now;
        self.bound_at = now;
    }

    /// So many leased at once.
    pub(in crate::domain) fn leased(&self) -> u64 {
        self.load.ceil().max(1.0) as u64
    }

    /// About how many jobs that is, and how often one is handed out: at least each second.
    pub fn per_second(&self, took_ms: f64) -> f64 {
        (self.load * 1_000.0 / took_ms.max(1.0)).max(1.0)
    }

    /// The same with the hand-outs that may be made at once.
    pub fn pace(&self, took_ms: f64) -> Rate {
        let per_second = self.per_second(took_ms);
        Rate { per_second, burst: (per_second * BURST).max(1.0) }
    }

    /// About how long until so many ready jobs have left, while others come at the usual rate: load grows up to its ceiling, or as
    /// far as is foreseen, and no further than these limits. None: nothing says so, or no fewer come than leave.
    pub fn drain(
        &self, ready: u64, took_ms: f64, usual: &Usual, limits: (Option<u64>, Option<f64>),
    ) -> Option<Duration> {
        if ready == 0 || took_ms <= 0.0 {
            return (ready == 0).then_some(Duration::ZERO);
        }
        let (max_in_flight, max_rate) = limits;
        let most = max_in_flight.map_or(f64::MAX, |most| most as f64);
        let rate = |load: f64| (load.min(most) * 1_000.0 / took_ms).min(max_rate.unwrap_or(f64::MAX));
        let arrivals = usual.load.zip(usual.ln_took).map_or(0.0, |(load, ln_took)| load * 1_000.0 / ln_took.exp());
        let foreseen = usual.load.map_or(self.load, |load| FORESEEN * load);
        let ceiling = self.ceiling.unwrap_or(foreseen).max(self.load);
        let (mut load, mut waiting, mut seconds) = (self.load, ready as f64, 0.0);
        while load < ceiling {
            let fewer = rate(load) - arrivals;
            if fewer >= waiting {
                break;
            }
            waiting -= fewer;
            seconds += STEP.as_secs_f64();
            load = (GROWTH * load).min(ceiling);
        }
        let fewer = rate(load) - arrivals;
        let drained = seconds + waiting / fewer;
        (fewer > 0.0 && drained <= DRAIN_MAX_SECONDS).then(|| Duration::from_secs_f64(drained.max(0.0)))
    }

    /// When jobs last had to wait for it.
    fn last_bound(&self, meter: &Meter, now: Timestamp) -> Timestamp {
        let waits = meter.ready > 0 && meter.leased >= self.leased() && now.since(meter.empty_at) > PATIENCE;
        let now_or_never = if waits { now } else { Timestamp::default() };
        self.bound_at.max(meter.held_at).max(now_or_never)
    }

    /// While jobs wait and no worker asks for any, nothing says that they would not have to wait for it: workers that come back
    /// from a deploy would get the backlog at once.
    pub(super) fn is_over(&self, meter: &Meter, now: Timestamp) -> bool {
        let known_until = if meter.ready == 0 { now } else { meter.asked_at };
        known_until.since(self.last_bound(meter, now)) > OVER_AFTER
    }

    /// When to look at it again, if no outcome asks for it before.
    pub fn next_look(&self, settings: &BreakerSettings, now: Timestamp) -> Timestamp {
        let ends = [self.step_started.after(STEP), self.step_started.after(settings.recovery_timeout)];
        let over = self.bound_at.after(OVER_AFTER + Duration::from_millis(1));
        let next = ends.into_iter().filter(|end| *end > now).min().unwrap_or_else(|| now.after(STEP));
        if over > now { next.min(over) } else { next }
    }

    /// A full round of outcomes is there.
    pub fn step_is_over(&self, step: &Step, usual: &Usual, now: Timestamp) -> bool {
        let least = if usual.load.is_some_and(|usual| self.load <= usual) { 1.0 } else { ROUND };
        now.since(self.step_started) >= STEP && (step.ok + step.failed) as f64 >= self.load.max(least)
    }

    /// A step that has no outcome for so long has none. Handlers may take longer than a probe is waited for.
    fn stuck_after(stats: &OutcomeStats, settings: &BreakerSettings) -> Duration {
        settings.recovery_timeout.max(Duration::from_millis((2.0 * stats.took_ms) as u64))
    }

    /// True: a step has ended.
    pub(super) fn end_step(
        &mut self, stats: &mut OutcomeStats, meter: &Meter, settings: &BreakerSettings, now: Timestamp,
    ) -> bool {
        let away = meter.ready > 0 && meter.leased == 0 && now.since(meter.asked_at) > STEP;
        if away && self.load > self.start_load {
            // Workers that come back find a downstream that has rested: what it bore at the end was because it had slowed.
            (self.load, self.previous_load) = (self.start_load, self.start_load);
            self.step_started = now;
            stats.step = Step::default();
            return true;
        }
        let step = stats.step;
        let outcomes = (step.ok + step.failed) as f64;
        let full = meter.leased >= self.leased();
        let stuck = full && outcomes == 0.0 && now.since(self.step_started) >= Self::stuck_after(stats, settings);
        if !stuck && !self.step_is_over(&step, &stats.usual, now) {
            return false;
        }
        let usual_load = stats.usual.load.unwrap_or_default();
        let expected = outcomes * self.share;
        let chance = DEVIATIONS * (expected * (1.0 - self.share)).max(0.0).sqrt() + BESIDES;
        let worse = step.failed as f64 > expected + chance;
        let slower = match stats.usual.ln_took {
            Some(usual) if step.ok > 0 => (step.ln_took / step.ok as f64 - usual).exp(),
            _ => 1.0,
        };
        let load = self.load;
        let bound_at = self.last_bound(meter, now);
        let waited = bound_at > self.step_started && meter.empty_at < self.step_started;
        let used = self.load < 2.0 || meter.most_leased as f64 >= USED * self.load;
        if stuck {
            // Leases of workers that died take all slots.
            self.load += 1.0;
        } else if worse && self.load > self.start_load {
            self.load = self.load.min(self.previous_load).max(self.start_load);
            let ceiling = self.load.max(CEILING_OF_USUAL * usual_load);
            self.ceiling = Some(self.ceiling.map_or(ceiling, |before| before.min(ceiling)));
            self.ceiling_until = self.ceiling_until.max(Some(now.after(CEILING_LASTS)));
        } else if slower > MUCH_SLOWER && self.load > self.start_load {
            self.load = (SHRINK * self.load).max(self.start_load);
        } else if slower <= SLOWER && waited && used {
            if self.ceiling_until.is_some_and(|until| now > until) {
                self.ceiling = None;
            }
            self.previous_load = self.load;
            let most = self.ceiling.map_or(f64::MAX, |ceiling| ceiling.max(self.load));
            self.load = (GROWTH * self.load).min(most);
        }
        // What still fails after the step back is not because of the load.
        if outcomes > 0.0 && self.load >= load {
            self.share = stats.usual.share.max((self.share + step.failed as f64 / outcomes) / 2.0);
        }
        self.bound_at = bound_at;
        self.step_started = now;
        stats.step = Step::default();
        true
    }
}
