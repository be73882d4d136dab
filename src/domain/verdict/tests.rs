use super::*;
use crate::domain::{
    glob::Glob,
    ids::QueueName,
    lease::Lease,
    policy::Jitter,
    presets::Preset,
    rules::{ErrorRule, Matcher, StatusPattern},
};
use proptest::prelude::*;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const EVEN: Chance = Chance { jitter: 0.5, spread: 0.5 };

fn delivery(attempt: u32) -> Delivery {
    Delivery {
        lease: Lease {
            queue: QueueName::parse("emails").unwrap(),
            number: 7,
            delivery: attempt,
            nonce: 9,
            flags: 0,
            epoch: 0,
            started_at: Timestamp::default(),
            duration_ms: 0,
            own_id: None,
        },
        attempt,
        worker_id: "worker-1".into(),
        started_at: Timestamp::from_millis(990_000),
        expires_at: Timestamp::from_millis(1_020_000),
        duration: Duration::from_secs(30),
        probe: false,
    }
}

fn progress(tries: u32) -> Progress {
    Progress { tries, deliveries: tries + 1, ..Progress::default() }
}

/// `standard` without jitter: 1 s, 2 s, 4 s, three retries.
fn plain() -> QueueSettings {
    let mut queue = QueueSettings::default();
    queue.policy.jitter = Jitter::None;
    queue
}

fn failed(error_type: &str) -> Ending {
    let failure = Failure::new(error_type, "it broke");
    Ending::Failed { failure, permanent: false, retry_after: None }
}

fn judge_at(tries: u32, ending: Ending, queue: &QueueSettings) -> Verdict {
    judge_job(&progress(tries), None, None, ending, queue)
}

fn judge_job(
    progress: &Progress,
    policy: Option<&PolicyOverride>,
    expires_at: Option<Timestamp>,
    ending: Ending,
    queue: &QueueSettings,
) -> Verdict {
    let delivery = delivery(progress.tries + 1);
    let leased =
        Leased { delivery: &delivery, progress, policy, expires_at, breaker: Standing::default() };
    judge(leased, ending, queue, NOW, EVEN)
}

fn rule(matcher: Matcher, then: Then) -> ErrorRule {
    ErrorRule::at(0, matcher, then)
}

fn on_type(glob: &str) -> Matcher {
    Matcher { error_type: Some(Glob::new(glob)), ..Matcher::default() }
}

#[test]
fn three_retries_are_four_attempts() {
    let queue = plain();
    for (tries, delay, left) in [(0, 1_000, 3), (1, 2_000, 2), (2, 4_000, 1)] {
        let verdict = judge_at(tries, failed("Timeout"), &queue);
        let at = NOW.after(Duration::from_millis(delay));
        assert_eq!(verdict.next, Next::Later { at });
        assert_eq!(verdict.attempt.retries_left, left);
        assert_eq!(verdict.attempt.delay, Some(Duration::from_millis(delay)));
        assert_eq!(verdict.progress.tries, tries + 1);
        assert!(verdict.attempt.counted);
    }
    let verdict = judge_at(3, failed("Timeout"), &queue);
    assert_eq!(verdict.next, Next::Bury(DeadReason::Exhausted));
    assert_eq!(verdict.attempt.retries_left, 0);
    assert_eq!(verdict.attempt.delay, None);
}

#[test]
fn one_shot_dies_with_its_first_failure() {
    let mut queue = plain();
    queue.policy = Preset::OneShot.policy();
    assert_eq!(judge_at(0, failed("Timeout"), &queue).next, Next::Bury(DeadReason::Exhausted));
}

#[test]
fn a_permanent_failure_comes_before_all_rules() {
    let mut queue = plain();
    queue.rules = vec![rule(on_type("*"), Then::Release)];
    let failure = Failure::new("Timeout", "");
    let ending = Ending::Failed { failure, permanent: true, retry_after: None };
    let verdict = judge_at(0, ending, &queue);
    assert_eq!(verdict.next, Next::Bury(DeadReason::NonRetryable));
    assert_eq!(verdict.attempt.rule, "");
    assert!(verdict.attempt.counted);
}

