use super::secs;
use proptest::prelude::*;
use redrive::domain::{
    Admission, Breaker, BreakerEpoch, BreakerSettings, BreakerState, Failure, JobId, OutcomeStats, Signal, Timestamp,
    in_words,
};
use std::time::Duration;

pub(super) const START: Timestamp = Timestamp::from_millis(1_000_000);
const FIRST: BreakerEpoch = BreakerEpoch { transitions: 0, probe: false };

fn at(seconds: u64) -> Timestamp {
    START.after(secs(seconds))
}

fn job(number: u64) -> JobId {
    JobId::Uuid(number.into())
}

fn failure() -> Signal {
    Signal::Failure { error: "Timeout: it broke".into() }
}

fn hold(seconds: u64) -> Signal {
    Signal::Hold { error: "429".into(), hold: secs(seconds) }
}

/// A breaker with its outcome stats and settings, told of outcomes one by one.
#[derive(Default)]
pub(super) struct Subject {
    pub(super) breaker: Breaker,
    outcome_stats: OutcomeStats,
    settings: BreakerSettings,
}

impl Subject {
    fn with(change: impl FnOnce(&mut BreakerSettings)) -> Self {
        let mut subject = Self::default();
        change(&mut subject.settings);
        subject
    }

    /// Open since `at(0)`, by five failures.
    fn open() -> Self {
        Self::open_with(|_| {})
    }

    fn open_with(change: impl FnOnce(&mut BreakerSettings)) -> Self {
        let mut subject = Self::with(change);
        for number in 0..5 {
            subject.fails(number, FIRST, at(0));
        }
        assert_eq!(subject.state(at(0)), BreakerState::Open);
        subject
    }

    pub(super) fn state(&self, now: Timestamp) -> BreakerState {
        self.breaker.state(&self.settings, now)
    }

    pub(super) fn now(&self, probe: bool) -> BreakerEpoch {
        BreakerEpoch { transitions: self.breaker.transitions, probe }
    }

    pub(super) fn succeeds(&mut self, epoch: BreakerEpoch, now: Timestamp) -> bool {
        self.breaker.succeed(&mut self.outcome_stats, epoch, &self.settings, now)
    }

    fn ends(&mut self, number: u64, epoch: BreakerEpoch, signal: Signal, now: Timestamp) -> bool {
        self.breaker.fail(&mut self.outcome_stats, epoch, &job(number), signal, &self.settings, now)
    }

    pub(super) fn fails(&mut self, number: u64, epoch: BreakerEpoch, now: Timestamp) -> bool {
        self.ends(number, epoch, failure(), now)
    }

    fn admission(&self, probes: &[Timestamp], now: Timestamp) -> Admission<'_> {
        self.breaker.admission(&self.settings, probes.iter().copied(), now)
    }
}

// ---- CLOSED ----

#[test]
fn five_different_jobs_that_fail_open_it() {
    let mut subject = Subject::default();
    for number in 0..4 {
        assert!(!subject.fails(number, FIRST, at(0)));
        assert_eq!(subject.outcome_stats.failed(), number as u32 + 1);
    }
    assert_eq!(subject.admission(&[], at(0)), Admission::All);
    assert!(subject.fails(4, FIRST, at(0)));
    assert_eq!(subject.state(at(0)), BreakerState::Open);
    assert_eq!((subject.breaker.trips, subject.breaker.transitions), (1, 1));
    assert_eq!(subject.breaker.last_error, "Timeout: it broke");
    assert_eq!(subject.breaker.opened_at(&subject.settings, at(1)), Some(at(0)));
    assert_eq!(subject.breaker.probe_at(&subject.settings, at(1)), Some(at(60)));
    assert_eq!(subject.admission(&[], at(59)), Admission::Held { until: Some(at(60)) });
}

#[test]
fn one_poison_job_never_opens_it() {
    let mut subject = Subject::default();
    for second in 0..10_000 {
        assert!(!subject.fails(1, FIRST, at(second)));
    }
    assert_eq!(subject.outcome_stats.failed(), 1);
}

