//! What a closed breaker counts: failures since the last success, and how much failing is usual.

use super::super::{ids::JobId, settings::BreakerSettings, time::Timestamp};
use std::collections::HashSet;

/// About so many outcomes tell what is usual.
const USUAL_OVER: f64 = 200.0;
/// With fewer than these known, nothing is usual yet.
const KNOWN_AT_LEAST: f64 = 20.0;
/// A row of failures this unlikely is no chance.
const CHANCE: f64 = 1e-6;
/// The longest row that is ever asked for, in thresholds.
const LONGEST_ROW: u32 = 4;

/// Lives in memory: after a restart it starts over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Different jobs that failed since the last success, as far as they matter.
    failed: HashSet<JobId>,
    /// Failures since the last success, repeats included.
    row: u32,
    last_success: Option<Timestamp>,
    /// Outcomes before the row, and the failures among them. Older ones fade.
    outcomes: f64,
    failures: f64,
}

impl Tally {
    pub(super) fn success(&mut self, now: Timestamp) {
        self.outcomes += f64::from(self.row) + 1.0;
        self.failures += f64::from(self.row);
        if self.outcomes > USUAL_OVER {
            let fade = USUAL_OVER / self.outcomes;
            self.outcomes *= fade;
            self.failures *= fade;
        }
        if self.row > 0 {
            self.end_row();
        }
        self.last_success = Some(now);
    }

    pub(super) fn failure(&mut self, job: &JobId, settings: &BreakerSettings) {
        self.row = self.row.saturating_add(1);
        if self.failed.len() < settings.failure_threshold as usize && !self.failed.contains(job) {
            self.failed.insert(job.clone());
        }
    }

    pub(super) fn end_row(&mut self) {
        self.row = 0;
        self.failed.clear();
    }

    /// Failures since the last success that count toward the threshold.
    pub fn failed(&self) -> u32 {
        u32::try_from(self.failed.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn is_an_outage(&self, settings: &BreakerSettings, now: Timestamp) -> bool {
        let enough_jobs = self.failed() >= settings.failure_threshold;
        let quiet = self.last_success.is_none_or(|at| now.since(at) >= settings.quiet_period);
        enough_jobs && quiet && self.row >= self.unusual_row(settings)
    }

    /// How long a row must be before it is more than the usual failures.
    fn unusual_row(&self, settings: &BreakerSettings) -> u32 {
        if self.outcomes < KNOWN_AT_LEAST || self.failures == 0.0 {
            return 0;
        }
        let longest = settings.failure_threshold.saturating_mul(LONGEST_ROW);
        let usual = self.failures / self.outcomes;
        // A whisker less, so that a whole number is not rounded up to the next.
        let row = (CHANCE.ln() / usual.ln() - 1e-9).ceil();
        if row < f64::from(longest) { row as u32 } else { longest }
    }
}
