mod day;

use super::*;
use proptest::prelude::*;

const START: Timestamp = Timestamp::from_millis(1_000_000);
const FIRST: Sent = Sent { transitions: 0, probe: false };

fn at(seconds: u64) -> Timestamp {
    START.after(Duration::from_secs(seconds))
}

fn job(number: u64) -> JobId {
    JobId::Uuid(number.into())
}

fn failure() -> Signal {
    Signal::Failure { error: "Timeout: it broke".into() }
}

fn hold(seconds: u64) -> Signal {
    Signal::Hold { error: "429".into(), hold: Duration::from_secs(seconds) }
}

/// A breaker with its tally and settings, told of outcomes one by one.
#[derive(Default)]
struct Case {
    breaker: Breaker,
    tally: Tally,
    settings: BreakerSettings,
}

impl Case {
    fn with(change: impl FnOnce(&mut BreakerSettings)) -> Self {
        let mut case = Self::default();
        change(&mut case.settings);
        case
    }

    /// Open since `at(0)`, by five failures.
    fn open() -> Self {
        Self::open_with(|_| {})
    }

    fn open_with(change: impl FnOnce(&mut BreakerSettings)) -> Self {
        let mut case = Self::with(change);
        for number in 0..5 {
            case.fails(number, FIRST, at(0));
        }
        assert_eq!(case.state(at(0)), BreakerState::Open);
        case
    }

    fn state(&self, now: Timestamp) -> BreakerState {
        self.breaker.state(&self.settings, now)
    }

    fn now(&self, probe: bool) -> Sent {
        Sent { transitions: self.breaker.transitions, probe }
    }

    fn succeeds(&mut self, sent: Sent, now: Timestamp) -> bool {
        self.breaker.succeed(&mut self.tally, sent, &self.settings, now)
    }

    fn heeds(&mut self, number: u64, sent: Sent, signal: Signal, now: Timestamp) -> bool {
        self.breaker.heed(&mut self.tally, sent, &job(number), signal, &self.settings, now)
    }

    fn fails(&mut self, number: u64, sent: Sent, now: Timestamp) -> bool {
        self.heeds(number, sent, failure(), now)
    }

    fn gate(&self, probes: &[Timestamp], now: Timestamp) -> Gate<'_> {
        self.breaker.gate(&self.settings, probes.iter().copied(), now)
    }
}

// ---- CLOSED ----

#[test]
fn five_different_jobs_that_fail_open_it() {
    let mut case = Case::default();
    for number in 0..4 {
        assert!(!case.fails(number, FIRST, at(0)));
        assert_eq!(case.tally.failed(), number as u32 + 1);
    }
    assert_eq!(case.gate(&[], at(0)), Gate::All);
    assert!(case.fails(4, FIRST, at(0)));
    assert_eq!(case.state(at(0)), BreakerState::Open);
    assert_eq!((case.breaker.trips, case.breaker.transitions), (1, 1));
    assert_eq!(case.breaker.last_error, "Timeout: it broke");
    assert_eq!(case.breaker.opened_at(&case.settings, at(1)), Some(at(0)));
    assert_eq!(case.breaker.probe_at(&case.settings, at(1)), Some(at(60)));
    assert_eq!(case.gate(&[], at(59)), Gate::Held { until: Some(at(60)) });
}

#[test]
fn one_poison_job_never_opens_it() {
    let mut case = Case::default();
    for second in 0..10_000 {
        assert!(!case.fails(1, FIRST, at(second)));
    }
    assert_eq!(case.tally.failed(), 1);
}

#[test]
fn a_success_starts_the_row_again() {
    let mut case = Case::default();
    for round in 0..100 {
        for number in 0..4 {
            case.fails(number, FIRST, at(round * 10));
        }
        case.succeeds(FIRST, at(round * 10));
        assert_eq!(case.tally.failed(), 0);
    }
    assert_eq!(case.state(at(1_000)), BreakerState::Closed);
}

#[test]
fn a_queue_that_succeeded_a_moment_ago_is_no_outage() {
    let mut case = Case::default();
    case.succeeds(FIRST, at(10));
    let soon = at(10).after(Duration::from_millis(999));
    for number in 0..100 {
        assert!(!case.fails(number, FIRST, soon));
    }
    assert!(case.fails(100, FIRST, at(11)));
}

