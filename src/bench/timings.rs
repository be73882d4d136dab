//! How long things took, by kind.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Enqueue,
    Claim,
    Settle,
    /// From the start of the call that enqueued a job until a worker has it.
    Delivery,
    /// From `retry_at` until a worker has the job.
    Lateness,
}

/// Shared by all callers: they are few threads, and none holds a lock for long.
#[derive(Debug)]
pub(super) struct Timings([Mutex<Histogram<u64>>; 5]);

/// Longer times count as this.
const LONGEST: Duration = Duration::from_secs(3600);

impl Timings {
    pub(super) fn new() -> Self {
        let micros = LONGEST.as_micros() as u64;
        // These bounds are always allowed; and the tests make one.
        let histogram =
            || Histogram::new_with_bounds(1, micros, 3).expect("bounds that are allowed");
        Self(std::array::from_fn(|_| Mutex::new(histogram())))
    }

    pub(super) fn record(&self, kind: Kind, time: Duration) {
        self.record_all(kind, [time]);
    }

    pub(super) fn record_all(&self, kind: Kind, times: impl IntoIterator<Item = Duration>) {
        let mut histogram = self.0[kind as usize].lock().unwrap_or_else(PoisonError::into_inner);
        for time in times {
            histogram.saturating_record(time.as_micros() as u64);
        }
    }

    /// None: nothing of this kind happened.
    pub(super) fn spread(&self, kind: Kind) -> Option<Spread> {
        let histogram = self.0[kind as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let at = |quantile| histogram.value_at_quantile(quantile);
        (!histogram.is_empty()).then(|| Spread {
            count: histogram.len(),
            mean_us: histogram.mean(),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max(),
        })
    }
}

/// Times of one kind, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) count: u64,
    pub(super) mean_us: f64,
    pub(super) p50_us: u64,
    pub(super) p90_us: u64,
    pub(super) p99_us: u64,
    pub(super) p999_us: u64,
    pub(super) max_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let timings = Timings::new();
        timings.record_all(Kind::Claim, (1..=1_000).map(Duration::from_micros));
        let spread = timings.spread(Kind::Claim).unwrap();
        assert_eq!((spread.count, spread.p50_us, spread.p99_us), (1_000, 500, 990));
        assert_eq!((spread.p999_us, spread.max_us), (999, 1_000));
        assert_eq!(timings.spread(Kind::Settle), None);
    }

    #[test]
    fn a_time_beyond_all_measure_is_counted_all_the_same() {
        let timings = Timings::new();
        timings.record(Kind::Lateness, LONGEST * 100);
        assert_eq!(timings.spread(Kind::Lateness).unwrap().count, 1);
    }
}