#[test]
fn the_default_rules_bury_what_never_heals() {
    let types =
        ["ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"];
    for error_type in types {
        let verdict = judge_at(0, failed(error_type), &plain());
        assert_eq!(verdict.next, Next::Bury(DeadReason::NonRetryable), "{error_type}");
        assert!(verdict.attempt.rule.contains(error_type), "{}", verdict.attempt.rule);
    }
    let without = QueueSettings { default_rules: Vec::new(), ..plain() };
    let verdict = judge_at(0, failed("ValidationError"), &without);
    assert!(matches!(verdict.next, Next::Later { .. }));
}

#[test]
fn the_first_rule_that_fits_decides_and_own_rules_come_first() {
    let mut queue = plain();
    queue.rules = vec![
        rule(
            on_type("Valid*"),
            Then::Policy(PolicyOverride {
                base_delay: Some(Duration::from_secs(9)),
                ..PolicyOverride::default()
            }),
        ),
        rule(on_type("*"), Then::DeadLetter),
    ];
    let verdict = judge_at(0, failed("ValidationError"), &queue);
    assert_eq!(verdict.attempt.delay, Some(Duration::from_secs(9)));
    assert_eq!(judge_at(0, failed("Other"), &queue).next, Next::Bury(DeadReason::NonRetryable));
}

#[test]
fn job_over_rule_over_queue_field_by_field() {
    let mut queue = plain();
    queue.policy.max_delay = Duration::from_secs(60);
    queue.rules = vec![rule(
        on_type("*"),
        Then::Policy(PolicyOverride {
            base_delay: Some(Duration::from_secs(9)),
            max_retries: Some(7),
            ..PolicyOverride::default()
        }),
    )];
    let job = PolicyOverride { max_retries: Some(5), ..PolicyOverride::default() };
    let verdict = judge_job(&progress(0), Some(&job), None, failed("E"), &queue);
    assert_eq!(verdict.attempt.delay, Some(Duration::from_secs(9)));
    assert_eq!(verdict.attempt.retries_left, 5);
}

#[test]
fn an_action_applies_whatever_policy_the_job_carries() {
    let mut queue = plain();
    let status = StatusPattern::parse("4xx").unwrap();
    queue.rules =
        vec![rule(Matcher { http_status: Some(status), ..Matcher::default() }, Then::DeadLetter)];
    let job = PolicyOverride { max_retries: Some(100), ..PolicyOverride::default() };
    let failure = Failure { http_status: 418, ..Failure::new("Teapot", "") };
    let ending = Ending::Failed { failure, permanent: false, retry_after: None };
    let verdict = judge_job(&progress(0), Some(&job), None, ending, &queue);
    assert_eq!(verdict.next, Next::Bury(DeadReason::NonRetryable));
}

#[test]
fn a_rule_that_releases_does_not_count_the_attempt_but_keeps_the_failure() {
    let mut queue = plain();
    queue.rules = vec![rule(on_type("Busy"), Then::Release)];
    let verdict = judge_at(2, failed("Busy"), &queue);
    assert_eq!(verdict.next, Next::Behind { at: NOW });
    assert!(!verdict.attempt.counted);
    assert_eq!(verdict.progress.tries, 2);
    assert_eq!(verdict.attempt.failure.unwrap().error_type, "Busy");
}

#[test]
fn a_hold_without_a_breaker_releases_the_job_for_the_time_asked() {
    let mut queue = plain();
    queue.rules = vec![rule(on_type("*"), Then::Hold)];
    let verdict = judge_at(0, failed("TooManyRequests"), &queue);
    assert_eq!(verdict.next, Next::Later { at: NOW.after(Duration::from_secs(60)) });
    let failure = Failure::new("TooManyRequests", "");
    let retry_after = Some(Duration::from_secs(5));
    let ending = Ending::Failed { failure, permanent: false, retry_after };
    let verdict = judge_at(0, ending, &queue);
    assert_eq!(verdict.next, Next::Later { at: NOW.after(Duration::from_secs(5)) });
    assert!(!verdict.attempt.counted);
}

