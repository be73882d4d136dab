//! Retry policies.

use super::{check::Check, same_name::SameName, time::duration_out};
use crate::domain::{PolicyOverride, Preset, RetryPolicy};
use crate::grpc::pb;

/// Reads the policy in field `name`. None: nothing is overridden.
pub(super) fn policy(check: &mut Check<'_>, name: &str, given: Option<pb::RetryPolicy>) -> Option<PolicyOverride> {
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
        strategy: check.one_of(format_args!("{name}.strategy"), given.strategy),
        base_delay,
        factor: given.factor,
        max_delay,
        delays,
        jitter: check.one_of(format_args!("{name}.jitter"), given.jitter),
        jitter_fraction: given.jitter_fraction,
        jitter_max,
    };
    for problem in over.problems() {
        check.refuse(format_args!("{name}.{}", problem.field), problem.message);
    }
    (!over.is_empty()).then_some(over)
}

fn preset(check: &mut Check<'_>, name: &str, given: &str) -> Option<Preset> {
    let known = || format!("no such preset; there are {}", Preset::ALL.map(Preset::as_str).join(", "));
    if given.is_empty() { None } else { check.or_refuse(Preset::parse(given), format_args!("{name}.preset"), known) }
}

/// An override as it was given.
pub(super) fn override_out(over: &PolicyOverride) -> pb::RetryPolicy {
    pb::RetryPolicy {
        preset: over.preset.map_or_else(String::new, |preset| preset.as_str().to_owned()),
        max_retries: over.max_retries,
        strategy: over.strategy.map_or(0, SameName::out),
        base_delay: over.base_delay.map(duration_out),
        factor: over.factor,
        max_delay: over.max_delay.map(duration_out),
        delays: over.delays.iter().copied().map(duration_out).collect(),
        jitter: over.jitter.map_or(0, SameName::out),
        jitter_fraction: over.jitter_fraction,
        jitter_max: over.jitter_max.map(duration_out),
    }
}

/// A policy with every field resolved; no preset is left in it.
pub(super) fn policy_out(policy: &RetryPolicy) -> pb::RetryPolicy {
    pb::RetryPolicy {
        preset: String::new(),
        max_retries: Some(policy.max_retries),
        strategy: policy.strategy.out(),
        base_delay: Some(duration_out(policy.base_delay)),
        factor: Some(policy.factor),
        max_delay: Some(duration_out(policy.max_delay)),
        delays: policy.delays.iter().copied().map(duration_out).collect(),
        jitter: policy.jitter.out(),
        jitter_fraction: Some(policy.jitter_fraction),
        jitter_max: Some(duration_out(policy.jitter_max)),
    }
}
