//! How long things took, by kind.

use crate::lock::lock;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::sync::Mutex;
use std::time::Duration;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Enqueue,
    /// Not there in mode stream.
    Claim,
    /// Ack, Nack or Settle.
    Settle,
    /// From the start of the call that enqueued a job until a worker has it.
    Delivery,
    /// From `retry_at` until a worker has the job.
    Lateness,
}

/// Each with its name for programs and for people.
pub(super) const KINDS: [(Kind, &str, &str); 5] = [
    (Kind::Enqueue, "enqueue", "enqueue"),
    (Kind::Claim, "claim", "claim"),
    (Kind::Settle, "settle", "settle"),
    (Kind::Delivery, "delivery", "enqueue to delivery"),
    (Kind::Lateness, "retry_lateness", "retry lateness"),
];

/// Shared by all callers: they are few threads, and none holds a lock for long.
#[derive(Debug)]
pub(super) struct Timings([Mutex<Histogram<u64>>; KINDS.len()]);

/// Longer times, in microseconds, count as this.
const LONGEST: u64 = 3_600_000_000;

impl Timings {
    pub(super) fn new() -> Self {
        // These bounds are always allowed.
        let histogram = || Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds that are allowed");
        Self(std::array::from_fn(|_| Mutex::new(histogram())))
    }

    pub(super) fn record(&self, kind: Kind, time: Duration) {
        self.record_all(kind, [time]);
    }

    pub(super) fn record_all(&self, kind: Kind, times: impl IntoIterator<Item = Duration>) {
        let mut histogram = lock(&self.0[kind as usize]);
        for time in times {
            histogram.saturating_record(time.as_micros() as u64);
        }
    }

    /// None: nothing of this kind happened.
    pub(super) fn spread(&self, kind: Kind) -> Option<Spread> {
        let histogram = lock(&self.0[kind as usize]);
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
