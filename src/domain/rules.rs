//! Error rules: what a queue does about a particular error instead of its usual policy.

use std::fmt;

use super::category::FailureCategory;
use super::{failure::Failure, glob::Glob, policy::PolicyOverride};

#[derive(Clone, Debug, PartialEq)]
pub struct ErrorRule {
    /// How a decision names the rule: `rules[0]: http_status=429`, `default: ValidationError`.
    pub name: String,
    pub matcher: Matcher,
    pub then: Then,
}

impl ErrorRule {
    /// A queue's own rule, named after its place in the file and what it looks for.
    pub fn at(index: usize, matcher: Matcher, then: Then) -> Self {
        Self { name: format!("rules[{index}]: {matcher}"), matcher, then }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Then {
    Policy(PolicyOverride),
    /// Retried by the queue's patient policy, where neither job nor operator sets `max_retries`.
    Patient,
    DeadLetter,
    Release,
    /// Released, and the queue's breaker opens.
    Hold,
}

impl Then {
    /// What it changes about the policy, where the job is retried.
    pub fn policy(&self) -> Option<&PolicyOverride> {
        match self {
            Self::Policy(over) => Some(over),
            Self::Patient | Self::DeadLetter | Self::Release | Self::Hold => None,
        }
    }
}

/// What a rule looks for; everything given must be true of the error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matcher {
    /// Given by the worker or derived.
    pub category: Option<FailureCategory>,
    /// For default rules: whether the worker gave a category itself. None: it does not matter.
    pub category_given: Option<bool>,
    pub code: Option<Glob>,
    pub error_type: Option<Glob>,
    pub http_status: Option<StatusPattern>,
    /// Ignores ASCII case: libraries do not agree on how to write "Connection reset".
    pub message_contains: Option<String>,
    /// Only where the Nack says when to try again, for default rules.
    pub with_retry_after: bool,
}

impl Matcher {
    /// A rule that looks for nothing would match every error, which is what the queue's policy is
    /// for; more likely a key was left empty by mistake.
    pub fn validate(&self) -> Result<(), String> {
        if *self == Self::default() {
            return Err("a rule needs category, code, error_type, http_status or message_contains".into());
        }
        if self.code.as_ref().is_some_and(|glob| glob.as_str().is_empty()) {
            return Err("code must not be empty; write for example \"ECONNREFUSED\"".into());
        }
        if self.error_type.as_ref().is_some_and(|glob| glob.as_str().is_empty()) {
            return Err("error_type must not be empty; write for example \"Timeout*\"".into());
        }
        if self.message_contains.as_ref().is_some_and(String::is_empty) {
            return Err("message_contains must not be empty; write for example \"connection reset\"".into());
        }
        Ok(())
    }

    /// `waits`: the worker asks for a `retry_after`.
    pub fn matches(&self, failure: &Failure, waits: bool) -> bool {
        self.category.is_none_or(|category| failure.category == Some(category))
            && self.category_given.is_none_or(|given| given == failure.category_given())
            && (waits || !self.with_retry_after)
            && self.code.as_ref().is_none_or(|glob| glob.matches(&failure.code))
            && self.error_type.as_ref().is_none_or(|glob| glob.matches(&failure.error_type))
            && self.http_status.is_none_or(|pattern| pattern.matches(failure.http_status))
            && self.message_contains.as_ref().is_none_or(|part| contains_ignoring_ascii_case(&failure.message, part))
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let category = self.category.map(|c| format!("category={}", c.as_str()));
        let code = self.code.as_ref().map(|g| format!("code={}", g.as_str()));
        let error_type = self.error_type.as_ref().map(|g| format!("error_type={}", g.as_str()));
        let http_status = self.http_status.map(|s| format!("http_status={s}"));
        let message = self.message_contains.as_ref().map(|m| format!("message_contains={m:?}"));
        let parts: Vec<String> = [category, code, error_type, http_status, message].into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

/// One HTTP status, or a whole class such as `4xx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusPattern {
    Exact(u16),
    /// The first digit, 1 to 5.
    Class(u8),
}

impl StatusPattern {
    pub fn parse(text: &str) -> Result<Self, String> {
        let pattern = match text.as_bytes() {
            [class @ b'1'..=b'5', b'x', b'x'] => Some(Self::Class(class - b'0')),
            // Three digits, not a number: "+99" and "0503" are typing errors.
            [b'1'..=b'5', b'0'..=b'9', b'0'..=b'9'] => text.parse().ok().map(Self::Exact),
            _ => None,
        };
        pattern.ok_or_else(|| format!("{text:?} is not an HTTP status: write 100 to 599, or a class such as \"4xx\""))
    }

    /// `status` 0 means that the error had none.
    pub fn matches(self, status: u32) -> bool {
        match self {
            Self::Exact(wanted) => status == u32::from(wanted),
            Self::Class(digit) => status / 100 == u32::from(digit),
        }
    }
}

impl fmt::Display for StatusPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(status) => write!(f, "{status}"),
            Self::Class(digit) => write!(f, "{digit}xx"),
        }
    }
}

/// Errors that trying again does not mend are dead-lettered; a service that asks for a pause gets it; one that is down is
/// waited for. A status of 401, 403 or 404 alone is retried: an expired credential must not turn a queue into dead letters.
pub fn default_rules() -> Vec<ErrorRule> {
    use FailureCategory::{Forbidden, Invalid, NotFound, RateLimited, Timeout, Unauthorized, Unavailable, Unreachable};
    let on = |category| Matcher { category: Some(category), ..Matcher::default() };
    let rule = |matcher: Matcher, then| ErrorRule { name: format!("default: {matcher}"), matcher, then };

    let types = ["ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"];
    // A category that the worker gave says more than the name of a type.
    let types = types.map(|error_type| ErrorRule {
        name: format!("default: {error_type}"),
        matcher: Matcher { error_type: Some(Glob::new(error_type)), category_given: Some(false), ..Matcher::default() },
        then: Then::DeadLetter,
    });
    let given = [Invalid, NotFound, Unauthorized, Forbidden]
        .map(|category| rule(Matcher { category_given: Some(true), ..on(category) }, Then::DeadLetter));
    // With the category that follows from it: another one is the worker's own word, which wins.
    let statuses = [(400, Invalid), (410, NotFound), (422, Invalid)].map(|(status, category)| {
        let http_status = Some(StatusPattern::Exact(status));
        let name = format!("default: http_status={status}");
        ErrorRule { name, matcher: Matcher { http_status, ..on(category) }, then: Then::DeadLetter }
    });
    let hold = [
        rule(on(RateLimited), Then::Hold),
        ErrorRule {
            name: "default: category=unavailable with retry_after".into(),
            matcher: Matcher { with_retry_after: true, ..on(Unavailable) },
            then: Then::Hold,
        },
    ];
    let patient = [Unreachable, Timeout, Unavailable].map(|category| rule(on(category), Then::Patient));
    types.into_iter().chain(given).chain(statuses).chain(hold).chain(patient).collect()
}

/// The rule that decides: the first that matches, the queue's own before the default ones.
pub fn first_match<'a>(
    own: &'a [ErrorRule], defaults: &'a [ErrorRule], failure: &Failure, waits: bool,
) -> Option<&'a ErrorRule> {
    own.iter().chain(defaults).find(|rule| rule.matcher.matches(failure, waits))
}

pub(super) fn contains_ignoring_ascii_case(text: &str, part: &str) -> bool {
    // `windows` panics on length 0.
    part.is_empty() || text.as_bytes().windows(part.len()).any(|w| w.eq_ignore_ascii_case(part.as_bytes()))
}
