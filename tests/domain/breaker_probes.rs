//! While a breaker is open: holds, the wait for probes, and what follows from them.

use super::breaker::{ALL, Subject, at, hold, job, probes, signal};
use redrive::domain::{Admission, BreakerState, HeldBy, Signal, Timestamp};

// ---- hold ----

#[test]
fn one_hold_opens_it_for_exactly_the_time_asked() {
    let mut subject = Subject::default();
    let epoch = subject.epoch(false);
    assert!(subject.ends(1, epoch, true, at(0.0), hold(17), at(0.0)));
    subject.assert_held_until(at(16.0), at(17.0));
    assert_eq!(subject.state(at(17.0)), BreakerState::HalfOpen);
    assert_eq!(subject.breaker.last_error, "429");
}

#[test]
fn a_later_hold_moves_an_open_breaker_whenever_its_job_was_handed_out() {
    let mut subject = Subject::default();
    let old = subject.epoch(false);
    subject.ends(1, old, true, at(0.0), hold(30), at(0.0));
    assert!(subject.breaker.counts_hold(old, &subject.settings, at(5.0)));
    assert!(!subject.ends(2, old, true, at(0.0), hold(10), at(5.0)));
    subject.assert_held_until(at(5.0), at(30.0));
    assert!(subject.ends(3, old, true, at(0.0), hold(60), at(5.0)));
    subject.assert_held_until(at(5.0), at(65.0));
    assert_eq!((subject.breaker.transitions, subject.breaker.trips), (1, 1));
}

#[test]
fn a_hold_from_before_does_not_open_a_breaker_that_has_come_back() {
    let mut subject = Subject::default();
    let old = subject.epoch(false);
    subject.opens(0.0);
    subject.probe_succeeds(at(2.0));
    assert!(!subject.breaker.counts_hold(old, &subject.settings, at(3.0)));
    assert!(!subject.ends(9, old, true, at(0.0), hold(10), at(3.0)));
    assert_eq!(subject.state(at(3.0)), BreakerState::Recovering);
}

#[test]
fn a_probe_that_is_told_to_hold_opens_it_for_that_long_with_the_same_load_after_it() {
    let mut subject = Subject::open();
    let (probe, load) = (subject.epoch(true), subject.recovery().load);
    assert!(subject.ends(9, probe, true, at(2.0), hold(300), at(2.0)));
    subject.assert_held_until(at(3.0), at(302.0));
    assert_eq!((subject.breaker.trips, subject.recovery().load), (2, load));
}

// ---- probes ----

