//! Error rules: what a queue does about a particular error instead of its usual policy.

use std::fmt;

use super::glob::Glob;
use super::policy::PolicyOverride;

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
    DeadLetter,
    Release,
    /// Released, and the queue's breaker opens.
    Hold,
}

/// What a rule looks for; everything given must be true of the error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matcher {
    pub error_type: Option<Glob>,
    pub http_status: Option<StatusPattern>,
    /// Ignores ASCII case: libraries do not agree on how to write "Connection reset".
    pub message_contains: Option<String>,
}

impl Matcher {
    /// A rule that looks for nothing would match every error, which is what the queue's policy is
    /// for; more likely a key was left empty by mistake.
    pub fn validate(&self) -> Result<(), String> {
        if *self == Self::default() {
            return Err("a rule needs error_type, http_status or message_contains".into());
        }
        if self.error_type.as_ref().is_some_and(|glob| glob.as_str().is_empty()) {
            return Err("error_type must not be empty; write for example \"Timeout*\"".into());
        }
        if self.message_contains.as_ref().is_some_and(String::is_empty) {
            return Err(
                "message_contains must not be empty; write for example \"connection reset\"".into(),
            );
        }
        Ok(())
    }

    pub fn matches(&self, error: &ErrorFacts<'_>) -> bool {
        self.error_type.as_ref().is_none_or(|glob| glob.matches(error.error_type))
            && self.http_status.is_none_or(|pattern| pattern.matches(error.http_status))
            && self
                .message_contains
                .as_ref()
                .is_none_or(|part| contains_ignoring_ascii_case(error.message, part))
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error_type = self.error_type.as_ref().map(|g| format!("error_type={}", g.as_str()));
        let http_status = self.http_status.map(|s| format!("http_status={s}"));
        let message = self.message_contains.as_ref().map(|m| format!("message_contains={m:?}"));
        let parts: Vec<String> = [error_type, http_status, message].into_iter().flatten().collect();
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
        pattern.ok_or_else(|| {
            format!("{text:?} is not an HTTP status: write 100 to 599, or a class such as \"4xx\"")
        })
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

/// What the rules look at in a failure.
#[derive(Clone, Copy, Debug)]
pub struct ErrorFacts<'a> {
    pub error_type: &'a str,
    pub message: &'a str,
    /// 0: none.
    pub http_status: u32,
}

/// Errors that trying again does not mend.
pub fn default_rules() -> Vec<ErrorRule> {
    ["ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"]
        .map(|error_type| ErrorRule {
            name: format!("default: {error_type}"),
            matcher: Matcher { error_type: Some(Glob::new(error_type)), ..Matcher::default() },
            then: Then::DeadLetter,
        })
        .into()
}

/// The rule that decides: the first that matches, the queue's own before the default ones.
pub fn first_match<'a>(
    own: &'a [ErrorRule],
    defaults: &'a [ErrorRule],
    error: &ErrorFacts<'_>,
) -> Option<&'a ErrorRule> {
    own.iter().chain(defaults).find(|rule| rule.matcher.matches(error))
}

