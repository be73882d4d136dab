//! Retry policies with a name. A preset sets every field; the fields given beside it change it.

use std::time::Duration;

use super::macros::named;
use super::policy::{Jitter, RetryPolicy, Strategy};

named! {
    Preset {
        Standard = "standard",
        FullJitter = "full-jitter",
        Conservative = "conservative",
        Aggressive = "aggressive",
        OneShot = "one-shot",
        Transient = "transient",
        LibraryScan = "library-scan",
        Chronos = "chronos",
        ChronosLinear = "chronos-linear",
        ChronosFixed = "chronos-fixed",
        ChronosFibonacci = "chronos-fibonacci",
        Patient = "patient",
    }
}

impl Preset {
    /// Fields that a preset's own jitter does not use still have a sensible value: they come to life when only the
    /// jitter is changed.
    pub fn policy(self) -> RetryPolicy {
        use Jitter::{Equal, Full, Proportional, Symmetric};
        use Strategy::{Exponential, Fibonacci, Fixed, Linear};
        #[rustfmt::skip] // A table: the columns are the point.
        let (strategy, base_ms, cap_s, jitter, jitter_fraction, max_retries) = match self {
            //                         strategy     base ms  cap s  jitter        f    retries
            Self::Standard         => (Exponential,  1_000,     30, Proportional, 0.25,  3),
            Self::FullJitter       => (Exponential,    500,     30, Full,         0.25,  3),
            Self::Conservative     => (Exponential,  1_000,     60, Full,         0.25,  5),
            Self::Aggressive       => (Exponential,    100,      5, Full,         0.25,  2),
            Self::OneShot          => (Exponential,  1_000,     30, Full,         0.25,  0),
            Self::Transient        => (Exponential,  5_000,     80, Full,         0.25,  5),
            Self::LibraryScan      => (Exponential, 30_000,    600, Equal,        0.25, 12),
            Self::Chronos          => (Exponential, 60_000,  3_600, Symmetric,    0.2,   3),
            Self::ChronosLinear    => (Linear,      60_000,  3_600, Symmetric,    0.2,   3),
            Self::ChronosFixed     => (Fixed,       60_000,  3_600, Symmetric,    0.2,   3),
            Self::ChronosFibonacci => (Fibonacci,   60_000,  3_600, Symmetric,    0.2,   3),
            Self::Patient          => (Exponential,  1_000,  3_600, Equal,        0.25, 20),
        };
        RetryPolicy {
            max_retries,
            strategy,
            base_delay: Duration::from_millis(base_ms),
            factor: 2.0,
            max_delay: Duration::from_secs(cap_s),
            delays: Vec::new(),
            jitter,
            jitter_fraction,
            jitter_max: Duration::from_secs(1),
        }
    }
}
