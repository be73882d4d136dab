//! What a closed breaker counts: failures since the last success, and how much failing is usual.

use super::{super::ids::JobId, super::settings::BreakerSettings, super::time::Timestamp};
use std::collections::HashSet;

/// About so many outcomes tell what is usual.
const USUAL_OVER: f64 = 200.0;
/// With fewer than these known, nothing is usual yet.
const KNOWN_AT_LEAST: f64 = 20.0;
/// A streak of failures this unlikely is no coincidence.
const COINCIDENCE: f64 = 1e-6;
/// The longest streak that is ever required, in thresholds.
const LONGEST_ROW: u32 = 4;

/// After so many successes in a row nothing is left of what was before them.
const FADED_AFTER: u64 = 5_000;

/// Where one process has a store to itself, this lives in its memory: after a restart it starts over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutcomeStats {
    /// Different jobs that failed since the last success, as far as they matter.
    pub failed: HashSet<JobId>,
    /// Failures since the last success, repeats included.
    pub streak: u32,
    pub last_success: Option<Timestamp>,
    /// Outcomes before the streak, and the failures among them. Older ones fade.
    pub outcomes: f64,
    pub failures: f64,
}

impl OutcomeStats {
    pub(super) fn success(&mut self, now: Timestamp) {
        self.outcomes += f64::from(self.streak) + 1.0;
        self.failures += f64::from(self.streak);
        if self.outcomes > USUAL_OVER {
            let fade = USUAL_OVER / self.outcomes;
            self.outcomes *= fade;
            self.failures *= fade;
        }
        if self.streak > 0 {
            self.end_streak();
        }
        self.last_success = Some(now);
    }

    /// So many successes one after the other that were only counted, and when the last of them was.
    pub fn successes(&mut self, count: u64, last: Timestamp) {
        for _ in 0..count.min(FADED_AFTER) {
            self.success(last);
        }
    }

    pub fn failure(&mut self, job: &JobId, settings: &BreakerSettings) {
        self.streak = self.streak.saturating_add(1);
        if self.failed.len() < settings.failure_threshold as usize && !self.failed.contains(job) {
            self.failed.insert(job.clone());
        }
    }

    /// What has failed is dealt with: it says nothing about what is usual.
    pub fn end_streak(&mut self) {
        self.streak = 0;
        self.failed.clear();
    }

    /// Failures since the last success that count toward the threshold.
    pub fn failed(&self) -> u32 {
        u32::try_from(self.failed.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn is_an_outage(&self, settings: &BreakerSettings, now: Timestamp) -> bool {
        let enough_jobs = self.failed() >= settings.failure_threshold;
        let quiet = self.last_success.is_none_or(|at| now.since(at) >= settings.quiet_period);
        enough_jobs && quiet && self.streak >= self.unusual_streak(settings)
    }

    /// How long a streak must be before it is more than the usual failures.
    fn unusual_streak(&self, settings: &BreakerSettings) -> u32 {
        if self.outcomes < KNOWN_AT_LEAST || self.failures == 0.0 {
            return 0;
        }
        let longest = settings.failure_threshold.saturating_mul(LONGEST_ROW);
        let usual = self.failures / self.outcomes;
        // A whisker less, so that a whole number is not rounded up to the next.
        let streak = (COINCIDENCE.ln() / usual.ln() - 1e-9).ceil();
        if streak < f64::from(longest) { streak as u32 } else { longest }
    }
}