#[test]
fn retry_after_stretches_the_delay_but_never_shortens_it() {
    let queue = plain();
    let with = |seconds| {
        let failure = Failure::new("E", "");
        let retry_after = Some(Duration::from_secs(seconds));
        let ending = Ending::Failed { failure, permanent: false, retry_after };
        judge_at(1, ending, &queue).attempt.delay.unwrap()
    };
    assert_eq!(with(1), Duration::from_secs(2));
    assert_eq!(with(100), Duration::from_secs(105));
    assert_eq!(with(1_000_000), Duration::from_secs(3_600).mul_f64(1.05));
}

#[test]
fn a_retry_after_the_deadline_dies_now() {
    let queue = plain();
    let ending = || failed("E");
    let soon = Some(NOW.after(Duration::from_millis(1_000)));
    let verdict = judge_job(&progress(0), None, soon, ending(), &queue);
    assert_eq!(verdict.next, Next::Bury(DeadReason::WouldMissDeadline));
    let just = Some(NOW.after(Duration::from_millis(1_001)));
    let verdict = judge_job(&progress(0), None, just, ending(), &queue);
    assert!(matches!(verdict.next, Next::Later { .. }));
    let verdict = judge_job(&progress(0), None, Some(NOW), ending(), &queue);
    assert_eq!(verdict.next, Next::Bury(DeadReason::Expired));
    let cleared = Progress { deadline_cleared: true, ..progress(0) };
    let verdict = judge_job(&cleared, None, Some(NOW), ending(), &queue);
    assert!(matches!(verdict.next, Next::Later { .. }));
}

#[test]
fn a_release_goes_behind_its_level_or_waits_for_the_time_asked() {
    let queue = plain();
    let verdict = judge_at(1, Ending::Released { retry_after: None }, &queue);
    assert_eq!(verdict.next, Next::Behind { at: NOW });
    assert_eq!(verdict.attempt.status, AttemptStatus::Released);
    assert_eq!((verdict.progress.releases, verdict.progress.tries), (1, 1));
    let retry_after = Some(Duration::from_secs(8));
    let verdict = judge_at(1, Ending::Released { retry_after }, &queue);
    assert_eq!(verdict.next, Next::Later { at: NOW.after(Duration::from_secs(8)) });
}

#[test]
fn the_hundred_and_first_release_is_a_failure() {
    let queue = plain();
    let release = |releases| {
        let progress = Progress { releases, ..progress(0) };
        judge_job(&progress, None, None, Ending::Released { retry_after: None }, &queue)
    };
    assert!(!release(99).attempt.counted);
    let verdict = release(100);
    assert_eq!(verdict.attempt.failure.unwrap().error_type, "ReleaseLimit");
    assert!(verdict.attempt.counted);
    assert_eq!(verdict.next, Next::Later { at: NOW.after(Duration::from_secs(1)) });
}

#[test]
fn the_release_limit_is_a_failure_by_the_rules_and_names_its_cause() {
    let mut queue = plain();
    queue.rules = vec![rule(on_type("Busy"), Then::Release)];
    let spent = Progress { releases: 100, ..progress(0) };
    let verdict = judge_job(&spent, None, None, failed("Busy"), &queue);
    let failure = verdict.attempt.failure.unwrap();
    assert_eq!(failure.error_type, "ReleaseLimit");
    assert!(failure.message.contains("Busy: it broke"), "{}", failure.message);
    queue.rules.push(rule(on_type("ReleaseLimit"), Then::DeadLetter));
    let verdict = judge_job(&spent, None, None, failed("Busy"), &queue);
    assert_eq!(verdict.next, Next::Bury(DeadReason::NonRetryable));
}

