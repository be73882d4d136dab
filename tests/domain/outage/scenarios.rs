//! What an outage costs: no attempt, no dead letter, no stampede.

use super::downstream::Downstream;
use super::scenario::{Results, Scenario};
use super::simulation::Simulation;
use redrive::domain::{MaxRate, QueueSettings};
use std::time::Duration;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;

/// Down from second 20 on, for so long and half a second more with each seed, so that the end of the outage meets the probes in
/// every phase.
fn down(seconds: f64, seed: u64) -> Downstream {
    Downstream { down: vec![(20.0, 20.0 + seconds + seed as f64 / 2.0)], ..Downstream::default() }
}

fn run(seed: u64, scenario: Scenario) -> Results {
    let results = Simulation::run(Scenario { seed, ..scenario });
    let Results { done, dead, counted, failed, calls, falls, peak, first_success, drained, trips, .. } = &results;
    println!(
        "seed {seed}: {done} done, {dead} dead, {counted} counted, {failed} of {calls} calls failed, {falls} falls, \
         peak {peak}/s, first success {first_success:.1?}, drained {drained:.1?}, {trips} openings, last {:.1}",
        results.last_done
    );
    results
}

/// None of 10,000 jobs lost anything, and all were done.
#[track_caller]
fn assert_nothing_lost(results: &Results, failed_at_most: u64) {
    assert_eq!((results.done, results.dead, results.counted), (10_000, 0, 0));
    assert!(results.failed <= failed_at_most, "{} failed calls", results.failed);
    assert!(results.first_success.unwrap() <= 12.0, "first success after {:?} s", results.first_success);
}

#[track_caller]
fn assert_no_stampede(results: &Results) {
    assert_eq!(results.falls, 0);
    assert!(results.peak <= 300, "{} calls in a second", results.peak);
    assert!(results.drained.unwrap() <= 50.0, "drained after {:?} s", results.drained);
}

#[test]
fn an_outage_costs_no_attempt_no_dead_letter_and_no_stampede() {
    for seconds in [120.0, 85.0] {
        for seed in SEEDS {
            let results = run(seed, Scenario::of(down(seconds, seed)));
            assert_nothing_lost(&results, 100);
            assert_no_stampede(&results);
        }
    }
}

/// Within a factor of two and a half, from the start of the recovery until a few seconds before the end: what it is that slows is
/// not known.
#[test]
fn how_long_draining_takes_is_foreseen() {
    for seed in SEEDS {
        let results = run(seed, Scenario::of(down(120.0, seed)));
        let drained = results.drained.unwrap();
        let foreseen = results.estimates.iter().filter(|(at, _)| at + 5.0 < drained);
        assert!(foreseen.clone().count() > 10);
        for (at, estimate) in foreseen {
            let left = drained - at;
            let factor = estimate / left;
            assert!((0.4..=2.5).contains(&factor), "{estimate:.0} s foreseen, and {left:.0} s were left");
        }
    }
}

/// From the outside, 20 ms that become 40 are little where the worker itself takes 50.
#[test]
fn the_time_of_the_workers_themselves_does_not_hide_that_the_downstream_slows() {
    for overhead_ms in [1.0, 18.0, 23.0, 50.0] {
        for seed in 1..=5 {
            let results = run(seed, Scenario { overhead_ms, ..Scenario::of(down(120.0, seed * 4)) });
            assert_nothing_lost(&results, 100);
            assert_no_stampede(&results);
        }
    }
}

#[test]
fn servers_that_see_an_opening_late_fail_a_few_calls_more() {
    for seed in SEEDS {
        let results = run(seed, Scenario { stale_ms: 500, ..Scenario::of(down(120.0, seed)) });
        assert_nothing_lost(&results, 150);
        assert_no_stampede(&results);
    }
}

#[test]
fn a_downstream_that_does_not_slow_before_it_falls_is_knocked_over_once_at_most() {
    for seed in SEEDS {
        let results = run(seed, Scenario::of(Downstream { slows: false, ..down(120.0, seed) }));
        assert_nothing_lost(&results, 100);
        assert!(results.falls <= 1);
        assert!(results.drained.unwrap() <= 90.0, "drained after {:?} s", results.drained);
    }
}

#[test]
fn calls_that_hang_cost_no_more_than_calls_that_are_refused() {
    for seed in SEEDS {
        let results = run(seed, Scenario::of(Downstream { hangs_ms: Some(5_000.0), ..down(120.0, seed) }));
        assert_nothing_lost(&results, 100);
        assert_no_stampede(&results);
    }
}

#[test]
fn max_rate_holds_in_every_second() {
    let settings = QueueSettings { max_rate: Some(MaxRate::parse("200/s").unwrap()), ..QueueSettings::default() };
    for seed in SEEDS {
        let results = run(seed, Scenario { settings: settings.clone(), ..Scenario::of(down(120.0, seed)) });
        assert_nothing_lost(&results, 100);
        assert_eq!(results.falls, 0);
        assert!(results.peak <= 210, "{} calls in a second", results.peak);
        assert!(results.drained.unwrap() <= 60.0, "drained after {:?} s", results.drained);
    }
}