#[test]
fn a_success_starts_the_row_again() {
    let mut subject = Subject::default();
    for round in 0..100 {
        for number in 0..4 {
            subject.fails(number, FIRST, at(round * 10));
        }
        subject.succeeds(FIRST, at(round * 10));
        assert_eq!(subject.outcome_stats.failed(), 0);
    }
    assert_eq!(subject.state(at(1_000)), BreakerState::Closed);
}

#[test]
fn a_queue_that_succeeded_a_moment_ago_is_no_outage() {
    let mut subject = Subject::default();
    subject.succeeds(FIRST, at(10));
    let soon = at(10).after(Duration::from_millis(999));
    for number in 0..100 {
        assert!(!subject.fails(number, FIRST, soon));
    }
    assert!(subject.fails(100, FIRST, at(11)));
}

/// So many outcomes with so many failures among them, then a row: how long must it be?
fn row_that_opens(failures: u64, outcomes: u64, threshold: u32) -> u64 {
    let mut subject = Subject::with(|settings| settings.failure_threshold = threshold);
    for _ in 1..outcomes - failures {
        subject.succeeds(FIRST, at(0));
    }
    // A success was a moment ago, so that nothing opens yet.
    for number in 0..failures {
        subject.fails(number, FIRST, at(0));
    }
    subject.succeeds(FIRST, at(0));
    row_from_now(&mut subject)
}

/// How many failures, one after the other, open it.
fn row_from_now(subject: &mut Subject) -> u64 {
    (1..100).find(|number| subject.fails(1_000 + number, FIRST, at(100))).expect("it opens")
}

#[test]
fn the_row_must_be_longer_than_the_usual_failures_explain() {
    // ln(10⁻⁶) / ln(p): p = 0.1 → 6, 0.3 → 11.5, 0.5 → 19.9.
    assert_eq!(row_that_opens(0, 100, 5), 5);
    assert_eq!(row_that_opens(1, 100, 5), 5);
    assert_eq!(row_that_opens(10, 100, 5), 6);
    assert_eq!(row_that_opens(30, 100, 5), 12);
    assert_eq!(row_that_opens(50, 100, 5), 20);
}

#[test]
fn the_row_is_never_longer_than_four_thresholds() {
    assert_eq!(row_that_opens(45, 50, 5), 20);
    assert_eq!(row_that_opens(45, 50, 2), 8);
}

#[test]
fn with_few_outcomes_known_the_threshold_alone_decides() {
    assert_eq!(row_that_opens(9, 19, 5), 5);
    assert_eq!(row_that_opens(9, 20, 5), 18);
}

#[test]
fn repeats_count_toward_the_row_but_not_toward_the_jobs() {
    let mut subject = Subject::default();
    for outcome in 0..20 {
        subject.succeeds(FIRST, at(outcome));
    }
    for _ in 0..50 {
        assert!(!subject.fails(1, FIRST, at(100)));
    }
    for number in 2..5 {
        assert!(!subject.fails(number, FIRST, at(100)));
    }
    assert!(subject.fails(5, FIRST, at(100)));
}

#[test]
fn a_count_of_successes_without_end_ends_and_leaves_nothing_of_what_failed() {
    let mut subject = Subject::default();
    for _ in 0..100 {
        for number in 0..4 {
            subject.fails(number, FIRST, at(0));
        }
        subject.succeeds(FIRST, at(0));
    }
    let mut usual = Subject { outcome_stats: subject.outcome_stats.clone(), ..Subject::default() };
    assert_eq!(row_from_now(&mut usual), 20);
    subject.outcome_stats.successes(u64::MAX, at(7));
    assert_eq!((subject.outcome_stats.streak, subject.outcome_stats.last_success), (0, Some(at(7))));
    assert_eq!(row_from_now(&mut subject), 5);
}

#[test]
fn what_was_usual_long_ago_fades() {
    let mut subject = Subject::default();
    for outcome in 0..200 {
        subject.fails(outcome, FIRST, at(0));
        subject.succeeds(FIRST, at(0));
    }
    for _ in 0..2_000 {
        subject.succeeds(FIRST, at(0));
    }
    assert_eq!(row_from_now(&mut subject), 5);
}

