//! What the engine is opened with, and why it may not open.

use super::schema;
use std::path::{Path, PathBuf};
use std::{fmt, io};

#[derive(Clone, Debug)]
pub struct Options {
    pub directory: PathBuf,
    pub durability: Durability,
    /// Calls that add jobs are refused when the disk has less room than this.
    pub reserve_bytes: u64,
}

impl Options {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), durability: Durability::Fsync, reserve_bytes: 64 << 20 }
    }
}

/// When what was written reaches the disk: what is certain when a call is answered.
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
        [Self::Fsync, Self::None].into_iter().find(|level| level.to_string() == word)
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

/// Why the store cannot be opened. Each names the directory.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use the data directory {}: {error}", directory.display())]
    Directory { directory: PathBuf, error: io::Error },
    #[error("cannot use the database {}: {error}", path.display())]
    Schema { path: PathBuf, error: schema::SchemaError },
}

/// The database; refuses a directory without one, and makes nothing.
pub fn look_for(directory: &Path) -> Result<PathBuf, OpenError> {
    let path = directory.join(schema::DATABASE);
    if path.exists() { Ok(path) } else { Err(OpenError::Schema { path, error: schema::SchemaError::Missing }) }
}
