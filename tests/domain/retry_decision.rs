use super::{delivery, on_type, secs};
use proptest::prelude::*;
use redrive::domain::{
    AttemptStatus, BreakerFacts, BreakerState, DeadReason, ErrorRule, Failure, Jitter, Leased, Matcher, Next, Outcome,
    PolicyOverride, Preset, Progress, QueueSettings, RandomFractions, RetryDecision, Signal, StatusPattern, Then,
    Timestamp, decide,
};
use std::time::Duration;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const RELEASED: Outcome = Outcome::Released { retry_after: None, keep_position: false };

fn later(delay: Duration) -> Next {
    Next::Later { at: NOW.after(delay) }
}

fn progress(tries: u32) -> Progress {
    Progress { tries, deliveries: tries + 1, ..Progress::default() }
}

/// `standard` without jitter: 1 s, 2 s, 4 s, three retries.
fn plain() -> QueueSettings {
    let mut queue = QueueSettings::default();
    queue.policy.jitter = Jitter::None;
    queue.patient = None;
    queue
}

#[test]
fn a_service_that_is_down_is_waited_for_where_nothing_sets_max_retries() {
    let unset = QueueSettings::default();
    for error_type in ["ConnectionRefusedError", "Timeout", "ServiceUnavailable"] {
        let patient = decided(0, failed(error_type), &unset).attempt;
        assert_eq!(patient.retries_left, 20, "{error_type}");
        assert!(patient.explanation.contains("patient, because the failure is"), "{}", patient.explanation);
        assert!(patient.rule.starts_with("default: category="), "{}", patient.rule);
        assert!(patient.failure.unwrap().category_derived);

        // The queue or the server sets it; then the job does.
        let standard = decided(0, failed(error_type), &plain()).attempt;
        assert_eq!((standard.retries_left, standard.rule.as_str()), (3, ""));
        let policy = Some(PolicyOverride { max_retries: Some(7), ..PolicyOverride::default() });
        let own = Ended { policy, ..Ended::after(progress(0)) }.decide(failed(error_type), &unset).attempt;
        assert_eq!((own.retries_left, own.rule.as_str()), (7, ""));
    }
    assert_eq!(decided(0, failed("E"), &unset).attempt.retries_left, 3);
    // Its other fields change the patient policy.
    let policy = Some(PolicyOverride { base_delay: Some(secs(100)), ..PolicyOverride::default() });
    let slow = Ended { policy, ..Ended::after(progress(0)) }.decide(failed("Timeout"), &unset).attempt;
    assert_eq!(slow.retries_left, 20);
    assert!(slow.delay.unwrap() >= secs(50));
    let off = QueueSettings { default_rules: Vec::new(), ..QueueSettings::default() };
    assert_eq!(decided(0, failed("Timeout"), &off).attempt.retries_left, 3);
}

#[test]
fn the_policy_that_decided_the_last_failure_says_how_many_retries_there_are() {
    let unset = QueueSettings::default();
    let after = |progress: Progress, outcome| Ended::after(progress).decide(outcome, &unset);
    let patient = after(progress(0), failed("Timeout")).progress;
    assert_eq!(patient.max_retries, Some(20));
    // A release and an interruption decide nothing about a failure.
    let released = after(patient.clone(), RELEASED);
    assert_eq!((released.progress.max_retries, released.attempt.retries_left), (Some(20), 19));
    assert_eq!(after(patient.clone(), Outcome::Interrupted).progress.max_retries, Some(20));
    assert_eq!(after(patient.clone(), failed("E")).progress.max_retries, Some(3), "another failure, another policy");
    assert_eq!(after(patient.clone(), Outcome::Expired).progress.max_retries, Some(3));
    let exhausted = after(Progress { tries: 3, ..patient.clone() }, failed("E"));
    assert_eq!((exhausted.progress.max_retries, exhausted.attempt.retries_left), (Some(3), 0));
    let permanent = Outcome::Failed { failure: Failure::new("E", ""), permanent: true, retry_after: None };
    assert_eq!(after(patient, permanent).progress.max_retries, None, "no policy decided");
    assert_eq!(after(progress(0), RELEASED).attempt.retries_left, 3);
}

