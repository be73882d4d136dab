//! A table of the file, read key by key. What is wrong is noted, and reading goes on: one look finds everything.

use super::error::{Found, did_you_mean};
use crate::domain::duration::{self, human};
use std::{
    cell::RefCell,
    ops::{Range, RangeInclusive},
    time::Duration,
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

pub(super) type Span = Range<usize>;

/// All that was found wrong so far.
#[derive(Debug, Default)]
pub(super) struct Problems(RefCell<Vec<Found>>);

impl Problems {
    pub(super) fn report(&self, span: Span, message: impl Into<String>) {
        self.add(Found { span, message: message.into(), allowed: None });
    }

    /// A word that is none of those allowed.
    pub(super) fn report_word(&self, span: Span, message: &str, word: &str, allowed: &[&str]) {
        let message = format!("{message}{}", did_you_mean(word, allowed));
        self.add(Found { span, message, allowed: Some(allowed.join(", ")) });
    }

    fn add(&self, found: Found) {
        self.0.borrow_mut().push(found);
    }

    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }

    pub(super) fn into_found(self) -> Vec<Found> {
        self.0.into_inner()
    }
}

pub(super) struct Section<'a> {
    /// How messages name it: `[queues.payments]`, `breaker of [defaults]`.
    name: String,
    keys: &'static [&'static str],
    table: &'a DeTable<'a>,
    problems: &'a Problems,
}

impl<'a> Section<'a> {
    /// Every key that is not one of `keys` is a problem.
    pub(super) fn new(
        name: String,
        keys: &'static [&'static str],
        table: &'a DeTable<'a>,
        problems: &'a Problems,
    ) -> Self {
        for key in table.keys() {
            let word = key.get_ref().as_ref();
            if !keys.contains(&word) {
                let message = if name.is_empty() {
                    format!("unknown key {word:?}")
                } else {
                    format!("unknown key {word:?} in {name}")
                };
                problems.report_word(key.span(), &message, word, keys);
            }
        }
        Self { name, keys, table, problems }
    }

    pub(super) fn problems(&self) -> &'a Problems {
        self.problems
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        debug_assert!(self.keys.contains(&key), "{key} is missing in the list of keys");
        self.table.get(key)
    }

    /// Where the key itself stands.
    pub(super) fn key_span(&self, key: &str) -> Option<Span> {
        self.table.get_key_value(key).map(|(key, _)| key.span())
    }

    pub(super) fn wrong_type(&self, key: &str, expected: &str, value: &Spanned<DeValue<'_>>) {
        let found = article(value.get_ref().type_str());
        self.problems.report(value.span(), format!("{key}: must be {expected}, not {found}"));
    }

    /// A value that this reader understands, or a note of what was expected.
    fn read<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Option<(T, Span)> {
        let value = self.get(key)?;
        match read(value.get_ref()) {
            Some(read) => Some((read, value.span())),
            None => {
                self.wrong_type(key, expected, value);
                None
            }
        }
    }

    pub(super) fn bool(&self, key: &str) -> Option<bool> {
        Some(self.read(key, "true or false", DeValue::as_bool)?.0)
    }

    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        Some(self.read(key, "text in quotes", DeValue::as_str)?.0)
    }

    /// Text, or a list of texts.
    pub(super) fn texts(&self, key: &str, expected: &str) -> Option<(Vec<&'a str>, Span)> {
        self.read(key, expected, |value| match value {
            DeValue::Array(items) => items.iter().map(|item| item.get_ref().as_str()).collect(),
            value => value.as_str().map(|text| vec![text]),
        })
    }

    /// Text that `parse` must accept; its error says what is wrong.
    pub(super) fn parsed<T>(
        &self,
        key: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (text, span) = self.read(key, expected, DeValue::as_str)?;
        self.noted(key, span, parse(text))
    }

    /// The value, or a note of what is wrong with it.
    pub(super) fn noted<T>(&self, key: &str, at: Span, read: Result<T, String>) -> Option<T> {
        read.map_err(|why| self.problems.report(at, format!("{key}: {why}"))).ok()
    }

    /// One of a few words.
    pub(super) fn word<T>(
        &self,
        key: &str,
        allowed: &[&str],
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let (word, span) = self.read(key, "a word in quotes", DeValue::as_str)?;
        let parsed = parse(word);
        if parsed.is_none() {
            let message = format!("unknown {key} {word:?}");
            self.problems.report_word(span, &message, word, allowed);
        }
        parsed
    }

    pub(super) fn duration(&self, key: &str, range: RangeInclusive<Duration>) -> Option<Duration> {
        self.parsed(key, "a duration in quotes such as \"30s\"", |text| {
            duration_within(text, &range)
        })
    }

    pub(super) fn durations(&self, key: &str) -> Option<Vec<Duration>> {
        let expected = "a list of durations such as [\"1s\", \"1m\"]";
        let (items, span) = self.read(key, expected, DeValue::as_array)?;
        if items.is_empty() {
            self.problems.report(span, format!("{key}: give at least one, or leave the key out"));
        }
        let read = |item: &Spanned<DeValue<'_>>| match item.get_ref().as_str() {
            Some(text) => self.noted(key, item.span(), duration::parse(text)),
            None => {
                self.wrong_type(key, expected, item);
                None
            }
        };
        Some(items.iter().filter_map(read).collect())
    }

    pub(super) fn integer(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let (number, span) = self.read(key, "a whole number", whole_number)?;
        self.noted(key, span, number_within(number, &range))
    }

    pub(super) fn small_integer(&self, key: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        self.integer(key, range).and_then(|number| u32::try_from(number).ok())
    }

    pub(super) fn float(&self, key: &str) -> Option<f64> {
        let number = |value: &DeValue<'_>| match value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            value => whole_number(value).map(|number| number as f64),
        };
        Some(self.read(key, "a number", number)?.0)
    }

    /// A table inside this one.
    pub(super) fn section(&self, key: &str, keys: &'static [&'static str]) -> Option<Section<'a>> {
        let (table, _) = self.read(key, "a table", DeValue::as_table)?;
        Some(self.inner(key, keys, table))
    }

    /// A table found inside this one under `key`.
    pub(super) fn inner(
        &self,
        key: &str,
        keys: &'static [&'static str],
        table: &'a DeTable<'a>,
    ) -> Section<'a> {
        let name = if self.name.is_empty() {
            format!("[{key}]")
        } else {
            format!("{key} of {}", self.name)
        };
        Section::new(name, keys, table, self.problems)
    }
}

/// A whole number of any size that TOML can write; beyond that, one that no range contains.
fn whole_number(value: &DeValue<'_>) -> Option<i128> {
    let number = value.as_integer()?;
    Some(i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX))
}

fn number_within(number: i128, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let fits = u64::try_from(number).ok().filter(|number| range.contains(number));
    fits.ok_or_else(|| {
        format!("must be between {} and {}, not {number}", range.start(), range.end())
    })
}

pub(super) fn duration_within(
    text: &str,
    range: &RangeInclusive<Duration>,
) -> Result<Duration, String> {
    let given = duration::parse(text)?;
    let (least, most) = (*range.start(), *range.end());
    if range.contains(&given) {
        Ok(given)
    } else if least.is_zero() {
        Err(format!("must be at most {}, not {}", human(most), human(given)))
    } else {
        let (least, most, given) = (human(least), human(most), human(given));
        Err(format!("must be between {least} and {most}, not {given}"))
    }
}

fn article(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
    format!("{article} {kind}")
}
