//! Names with wildcards: `*` stands for any run of characters, `?` for exactly one.

/// A pattern over a whole name, case-sensitive. There is no escape: error types hold no `*` or `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    pub fn new(pattern: impl Into<String>) -> Self {
        Self(pattern.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Only the last `*` seen is ever reconsidered: whatever the earlier ones could swallow, it can
    /// swallow too. So the work is at most text × pattern, never exponential.
    pub fn matches(&self, text: &str) -> bool {
        let mut pattern = self.0.chars();
        let mut text = text.chars();
        // The pattern after the last star, and the text after what that star has swallowed so far.
        let mut last_star = None;
        loop {
            let fits = match pattern.next() {
                Some('*') => {
                    last_star = Some((pattern.clone(), text.clone()));
                    true
                }
                Some('?') => text.next().is_some(),
                Some(literal) => text.next() == Some(literal),
                None if text.as_str().is_empty() => return true,
                None => false,
            };
            if fits {
                continue;
            }
            let Some((after_star, unswallowed)) = &mut last_star else {
                return false;
            };
            if unswallowed.next().is_none() {
                return false;
            }
            pattern = after_star.clone();
            text = unswallowed.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            (['*', rest @ ..], _) => {
                naive(rest, text) || (!text.is_empty() && naive(pattern, &text[1..]))
            }
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
}
