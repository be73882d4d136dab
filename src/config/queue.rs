//! One queue's keys in the file; `[defaults]` has the same ones. What is not given is inherited.

use super::toml_reader::{TomlReader, duration_within};
use super::{policy, rules};
use crate::domain::duration::human;
use crate::domain::{
    BreakerSettings, DeadLetterSettings, Glob, KeyLimits, LONGEST_DELAY, Limits, MaxRate, QueueSettings, default_rules,
};
use std::{ops::RangeInclusive, time::Duration};
use toml::de::DeValue;

/// More than any queue has, and far from any overflow.
const MOST_JOBS: u64 = 1_000_000_000_000;
const MOST_IN_FLIGHT: u64 = 1_000_000;
const MOST_CALLS: u32 = 1_000_000;
const LONGEST_RETENTION: Duration = Duration::from_secs(36_500 * 86_400);
const ONE_SECOND: Duration = Duration::from_secs(1);

/// The settings of a queue: what its table says, and the rest from `base`.
pub(super) fn read(reader: &TomlReader<'_>, base: &QueueSettings) -> QueueSettings {
    let limits = Limits::default();
    let over = policy::read(reader, &base.policy).unwrap_or_default();
    let policy = base.policy.apply(&over);
    // The other fields that are given hold for a service that is down, too.
    let patient = base.patient.as_ref().filter(|_| !over.sets_max_retries()).map(|patient| patient.apply(&over));
    let lease_duration = reader.duration("lease_duration", limits.lease_min..=limits.lease_max);
    let max_run_time = reader.duration("max_run_time", limits.lease_min..=limits.delay);
    let up_to = |longest| Duration::ZERO..=longest;
    let settings = QueueSettings {
        rules: rules::read(reader, &policy).unwrap_or_else(|| base.rules.clone()),
        policy,
        patient,
        default_rules: match reader.bool("default_rules") {
            Some(true) => default_rules(),
            Some(false) => Vec::new(),
            None => base.default_rules.clone(),
        },
        breaker: breaker(reader, &base.breaker),
        lease_duration: lease_duration.unwrap_or(base.lease_duration),
        max_run_time: max_run_time.unwrap_or(base.max_run_time),
        max_retry_after: reader.duration("max_retry_after", up_to(LONGEST_DELAY)).unwrap_or(base.max_retry_after),
        max_in_flight: unlimited(reader, "max_in_flight", 1..=MOST_IN_FLIGHT).unwrap_or(base.max_in_flight),
        max_rate: max_rate(reader).unwrap_or(base.max_rate),
        breaker_keys: breaker_keys(reader).unwrap_or_else(|| base.breaker_keys.clone()),
        max_depth: unlimited(reader, "max_depth", 1..=MOST_JOBS).unwrap_or(base.max_depth),
        key_retention: reader.duration("key_retention", up_to(LONGEST_RETENTION)).unwrap_or(base.key_retention),
        dead_jobs_hold_keys: reader.bool("dead_jobs_hold_keys").unwrap_or(base.dead_jobs_hold_keys),
        // Kept for no time at all is not kept.
        completed_retention: reader
            .duration("completed_retention", up_to(LONGEST_RETENTION))
            .map_or(base.completed_retention, |kept| Some(kept).filter(|kept| !kept.is_zero())),
        dead_letters: dead_letters(reader, &base.dead_letters),
    };
    // A value that was refused is another one here.
    let read = |key, value: Option<Duration>| value.is_some() == reader.get(key).is_some();
    if read("lease_duration", lease_duration) && read("max_run_time", max_run_time) {
        check_lease(reader, &settings);
    }
    check_rules(reader, base, &settings);
    settings
}

fn check_lease(reader: &TomlReader<'_>, settings: &QueueSettings) {
    let given = |key| reader.get(key).map(|value| value.span());
    let (lease, run) = (settings.lease_duration, settings.max_run_time);
    if lease > run
        && let Some(at) = given("lease_duration").or_else(|| given("max_run_time"))
    {
        let (lease, run) = (human(lease), human(run));
        let message = format!("lease_duration: {lease} is longer than max_run_time, {run}");
        reader.problems().report(at, message);
    }
}

