//! How load grows after an outage, what holds it back, and what counts meanwhile.

use super::breaker::{Subject, at};
use super::secs;
use redrive::domain::{Admission, BreakerState, Rate, Recovery, Signal, Timestamp, Usual};
use std::time::Duration;

/// Four jobs at a time are usual, and 100 ms for each.
fn usual() -> Usual {
    Usual { share: 0.0, known: 1_000.0, load: Some(4.0), ln_took: Some(100f64.ln()) }
}

/// RECOVERING since `at(10)`, with work that waits.
struct Ramp {
    subject: Subject,
    now: f64,
}

impl Ramp {
    fn new() -> Self {
        Self::knowing(usual())
    }

    fn knowing(usual: Usual) -> Self {
        let mut subject = Subject::knowing(usual);
        subject.opens(0.0);
        let mut ramp = Self { subject, now: 0.0 };
        ramp.comes_back(10.0);
        ramp
    }

    /// A probe succeeds.
    #[track_caller]
    fn comes_back(&mut self, now: f64) {
        self.now = now;
        self.subject.succeeds_since(self.subject.epoch(true), at(now - 0.1), at(now));
        assert_eq!(self.subject.state(at(now)), BreakerState::Recovering);
    }

    fn load(&self) -> f64 {
        self.subject.recovery().load
    }

    /// A step of a second with so many successes that took so long, and failures, while work waited and slots were used.
    fn step(&mut self, ok: usize, took_ms: u64, failed: u64) -> f64 {
        self.step_of(1.0, ok, took_ms, failed, true)
    }

    fn step_of(&mut self, seconds: f64, ok: usize, took_ms: u64, failed: u64, used: bool) -> f64 {
        let subject = &mut self.subject;
        let end = at(self.now + seconds);
        let started = Timestamp::from_millis(end.millis() - took_ms);
        let epoch = subject.epoch(false);
        for number in 0..failed {
            // Poison, so that no streak opens it.
            subject.ends(number, epoch, false, end, other_error(), end);
        }
        for _ in 0..ok {
            subject.succeeds_since(epoch, started, end);
        }
        let load = subject.breaker.outage.as_ref().map_or(0.0, |outage| outage.recovery.load);
        subject.meter.most_leased = if used { load.ceil() as u64 } else { 0 };
        subject.meter.held_at = end;
        self.now += seconds;
        self.tick();
        self.load()
    }

    fn tick(&mut self) -> bool {
        let subject = &mut self.subject;
        subject.breaker.tick(&mut subject.stats, &subject.meter, &subject.settings, at(self.now))
    }

    /// It fails again, and comes back eleven seconds later.
    fn falls(&mut self) {
        (0..30).for_each(|number| _ = self.subject.fails(number, at(self.now)));
        assert_eq!(self.subject.state(at(self.now)), BreakerState::Open);
        self.comes_back(self.now + 11.0);
    }

    fn ceiling(&self) -> Option<f64> {
        self.subject.recovery().ceiling
    }

    /// Up to eight times the usual load.
    fn grown() -> Self {
        let mut ramp = Self::new();
        while ramp.step(100, 100, 0) < 32.0 {}
        ramp
    }
}

fn other_error() -> Signal {
    Signal::Failure { error: "Bug".into(), error_type: "Bug".into(), unreachable: false }
}

#[test]
fn it_starts_with_half_the_usual_load_and_grows_by_half_each_step() {
    let mut ramp = Ramp::new();
    assert_eq!(ramp.load(), 2.0);
    assert_eq!([ramp.step(20, 100, 0), ramp.step(20, 100, 0), ramp.step(20, 100, 0)], [3.0, 4.5, 6.75]);
}

#[test]
fn where_nothing_is_known_it_starts_with_one_job_at_a_time() {
    assert_eq!(Ramp::knowing(Usual::default()).load(), 1.0);
    let little = Usual { load: Some(0.001), ..usual() };
    assert_eq!(Ramp::knowing(little).load(), 0.05);
}

#[test]
fn so_many_are_leased_at_once_and_handed_out_at_an_even_pace() {
    let mut ramp = Ramp::new();
    ramp.step(20, 100, 0);
    ramp.subject.stats.took_ms = 60.0;
    let Admission::Jobs(allowed) = ramp.subject.admission(&[], at(ramp.now)) else { panic!("held") };
    assert_eq!((allowed.leased, allowed.ramp), (Some(3), Some(Rate { per_second: 50.0, burst: 1.0 })));
    let slow = Recovery { load: 0.1, ..Recovery::default() };
    assert_eq!((slow.per_second(60_000.0), slow.per_second(0.0)), (1.0, 100.0), "one each second at least");
    let fast = Recovery { load: 100.0, ..Recovery::default() };
    assert_eq!(fast.pace(100.0), Rate { per_second: 1_000.0, burst: 10.0 }, "ten milliseconds' worth");
}

