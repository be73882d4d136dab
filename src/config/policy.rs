//! A retry policy in the file: a preset's name, or a table.

use super::toml_reader::{Span, TomlReader};
use crate::domain::{Jitter, LONGEST_DELAY, MAX_RETRIES, PolicyOverride, Preset, RetryPolicy, Strategy};
use std::time::Duration;
use toml::de::DeValue;

/// Reads `policy`, and checks it where it will stand: on top of `base`.
pub(super) fn read(reader: &TomlReader<'_>, base: &RetryPolicy) -> Option<PolicyOverride> {
    let value = reader.get("policy")?;
    let problems = reader.problems();
    let before = problems.count();
    let over = match value.get_ref() {
        DeValue::String(name) => named(reader, value.span(), name),
        DeValue::Table(table) => from_table(&reader.inner("policy", table)),
        _ => {
            reader.wrong_type("policy", "the name of a preset or a table", value);
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

fn named(reader: &TomlReader<'_>, at: Span, name: &str) -> PolicyOverride {
    let preset = Preset::parse(name);
    if preset.is_none() {
        let names = Preset::ALL.map(Preset::as_str);
        reader.problems().report_word(at, &format!("unknown preset {name:?}"), name, &names);
    }
    PolicyOverride { preset, ..PolicyOverride::default() }
}

fn from_table(table: &TomlReader<'_>) -> PolicyOverride {
    let delay = |key| table.duration(key, Duration::ZERO..=LONGEST_DELAY);
    let over = PolicyOverride {
        preset: table.word("preset", &Preset::ALL.map(Preset::as_str), Preset::parse),
        strategy: table.word("strategy", &Strategy::ALL.map(Strategy::as_str), Strategy::parse),
        base_delay: delay("base_delay"),
        factor: table.float("factor"),
        max_delay: delay("max_delay"),
        delays: table.durations("delays").unwrap_or_default(),
        jitter: table.word("jitter", &Jitter::ALL.map(Jitter::as_str), Jitter::parse),
        jitter_fraction: table.float("jitter_fraction"),
        jitter_max: delay("jitter_max"),
        max_retries: table.integer("max_retries", 0..=MAX_RETRIES),
    };
    for problem in over.problems() {
        if let Some(value) = table.get(problem.field) {
            table.problems().report(value.span(), problem.to_string());
        }
    }
    over
}
