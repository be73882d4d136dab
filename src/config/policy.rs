//! A retry policy in the file: a preset's name, or a table.

use super::section::{Section, Span};
use crate::domain::{
    policy::{Jitter, LONGEST_DELAY, MAX_RETRIES, PolicyOverride, RetryPolicy, Strategy},
    presets::Preset,
};
use std::time::Duration;
use toml::de::DeValue;

const KEYS: &[&str] = &[
    "preset",
    "strategy",
    "base_delay",
    "factor",
    "max_delay",
    "delays",
    "jitter",
    "jitter_fraction",
    "jitter_max",
    "max_retries",
];

/// Reads `policy`, and checks it where it will stand: on top of `base`.
pub(super) fn read(section: &Section<'_>, base: &RetryPolicy) -> Option<PolicyOverride> {
    let value = section.get("policy")?;
    let problems = section.problems();
    let before = problems.count();
    let over = match value.get_ref() {
        DeValue::String(name) => named(section, value.span(), name),
        DeValue::Table(table) => from_table(&section.inner("policy", KEYS, table)),
        _ => {
            section.wrong_type("policy", "the name of a preset or a table", value);
            return None;
        }
    };
    if problems.count() == before
        && let Err(error) = base.apply(&over).validate()
    {
        problems.report(value.span(), format!("policy: {}", error.message));
    }
    Some(over)
}

fn named(section: &Section<'_>, at: Span, name: &str) -> PolicyOverride {
    let preset = Preset::parse(name);
    if preset.is_none() {
        let names = Preset::ALL.map(Preset::name);
        section.problems().report_word(at, &format!("unknown preset {name:?}"), name, &names);
    }
    PolicyOverride { preset, ..PolicyOverride::default() }
}

fn from_table(table: &Section<'_>) -> PolicyOverride {
    let delay = |key| table.duration(key, Duration::ZERO..=LONGEST_DELAY);
    let over = PolicyOverride {
        preset: table.word("preset", &Preset::ALL.map(Preset::name), Preset::parse),
        max_retries: table.small_integer("max_retries", 0..=MAX_RETRIES),
        strategy: table.word("strategy", &Strategy::ALL.map(Strategy::as_str), Strategy::parse),
        base_delay: delay("base_delay"),
        factor: table.float("factor"),
        max_delay: delay("max_delay"),
        delays: table.durations("delays").unwrap_or_default(),
        jitter: table.word("jitter", &Jitter::ALL.map(Jitter::as_str), Jitter::parse),
        jitter_fraction: table.float("jitter_fraction"),
        jitter_max: delay("jitter_max"),
    };
    for problem in over.problems() {
        if let Some(value) = table.get(problem.field) {
            table.problems().report(value.span(), problem.to_string());
        }
    }
    over
}
