//! Retry policies.

use super::{check::Check, time::duration_out};
use crate::{
    domain::{
        policy::{Jitter, PolicyOverride, RetryPolicy, Strategy},
        presets::Preset,
    },
    grpc::pb,
};

/// Reads the policy in field `name`. None: nothing is overridden.
pub(super) fn policy(
    check: &mut Check<'_>,
    name: &str,
    given: Option<pb::RetryPolicy>,
) -> Option<PolicyOverride> {
    let given = given?;
    let mut duration = |field: &str, value| check.duration(format_args!("{name}.{field}"), value);
    let base_delay = duration("base_delay", given.base_delay);
    let max_delay = duration("max_delay", given.max_delay);
    let jitter_max = duration("jitter_max", given.jitter_max);
    let mut delays = Vec::with_capacity(given.delays.len());
    for (at, delay) in given.delays.into_iter().enumerate() {
        delays.extend(check.duration(format_args!("{name}.delays[{at}]"), Some(delay)));
    }
    let over = PolicyOverride {
        preset: preset(check, name, &given.preset),
        max_retries: given.max_retries,
        strategy: strategy(check, name, given.strategy),
        base_delay,
        factor: given.factor,
        max_delay,
        delays,
        jitter: jitter(check, name, given.jitter),
        jitter_fraction: given.jitter_fraction,
        jitter_max,
    };
    for problem in over.problems() {
        check.refuse(format_args!("{name}.{}", problem.field), problem.message);
    }
    (!over.is_empty()).then_some(over)
}

fn preset(check: &mut Check<'_>, name: &str, given: &str) -> Option<Preset> {
    let preset = Preset::parse(given);
    if preset.is_none() && !given.is_empty() {
        let known = Preset::ALL.map(Preset::name).join(", ");
        check.refuse(format_args!("{name}.preset"), format!("no such preset; there are {known}"));
    }
    preset
}

fn strategy(check: &mut Check<'_>, name: &str, given: i32) -> Option<Strategy> {
    use pb::BackoffStrategy as Wire;
    match Wire::try_from(given) {
        Ok(Wire::Unspecified) => None,
        Ok(Wire::Exponential) => Some(Strategy::Exponential),
        Ok(Wire::Linear) => Some(Strategy::Linear),
        Ok(Wire::Fixed) => Some(Strategy::Fixed),
        Ok(Wire::Fibonacci) => Some(Strategy::Fibonacci),
        Ok(Wire::List) => Some(Strategy::List),
        Err(_) => {
            check.unknown_value(format_args!("{name}.strategy"), given);
            None
        }
    }
}

fn jitter(check: &mut Check<'_>, name: &str, given: i32) -> Option<Jitter> {
    use pb::Jitter as Wire;
    match Wire::try_from(given) {
        Ok(Wire::Unspecified) => None,
        Ok(Wire::None) => Some(Jitter::None),
        Ok(Wire::Proportional) => Some(Jitter::Proportional),
        Ok(Wire::Symmetric) => Some(Jitter::Symmetric),
        Ok(Wire::Full) => Some(Jitter::Full),
        Ok(Wire::Equal) => Some(Jitter::Equal),
        Ok(Wire::Decorrelated) => Some(Jitter::Decorrelated),
        Ok(Wire::Additive) => Some(Jitter::Additive),
        Err(_) => {
            check.unknown_value(format_args!("{name}.jitter"), given);
            None
        }
    }
}

fn strategy_out(strategy: Strategy) -> pb::BackoffStrategy {
    match strategy {
        Strategy::Exponential => pb::BackoffStrategy::Exponential,
        Strategy::Linear => pb::BackoffStrategy::Linear,
        Strategy::Fixed => pb::BackoffStrategy::Fixed,
        Strategy::Fibonacci => pb::BackoffStrategy::Fibonacci,
        Strategy::List => pb::BackoffStrategy::List,
    }
}

fn jitter_out(jitter: Jitter) -> pb::Jitter {
    match jitter {
        Jitter::None => pb::Jitter::None,
        Jitter::Proportional => pb::Jitter::Proportional,
        Jitter::Symmetric => pb::Jitter::Symmetric,
        Jitter::Full => pb::Jitter::Full,
        Jitter::Equal => pb::Jitter::Equal,
        Jitter::Decorrelated => pb::Jitter::Decorrelated,
        Jitter::Additive => pb::Jitter::Additive,
    }
}

