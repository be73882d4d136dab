//! Settings that are one of a few words.

use crate::{store::redis::Durability as RedisDurability, store::sqlite::Durability as EmbeddedDurability};
use clap::ValueEnum;
use std::{fmt, str::FromStr};

/// An address as it was given. It may hold a password, so it is never shown.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    Text,
    Json,
}

/// The least important lines that are still written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

/// What is certain when a call is answered. Each engine has its own levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Embedded(EmbeddedDurability),
    Redis(RedisDurability),
}

impl Durability {
    pub const RULE: &str = "\"fsync\" or \"none\" for the embedded store, and for Redis \"primary\", \"replicated(n)\" or \"fsync(n)\", n being a number of replicas";
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let embedded = EmbeddedDurability::parse(word).map(Self::Embedded);
        let level = embedded.or_else(|| RedisDurability::parse(word).map(Self::Redis));
        level.ok_or_else(|| format!("there is {}", Self::RULE))
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
