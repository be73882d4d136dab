//! How long a job waits before its next retry, why, and within which bounds.
//!
//! Everything here is safe for every retry number and every policy, also one that nobody validated:
//! a delay is between zero and [`LONGEST_DELAY`], in whole milliseconds.

use std::time::Duration;

use super::duration::human;
use super::policy::{Jitter, LONGEST_DELAY, MAX_RETRIES, RetryPolicy, Strategy};

/// The delay before one retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After `max_delay`, before jitter; with decorrelated jitter, which grows from the delay it
    /// chose last time, that delay.
    pub computed: Duration,
    pub delay: Duration,
    /// One line for people: how the delay came about.
    pub explanation: String,
}

impl RetryPolicy {
    /// The delay before retry `n`, the first being 1. `unit` is a random number in [0, 1);
    /// `previous` is what was `computed` for the retry before.
    pub fn backoff(&self, n: u32, previous: Option<Duration>, unit: f64) -> Backoff {
        let grown_ms = self.grown_ms(n);
        let d_ms = grown_ms.min(self.cap_ms());
        let previous_ms = previous.map_or_else(|| to_ms(self.base_delay), to_ms);
        let spread = self.spread(d_ms, previous_ms);
        let delay = from_ms(spread.at(unit));

        if self.jitter == Jitter::Decorrelated {
            let explanation = self.explain_decorrelated(previous_ms, &spread, delay);
            return Backoff {
                computed: delay,
                delay,
                explanation,
            };
        }
        let explanation = self.explain(n.max(1), grown_ms, delay);
        Backoff {
            computed: from_ms(d_ms),
            delay,
            explanation,
        }
    }

    /// For retry `n`: the delay before jitter, the shortest and the longest after it. Decorrelated
    /// jitter has nothing before it but the base, and its longest delay is the one that follows
    /// when every earlier one was the longest.
    pub fn bounds(&self, n: u32) -> (Duration, Duration, Duration) {
        let d_ms = self.grown_ms(n).min(self.cap_ms());
        let spread = self.spread(d_ms, self.longest_previous_ms(n, d_ms));
        (
            from_ms(d_ms),
            from_ms(spread.at(0.0)),
            from_ms(spread.at(1.0)),
        )
    }

    /// The longest delay that decorrelated jitter can have chosen before retry `n`, step by step
    /// because each step is rounded. It triples until it stands still at the cap, so few steps do.
    fn longest_previous_ms(&self, n: u32, d_ms: f64) -> f64 {
        let mut previous_ms = to_ms(self.base_delay);
        for _ in 1..n {
            let next_ms = to_ms(from_ms(self.spread(d_ms, previous_ms).at(1.0)));
            if next_ms == previous_ms {
                break;
            }
            previous_ms = next_ms;
        }
        previous_ms
    }

    /// The shortest and the longest time between the first failure and the last retry.
    pub fn total_bounds(&self) -> (Duration, Duration) {
        // The limit keeps a policy that was never validated from looping for minutes.
        (1..=self.max_retries.min(MAX_RETRIES))
            .map(|n| self.bounds(n))
            .fold(
                (Duration::ZERO, Duration::ZERO),
                |(least, most), (_, min, max)| {
                    (least.saturating_add(min), most.saturating_add(max))
                },
            )
    }

    /// How long the policy keeps trying, for people: `4 attempts over 7s to 8.75s`.
    pub fn horizon(&self) -> String {
        if self.max_retries == 0 {
            return "1 attempt, no retries".into();
        }
        let attempts = u64::from(self.max_retries) + 1;
        match self.total_bounds() {
            (least, most) if least == most => format!("{attempts} attempts over {}", human(most)),
            (least, most) => {
                format!(
                    "{attempts} attempts over {} to {}",
                    human(least),
                    human(most)
                )
            }
        }
    }

    /// What the strategy says for retry `n`, before `max_delay`.
    fn grown_ms(&self, n: u32) -> f64 {
        let n = n.max(1);
        let base = to_ms(self.base_delay);
        sane(match self.strategy {
            _ if self.jitter == Jitter::Decorrelated => base,
            // `max` also turns NaN into 1.
            Strategy::Exponential => base * self.factor.max(1.0).powf(f64::from(n - 1)),
            Strategy::Linear => base * f64::from(n),
            Strategy::Fixed => base,
            Strategy::Fibonacci => base * fibonacci(n),
            Strategy::List => self.listed(n).map_or(base, to_ms),
        })
    }

    fn listed(&self, n: u32) -> Option<Duration> {
        self.delays
            .get(n as usize - 1)
            .or_else(|| self.delays.last())
            .copied()
    }

    fn cap_ms(&self) -> f64 {
        sane(to_ms(self.max_delay))
    }