/// An override as it was given.
pub(super) fn override_out(over: &PolicyOverride) -> pb::RetryPolicy {
    pb::RetryPolicy {
        preset: over.preset.map_or_else(String::new, |preset| preset.name().to_owned()),
        max_retries: over.max_retries,
        strategy: over.strategy.map_or(0, |strategy| strategy_out(strategy).into()),
        base_delay: over.base_delay.map(duration_out),
        factor: over.factor,
        max_delay: over.max_delay.map(duration_out),
        delays: over.delays.iter().copied().map(duration_out).collect(),
        jitter: over.jitter.map_or(0, |jitter| jitter_out(jitter).into()),
        jitter_fraction: over.jitter_fraction,
        jitter_max: over.jitter_max.map(duration_out),
    }
}

/// A policy with every field resolved; no preset is left in it.
pub(super) fn policy_out(policy: &RetryPolicy) -> pb::RetryPolicy {
    pb::RetryPolicy {
        preset: String::new(),
        max_retries: Some(policy.max_retries),
        strategy: strategy_out(policy.strategy).into(),
        base_delay: Some(duration_out(policy.base_delay)),
        factor: Some(policy.factor),
        max_delay: Some(duration_out(policy.max_delay)),
        delays: policy.delays.iter().copied().map(duration_out).collect(),
        jitter: jitter_out(policy.jitter).into(),
        jitter_fraction: Some(policy.jitter_fraction),
        jitter_max: Some(duration_out(policy.jitter_max)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limits::Limits;
    use crate::grpc::convert::{Invalid, testing::refusals};
    use std::time::Duration;

    fn read(given: pb::RetryPolicy) -> Result<Option<PolicyOverride>, Invalid> {
        let limits = Limits::default();
        let mut check = Check::new(&limits);
        let over = policy(&mut check, "retry_policy", Some(given));
        check.done(Some(over))
    }

    #[test]
    fn every_strategy_jitter_and_preset_reads_back() {
        for strategy in Strategy::ALL {
            for jitter in Jitter::ALL {
                for preset in Preset::ALL {
                    let over = PolicyOverride {
                        preset: Some(preset),
                        max_retries: Some(0),
                        strategy: Some(strategy),
                        jitter: Some(jitter),
                        base_delay: Some(Duration::from_millis(1)),
                        delays: vec![Duration::from_secs(9)],
                        ..PolicyOverride::default()
                    };
                    assert_eq!(read(override_out(&over)), Ok(Some(over)));
                }
            }
        }
    }

    #[test]
    fn a_resolved_policy_reads_back_as_an_override_of_everything() {
        for preset in Preset::ALL {
            let policy = preset.policy();
            let over = read(policy_out(&policy)).unwrap().unwrap();
            assert_eq!(RetryPolicy::default().apply(&over), policy);
        }
    }

    #[test]
    fn an_empty_policy_is_no_policy() {
        assert_eq!(read(pb::RetryPolicy::default()), Ok(None));
    }

    #[test]
    fn every_bad_field_is_named() {
        let negative = prost_types::Duration { seconds: -1, nanos: 0 };
        let minus = Some(negative);
        let given = pb::RetryPolicy {
            preset: "brave".into(),
            max_retries: Some(1_001),
            strategy: 9,
            base_delay: minus,
            factor: Some(f64::NAN),
            max_delay: minus,
            delays: vec![negative],
            jitter: 99,
            jitter_fraction: Some(2.0),
            jitter_max: minus,
        };
        let refused = refusals(read(given));
        for field in [
            "preset",
            "max_retries",
            "strategy",
            "base_delay",
            "factor",
            "max_delay",
            "delays[0]",
            "jitter",
            "jitter_fraction",
            "jitter_max",
        ] {
            let start = format!("retry_policy.{field}: ");
            assert!(refused.iter().any(|r| r.starts_with(&start)), "{field}: {refused:?}");
        }
        assert_eq!(refused.len(), 10);
    }
}
