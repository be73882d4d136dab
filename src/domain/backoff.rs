//! How long a job waits before its next retry, why, and within which bounds.
//!
//! Everything here is safe for every retry number and every policy, also one that was never validated:
//! a delay is between zero and [`LONGEST_DELAY`], in whole milliseconds.

use std::fmt::Write;
use std::time::Duration;

use super::duration::{Human, human};
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
            return Backoff { computed: delay, delay, explanation };
        }
        let explanation = self.explain(n.max(1), grown_ms, delay);
        Backoff { computed: from_ms(d_ms), delay, explanation }
    }

    /// For retry `n`: the delay before jitter, the shortest and the longest after it. Decorrelated
    /// jitter has nothing before it but the base, and its longest delay is the one that follows
    /// when every earlier one was the longest.
    pub fn bounds(&self, n: u32) -> (Duration, Duration, Duration) {
        let d_ms = self.grown_ms(n).min(self.cap_ms());
        let spread = self.spread(d_ms, self.longest_previous_ms(n, d_ms));
        (from_ms(d_ms), from_ms(spread.at(0.0)), from_ms(spread.at(1.0)))
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
            .fold((Duration::ZERO, Duration::ZERO), |(least, most), (_, min, max)| {
                (least.saturating_add(min), most.saturating_add(max))
            })
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
                format!("{attempts} attempts over {} to {}", human(least), human(most))
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
        self.delays.get(n as usize - 1).or_else(|| self.delays.last()).copied()
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
        // Every failure has one: it is written in one go.
        let mut line = String::with_capacity(96);
        let base = Human(self.base_delay);
        let _ = write!(line, "{}: ", self.strategy.as_str());
        let _ = match self.strategy {
            Strategy::Exponential => write!(line, "{base} × {}^{}", self.factor, n - 1),
            Strategy::Linear => write!(line, "{base} × {n}"),
            Strategy::Fixed => write!(line, "{base}"),
            Strategy::Fibonacci => write!(line, "{base} × fib({n})"),
            Strategy::List => match self.delays.len() {
                0 => write!(line, "no delays given, the base"),
                len if n as usize > len => write!(line, "the last of {len}, repeated"),
                len => write!(line, "delay {n} of {len}"),
            },
        };
        // Beyond the longest delay the figure would be that limit, not the formula's result.
        if self.strategy != Strategy::Fixed && grown_ms < to_ms(LONGEST_DELAY) {
            let _ = write!(line, " = {}", Human(from_ms(grown_ms)));
        }
        if grown_ms > self.cap_ms() {
            let _ = write!(line, ", capped at {}", Human(self.max_delay));
        }
        let percent = (self.jitter_fraction * 10_000.0).round() / 100.0;
        let _ = match self.jitter {
            Jitter::None | Jitter::Decorrelated => return line,
            Jitter::Proportional => write!(line, ", proportional jitter up to {percent}%"),
            Jitter::Symmetric => write!(line, ", symmetric jitter ±{percent}%"),
            Jitter::Full => write!(line, ", full jitter"),
            Jitter::Equal => write!(line, ", equal jitter"),
            Jitter::Additive => write!(line, ", additive jitter up to {}", Human(self.jitter_max)),
        };
        let _ = write!(line, " → {}", Human(delay));
        line
    }

    /// `decorrelated jitter: 1s to 36s (3 × 12s), capped at 30s → 21.7s`
    fn explain_decorrelated(&self, previous_ms: f64, spread: &Spread, delay: Duration) -> String {
        let [low, high, previous] = [spread.low, spread.high, previous_ms].map(|ms| Human(from_ms(ms)));
        let mut line = format!("decorrelated jitter: {low} to {high} (3 × {previous})");
        if spread.high > spread.ceiling {
            let _ = write!(line, ", capped at {}", Human(self.max_delay));
        }
        let _ = write!(line, " → {}", Human(delay));
        line
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
    if ms.is_nan() { 0.0 } else { ms.clamp(0.0, to_ms(LONGEST_DELAY)) }
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
