//! What a reload changes, in the words of the file.

use crate::domain::duration::human;
use crate::domain::{BreakerSettings, DeadLetterSettings, ErrorRule, KeyLimits, QueueSettings, RetryPolicy, Settings};
use std::collections::BTreeSet;
use std::time::Duration;

/// A line for each key of each queue that has another value in `new`: `queue payments: policy.max_retries 3 -> 8`.
pub fn changes(old: &Settings, new: &Settings) -> Vec<String> {
    let mut lines = of_queue("[defaults]", &old.defaults, &new.defaults);
    let names: BTreeSet<_> = old.queues.keys().chain(new.queues.keys()).collect();
    for name in names {
        let label = format!("queue {name}");
        match (old.queues.contains_key(name), new.queues.contains_key(name)) {
            (false, true) => lines.push(format!("{label}: new in the file")),
            (true, false) => lines.push(format!("{label}: no longer in the file")),
            _ => {}
        }
        lines.extend(of_queue(&label, old.queue(name), new.queue(name)));
    }
    lines
}

fn of_queue(label: &str, old: &QueueSettings, new: &QueueSettings) -> Vec<String> {
    let mut lines = Vec::new();
    for ((key, before), (_, after)) in keys(old).into_iter().zip(keys(new)) {
        if before != after {
            lines.push(format!("{label}: {key} {before} -> {after}"));
        }
    }
    // It changes with a field that is set to what it was by default, too.
    let (before, after) = (old.policy_of_outages(), new.policy_of_outages());
    if before != after {
        let waits =
            |policy: Option<&RetryPolicy>| policy.map_or_else(|| "as other failures".into(), RetryPolicy::horizon);
        lines.push(format!("{label}: what is down {} -> {}", waits(before), waits(after)));
    }
    for (key, before, after) in
        [("rules", &old.rules, &new.rules), ("default_rules", &old.default_rules, &new.default_rules)]
    {
        if before != after {
            let other = if before.len() == after.len() { "other " } else { "" };
            lines.push(format!("{label}: {key} {} -> {}", in_words("", before), in_words(other, after)));
        }
    }
    lines
}

/// A rule is too long for a line of the log: how many there are, and that they differ, is said.
fn in_words(other: &str, rules: &[ErrorRule]) -> String {
    match rules {
        [] => "none".into(),
        [_] => format!("1 {other}rule"),
        rules => format!("{} {other}rules", rules.len()),
    }
}

/// Every key but the rules with its value. Written out, so that none is forgotten.
fn keys(settings: &QueueSettings) -> Vec<(String, String)> {
    let QueueSettings {
        policy,
        // [`of_queue`] compares it.
        patient: _,
        rules: _,
        default_rules: _,
        lease_duration,
        max_run_time,
        max_retry_after,
        max_in_flight,
        max_rate,
        breaker_keys,
        max_depth,
        key_retention,
        dead_jobs_hold_keys,
        completed_retention,
        breaker,
        dead_letters,
    } = settings;
    let mut keys = of_policy(policy);
    let mut add = |key: &str, value: String| keys.push((key.to_owned(), value));
    add("lease_duration", human(*lease_duration));
    add("max_run_time", human(*max_run_time));
    add("max_retry_after", human(*max_retry_after));
    let unlimited = || "unlimited".to_owned();
    add("max_in_flight", max_in_flight.map_or_else(unlimited, |most| most.to_string()));
    add("max_rate", max_rate.map_or_else(unlimited, |rate| rate.to_string()));
    add("breaker_keys", of_breaker_keys(breaker_keys));
    add("max_depth", max_depth.map_or_else(unlimited, |depth| depth.to_string()));
    add("key_retention", human(*key_retention));
    add("dead_jobs_hold_keys", dead_jobs_hold_keys.to_string());
    add("completed_retention", human(completed_retention.unwrap_or(Duration::ZERO)));
    keys.extend(of_breaker("breaker", breaker));
    let DeadLetterSettings { max_entries, retention, breaker } = dead_letters;
    keys.push(("dead_letters.max_entries".into(), max_entries.to_string()));
    keys.push(("dead_letters.retention".into(), retention.map_or_else(|| "forever".into(), human)));
    keys.extend(of_breaker("dead_letters.breaker", breaker));
    keys
}

fn of_breaker_keys(limits: &[KeyLimits]) -> String {
    let one = |KeyLimits { keys, max_in_flight, max_rate }: &KeyLimits| {
        let in_flight = max_in_flight.map(|most| format!(" max_in_flight {most}")).unwrap_or_default();
        let rate = max_rate.map(|rate| format!(" max_rate {rate}")).unwrap_or_default();
        format!("{:?}{in_flight}{rate}", keys.as_str())
    };
    match limits {
        [] => "none".into(),
        limits => limits.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

fn of_policy(policy: &RetryPolicy) -> Vec<(String, String)> {
    let RetryPolicy {
        max_retries,
        strategy,
        base_delay,
        factor,
        max_delay,
        delays,
        jitter,
        jitter_fraction,
        jitter_max,
    } = policy;
    let delays: Vec<String> = delays.iter().map(|delay| human(*delay)).collect();
    [
        ("max_retries", max_retries.to_string()),
        ("strategy", strategy.as_str().to_owned()),
        ("base_delay", human(*base_delay)),
        ("factor", factor.to_string()),
        ("max_delay", human(*max_delay)),
        ("delays", format!("[{}]", delays.join(", "))),
        ("jitter", jitter.as_str().to_owned()),
        ("jitter_fraction", jitter_fraction.to_string()),
        ("jitter_max", human(*jitter_max)),
    ]
    .map(|(key, value)| (format!("policy.{key}"), value))
    .into()
}

fn of_breaker(name: &str, breaker: &BreakerSettings) -> Vec<(String, String)> {
    let BreakerSettings {
        failure_threshold,
        recovery_timeout,
        half_open_max_calls,
        success_threshold,
        first_probe,
        outage_grace,
        ramp,
        disabled,
    } = breaker;
    [
        ("failure_threshold", failure_threshold.to_string()),
        ("recovery_timeout", human(*recovery_timeout)),
        ("half_open_max_calls", half_open_max_calls.to_string()),
        ("success_threshold", success_threshold.to_string()),
        ("first_probe", human(*first_probe)),
        ("outage_grace", human(*outage_grace)),
        ("ramp", ramp.to_string()),
        ("disabled", disabled.to_string()),
    ]
    .map(|(key, value)| (format!("{name}.{key}"), value))
    .into()
}