#[test]
fn a_step_lasts_a_second_and_a_full_round_of_its_own_outcomes() {
    let mut ramp = Ramp::grown();
    let load = ramp.load();
    assert_eq!(ramp.step_of(0.9, 100, 100, 0, true), load, "too short");
    assert_eq!(ramp.step_of(0.1, 0, 100, 0, true), 1.5 * load);
    assert_eq!(ramp.step(load as usize, 100, 0), 1.5 * load, "not a full round");
    assert_eq!(ramp.step(100, 30_000, 0), 1.5 * load, "handed out before it");
    assert_eq!(ramp.step(100, 100, 0), 1.5 * 1.5 * load);
}

#[test]
fn it_does_not_grow_where_no_job_waits_or_slots_are_free() {
    let mut ramp = Ramp::new();
    let epoch = ramp.subject.epoch(false);
    (0..20).for_each(|_| _ = ramp.subject.succeeds_since(epoch, at(11.0), at(11.1)));
    (ramp.now, ramp.subject.meter.most_leased) = (11.1, 2);
    assert!(ramp.tick());
    assert_eq!(ramp.load(), 2.0, "no job had to wait in it");
    let mut ramp = Ramp::grown();
    let load = ramp.load();
    assert_eq!(ramp.step_of(1.0, 100, 100, 0, false), load, "the workers are the limit");
    ramp.subject.meter.empty_at = at(ramp.now + 0.5);
    assert_eq!(ramp.step(100, 100, 0), load, "nothing was left to hand out");
    assert_eq!(ramp.step(100, 100, 0), 1.5 * load);
}

#[test]
fn a_downstream_that_slows_gets_no_more_and_one_that_slows_much_gets_less() {
    let mut ramp = Ramp::grown();
    let load = ramp.load();
    assert_eq!(ramp.step(100, 129, 0), 1.5 * load);
    assert_eq!(ramp.step(100, 140, 0), 1.5 * load);
    assert_eq!(ramp.step(100, 170, 0), 0.8 * (1.5 * load));
    for _ in 0..50 {
        ramp.step(100, 400, 0);
    }
    assert_eq!(ramp.load(), 2.0, "but not less than it started with");
}

#[test]
fn more_failures_than_chance_explains_are_a_step_back() {
    let mut ramp = Ramp::grown();
    let (before, load) = (ramp.subject.recovery().previous_load, ramp.load());
    // Two of a hundred are chance where none are usual; ten are not.
    assert_eq!(ramp.step(98, 100, 2), 1.5 * load);
    assert_eq!(ramp.step(90, 100, 10), load);
    assert!(before < load);
    assert_eq!(ramp.ceiling(), Some(load));
    assert_eq!(ramp.step(100, 100, 0), load, "for a minute");
    ramp.now += 60.0;
    assert_eq!(ramp.step(100, 100, 0), 1.5 * load);
}

#[test]
fn after_a_fall_it_stays_under_the_last_good_load_for_a_minute() {
    let mut ramp = Ramp::grown();
    let good = ramp.subject.recovery().previous_load;
    ramp.falls();
    assert_eq!((ramp.load(), ramp.ceiling()), (2.0, Some(0.8 * good)));
    let fallen_at = ramp.now - 11.0;
    while ramp.now < fallen_at + 60.0 {
        assert!(ramp.step(100, 100, 0) <= 0.8 * good);
    }
    ramp.step(100, 100, 0);
    assert_eq!(ramp.step(100, 100, 0), 1.5 * 1.5 * 0.8 * good);
    assert_eq!(ramp.subject.breaker.outage.as_ref().unwrap().falls, 1);
}

#[test]
fn after_a_second_fall_above_that_it_stays_there_for_five_minutes_but_not_for_ever() {
    let mut ramp = Ramp::grown();
    ramp.falls();
    while ramp.ceiling().is_some() {
        ramp.step(100, 100, 0);
    }
    let good = ramp.subject.recovery().previous_load;
    ramp.falls();
    let fallen_at = ramp.now - 11.0;
    while ramp.now < fallen_at + 300.0 {
        assert!(ramp.step(100, 100, 0) <= 0.8 * good);
    }
    ramp.step(100, 100, 0);
    assert!(ramp.step(100, 100, 0) > 0.8 * good, "a queue that gets more jobs than before would starve");
}

#[test]
fn a_fall_at_a_low_load_does_not_starve_the_queue() {
    let mut ramp = Ramp::new();
    ramp.step(20, 100, 0);
    ramp.falls();
    assert_eq!(ramp.ceiling(), Some(5.0), "a quarter more than is usual");
    assert_eq!(ramp.load(), 1.5, "half of what it had");
}

