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
