use super::secs;
use redrive::domain::{Breaker, BreakerSettings, BreakerState, DeadLetterSettings, Timestamp};

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(1_000_000).after(secs(seconds))
}

struct DeadLetters {
    breaker: Breaker,
    full_in_a_row: u32,
    settings: BreakerSettings,
}

impl Default for DeadLetters {
    fn default() -> Self {
        let settings = DeadLetterSettings::default().breaker;
        Self { breaker: Breaker::default(), full_in_a_row: 0, settings }
    }
}

impl DeadLetters {
    /// So many jobs die one after the other, and all of them become overflow or none.
    #[track_caller]
    fn take(&mut self, times: usize, full: bool, now: Timestamp, overflow: bool) {
        for _ in 0..times {
            let room = self.breaker.dead_letter(full, &mut self.full_in_a_row, &self.settings, now);
            assert_eq!(room.overflow, overflow);
        }
    }

    fn state(&self, now: Timestamp) -> BreakerState {
        self.breaker.state(&self.settings, now)
    }

    fn opened() -> Self {
        let mut dead_letters = Self::default();
        dead_letters.take(5, true, at(0), true);
        assert_eq!(dead_letters.state(at(0)), BreakerState::Open);
        dead_letters
    }
}

#[test]
fn five_in_a_row_that_find_no_room_open_it() {
    let mut dead_letters = DeadLetters::default();
    dead_letters.take(4, true, at(0), true);
    dead_letters.take(1, false, at(0), false);
    dead_letters.take(4, true, at(0), true);
    assert_eq!((dead_letters.state(at(0)), dead_letters.full_in_a_row), (BreakerState::Closed, 4));
    dead_letters.take(1, true, at(0), true);
    assert_eq!((dead_letters.state(at(0)), dead_letters.breaker.trips), (BreakerState::Open, 1));
}

#[test]
fn while_it_is_open_all_are_overflow() {
    let mut dead_letters = DeadLetters::opened();
    dead_letters.take(1, false, at(59), true);
    assert_eq!(dead_letters.state(at(59)), BreakerState::Open);
}

#[test]
fn half_open_it_tries_again() {
    let mut dead_letters = DeadLetters::opened();
    dead_letters.take(1, true, at(60), true);
    assert_eq!(dead_letters.state(at(61)), BreakerState::Open);
    dead_letters.take(1, false, at(120), false);
    assert_eq!((dead_letters.state(at(120)), dead_letters.breaker.trips), (BreakerState::Closed, 2));
}

#[test]
fn room_closes_it_at_once_unless_an_operator_forces_it() {
    let mut dead_letters = DeadLetters::opened();
    assert!(dead_letters.breaker.room_made(at(1)));
    assert!(!dead_letters.breaker.room_made(at(1)));
    dead_letters.take(1, false, at(1), false);
    dead_letters.breaker.force(true, "full disk".into(), at(2));
    assert!(!dead_letters.breaker.room_made(at(1)));
    dead_letters.take(1, false, at(3), true);
    dead_letters.breaker.force(false, "go on".into(), at(4));
    dead_letters.take(10, true, at(5), true);
    dead_letters.take(1, false, at(6), false);
    assert_eq!(dead_letters.state(at(6)), BreakerState::Closed);
}