#[test]
fn the_probes_after_a_fall_wait_as_if_the_outage_were_new() {
    let mut ramp = Ramp::grown();
    (0..30).for_each(|number| _ = ramp.subject.fails(number, at(ramp.now)));
    let outage = ramp.subject.breaker.outage.as_ref().unwrap();
    assert_eq!((outage.since, outage.probe_at), (at(0.0), at(ramp.now + 1.0)));
}

#[test]
fn while_it_recovers_a_streak_as_long_as_the_load_opens_it_at_once() {
    let mut ramp = Ramp::new();
    ramp.step(20, 100, 0);
    // Five, and the three in flight.
    for number in 0..7 {
        assert!(!ramp.subject.fails(number, at(ramp.now)));
    }
    assert!(ramp.subject.fails(7, at(ramp.now)));
    // The probe was a success of a moment ago.
    let mut ramp = Ramp::new();
    assert_eq!((1..30).find(|number| ramp.subject.fails(*number, at(ramp.now))), Some(7));
}

#[test]
fn a_downstream_that_keeps_failing_a_share_does_not_open_it_by_that() {
    let mut ramp = Ramp::new();
    for _ in 0..20 {
        ramp.step(60, 100, 40);
    }
    assert!((0.3..0.5).contains(&ramp.subject.recovery().share), "{}", ramp.subject.recovery().share);
    for number in 0..10 {
        assert!(!ramp.subject.fails(number, at(ramp.now)));
    }
    // Twenty in a row always do.
    for _ in 0..20 {
        ramp.step(5, 100, 95);
    }
    assert!(ramp.subject.recovery().share > 0.8);
    assert_eq!((1..100).find(|number| ramp.subject.fails(*number, at(ramp.now))), Some(20));
}

#[test]
fn failures_count_until_the_streak_is_half_as_long_as_would_open_it() {
    let mut ramp = Ramp::new();
    let now = at(ramp.now);
    for number in 0..3 {
        assert!(ramp.subject.counts(now), "failure {number}");
        ramp.subject.fails(number, now);
    }
    assert!(!ramp.subject.counts(now));
    ramp.subject.succeeds(now);
    assert!(ramp.subject.counts(now));
}

#[test]
fn a_step_without_any_outcome_lets_one_more_out_so_that_leases_of_dead_workers_do_not_stop_it() {
    let mut ramp = Ramp::new();
    ramp.subject.meter.leased = 2;
    (ramp.now, ramp.subject.meter.held_at) = (19.9, at(19.9));
    assert!(!ramp.tick());
    ramp.now = 20.0;
    assert!(ramp.tick());
    assert_eq!(ramp.load(), 3.0);
    // Slots are free: no lease is in the way.
    (ramp.now, ramp.subject.meter.held_at) = (35.0, at(35.0));
    assert!(!ramp.tick());
    ramp.subject.meter.leased = 3;
    assert!(ramp.tick());
    assert_eq!(ramp.load(), 4.0);
    ramp.subject.meter.leased = 4;
    // Handlers that take longer than that are waited for.
    ramp.subject.stats.took_ms = 30_000.0;
    (ramp.now, ramp.subject.meter.held_at) = (94.0, at(94.0));
    assert!(!ramp.tick());
    (ramp.now, ramp.subject.meter.held_at) = (95.0, at(95.0));
    assert!(ramp.tick());
}

#[test]
fn it_closes_once_nothing_has_waited_for_the_ramp_for_ten_seconds() {
    let mut ramp = Ramp::new();
    ramp.step(20, 100, 0);
    let bound = ramp.now;
    let looks_again = |ramp: &Ramp, now| ramp.subject.recovery().next_look(&ramp.subject.settings, at(now));
    assert_eq!(looks_again(&ramp, bound), at(bound + 1.0), "a step may be over");
    assert_eq!(looks_again(&ramp, bound + 5.0), at(bound + 10.0), "a step may be stuck");
    ramp.now = bound + 10.0;
    ramp.tick();
    assert_eq!(ramp.subject.state(at(ramp.now)), BreakerState::Recovering);
    ramp.now = bound + 10.001;
    assert!(ramp.tick());
    assert_eq!(ramp.subject.state(at(ramp.now)), BreakerState::Closed);
    assert_eq!(ramp.subject.breaker.log.last().unwrap().to, BreakerState::Closed);
}

#[test]
fn it_does_not_close_while_jobs_wait_and_no_worker_asks_for_them() {
    let mut ramp = Ramp::new();
    ramp.step(20, 100, 0);
    let meter = &mut ramp.subject.meter;
    (meter.ready, meter.asked_at) = (500, at(ramp.now));
    // A deploy.
    ramp.now += 3_600.0;
    ramp.tick();
    assert_eq!(ramp.subject.state(at(ramp.now)), BreakerState::Recovering);
    assert_eq!(ramp.load(), 2.0, "it begins anew");
    // Its workers are fewer than the load, and have been for ten seconds.
    ramp.subject.meter.asked_at = at(ramp.now);
    assert!(ramp.tick());
    assert_eq!(ramp.subject.state(at(ramp.now)), BreakerState::Closed);
}

