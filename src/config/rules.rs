//! Error rules in the file.

use super::{policy, toml_reader::TomlReader};
use crate::domain::{ErrorRule, FailureCategory, Glob, Matcher, RetryPolicy, StatusPattern, Then};
use toml::{Spanned, de::DeValue};

const ACTIONS: [&str; 3] = ["dead-letter", "release", "hold"];

/// Reads `rules`; their policies stand on top of the queue's.
pub(super) fn read(reader: &TomlReader<'_>, queue: &RetryPolicy) -> Option<Vec<ErrorRule>> {
    let value = reader.get("rules")?;
    let wrong = |value: &Spanned<DeValue<'_>>| {
        let expected = "a list of tables such as [{ http_status = \"429\", action = \"hold\" }]";
        reader.wrong_type("rules", expected, value);
    };
    let Some(items) = value.get_ref().as_array() else {
        wrong(value);
        return None;
    };
    let mut rules = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match item.get_ref().as_table() {
            Some(table) => {
                let name = format!("rules[{index}]");
                let rule = reader.inner(&name, table);
                rules.extend(read_one(&rule, index, item, queue));
            }
            None => wrong(item),
        }
    }
    Some(rules)
}

fn read_one(
    rule: &TomlReader<'_>, index: usize, item: &Spanned<DeValue<'_>>, queue: &RetryPolicy,
) -> Option<ErrorRule> {
    let problems = rule.problems();
    let before = problems.count();
    let matcher = Matcher {
        category: rule.word("category", &FailureCategory::ALL.map(FailureCategory::as_str), FailureCategory::parse),
        code: rule.text("code").map(Glob::new),
        error_type: rule.text("error_type").map(Glob::new),
        http_status: read_status(rule),
        message_contains: rule.text("message_contains").map(str::to_owned),
        ..Matcher::default()
    };
    // A key that could not be read has been reported; without it the rest means nothing.
    if problems.count() == before
        && let Err(why) = matcher.validate()
    {
        problems.report(item.span(), format!("rules[{index}]: {why}"));
    }
    let over = policy::read(rule, queue).map(Then::Policy);
    let action = rule.word("action", &ACTIONS, |word| match word {
        "dead-letter" => Some(Then::DeadLetter),
        "release" => Some(Then::Release),
        "hold" => Some(Then::Hold),
        _ => None,
    });
    match (rule.key_span("action"), rule.key_span("policy")) {
        (Some(at), Some(_)) => {
            problems.report(at, format!("rules[{index}]: has both policy and action; keep one"));
        }
        (None, None) => {
            problems.report(item.span(), format!("rules[{index}]: needs a policy or an action"));
        }
        _ => {}
    }
    Some(ErrorRule::at(index, matcher, action.or(over)?))
}

/// `503`, `"503"` or `"5xx"`.
fn read_status(rule: &TomlReader<'_>) -> Option<StatusPattern> {
    let value = rule.get("http_status")?;
    let parsed = match value.get_ref() {
        DeValue::String(text) => StatusPattern::parse(text),
        DeValue::Integer(number) => StatusPattern::parse(&number.to_string()),
        _ => {
            rule.wrong_type("http_status", "a status such as \"503\" or \"5xx\"", value);
            return None;
        }
    };
    rule.noted("http_status", value.span(), parsed)
}