fn with_rules(rules: impl IntoIterator<Item = (Matcher, Then)>) -> QueueSettings {
    let rules = rules.into_iter().map(|(matcher, then)| ErrorRule::at(0, matcher, then));
    QueueSettings { rules: rules.collect(), ..plain() }
}

fn failed(error_type: &str) -> Outcome {
    fails(Failure::new(error_type, "it broke"), None)
}

fn fails(failure: Failure, retry_after: Option<Duration>) -> Outcome {
    Outcome::Failed { failure, permanent: false, retry_after }
}

/// A delivery that ended, and all that the decision depends on.
struct Ended {
    progress: Progress,
    policy: Option<PolicyOverride>,
    expires_at: Option<Timestamp>,
    breaker: BreakerFacts,
    random: RandomFractions,
}

impl Ended {
    fn after(progress: Progress) -> Self {
        let random = RandomFractions { jitter: 0.5, spread: 0.5 };
        let breaker = BreakerFacts { counts: true, ..BreakerFacts::default() };
        Self { progress, policy: None, expires_at: None, breaker, random }
    }

    /// While the queue's breaker is in this state, in which failures do not count, and a hold would move it.
    fn during(state: BreakerState, progress: Progress) -> Self {
        let breaker = BreakerFacts { state, counts: false, counts_hold: true, ..BreakerFacts::default() };
        Self { breaker, ..Self::after(progress) }
    }

    fn decide(&self, outcome: Outcome, queue: &QueueSettings) -> RetryDecision {
        let delivery = delivery(self.progress.tries + 1);
        let leased = Leased {
            delivery: &delivery,
            progress: &self.progress,
            policy: self.policy.as_ref(),
            expires_at: self.expires_at,
            breaker: self.breaker,
        };
        decide(leased, outcome, queue, NOW, self.random)
    }
}

fn decided(tries: u32, outcome: Outcome, queue: &QueueSettings) -> RetryDecision {
    Ended::after(progress(tries)).decide(outcome, queue)
}

#[test]
fn three_retries_are_four_attempts() {
    let queue = plain();
    for (tries, delay, left) in [(0, secs(1), 3), (1, secs(2), 2), (2, secs(4), 1)] {
        let decision = decided(tries, failed("Timeout"), &queue);
        assert_eq!(decision.next, later(delay));
        assert_eq!((decision.attempt.retries_left, decision.attempt.delay), (left, Some(delay)));
        assert_eq!((decision.progress.tries, decision.attempt.counted), (tries + 1, true));
    }
    let decision = decided(3, failed("Timeout"), &queue);
    assert_eq!(decision.next, Next::DeadLetter(DeadReason::Exhausted));
    assert_eq!((decision.attempt.retries_left, decision.attempt.delay), (0, None));
}

#[test]
fn one_shot_dies_with_its_first_failure() {
    let queue = QueueSettings { policy: Preset::OneShot.policy(), ..plain() };
    assert_eq!(decided(0, failed("Timeout"), &queue).next, Next::DeadLetter(DeadReason::Exhausted));
}

#[test]
fn a_permanent_failure_comes_before_all_rules() {
    let queue = with_rules([(on_type("*"), Then::Release)]);
    let outcome = Outcome::Failed { failure: Failure::new("Timeout", ""), permanent: true, retry_after: None };
    let decision = decided(0, outcome, &queue);
    assert_eq!(decision.next, Next::DeadLetter(DeadReason::NonRetryable));
    assert_eq!((decision.attempt.rule.as_str(), decision.attempt.counted), ("", true));
}

#[test]
fn the_default_rules_dead_letter_what_never_heals() {
    for error_type in ["ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"] {
        let decision = decided(0, failed(error_type), &plain());
        assert_eq!(decision.next, Next::DeadLetter(DeadReason::NonRetryable), "{error_type}");
        assert!(decision.attempt.rule.contains(error_type), "{}", decision.attempt.rule);
    }
    let without = QueueSettings { default_rules: Vec::new(), ..plain() };
    assert_eq!(decided(0, failed("ValidationError"), &without).next, later(secs(1)));
}