#[test]
fn an_expired_lease_is_a_failure_by_the_same_rules() {
    let mut queue = plain();
    let verdict = judge_at(0, Ending::Expired, &queue);
    assert_eq!(verdict.attempt.status, AttemptStatus::LeaseExpired);
    assert!(verdict.attempt.counted && !verdict.attempt.nacked);
    let failure = verdict.attempt.failure.unwrap();
    assert_eq!(failure.error_type, "LeaseExpired");
    assert!(failure.message.contains("worker-1"), "{}", failure.message);
    queue.rules = vec![rule(on_type("LeaseExpired"), Then::DeadLetter)];
    let verdict = judge_at(0, Ending::Expired, &queue);
    assert_eq!(verdict.next, Next::Bury(DeadReason::NonRetryable));
}

#[test]
fn a_job_that_keeps_killing_its_workers_fails_at_the_fourth_interruption() {
    let queue = plain();
    let interrupt = |interruptions| {
        let progress = Progress { interruptions, ..progress(0) };
        judge_job(&progress, None, None, Ending::Interrupted, &queue)
    };
    let verdict = interrupt(2);
    assert_eq!(verdict.next, Next::OldPlace);
    assert_eq!(verdict.attempt.status, AttemptStatus::Interrupted);
    assert_eq!(verdict.progress.tries, 0);
    let verdict = interrupt(3);
    assert_eq!(verdict.attempt.failure.unwrap().error_type, "LeaseExpired");
    assert_eq!(verdict.progress.tries, 1);
    assert!(matches!(verdict.next, Next::Later { .. }));
}

#[test]
fn a_cancelled_job_dies_however_its_delivery_ends() {
    let cancelled = Progress { cancel_requested: true, ..progress(0) };
    let endings =
        [failed("E"), Ending::Released { retry_after: None }, Ending::Expired, Ending::Interrupted];
    for ending in endings {
        let verdict = judge_job(&cancelled, None, None, ending, &plain());
        assert_eq!(verdict.next, Next::Bury(DeadReason::Cancelled));
        assert_eq!(verdict.attempt.status, AttemptStatus::Cancelled);
    }
}

fn endings() -> impl Strategy<Value = Ending> {
    let retry_after = || prop::option::of((0u64..10_000_000).prop_map(Duration::from_millis));
    prop_oneof![
        ("[A-Z][a-z]{0,8}", any::<bool>(), retry_after()).prop_map(
            |(error_type, permanent, retry_after)| Ending::Failed {
                failure: Failure::new(&error_type, "m"),
                permanent,
                retry_after,
            }
        ),
        retry_after().prop_map(|retry_after| Ending::Released { retry_after }),
        Just(Ending::Expired),
        Just(Ending::Interrupted),
    ]
}

proptest! {
    /// Whatever happens: nothing is early, counts only grow, and a job in hope has retries left to show for it.
    #[test]
    fn every_verdict_is_sound(
        ending in endings(), tries in 0u32..1_010, releases in 0u32..102,
        interruptions in 0u32..5, max_retries in 0u32..1_000,
        deadline in prop::option::of(0u64..4_000_000), jitter in 0.0f64..1.0, spread in 0.0f64..1.0
    ) {
        let before = Progress { releases, interruptions, ..progress(tries) };
        let job = PolicyOverride { max_retries: Some(max_retries), ..PolicyOverride::default() };
        let expires_at = deadline.map(Timestamp::from_millis);
        let delivery = delivery(tries + 1);
        let leased =
            Leased { delivery: &delivery, progress: &before, policy: Some(&job), expires_at, breaker: Standing::default() };
        let verdict = judge(leased, ending, &plain(), NOW, Chance { jitter, spread });
        let after = &verdict.progress;
        prop_assert_eq!(after.deliveries, before.deliveries);
        prop_assert_eq!(after.recorded, before.recorded + 1);
        prop_assert_eq!(after.tries, tries + u32::from(verdict.attempt.counted));
        prop_assert_eq!(verdict.attempt.next, verdict.next);
        match verdict.next {
            Next::Later { at } => {
                prop_assert!(at >= NOW);
                if verdict.attempt.counted {
                    prop_assert!(verdict.attempt.number <= max_retries);
                    prop_assert!(expires_at.is_none_or(|deadline| at < deadline));
                    prop_assert_eq!(
                        verdict.attempt.retries_left,
                        max_retries + 1 - verdict.attempt.number
                    );
                }
            }
            Next::Behind { at } => prop_assert_eq!(at, NOW),
            Next::OldPlace => prop_assert!(!verdict.attempt.counted),
            Next::Bury(reason) => {
                prop_assert_eq!(verdict.attempt.retries_left, 0);
                if reason == DeadReason::Exhausted {
                    prop_assert!(verdict.attempt.number > max_retries);
                }
            }
        }
    }
}

