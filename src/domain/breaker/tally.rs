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

/// After so many successes in a row nothing is left of what was before them.
const FADED_AFTER: u64 = 5_000;

/// Where one process has a store to itself, this lives in its memory: after a restart it starts over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Different jobs that failed since the last success, as far as they matter.
    pub failed: HashSet<JobId>,
    /// Failures since the last success, repeats included.
    pub row: u32,
    pub last_success: Option<Timestamp>,
    /// Outcomes before the row, and the failures among them. Older ones fade.
    pub outcomes: f64,
    pub failures: f64,
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

    /// So many successes one after the other that were only counted, and when the last of them was.
    pub fn successes(&mut self, count: u64, last: Timestamp) {
        for _ in 0..count.min(FADED_AFTER) {
            self.success(last);
        }
    }

    pub fn failure(&mut self, job: &JobId, settings: &BreakerSettings) {
        self.row = self.row.saturating_add(1);
        if self.failed.len() < settings.failure_threshold as usize && !self.failed.contains(job) {
            self.failed.insert(job.clone());
        }
    }

    /// What has failed is dealt with: it says nothing about what is usual.
    pub fn end_row(&mut self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn fail(tally: &mut Tally, times: usize, settings: &BreakerSettings) {
        for time in 0..times {
            tally.failure(&JobId::parse(&format!("job-{time}")), settings);
        }
    }

    #[test]
    fn successes_that_were_only_counted_are_those_that_were_seen_one_by_one() {
        let settings = BreakerSettings::default();
        for (before, row, count) in [(0, 0, 1), (0, 3, 1), (0, 3, 7), (150, 9, 80), (199, 4, 2_000)]
        {
            let mut seen = Tally::default();
            fail(&mut seen, 7, &settings);
            seen.successes(before, at(1));
            fail(&mut seen, row, &settings);
            let mut counted = seen.clone();
            (0..count).for_each(|time| seen.success(at(10 + time)));
            counted.successes(count, at(9 + count));
            assert_eq!(counted, seen, "{before} before, {row} in a row, {count} counted");
        }
    }

    #[test]
    fn a_count_of_none_changes_nothing() {
        let mut tally = Tally::default();
        fail(&mut tally, 3, &BreakerSettings::default());
        let before = tally.clone();
        tally.successes(0, at(5));
        assert_eq!(tally, before);
    }

    #[test]
    fn a_count_without_end_ends_and_leaves_nothing_of_what_failed() {
        let settings = BreakerSettings::default();
        let mut tally = Tally::default();
        for _ in 0..100 {
            fail(&mut tally, 4, &settings);
            tally.success(at(1));
        }
        assert!(tally.unusual_row(&settings) > settings.failure_threshold);
        tally.successes(u64::MAX, at(7));
        assert_eq!((tally.row, tally.last_success), (0, Some(at(7))));
        assert!(tally.unusual_row(&settings) <= 1, "{tally:?}");
    }
}
