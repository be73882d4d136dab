//! Circuit breakers: a queue is held back while what its workers call is broken, and comes back with a load that grows; its
//! dead letters go to the overflow while they are full.
//!
//! ```text
//!           a streak of failures, or a hold            probe_at, by the clock            enough probes succeed
//!  CLOSED ──────────────────────────────────► OPEN ──────────────────────► HALF_OPEN ──────────────────────► RECOVERING
//!     ▲                                        ▲ ▲     a probe fails           │                                │   │
//!     │                                        │ └─────────────────────────────┘      a streak, or a hold       │   │
//!     │                                        └────────────────────────────────────────────────────────────────┘   │
//!     └──────────────────────────────── nothing has waited for the ramp for ten seconds ────────────────────────────┘
//! ```
//! Pure: what is known, the settings, the time and random numbers go in. HALF_OPEN is never written: an open breaker whose
//! `probe_at` has come is half open. Every other transition raises `transitions`, which each delivery remembers, so that an
//! outcome from before the last one changes nothing.

mod dead_letters;
mod outcome_stats;
mod recovery;

pub use dead_letters::OverflowDecision;
pub use outcome_stats::{Bucket, CountedFailure, OutcomeStats, Step, Successes, Usual};
pub use recovery::{Meter, PATIENCE, Recovery};

use super::failure::{Failure, cut};
use super::ids::{JobId, QueueName};
use super::macros::named;
use super::settings::BreakerSettings;
use super::time::Timestamp;
use std::{fmt, time::Duration};

named! {
    #[derive(Default)]
    BreakerState {
        #[default]
        Closed = "CLOSED",
        Open = "OPEN",
        HalfOpen = "HALF_OPEN",
        Recovering = "RECOVERING",
    }
}

/// A probe that fails with another type of error than the one that opened the breaker may be the job's own problem: so many
/// others are tried at once before the downstream counts as broken still.
const OTHER_ERRORS_MAX: u32 = 3;
/// The wait for a probe varies by this share, so that many breakers of one downstream do not probe together.
const PROBE_SPREAD: f64 = 0.1;
/// Transitions that are kept to be shown.
const LOG_MAX: usize = 50;
/// Of the error in one of them.
const LOG_ERROR_MAX: usize = 80;

/// What a breaker guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BreakerKind {
    /// What the queue's workers call.
    Work,
    DeadLetters,
}

/// `queue:emails` or `dlq:emails`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerName {
    pub queue: QueueName,
    pub kind: BreakerKind,
}

impl BreakerName {
    pub fn parse(name: &str) -> Option<Self> {
        let (kind, queue) = match name.split_once(':')? {
            ("queue", queue) => (BreakerKind::Work, queue),
            ("dlq", queue) => (BreakerKind::DeadLetters, queue),
            _ => return None,
        };
        Some(Self { queue: QueueName::parse(queue)?, kind })
    }
}

impl fmt::Display for BreakerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            BreakerKind::Work => "queue",
            BreakerKind::DeadLetters => "dlq",
        };
        write!(f, "{kind}:{}", self.queue)
    }
}

/// What a store keeps of a breaker for good.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Breaker {
    /// Raised by every transition; never goes back.
    pub transitions: u64,
    /// How often it has opened since it was last reset.
    pub trips: u32,
    /// None: closed.
    pub outage: Option<Outage>,
    /// An operator's word, until it is reset.
    pub forced: Option<Forced>,
    /// The failure that opened it last.
    pub last_error: String,
    /// What was usual when this was last kept.
    pub usual: Usual,
    /// Failures that were counted before it opened, and are to be returned to their jobs.
    pub returned: Vec<CountedFailure>,
    /// The last transitions, oldest first.
    pub log: Vec<Transition>,
}

/// From the first opening until it is closed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outage {
    pub since: Timestamp,
    pub down_since: Timestamp,
    /// When it last opened.
    pub opened_at: Timestamp,
    /// Of the failure that opened it: a probe that fails with another one says little.
    pub error_type: String,
    /// From then on it is half open.
    pub probe_at: Timestamp,
    /// Of its probes.
    pub successes: u32,
    /// Probes in a row that failed with another type of error.
    pub other_errors: u32,
    /// The next probe is another job, where there is one.
    pub failed_probe: Option<JobId>,
    /// Recoveries that failed.
    pub falls: u32,
    /// A load grows: RECOVERING.
    pub recovering: bool,
    pub recovery: Recovery,
}