// ---- while the queue's breaker is not closed ----

fn judge_in(state: BreakerState, progress: &Progress, ending: Ending) -> Verdict {
    let (delivery, breaker) = (delivery(progress.tries + 1), Standing { state, heeds_hold: true });
    let leased = Leased { delivery: &delivery, progress, policy: None, expires_at: None, breaker };
    judge(leased, ending, &plain(), NOW, EVEN)
}

#[test]
fn a_failure_during_an_outage_is_recorded_and_not_counted() {
    for state in [BreakerState::Open, BreakerState::HalfOpen] {
        // On its last attempt: it would die otherwise.
        let verdict = judge_in(state, &progress(3), failed("Timeout"));
        assert_eq!((verdict.attempt.counted, verdict.progress.tries), (false, 3));
        assert_eq!(verdict.progress.uncounted, 1);
        // The delay of retry 4, which the policy has not got.
        assert_eq!(verdict.next, Next::Later { at: NOW.after(Duration::from_secs(8)) });
        assert_eq!(verdict.attempt.retries_left, 0);
        assert_eq!(verdict.signal, Signal::Failure { error: "Timeout: it broke".into() });
    }
}

#[test]
fn after_sixty_of_them_failures_count_again() {
    let worn = Progress { uncounted: UNCOUNTED_MAX, ..progress(3) };
    let verdict = judge_in(BreakerState::Open, &worn, failed("Timeout"));
    assert_eq!(verdict.next, Next::Bury(DeadReason::Exhausted));
    let nearly = Progress { uncounted: UNCOUNTED_MAX - 1, ..progress(3) };
    let verdict = judge_in(BreakerState::Open, &nearly, failed("Timeout"));
    assert_eq!(verdict.progress.uncounted, UNCOUNTED_MAX);
}

#[test]
fn an_expired_lease_and_a_hopeless_job_count_whatever_the_breaker() {
    let verdict = judge_in(BreakerState::Open, &progress(0), Ending::Expired);
    assert!(verdict.attempt.counted);
    assert_eq!(verdict.signal, Signal::Expired);
    let verdict = judge_in(BreakerState::Open, &progress(0), failed("ValidationError"));
    assert_eq!(verdict.next, Next::Bury(DeadReason::NonRetryable));
    assert_eq!(verdict.signal, Signal::None, "it says nothing about what the workers call");
}

#[test]
fn what_is_cancelled_says_nothing_to_the_breaker() {
    let cancelled = Progress { cancel_requested: true, ..progress(0) };
    let verdict = judge_in(BreakerState::HalfOpen, &cancelled, failed("Timeout"));
    assert_eq!(verdict.next, Next::Bury(DeadReason::Cancelled));
    assert_eq!(verdict.signal, Signal::None);
}

#[test]
fn a_hold_waits_with_its_queue_or_alone() {
    let mut queue = plain();
    queue.rules = vec![rule(on_type("Busy"), Then::Hold)];
    let delivery = delivery(1);
    for (heeds_hold, next) in [
        (true, Next::Behind { at: NOW }),
        (false, Next::Later { at: NOW.after(Duration::from_secs(60)) }),
    ] {
        let breaker = Standing { state: BreakerState::Closed, heeds_hold };
        let progress = progress(0);
        let leased = Leased {
            delivery: &delivery,
            progress: &progress,
            policy: None,
            expires_at: None,
            breaker,
        };
        let verdict = judge(leased, failed("Busy"), &queue, NOW, EVEN);
        assert_eq!((verdict.next, verdict.attempt.counted), (next, false));
        let hold = Duration::from_secs(60);
        assert_eq!(verdict.signal, Signal::Hold { error: "Busy: it broke".into(), hold });
    }
}
