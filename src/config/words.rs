//! Settings that are one of a few words.

use crate::store::{
    redis::Durability as RedisDurability, sqlite::Durability as EmbeddedDurability,
};
use std::fmt;

/// An address as it was given. It may hold a password, so nobody gets to see it.
#[derive(Clone, PartialEq, Eq)]
pub struct Unread(pub String);

impl From<&str> for Unread {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    Text,
    Json,
}

impl LogFormat {
    pub const WORDS: [&str; 3] = ["auto", "text", "json"];

    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "auto" => Some(Self::Auto),
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// The least important lines that are still written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub const WORDS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "error" => Some(Self::Error),
            "warn" => Some(Self::Warn),
            "info" => Some(Self::Info),
            "debug" => Some(Self::Debug),
            "trace" => Some(Self::Trace),
            _ => None,
        }
    }
}

/// What is certain when a call is answered. Each engine has its own levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Embedded(EmbeddedDurability),
    Redis(RedisDurability),
}

impl Durability {
    pub const RULE: &str = "\"fsync\" or \"none\" for the embedded store, and for Redis \"primary\", \"replicated(n)\" or \"fsync(n)\", n being a number of replicas";

    pub fn parse(word: &str) -> Option<Self> {
        let embedded = EmbeddedDurability::parse(word).map(Self::Embedded);
        embedded.or_else(|| RedisDurability::parse(word).map(Self::Redis))
    }

    pub fn is_of_redis(self) -> bool {
        matches!(self, Self::Redis(_))
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(level) => level.fmt(f),
            Self::Redis(level) => level.fmt(f),
        }
    }
}
