use super::{ms, secs};
use proptest::{prelude::*, sample::select, strategy::Strategy as Generator};
// proptest's prelude has a `Strategy` too: by name, ours is meant.
use redrive::domain::{Jitter, LONGEST_DELAY, MAX_RETRIES, Preset, RetryPolicy, Strategy};
use std::time::Duration;

fn policy(strategy: Strategy, jitter: Jitter) -> RetryPolicy {
    RetryPolicy { strategy, jitter, ..RetryPolicy::default() }
}

fn explained(policy: &RetryPolicy, n: u32, unit: f64) -> String {
    policy.backoff(n, None, unit).explanation
}

#[test]
fn each_strategy_grows_as_its_formula_says() {
    let delays = vec![secs(9), secs(3), secs(20)];
    for (strategy, expected) in [
        (Strategy::Exponential, [1, 2, 4, 8, 16, 30]),
        (Strategy::Linear, [1, 2, 3, 4, 5, 6]),
        (Strategy::Fixed, [1, 1, 1, 1, 1, 1]),
        (Strategy::Fibonacci, [1, 1, 2, 3, 5, 8]),
        (Strategy::List, [9, 3, 20, 20, 20, 20]),
    ] {
        let policy = RetryPolicy { delays: delays.clone(), ..policy(strategy, Jitter::None) };
        for (n, seconds) in (1..).zip(expected) {
            let backoff = policy.backoff(n, None, 0.7);
            assert_eq!(backoff.computed, secs(seconds), "{strategy:?} {n}");
            assert_eq!(backoff.delay, secs(seconds), "{strategy:?} {n}");
        }
    }
}

#[test]
fn fibonacci_goes_on_until_it_passes_the_longest_delay() {
    let with_base =
        |base_delay| RetryPolicy { base_delay, max_delay: LONGEST_DELAY, ..policy(Strategy::Fibonacci, Jitter::None) };
    assert_eq!(with_base(ms(1)).bounds(30).0, ms(832_040));
    assert_eq!(with_base(ms(1)).bounds(50).0, ms(12_586_269_025));
    let least = with_base(Duration::from_nanos(1));
    assert_eq!(least.bounds(99).0, LONGEST_DELAY);
    assert_eq!(least.bounds(u32::MAX).0, LONGEST_DELAY);
}

#[test]
fn each_jitter_spreads_as_its_formula_says() {
    // The second retry of the standard policy: d = 2 s.
    for (jitter, min, half, max) in [
        (Jitter::None, 2_000, 2_000, 2_000),
        (Jitter::Proportional, 2_000, 2_250, 2_500),
        (Jitter::Symmetric, 1_500, 2_000, 2_500),
        (Jitter::Full, 0, 1_000, 2_000),
        (Jitter::Equal, 1_000, 1_500, 2_000),
        (Jitter::Additive, 2_000, 2_500, 3_000),
    ] {
        let policy = policy(Strategy::Exponential, jitter);
        assert_eq!(policy.bounds(2), (secs(2), ms(min), ms(max)), "{jitter:?}");
        assert_eq!(policy.backoff(2, None, 0.0).delay, ms(min), "{jitter:?}");
        assert_eq!(policy.backoff(2, None, 0.5).delay, ms(half), "{jitter:?}");
        assert_eq!(policy.backoff(2, None, 0.999_999_9).delay, ms(max), "{jitter:?}");
    }
}

#[test]
fn proportional_and_symmetric_jitter_may_pass_the_cap_but_additive_may_not() {
    for (jitter, max) in [
        (Jitter::Proportional, ms(37_500)),
        (Jitter::Symmetric, ms(37_500)),
        (Jitter::Additive, secs(30)),
        (Jitter::Full, secs(30)),
        (Jitter::Equal, secs(30)),
    ] {
        assert_eq!(policy(Strategy::Exponential, jitter).bounds(9).2, max, "{jitter:?}");
    }
}

#[test]
fn decorrelated_jitter_grows_from_the_delay_it_chose_last() {
    for strategy in Strategy::ALL {
        let policy = policy(strategy, Jitter::Decorrelated);
        let first = policy.backoff(1, None, 0.5);
        assert_eq!((first.computed, first.delay), (secs(2), secs(2)));
        let second = policy.backoff(2, Some(first.computed), 0.6);
        assert_eq!((second.computed, second.delay), (secs(4), secs(4)));
        let third = policy.backoff(3, Some(secs(20)), 0.9);
        assert_eq!((third.computed, third.delay), (secs(30), secs(30)), "capped after jitter");
        let low = policy.backoff(4, Some(ms(1)), 0.9);
        assert_eq!(low.delay, secs(1), "never below the base");
    }
}