#[test]
fn jobs_of_a_downstream_that_is_well_do_not_notice_that_another_is_down() {
    for keys_given in [true, false] {
        for seed in 1..=5 {
            let downstreams = vec![down(120.0, seed), Downstream::default()];
            let scenario = Scenario { downstreams, keys_given, ..Scenario::default() };
            let usual = run(seed, scenario.without_outage()).p99(1);
            let results = run(seed, scenario);
            assert_eq!((results.done, results.dead), (10_000, 0));
            let p99 = results.p99(1);
            println!("keys given {keys_given}: p99 {p99} ms, usually {usual} ms");
            assert!(p99 as f64 <= 1.2 * usual as f64 + 20.0, "p99 {p99} ms, usually {usual} ms");
        }
    }
}

#[test]
fn a_downstream_that_fails_nine_of_ten_calls_costs_few_of_them() {
    for seed in SEEDS {
        let brownout = Some((20.0, 140.0, 0.9));
        let results = run(seed, Scenario::of(Downstream { brownout, ..Downstream::default() }));
        assert_eq!((results.done, results.dead), (10_000, 0));
        assert!(results.failed <= 1_000, "{} failed calls", results.failed);
    }
}

#[test]
fn a_downstream_that_fails_two_of_five_calls_kills_no_job_whatever_its_errors_say() {
    for brownout_is_unreachable in [true, false] {
        for seed in SEEDS {
            let brownout = Some((20.0, 140.0, 0.4));
            let downstream = Downstream { brownout, brownout_is_unreachable, ..Downstream::default() };
            let results = run(seed, Scenario::of(downstream));
            assert_eq!((results.done, results.dead), (10_000, 0));
        }
    }
}

#[test]
fn few_jobs_outlive_ten_minutes_with_few_calls() {
    for jobs in [4, 1] {
        for seed in SEEDS {
            let down = vec![(0.0, 600.0 + seed as f64 / 2.0)];
            let scenario = Scenario { jobs, end: 900.0, ..Scenario::of(Downstream { down, ..Downstream::default() }) };
            let results = run(seed, scenario);
            assert_eq!((results.done, results.dead, results.counted), (jobs, 0, 0));
            assert!(results.calls <= 100, "{} calls", results.calls);
            assert!(results.first_success.unwrap() <= 12.0, "first success after {:?} s", results.first_success);
        }
    }
}

#[test]
fn a_quota_without_a_rule_of_its_own_kills_no_job_and_is_seldom_met() {
    for retry_after in [None, Some(Duration::from_secs(1))] {
        for seed in SEEDS {
            let downstream = Downstream { quota: Some(30.0), retry_after, ..Downstream::default() };
            let scenario = Scenario { jobs: 2_400, end: 80.0, ..Scenario::of(downstream) };
            let results = run(seed, scenario.clone());
            assert!(results.failed <= 20, "{} failed calls", results.failed);
            let results = run(seed, Scenario { end: 400.0, ..scenario });
            assert_eq!((results.done, results.dead, results.counted), (2_400, 0, 0));
        }
    }
}

/// 240 of them run at once, and 960 wait at the end of the outage.
#[test]
fn handlers_of_half_a_minute_do_not_come_all_at_once() {
    for seed in 1..=5 {
        let down = vec![(120.0, 240.0 + seed as f64 * 2.0)];
        let downstream =
            Downstream { capacity: 20.0, falls_above: 30.0, takes_ms: 30_000.0, down, ..Downstream::default() };
        let scenario = Scenario { jobs: 4_000, rate: 8.0, slots: 2_000, end: 900.0, ..Scenario::of(downstream) };
        let results = run(seed, scenario);
        assert_eq!((results.done, results.dead, results.falls), (4_000, 0, 0));
    }
}

/// A deploy a few seconds after the outage: half a minute without workers, while jobs wait.
#[test]
fn workers_that_are_away_while_it_recovers_do_not_get_the_backlog_at_once() {
    for seed in SEEDS {
        let downstream = down(120.0, seed);
        let back = downstream.down[0].1;
        let away = Some((back + 14.0, back + 44.0));
        let results = run(seed, Scenario { jobs: 12_000, away, end: 400.0, ..Scenario::of(downstream) });
        assert_eq!((results.done, results.dead, results.counted, results.falls), (12_000, 0, 0, 0));
        assert!(results.peak <= 300, "{} calls in a second", results.peak);
    }
}

/// A deploy during the outage: from then on two of five calls fail, for hours.
#[test]
fn a_downstream_that_comes_back_worse_than_it_was_does_not_starve_its_queue() {
    for brownout_is_unreachable in [false, true] {
        for seed in 1..=3 {
            let brownout = Some((20.0, f64::MAX, 0.4));
            let downstream = Downstream { brownout, brownout_is_unreachable, ..down(60.0, seed) };
            let results = run(seed, Scenario { jobs: 20_000, end: 600.0, ..Scenario::of(downstream) });
            // But for a few that wait for their next retry.
            assert!(results.done + results.dead >= 19_900, "{} done", results.done);
        }
    }
}
