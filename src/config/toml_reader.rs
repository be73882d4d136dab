//! A table of the file, read key by key. What is wrong is noted, and reading goes on: one look finds everything.

use super::error::{RawProblem, did_you_mean};
use crate::domain::duration::{self, human};
use clap::{ValueEnum, builder::PossibleValue};
use std::cell::RefCell;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub(super) type Span = Range<usize>;

/// All that was found wrong so far.
#[derive(Debug, Default)]
pub(super) struct Problems(RefCell<Vec<RawProblem>>);

impl Problems {
    pub(super) fn report(&self, span: Span, message: impl Into<String>) {
        self.add(RawProblem { span, message: message.into(), allowed: None });
    }

    /// A word that is none of those allowed.
    pub(super) fn report_word(&self, span: Span, message: &str, word: &str, allowed: &[&str]) {
        let message = format!("{message}{}", did_you_mean(word, allowed));
        self.add(RawProblem { span, message, allowed: Some(allowed.join(", ")) });
    }

    fn add(&self, problem: RawProblem) {
        self.0.borrow_mut().push(problem);
    }

    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }

    pub(super) fn into_problems(self) -> Vec<RawProblem> {
        self.0.into_inner()
    }
}

pub(super) struct TomlReader<'a> {
    /// How messages name it: `[queues.payments]`, `breaker of [defaults]`.
    name: String,
    /// The keys that were asked for: there are no others.
    keys: RefCell<Vec<&'static str>>,
    table: &'a DeTable<'a>,
    problems: &'a Problems,
}

/// Every key that was not asked for is a problem.
impl Drop for TomlReader<'_> {
    fn drop(&mut self) {
        let keys = self.keys.get_mut();
        for key in self.table.keys() {
            let word = key.get_ref().as_ref();
            if !keys.contains(&word) {
                let place = if self.name.is_empty() { String::new() } else { format!(" in {}", self.name) };
                self.problems.report_word(key.span(), &format!("unknown key {word:?}{place}"), word, keys);
            }
        }
    }
}

impl<'a> TomlReader<'a> {
    pub(super) fn new(name: String, table: &'a DeTable<'a>, problems: &'a Problems) -> Self {
        Self { name, keys: RefCell::default(), table, problems }
    }

    pub(super) fn problems(&self) -> &'a Problems {
        self.problems
    }

    pub(super) fn get(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        let mut keys = self.keys.borrow_mut();
        if !keys.contains(&key) {
            keys.push(key);
        }
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
        &self, key: &'static str, expected: &str, read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
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

    pub(super) fn bool(&self, key: &'static str) -> Option<bool> {
        Some(self.read(key, "true or false", DeValue::as_bool)?.0)
    }

    pub(super) fn text(&self, key: &'static str) -> Option<&'a str> {
        Some(self.read(key, "text in quotes", DeValue::as_str)?.0)
    }

    /// Text, or a list of texts.
    pub(super) fn texts(&self, key: &'static str, expected: &str) -> Option<(Vec<&'a str>, Span)> {
        self.read(key, expected, |value| match value {
            DeValue::Array(items) => items.iter().map(|item| item.get_ref().as_str()).collect(),
            value => value.as_str().map(|text| vec![text]),
        })
    }

    /// Text that `parse` must accept; its error says what is wrong.
    pub(super) fn parsed<T>(
        &self, key: &'static str, expected: &str, parse: impl FnOnce(&str) -> Result<T, String>,
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
        &self, key: &'static str, allowed: &[&str], parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let (word, span) = self.read(key, "a word in quotes", DeValue::as_str)?;
        let parsed = parse(word);
        if parsed.is_none() {
            let message = format!("unknown {key} {word:?}");
            self.problems.report_word(span, &message, word, allowed);
        }
        parsed
    }

    /// One of the words of an enum.
    pub(super) fn value_of<T: ValueEnum>(&self, key: &'static str) -> Option<T> {
        let values: Vec<PossibleValue> = T::value_variants().iter().filter_map(T::to_possible_value).collect();
        let names: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
        self.word(key, &names, |word| T::from_str(word, false).ok())
    }

    pub(super) fn duration(&self, key: &'static str, range: RangeInclusive<Duration>) -> Option<Duration> {
        self.parsed(key, "a duration in quotes such as \"30s\"", |text| duration_within(text, &range))
    }

    pub(super) fn durations(&self, key: &'static str) -> Option<Vec<Duration>> {
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

    pub(super) fn integer<T>(&self, key: &'static str, range: RangeInclusive<T>) -> Option<T>
    where
        T: Copy + Display + PartialOrd + TryFrom<i128>,
    {
        let (number, span) = self.read(key, "a whole number", whole_number)?;
        let fits = T::try_from(number).ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        self.noted(key, span, fits.ok_or_else(|| format!("must be between {least} and {most}, not {number}")))
    }

    pub(super) fn float(&self, key: &'static str) -> Option<f64> {
        let number = |value: &DeValue<'_>| match value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            value => whole_number(value).map(|number| number as f64),
        };
        Some(self.read(key, "a number", number)?.0)
    }

    /// A table inside this one.
    pub(super) fn table(&self, key: &'static str) -> Option<TomlReader<'a>> {
        let (table, _) = self.read(key, "a table", DeValue::as_table)?;
        Some(self.inner(key, table))
    }

    /// Tables inside the one under this key, by names of the user's own, in the order in which they stand in the file.
    pub(super) fn tables(&self, key: &'static str) -> Option<Vec<(&'a str, TomlReader<'a>)>> {
        let (all, _) = self.read(key, "a table of tables", DeValue::as_table)?;
        let mut tables: Vec<_> = all.iter().collect();
        tables.sort_by_key(|(name, _)| name.span().start);
        let mut readers = Vec::with_capacity(tables.len());
        for (name, value) in tables {
            let name = name.get_ref().as_ref();
            let place = format!("{key}.{name:?}");
            match value.get_ref().as_table() {
                Some(table) => readers.push((name, self.inner(&place, table))),
                None => self.wrong_type(&place, "a table", value),
            }
        }
        Some(readers)
    }

    /// A table found inside this one under `key`.
    pub(super) fn inner(&self, key: &str, table: &'a DeTable<'a>) -> TomlReader<'a> {
        let name = if self.name.is_empty() { format!("[{key}]") } else { format!("{key} of {}", self.name) };
        TomlReader::new(name, table, self.problems)
    }
}

/// A whole number of any size that TOML can write; beyond that, one that no range contains.
fn whole_number(value: &DeValue<'_>) -> Option<i128> {
    let number = value.as_integer()?;
    Some(i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX))
}

pub(super) fn duration_within(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
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
