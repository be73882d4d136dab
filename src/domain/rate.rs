//! Tokens that come at a rate: each job that leaves takes one.

use super::time::Timestamp;

/// Tokens are kept up to a burst, without which there is never a whole one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    /// At least 1.
    pub burst: f64,
}

/// What additions of tokens may lose.
const ROUNDING: f64 = 1e-6;
/// Nothing is to come after so long.
const WAIT_MAX_MS: f64 = 1e12;

impl Rate {
    pub fn refilled(&self, tokens: f64, elapsed_ms: u64) -> f64 {
        (tokens + elapsed_ms as f64 * self.per_second / 1000.0).min(self.burst)
    }

    pub fn whole(tokens: f64) -> u64 {
        (tokens + ROUNDING).floor() as u64
    }

    /// When there is one more whole token.
    pub fn next_at(&self, tokens: f64, now: Timestamp) -> Option<Timestamp> {
        let more = Self::whole(tokens) as f64 + 1.0 - tokens;
        let wait = (more * 1000.0 / self.per_second - ROUNDING).ceil();
        (wait < WAIT_MAX_MS).then(|| Timestamp::from_millis(now.millis() + wait as u64))
    }
}