/// Forty a second are usual.
#[test]
fn how_long_draining_takes_is_foreseen_with_the_growth_to_come_and_the_jobs_that_come_meanwhile() {
    let none = (None, None);
    let drain = |recovery: &Recovery, ready, limits| {
        recovery.drain(ready, 100.0, &usual(), limits).map(|drain| drain.as_secs_f64().round())
    };
    // At the load that it has, as far as is foreseen: 160 a second leave, and 40 come.
    let full = Recovery { load: 16.0, ..Recovery::default() };
    assert_eq!(drain(&full, 1_200, none), Some(10.0));
    assert_eq!((drain(&full, 0, none), drain(&full, 12_000, none)), (Some(0.0), Some(100.0)));
    // From 2 by 3, 4.5, 6.75, 10.1 and 15.2 to 16 in six seconds.
    let starts = Recovery { load: 2.0, ..Recovery::default() };
    assert_eq!(
        drain(&starts, 800, none),
        Some(f64::round(6.0 + (800.0 - (-20.0 - 10.0 + 5.0 + 27.5 + 61.25 + 111.875)) / 120.0))
    );
    let held = Recovery { ceiling: Some(6.0), ..starts.clone() };
    assert_eq!(drain(&held, 800, none), Some(f64::round(3.0 + (800.0 - (-20.0 - 10.0 + 5.0)) / 20.0)));
    assert_eq!(drain(&full, 800, (None, Some(60.0))), Some(40.0), "max_rate lets out sixty");
    assert_eq!(drain(&full, 800, (Some(5), None)), Some(80.0), "five at a time are fifty a second");
    assert_eq!(drain(&full, 800, (Some(4), None)), None, "as many come as leave");
    let unknown = starts.drain(800, 100.0, &Usual::default(), none).unwrap();
    assert_eq!(unknown.as_secs_f64(), 40.0, "at the load of now, where nothing is known");
    assert_eq!(starts.drain(800, 0.0, &Usual::default(), none), None);
}

#[test]
fn jobs_that_wait_because_all_slots_of_the_ramp_are_taken_keep_it_open() {
    let mut ramp = Ramp::new();
    let meter = &mut ramp.subject.meter;
    (meter.ready, meter.leased, meter.empty_at) = (1, 2, at(5.0));
    ramp.now = 25.0;
    ramp.tick();
    assert_eq!(ramp.subject.state(at(25.0)), BreakerState::Recovering);
}

#[test]
fn a_hold_keeps_most_of_the_load_and_stays_under_it() {
    let hold = || Signal::Hold { error: "429".into(), error_type: "TooMany".into(), hold: secs(1) };
    let mut ramp = Ramp::grown();
    let load = ramp.load();
    let (epoch, now) = (ramp.subject.epoch(false), at(ramp.now));
    assert!(ramp.subject.ends(1, epoch, true, now, hold(), now));
    assert_eq!((ramp.load(), ramp.ceiling()), (0.7 * load, Some(0.7 * load)));
    ramp.comes_back(ramp.now + 1.0);
    assert_eq!(ramp.step(100, 100, 0), 0.7 * load);

    let mut closed = Subject::knowing(usual());
    let epoch = closed.epoch(false);
    closed.ends(1, epoch, true, at(0.0), hold(), at(0.0));
    let recovery = closed.recovery();
    assert_eq!((recovery.load, recovery.ceiling), (0.7 * 4.0, Some(0.7 * 4.0)), "of the usual load");
    assert_eq!(recovery.ceiling_until, Some(at(60.0)));
}

#[test]
fn an_outage_does_not_begin_the_quarter_of_an_hour_anew_in_which_a_queue_is_degraded() {
    let mut subject = Subject::knowing(usual());
    subject.stats.degraded_since = Some(at(0.0));
    subject.opens(60.0);
    assert_eq!(subject.stats.degraded_since, Some(at(0.0)));
}

#[test]
fn what_was_usual_is_kept_with_the_breaker_also_where_no_bucket_was_complete() {
    let mut subject = Subject::default();
    for tenth in 1..=10 {
        let now = at(f64::from(tenth) / 10.0);
        subject.succeeds_since(subject.epoch(false), now, now.after(Duration::from_millis(50)));
    }
    subject.opens(20.0);
    // Ten times 50 ms until the last of them, after a second and 50 ms.
    assert_eq!(subject.breaker.usual.load, Some(500.0 / 1_050.0));
    assert_eq!(subject.recovery().load, 250.0 / 1_050.0);
}