#[test]
fn expired_leases_and_what_is_no_fault_do_not_count() {
    let mut subject = Subject::default();
    for number in 0..100 {
        assert!(!subject.ends(number, FIRST, Signal::Expired, at(number)));
        assert!(!subject.ends(number, FIRST, Signal::None, at(number)));
    }
    assert_eq!((subject.outcome_stats.failed(), subject.state(at(100))), (0, BreakerState::Closed));
}

#[test]
fn a_disabled_or_forced_closed_breaker_never_opens() {
    let mut disabled = Subject::with(|settings| settings.disabled = true);
    let mut forced = Subject::default();
    forced.breaker.force(false, "we know".into(), at(0));
    for subject in [&mut disabled, &mut forced] {
        for number in 0..100 {
            let epoch = subject.now(false);
            assert!(!subject.fails(number, epoch, at(number)));
            assert!(!subject.breaker.counts_hold(epoch, &subject.settings, at(number)));
            assert!(!subject.ends(number, epoch, hold(5), at(number)));
        }
        assert_eq!(subject.state(at(100)), BreakerState::Closed);
        assert_eq!(subject.admission(&[], at(100)), Admission::All);
    }
}

// ---- hold ----

#[test]
fn one_hold_opens_it_for_exactly_the_time_asked() {
    let mut subject = Subject::default();
    assert!(subject.ends(1, FIRST, hold(17), at(0)));
    assert_eq!(subject.admission(&[], at(16)), Admission::Held { until: Some(at(17)) });
    assert_eq!(subject.state(at(17)), BreakerState::HalfOpen);
    assert_eq!(subject.breaker.last_error, "429");
}

#[test]
fn a_later_hold_moves_an_open_breaker_whenever_its_job_was_sent() {
    let mut subject = Subject::default();
    subject.ends(1, FIRST, hold(30), at(0));
    assert!(subject.breaker.counts_hold(FIRST, &subject.settings, at(5)));
    assert!(!subject.ends(2, FIRST, hold(10), at(5)));
    assert_eq!(subject.breaker.probe_at(&subject.settings, at(5)), Some(at(30)));
    assert!(subject.ends(3, FIRST, hold(60), at(5)));
    assert_eq!(subject.breaker.probe_at(&subject.settings, at(5)), Some(at(65)));
    assert_eq!((subject.breaker.transitions, subject.breaker.trips), (1, 1));
}

#[test]
fn a_hold_from_before_neither_opens_a_closed_nor_a_half_open_breaker() {
    let mut subject = Subject::open();
    assert!(!subject.breaker.counts_hold(FIRST, &subject.settings, at(60)));
    assert!(!subject.ends(9, FIRST, hold(10), at(60)));
    assert_eq!(subject.state(at(60)), BreakerState::HalfOpen);
    let probe = subject.now(true);
    subject.succeeds(probe, at(61));
    assert!(!subject.ends(9, FIRST, hold(10), at(62)));
    assert_eq!(subject.state(at(62)), BreakerState::Closed);
}

#[test]
fn a_probe_that_is_told_to_hold_opens_it_for_that_long() {
    let mut subject = Subject::open();
    let probe = subject.now(true);
    assert!(subject.ends(9, probe, hold(300), at(60)));
    assert_eq!(subject.admission(&[], at(61)), Admission::Held { until: Some(at(360)) });
    assert_eq!(subject.breaker.trips, 2);
}

// ---- HALF_OPEN ----

#[test]
fn half_open_begins_at_probe_at_and_lets_one_probe_out() {
    let subject = Subject::open();
    assert_eq!(subject.state(at(59)), BreakerState::Open);
    assert_eq!(subject.state(at(60)), BreakerState::HalfOpen);
    assert_eq!(subject.admission(&[], at(60)), Admission::Probes { most: 1, not_first: None });
    assert_eq!(subject.admission(&[at(60)], at(61)), Admission::Limited { until: at(120) });
    // Nothing was heard of it for recovery_timeout.
    assert_eq!(subject.admission(&[at(60)], at(120)).limit(), 1);
    assert_eq!(subject.breaker.probe_at(&subject.settings, at(60)), None);
    assert_eq!(subject.breaker.opened_at(&subject.settings, at(60)), Some(at(0)));
}

