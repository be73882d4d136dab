//! Days of ordinary failures, and outages, at any rate.

use super::breaker::{START, Subject};
use redrive::domain::{BreakerState, Rng, Timestamp};
use std::time::Duration;

fn after(seconds: f64) -> Timestamp {
    START.after(Duration::from_secs_f64(seconds))
}

/// One outcome, of a job that has not failed before. Its delivery is a probe where one is due.
fn outcome(subject: &mut Subject, number: u64, fails: bool, now: Timestamp) -> bool {
    let state = subject.state(now);
    let epoch = subject.epoch(state == BreakerState::HalfOpen);
    if state == BreakerState::Open {
        return false;
    }
    subject.breaker.tick(&mut subject.stats, &subject.meter, &subject.settings, now);
    let epoch = if state == BreakerState::HalfOpen { epoch } else { subject.epoch(false) };
    if fails { subject.fails_as(number, epoch, now) } else { subject.succeeds_since(epoch, now, now) }
}

/// Outcomes at this rate for a day, failing with this chance. How often did it open?
fn trips_in_a_day(rate: f64, failing: f64, seed: u64) -> u32 {
    let mut subject = Subject::default();
    let mut rng = Rng::new(seed);
    for number in 0..(rate * 86_400.0) as u64 {
        let fails = rng.unit() < failing;
        outcome(&mut subject, number, fails, after(number as f64 / rate));
    }
    subject.breaker.trips
}

/// What happens less than once a day is looked for on several days, as far as that is quick.
#[test]
fn ordinary_failures_open_it_less_than_once_a_day_at_any_rate() {
    for (rate, days) in [(0.1, 100), (1.0, 20), (5.0, 5), (12.0, 2), (50.0, 1)] {
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
        // At least as long as a bucket, so that a third is known to be usual.
        let outcomes = 1_000.max((10.0 * rate) as u64);
        for number in 0..outcomes {
            let fails = rng.unit() < 0.3;
            outcome(&mut subject, number, fails, after(number as f64 / rate));
        }
        let trips = subject.breaker.trips;
        let failures = (1..100_000u64).find(|failure| {
            let number = outcomes + failure;
            outcome(&mut subject, number, true, after(number as f64 / rate));
            subject.breaker.trips > trips
        });
        let failures = failures.expect("it opens");
        let seconds = failures as f64 / rate;
        println!("an outage at {rate} jobs/s: open after {failures} failures, {seconds:.1} s");
        assert!(failures <= 20, "{failures} failures, {seconds} s");
    }
}
