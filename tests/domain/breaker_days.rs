//! Days of ordinary failures, and outages, at any rate.

use super::breaker::{START, Subject};
use redrive::domain::{BreakerState, Rng, Timestamp};
use std::time::Duration;

/// Outcomes at this rate for a day, failing with this chance. How often did it open?
fn trips_in_a_day(rate: f64, failing: f64, seed: u64) -> u32 {
    let mut subject = Subject::default();
    let mut rng = Rng::new(seed);
    for outcome in 0..(rate * 86_400.0) as u64 {
        let now = Timestamp::from_millis((outcome as f64 * 1_000.0 / rate) as u64);
        let state = subject.state(now);
        if state == BreakerState::Open {
            continue;
        }
        let epoch = subject.now(state == BreakerState::HalfOpen);
        if rng.unit() < failing {
            subject.fails(outcome, epoch, now);
        } else {
            subject.succeeds(epoch, now);
        }
    }
    subject.breaker.trips
}

/// What happens less than once a day is looked for on several days, as far as that is quick.
#[test]
fn ordinary_failures_open_it_less_than_once_a_day_at_any_rate() {
    for (rate, days) in [(0.1, 100), (1.0, 20), (5.0, 10), (50.0, 1), (1_000.0, 1)] {
        let trips: u32 = (0..days).map(|day| trips_in_a_day(rate, 0.3, day)).sum();
        println!("30 % failures at {rate} jobs/s: {trips} openings in {days} days");
        assert!(u64::from(trips) < days, "{trips} openings in {days} days at {rate} jobs/s");
    }
}

#[test]
fn an_outage_opens_it_within_seconds_at_any_rate() {
    for rate in [0.1, 1.0, 5.0, 50.0, 1_000.0] {
        let mut subject = Subject::default();
        let mut rng = Rng::new(7);
        for outcome in 0..1_000 {
            let now = START.after(Duration::from_secs_f64(f64::from(outcome) / rate));
            let (id, epoch) = (u64::from(outcome as u32), subject.now(false));
            if rng.unit() < 0.3 {
                subject.fails(id, epoch, now);
            } else {
                subject.succeeds(epoch, now);
            }
        }
        let down = START.after(Duration::from_secs_f64(1_000.0 / rate));
        let failures = (0..100_000u64).find(|failure| {
            let now = down.after(Duration::from_secs_f64(*failure as f64 / rate));
            let epoch = subject.now(false);
            subject.fails(1_000_000 + failure, epoch, now)
        });
        let failures = failures.expect("it opens") + 1;
        let after = failures as f64 / rate;
        println!("an outage at {rate} jobs/s: open after {failures} failures, {after:.1} s");
        // Whatever is slower than that is waiting for jobs: at most four thresholds of them.
        assert!(after <= 5.0 || failures <= 20, "{failures} failures, {after} s");
    }
}
