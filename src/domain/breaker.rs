//! Circuit breakers: a queue is held back while what its workers call is broken, and its dead letters go to the overflow
//! while they are full.
//!
//! ```text
//!            too many failures, or a hold                 probe_at, by the clock
//!  CLOSED ──────────────────────────────────► OPEN ───────────────────────────────► HALF_OPEN
//!     ▲                                         ▲                                      │  │
//!     │                                         └───────── a probe fails ──────────────┘  │
//!     └────────────────────────────────── enough probes succeed ──────────────────────────┘
//! ```
//! Pure: what is known, the settings and the time go in. HALF_OPEN is never written: an open breaker whose
//! `probe_at` has come is half open. Every other transition raises `transitions`, which each delivery remembers, so that an
//! outcome from before the last one changes nothing.

mod dead_letters;
mod outcome_stats;

pub use dead_letters::OverflowDecision;
pub use outcome_stats::OutcomeStats;

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
    }
}

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    /// Raised by every transition; never goes back.
    pub transitions: u64,
    /// How often it has opened since it was last reset.
    pub trips: u32,
    /// None: closed.
    pub open: Option<Open>,
    /// An operator's word, until it is reset.
    pub forced: Option<Forced>,
    /// The failure that opened it last.
    pub last_error: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub since: Timestamp,
    /// From then on it is half open.
    pub probe_at: Timestamp,
    /// Of its probes.
    pub successes: u32,
    /// The next probe is another job, where there is one.
    pub failed_probe: Option<JobId>,
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
    /// What the workers call may be broken.
    Failure { error: String },
    /// It said so itself, and for how long.
    Hold { error: String, hold: Duration },
    /// A worker that died is no outage, but a probe that never came back proves nothing.
    Expired,
    /// Nothing that a breaker cares about.
    None,
}

/// What a delivery remembers of its queue's breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerEpoch {
    /// The breaker's transitions when it was handed out.
    pub transitions: u64,
    pub probe: bool,
}

/// How many jobs may be handed out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission<'a> {
    All,
    /// So many, and this one only if there is no other.
    Probes {
        most: usize,
        not_first: Option<&'a JobId>,
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
            Self::Limited { .. } | Self::Held { .. } => 0,
        }
    }
}

impl Breaker {
    pub fn state(&self, settings: &BreakerSettings, now: Timestamp) -> BreakerState {
        match (&self.forced, &self.open) {
            (Some(forced), _) if forced.open => BreakerState::Open,
            (Some(_), _) | (None, None) => BreakerState::Closed,
            (None, Some(_)) if settings.disabled => BreakerState::Closed,
            (None, Some(open)) if now < open.probe_at => BreakerState::Open,
            (None, Some(_)) => BreakerState::HalfOpen,
        }
    }

    /// Nothing about it needs to be remembered for as long as its queue is empty.
    pub fn is_at_rest(&self) -> bool {
        self.open.is_none() && self.forced.is_none()
    }