/// Own rules were checked where they stand; inherited ones now stand on another policy.
fn check_rules(reader: &TomlReader<'_>, base: &QueueSettings, settings: &QueueSettings) {
    let given = |key| reader.get(key).map(|value| value.span());
    let Some(at) = given("policy").filter(|_| given("rules").is_none()) else {
        return;
    };
    for rule in &settings.rules {
        if let Some(over) = rule.then.policy()
            && base.policy.apply(over).validate().is_ok()
            && let Err(error) = settings.policy.apply(over).validate()
        {
            let message = format!("policy: does not go with the inherited {}: {}", rule.name, error.message);
            reader.problems().report(at.clone(), message);
        }
    }
}

fn max_rate(reader: &TomlReader<'_>) -> Option<Option<MaxRate>> {
    reader.parsed("max_rate", "a rate in quotes such as \"200/s\", or \"unlimited\"", |text| match text {
        "unlimited" => Ok(None),
        text => MaxRate::parse(text).map(Some),
    })
}

/// `[queues.NAME.breaker_keys."GLOB"]`, in the order in which they stand in the file.
fn breaker_keys(reader: &TomlReader<'_>) -> Option<Vec<KeyLimits>> {
    let tables = reader.tables("breaker_keys")?;
    let limits = tables.into_iter().map(|(keys, table)| KeyLimits {
        keys: Glob::new(keys),
        max_in_flight: unlimited(&table, "max_in_flight", 1..=MOST_IN_FLIGHT).flatten(),
        max_rate: max_rate(&table).flatten(),
    });
    Some(limits.collect())
}

fn breaker(reader: &TomlReader<'_>, base: &BreakerSettings) -> BreakerSettings {
    let Some(given) = reader.table("breaker") else {
        return base.clone();
    };
    BreakerSettings {
        failure_threshold: given.integer("failure_threshold", 1..=MOST_CALLS).unwrap_or(base.failure_threshold),
        first_probe: given
            .duration("first_probe", Duration::from_millis(1)..=LONGEST_DELAY)
            .unwrap_or(base.first_probe),
        recovery_timeout: given
            .duration("recovery_timeout", Duration::from_millis(1)..=LONGEST_DELAY)
            .unwrap_or(base.recovery_timeout),
        half_open_max_calls: given.integer("half_open_max_calls", 1..=MOST_CALLS).unwrap_or(base.half_open_max_calls),
        success_threshold: given.integer("success_threshold", 1..=MOST_CALLS).unwrap_or(base.success_threshold),
        outage_grace: given.duration("outage_grace", Duration::ZERO..=LONGEST_DELAY).unwrap_or(base.outage_grace),
        ramp: given.bool("ramp").unwrap_or(base.ramp),
        disabled: given.bool("disabled").unwrap_or(base.disabled),
    }
}

fn dead_letters(reader: &TomlReader<'_>, base: &DeadLetterSettings) -> DeadLetterSettings {
    let Some(given) = reader.table("dead_letters") else {
        return base.clone();
    };
    let retention =
        given.parsed("retention", "a duration in quotes such as \"30d\", or \"forever\"", |text| match text {
            "forever" => Ok(None),
            text => duration_within(text, &(ONE_SECOND..=LONGEST_RETENTION)).map(Some),
        });
    DeadLetterSettings {
        max_entries: given.integer("max_entries", 1..=MOST_JOBS).unwrap_or(base.max_entries),
        retention: retention.unwrap_or(base.retention),
        breaker: breaker(&given, &base.breaker),
    }
}

/// A number, or `"unlimited"`, with which a queue takes back what it inherits.
fn unlimited(reader: &TomlReader<'_>, key: &'static str, range: RangeInclusive<u64>) -> Option<Option<u64>> {
    let value = reader.get(key)?;
    match value.get_ref() {
        DeValue::String(word) if word == "unlimited" => Some(None),
        DeValue::Integer(_) => reader.integer(key, range).map(Some),
        _ => {
            reader.wrong_type(key, "a whole number or \"unlimited\"", value);
            None
        }
    }
}
