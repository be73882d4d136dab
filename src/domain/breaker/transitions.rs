//! What outcomes and time do to the breaker of a queue's work.

use super::{Breaker, BreakerEpoch, BreakerState, EndedDelivery, Meter, Outage, OutcomeStats, Recovery, Signal};
use crate::domain::ids::JobId;
use crate::domain::settings::BreakerSettings;
use crate::domain::time::Timestamp;
use std::time::Duration;

/// A probe that fails with another type of error than the one that opened the breaker may be the job's own problem: so many
/// others are tried at once before the downstream counts as broken still.
const OTHER_ERRORS_MAX: u32 = 3;
/// The wait for a probe varies by this share, so that many breakers of one downstream do not probe together.
const PROBE_SPREAD: f64 = 0.1;

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
        if matches!(signal, Signal::Failure { .. }) && !ended.counted {
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
                let recovery = self.recovery();
                match recovery {
                    Some(recovery) => stats.recovering_failure(ended.started_at, recovery.step_started),
                    None => stats.count_failure(ended.first || unreachable, now),
                }
                if ended.first || unreachable {
                    stats.lengthen_streak(ended.started_at, now);
                }
                if self.nothing_opens_it(settings) || !stats.is_an_outage(recovery, settings, now) {
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
                if outage.recovering {
                    (outage.down_since, outage.error_type) = (now, error_type);
                    match hold {
                        Some(_) => outage.recovery.hold(now),
                        None => {
                            outage.falls += 1;
                            outage.recovery.fall(&stats.usual, now);
                        }
                    }
                }
                let failed_probe = failed_probe.or(outage.failed_probe);
                Outage { opened_at: now, successes: 0, other_errors: 0, failed_probe, recovering: false, ..*outage }
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
        let before = self.returned.len();
        self.returned.extend(stats.take_counted());
        stats.uncounted += (self.returned.len() - before) as u64;
        self.outage = Some(Box::new(Outage { probe_at, uncounted: stats.uncounted, ..outage }));
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
}
