//! Nothing is bought with the opposite mistake: jobs that fail by themselves are no outage, and die on schedule.

use super::downstream::Downstream;
use super::scenario::{Poison, Results, Scenario};
use super::simulation::Simulation;

fn run(seed: u64, scenario: Scenario) -> Results {
    let results = Simulation::run(Scenario { seed, ..scenario });
    let Results { done, good_dead, poison, poison_dead, failed, trips, first_success, slowest_death, .. } = &results;
    println!(
        "seed {seed}: {done} done, {good_dead} dead, {poison_dead} of {poison} poison dead within {slowest_death:.1} s, \
         {failed} failed, {trips} openings, first success {first_success:.1?}, p99 {} ms",
        results.p99(0)
    );
    results
}

/// Retries after 1, 2 and 4 s, each up to a quarter longer, and the calls themselves.
const ON_SCHEDULE: f64 = 8.75 + 0.5;

#[track_caller]
fn assert_poison_died_on_schedule(results: &Results) {
    assert_eq!(results.poison_dead, results.poison);
    assert!(results.slowest_death <= ON_SCHEDULE, "a poison job died after {} s", results.slowest_death);
}

#[test]
fn poison_of_one_per_cent_opens_nothing_and_dies_on_schedule() {
    for kind in [Poison::Bug, Poison::Http500] {
        for seed in 1..=10 {
            let scenario = Scenario { poison: Some((0.01, kind)), ..Scenario::default() };
            let usual = run(seed, Scenario { poison: None, ..scenario.clone() }).p99(0);
            let results = run(seed, scenario);
            assert_eq!((results.good_dead, results.trips), (0, 0));
            assert_eq!(results.done + results.dead, 10_000);
            assert_poison_died_on_schedule(&results);
            assert!(results.p99(0) as f64 <= 1.2 * usual as f64 + 20.0, "p99 {} ms", results.p99(0));
        }
    }
}

#[test]
fn half_the_jobs_poison_are_no_outage_for_the_other_half() {
    for kind in [Poison::Bug, Poison::Http500] {
        for seed in 1..=10 {
            let scenario = Scenario { jobs: 4_000, end: 400.0, poison: Some((0.5, kind)), ..Scenario::default() };
            let results = run(seed, scenario);
            assert_eq!(results.good_dead, 0);
            assert_eq!((results.done, results.poison_dead), (4_000 - results.poison, results.poison));
        }
    }
}

#[test]
fn a_queue_that_always_fails_a_third_of_the_time_stays_shut() {
    for (rate, jobs) in [(60.0, 12_000), (1.0, 3_600)] {
        for seed in 1..=20 {
            let downstream = Downstream { usual_failures: 1.0 / 3.0, ..Downstream::default() };
            let scenario = Scenario { rate, jobs, end: 4_000.0, ..Scenario::of(downstream) };
            let results = run(seed, scenario);
            assert_eq!(results.trips, 0);
        }
    }
}

#[test]
fn a_share_of_failures_that_rises_for_good_counts_again_after_fifteen_minutes() {
    for brownout_is_unreachable in [false, true] {
        for seed in 1..=3 {
            let brownout = Some((300.0, f64::MAX, 0.4));
            let downstream =
                Downstream { usual_failures: 0.02, brownout, brownout_is_unreachable, ..Downstream::default() };
            let scenario = Scenario { rate: 10.0, jobs: 100_000, end: 2_100.0, ..Scenario::of(downstream) };
            let results = run(seed, scenario);
            let last = results.last_uncounted.unwrap() - 300.0;
            assert!((14.0 * 60.0..=16.0 * 60.0).contains(&last), "not counted for {last} s");
        }
    }
}

#[test]
fn an_outage_of_a_queue_with_a_tenth_of_poison_is_over_as_soon_as_any_other_and_all_poison_dies() {
    for kind in [Poison::Bug, Poison::Http500] {
        for seed in 1..=20 {
            let down = vec![(20.0, 50.0 + seed as f64 / 2.0)];
            let downstream = Downstream { down, ..Downstream::default() };
            let scenario = Scenario { jobs: 4_000, end: 400.0, poison: Some((0.1, kind)), ..Scenario::of(downstream) };
            let results = run(seed, scenario);
            assert!(results.first_success.unwrap() <= 12.0, "first success after {:?} s", results.first_success);
            assert_eq!((results.good_dead, results.poison_dead), (0, results.poison));
            assert_eq!(results.done + results.dead, 4_000);
        }
    }
}
