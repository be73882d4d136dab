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
mod transitions;

pub use dead_letters::OverflowDecision;
pub use outcome_stats::{Bucket, CountedFailure, Degraded, OutcomeStats, Step, Successes, Usual};
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

/// `queue:emails`, `queue:emails/smtp.example.com` or `dlq:emails`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerName {
    pub queue: QueueName,
    pub kind: BreakerKind,
    /// The breaker key whose jobs it is for. Empty: those without one.
    pub key: String,
}

impl BreakerName {
    pub fn parse(name: &str) -> Option<Self> {
        let (kind, rest) = match name.split_once(':')? {
            ("queue", rest) => (BreakerKind::Work, rest),
            ("dlq", rest) => (BreakerKind::DeadLetters, rest),
            _ => return None,
        };
        // No queue has a slash in its name; a key may have any.
        let (queue, key) = match rest.split_once('/') {
            Some((_, key)) if key.is_empty() || kind == BreakerKind::DeadLetters => return None,
            Some((queue, key)) => (queue, key.to_owned()),
            None => (rest, String::new()),
        };
        Some(Self { queue: QueueName::parse(queue)?, kind, key })
    }
}

impl fmt::Display for BreakerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            BreakerKind::Work => "queue",
            BreakerKind::DeadLetters => "dlq",
        };
        write!(f, "{kind}:{}", self.queue)?;
        if self.key.is_empty() { Ok(()) } else { write!(f, "/{}", self.key) }
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
    pub outage: Option<Box<Outage>>,
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
    /// The breaker key that it is of. Empty: it is its queue's own.
    pub key: String,
}

/// From the first opening until it is closed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outage {
    pub since: Timestamp,
    /// Since it first opened, or fell while it recovered: the age that probes go by.
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
    /// Failures that did not count, until it last opened.
    pub uncounted: u64,
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
    /// Its own failure, where it is one, counts against its job.
    pub counted: bool,
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

    /// The same, or an operator says so.
    pub fn lets_all_out(&self) -> bool {
        self.outage.is_none() && self.forced.as_ref().is_none_or(|forced| !forced.open)
    }

    fn nothing_opens_it(&self, settings: &BreakerSettings) -> bool {
        self.forced.is_some() || settings.disabled
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
                let needed = stats.needed(self.recovery(), settings);
                self.is_current(epoch) && f64::from(stats.streak) < f64::from(needed) / 2.0
            }
        }
    }

    /// While a load grows.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.outage.as_ref().filter(|outage| outage.recovering).map(|outage| &outage.recovery)
    }

    /// What a delivery that began then remembers of it, where the job was handed out under another breaker.
    pub fn epoch_at(&self, started_at: Timestamp) -> BreakerEpoch {
        let opened_at = self.outage.as_ref().map(|outage| outage.opened_at);
        let last = self.log.last().map(|last| last.at).max(opened_at);
        let since = last.is_none_or(|last| last <= started_at);
        // Those of an earlier one change nothing, whichever it was.
        let transitions = if since { self.transitions } else { self.transitions.wrapping_sub(1) };
        BreakerEpoch { transitions, probe: false }
    }

    fn is_current(&self, epoch: BreakerEpoch) -> bool {
        epoch.transitions == self.transitions
    }

    fn transit(&mut self, to: BreakerState, mut why: String, now: Timestamp) {
        self.transitions += 1;
        if to == BreakerState::Open && self.outage.as_ref().is_some_and(|outage| outage.down_since < outage.opened_at) {
            // One more failed probe: six of them a minute would leave nothing of how it began.
            return;
        }
        cut(&mut why, LOG_ERROR_MAX);
        self.log.push(Transition { at: now, to, why });
        let more = self.log.len().saturating_sub(LOG_MAX);
        self.log.drain(..more);
    }

    /// An operator says what it is, until it is reset.
    pub fn force(&mut self, open: bool, reason: String, now: Timestamp) {
        if self.forced.as_ref().is_some_and(|forced| (forced.open, &forced.reason) == (open, &reason)) {
            // Said again.
            return;
        }
        self.outage = None;
        self.transit(if open { BreakerState::Open } else { BreakerState::Closed }, reason.clone(), now);
        self.forced = Some(Forced { open, since: now, reason });
    }

    /// As new, but for what deliveries and operators remember.
    pub fn reset(&mut self, now: Timestamp) {
        self.transit(BreakerState::Closed, "reset".into(), now);
        let (transitions, log) = (self.transitions, std::mem::take(&mut self.log));
        let (returned, key) = (std::mem::take(&mut self.returned), std::mem::take(&mut self.key));
        *self = Self { transitions, log, returned, key, ..Self::default() };
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