    /// What may be handed out while these probes are out, by when they were.
    pub fn admission(
        &self, settings: &BreakerSettings, probes: impl Iterator<Item = Timestamp>, now: Timestamp,
    ) -> Admission<'_> {
        match (self.state(settings, now), &self.open) {
            (BreakerState::Closed, _) => Admission::All,
            (BreakerState::HalfOpen, Some(open)) => {
                let (out, until) = probes_out(settings, probes, now);
                let most = (settings.half_open_max_calls as usize).saturating_sub(out);
                if most == 0 {
                    return Admission::Limited { until };
                }
                Admission::Probes { most, not_first: open.failed_probe.as_ref() }
            }
            (BreakerState::Open | BreakerState::HalfOpen, open) => {
                let until = open.as_ref().filter(|_| self.forced.is_none());
                Admission::Held { until: until.map(|open| open.probe_at) }
            }
        }
    }

    /// Whether a hold by this delivery can move it.
    pub fn counts_hold(&self, epoch: BreakerEpoch, settings: &BreakerSettings, now: Timestamp) -> bool {
        if self.forced.is_some() || settings.disabled {
            return false;
        }
        match self.state(settings, now) {
            BreakerState::Closed => self.is_current(epoch),
            BreakerState::HalfOpen => self.is_current(epoch) && epoch.probe,
            // Whenever it was delivered: the time asked for is as good as that of the first.
            BreakerState::Open => true,
        }
    }

    fn is_current(&self, epoch: BreakerEpoch) -> bool {
        epoch.transitions == self.transitions
    }

    /// Takes note of an Ack. True: the breaker has changed and must be kept.
    pub fn succeed(
        &mut self, outcome_stats: &mut OutcomeStats, epoch: BreakerEpoch, settings: &BreakerSettings, now: Timestamp,
    ) -> bool {
        if !self.is_current(epoch) {
            return false;
        }
        match (self.state(settings, now), &mut self.open) {
            (BreakerState::Closed, _) => {
                outcome_stats.success(now);
                false
            }
            (BreakerState::HalfOpen, Some(open)) if epoch.probe => {
                open.successes += 1;
                if open.successes >= settings.success_threshold {
                    self.close();
                    outcome_stats.success(now);
                }
                true
            }
            _ => false,
        }
    }

    /// Takes note of how a delivery of this job ended otherwise. True: the breaker has changed and must be kept.
    pub fn fail(
        &mut self, outcome_stats: &mut OutcomeStats, epoch: BreakerEpoch, job: &JobId, signal: Signal,
        settings: &BreakerSettings, now: Timestamp,
    ) -> bool {
        let state = self.state(settings, now);
        let probe = epoch.probe.then(|| job.clone());
        match (state, signal) {
            (BreakerState::Open, Signal::Hold { hold, .. }) => self.hold_longer(now.after(hold)),
            _ if !self.is_current(epoch) => false,
            (_, Signal::Hold { error, hold }) if self.counts_hold(epoch, settings, now) => {
                outcome_stats.end_streak();
                self.trip(now, hold, probe, error)
            }
            (BreakerState::Closed, Signal::Failure { error }) => {
                outcome_stats.failure(job, settings);
                self.reconsider(outcome_stats, error, settings, now)
            }
            (BreakerState::HalfOpen, Signal::Failure { error }) if epoch.probe => {
                self.trip(now, settings.recovery_timeout, probe, error)
            }
            (BreakerState::HalfOpen, Signal::Expired) if epoch.probe => {
                let error = "the lease of a probe ran out".to_owned();
                self.trip(now, settings.recovery_timeout, probe, error)
            }
            _ => false,
        }
    }

    /// Opens if what has been counted, this error being the last of it, is an outage. True: it has.
    pub fn reconsider(
        &mut self, outcome_stats: &mut OutcomeStats, error: String, settings: &BreakerSettings, now: Timestamp,
    ) -> bool {
        let closed = self.state(settings, now) == BreakerState::Closed;
        let nothing_opens_it = self.forced.is_some() || settings.disabled;
        if !closed || nothing_opens_it || !outcome_stats.is_an_outage(settings, now) {
            return false;
        }
        // An outage says nothing about what is usual.
        outcome_stats.end_streak();
        self.trip(now, settings.recovery_timeout, None, error)
    }

    /// True: that was later than before.
    fn hold_longer(&mut self, until: Timestamp) -> bool {
        match &mut self.open {
            Some(open) if self.forced.is_none() && open.probe_at < until => {
                open.probe_at = until;
                true
            }
            _ => false,
        }
    }

    /// → OPEN.
    fn trip(&mut self, now: Timestamp, wait: Duration, probe: Option<JobId>, error: String) -> bool {
        let before = self.open.take().and_then(|open| open.failed_probe);
        self.transitions += 1;
        self.trips += 1;
        self.last_error = error;
        let (probe_at, failed_probe) = (now.after(wait), probe.or(before));
        self.open = Some(Open { since: now, probe_at, successes: 0, failed_probe });
        true
    }

    /// → CLOSED.
    fn close(&mut self) {
        self.transitions += 1;
        self.open = None;
    }

    /// An operator says what it is, until it is reset.
    pub fn force(&mut self, open: bool, reason: String, now: Timestamp) {
        self.transitions += 1;
        self.open = None;
        self.forced = Some(Forced { open, since: now, reason });
    }

    /// As new, but for what deliveries remember.
    pub fn reset(&mut self) {
        *self = Self { transitions: self.transitions + 1, ..Self::default() };
    }

    /// When it last opened; none while it is closed.
    pub fn opened_at(&self, settings: &BreakerSettings, now: Timestamp) -> Option<Timestamp> {
        if self.state(settings, now) == BreakerState::Closed {
            return None;
        }
        match &self.forced {
            Some(forced) => Some(forced.since),
            None => self.open.as_ref().map(|open| open.since),
        }
    }

    /// When it turns half open by itself; none unless it is open and will.
    pub fn probe_at(&self, settings: &BreakerSettings, now: Timestamp) -> Option<Timestamp> {
        let open = self.open.as_ref().filter(|_| self.forced.is_none())?;
        (self.state(settings, now) == BreakerState::Open).then_some(open.probe_at)
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