/// One transition, to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub at: Timestamp,
    pub to: BreakerState,
    /// Of an opening the error, of an operator's order its reason.
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forced {
    pub open: bool,
    pub since: Timestamp,
    pub reason: String,
}

/// The end of a delivery that was no success, as a breaker sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// What the workers call may be broken. `unreachable`: it cannot be reached, does not answer in time, or says that it is
    /// overloaded; of any other error only a job speaks that has not failed before.
    Failure { error: String, error_type: String, unreachable: bool },
    /// It said so itself, and for how long.
    Hold { error: String, error_type: String, hold: Duration },
    /// A worker that died is no outage, but a probe that never came back proves nothing.
    Expired,
    /// Nothing that a breaker cares about.
    None,
}

/// What a delivery remembers of its breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerEpoch {
    /// The breaker's transitions when it was handed out.
    pub transitions: u64,
    pub probe: bool,
}

/// A delivery that has ended, as a breaker sees it.
#[derive(Clone, Copy, Debug)]
pub struct EndedDelivery<'a> {
    pub epoch: BreakerEpoch,
    pub job: &'a JobId,
    pub number: u64,
    pub delivery: u32,
    pub started_at: Timestamp,
    /// No failure of this job was counted before.
    pub first: bool,
}

/// How many jobs a breaker lets out now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Admission<'a> {
    All,
    /// So many, and this one only if there is no other.
    Probes {
        most: usize,
        not_first: Option<&'a JobId>,
    },
    /// While RECOVERING: so many leased at once, handed out at this pace.
    Ramp {
        leased: u64,
        per_second: f64,
    },
    /// All probes are out; one of them is given up then.
    Limited {
        until: Timestamp,
    },
    /// None. `until`: when probes begin; unknown while an operator forces it.
    Held {
        until: Option<Timestamp>,
    },
}

impl Admission<'_> {
    /// How many jobs may leave.
    pub fn limit(self) -> usize {
        match self {
            Self::All => usize::MAX,
            Self::Probes { most, .. } => most,
            Self::Ramp { leased, .. } => usize::try_from(leased).unwrap_or(usize::MAX),
            Self::Limited { .. } | Self::Held { .. } => 0,
        }
    }
}

/// Why it opens.
struct Opening {
    error: String,
    error_type: String,
    /// The start of the last probe, or now.
    from: Timestamp,
    /// A hold says how long.
    hold: Option<Duration>,
    failed_probe: Option<JobId>,
}

impl Breaker {
    pub fn state(&self, settings: &BreakerSettings, now: Timestamp) -> BreakerState {
        match (&self.forced, &self.outage) {
            (Some(forced), _) if forced.open => BreakerState::Open,
            (Some(_), _) | (None, None) => BreakerState::Closed,
            (None, Some(_)) if settings.disabled => BreakerState::Closed,
            (None, Some(outage)) if outage.recovering => BreakerState::Recovering,
            (None, Some(outage)) if now < outage.probe_at => BreakerState::Open,
            (None, Some(_)) => BreakerState::HalfOpen,
        }
    }

    /// Nothing about it needs to be remembered for as long as its queue is empty.
    pub fn is_at_rest(&self) -> bool {
        self.outage.is_none() && self.forced.is_none() && self.returned.is_empty()
    }

    /// It lets everything out.
    pub fn is_closed(&self) -> bool {
        self.outage.is_none() && self.forced.is_none()
    }

    fn nothing_opens_it(&self, settings: &BreakerSettings) -> bool {
        self.forced.is_some() || settings.disabled
    }

