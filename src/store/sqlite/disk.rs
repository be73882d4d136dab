//! The data directory: its free space, and whether the database is still the one that was opened.

use super::schema;
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) directory: PathBuf,
    /// Kept for settling.
    pub(super) reserve_bytes: u64,
}

impl Disk {
    /// Why no more jobs are taken once so much more is written, if that is so.
    pub(super) fn low_after(&self, bytes: u64) -> Option<String> {
        let stat = rustix::fs::statvfs(&self.directory).ok()?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        (free < self.reserve_bytes.saturating_add(bytes)).then(|| {
            let directory = self.directory.display();
            let (free, reserve) = (free >> 20, self.reserve_bytes >> 20);
            format!("{directory} has {free} MiB left and {reserve} MiB are kept for settling")
        })
    }
}

/// The file that was opened: device and inode. A directory that is deleted or replaced leads to another one or to none, and
/// what is written to the open one is lost.
#[derive(Debug)]
pub(super) struct OpenedFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl OpenedFile {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join(schema::DATABASE);
        let found = fs::metadata(&path)?;
        Ok(Self { path, identity: (found.dev(), found.ino()) })
    }

    /// Why nothing more may be written, if that is so.
    pub(super) fn replaced(&self) -> Option<String> {
        let path = self.path.display();
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => None,
            Ok(_) => Some(format!("{path} was replaced by another file while redrive used it")),
            Err(error) => Some(format!("{path} was removed while redrive used it: {error}")),
        }
    }
}

pub(super) fn create_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    // Jobs may hold secrets: for the owner alone.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_directory(parent.unwrap_or_else(|| Path::new(".")))
}

/// New names in a directory survive a power cut only once the directory itself is on disk.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}