/// So many outcomes with so many failures among them, then a row: how long must it be?
fn row_that_opens(failures: u64, outcomes: u64, threshold: u32) -> u64 {
    let mut case = Case::with(|settings| settings.failure_threshold = threshold);
    for _ in 1..outcomes - failures {
        case.succeeds(FIRST, at(0));
    }
    // A success was a moment ago, so that nothing opens yet.
    for number in 0..failures {
        case.fails(number, FIRST, at(0));
    }
    case.succeeds(FIRST, at(0));
    (1..100).find(|number| case.fails(1_000 + number, FIRST, at(100))).expect("it opens")
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
    let mut case = Case::default();
    for outcome in 0..20 {
        case.succeeds(FIRST, at(outcome));
    }
    for _ in 0..50 {
        assert!(!case.fails(1, FIRST, at(100)));
    }
    for number in 2..5 {
        assert!(!case.fails(number, FIRST, at(100)));
    }
    assert!(case.fails(5, FIRST, at(100)));
}

#[test]
fn what_was_usual_long_ago_fades() {
    let mut case = Case::default();
    for outcome in 0..200 {
        case.fails(outcome, FIRST, at(0));
        case.succeeds(FIRST, at(0));
    }
    for _ in 0..2_000 {
        case.succeeds(FIRST, at(0));
    }
    let opens = (1..100).find(|number| case.fails(1_000 + number, FIRST, at(100)));
    assert_eq!(opens, Some(5));
}

#[test]
fn expired_leases_and_what_is_nobodys_fault_do_not_count() {
    let mut case = Case::default();
    for number in 0..100 {
        assert!(!case.heeds(number, FIRST, Signal::Expired, at(number)));
        assert!(!case.heeds(number, FIRST, Signal::None, at(number)));
    }
    assert_eq!((case.tally.failed(), case.state(at(100))), (0, BreakerState::Closed));
}

#[test]
fn a_disabled_or_forced_closed_breaker_never_opens() {
    let mut disabled = Case::with(|settings| settings.disabled = true);
    let mut forced = Case::default();
    forced.breaker.force(false, "we know".into(), at(0));
    for case in [&mut disabled, &mut forced] {
        for number in 0..100 {
            let sent = case.now(false);
            assert!(!case.fails(number, sent, at(number)));
            assert!(!case.breaker.heeds_hold(sent, &case.settings, at(number)));
            assert!(!case.heeds(number, sent, hold(5), at(number)));
        }
        assert_eq!(case.state(at(100)), BreakerState::Closed);
        assert_eq!(case.gate(&[], at(100)), Gate::All);
    }
}

// ---- hold ----

#[test]
fn one_hold_opens_it_for_exactly_the_time_asked() {
    let mut case = Case::default();
    assert!(case.heeds(1, FIRST, hold(17), at(0)));
    assert_eq!(case.gate(&[], at(16)), Gate::Held { until: Some(at(17)) });
    assert_eq!(case.state(at(17)), BreakerState::HalfOpen);
    assert_eq!(case.breaker.last_error, "429");
}

#[test]
fn a_later_hold_moves_an_open_breaker_whenever_its_job_was_sent() {
    let mut case = Case::default();
    case.heeds(1, FIRST, hold(30), at(0));
    assert!(case.breaker.heeds_hold(FIRST, &case.settings, at(5)));
    assert!(!case.heeds(2, FIRST, hold(10), at(5)));
    assert_eq!(case.breaker.probe_at(&case.settings, at(5)), Some(at(30)));
    assert!(case.heeds(3, FIRST, hold(60), at(5)));
    assert_eq!(case.breaker.probe_at(&case.settings, at(5)), Some(at(65)));
    assert_eq!((case.breaker.transitions, case.breaker.trips), (1, 1));
}

#[test]
fn a_hold_from_before_neither_opens_a_closed_nor_a_half_open_breaker() {
    let mut case = Case::open();
    assert!(!case.breaker.heeds_hold(FIRST, &case.settings, at(60)));
    assert!(!case.heeds(9, FIRST, hold(10), at(60)));
    assert_eq!(case.state(at(60)), BreakerState::HalfOpen);
    let probe = case.now(true);
    case.succeeds(probe, at(61));
    assert!(!case.heeds(9, FIRST, hold(10), at(62)));
    assert_eq!(case.state(at(62)), BreakerState::Closed);
}

