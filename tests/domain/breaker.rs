//! When a breaker opens, and what operators do to it. Holds and probes are in `breaker_probes`, the way back in `breaker_recovery`.

use super::secs;
use proptest::prelude::*;
use redrive::domain::{
    Admission, Allowed, Breaker, BreakerEpoch, BreakerSettings, BreakerState, EndedDelivery, Failure, Gate, Guard,
    HeldBy, JobId, Meter, OutcomeStats, Probes, Recovery, Signal, Successes, Timestamp, Usual, in_words,
};
use std::time::Duration;

pub(super) const START: Timestamp = Timestamp::from_millis(1_000_000);

pub(super) fn at(seconds: f64) -> Timestamp {
    START.after(Duration::from_secs_f64(seconds))
}

pub(super) fn job(number: u64) -> JobId {
    JobId::Uuid(number.into())
}

pub(super) fn signal(error_type: &str, unreachable: bool) -> Signal {
    Signal::Failure { error: format!("{error_type}: it broke"), error_type: error_type.into(), unreachable }
}

pub(super) fn hold(seconds: u64) -> Signal {
    Signal::Hold { error: "429".into(), error_type: "TooMany".into(), hold: secs(seconds) }
}

/// Nothing holds it back.
pub(super) const ALL: Admission<'static> =
    Admission::Jobs(Allowed { leased: None, rate: None, ramp: None, probes: None });

/// One, and this one only if there is no other.
pub(super) fn probes(not_first: Option<&JobId>) -> Admission<'_> {
    Admission::Jobs(Allowed { probes: Some(Probes { most: 1, not_first }), ..Allowed::default() })
}

/// A breaker with its outcome stats and settings, told of outcomes one by one.
pub(super) struct Subject {
    pub(super) breaker: Breaker,
    pub(super) stats: OutcomeStats,
    pub(super) settings: BreakerSettings,
    pub(super) meter: Meter,
    sums: Successes,
    /// Where in its spread a wait is.
    pub(super) unit: f64,
}

impl Default for Subject {
    fn default() -> Self {
        Self::knowing(Usual::default())
    }
}

impl Subject {
    pub(super) fn knowing(usual: Usual) -> Self {
        Self {
            breaker: Breaker::default(),
            stats: OutcomeStats::new(usual, START),
            settings: BreakerSettings::default(),
            meter: Meter::default(),
            sums: Successes::default(),
            unit: 0.5,
        }
    }

    fn with(change: impl FnOnce(&mut BreakerSettings)) -> Self {
        let mut subject = Self::default();
        change(&mut subject.settings);
        subject
    }

    /// Open since `at(0)`, by twenty failures.
    pub(super) fn open() -> Self {
        Self::open_with(|_| {})
    }

    pub(super) fn open_with(change: impl FnOnce(&mut BreakerSettings)) -> Self {
        let mut subject = Self::with(change);
        subject.opens(0.0);
        subject
    }

    #[track_caller]
    pub(super) fn opens(&mut self, seconds: f64) {
        for number in 0..20 {
            self.fails(number, at(seconds));
        }
        assert_eq!(self.state(at(seconds)), BreakerState::Open);
    }

    pub(super) fn state(&self, now: Timestamp) -> BreakerState {
        self.breaker.state(&self.settings, now)
    }

    pub(super) fn epoch(&self, probe: bool) -> BreakerEpoch {
        BreakerEpoch { transitions: self.breaker.transitions, probe }
    }

    /// A delivery that began then succeeds now. True: the breaker changed.
    pub(super) fn succeeds_since(&mut self, epoch: BreakerEpoch, started_at: Timestamp, now: Timestamp) -> bool {
        let transitions = self.breaker.transitions;
        let changed = if epoch.transitions == transitions && self.breaker.is_closed() {
            self.sums.add(Successes::of(started_at, now, false));
            self.stats.absorb(self.sums, Some(now));
            self.stats.roll(now);
            false
        } else {
            self.breaker.succeed(&mut self.stats, epoch, started_at, &self.settings, now)
        };
        if self.breaker.transitions != transitions {
            self.sums = Successes::default();
        }
        changed
    }

    pub(super) fn succeeds(&mut self, now: Timestamp) -> bool {
        self.succeeds_since(self.epoch(false), now, now)
    }

    pub(super) fn probe_succeeds(&mut self, now: Timestamp) -> bool {
        self.succeeds_since(self.epoch(true), now, now)
    }

