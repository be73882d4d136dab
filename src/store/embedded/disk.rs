//! The disk's free room: Enqueue is refused before there is none, so that what is out can still be settled.

use super::writer::{Call, Command};
use crate::store::StoreError;
use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) directory: PathBuf,
    /// Kept for settling.
    pub(super) reserve_bytes: u64,
}

impl Disk {
    /// Why no more jobs should come, if that is so.
    pub(super) fn low(&self) -> Option<String> {
        self.low_after(0)
    }

    /// The same, once so much more is written.
    fn low_after(&self, bytes: u64) -> Option<String> {
        let stat = rustix::fs::statvfs(&self.directory).ok()?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        (free < self.reserve_bytes.saturating_add(bytes)).then(|| {
            let directory = self.directory.display();
            let (free, reserve) = (free >> 20, self.reserve_bytes >> 20);
            format!("{directory} has {free} MiB left and {reserve} MiB are kept for settling")
        })
    }

    /// Looks once for all that is to be written together, and sends new jobs away if there is no room for them.
    pub(super) fn take_no_jobs_when_low(&self, calls: Vec<Call>) -> Vec<Call> {
        let is_enqueue =
            |call: &Call| matches!(call.command, Command::Enqueue(..) | Command::TakeIn(..));
        if !calls.iter().any(is_enqueue) {
            return calls;
        }
        // Everything is written twice: to the log, and from there to the database.
        let bytes: usize = calls.iter().map(|call| 2 * call.command.bytes()).sum();
        let Some(why) = self.low_after(bytes as u64) else { return calls };
        let (jobs, others): (Vec<_>, Vec<_>) = calls.into_iter().partition(is_enqueue);
        for call in jobs {
            drop(call.reply.send(Err(StoreError::DiskLow(why.clone()))));
        }
        others
    }
}

pub(super) fn create_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    // Jobs are nobody else's business.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_directory(parent.unwrap_or_else(|| Path::new(".")))
}

/// New names in a directory survive a power cut only once the directory itself is on disk.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}