    /// What may be handed out while these probes are out, by when they were. `took_ms`: what a success has taken lately.
    pub fn admission(
        &self, settings: &BreakerSettings, took_ms: f64, probes: impl Iterator<Item = Timestamp>, now: Timestamp,
    ) -> Admission<'_> {
        match (self.state(settings, now), &self.outage) {
            (BreakerState::Closed, _) => Admission::All,
            (BreakerState::Recovering, Some(outage)) => outage.recovery.admission(took_ms),
            (BreakerState::HalfOpen, Some(outage)) => {
                let (out, until) = probes_out(settings, probes, now);
                let most = (settings.half_open_max_calls as usize).saturating_sub(out);
                if most == 0 {
                    return Admission::Limited { until };
                }
                Admission::Probes { most, not_first: outage.failed_probe.as_ref() }
            }
            (_, outage) => {
                let until = outage.as_ref().filter(|_| self.forced.is_none());
                Admission::Held { until: until.map(|outage| outage.probe_at) }
            }
        }
    }

    /// Whether a hold by this delivery can move it.
    pub fn counts_hold(&self, epoch: BreakerEpoch, settings: &BreakerSettings, now: Timestamp) -> bool {
        if self.nothing_opens_it(settings) {
            return false;
        }
        match self.state(settings, now) {
            BreakerState::Closed | BreakerState::Recovering => self.is_current(epoch),
            // Whenever it was delivered: the time asked for is as good as that of the first.
            BreakerState::Open | BreakerState::HalfOpen => true,
        }
    }

    /// Whether a transient failure of this delivery counts against its job: not while the downstream is known to be broken.
    pub fn counts_failure(
        &self, stats: &OutcomeStats, epoch: BreakerEpoch, settings: &BreakerSettings, now: Timestamp,
    ) -> bool {
        match self.state(settings, now) {
            _ if self.forced.as_ref().is_some_and(|forced| !forced.open) || settings.disabled => true,
            BreakerState::Closed => !stats.is_degraded(),
            BreakerState::Open | BreakerState::HalfOpen => false,
            BreakerState::Recovering => {
                self.is_current(epoch) && f64::from(stats.streak) < f64::from(stats.needed(settings)) / 2.0
            }
        }
    }

    fn is_current(&self, epoch: BreakerEpoch) -> bool {
        epoch.transitions == self.transitions
    }

    /// Takes note of an Ack of a probe, or of one under the ramp; those of a closed breaker are counted in sums. True: the
    /// breaker has changed and must be kept.
    pub fn succeed(
        &mut self, stats: &mut OutcomeStats, epoch: BreakerEpoch, started_at: Timestamp, settings: &BreakerSettings,
        now: Timestamp,
    ) -> bool {
        if !self.is_current(epoch) {
            return false;
        }
        match (self.state(settings, now), &mut self.outage) {
            (BreakerState::HalfOpen, Some(outage)) if epoch.probe => {
                stats.took(started_at, now);
                stats.last_success = Some(now);
                outage.successes += 1;
                if outage.successes >= settings.success_threshold {
                    self.recover(stats, settings, now);
                }
                true
            }
            (BreakerState::Recovering, Some(outage)) => {
                stats.recovering_success(started_at, outage.recovery.step_started, now);
                false
            }
            _ => false,
        }
    }

    /// Takes note of how a delivery ended otherwise. `unit`: a random number in [0, 1). True: the breaker has changed and must
    /// be kept.
    pub fn fail(
        &mut self, stats: &mut OutcomeStats, ended: &EndedDelivery<'_>, signal: Signal, settings: &BreakerSettings,
        now: Timestamp, unit: f64,
    ) -> bool {
        let (state, epoch) = (self.state(settings, now), ended.epoch);
        let counted = self.counts_failure(stats, epoch, settings, now);
        if matches!(signal, Signal::Failure { .. }) && !counted {
            stats.uncounted += 1;
        }
        let own_probe = epoch.probe && self.is_current(epoch);
        let failed_probe = own_probe.then(|| ended.job.clone());
        let from = if own_probe { ended.started_at } else { now };
        match (state, signal) {
            (_, Signal::Hold { .. }) if !self.counts_hold(epoch, settings, now) => false,
            (BreakerState::Open | BreakerState::HalfOpen, Signal::Hold { hold, .. }) if !own_probe => {
                self.hold_longer(now.after(hold))
            }
            (_, Signal::Hold { error, error_type, hold }) => {
                let opening = Opening { error, error_type, from, hold: Some(hold), failed_probe };
                self.open(stats, opening, settings, now, unit)
            }
            _ if !self.is_current(epoch) => false,
            (BreakerState::Closed | BreakerState::Recovering, Signal::Failure { error, error_type, unreachable }) => {
                if counted {
                    stats.remember_counted(ended, now);
                }
                let recovering = self.outage.as_ref().filter(|outage| outage.recovering);
                match recovering {
                    Some(outage) => stats.recovering_failure(ended.started_at, outage.recovery.step_started),
                    None => stats.count_failure(ended.first || unreachable),
                }
                if ended.first || unreachable {
                    stats.lengthen_streak(ended.started_at, now);
                }
                let load = recovering.map(|outage| outage.recovery.load);
                if self.nothing_opens_it(settings) || !stats.is_an_outage(settings, load, now) {
                    return false;
                }
                let opening = Opening { error, error_type, from, hold: None, failed_probe: None };
                self.open(stats, opening, settings, now, unit)
            }
            (BreakerState::HalfOpen, Signal::Failure { error, error_type, .. }) if epoch.probe => {
                if let Some(outage) = &mut self.outage
                    && outage.error_type != error_type
                    && outage.other_errors < OTHER_ERRORS_MAX
                {
                    outage.other_errors += 1;
                    outage.failed_probe = failed_probe;
                    return true;
                }
                let opening = Opening { error, error_type, from, hold: None, failed_probe };
                self.open(stats, opening, settings, now, unit)
            }
            (BreakerState::HalfOpen, Signal::Expired) if epoch.probe => {
                let error_type = self.outage.as_ref().map(|outage| outage.error_type.clone()).unwrap_or_default();
                let error = "the lease of a probe ran out".to_owned();
                self.open(stats, Opening { error, error_type, from, hold: None, failed_probe }, settings, now, unit)
            }
            (BreakerState::HalfOpen, Signal::None) if epoch.probe => {
                // It said nothing about the downstream: another job is asked.
                if let Some(outage) = &mut self.outage {
                    outage.failed_probe = failed_probe;
                }
                true
            }
            _ => false,
        }
    }

    /// True: that was later than before.
    fn hold_longer(&mut self, until: Timestamp) -> bool {
        match &mut self.outage {
            Some(outage) if outage.probe_at < until => {
                outage.probe_at = until;
                true
            }
            _ => false,
        }
    }

    /// → OPEN.
    fn open(
        &mut self, stats: &mut OutcomeStats, opening: Opening, settings: &BreakerSettings, now: Timestamp, unit: f64,
    ) -> bool {
        let Opening { error, error_type, from, hold, failed_probe } = opening;
        let outage = match self.outage.take() {
            None => {
                stats.uncounted = 0;
                let recovery = Recovery::before(stats, hold.is_some(), now);
                Outage {
                    since: now,
                    down_since: now,
                    opened_at: now,
                    error_type,
                    failed_probe,
                    recovery,
                    ..Outage::default()
                }
            }
            Some(mut outage) => {
                outage.falls += u32::from(outage.recovering);
                if outage.recovering {
                    outage.down_since = now;
                }
                if hold.is_some() {
                    outage.recovery.hold(now);
                } else if outage.recovering {
                    outage.recovery.fall(&stats.usual, now);
                }
                let failed_probe = failed_probe.or(outage.failed_probe);
                Outage { opened_at: now, successes: 0, other_errors: 0, failed_probe, recovering: false, ..outage }
            }
        };
        self.usual = stats.usual.clone();
        let spread = 1.0 - PROBE_SPREAD + 2.0 * PROBE_SPREAD * unit;
        let probe_at = match hold {
            Some(hold) => now.after(hold),
            None => {
                // As long after the last probe as the outage has lasted: that doubles the wait each time.
                let lasted = now.since(outage.down_since);
                let wait = lasted.min(settings.recovery_timeout).max(settings.first_probe);
                from.after(wait.mul_f64(spread)).max(now)
            }
        };
        self.outage = Some(Outage { probe_at, ..outage });
        self.returned.extend(stats.take_counted());
        self.trips += 1;
        self.last_error = error;
        self.transit(BreakerState::Open, self.last_error.clone(), now);
        stats.begin_epoch(now);
        true
    }

    /// HALF_OPEN → RECOVERING, or CLOSED where nothing is to grow.
    fn recover(&mut self, stats: &mut OutcomeStats, settings: &BreakerSettings, now: Timestamp) {
        if !settings.ramp {
            return self.close(stats, now);
        }
        if let Some(outage) = &mut self.outage {
            outage.recovering = true;
            outage.failed_probe = None;
            outage.recovery.begin(&stats.usual, now);
        }
        self.transit(BreakerState::Recovering, String::new(), now);
        stats.begin_epoch(now);
    }

    /// The end of a step of the ramp, or what follows from there being nothing left to wait for it. True: the breaker has changed
    /// and must be kept.
    pub fn tick(
        &mut self, stats: &mut OutcomeStats, meter: &Meter, settings: &BreakerSettings, now: Timestamp,
    ) -> bool {
        if self.state(settings, now) != BreakerState::Recovering {
            return false;
        }
        let Some(outage) = &mut self.outage else { return false };
        if outage.recovery.is_over(meter, now) {
            self.close(stats, now);
            return true;
        }
        outage.recovery.end_step(stats, meter, settings, now)
    }

    /// → CLOSED.
    fn close(&mut self, stats: &mut OutcomeStats, now: Timestamp) {
        self.outage = None;
        self.transit(BreakerState::Closed, String::new(), now);
        stats.begin_epoch(now);
    }

    fn transit(&mut self, to: BreakerState, mut why: String, now: Timestamp) {
        self.transitions += 1;
        cut(&mut why, LOG_ERROR_MAX);
        self.log.push(Transition { at: now, to, why });
        let more = self.log.len().saturating_sub(LOG_MAX);
        self.log.drain(..more);
    }

    /// An operator says what it is, until it is reset.
    pub fn force(&mut self, open: bool, reason: String, now: Timestamp) {
        self.outage = None;
        self.transit(if open { BreakerState::Open } else { BreakerState::Closed }, reason.clone(), now);
        self.forced = Some(Forced { open, since: now, reason });
    }

    /// As new, but for what deliveries and operators remember.
    pub fn reset(&mut self, now: Timestamp) {
        self.transit(BreakerState::Closed, "reset".into(), now);
        let (transitions, log) = (self.transitions, std::mem::take(&mut self.log));
        let returned = std::mem::take(&mut self.returned);
        *self = Self { transitions, log, returned, ..Self::default() };
    }

    /// When it last opened; none while it is closed or recovering.
    pub fn opened_at(&self, settings: &BreakerSettings, now: Timestamp) -> Option<Timestamp> {
        if matches!(self.state(settings, now), BreakerState::Closed | BreakerState::Recovering) {
            return None;
        }
        match &self.forced {
            Some(forced) => Some(forced.since),
            None => self.outage.as_ref().map(|outage| outage.opened_at),
        }
    }

    /// When it turns half open by itself; none unless it is open and will.
    pub fn probe_at(&self, settings: &BreakerSettings, now: Timestamp) -> Option<Timestamp> {
        let outage = self.outage.as_ref().filter(|_| self.forced.is_none())?;
        (self.state(settings, now) == BreakerState::Open).then_some(outage.probe_at)
    }
}

/// How many probes have a slot, by when they were handed out, and when the first of them loses it.
pub fn probes_out(
    settings: &BreakerSettings, probes: impl Iterator<Item = Timestamp>, now: Timestamp,
) -> (usize, Timestamp) {
    let ends = probes.map(|started| started.after(settings.recovery_timeout));
    let waited_for = ends.filter(|end| *end > now);
    waited_for.fold((0, Timestamp::MAX), |(out, until), end| (out + 1, until.min(end)))
}

/// A failure in a few words: what opened a breaker.
pub fn in_words(failure: &Failure) -> String {
    const ENOUGH: usize = 200;
    let mut words = failure.error_type.clone();
    if failure.http_status > 0 {
        words = format!("{words} (HTTP {})", failure.http_status);
    }
    if !failure.message.is_empty() {
        words = format!("{words}: {}", failure.message);
    }
    if cut(&mut words, ENOUGH) { words + "…" } else { words }
}
