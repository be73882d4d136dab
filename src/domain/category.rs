//! The category of a failure: what went wrong in words that every language shares, whatever its library calls it.

use super::failure::{Failure, MESSAGE_CHARS, head};
use super::macros::named;
use aho_corasick::AhoCorasick;
use std::collections::HashMap;
use std::sync::LazyLock;

named! {
    FailureCategory {
        /// Refused, reset, DNS, TLS.
        Unreachable = "unreachable",
        Timeout = "timeout",
        /// Overloaded, in maintenance.
        Unavailable = "unavailable",
        RateLimited = "rate-limited",
        Invalid = "invalid",
        NotFound = "not-found",
        Unauthorized = "unauthorized",
        Forbidden = "forbidden",
        /// Locks, deadlocks, versions.
        Conflict = "conflict",
        Internal = "internal",
    }
}

/// Names of well-known errors, with the category of each.
pub const ERROR_CATEGORIES: &str = include_str!("error_categories.txt");

static TABLE: LazyLock<CategoryTable<'static>> = LazyLock::new(|| CategoryTable::read(ERROR_CATEGORIES).0);

impl Failure {
    /// By the worker, not derived.
    pub(super) fn category_given(&self) -> bool {
        self.category.is_some() && !self.category_derived
    }

    /// With the category that its other fields speak for, where the worker gave none.
    pub fn with_category(mut self) -> Self {
        self.category_derived = false;
        if self.category.is_none() {
            self.category = derived_category(&self);
            self.category_derived = self.category.is_some();
        }
        self
    }
}

/// The category by status, code, type and message, in this order. None: nothing about it is known.
pub fn derived_category(failure: &Failure) -> Option<FailureCategory> {
    let message = head(&failure.message, MESSAGE_CHARS);
    of_status(failure.http_status)
        .or_else(|| TABLE.of_code(&failure.code))
        .or_else(|| of_type(&TABLE.types, &failure.error_type))
        .or_else(|| TABLE.of_message(message))
        .or_else(|| of_type(&TABLE.fallbacks, &failure.error_type))
}

fn of_status(status: u32) -> Option<FailureCategory> {
    Some(match status {
        400 | 422 => FailureCategory::Invalid,
        401 => FailureCategory::Unauthorized,
        403 => FailureCategory::Forbidden,
        404 | 410 => FailureCategory::NotFound,
        408 | 504 => FailureCategory::Timeout,
        409 => FailureCategory::Conflict,
        429 => FailureCategory::RateLimited,
        502 | 503 => FailureCategory::Unavailable,
        500..=599 => FailureCategory::Internal,
        _ => return None,
    })
}

/// The whole name, or what stands behind its last separator: `java.net.ConnectException`, `sqlx::Error`, `*url.Error`.
fn of_type(table: &HashMap<&str, FailureCategory>, name: &str) -> Option<FailureCategory> {
    let name = name.trim_start_matches(['*', '&']);
    let short = name.rsplit(['.', ':', '$', '\\']).next().unwrap_or(name);
    table.get(name).or_else(|| table.get(short)).copied()
}

