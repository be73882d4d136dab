//! Settings that are one of a few words.

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

/// What is certain when a call is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The change is on the disk.
    #[default]
    Fsync,
    /// The change is with the operating system: a power cut loses what was acknowledged.
    None,
}

impl Durability {
    pub const WORDS: [&str; 2] = ["fsync", "none"];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::None => "none",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "fsync" => Some(Self::Fsync),
            "none" => Some(Self::None),
            _ => None,
        }
    }
}