#[test]
fn the_first_rule_that_fits_decides_and_own_rules_come_first() {
    let nine_seconds = PolicyOverride { base_delay: Some(secs(9)), ..PolicyOverride::default() };
    let queue = with_rules([(on_type("Valid*"), Then::Policy(nine_seconds)), (on_type("*"), Then::DeadLetter)]);
    assert_eq!(decided(0, failed("ValidationError"), &queue).attempt.delay, Some(secs(9)));
    assert_eq!(decided(0, failed("Other"), &queue).next, Next::DeadLetter(DeadReason::NonRetryable));
}

#[test]
fn job_over_rule_over_queue_field_by_field() {
    let rule = PolicyOverride { base_delay: Some(secs(9)), max_retries: Some(7), ..PolicyOverride::default() };
    let mut queue = with_rules([(on_type("*"), Then::Policy(rule))]);
    queue.policy.max_delay = secs(60);
    let policy = Some(PolicyOverride { max_retries: Some(5), ..PolicyOverride::default() });
    let decision = Ended { policy, ..Ended::after(progress(0)) }.decide(failed("E"), &queue);
    assert_eq!((decision.attempt.delay, decision.attempt.retries_left), (Some(secs(9)), 5));
}

#[test]
fn an_action_applies_whatever_policy_the_job_carries() {
    let status = Matcher { http_status: StatusPattern::parse("4xx").ok(), ..Matcher::default() };
    let queue = with_rules([(status, Then::DeadLetter)]);
    let policy = Some(PolicyOverride { max_retries: Some(100), ..PolicyOverride::default() });
    let outcome = fails(Failure { http_status: 418, ..Failure::new("Teapot", "") }, None);
    let decision = Ended { policy, ..Ended::after(progress(0)) }.decide(outcome, &queue);
    assert_eq!(decision.next, Next::DeadLetter(DeadReason::NonRetryable));
}

#[test]
fn a_rule_that_releases_does_not_count_the_attempt_but_keeps_the_failure() {
    let queue = with_rules([(on_type("Busy"), Then::Release)]);
    let decision = decided(2, failed("Busy"), &queue);
    assert_eq!(decision.next, Next::Behind { at: NOW });
    assert_eq!((decision.attempt.counted, decision.progress.tries), (false, 2));
    assert_eq!(decision.attempt.failure.unwrap().error_type, "Busy");
}

#[test]
fn a_hold_without_a_breaker_releases_the_job_for_the_time_asked() {
    let queue = with_rules([(on_type("*"), Then::Hold)]);
    for (asked, waits) in [(None, 10), (Some(secs(5)), 5)] {
        let decision = decided(0, fails(Failure::new("TooManyRequests", ""), asked), &queue);
        assert_eq!((decision.next, decision.attempt.counted), (later(secs(waits)), false));
    }
}

#[test]
fn retry_after_stretches_the_delay_but_never_shortens_it() {
    for (asked, delay) in [(1, secs(2)), (100, secs(105)), (1_000_000, secs(3_600).mul_f64(1.05))] {
        let decision = decided(1, fails(Failure::new("E", ""), Some(secs(asked))), &plain());
        assert_eq!(decision.attempt.delay, Some(delay));
    }
}

#[test]
fn a_retry_after_the_deadline_dies_now() {
    let cleared = Progress { deadline_cleared: true, ..progress(0) };
    for (progress, expires_in, next) in [
        (progress(0), 1_000, Next::DeadLetter(DeadReason::WouldMissDeadline)),
        (progress(0), 1_001, later(secs(1))),
        (progress(0), 0, Next::DeadLetter(DeadReason::Expired)),
        (cleared, 0, later(secs(1))),
    ] {
        let expires_at = Some(NOW.after(Duration::from_millis(expires_in)));
        let ended = Ended { expires_at, ..Ended::after(progress) };
        assert_eq!(ended.decide(failed("E"), &plain()).next, next, "{expires_in}");
    }
}

#[test]
fn a_release_goes_behind_its_level_or_waits_for_the_time_asked() {
    let decision = decided(1, RELEASED, &plain());
    assert_eq!((decision.next, decision.attempt.status), (Next::Behind { at: NOW }, AttemptStatus::Released));
    assert_eq!((decision.progress.releases, decision.progress.tries), (1, 1));
    let decision = decided(1, Outcome::Released { retry_after: Some(secs(8)), keep_position: false }, &plain());
    assert_eq!(decision.next, later(secs(8)));
}

