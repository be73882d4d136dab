use proptest::prelude::*;
use redrive::domain::Glob;

#[test]
fn a_pattern_covers_the_whole_name() {
    for (pattern, text, expected) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("*", "anything", true),
        ("?", "", false),
        ("?", "é", true),
        ("*??", "€", false),
        ("PlexNotFound*", "PlexNotFound", true),
        ("PlexNotFound*", "PlexNotFoundError", true),
        ("PlexNotFound*", "MyPlexNotFound", false),
        ("*Timeout", "ReadTimeout", true),
        ("*Timeout", "TimeoutError", false),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "a-c-b", false),
        ("Http?xx", "Http5xx", true),
        ("Http?xx", "Httpxx", false),
    ] {
        assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern} on {text}");
    }
}

#[test]
fn case_matters() {
    assert!(!Glob::new("timeout*").matches("TimeoutError"));
}

#[test]
fn many_stars_on_a_long_name_end_quickly() {
    let pattern = Glob::new("a*".repeat(500) + "b");
    assert!(!pattern.matches(&"a".repeat(10_000)));
}

/// The definition, written as it is said; exponential, so for short inputs only.
fn naive(pattern: &[char], text: &[char]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        (['*', rest @ ..], _) => naive(rest, text) || (!text.is_empty() && naive(pattern, &text[1..])),
        (['?', p @ ..], [_, t @ ..]) => naive(p, t),
        ([a, p @ ..], [b, t @ ..]) => a == b && naive(p, t),
        _ => false,
    }
}

proptest! {
    #[test]
    fn agrees_with_the_definition(pattern in "[ab€*?]{0,8}", text in "[ab€]{0,10}") {
        let p: Vec<char> = pattern.chars().collect();
        let t: Vec<char> = text.chars().collect();
        prop_assert_eq!(Glob::new(pattern).matches(&text), naive(&p, &t));
    }
}
