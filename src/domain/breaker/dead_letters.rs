//! The breaker of the dead letters: a new one that finds no room is overflow, and after some of these in a row nobody asks
//! for a while.

use super::{super::settings::BreakerSettings, super::time::Timestamp, Breaker, BreakerState};

/// Where a new dead letter lies, and what that did to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub overflow: bool,
    /// The breaker has changed and must be kept.
    pub changed: bool,
}

const FULL: &str = "the dead letters are full (dead_letters.max_entries)";

impl Breaker {
    /// A job dies. `full_in_a_row`: how many before it found no room, one after the other.
    pub fn bury(
        &mut self,
        full: bool,
        full_in_a_row: &mut u32,
        settings: &BreakerSettings,
        now: Timestamp,
    ) -> Room {
        let state = self.state(settings, now);
        if state == BreakerState::Open {
            return Room { overflow: true, changed: false };
        }
        if full {
            *full_in_a_row = full_in_a_row.saturating_add(1);
        } else {
            *full_in_a_row = 0;
        }
        let nothing_opens_it = self.forced.is_some() || settings.disabled;
        let changed = match state {
            _ if nothing_opens_it => false,
            BreakerState::HalfOpen if full => self.open_full(now, settings),
            BreakerState::HalfOpen => self.found_room(settings),
            _ if *full_in_a_row >= settings.failure_threshold => self.open_full(now, settings),
            _ => false,
        };
        if changed && self.open.is_some() {
            *full_in_a_row = 0;
        }
        Room { overflow: full, changed }
    }

    /// Dead letters left, and there is room. True: that closed it.
    pub fn room_made(&mut self) -> bool {
        let closes = self.open.is_some() && self.forced.is_none();
        if closes {
            self.close();
        }
        closes
    }

    fn open_full(&mut self, now: Timestamp, settings: &BreakerSettings) -> bool {
        self.trip(now, settings.recovery_timeout, None, FULL.to_owned())
    }

    fn found_room(&mut self, settings: &BreakerSettings) -> bool {
        if let Some(open) = &mut self.open {
            open.successes += 1;
            if open.successes >= settings.success_threshold {
                self.close();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000).after(Duration::from_secs(seconds))
    }
    #[derive(Default)]
    struct Grave {
        breaker: Breaker,
        row: u32,
        settings: BreakerSettings,
    }

    impl Grave {
        fn bury(&mut self, full: bool, now: Timestamp) -> bool {
            self.breaker.bury(full, &mut self.row, &self.settings, now).overflow
        }

        fn state(&self, now: Timestamp) -> BreakerState {
            self.breaker.state(&self.settings, now)
        }

        fn opened() -> Self {
            let mut grave = Self::default();
            for _ in 0..5 {
                assert!(grave.bury(true, at(0)));
            }
            assert_eq!(grave.state(at(0)), BreakerState::Open);
            grave
        }
    }

    #[test]
    fn five_in_a_row_that_find_no_room_open_it() {
        let mut grave = Grave::default();
        for _ in 0..4 {
            assert!(grave.bury(true, at(0)));
        }
        assert!(!grave.bury(false, at(0)));
        for _ in 0..4 {
            assert!(grave.bury(true, at(0)));
        }
        assert_eq!((grave.state(at(0)), grave.row), (BreakerState::Closed, 4));
        assert!(grave.bury(true, at(0)));
        assert_eq!((grave.state(at(0)), grave.breaker.trips), (BreakerState::Open, 1));
    }

    #[test]
    fn while_it_is_open_nobody_asks_for_room() {
        let mut grave = Grave::opened();
        assert!(grave.bury(false, at(59)));
        assert_eq!(grave.state(at(59)), BreakerState::Open);
    }

    #[test]
    fn half_open_it_tries_again() {
        let mut grave = Grave::opened();
        assert!(grave.bury(true, at(60)));
        assert_eq!(grave.state(at(61)), BreakerState::Open);
        assert!(!grave.bury(false, at(120)));
        assert_eq!(grave.state(at(120)), BreakerState::Closed);
        assert_eq!(grave.breaker.trips, 2);
    }

    #[test]
    fn room_closes_it_at_once_unless_somebody_forces_it() {
        let mut grave = Grave::opened();
        assert!(grave.breaker.room_made());
        assert!(!grave.breaker.room_made());
        assert!(!grave.bury(false, at(1)));
        grave.breaker.force(true, "full disk".into(), at(2));
        assert!(!grave.breaker.room_made());
        assert!(grave.bury(false, at(3)));
        grave.breaker.force(false, "go on".into(), at(4));
        for _ in 0..10 {
            assert!(grave.bury(true, at(5)));
        }
        assert!(!grave.bury(false, at(6)));
        assert_eq!(grave.state(at(6)), BreakerState::Closed);
    }
}
