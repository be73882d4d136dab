//! Store time: milliseconds since the Unix epoch, as the store's one clock tells it.

use std::time::Duration;

/// A moment in store time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The end of time, for "never".
    pub const MAX: Self = Self(u64::MAX >> 1);

    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub const fn millis(self) -> u64 {
        self.0
    }

    /// Rounds up: what is due after a delay is never due before it has passed.
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(millis_ceil(delay)).min(Self::MAX.0))
    }

    /// How long from `earlier` to here; nothing if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Whole milliseconds, rounded up.
pub fn millis_ceil(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