    pub(super) fn ends(
        &mut self, number: u64, epoch: BreakerEpoch, first: bool, started_at: Timestamp, signal: Signal, now: Timestamp,
    ) -> bool {
        if self.breaker.is_closed() {
            self.stats.roll(now);
        }
        let job = job(number);
        let counted = self.breaker.counts_failure(&self.stats, epoch, &self.settings, now);
        let ended = EndedDelivery { epoch, job: &job, number, delivery: 1, started_at, first, counted };
        let transitions = self.breaker.transitions;
        let changed = self.breaker.fail(&mut self.stats, &ended, signal, &self.settings, now, self.unit);
        if self.breaker.transitions != transitions {
            self.sums = Successes::default();
        }
        changed
    }

    /// A job that has not failed before cannot reach what it calls.
    pub(super) fn fails(&mut self, number: u64, now: Timestamp) -> bool {
        self.ends(number, self.epoch(false), true, now, signal("Refused", true), now)
    }

    /// A job that has not failed before fails, with an error that could be its own.
    pub(super) fn fails_as(&mut self, number: u64, epoch: BreakerEpoch, now: Timestamp) -> bool {
        self.ends(number, epoch, true, now, signal("HTTP500", false), now)
    }

    pub(super) fn probe_fails(&mut self, number: u64, error_type: &str, started_at: Timestamp, now: Timestamp) -> bool {
        self.ends(number, self.epoch(true), false, started_at, signal(error_type, true), now)
    }

    pub(super) fn counts(&self, now: Timestamp) -> bool {
        self.breaker.counts_failure(&self.stats, self.epoch(false), &self.settings, now)
    }

    pub(super) fn recovery(&self) -> &Recovery {
        &self.breaker.outage.as_ref().unwrap().recovery
    }

    pub(super) fn admission(&self, probes: &[Timestamp], now: Timestamp) -> Admission<'_> {
        let guard = Guard { breaker: &self.breaker, settings: &self.settings, took_ms: self.stats.took_ms };
        Gate { guard: Some(guard), ..Gate::default() }.admission(probes.iter().copied(), now)
    }

    #[track_caller]
    pub(super) fn assert_held_until(&self, now: Timestamp, until: Timestamp) {
        assert_eq!(self.admission(&[], now), Admission::Held { by: HeldBy::Breaker, until: Some(until) });
        assert_eq!(self.breaker.probe_at(&self.settings, now), Some(until));
    }
}

// ---- CLOSED ----

#[test]
fn five_failures_and_no_success_for_a_second_open_it() {
    let mut subject = Subject::default();
    subject.succeeds(at(0.0));
    for number in 0..4 {
        assert!(!subject.fails(number, at(1.0)));
    }
    assert_eq!(subject.admission(&[], at(1.0)), ALL);
    assert!(subject.fails(4, at(1.0)));
    assert_eq!(subject.state(at(1.0)), BreakerState::Open);
    assert_eq!((subject.breaker.trips, subject.breaker.transitions), (1, 1));
    assert_eq!(subject.breaker.last_error, "Refused: it broke");
    assert_eq!(subject.breaker.opened_at(&subject.settings, at(1.5)), Some(at(1.0)));
    assert!(!subject.counts(at(1.5)));
}

#[test]
fn failures_that_an_outage_does_not_count_or_returns_are_summed_up() {
    let mut subject = Subject::open();
    assert_eq!(subject.stats.uncounted, 20, "those that opened it are returned");
    assert_eq!(subject.breaker.returned.len(), 20);
    let epoch = subject.epoch(false);
    subject.ends(30, epoch, true, at(0.0), signal("Refused", true), at(0.5));
    assert_eq!(subject.stats.uncounted, 21);
    // A job for which the outage has lasted too long: its failure counts.
    let job = job(31);
    let ended =
        EndedDelivery { epoch, job: &job, number: 31, delivery: 1, started_at: at(0.0), first: true, counted: true };
    subject.breaker.fail(&mut subject.stats, &ended, signal("Refused", true), &subject.settings, at(0.5), 0.5);
    assert_eq!(subject.stats.uncounted, 21);
}

#[test]
fn where_there_never_was_a_success_the_second_begins_with_the_first_delivery() {
    let mut subject = Subject::default();
    for number in 0..6 {
        let (epoch, now) = (subject.epoch(false), at(0.1 * number as f64));
        assert!(!subject.ends(number, epoch, true, at(0.0), signal("Refused", true), now));
    }
    assert!(subject.fails(6, at(1.0)));
}

#[test]
fn twenty_failures_in_a_row_open_it_however_short_ago_the_last_success_was() {
    let mut subject = Subject::default();
    subject.succeeds(at(0.0));
    for number in 0..19 {
        assert!(!subject.fails(number, at(0.1)));
    }
    assert!(subject.fails(19, at(0.1)));
}