#[test]
fn the_hundred_and_first_release_is_a_failure() {
    let release = |releases| Ended::after(Progress { releases, ..progress(0) }).decide(RELEASED, &plain());
    assert!(!release(99).attempt.counted);
    let decision = release(100);
    assert_eq!((decision.next, decision.attempt.counted), (later(secs(1)), true));
    assert_eq!(decision.attempt.failure.unwrap().error_type, "ReleaseLimit");
}

#[test]
fn the_release_limit_is_a_failure_by_the_rules_and_names_its_cause() {
    let busy = (on_type("Busy"), Then::Release);
    let spent = Ended::after(Progress { releases: 100, ..progress(0) });
    let failure = spent.decide(failed("Busy"), &with_rules([busy.clone()])).attempt.failure.unwrap();
    assert_eq!(failure.error_type, "ReleaseLimit");
    assert!(failure.message.contains("Busy: it broke"), "{}", failure.message);
    let queue = with_rules([busy, (on_type("ReleaseLimit"), Then::DeadLetter)]);
    assert_eq!(spent.decide(failed("Busy"), &queue).next, Next::DeadLetter(DeadReason::NonRetryable));
}

#[test]
fn an_expired_lease_is_a_failure_by_the_same_rules() {
    let attempt = decided(0, Outcome::Expired, &plain()).attempt;
    assert_eq!((attempt.status, attempt.counted, attempt.nacked), (AttemptStatus::LeaseExpired, true, false));
    let failure = attempt.failure.unwrap();
    assert_eq!(failure.error_type, "LeaseExpired");
    assert!(failure.message.contains("worker-1"), "{}", failure.message);
    let queue = with_rules([(on_type("LeaseExpired"), Then::DeadLetter)]);
    assert_eq!(decided(0, Outcome::Expired, &queue).next, Next::DeadLetter(DeadReason::NonRetryable));
}

#[test]
fn a_job_that_keeps_killing_its_workers_fails_at_the_fourth_interruption() {
    let interrupt =
        |interruptions| Ended::after(Progress { interruptions, ..progress(0) }).decide(Outcome::Interrupted, &plain());
    let decision = interrupt(2);
    assert_eq!((decision.next, decision.attempt.status), (Next::OldPlace, AttemptStatus::Interrupted));
    assert_eq!(decision.progress.tries, 0);
    let decision = interrupt(3);
    assert_eq!((decision.next, decision.progress.tries), (later(secs(1)), 1));
    assert_eq!(decision.attempt.failure.unwrap().error_type, "LeaseExpired");
}

#[test]
fn a_cancelled_job_ends_however_its_delivery_ends() {
    let cancelled = Ended::after(Progress { cancel_requested: true, ..progress(0) });
    for outcome in [failed("E"), RELEASED, Outcome::Expired, Outcome::Interrupted] {
        let decision = cancelled.decide(outcome, &plain());
        assert_eq!(decision.next, Next::Cancelled);
        assert_eq!(decision.attempt.status, AttemptStatus::Cancelled);
    }
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let retry_after = || prop::option::of((0u64..10_000_000).prop_map(Duration::from_millis));
    prop_oneof![
        ("[A-Z][a-z]{0,8}", any::<bool>(), retry_after()).prop_map(|(error_type, permanent, retry_after)| {
            Outcome::Failed { failure: Failure::new(&error_type, "m"), permanent, retry_after }
        }),
        (retry_after(), any::<bool>())
            .prop_map(|(retry_after, keep_position)| Outcome::Released { retry_after, keep_position }),
        Just(Outcome::Expired),
        Just(Outcome::Interrupted),
    ]
}

