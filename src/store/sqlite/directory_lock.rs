//! One server per data directory: a lock that the system drops with the process, and a note that names the holder.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::Path,
};

const LOCK: &str = "redrive.lock";

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "another redrive uses it ({holder}): stop that one, or start this one with another --data"
    )]
    Held { holder: String },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Held until dropped.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    pub(super) fn take(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join(LOCK);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder)?;
                return Err(LockError::Held { holder: holder.trim().to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "process {}", std::process::id())?;
        Ok(Self { _file: file })
    }
}
