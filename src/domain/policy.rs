//! The retry policy: what it consists of, how layers of it merge, and what is not allowed in it.
//! What it computes is in [`super::backoff`].

use std::fmt;
use std::time::Duration;

pub use super::backoff::Backoff;
use super::duration::human;
use super::presets::Preset;

pub const MAX_RETRIES: u32 = 1_000;
pub const MAX_FACTOR: f64 = 1_000.0;
pub const MAX_LISTED_DELAYS: usize = 1_000;
/// No delay is longer, whatever is asked for.
pub const LONGEST_DELAY: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// How the delay grows from one retry to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    Exponential,
    Linear,
    Fixed,
    Fibonacci,
    List,
}

impl Strategy {
    pub const ALL: [Self; 5] = [
        Self::Exponential,
        Self::Linear,
        Self::Fixed,
        Self::Fibonacci,
        Self::List,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exponential => "exponential",
            Self::Linear => "linear",
            Self::Fixed => "fixed",
            Self::Fibonacci => "fibonacci",
            Self::List => "list",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|strategy| strategy.as_str() == word)
    }
}

/// How the delay is spread, so that jobs which failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    None,
    Proportional,
    Symmetric,
    Full,
    Equal,
    Decorrelated,
    Additive,
}

impl Jitter {
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::Proportional,
        Self::Symmetric,
        Self::Full,
        Self::Equal,
        Self::Decorrelated,
        Self::Additive,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Proportional => "proportional",
            Self::Symmetric => "symmetric",
            Self::Full => "full",
            Self::Equal => "equal",
            Self::Decorrelated => "decorrelated",
            Self::Additive => "additive",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|jitter| jitter.as_str() == word)
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
            delays: if over.delays.is_empty() {
                from.delays
            } else {
                over.delays.clone()
            },
            jitter: over.jitter.unwrap_or(from.jitter),
            jitter_fraction: over.jitter_fraction.unwrap_or(from.jitter_fraction),
            jitter_max: over.jitter_max.unwrap_or(from.jitter_max),
        }
    }

    /// Problems that show only once all layers are merged. Each layer's own fields are checked
    /// where they are read, by [`PolicyOverride::validate`].
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.strategy == Strategy::List && self.delays.is_empty() {
            return Err(PolicyError {
                field: "delays",
                message: "strategy \"list\" needs at least one delay".into(),
            });
        }
        Ok(())
    }

    /// What is allowed but probably not meant: a field without effect because of another, which
    /// happens easily when the other one is inherited.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let lists = self.strategy == Strategy::List && self.jitter != Jitter::Decorrelated;
        let longest_asked = if lists {
            self.delays.iter().max()
        } else {
            Some(&self.base_delay)
        };
        if let Some(asked) = longest_asked.filter(|asked| **asked > self.max_delay) {
            let field = if lists { "delays" } else { "base_delay" };
            let (asked, cap) = (human(*asked), human(self.max_delay));
            warnings.push(format!(
                "{field} asks for {asked} but max_delay cuts it to {cap}"
            ));
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

    /// The first of [`Self::problems`], where one is enough.
    pub fn validate(&self) -> Result<(), PolicyError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// Every field with a value that is not allowed.
    pub fn problems(&self) -> Vec<PolicyError> {
        let mut problems = Vec::new();
        let mut refuse = |field, message| problems.push(PolicyError { field, message });

        if let Some(n) = self.max_retries.filter(|n| *n > MAX_RETRIES) {
            refuse(
                "max_retries",
                format!("must be between 0 and {MAX_RETRIES}, not {n}"),
            );
        }
        // Negated, because NaN is inside no range.
        if let Some(x) = self.factor.filter(|x| !(1.0..=MAX_FACTOR).contains(x)) {
            refuse(
                "factor",
                format!("must be between 1 and {MAX_FACTOR}, not {x}"),
            );
        }
        if let Some(x) = self.jitter_fraction.filter(|x| !(0.0..=1.0).contains(x)) {
            refuse(
                "jitter_fraction",
                format!("must be between 0 and 1, not {x}"),
            );
        }
        for (field, given) in [
            ("base_delay", self.base_delay),
            ("max_delay", self.max_delay),
            ("jitter_max", self.jitter_max),
        ] {
            if let Some(d) = given.filter(|d| *d > LONGEST_DELAY) {
                refuse(
                    field,
                    format!("must be at most {}, not {}", human(LONGEST_DELAY), human(d)),
                );
            }
        }
        if self.delays.len() > MAX_LISTED_DELAYS {
            let given = self.delays.len();
            refuse(
                "delays",
                format!("must be at most {MAX_LISTED_DELAYS} delays, not {given}"),
            );
        }
        if let Some(d) = self.delays.iter().find(|d| **d > LONGEST_DELAY) {
            let (limit, given) = (human(LONGEST_DELAY), human(*d));
            refuse(
                "delays",
                format!("each must be at most {limit}, not {given}"),
            );
        }
        problems
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    pub field: &'static str,
    /// What is allowed, and what was given.
    pub message: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for PolicyError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;
    // proptest's prelude has a `Strategy` too: by name, ours is meant.
    use crate::domain::policy::Strategy;
    use proptest::strategy::Strategy as Generator;

    const DAY: Duration = Duration::from_secs(86_400);

    fn refusals(over: PolicyOverride) -> Vec<String> {
        assert_eq!(over.validate().err(), over.problems().first().cloned());
        over.problems().iter().map(PolicyError::to_string).collect()
    }

    #[test]
    fn every_word_reads_back() {
        for strategy in Strategy::ALL {
            assert_eq!(Strategy::parse(strategy.as_str()), Some(strategy));
        }
        for jitter in Jitter::ALL {
            assert_eq!(Jitter::parse(jitter.as_str()), Some(jitter));
        }
        assert_eq!(Strategy::parse("Exponential"), None);
        assert_eq!(Jitter::parse(""), None);
    }

    #[test]
    fn what_is_not_allowed_is_named_with_what_is() {
        let given = PolicyOverride {
            max_retries: Some(1_001),
            factor: Some(0.5),
            jitter_fraction: Some(1.5),
            base_delay: Some(367 * DAY),
            max_delay: Some(400 * DAY),
            jitter_max: Some(500 * DAY),
            delays: vec![DAY, 1_000 * DAY],
            ..PolicyOverride::default()
        };
        assert_eq!(
            refusals(given),
            [
                "max_retries: must be between 0 and 1000, not 1001",
                "factor: must be between 1 and 1000, not 0.5",
                "jitter_fraction: must be between 0 and 1, not 1.5",
                "base_delay: must be at most 366d, not 367d",
                "max_delay: must be at most 366d, not 400d",
                "jitter_max: must be at most 366d, not 500d",
                "delays: each must be at most 366d, not 1000d",
            ]
        );
    }

    #[test]
    fn a_number_that_is_none_is_refused() {
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 1_000.1] {
            let factor = PolicyOverride {
                factor: Some(wrong),
                ..PolicyOverride::default()
            };
            assert_eq!(refusals(factor).len(), 1, "factor {wrong}");
            let fraction = PolicyOverride {
                jitter_fraction: Some(wrong),
                ..PolicyOverride::default()
            };
            assert_eq!(refusals(fraction).len(), 1, "jitter_fraction {wrong}");
        }
    }

    #[test]
    fn a_list_may_be_long_but_not_endless() {
        let of = |count| PolicyOverride {
            delays: vec![DAY; count],
            ..PolicyOverride::default()
        };
        assert_eq!(refusals(of(1_000)), [""; 0]);
        assert_eq!(
            refusals(of(1_001)),
            ["delays: must be at most 1000 delays, not 1001"]
        );
    }

    #[test]
    fn the_limits_themselves_are_allowed() {
        let limits = PolicyOverride {
            max_retries: Some(1_000),
            factor: Some(1_000.0),
            jitter_fraction: Some(1.0),
            base_delay: Some(366 * DAY),
            max_delay: Some(366 * DAY),
            jitter_max: Some(366 * DAY),
            delays: vec![366 * DAY],
            ..PolicyOverride::default()
        };
        assert_eq!(limits.validate(), Ok(()));
        let least = PolicyOverride {
            max_retries: Some(0),
            factor: Some(1.0),
            jitter_fraction: Some(0.0),
            base_delay: Some(Duration::ZERO),
            ..PolicyOverride::default()
        };
        assert_eq!(least.validate(), Ok(()));
    }

    #[test]
    fn a_list_strategy_needs_its_list_from_some_layer() {
        let list = PolicyOverride {
            strategy: Some(Strategy::List),
            ..PolicyOverride::default()
        };
        let without = RetryPolicy::default().apply(&list);
        assert_eq!(without.validate().map_err(|e| e.field), Err("delays"));

        let delays = PolicyOverride {
            delays: vec![DAY],
            ..PolicyOverride::default()
        };
        assert_eq!(without.apply(&delays).validate(), Ok(()));
    }

    #[test]
    fn an_inherited_cap_below_the_delay_asked_for_is_pointed_out() {
        let slow = PolicyOverride {
            base_delay: Some(DAY),
            ..PolicyOverride::default()
        };
        assert_eq!(
            RetryPolicy::default().apply(&slow).warnings(),
            ["base_delay asks for 1d but max_delay cuts it to 30s"]
        );
        let list = PolicyOverride {
            strategy: Some(Strategy::List),
            delays: vec![Duration::from_secs(60), DAY],
            ..PolicyOverride::default()
        };
        assert_eq!(
            RetryPolicy::default().apply(&list).warnings(),
            ["delays asks for 1d but max_delay cuts it to 30s"]
        );
    }

    #[test]
    fn delays_without_the_list_strategy_are_pointed_out() {
        let delays = vec![Duration::from_secs(1)];
        let unused = RetryPolicy {
            delays,
            ..RetryPolicy::default()
        };
        assert_eq!(
            unused.warnings(),
            ["delays are not used because strategy is \"exponential\", not \"list\""]
        );
        let ignored = RetryPolicy {
            strategy: Strategy::List,
            jitter: Jitter::Decorrelated,
            ..unused
        };
        assert_eq!(
            ignored.warnings(),
            ["delays are not used because jitter is \"decorrelated\""]
        );
    }

    #[test]
    fn no_preset_needs_a_warning() {
        for preset in Preset::ALL {
            assert_eq!(preset.policy().validate(), Ok(()), "{}", preset.name());
            assert_eq!(preset.policy().warnings(), [""; 0], "{}", preset.name());
        }
    }

    #[test]
    fn a_job_goes_over_its_rule_over_its_queue_over_the_server() {
        let queue = PolicyOverride {
            preset: Some(Preset::Transient),
            max_retries: Some(8),
            ..PolicyOverride::default()
        };
        let rule = PolicyOverride {
            base_delay: Some(Duration::from_secs(7)),
            max_retries: Some(9),
            ..PolicyOverride::default()
        };
        let job = PolicyOverride {
            max_retries: Some(10),
            ..PolicyOverride::default()
        };
        let merged = RetryPolicy::default()
            .apply(&queue)
            .apply(&rule)
            .apply(&job);
        let expected = RetryPolicy {
            max_retries: 10,
            base_delay: Duration::from_secs(7),
            ..Preset::Transient.policy()
        };
        assert_eq!(merged, expected);
    }

    fn some_policy() -> impl Generator<Value = RetryPolicy> {
        let millis = || (0..100_000_u64).prop_map(Duration::from_millis);
        (
            (
                0..=MAX_RETRIES,
                select(Strategy::ALL.as_slice()),
                millis(),
                1.0..10.0,
            ),
            (
                millis(),
                prop::collection::vec(millis(), 0..4),
                select(Jitter::ALL.as_slice()),
            ),
            (0.0..1.0, millis()),
        )
            .prop_map(
                |((retries, strategy, base, factor), (cap, delays, jitter), (f, t))| RetryPolicy {
                    max_retries: retries,
                    strategy,
                    base_delay: base,
                    factor,
                    max_delay: cap,
                    delays,
                    jitter,
                    jitter_fraction: f,
                    jitter_max: t,
                },
            )
    }

    proptest! {
        #[test]
        fn layers_merge_field_by_field(
            under in some_policy(),
            top in some_policy(),
            preset in prop::option::of(select(Preset::ALL.as_slice())),
            given in prop::array::uniform9(any::<bool>()),
        ) {
            let over = PolicyOverride {
                preset,
                max_retries: given[0].then_some(top.max_retries),
                strategy: given[1].then_some(top.strategy),
                base_delay: given[2].then_some(top.base_delay),
                factor: given[3].then_some(top.factor),
                max_delay: given[4].then_some(top.max_delay),
                delays: if given[5] { top.delays.clone() } else { Vec::new() },
                jitter: given[6].then_some(top.jitter),
                jitter_fraction: given[7].then_some(top.jitter_fraction),
                jitter_max: given[8].then_some(top.jitter_max),
            };
            let from = preset.map_or_else(|| under.clone(), Preset::policy);
            let got = under.apply(&over);

            macro_rules! comes_from_the_right_layer {
                ($($field:ident: $given:expr),*) => {
                    $(let want = if $given { &top.$field } else { &from.$field };
                    prop_assert_eq!(&got.$field, want, "{}", stringify!($field));)*
                };
            }
            comes_from_the_right_layer!(
                max_retries: given[0], strategy: given[1], base_delay: given[2], factor: given[3],
                max_delay: given[4], delays: given[5] && !top.delays.is_empty(), jitter: given[6],
                jitter_fraction: given[7], jitter_max: given[8]
            );
            prop_assert_eq!(over.is_empty(), over == PolicyOverride::default());
            prop_assert_eq!(under.apply(&PolicyOverride::default()), under);
        }
    }
}