proptest! {
    /// Whatever happens: nothing is early, counts only grow, and a job in hope has retries left to show for it.
    #[test]
    fn every_decision_is_sound(
        outcome in outcomes(), tries in 0u32..1_010, releases in 0u32..102,
        interruptions in 0u32..5, max_retries in 0u32..1_000,
        deadline in prop::option::of(0u64..4_000_000), jitter in 0.0f64..1.0, spread in 0.0f64..1.0
    ) {
        let before = Progress { releases, interruptions, ..progress(tries) };
        let policy = Some(PolicyOverride { max_retries: Some(max_retries), ..PolicyOverride::default() });
        let expires_at = deadline.map(Timestamp::from_millis);
        let random = RandomFractions { jitter, spread };
        let ended = Ended { policy, expires_at, random, ..Ended::after(before.clone()) };
        let decision = ended.decide(outcome, &plain());
        let after = &decision.progress;
        prop_assert_eq!(after.deliveries, before.deliveries);
        prop_assert_eq!(after.recorded, before.recorded + 1);
        prop_assert_eq!(after.tries, tries + u32::from(decision.attempt.counted));
        prop_assert_eq!(decision.attempt.next, decision.next);
        match decision.next {
            Next::Later { at } => {
                prop_assert!(at >= NOW);
                if decision.attempt.counted {
                    prop_assert!(decision.attempt.number <= max_retries);
                    prop_assert!(expires_at.is_none_or(|deadline| at < deadline));
                    let left = max_retries + 1 - decision.attempt.number;
                    prop_assert_eq!(decision.attempt.retries_left, left);
                }
            }
            Next::Behind { at } => prop_assert_eq!(at, NOW),
            Next::OldPlace => prop_assert!(!decision.attempt.counted),
            Next::Cancelled => prop_assert_eq!(decision.attempt.retries_left, 0),
            Next::DeadLetter(reason) => {
                prop_assert_eq!(decision.attempt.retries_left, 0);
                if reason == DeadReason::Exhausted {
                    prop_assert!(decision.attempt.number > max_retries);
                }
            }
        }
    }
}

// ---- while the queue's breaker is not closed ----

#[test]
fn a_failure_during_an_outage_is_recorded_and_not_counted() {
    for state in BreakerState::ALL {
        // On its last attempt: it would die otherwise.
        let decision = Ended::during(state, progress(3)).decide(failed("Timeout"), &plain());
        assert_eq!((decision.attempt.counted, decision.progress.tries, decision.progress.uncounted), (false, 3, 1));
        // The delay of retry 4, which the policy has not got.
        assert_eq!((decision.next, decision.attempt.retries_left), (later(secs(8)), 0));
        let (error, error_type) = ("Timeout: it broke".into(), "Timeout".into());
        assert_eq!(decision.signal, Signal::Failure { error, error_type, unreachable: true });
    }
}

#[test]
fn the_signal_says_whether_what_was_called_could_be_reached() {
    for (error_type, reached) in [("ConnectionRefusedError", false), ("ServiceUnavailable", false), ("Bug", true)] {
        let Signal::Failure { unreachable, .. } = decided(0, failed(error_type), &plain()).signal else {
            panic!("{error_type} is no failure");
        };
        assert_eq!(unreachable, !reached, "{error_type}");
    }
}

#[test]
fn failures_that_do_not_count_wait_longer_and_longer_but_not_longer_than_a_probe_while_the_queue_is_held() {
    let delay = |state, tries, uncounted| {
        let worn = Progress { uncounted, ..progress(tries) };
        Ended::during(state, worn).decide(failed("Timeout"), &plain()).attempt.delay
    };
    let delays: Vec<_> = (0..7).map(|uncounted| delay(BreakerState::Recovering, 0, uncounted).unwrap()).collect();
    assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30].map(secs));
    assert_eq!(delay(BreakerState::Recovering, 2, 2), Some(secs(16)), "retry n = attempt + uncounted failures");
    for held in [BreakerState::Open, BreakerState::HalfOpen] {
        assert_eq!((delay(held, 0, 3), delay(held, 0, 60)), (Some(secs(8)), Some(secs(10))));
    }
    assert_eq!(delay(BreakerState::Open, u32::MAX - 1, u32::MAX - 1), Some(secs(10)));
}

#[test]
fn failures_count_again_once_the_outage_has_lasted_for_outage_grace() {
    let during = |hours: u64| {
        let uncounted_since = Some(Timestamp::from_millis(NOW.millis() + 86_400_000 - hours * 3_600_000));
        let worn = Progress { uncounted: 60, uncounted_since, ..progress(3) };
        let leased = delivery(4);
        let breaker = BreakerFacts { state: BreakerState::Open, ..BreakerFacts::default() };
        let leased = Leased { delivery: &leased, progress: &worn, policy: None, expires_at: None, breaker };
        decide(leased, failed("Timeout"), &plain(), NOW.after(secs(86_400)), RandomFractions::default())
    };
    let decision = during(23);
    assert_eq!((decision.attempt.counted, decision.progress.uncounted), (false, 61));
    assert_eq!(during(24).next, Next::DeadLetter(DeadReason::Exhausted));
}