#[test]
fn a_success_ends_the_streak() {
    let mut subject = Subject::default();
    for round in 0..100 {
        for number in 0..4 {
            subject.fails(number, at(f64::from(round) * 10.0));
        }
        assert_eq!(subject.stats.streak, 4);
        subject.succeeds(at(f64::from(round) * 10.0));
        assert_eq!(subject.stats.streak, 0);
    }
    assert_eq!(subject.state(at(1_000.0)), BreakerState::Closed);
}

#[test]
fn a_job_that_failed_before_speaks_only_of_what_cannot_be_reached() {
    let ends = |first, unreachable| {
        let mut subject = Subject::default();
        let epoch = subject.epoch(false);
        (0..100).find(|number| {
            let now = at(*number as f64);
            subject.ends(*number, epoch, first, now, signal("HTTP500", unreachable), now)
        })
    };
    assert_eq!((ends(true, true), ends(true, false), ends(false, true)), (Some(4), Some(4), Some(4)));
    assert_eq!(ends(false, false), None, "poison that is retried is no outage");
}

#[test]
fn expired_leases_and_what_is_no_fault_do_not_speak() {
    let mut subject = Subject::default();
    let epoch = subject.epoch(false);
    for number in 0..100 {
        let now = at(number as f64);
        assert!(!subject.ends(number, epoch, true, now, Signal::Expired, now));
        assert!(!subject.ends(number, epoch, true, now, Signal::None, now));
    }
    assert_eq!((subject.stats.streak, subject.state(at(100.0))), (0, BreakerState::Closed));
}

#[test]
fn the_streak_must_be_longer_than_the_usual_failures_explain() {
    // ln(10⁻⁶) / ln(p): p = 0.1 → 6, 0.3 → 11.5, 0.5 → 19.9.
    for (share, needed) in [(0.0, 5), (0.01, 5), (0.1, 6), (0.3, 12), (0.5, 20), (0.7, 30), (1.0, 30)] {
        let mut subject = Subject::knowing(Usual { share, known: 100.0, ..Usual::default() });
        subject.stats.last_success = Some(at(0.0));
        let opens = (1..100).find(|number| subject.fails(*number, at(2.0)));
        assert_eq!(opens, Some(needed), "{share}");
    }
    let strict = BreakerSettings { failure_threshold: 50, ..BreakerSettings::default() };
    assert_eq!(OutcomeStats::default().needed(None, &strict), 50);
}

#[test]
fn what_was_counted_in_the_streak_and_in_the_second_before_it_is_returned() {
    let mut subject = Subject::default();
    subject.fails(1, at(0.0));
    subject.fails(2, at(0.5));
    subject.succeeds(at(0.6));
    for number in 3..8 {
        subject.fails(number, at(1.4 + number as f64 / 10.0));
    }
    assert_eq!(subject.state(at(2.2)), BreakerState::Open);
    let returned: Vec<_> = subject.breaker.returned.iter().map(|failure| failure.number).collect();
    assert_eq!(returned, [3, 4, 5, 6, 7], "the others failed more than a second before the streak");
    let mut subject = Subject::default();
    subject.fails(1, at(0.0));
    subject.succeeds(at(0.1));
    (2..22).for_each(|number| _ = subject.fails(number, at(0.9)));
    assert_eq!(subject.breaker.returned.len(), 21);
}

#[test]
fn no_more_than_forty_failures_are_returned() {
    let mut subject = Subject::with(|settings| settings.failure_threshold = 100);
    subject.stats.last_success = Some(at(0.0));
    (0..100).for_each(|number| _ = subject.fails(number, at(0.5 + number as f64 / 100.0)));
    assert_eq!(subject.state(at(1.5)), BreakerState::Open);
    let returned: Vec<_> = subject.breaker.returned.iter().map(|failure| failure.number).collect();
    assert_eq!(returned, (60..100).collect::<Vec<_>>());
}

#[test]
fn a_disabled_or_forced_closed_breaker_never_opens_and_every_failure_counts() {
    let disabled = Subject::with(|settings| settings.disabled = true);
    let mut forced = Subject::default();
    forced.breaker.force(false, "we know".into(), at(0.0));
    for mut subject in [disabled, forced] {
        for number in 0..100 {
            let (epoch, now) = (subject.epoch(false), at(number as f64));
            assert!(!subject.fails(number, now));
            assert!(subject.counts(now));
            assert!(!subject.breaker.counts_hold(epoch, &subject.settings, now));
            assert!(!subject.ends(number, epoch, true, now, hold(5), now));
        }
        assert_eq!(subject.state(at(100.0)), BreakerState::Closed);
        assert_eq!(subject.admission(&[], at(100.0)), ALL);
    }
}

// ---- operators ----

