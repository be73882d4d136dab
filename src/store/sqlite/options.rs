//! What the engine is opened with, and why it may not open.

use super::{Durability, directory_lock::LockError, schema};
use std::{
    io,
    path::{Path, PathBuf},
};

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

/// Why the store cannot be opened. Each names the directory.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use the data directory {}: {error}", directory.display())]
    Directory { directory: PathBuf, error: io::Error },
    #[error("cannot use the data directory {}: {error}", directory.display())]
    Lock { directory: PathBuf, error: LockError },
    #[error("cannot use the database {}: {error}", path.display())]
    Schema { path: PathBuf, error: schema::SchemaError },
}

/// Refuses a directory without a store, and makes nothing.
pub fn look_for(directory: &Path) -> Result<(), OpenError> {
    let path = directory.join(schema::DATABASE);
    if path.exists() {
        return Ok(());
    }
    Err(OpenError::Schema { path, error: schema::SchemaError::Missing })
}
