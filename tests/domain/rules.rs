use super::on_type;
use proptest::prelude::*;
use redrive::domain::{
    ErrorRule, Failure, FailureCategory, Glob, Matcher, PolicyOverride, Preset, StatusPattern, Then, default_rules,
    first_match,
};

fn error(error_type: &str, message: &str, http_status: u32) -> Failure {
    Failure { http_status, ..Failure::new(error_type, message) }
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
fn decides(own: &[ErrorRule], error: Failure, name: Option<&str>) {
    let defaults = default_rules();
    let rule = first_match(own, &defaults, &error, false);
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
    for error_type in ["ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"] {
        decides(&[], error(error_type, "", 0), Some(&format!("default: {error_type}")));
    }
    decides(&[], error("MyValidationError", "", 0), None);
}

#[test]
fn default_rules_speak_of_categories() {
    use FailureCategory::{Conflict, Forbidden, Internal, Invalid, NotFound, Timeout, Unauthorized};
    for category in [Invalid, NotFound, Unauthorized, Forbidden] {
        let given = Failure { category: Some(category), ..error("E", "", 0) };
        decides(&[], given.clone(), Some(&format!("default: category={}", category.as_str())));
        decides(&[], Failure { category_derived: true, ..given }, None);
    }
    for status in [400, 410, 422] {
        let derived = error("E", "", status).with_category();
        decides(&[], derived, Some(&format!("default: http_status={status}")));
        decides(&[], Failure { category: Some(Conflict), ..error("E", "", status) }, None);
    }
    for status in [401, 403, 404, 409, 500] {
        decides(&[], error("E", "", status).with_category(), None);
    }
    for error_type in ["ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"] {
        // What the worker says about the category goes before the name of its error.
        let given = |category| Failure { category: Some(category), ..error(error_type, "", 0) };
        decides(&[], given(Timeout), Some("default: category=timeout"));
        decides(&[], given(Internal), None);
        decides(&[], given(NotFound), Some("default: category=not-found"));
        decides(&[], error(error_type, "", 0).with_category(), Some(&format!("default: {error_type}")));
    }
    decides(&[], error("E", "", 429).with_category(), Some("default: category=rate-limited"));
    decides(&[], error("E", "", 503).with_category(), Some("default: category=unavailable"));
    decides(&[], error("Timeout", "", 0).with_category(), Some("default: category=timeout"));
    decides(&[], error("E", "fetch failed", 0).with_category(), Some("default: category=unreachable"));
    let defaults = default_rules();
    let rule = first_match(&[], &defaults, &error("E", "", 503).with_category(), true).unwrap();
    assert_eq!(rule.name, "default: category=unavailable with retry_after");
    assert_eq!(rule.then, Then::Hold);

    let own = [ErrorRule::at(0, Matcher { category: Some(Timeout), ..Matcher::default() }, Then::Release)];
    decides(&own, error("Timeout", "", 0).with_category(), Some("rules[0]: category=timeout"));
    let own = [ErrorRule::at(0, Matcher { code: Some(Glob::new("40*")), ..Matcher::default() }, Then::Release)];
    decides(&own, Failure { code: "40P01".into(), ..error("E", "", 0) }, Some("rules[0]: code=40*"));
    decides(&own, error("E", "", 0), None);
}

#[test]
fn a_queues_own_rule_goes_before_the_default_ones() {
    let own = [ErrorRule::at(0, on_type("*Error"), Then::Release)];
    decides(&own, error("ValidationError", "", 0), Some("rules[0]: error_type=*Error"));
}

#[test]
fn a_queue_without_default_rules_has_only_its_own() {
    assert_eq!(first_match(&[], &[], &error("ValidationError", "", 0), false), None);
}

#[test]
fn everything_a_rule_looks_for_must_be_true() {
    let matcher = Matcher {
        error_type: Some(Glob::new("Http*")),
        http_status: Some(StatusPattern::Class(5)),
        message_contains: Some("Try Later".into()),
        ..Matcher::default()
    };
    assert!(matcher.matches(&error("HttpError", "please try later.", 503), false));
    assert!(!matcher.matches(&error("IoError", "please try later.", 503), false));
    assert!(!matcher.matches(&error("HttpError", "please try later.", 404), false));
    assert!(!matcher.matches(&error("HttpError", "go away", 503), false));
    assert_eq!(matcher.to_string(), "error_type=Http*, http_status=5xx, message_contains=\"Try Later\"");
}

#[test]
fn an_error_without_a_status_matches_no_status() {
    assert!(!on_status("5xx").matches(&error("E", "", 0), false));
    assert!(!on_status("100").matches(&error("E", "", 0), false));
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
        assert_eq!(error, format!("{text:?} is not an HTTP status: write 100 to 599, or a class such as \"4xx\""));
    }
    for text in ["100", "429", "599", "1xx", "5xx"] {
        let pattern = StatusPattern::parse(text).map(|pattern| pattern.to_string());
        assert_eq!(pattern.as_deref(), Ok(text));
    }
}

#[test]
fn the_message_is_searched_without_regard_to_ascii_case() {
    let matcher = on_message("Connection RESET");
    assert!(matcher.matches(&error("E", "read: connection reset by peer", 0), false));
    assert!(!matcher.matches(&error("E", "connection", 0), false));
    assert!(!matcher.matches(&error("E", "", 0), false));
    assert!(on_message("É").matches(&error("E", "É", 0), false));
    assert!(!on_message("É").matches(&error("E", "é", 0), false));
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
        let expected = text.to_ascii_lowercase().contains(&part.to_ascii_lowercase());
        prop_assert_eq!(on_message(&part).matches(&error("E", &text, 0), false), expected);
    }
}
