//! One queue's keys in the file; `[defaults]` has the same ones. What is not given is inherited.

use super::{
    policy, rules,
    section::{Section, duration_within},
};
use crate::domain::{
    duration::human,
    limits::Limits,
    policy::LONGEST_DELAY,
    rules::{Then, default_rules},
    settings::{BreakerSettings, DeadLetterSettings, QueueSettings},
};
use std::{ops::RangeInclusive, time::Duration};
use toml::de::DeValue;

pub(super) const KEYS: &[&str] = &[
    "policy",
    "rules",
    "default_rules",
    "breaker",
    "lease_duration",
    "max_run_time",
    "max_retry_after",
    "max_depth",
    "key_retention",
    "dead_jobs_hold_keys",
    "completed_retention",
    "dead_letters",
];
const BREAKER_KEYS: &[&str] = &[
    "failure_threshold",
    "recovery_timeout",
    "half_open_max_calls",
    "success_threshold",
    "quiet_period",
    "disabled",
];
const DEAD_LETTER_KEYS: &[&str] = &["max_entries", "retention", "breaker"];

/// More than anybody has, and far from any overflow.
const MOST_JOBS: u64 = 1_000_000_000_000;
const MOST_CALLS: u32 = 1_000_000;
const LONGEST_RETENTION: Duration = Duration::from_secs(36_500 * 86_400);
const ONE_SECOND: Duration = Duration::from_secs(1);

/// The settings of a queue: what its section says, and the rest from `base`.
pub(super) fn read(section: &Section<'_>, base: &QueueSettings) -> QueueSettings {
    let limits = Limits::default();
    let policy = policy::read(section, &base.policy)
        .map_or_else(|| base.policy.clone(), |over| base.policy.apply(&over));
    let default_rules = match section.bool("default_rules") {
        Some(true) => default_rules(),
        Some(false) => Vec::new(),
        None => base.default_rules.clone(),
    };
    let up_to = |longest| Duration::ZERO..=longest;
    let settings = QueueSettings {
        rules: rules::read(section, &policy).unwrap_or_else(|| base.rules.clone()),
        policy,
        default_rules,
        lease_duration: section
            .duration("lease_duration", limits.lease_min..=limits.lease_max)
            .unwrap_or(base.lease_duration),
        max_run_time: section
            .duration("max_run_time", limits.lease_min..=limits.delay)
            .unwrap_or(base.max_run_time),
        max_retry_after: section
            .duration("max_retry_after", up_to(LONGEST_DELAY))
            .unwrap_or(base.max_retry_after),
        max_depth: unlimited(section, "max_depth", 1..=MOST_JOBS).unwrap_or(base.max_depth),
        key_retention: section
            .duration("key_retention", up_to(LONGEST_RETENTION))
            .unwrap_or(base.key_retention),
        dead_jobs_hold_keys: section
            .bool("dead_jobs_hold_keys")
            .unwrap_or(base.dead_jobs_hold_keys),
        // Kept for no time at all is not kept.
        completed_retention: section
            .duration("completed_retention", up_to(LONGEST_RETENTION))
            .map_or(base.completed_retention, |kept| Some(kept).filter(|kept| !kept.is_zero())),
        breaker: breaker(section, &base.breaker),
        dead_letters: dead_letters(section, &base.dead_letters),
    };
    check_together(section, base, &settings);
    settings
}

/// What no key shows by itself.
fn check_together(section: &Section<'_>, base: &QueueSettings, settings: &QueueSettings) {
    let given = |key| section.get(key).map(|value| value.span());
    let (lease, run) = (settings.lease_duration, settings.max_run_time);
    if lease > run
        && let Some(at) = given("lease_duration").or_else(|| given("max_run_time"))
    {
        let (lease, run) = (human(lease), human(run));
        let message = format!("lease_duration: {lease} is longer than max_run_time, {run}");
        section.problems().report(at, message);
    }

    // Own rules were checked where they stand; inherited ones now stand on another policy.
    let Some(at) = given("policy").filter(|_| given("rules").is_none()) else {
        return;
    };
    for rule in &settings.rules {
        if let Then::Policy(over) = &rule.then
            && base.policy.apply(over).validate().is_ok()
            && let Err(error) = settings.policy.apply(over).validate()
        {
            let message =
                format!("policy: does not go with the inherited {}: {}", rule.name, error.message);
            section.problems().report(at.clone(), message);
        }
    }
}

fn breaker(section: &Section<'_>, base: &BreakerSettings) -> BreakerSettings {
    let Some(given) = section.section("breaker", BREAKER_KEYS) else {
        return base.clone();
    };
    BreakerSettings {
        failure_threshold: given
            .small_integer("failure_threshold", 1..=MOST_CALLS)
            .unwrap_or(base.failure_threshold),
        recovery_timeout: given
            .duration("recovery_timeout", Duration::from_millis(1)..=LONGEST_DELAY)
            .unwrap_or(base.recovery_timeout),
        half_open_max_calls: given
            .small_integer("half_open_max_calls", 1..=MOST_CALLS)
            .unwrap_or(base.half_open_max_calls),
        success_threshold: given
            .small_integer("success_threshold", 1..=MOST_CALLS)
            .unwrap_or(base.success_threshold),
        quiet_period: given
            .duration("quiet_period", Duration::ZERO..=LONGEST_DELAY)
            .unwrap_or(base.quiet_period),
        disabled: given.bool("disabled").unwrap_or(base.disabled),
    }
}

fn dead_letters(section: &Section<'_>, base: &DeadLetterSettings) -> DeadLetterSettings {
    let Some(given) = section.section("dead_letters", DEAD_LETTER_KEYS) else {
        return base.clone();
    };
    let retention =
        given.parsed("retention", "a duration in quotes such as \"30d\", or \"forever\"", |text| {
            match text {
                "forever" => Ok(None),
                text => duration_within(text, &(ONE_SECOND..=LONGEST_RETENTION)).map(Some),
            }
        });
    DeadLetterSettings {
        max_entries: given.integer("max_entries", 1..=MOST_JOBS).unwrap_or(base.max_entries),
        retention: retention.unwrap_or(base.retention),
        breaker: breaker(&given, &base.breaker),
    }
}

/// A number, or `"unlimited"`, with which a queue takes back what it inherits.
fn unlimited(section: &Section<'_>, key: &str, range: RangeInclusive<u64>) -> Option<Option<u64>> {
    let value = section.get(key)?;
    match value.get_ref() {
        DeValue::String(word) if word == "unlimited" => Some(None),
        DeValue::Integer(_) => section.integer(key, range).map(Some),
        _ => {
            section.wrong_type(key, "a whole number or \"unlimited\"", value);
            None
        }
    }
}