#[test]
fn a_probe_that_is_told_to_hold_opens_it_for_that_long() {
    let mut case = Case::open();
    let probe = case.now(true);
    assert!(case.heeds(9, probe, hold(300), at(60)));
    assert_eq!(case.gate(&[], at(61)), Gate::Held { until: Some(at(360)) });
    assert_eq!(case.breaker.trips, 2);
}

// ---- HALF_OPEN ----

#[test]
fn half_open_begins_at_probe_at_and_lets_one_probe_out() {
    let case = Case::open();
    assert_eq!(case.state(at(59)), BreakerState::Open);
    assert_eq!(case.state(at(60)), BreakerState::HalfOpen);
    assert_eq!(case.gate(&[], at(60)), Gate::Probes { most: 1, not_first: None });
    assert_eq!(case.gate(&[at(60)], at(61)), Gate::Limited { until: at(120) });
    // Nothing was heard of it for recovery_timeout.
    assert_eq!(case.gate(&[at(60)], at(120)).width(), 1);
    assert_eq!(case.breaker.probe_at(&case.settings, at(60)), None);
    assert_eq!(case.breaker.opened_at(&case.settings, at(60)), Some(at(0)));
}

#[test]
fn so_many_probes_as_are_allowed_are_out_at_a_time() {
    let case = Case::open_with(|settings| settings.half_open_max_calls = 3);
    assert_eq!(case.gate(&[], at(60)).width(), 3);
    assert_eq!(case.gate(&[at(60), at(61)], at(62)).width(), 1);
    assert_eq!(case.gate(&[at(60), at(61), at(62)], at(63)), Gate::Limited { until: at(120) });
}

#[test]
fn a_probe_that_succeeds_closes_it() {
    let mut case = Case::open();
    let probe = case.now(true);
    assert!(case.succeeds(probe, at(61)));
    assert_eq!(case.state(at(61)), BreakerState::Closed);
    assert_eq!((case.breaker.transitions, case.breaker.trips), (2, 1));
    assert_eq!(case.breaker.opened_at(&case.settings, at(61)), None);
    // What opened it last can still be read.
    assert_eq!(case.breaker.last_error, "Timeout: it broke");
}

#[test]
fn as_many_successes_as_configured_close_it() {
    let mut case = Case::open_with(|settings| settings.success_threshold = 3);
    let probe = case.now(true);
    for successes in 1..3 {
        assert!(case.succeeds(probe, at(61)));
        assert_eq!(case.breaker.open.as_ref().map(|open| open.successes), Some(successes));
    }
    assert_eq!(case.state(at(61)), BreakerState::HalfOpen);
    case.succeeds(probe, at(61));
    assert_eq!(case.state(at(61)), BreakerState::Closed);
}

#[test]
fn a_probe_that_fails_or_never_comes_back_opens_it_again_and_another_job_goes_next() {
    for signal in [failure(), Signal::Expired] {
        let mut case = Case::open_with(|settings| settings.success_threshold = 2);
        let probe = case.now(true);
        case.succeeds(probe, at(60));
        assert!(case.heeds(7, probe, signal, at(61)));
        assert_eq!(case.gate(&[], at(62)), Gate::Held { until: Some(at(121)) });
        let probes = Gate::Probes { most: 1, not_first: Some(&job(7)) };
        assert_eq!(case.gate(&[], at(121)), probes);
        assert_eq!((case.breaker.trips, case.breaker.transitions), (2, 2));
        // Successes from before the failure count for nothing.
        let probe = case.now(true);
        case.succeeds(probe, at(122));
        assert_eq!(case.state(at(122)), BreakerState::HalfOpen);
    }
}

#[test]
fn a_probe_that_says_nothing_leaves_it_half_open() {
    let mut case = Case::open();
    let probe = case.now(true);
    assert!(!case.heeds(1, probe, Signal::None, at(61)));
    assert_eq!(case.state(at(61)), BreakerState::HalfOpen);
}

