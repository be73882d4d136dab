use proptest::prelude::*;
use redrive::domain::{BootId, Kept, Reading, StoreClock};

const HOUR_US: u64 = 3_600_000_000;

fn reading(wall_us: u64, boot_us: u64, boot_id: BootId) -> Reading {
    Reading { wall_us, boot_us, boot_id }
}

#[test]
fn a_new_store_starts_at_wall_time() {
    let mut clock = StoreClock::start(None, reading(10 * HOUR_US, 5, 1));
    assert_eq!(clock.now(reading(10 * HOUR_US, 5, 1)).millis(), 10 * HOUR_US / 1_000);
}

#[test]
fn a_restart_within_one_boot_counts_boot_time_whatever_the_wall_says() {
    let kept = Kept { time_us: 10 * HOUR_US, boot_us: 1_000_000, boot_id: 1 };
    for wall in [9 * HOUR_US, 10 * HOUR_US + 40_000_000, 11 * HOUR_US] {
        let mut clock = StoreClock::start(Some(kept), reading(wall, 41_000_000, 1));
        let now = clock.now(reading(wall, 41_000_000, 1));
        assert_eq!(now.millis(), (10 * HOUR_US + 40_000_000) / 1_000);
    }
}

#[test]
fn after_a_reboot_the_later_of_kept_and_wall_counts() {
    let kept = Kept { time_us: 10 * HOUR_US, boot_us: 1_000_000, boot_id: 1 };
    let mut ahead = StoreClock::start(Some(kept), reading(12 * HOUR_US, 7, 2));
    assert_eq!(ahead.now(reading(12 * HOUR_US, 7, 2)).millis(), 12 * HOUR_US / 1_000);
    let mut behind = StoreClock::start(Some(kept), reading(8 * HOUR_US, 7, 2));
    assert_eq!(behind.now(reading(8 * HOUR_US, 7, 2)).millis(), 10 * HOUR_US / 1_000);
}

#[test]
fn a_clock_that_is_asked_all_the_time_still_moves_toward_wall_time() {
    let mut clock = StoreClock::start(None, reading(HOUR_US, 0, 1));
    for boot in (0..=1_000_000).step_by(50) {
        clock.now(reading(2 * HOUR_US, boot, 1));
    }
    let gained = clock.kept().time_us - HOUR_US - 1_000_000;
    assert!((9_000..=10_000).contains(&gained), "{gained}");
}

proptest! {
    /// Whatever the wall clock does, store time runs within 1 % of boot time and never backwards.
    #[test]
    fn wall_jumps_bend_the_clock_by_at_most_one_percent(
        steps in prop::collection::vec((0u64..10_000_000, -2i64..=2), 1..200)
    ) {
        let mut boot = 1_000_000u64;
        let mut clock = StoreClock::start(None, reading(100 * HOUR_US, boot, 1));
        let began = clock.kept().time_us;
        let (mut last, mut passed) = (began, 0);
        for (elapsed, jump_hours) in steps {
            boot += elapsed;
            let wall = (last as i64 + jump_hours * HOUR_US as i64) as u64;
            clock.now(reading(wall, boot, 1));
            let now = clock.kept().time_us;
            prop_assert!(now >= last);
            passed += elapsed;
            prop_assert!((now - began).abs_diff(passed) <= passed / 100);
            last = now;
        }
    }
}
