//! When what was written reaches the disk: before its answer, or when the system likes.

use std::fmt;

/// What is certain when a call is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The change is on the disk.
    #[default]
    Fsync,
    /// The change is with the operating system.
    None,
}

impl Durability {
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "fsync" => Some(Self::Fsync),
            "none" => Some(Self::None),
            _ => None,
        }
    }

    /// SQLite's word for it.
    pub(super) fn synchronous(self) -> &'static str {
        match self {
            Self::Fsync => "FULL",
            Self::None => "OFF",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fsync => "fsync",
            Self::None => "none",
        })
    }
}