#[test]
fn outcomes_from_before_the_last_transition_change_nothing() {
    let mut case = Case::open();
    assert!(!case.succeeds(FIRST, at(1)));
    assert!(!case.fails(9, FIRST, at(1)));
    assert!(!case.succeeds(FIRST, at(61)));
    assert!(!case.fails(9, FIRST, at(61)));
    assert!(!case.heeds(9, FIRST, Signal::Expired, at(61)));
    assert_eq!(case.state(at(61)), BreakerState::HalfOpen);
    let old_probe = case.now(true);
    case.fails(8, old_probe, at(61));
    assert!(!case.succeeds(old_probe, at(121)));
    assert_eq!(case.state(at(121)), BreakerState::HalfOpen);
    let probe = case.now(true);
    case.succeeds(probe, at(122));
    for number in 0..100 {
        assert!(!case.fails(number, old_probe, at(200)));
        assert!(!case.fails(number, FIRST, at(200)));
    }
    assert_eq!((case.tally.failed(), case.state(at(200))), (0, BreakerState::Closed));
}

#[test]
fn after_an_outage_it_is_as_sensitive_as_before() {
    let mut case = Case::open();
    let probe = case.now(true);
    case.succeeds(probe, at(60));
    let sent = case.now(false);
    for number in 0..4 {
        assert!(!case.fails(number, sent, at(70)));
    }
    assert!(case.fails(4, sent, at(70)));
}

// ---- operators ----

#[test]
fn forced_open_has_no_probes_and_ends_with_a_reset() {
    let mut case = Case::open();
    case.breaker.force(true, "maintenance".into(), at(5));
    assert_eq!(case.gate(&[], at(1_000)), Gate::Held { until: None });
    assert_eq!(case.breaker.opened_at(&case.settings, at(6)), Some(at(5)));
    assert_eq!(case.breaker.probe_at(&case.settings, at(6)), None);
    let sent = case.now(true);
    assert!(!case.succeeds(sent, at(6)) && !case.fails(1, sent, at(6)));
    assert!(!case.heeds(1, sent, hold(10), at(6)));
    case.breaker.reset();
    assert_eq!(case.state(at(7)), BreakerState::Closed);
    assert_eq!(case.breaker, Breaker { transitions: 3, ..Breaker::default() });
}

#[test]
fn a_reset_closes_it_and_late_outcomes_do_not_open_it() {
    let mut case = Case::open();
    let sent = case.now(false);
    case.breaker.reset();
    for number in 0..50 {
        assert!(!case.fails(number, FIRST, at(10)));
        assert!(!case.fails(number, sent, at(10)));
    }
    assert_eq!(case.state(at(10)), BreakerState::Closed);
}

#[test]
fn names_are_read_as_they_are_written() {
    for name in ["queue:emails", "dlq:emails.v2"] {
        assert_eq!(BreakerName::parse(name).expect("a name").to_string(), name);
    }
    for name in ["", "emails", "queue:", "dlq:overflow:emails", "Queue:emails", "other:emails"] {
        assert_eq!(BreakerName::parse(name), None, "{name}");
    }
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
        let mut case = Case::with(|settings| {
            settings.failure_threshold = 2;
            settings.half_open_max_calls = 2;
        });
        let mut now = START;
        for (what, number, age, seconds) in steps {
            now = now.after(Duration::from_secs(seconds));
            let before = (case.breaker.clone(), case.state(now));
            let transitions = case.breaker.transitions.saturating_sub(age);
            let probe = before.1 == BreakerState::HalfOpen;
            let sent = Sent { transitions, probe };
            let heeds_hold = case.breaker.heeds_hold(sent, &case.settings, now);
            let changed = match what {
                0 | 1 => case.succeeds(sent, now),
                2..=4 => case.fails(number, sent, now),
                5 => case.heeds(number, sent, hold(seconds), now),
                6 => case.heeds(number, sent, Signal::Expired, now),
                7 => { case.breaker.reset(); true }
                _ => { case.breaker.force(number % 2 == 0, String::new(), now); true }
            };
            let after = (&case.breaker, case.state(now));
            prop_assert!(changed || before.0 == *after.0);
            let moved = before.1 != after.1;
            prop_assert!(!moved || after.0.transitions == before.0.transitions + 1);
            prop_assert!(after.0.transitions >= before.0.transitions);
            let old = transitions != before.0.transitions && what < 7;
            prop_assert!(!old || !moved, "an old outcome moved it");
            if what == 5 && heeds_hold && seconds > 0 {
                prop_assert_eq!(after.1, BreakerState::Open);
            }
            prop_assert_eq!(case.gate(&[], now).width() == usize::MAX, after.1 == BreakerState::Closed);
            prop_assert_eq!(case.gate(&[], now).width() == 0, after.1 == BreakerState::Open);
        }
    }
}
