//! Redis' time, as far as a server knows it between two replies.

use crate::{domain::time::Timestamp, env::Clock};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Whose time it is.
#[derive(Clone)]
pub enum TimeSource {
    /// That of Redis: every script reads it where it runs.
    Redis,
    /// Somebody else's, handed to every script.
    Given(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

impl fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis => "Redis",
            Self::Given(_) => "Given",
        })
    }
}

/// Each reply says what time it was in Redis somewhere between sending and receiving; since then, time has passed here as
/// it has there.
#[derive(Debug)]
pub(super) struct RedisClock {
    source: TimeSource,
    local: Arc<dyn Clock>,
    known: Mutex<Known>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// What Redis' clock is ahead of the time since this machine's boot, in microseconds.
    ahead_us: i64,
    /// The last answer: the next is not earlier.
    told: Timestamp,
}

impl RedisClock {
    pub(super) fn new(source: TimeSource, local: Arc<dyn Clock>) -> Self {
        Self { source, local, known: Mutex::default() }
    }

    pub(super) fn now(&self) -> Timestamp {
        if let TimeSource::Given(given) = &self.source {
            return given();
        }
        let boot_us = self.boot_us();
        let mut known = self.lock();
        let now_us = (boot_us + known.ahead_us).max(0) as u64;
        known.told = known.told.max(Timestamp::from_millis(now_us / 1_000));
        known.told
    }

    /// What scripts take as their time; empty: they read it themselves.
    pub(super) fn given(&self) -> String {
        match &self.source {
            TimeSource::Redis => String::new(),
            TimeSource::Given(given) => given().millis().to_string(),
        }
    }

    /// Local time, to be handed back with the reply.
    pub(super) fn boot_us(&self) -> i64 {
        self.local.read().boot_us.cast_signed()
    }

    /// Redis said that it was `now` at some time since `sent_us`.
    pub(super) fn heard(&self, now: Timestamp, sent_us: i64) {
        let now_us = now.millis().cast_signed() * 1_000;
        let (least, most) = (now_us - self.boot_us(), now_us + 1_000 - sent_us);
        let mut known = self.lock();
        known.ahead_us = known.ahead_us.clamp(least, most.max(least));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::ManualClock;
    use std::time::Duration;

    #[test]
    fn time_is_that_of_the_last_reply_and_runs_on() {
        let local = Arc::new(ManualClock::at(Duration::from_secs(5)));
        let clock = RedisClock::new(TimeSource::Redis, local.clone());
        let at = Timestamp::from_millis;
        let sent = clock.boot_us();
        local.advance(Duration::from_millis(4));
        clock.heard(at(1_000_000), sent);
        assert_eq!(clock.now(), at(1_000_000));
        local.advance(Duration::from_secs(1));
        assert_eq!(clock.now(), at(1_001_000));
        // A reply that fits what is known changes nothing.
        let sent = clock.boot_us();
        local.advance(Duration::from_millis(10));
        clock.heard(at(1_001_004), sent);
        assert_eq!(clock.now(), at(1_001_010));
        // One that is behind holds time up, one that is ahead takes it along.
        clock.heard(at(900_000), clock.boot_us());
        assert_eq!(clock.now(), at(1_001_010));
        clock.heard(at(1_002_000), clock.boot_us());
        assert_eq!(clock.now(), at(1_002_000));
    }
}