#[test]
fn the_bounds_of_decorrelated_jitter_are_the_worst_case_so_far() {
    let policy = policy(Strategy::Exponential, Jitter::Decorrelated);
    for (n, most) in (1..).zip([3, 9, 27, 30, 30]) {
        assert_eq!(policy.bounds(n), (secs(1), secs(1), secs(most)));
    }
}

#[test]
fn rounding_up_again_and_again_does_not_pass_the_bounds() {
    let base_delay = Duration::from_micros(100_900);
    let policy = RetryPolicy { base_delay, ..policy(Strategy::Fixed, Jitter::Decorrelated) };
    let mut previous = None;
    for n in 1..=8 {
        let backoff = policy.backoff(n, previous, 0.999_999_999);
        assert_eq!(backoff.delay, policy.bounds(n).2, "retry {n}");
        previous = Some(backoff.computed);
    }
}

#[test]
fn every_delay_is_explained_in_one_line() {
    let standard = RetryPolicy::default();
    let with = |strategy, jitter| policy(strategy, jitter);
    let list = RetryPolicy { delays: vec![secs(1), secs(5), secs(60)], ..with(Strategy::List, Jitter::None) };
    for (policy, n, unit, line) in [
        (&standard, 2, 0.62, "exponential: 1s × 2^1 = 2s, proportional jitter up to 25% → 2.31s"),
        (
            &with(Strategy::Exponential, Jitter::Full),
            10,
            0.413_333,
            "exponential: 1s × 2^9 = 8m32s, capped at 30s, full jitter → 12.4s",
        ),
        (&with(Strategy::Exponential, Jitter::None), 1_000, 0.0, "exponential: 1s × 2^999, capped at 30s"),
        (&Preset::ChronosLinear.policy(), 3, 0.5, "linear: 1m × 3 = 3m, symmetric jitter ±20% → 3m"),
        (&with(Strategy::Fixed, Jitter::Equal), 7, 0.0, "fixed: 1s, equal jitter → 500ms"),
        (
            &with(Strategy::Fibonacci, Jitter::Additive),
            5,
            0.5,
            "fibonacci: 1s × fib(5) = 5s, additive jitter up to 1s → 5.5s",
        ),
        (&list, 2, 0.0, "list: delay 2 of 3 = 5s"),
        (&list, 3, 0.0, "list: delay 3 of 3 = 1m, capped at 30s"),
        (&list, 4, 0.0, "list: the last of 3, repeated = 1m, capped at 30s"),
        (&with(Strategy::Exponential, Jitter::Decorrelated), 1, 0.5, "decorrelated jitter: 1s to 3s (3 × 1s) → 2s"),
    ] {
        assert_eq!(explained(policy, n, unit), line);
    }
    let later = with(Strategy::Fixed, Jitter::Decorrelated).backoff(3, Some(secs(12)), 0.5);
    assert_eq!(later.explanation, "decorrelated jitter: 1s to 36s (3 × 12s), capped at 30s → 18.5s");
}

#[test]
fn the_horizon_says_how_long_a_policy_keeps_trying() {
    let fixed = policy(Strategy::Fixed, Jitter::None);
    assert_eq!(RetryPolicy::default().horizon(), "4 attempts over 7s to 8.75s");
    assert_eq!(Preset::FullJitter.policy().horizon(), "4 attempts over 0s to 3.5s");
    assert_eq!(Preset::OneShot.policy().horizon(), "1 attempt, no retries");
    assert_eq!(fixed.horizon(), "4 attempts over 3s");
}

#[test]
fn a_policy_that_was_never_validated_is_still_safe() {
    for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0] {
        for strategy in Strategy::ALL {
            for jitter in Jitter::ALL {
                let policy = RetryPolicy {
                    max_retries: u32::MAX,
                    base_delay: Duration::MAX,
                    max_delay: Duration::MAX,
                    jitter_max: Duration::MAX,
                    factor: wrong,
                    jitter_fraction: wrong,
                    ..policy(strategy, jitter)
                };
                for n in [0, 1, 2, u32::MAX] {
                    let backoff = policy.backoff(n, Some(Duration::MAX), wrong);
                    assert!(backoff.delay <= LONGEST_DELAY);
                }
                assert!(policy.total_bounds().1 <= LONGEST_DELAY * MAX_RETRIES);
            }
        }
    }
}

#[test]
fn no_base_means_no_delay_however_large_n_is() {
    for strategy in [Strategy::Exponential, Strategy::Linear, Strategy::Fibonacci] {
        let policy = RetryPolicy { base_delay: Duration::ZERO, ..policy(strategy, Jitter::None) };
        assert_eq!(policy.backoff(u32::MAX, None, 0.5).delay, Duration::ZERO);
    }
}