    fn spread(&self, d: f64, previous: f64) -> Spread {
        let f = fraction(self.jitter_fraction);
        let (low, high) = match self.jitter {
            Jitter::None => (d, d),
            Jitter::Proportional => (d, d * (1.0 + f)),
            Jitter::Symmetric => (d * (1.0 - f), d * (1.0 + f)),
            Jitter::Full => (0.0, d),
            Jitter::Equal => (d / 2.0, d),
            // Another policy may have chosen a previous delay far below this base.
            Jitter::Decorrelated => (d, (3.0 * previous).max(d)),
            Jitter::Additive => (d, d + to_ms(self.jitter_max)),
        };
        let ceiling = match self.jitter {
            Jitter::Decorrelated | Jitter::Additive => self.cap_ms(),
            _ => to_ms(LONGEST_DELAY),
        };
        Spread { low, high, ceiling }
    }

    /// `exponential: 1s × 2^9 = 8m32s, capped at 30s, full jitter → 12.4s`
    fn explain(&self, n: u32, grown_ms: f64, delay: Duration) -> String {
        let base = human(self.base_delay);
        let formula = match self.strategy {
            Strategy::Exponential => format!("{base} × {}^{}", self.factor, n - 1),
            Strategy::Linear => format!("{base} × {n}"),
            Strategy::Fixed => base,
            Strategy::Fibonacci => format!("{base} × fib({n})"),
            Strategy::List => match self.delays.len() {
                0 => "no delays given, the base".into(),
                len if n as usize > len => format!("the last of {len}, repeated"),
                len => format!("delay {n} of {len}"),
            },
        };
        let mut line = format!("{}: {formula}", self.strategy.as_str());
        // Beyond the longest delay the figure would be that limit, not the formula's result.
        if self.strategy != Strategy::Fixed && grown_ms < to_ms(LONGEST_DELAY) {
            line += &format!(" = {}", human(from_ms(grown_ms)));
        }
        if grown_ms > self.cap_ms() {
            line += &format!(", capped at {}", human(self.max_delay));
        }
        let percent = (self.jitter_fraction * 10_000.0).round() / 100.0;
        let jitter = match self.jitter {
            Jitter::None | Jitter::Decorrelated => return line,
            Jitter::Proportional => format!("proportional jitter up to {percent}%"),
            Jitter::Symmetric => format!("symmetric jitter ±{percent}%"),
            Jitter::Full => "full jitter".into(),
            Jitter::Equal => "equal jitter".into(),
            Jitter::Additive => format!("additive jitter up to {}", human(self.jitter_max)),
        };
        format!("{line}, {jitter} → {}", human(delay))
    }

    /// `decorrelated jitter: 1s to 36s (3 × 12s), capped at 30s → 21.7s`
    fn explain_decorrelated(&self, previous_ms: f64, spread: &Spread, delay: Duration) -> String {
        let [low, high, previous] =
            [spread.low, spread.high, previous_ms].map(|ms| human(from_ms(ms)));
        let mut line = format!("decorrelated jitter: {low} to {high} (3 × {previous})");
        if spread.high > spread.ceiling {
            line += &format!(", capped at {}", human(self.max_delay));
        }
        format!("{line} → {}", human(delay))
    }
}

/// The range that jitter chooses from, in milliseconds, and the limit on what it has chosen.
struct Spread {
    low: f64,
    high: f64,
    ceiling: f64,
}

impl Spread {
    fn at(&self, unit: f64) -> f64 {
        let chosen = self.low + (self.high - self.low) * fraction(unit);
        // Rounding may carry the sum a hair above `high`.
        chosen.min(self.high).min(self.ceiling)
    }
}

/// fib(1) = fib(2) = 1. From 100 on even a base of 1 ns gives more than the longest delay.
fn fibonacci(n: u32) -> f64 {
    let (mut this, mut next) = (1.0, 1.0);
    for _ in 1..n.min(100) {
        (this, next) = (next, this + next);
    }
    this
}

/// A delay that can exist. Zero times infinity is NaN here: no base, no delay.
fn sane(ms: f64) -> f64 {
    if ms.is_nan() {
        0.0
    } else {
        ms.clamp(0.0, to_ms(LONGEST_DELAY))
    }
}

fn fraction(x: f64) -> f64 {
    if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) }
}

/// From nanoseconds, not seconds: a whole number of milliseconds stays one.
fn to_ms(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e6
}