pub(super) fn contains_ignoring_ascii_case(text: &str, part: &str) -> bool {
    // `windows` panics on length 0.
    part.is_empty()
        || text.as_bytes().windows(part.len()).any(|w| w.eq_ignore_ascii_case(part.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::presets::Preset;
    use proptest::prelude::*;

    fn error<'a>(error_type: &'a str, message: &'a str, http_status: u32) -> ErrorFacts<'a> {
        ErrorFacts { error_type, message, http_status }
    }

    fn on_type(pattern: &str) -> Matcher {
        Matcher { error_type: Some(Glob::new(pattern)), ..Matcher::default() }
    }

    fn on_status(pattern: &str) -> Matcher {
        let http_status = Some(StatusPattern::parse(pattern).expect("a valid status"));
        Matcher { http_status, ..Matcher::default() }
    }

    fn on_message(part: &str) -> Matcher {
        Matcher { message_contains: Some(part.into()), ..Matcher::default() }
    }

    fn preset(preset: Preset) -> Then {
        Then::Policy(PolicyOverride { preset: Some(preset), ..PolicyOverride::default() })
    }

    /// The rules of the configuration example.
    fn payments() -> Vec<ErrorRule> {
        vec![
            ErrorRule::at(0, on_status("429"), Then::Hold),
            ErrorRule::at(1, on_status("408"), preset(Preset::Transient)),
            ErrorRule::at(2, on_status("4xx"), Then::DeadLetter),
            ErrorRule::at(3, on_type("PlexNotFound*"), preset(Preset::LibraryScan)),
        ]
    }

    #[track_caller]
    fn decides(own: &[ErrorRule], error: ErrorFacts<'_>, name: Option<&str>) {
        let defaults = default_rules();
        let rule = first_match(own, &defaults, &error);
        assert_eq!(rule.map(|rule| rule.name.as_str()), name, "{error:?}");
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let own = payments();
        decides(&own, error("E", "", 429), Some("rules[0]: http_status=429"));
        decides(&own, error("E", "", 408), Some("rules[1]: http_status=408"));
        decides(&own, error("E", "", 404), Some("rules[2]: http_status=4xx"));
        decides(&own, error("PlexNotFound", "", 0), Some("rules[3]: error_type=PlexNotFound*"));
        decides(&own, error("PlexNotFound", "", 404), Some("rules[2]: http_status=4xx"));
        decides(&own, error("E", "", 500), None);
    }

    #[test]
    fn errors_beyond_mending_are_dead_lettered_by_default() {
        let defaults = default_rules();
        for error_type in [
            "ValidationError",
            "NotFoundError",
            "UnauthorizedError",
            "ForbiddenError",
            "SyntaxError",
        ] {
            let error = error(error_type, "", 0);
            decides(&[], error, Some(&format!("default: {error_type}")));
            let rule = first_match(&[], &defaults, &error).expect("a default rule");
            assert_eq!(rule.then, Then::DeadLetter);
        }
        decides(&[], error("TimeoutError", "", 0), None);
        decides(&[], error("MyValidationError", "", 0), None);
        assert_eq!(defaults.len(), 5);
    }

    #[test]
    fn a_queues_own_rule_goes_before_the_default_ones() {
        let own = [ErrorRule::at(0, on_type("*Error"), Then::Release)];
        decides(&own, error("ValidationError", "", 0), Some("rules[0]: error_type=*Error"));
    }

    #[test]
    fn a_queue_without_default_rules_has_only_its_own() {
        assert_eq!(first_match(&[], &[], &error("ValidationError", "", 0)), None);
    }

    #[test]
    fn everything_a_rule_looks_for_must_be_true() {
        let matcher = Matcher {
            error_type: Some(Glob::new("Http*")),
            http_status: Some(StatusPattern::Class(5)),
            message_contains: Some("Try Later".into()),
        };
        assert!(matcher.matches(&error("HttpError", "please try later.", 503)));
        assert!(!matcher.matches(&error("IoError", "please try later.", 503)));
        assert!(!matcher.matches(&error("HttpError", "please try later.", 404)));
        assert!(!matcher.matches(&error("HttpError", "go away", 503)));
        assert_eq!(
            matcher.to_string(),
            "error_type=Http*, http_status=5xx, message_contains=\"Try Later\""
        );
    }

    #[test]
    fn an_error_without_a_status_matches_no_status() {
        assert!(!on_status("5xx").matches(&error("E", "", 0)));
        assert!(!on_status("100").matches(&error("E", "", 0)));
    }

    #[test]
    fn a_class_covers_its_hundred_and_nothing_else() {
        let class = StatusPattern::parse("4xx").expect("a class");
        assert!([400, 404, 499].into_iter().all(|status| class.matches(status)));
        assert!(![0, 4, 40, 399, 500, 4_000].into_iter().any(|status| class.matches(status)));
    }

    #[test]
    fn a_status_that_cannot_be_is_refused_with_what_can() {
        for text in ["", "5", "5x", "6xx", "0xx", "4XX", "099", "600", "+99", "0503", "x", "5é"] {
            let error = StatusPattern::parse(text).expect_err(text);
            assert_eq!(
                error,
                format!(
                    "{text:?} is not an HTTP status: write 100 to 599, or a class such as \"4xx\""
                )
            );
        }
        for text in ["100", "429", "599", "1xx", "5xx"] {
            let pattern = StatusPattern::parse(text).map(|pattern| pattern.to_string());
            assert_eq!(pattern.as_deref(), Ok(text));
        }
    }

    #[test]
    fn the_message_is_searched_without_regard_to_ascii_case() {
        let matcher = on_message("Connection RESET");
        assert!(matcher.matches(&error("E", "read: connection reset by peer", 0)));
        assert!(!matcher.matches(&error("E", "connection", 0)));
        assert!(!matcher.matches(&error("E", "", 0)));
        assert!(on_message("É").matches(&error("E", "É", 0)));
        assert!(!on_message("É").matches(&error("E", "é", 0)));
    }

    #[test]
    fn a_rule_that_looks_for_nothing_is_refused() {
        assert!(Matcher::default().validate().is_err());
        assert!(on_type("").validate().is_err());
        assert!(on_message("").validate().is_err());
        assert_eq!(on_type("*").validate(), Ok(()));
        assert_eq!(on_status("5xx").validate(), Ok(()));
        assert_eq!(on_message("x").validate(), Ok(()));
    }

    proptest! {
        #[test]
        fn searching_the_message_agrees_with_lower_casing_both(
            text in "[abABé ]{0,12}", part in "[abABé]{0,3}",
        ) {
            prop_assert_eq!(
                contains_ignoring_ascii_case(&text, &part),
                text.to_ascii_lowercase().contains(&part.to_ascii_lowercase())
            );
        }
    }
}