#[test]
fn the_grace_begins_with_the_first_failure_that_did_not_count() {
    let open = |progress| Ended::during(BreakerState::Open, progress).decide(failed("Timeout"), &plain()).progress;
    let first = open(progress(0));
    assert_eq!(first.uncounted_since, Some(NOW));
    let since = Some(Timestamp::from_millis(5));
    assert_eq!(open(Progress { uncounted_since: since, ..first.clone() }).uncounted_since, since);
    assert_eq!(Ended::after(first).decide(failed("Timeout"), &plain()).progress.uncounted_since, None);
}

#[test]
fn an_expired_lease_and_a_hopeless_job_count_whatever_the_breaker() {
    let open = Ended::during(BreakerState::Open, progress(0));
    let decision = open.decide(Outcome::Expired, &plain());
    assert_eq!((decision.attempt.counted, decision.signal), (true, Signal::Expired));
    let decision = open.decide(failed("ValidationError"), &plain());
    assert_eq!(decision.next, Next::DeadLetter(DeadReason::NonRetryable));
    assert_eq!(decision.signal, Signal::None, "it says nothing about what the workers call");
}

#[test]
fn what_is_cancelled_says_nothing_to_the_breaker() {
    let cancelled = Progress { cancel_requested: true, ..progress(0) };
    let decision = Ended::during(BreakerState::HalfOpen, cancelled).decide(failed("Timeout"), &plain());
    assert_eq!((decision.next, decision.signal), (Next::Cancelled, Signal::None));
}

#[test]
fn a_hold_uses_up_no_release() {
    let queue = with_rules([(on_type("Busy"), Then::Hold)]);
    let before = Progress { releases: 100, ..progress(0) };
    let decision = Ended::after(before).decide(failed("Busy"), &queue);
    assert_eq!((decision.attempt.status, decision.progress.releases), (AttemptStatus::Released, 100));
}

#[test]
fn a_delivery_that_max_run_time_ends_says_so() {
    let longest = |max_run_time| QueueSettings { max_run_time, ..plain() };
    let error_type = |queue: &QueueSettings| {
        let decision = decided(0, Outcome::Expired, queue);
        (decision.attempt.status, decision.attempt.failure.unwrap().error_type)
    };
    assert_eq!(error_type(&longest(secs(3_600))), (AttemptStatus::LeaseExpired, "LeaseExpired".into()));
    assert_eq!(error_type(&longest(secs(1))), (AttemptStatus::LeaseExpired, "MaxRunTimeExceeded".into()));
}

#[test]
fn a_hold_waits_with_its_queue_or_alone() {
    let queue = with_rules([(on_type("Busy"), Then::Hold)]);
    for (counts_hold, next) in [(true, Next::Behind { at: NOW }), (false, later(secs(10)))] {
        let breaker = BreakerFacts { counts_hold, ..BreakerFacts::default() };
        let decision = Ended { breaker, ..Ended::after(progress(0)) }.decide(failed("Busy"), &queue);
        assert_eq!((decision.next, decision.attempt.counted), (next, false));
        let (error, error_type) = ("Busy: it broke".into(), "Busy".into());
        assert_eq!(decision.signal, Signal::Hold { error, error_type, hold: secs(10) });
    }
}

#[test]
fn a_hold_says_until_when_the_queue_is_held() {
    let queue = with_rules([(on_type("Busy"), Then::Hold)]);
    let (earlier, later) = (NOW.after(secs(5)), NOW.after(secs(90)));
    for (probe_at, until) in [(None, secs(10)), (Some(earlier), secs(10)), (Some(later), secs(90))] {
        let breaker = BreakerFacts { counts_hold: true, probe_at, ..BreakerFacts::default() };
        let decision = Ended { breaker, ..Ended::after(progress(0)) }.decide(failed("Busy"), &queue);
        let held = format!("the queue is held until {}; released behind its priority level", NOW.after(until));
        assert_eq!(decision.attempt.explanation, held);
    }
    let alone = Ended::after(progress(0)).decide(failed("Busy"), &queue);
    assert_eq!(alone.attempt.explanation, "released for 10s");
}