#[test]
fn so_many_probes_as_are_allowed_are_out_at_a_time() {
    let subject = Subject::open_with(|settings| settings.half_open_max_calls = 3);
    assert_eq!(subject.admission(&[], at(60)).limit(), 3);
    assert_eq!(subject.admission(&[at(60), at(61)], at(62)).limit(), 1);
    assert_eq!(subject.admission(&[at(60), at(61), at(62)], at(63)), Admission::Limited { until: at(120) });
}

#[test]
fn a_probe_that_succeeds_closes_it() {
    let mut subject = Subject::open();
    let probe = subject.now(true);
    assert!(subject.succeeds(probe, at(61)));
    assert_eq!(subject.state(at(61)), BreakerState::Closed);
    assert_eq!((subject.breaker.transitions, subject.breaker.trips), (2, 1));
    assert_eq!(subject.breaker.opened_at(&subject.settings, at(61)), None);
    // What opened it last can still be read.
    assert_eq!(subject.breaker.last_error, "Timeout: it broke");
}

#[test]
fn as_many_successes_as_configured_close_it() {
    let mut subject = Subject::open_with(|settings| settings.success_threshold = 3);
    let probe = subject.now(true);
    for successes in 1..3 {
        assert!(subject.succeeds(probe, at(61)));
        assert_eq!(subject.breaker.open.as_ref().map(|open| open.successes), Some(successes));
    }
    assert_eq!(subject.state(at(61)), BreakerState::HalfOpen);
    subject.succeeds(probe, at(61));
    assert_eq!(subject.state(at(61)), BreakerState::Closed);
}

#[test]
fn a_probe_that_fails_or_never_comes_back_opens_it_again_and_another_job_goes_next() {
    for signal in [failure(), Signal::Expired] {
        let mut subject = Subject::open_with(|settings| settings.success_threshold = 2);
        let probe = subject.now(true);
        subject.succeeds(probe, at(60));
        assert!(subject.ends(7, probe, signal, at(61)));
        assert_eq!(subject.admission(&[], at(62)), Admission::Held { until: Some(at(121)) });
        let probes = Admission::Probes { most: 1, not_first: Some(&job(7)) };
        assert_eq!(subject.admission(&[], at(121)), probes);
        assert_eq!((subject.breaker.trips, subject.breaker.transitions), (2, 2));
        // Successes from before the failure count for nothing.
        let probe = subject.now(true);
        subject.succeeds(probe, at(122));
        assert_eq!(subject.state(at(122)), BreakerState::HalfOpen);
    }
}

#[test]
fn a_probe_that_says_nothing_leaves_it_half_open() {
    let mut subject = Subject::open();
    let probe = subject.now(true);
    assert!(!subject.ends(1, probe, Signal::None, at(61)));
    assert_eq!(subject.state(at(61)), BreakerState::HalfOpen);
}

#[test]
fn outcomes_from_before_the_last_transition_change_nothing() {
    let mut subject = Subject::open();
    assert!(!subject.succeeds(FIRST, at(1)));
    assert!(!subject.fails(9, FIRST, at(1)));
    assert!(!subject.succeeds(FIRST, at(61)));
    assert!(!subject.fails(9, FIRST, at(61)));
    assert!(!subject.ends(9, FIRST, Signal::Expired, at(61)));
    assert_eq!(subject.state(at(61)), BreakerState::HalfOpen);
    let old_probe = subject.now(true);
    subject.fails(8, old_probe, at(61));
    assert!(!subject.succeeds(old_probe, at(121)));
    assert_eq!(subject.state(at(121)), BreakerState::HalfOpen);
    let probe = subject.now(true);
    subject.succeeds(probe, at(122));
    for number in 0..100 {
        assert!(!subject.fails(number, old_probe, at(200)));
        assert!(!subject.fails(number, FIRST, at(200)));
    }
    assert_eq!((subject.outcome_stats.failed(), subject.state(at(200))), (0, BreakerState::Closed));
}