fn from_ms(ms: f64) -> Duration {
    Duration::from_millis(sane(ms).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::presets::Preset;
    use proptest::prelude::*;
    use proptest::sample::select;
    // proptest's prelude has a `Strategy` too: by name, ours is meant.
    use crate::domain::policy::Strategy;
    use proptest::strategy::Strategy as Generator;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn policy(strategy: Strategy, jitter: Jitter) -> RetryPolicy {
        RetryPolicy {
            strategy,
            jitter,
            ..RetryPolicy::default()
        }
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
            let policy = RetryPolicy {
                delays: delays.clone(),
                ..policy(strategy, Jitter::None)
            };
            for (n, seconds) in (1..).zip(expected) {
                let backoff = policy.backoff(n, None, 0.7);
                assert_eq!(backoff.computed, secs(seconds), "{strategy:?} {n}");
                assert_eq!(backoff.delay, secs(seconds), "{strategy:?} {n}");
            }
        }
    }

    #[test]
    fn fibonacci_goes_on_until_it_passes_the_longest_delay() {
        let with_base = |base_delay| RetryPolicy {
            base_delay,
            max_delay: LONGEST_DELAY,
            ..policy(Strategy::Fibonacci, Jitter::None)
        };
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
            assert_eq!(
                policy.backoff(2, None, 0.999_999_9).delay,
                ms(max),
                "{jitter:?}"
            );
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
            assert_eq!(
                policy(Strategy::Exponential, jitter).bounds(9).2,
                max,
                "{jitter:?}"
            );
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
            assert_eq!(
                (third.computed, third.delay),
                (secs(30), secs(30)),
                "capped after jitter"
            );
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
        let policy = RetryPolicy {
            base_delay,
            ..policy(Strategy::Fixed, Jitter::Decorrelated)
        };
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
        let list = RetryPolicy {
            delays: vec![secs(1), secs(5), secs(60)],
            ..with(Strategy::List, Jitter::None)
        };
        for (policy, n, unit, line) in [
            (
                &standard,
                2,
                0.62,
                "exponential: 1s × 2^1 = 2s, proportional jitter up to 25% → 2.31s",
            ),
            (
                &with(Strategy::Exponential, Jitter::Full),
                10,
                0.413_333,
                "exponential: 1s × 2^9 = 8m32s, capped at 30s, full jitter → 12.4s",
            ),
            (
                &with(Strategy::Exponential, Jitter::None),
                1_000,
                0.0,
                "exponential: 1s × 2^999, capped at 30s",
            ),
            (
                &Preset::ChronosLinear.policy(),
                3,
                0.5,
                "linear: 1m × 3 = 3m, symmetric jitter ±20% → 3m",
            ),
            (
                &with(Strategy::Fixed, Jitter::Equal),
                7,
                0.0,
                "fixed: 1s, equal jitter → 500ms",
            ),
            (
                &with(Strategy::Fibonacci, Jitter::Additive),
                5,
                0.5,
                "fibonacci: 1s × fib(5) = 5s, additive jitter up to 1s → 5.5s",
            ),
            (&list, 2, 0.0, "list: delay 2 of 3 = 5s"),
            (&list, 3, 0.0, "list: delay 3 of 3 = 1m, capped at 30s"),
            (
                &list,
                4,
                0.0,
                "list: the last of 3, repeated = 1m, capped at 30s",
            ),
            (
                &with(Strategy::Exponential, Jitter::Decorrelated),
                1,
                0.5,
                "decorrelated jitter: 1s to 3s (3 × 1s) → 2s",
            ),
        ] {
            assert_eq!(explained(policy, n, unit), line);
        }
        let later = with(Strategy::Fixed, Jitter::Decorrelated).backoff(3, Some(secs(12)), 0.5);
        assert_eq!(
            later.explanation,
            "decorrelated jitter: 1s to 36s (3 × 12s), capped at 30s → 18.5s"
        );
    }

    #[test]
    fn the_horizon_says_how_long_a_policy_keeps_trying() {
        let fixed = policy(Strategy::Fixed, Jitter::None);
        assert_eq!(
            RetryPolicy::default().horizon(),
            "4 attempts over 7s to 8.75s"
        );
        assert_eq!(
            Preset::FullJitter.policy().horizon(),
            "4 attempts over 0s to 3.5s"
        );
        assert_eq!(Preset::OneShot.policy().horizon(), "1 attempt, no retries");
        assert_eq!(fixed.horizon(), "4 attempts over 3s");
    }

    #[test]
    fn a_policy_that_nobody_validated_is_still_safe() {
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
            let policy = RetryPolicy {
                base_delay: Duration::ZERO,
                ..policy(strategy, Jitter::None)
            };
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
            (
                0..=MAX_RETRIES,
                select(Strategy::ALL.as_slice()),
                delay(),
                1.0..=1_000.0,
            ),
            (
                delay(),
                prop::collection::vec(delay(), 1..5),
                select(Jitter::ALL.as_slice()),
            ),
            (0.0..=1.0, delay()),
        )
            .prop_map(
                |((max_retries, strategy, base_delay, factor), list, (f, t))| RetryPolicy {
                    max_retries,
                    strategy,
                    base_delay,
                    factor,
                    max_delay: list.0,
                    delays: list.1,
                    jitter: list.2,
                    jitter_fraction: f,
                    jitter_max: t,
                },
            )
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
            let cap = from_ms(to_ms(policy.max_delay));
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
}
