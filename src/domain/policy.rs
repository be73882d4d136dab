//! The retry policy: what it consists of, how layers of it merge, and what is not allowed in it.
//! What it computes is in [`super::backoff`].

use std::time::Duration;

use super::{duration::human, macros::named, presets::Preset};

pub const MAX_RETRIES: u32 = 1_000;
pub const MAX_FACTOR: f64 = 1_000.0;
pub const MAX_LISTED_DELAYS: usize = 1_000;
/// No delay is longer, whatever is asked for.
pub const LONGEST_DELAY: Duration = Duration::from_secs(366 * 24 * 60 * 60);

named! {
    /// How the delay grows from one retry to the next.
    Strategy {
        Exponential = "exponential",
        Linear = "linear",
        Fixed = "fixed",
        Fibonacci = "fibonacci",
        List = "list",
    }
}

named! {
    /// How the delay is spread, so that jobs which failed together do not come back together.
    Jitter {
        None = "none",
        Proportional = "proportional",
        Symmetric = "symmetric",
        Full = "full",
        Equal = "equal",
        Decorrelated = "decorrelated",
        Additive = "additive",
    }
}

/// A policy with every field resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Retries after the first attempt: 3 means four attempts, 0 one shot.
    pub max_retries: u32,
    pub strategy: Strategy,
    pub base_delay: Duration,
    /// For [`Strategy::Exponential`].
    pub factor: f64,
    pub max_delay: Duration,
    /// For [`Strategy::List`]: the n-th delay before retry n; the last repeats.
    pub delays: Vec<Duration>,
    pub jitter: Jitter,
    /// For [`Jitter::Proportional`] and [`Jitter::Symmetric`].
    pub jitter_fraction: f64,
    /// For [`Jitter::Additive`].
    pub jitter_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Preset::Standard.policy()
    }
}

impl RetryPolicy {
    /// This policy with the given fields changed. A preset sets every field first, so that its name
    /// means the same on every queue.
    pub fn apply(&self, over: &PolicyOverride) -> RetryPolicy {
        let from = over.preset.map_or_else(|| self.clone(), Preset::policy);
        RetryPolicy {
            max_retries: over.max_retries.unwrap_or(from.max_retries),
            strategy: over.strategy.unwrap_or(from.strategy),
            base_delay: over.base_delay.unwrap_or(from.base_delay),
            factor: over.factor.unwrap_or(from.factor),
            max_delay: over.max_delay.unwrap_or(from.max_delay),
            delays: if over.delays.is_empty() { from.delays } else { over.delays.clone() },
            jitter: over.jitter.unwrap_or(from.jitter),
            jitter_fraction: over.jitter_fraction.unwrap_or(from.jitter_fraction),
            jitter_max: over.jitter_max.unwrap_or(from.jitter_max),
        }
    }

    /// Problems that show only once all layers are merged. Each layer's own fields are checked
    /// where they are read, by [`PolicyOverride::validate`].
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.strategy == Strategy::List && self.delays.is_empty() {
            return Err(PolicyError { field: "delays", message: "strategy \"list\" needs at least one delay".into() });
        }
        Ok(())
    }

    /// What is allowed but probably not meant: a field without effect because of another, which
    /// happens easily when the other one is inherited.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let lists = self.strategy == Strategy::List && self.jitter != Jitter::Decorrelated;
        let longest_asked = if lists { self.delays.iter().max() } else { Some(&self.base_delay) };
        if let Some(asked) = longest_asked.filter(|asked| **asked > self.max_delay) {
            let field = if lists { "delays" } else { "base_delay" };
            let (asked, cap) = (human(*asked), human(self.max_delay));
            warnings.push(format!("{field} asks for {asked} but max_delay cuts it to {cap}"));
        }
        if !lists && !self.delays.is_empty() {
            let cause = match self.jitter {
                Jitter::Decorrelated => "jitter is \"decorrelated\"".to_owned(),
                _ => format!("strategy is {:?}, not \"list\"", self.strategy.as_str()),
            };
            warnings.push(format!("delays are not used because {cause}"));
        }
        warnings
    }
}

/// Some fields of a policy, as a server, a queue, an error rule or a job gives them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyOverride {
    pub preset: Option<Preset>,
    pub max_retries: Option<u32>,
    pub strategy: Option<Strategy>,
    pub base_delay: Option<Duration>,
    pub factor: Option<f64>,
    pub max_delay: Option<Duration>,
    /// Empty: not given.
    pub delays: Vec<Duration>,
    pub jitter: Option<Jitter>,
    pub jitter_fraction: Option<f64>,
    pub jitter_max: Option<Duration>,
}

impl PolicyOverride {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// A preset has every field.
    pub fn sets_max_retries(&self) -> bool {
        self.preset.is_some() || self.max_retries.is_some()
    }

    /// The first of [`Self::problems`], where one is enough.
    pub fn validate(&self) -> Result<(), PolicyError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// Every field with a value that is not allowed.
    pub fn problems(&self) -> Vec<PolicyError> {
        let mut problems = Vec::new();
        let mut refuse = |field, message| problems.push(PolicyError { field, message });

        if let Some(n) = self.max_retries.filter(|n| *n > MAX_RETRIES) {
            refuse("max_retries", format!("must be between 0 and {MAX_RETRIES}, not {n}"));
        }
        // Negated, because NaN is inside no range.
        if let Some(x) = self.factor.filter(|x| !(1.0..=MAX_FACTOR).contains(x)) {
            refuse("factor", format!("must be between 1 and {MAX_FACTOR}, not {x}"));
        }
        if let Some(x) = self.jitter_fraction.filter(|x| !(0.0..=1.0).contains(x)) {
            refuse("jitter_fraction", format!("must be between 0 and 1, not {x}"));
        }
        for (field, given) in
            [("base_delay", self.base_delay), ("max_delay", self.max_delay), ("jitter_max", self.jitter_max)]
        {
            if let Some(d) = given.filter(|d| *d > LONGEST_DELAY) {
                refuse(field, format!("must be at most {}, not {}", human(LONGEST_DELAY), human(d)));
            }
        }
        if self.delays.len() > MAX_LISTED_DELAYS {
            let given = self.delays.len();
            refuse("delays", format!("must be at most {MAX_LISTED_DELAYS} delays, not {given}"));
        }
        if let Some(d) = self.delays.iter().find(|d| **d > LONGEST_DELAY) {
            let (limit, given) = (human(LONGEST_DELAY), human(*d));
            refuse("delays", format!("each must be at most {limit}, not {given}"));
        }
        problems
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct PolicyError {
    pub field: &'static str,
    /// What is allowed, and what was given.
    pub message: String,
}