#[test]
fn a_probe_waits_as_long_as_the_outage_has_lasted() {
    let mut subject = Subject::open();
    // From 1 s on the wait doubles with each probe, and it is never more than recovery_timeout.
    for (started, wait) in [(0.0, 1.0), (1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (8.0, 8.0), (16.0, 10.0), (26.0, 10.0)] {
        if started > 0.0 {
            assert_eq!(subject.state(at(started)), BreakerState::HalfOpen);
            assert!(subject.probe_fails(7, "Refused", at(started), at(started)));
        }
        subject.assert_held_until(at(started), at(started + wait));
        let just_before = Timestamp::from_millis(at(started + wait).millis() - 1);
        assert_eq!(subject.state(just_before), BreakerState::Open);
    }
    assert_eq!(subject.breaker.outage.as_ref().unwrap().since, at(0.0));
}

#[test]
fn the_wait_varies_by_a_tenth() {
    for (unit, wait) in [(0.0, 9.0), (0.5, 10.0), (1.0, 11.0)] {
        let mut subject = Subject::open();
        subject.unit = unit;
        subject.probe_fails(7, "Refused", at(50.0), at(50.0));
        subject.assert_held_until(at(50.0), at(50.0 + wait));
    }
}

#[test]
fn the_wait_begins_with_the_start_of_the_last_probe() {
    let mut subject = Subject::open();
    subject.probe_fails(7, "Refused", at(50.0), at(55.0));
    subject.assert_held_until(at(55.0), at(60.0));
    subject.probe_fails(7, "Refused", at(60.0), at(90.0));
    assert_eq!(subject.state(at(90.0)), BreakerState::HalfOpen, "it hung for longer than the wait");
}

#[test]
fn one_probe_is_out_at_a_time_or_as_many_as_are_allowed() {
    let subject = Subject::open();
    assert_eq!(subject.admission(&[], at(1.0)), probes(None));
    assert_eq!(subject.admission(&[at(1.0)], at(2.0)), Admission::Held { by: HeldBy::Probes, until: Some(at(11.0)) });
    // Nothing was heard of it for recovery_timeout.
    assert_eq!(subject.admission(&[at(1.0)], at(11.0)).limit(), 1);
    assert_eq!(subject.breaker.probe_at(&subject.settings, at(1.0)), None);
    assert_eq!(subject.breaker.opened_at(&subject.settings, at(1.0)), Some(at(0.0)));
    let subject = Subject::open_with(|settings| settings.half_open_max_calls = 3);
    assert_eq!(subject.admission(&[at(1.0), at(2.0)], at(3.0)).limit(), 1);
}

#[test]
fn as_many_successes_as_configured_end_the_outage() {
    let mut subject = Subject::open_with(|settings| settings.success_threshold = 3);
    for successes in 1..3 {
        assert!(subject.probe_succeeds(at(1.0)));
        assert_eq!(subject.breaker.outage.as_ref().unwrap().successes, successes);
    }
    assert_eq!(subject.state(at(1.0)), BreakerState::HalfOpen);
    subject.probe_succeeds(at(1.0));
    assert_eq!(subject.state(at(1.0)), BreakerState::Recovering);
    assert_eq!((subject.breaker.transitions, subject.breaker.trips), (2, 1));
    assert_eq!(subject.breaker.opened_at(&subject.settings, at(1.0)), None);
    // What opened it last can still be read.
    assert_eq!(subject.breaker.last_error, "Refused: it broke");
    let mut all_at_once = Subject::open_with(|settings| settings.ramp = false);
    all_at_once.probe_succeeds(at(1.0));
    assert_eq!(all_at_once.admission(&[], at(1.0)), ALL);
}

#[test]
fn a_probe_that_fails_or_never_comes_back_opens_it_again_and_another_job_goes_next() {
    for ended in [signal("Refused", true), Signal::Expired] {
        let mut subject = Subject::open_with(|settings| settings.success_threshold = 2);
        subject.probe_succeeds(at(5.0));
        let probe = subject.epoch(true);
        assert!(subject.ends(7, probe, false, at(5.0), ended, at(5.0)));
        subject.assert_held_until(at(6.0), at(10.0));
        assert_eq!(subject.admission(&[], at(10.0)), probes(Some(&job(7))));
        assert_eq!((subject.breaker.trips, subject.breaker.transitions), (2, 2));
        // Successes from before the failure count for nothing.
        subject.probe_succeeds(at(10.0));
        assert_eq!(subject.state(at(10.0)), BreakerState::HalfOpen);
    }
}

#[test]
fn a_probe_with_another_error_frees_its_slot_three_times_in_a_row() {
    let mut subject = Subject::open();
    for number in 0..3 {
        assert!(subject.probe_fails(number, "Bug", at(5.0), at(5.0)));
        assert_eq!(subject.admission(&[], at(5.0)), probes(Some(&job(number))));
    }
    subject.probe_fails(3, "Bug", at(5.0), at(5.0));
    subject.assert_held_until(at(5.0), at(10.0));
    // And again three times after that.
    subject.probe_fails(4, "Bug", at(10.0), at(10.0));
    assert_eq!(subject.state(at(10.0)), BreakerState::HalfOpen);
}

#[test]
fn failed_probes_leave_the_transitions_that_are_kept_alone() {
    let mut subject = Subject::open();
    for probe in 1..=100 {
        let now = at(60.0 * f64::from(probe));
        assert!(subject.probe_fails(7, "Refused", now, now));
    }
    assert_eq!((subject.breaker.transitions, subject.breaker.trips), (101, 101));
    let log: Vec<_> = subject.breaker.log.iter().map(|entry| (entry.at, entry.to)).collect();
    assert_eq!(log, [(at(0.0), BreakerState::Open)], "how it began");
    // A delivery from before the last of them was under another epoch all the same.
    assert!(subject.breaker.epoch_at(at(5_999.0)).transitions != 101);
    assert_eq!(subject.breaker.epoch_at(at(6_000.0)).transitions, 101);
    subject.probe_succeeds(at(6_060.0));
    assert_eq!(subject.breaker.log.last().map(|entry| entry.to), Some(BreakerState::Recovering));
}

#[test]
fn a_probe_that_says_nothing_frees_its_slot_for_another_job() {
    let mut subject = Subject::open();
    let probe = subject.epoch(true);
    assert!(subject.ends(1, probe, true, at(1.0), Signal::None, at(2.0)));
    assert_eq!(subject.admission(&[], at(2.0)), probes(Some(&job(1))));
}

#[test]
fn outcomes_from_before_the_last_transition_change_nothing() {
    let mut subject = Subject::default();
    let old = subject.epoch(false);
    subject.opens(0.0);
    for now in [at(0.5), at(2.0)] {
        assert!(!subject.succeeds_since(old, at(0.0), now));
        assert!(!subject.ends(9, old, true, at(0.0), signal("Refused", true), now));
        assert!(!subject.ends(9, old, true, at(0.0), Signal::Expired, now));
    }
    let old_probe = subject.epoch(true);
    subject.probe_fails(8, "Refused", at(2.0), at(2.0));
    assert!(!subject.succeeds_since(old_probe, at(2.0), at(10.0)));
    assert_eq!(subject.state(at(10.0)), BreakerState::HalfOpen);
    subject.probe_succeeds(at(10.0));
    for number in 0..100 {
        assert!(!subject.ends(number, old_probe, true, at(2.0), signal("Refused", true), at(20.0)));
    }
    assert_eq!((subject.stats.streak, subject.state(at(20.0))), (0, BreakerState::Recovering));
}

#[test]
fn after_a_fall_the_error_of_that_fall_is_the_one_that_probes_are_compared_with() {
    let mut subject = Subject::open();
    subject.probe_succeeds(at(1.0));
    for number in 0..30 {
        let epoch = subject.epoch(false);
        subject.ends(number, epoch, true, at(2.0), signal("HTTP503", true), at(2.0));
    }
    assert!(subject.probe_fails(7, "HTTP503", at(5.0), at(5.0)));
    assert_eq!(subject.state(at(5.0)), BreakerState::Open);
}