#[test]
fn after_an_outage_it_is_as_sensitive_as_before() {
    let mut subject = Subject::open();
    let probe = subject.now(true);
    subject.succeeds(probe, at(60));
    let epoch = subject.now(false);
    for number in 0..4 {
        assert!(!subject.fails(number, epoch, at(70)));
    }
    assert!(subject.fails(4, epoch, at(70)));
}

// ---- operators ----

#[test]
fn forced_open_has_no_probes_and_ends_with_a_reset() {
    let mut subject = Subject::open();
    subject.breaker.force(true, "maintenance".into(), at(5));
    assert_eq!(subject.admission(&[], at(1_000)), Admission::Held { until: None });
    assert_eq!(subject.breaker.opened_at(&subject.settings, at(6)), Some(at(5)));
    assert_eq!(subject.breaker.probe_at(&subject.settings, at(6)), None);
    let epoch = subject.now(true);
    assert!(!subject.succeeds(epoch, at(6)) && !subject.fails(1, epoch, at(6)));
    assert!(!subject.ends(1, epoch, hold(10), at(6)));
    subject.breaker.reset();
    assert_eq!(subject.state(at(7)), BreakerState::Closed);
    assert_eq!(subject.breaker, Breaker { transitions: 3, ..Breaker::default() });
}

#[test]
fn a_reset_closes_it_and_late_outcomes_do_not_open_it() {
    let mut subject = Subject::open();
    let epoch = subject.now(false);
    subject.breaker.reset();
    for number in 0..50 {
        assert!(!subject.fails(number, FIRST, at(10)));
        assert!(!subject.fails(number, epoch, at(10)));
    }
    assert_eq!(subject.state(at(10)), BreakerState::Closed);
}

#[test]
fn the_words_for_a_failure_are_few() {
    let mut failure = Failure::new("HttpError", "é".repeat(500));
    failure.http_status = 503;
    let words = in_words(&failure);
    assert!(words.starts_with("HttpError (HTTP 503): ééé"), "{words}");
    assert_eq!(words.chars().count(), 201);
    assert_eq!(in_words(&Failure::new("Timeout", "")), "Timeout");
}

proptest! {
    /// Whatever happens, in whatever order: a transition is never forgotten, and the gate agrees with the state.
    #[test]
    fn nothing_confuses_it(steps in prop::collection::vec((0..9u8, 0..6u64, 0..4u64, 0..120u64), 1..200)) {
        let mut subject = Subject::with(|settings| {
            settings.failure_threshold = 2;
            settings.half_open_max_calls = 2;
        });
        let mut now = START;
        for (what, number, age, seconds) in steps {
            now = now.after(secs(seconds));
            let before = (subject.breaker.clone(), subject.state(now));
            let transitions = subject.breaker.transitions.saturating_sub(age);
            let probe = before.1 == BreakerState::HalfOpen;
            let epoch = BreakerEpoch { transitions, probe };
            let counts_hold = subject.breaker.counts_hold(epoch, &subject.settings, now);
            let changed = match what {
                0 | 1 => subject.succeeds(epoch, now),
                2..=4 => subject.fails(number, epoch, now),
                5 => subject.ends(number, epoch, hold(seconds), now),
                6 => subject.ends(number, epoch, Signal::Expired, now),
                7 => { subject.breaker.reset(); true }
                _ => { subject.breaker.force(number % 2 == 0, String::new(), now); true }
            };
            let after = (&subject.breaker, subject.state(now));
            prop_assert!(changed || before.0 == *after.0);
            let moved = before.1 != after.1;
            prop_assert!(!moved || after.0.transitions == before.0.transitions + 1);
            prop_assert!(after.0.transitions >= before.0.transitions);
            let old = transitions != before.0.transitions && what < 7;
            prop_assert!(!old || !moved, "an old outcome moved it");
            if what == 5 && counts_hold && seconds > 0 {
                prop_assert_eq!(after.1, BreakerState::Open);
            }
            prop_assert_eq!(subject.admission(&[], now).limit() == usize::MAX, after.1 == BreakerState::Closed);
            prop_assert_eq!(subject.admission(&[], now).limit() == 0, after.1 == BreakerState::Open);
        }
    }
}