/// The data file, read.
#[derive(Default)]
pub struct CategoryTable<'a> {
    codes: HashMap<String, FailureCategory>,
    sqlstates: Vec<(&'a str, FailureCategory)>,
    types: HashMap<&'a str, FailureCategory>,
    fallbacks: HashMap<&'a str, FailureCategory>,
    /// What stands before and behind a status.
    statuses: Vec<(&'a str, &'a str)>,
    messages: Vec<(&'a str, FailureCategory)>,
    /// All of them at once: every failure of a library that is not known is looked through.
    in_messages: Option<AhoCorasick>,
}

impl<'a> CategoryTable<'a> {
    /// The table, and the lines and names that mean nothing or contradict an earlier one.
    pub fn read(text: &'a str) -> (Self, Vec<String>) {
        let (mut table, mut problems) = (Self::default(), Vec::new());
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if table.read_line(line, &mut problems).is_none() {
                problems.push(format!("not understood: {line}"));
            }
        }
        let parts = table.messages.iter().map(|(part, _)| part);
        match AhoCorasick::builder().ascii_case_insensitive(true).build(parts) {
            Ok(found) => table.in_messages = Some(found),
            Err(error) => problems.push(error.to_string()),
        }
        (table, problems)
    }

    fn read_line(&mut self, line: &'a str, problems: &mut Vec<String>) -> Option<()> {
        let (head, patterns) = line.split_once(": ")?;
        let parts = patterns.split(" | ").map(str::trim);
        if head == "status" {
            for part in parts {
                self.statuses.push(part.split_once("###")?);
            }
            return Some(());
        }
        let (kind, category) = head.split_once(' ')?;
        let category = FailureCategory::parse(category)?;
        let mut noted = |name: &str, before: Option<FailureCategory>| {
            if before.is_some_and(|before| before != category) {
                problems.push(format!("{kind} {name} has two categories"));
            }
        };
        let names = patterns.split_whitespace();
        match kind {
            "code" => names.for_each(|name| noted(name, self.codes.insert(plain(name), category))),
            "type" => names.for_each(|name| noted(name, self.types.insert(name, category))),
            "fallback" => names.for_each(|name| noted(name, self.fallbacks.insert(name, category))),
            "sqlstate" => self.sqlstates.extend(names.map(|name| (name, category))),
            "message" => self.messages.extend(parts.map(|part| (part, category))),
            _ => return None,
        }
        Some(())
    }

    fn of_code(&self, code: &str) -> Option<FailureCategory> {
        if code.is_empty() {
            return None;
        }
        // urllib and many clients of HTTP services have the status there. Exit codes end at 255.
        let status = || of_status(code.parse().ok().filter(|_| code.len() == 3)?);
        self.codes.get(&plain(code)).copied().or_else(status).or_else(|| self.of_sqlstate(code))
    }

    fn of_sqlstate(&self, code: &str) -> Option<FailureCategory> {
        let is_sqlstate = code.len() == 5 && code.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
        let fitting = self.sqlstates.iter().filter(|(start, _)| is_sqlstate && code.starts_with(start));
        fitting.max_by_key(|(start, _)| start.len()).map(|(_, category)| *category)
    }

    fn of_message(&self, message: &str) -> Option<FailureCategory> {
        let words = message.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        // In small letters they are words of a sentence: "internal", "aborted".
        let names = words.filter(|word| word.len() > 4 && !word.bytes().any(|b| b.is_ascii_lowercase()));
        let by_code = names.filter_map(|name| self.codes.get(&plain(name)).copied()).next();
        let has_digits = || message.bytes().any(|byte| byte.is_ascii_digit());
        let status = || self.statuses.iter().find_map(|pattern| of_status(status_in(message, *pattern)?));
        let by_status = || if has_digits() { status() } else { None };
        // The first of the table, not of the message.
        let by_part = || {
            let found = self.in_messages.as_ref()?.find_overlapping_iter(message);
            Some(self.messages[found.map(|it| it.pattern().as_usize()).min()?].1)
        };
        by_code.or_else(by_status).or_else(by_part)
    }
}

/// How a code is compared: `DEADLINE_EXCEEDED` and `DeadlineExceeded` are one.
fn plain(code: &str) -> String {
    code.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).map(|c| c.to_ascii_lowercase()).collect()
}

/// The three digits between `before` and `after`.
fn status_in(message: &str, (before, after): (&str, &str)) -> Option<u32> {
    let (message, before, after) = (message.as_bytes(), before.as_bytes(), after.as_bytes());
    let found = message.windows(before.len() + 3 + after.len()).enumerate().find_map(|(at, window)| {
        let (start, rest) = window.split_at(before.len());
        let (digits, end) = rest.split_at(3);
        let next = message.get(at + window.len());
        let whole = !after.is_empty() || next.is_none_or(|byte| !byte.is_ascii_digit());
        let fits = start.eq_ignore_ascii_case(before) && end.eq_ignore_ascii_case(after) && whole;
        (fits && digits.iter().all(u8::is_ascii_digit)).then_some(digits)
    })?;
    std::str::from_utf8(found).ok()?.parse().ok()
}
