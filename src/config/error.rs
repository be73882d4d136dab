//! What is wrong with a configuration: where, what, and what would be right.

use super::Durability;
use crate::domain::near_miss;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fmt, io};

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{0}")]
    Invalid(Invalid),
    #[error("--redis (or REDRIVE_REDIS): {0}")]
    Redis(String),
    #[error("[redis]: {0}")]
    RedisAccess(&'static str),
    #[error("jobs are kept in one place: give either --data (or REDRIVE_DATA) or --redis (or REDRIVE_REDIS)")]
    TwoPlaces,
    #[error("the {} has no durability \"{level}\": there is {}", engine(*on_redis), Durability::RULE)]
    OtherEngine { level: Durability, on_redis: bool },
}

fn engine(on_redis: bool) -> &'static str {
    if on_redis { "Redis engine" } else { "embedded store" }
}

impl ConfigError {
    /// Each problem on a line of its own, for a log.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Invalid(invalid) => invalid.problems.iter().map(Problem::line).collect(),
            other => vec![other.to_string()],
        }
    }
}

/// Everything that is wrong with one file, in its order.
#[derive(Debug)]
pub struct Invalid {
    pub path: PathBuf,
    pub problems: Vec<Problem>,
}

impl Invalid {
    pub(super) fn new(path: &Path, text: &str, mut found: Vec<RawProblem>) -> Self {
        found.sort_by_key(|found| found.span.start);
        let file = path.display().to_string();
        let problems = found.into_iter().map(|found| Problem::locate(&file, text, found)).collect();
        Self { path: path.into(), problems }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        let problems = if count == 1 { "problem" } else { "problems" };
        write!(f, "{} has {count} {problems}", self.path.display())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n\n{problem}"))
    }
}

/// A problem that knows its place only as bytes of the text.
#[derive(Debug)]
pub(super) struct RawProblem {
    pub(super) span: Range<usize>,
    pub(super) message: String,
    pub(super) allowed: Option<String>,
}

/// One problem, with the line that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub file: String,
    /// From 1, in characters, as editors count.
    pub line: usize,
    pub column: usize,
    pub message: String,
    /// What could stand there instead, where that is a short list.
    pub allowed: Option<String>,
    source: String,
    width: usize,
}

impl Problem {
    fn locate(file: &str, text: &str, found: RawProblem) -> Self {
        let start = char_boundary(text, found.span.start);
        let end = char_boundary(text, found.span.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let source = text[line_start..].lines().next().unwrap_or_default();
        let line_end = line_start + source.len();
        Self {
            file: file.into(),
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            message: found.message,
            allowed: found.allowed,
            source: masked(source),
            width: text[start.min(line_end)..end.min(line_end)].chars().count().max(1),
        }
    }

    /// The problem in one line.
    pub fn line(&self) -> String {
        format!("{}:{}:{}: {}", self.file, self.line, self.column, self.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        // A tab is as wide as the terminal says: repeat it, so that the caret stands right.
        let blank = |c| if c == '\t' { '\t' } else { ' ' };
        let indent: String = self.source.chars().take(self.column - 1).map(blank).collect();
        writeln!(f, "{}", self.line())?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{number} | {}", self.source)?;
        write!(f, "{margin} | {indent}{}", "^".repeat(self.width))?;
        match &self.allowed {
            Some(allowed) => write!(f, "\n{margin} = allowed: {allowed}"),
            None => Ok(()),
        }
    }
}

/// The line without the passwords of addresses in it, and as wide as it was: it may end up in a log.
fn masked(line: &str) -> String {
    let login = line.find("://").map(|at| at + 3);
    let login = login.and_then(|from| Some(from..from + line[from..].rfind('@')?));
    let mut secret: Vec<Range<usize>> = login.into_iter().collect();
    for (at, word) in line.match_indices("password") {
        let value = line[at + word.len()..].trim_start().strip_prefix('=');
        let Some(value) = value.map(|value| value.trim_start().trim_start_matches(['"', '\''])) else { continue };
        let from = line.len() - value.len();
        let length = line[from..].find(['&', '"', '\'']).unwrap_or(line.len() - from);
        secret.push(from..from + length);
    }
    let hidden = |at| secret.iter().any(|range| range.contains(&at));
    line.char_indices().map(|(at, c)| if hidden(at) { '*' } else { c }).collect()
}

/// The last boundary between characters that is not after `at`.
fn char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// `; did you mean "policy"?`, or nothing.
pub(super) fn did_you_mean(word: &str, allowed: &[&str]) -> String {
    near_miss(word, allowed).map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"))
}