#[test]
fn forced_open_has_no_probes_and_ends_with_a_reset() {
    let mut subject = Subject::open();
    subject.breaker.force(true, "maintenance".into(), at(5.0));
    assert_eq!(subject.admission(&[], at(1_000.0)), Admission::Held { by: HeldBy::Breaker, until: None });
    assert_eq!(subject.breaker.opened_at(&subject.settings, at(6.0)), Some(at(5.0)));
    assert_eq!(subject.breaker.probe_at(&subject.settings, at(6.0)), None);
    assert!(!subject.counts(at(6.0)));
    let probe = subject.epoch(true);
    assert!(!subject.probe_succeeds(at(6.0)) && !subject.fails(1, at(6.0)));
    assert!(!subject.ends(1, probe, true, at(6.0), hold(10), at(6.0)));
    subject.breaker.reset(at(7.0));
    assert_eq!(subject.state(at(7.0)), BreakerState::Closed);
    assert_eq!((subject.breaker.transitions, subject.breaker.trips), (3, 0));
    // The failures that were counted before are still to be returned.
    assert_eq!(subject.breaker.returned.len(), 20);
    let log: Vec<_> = subject.breaker.log.iter().map(|entry| (entry.to, entry.why.as_str())).collect();
    let open = BreakerState::Open;
    assert_eq!(log, [(open, "Refused: it broke"), (open, "maintenance"), (BreakerState::Closed, "reset")]);
}

#[test]
fn the_last_fifty_transitions_are_kept_and_their_reasons_are_short() {
    let mut subject = Subject::open();
    for second in 0..60 {
        // The same order said again is none.
        subject.breaker.force(second % 2 == 0, "x".repeat(500), at(f64::from(second)));
    }
    assert_eq!((subject.breaker.log.len(), subject.breaker.transitions), (50, 61));
    assert!(subject.breaker.log.iter().all(|entry| entry.why.len() == 80));
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
    /// Whatever happens, in whatever order, also where time goes backwards: a transition is never forgotten, admission agrees
    /// with the state, and load is a number that lets something out.
    #[test]
    fn nothing_confuses_it(steps in prop::collection::vec((0..12u8, 0..6u64, 0..4u64, -2_000..20_000i64), 1..300)) {
        let mut subject = Subject::with(|settings| {
            settings.failure_threshold = 2;
            settings.half_open_max_calls = 2;
        });
        let mut now = START;
        for (what, number, age, millis) in steps {
            now = Timestamp::from_millis(now.millis().saturating_add_signed(millis));
            let (before, state) = (subject.breaker.clone(), subject.state(now));
            let transitions = before.transitions.saturating_sub(age);
            let epoch = BreakerEpoch { transitions, probe: state == BreakerState::HalfOpen };
            let started = Timestamp::from_millis(now.millis() - number * 1_000);
            let counts_hold = subject.breaker.counts_hold(epoch, &subject.settings, now);
            let changed = match what {
                0..=3 => subject.succeeds_since(epoch, started, now),
                4..=6 => subject.ends(number, epoch, number < 3, started, signal("E", number < 2), now),
                7 => subject.ends(number, epoch, true, started, hold(number), now),
                8 => subject.ends(number, epoch, true, started, Signal::Expired, now),
                9 | 10 => {
                    subject.meter = Meter { held_at: now, most_leased: number, ready: number, leased: age, ..subject.meter };
                    subject.breaker.tick(&mut subject.stats, &subject.meter, &subject.settings, now)
                }
                _ if number == 0 => { subject.breaker.force(age < 2, String::new(), now); true }
                _ => { subject.breaker.reset(now); true }
            };
            let after = subject.state(now);
            prop_assert!(changed || before == subject.breaker);
            let moved = state != after;
            prop_assert!(!moved || subject.breaker.transitions == before.transitions + 1 || what == 7);
            prop_assert!(subject.breaker.transitions >= before.transitions);
            let old = transitions != before.transitions && what < 9 && what != 7;
            prop_assert!(!old || !moved, "an old outcome moved it");
            if what == 7 && counts_hold && number > 0 {
                prop_assert_eq!(after, BreakerState::Open);
            }
            let limit = subject.admission(&[], now).limit();
            prop_assert_eq!(limit == usize::MAX, after == BreakerState::Closed);
            prop_assert_eq!(limit == 0, after == BreakerState::Open);
            if let Admission::Jobs(Allowed { ramp: Some(pace), .. }) = subject.admission(&[], now) {
                prop_assert!(pace.per_second.is_finite() && pace.per_second >= 1.0);
                prop_assert!(subject.recovery().load.is_finite() && subject.recovery().load > 0.0);
            }
            let share = subject.stats.usual.share;
            prop_assert!((0.0..=1.0).contains(&share), "{}", share);
            prop_assert!(subject.stats.bucket_ends_at(now) > now || subject.stats.roll(now));
        }
    }
}