/// Any policy that passes validation.
fn valid_policy() -> impl Generator<Value = RetryPolicy> {
    // Mostly short delays, sometimes anything up to the limit, down to the nanosecond.
    let delay = || {
        let limit = LONGEST_DELAY.as_nanos() as u64;
        prop_oneof![0..=2_000_000_000_u64, 0..=limit].prop_map(Duration::from_nanos)
    };
    (
        (0..=MAX_RETRIES, select(Strategy::ALL.as_slice()), delay(), 1.0..=1_000.0),
        (delay(), prop::collection::vec(delay(), 1..5), select(Jitter::ALL.as_slice())),
        (0.0..=1.0, delay()),
    )
        .prop_map(|((max_retries, strategy, base_delay, factor), list, (f, t))| RetryPolicy {
            max_retries,
            strategy,
            base_delay,
            factor,
            max_delay: list.0,
            delays: list.1,
            jitter: list.2,
            jitter_fraction: f,
            jitter_max: t,
        })
}

fn retry_number() -> impl Generator<Value = u32> {
    prop_oneof![8 => 1..=1_000_u32, 1 => any::<u32>()]
}

/// Any random number a caller can draw, both ends included.
fn unit() -> impl Generator<Value = f64> {
    prop_oneof![2 => 0.0..1.0, 1 => Just(0.0), 1 => Just(0.999_999_9)]
}

proptest! {
    #[test]
    fn every_delay_is_within_its_bounds(
        policy in valid_policy(), n in retry_number(), unit in unit(),
    ) {
        // Without a previous delay, decorrelated jitter stands at its first retry.
        let n = if policy.jitter == Jitter::Decorrelated { 1 } else { n };
        let (d, min, max) = policy.bounds(n);
        let backoff = policy.backoff(n, None, unit);
        prop_assert!(min <= backoff.delay && backoff.delay <= max);
        prop_assert!(min <= d && d <= max);
        prop_assert!(max <= LONGEST_DELAY);
        if policy.jitter != Jitter::Decorrelated {
            prop_assert_eq!(backoff.computed, d);
        }
        prop_assert!(!backoff.explanation.contains('\n'));
        prop_assert!(!backoff.explanation.contains("NaN"));
    }

    #[test]
    fn a_chain_of_decorrelated_delays_stays_within_its_bounds(
        policy in valid_policy(), units in prop::collection::vec(unit(), 1..30),
    ) {
        let policy = RetryPolicy { jitter: Jitter::Decorrelated, ..policy };
        let mut previous = None;
        for (n, unit) in (1..).zip(units) {
            let backoff = policy.backoff(n, previous, unit);
            let (_, min, max) = policy.bounds(n);
            prop_assert!(min <= backoff.delay && backoff.delay <= max, "{} {:?}", n, backoff);
            previous = Some(backoff.computed);
        }
    }

    #[test]
    fn the_cap_holds_before_jitter_and_where_promised_after_it(
        policy in valid_policy(), n in retry_number(), unit in unit(),
    ) {
        let backoff = policy.backoff(n, None, unit);
        let cap = ms((policy.max_delay.as_nanos() as f64 / 1e6).round() as u64);
        prop_assert!(backoff.computed <= cap);
        if !matches!(policy.jitter, Jitter::Proportional | Jitter::Symmetric) {
            prop_assert!(backoff.delay <= cap);
        }
    }

    #[test]
    fn bounds_never_shrink_from_one_retry_to_the_next(
        policy in valid_policy(), n in 1..1_000_u32,
    ) {
        // A list goes up and down as its author likes.
        let policy = match policy.strategy {
            Strategy::List => RetryPolicy { strategy: Strategy::Fibonacci, ..policy },
            _ => policy,
        };
        let (d, min, max) = policy.bounds(n);
        let (next_d, next_min, next_max) = policy.bounds(n + 1);
        prop_assert!(d <= next_d && min <= next_min && max <= next_max);
    }

    #[test]
    fn more_luck_never_means_a_shorter_delay(
        policy in valid_policy(), n in retry_number(), a in unit(), b in unit(),
    ) {
        let delay = |unit| policy.backoff(n, None, unit).delay;
        prop_assert!(delay(a.min(b)) <= delay(a.max(b)));
    }

    #[test]
    fn totals_are_the_sums_of_the_rows(policy in valid_policy()) {
        let rows = (1..=policy.max_retries).map(|n| policy.bounds(n));
        let sum = rows.fold((Duration::ZERO, Duration::ZERO), |t, r| (t.0 + r.1, t.1 + r.2));
        prop_assert_eq!(policy.total_bounds(), sum);
    }
}
