//! The data directory: who uses it, its free space, and whether the database is still the one that was opened.

use super::schema;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const LOCK: &str = "redrive.lock";

/// One server per data directory: the system drops the lock with the process, and a note names the holder. Held until the file
/// is dropped.
pub(super) fn lock_directory(directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK);
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    if let Err(error) = file.try_lock() {
        let TryLockError::WouldBlock = error else { return Err(error.into()) };
        let mut holder = String::new();
        file.read_to_string(&mut holder)?;
        let holder = holder.trim();
        let why = format!("another redrive uses it ({holder}): stop that one, or use another directory");
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "process {}", std::process::id())?;
    Ok(file)
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    directory: PathBuf,
    /// Kept for settling.
    reserve_bytes: u64,
    database: PathBuf,
    /// Device and inode of the file that was opened. A directory that is deleted or replaced leads to another one or to none,
    /// and what is written to the open one is lost.
    identity: (u64, u64),
}

impl Disk {
    pub(super) fn new(directory: PathBuf, reserve_bytes: u64) -> io::Result<Self> {
        let database = directory.join(schema::DATABASE);
        let found = fs::metadata(&database)?;
        Ok(Self { directory, reserve_bytes, database, identity: (found.dev(), found.ino()) })
    }

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

    /// Why nothing more may be written, if that is so.
    pub(super) fn replaced(&self) -> Option<String> {
        let path = self.database.display();
        match fs::metadata(&self.database) {
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
    // The system would say that a file exists, or that something is no directory, and not what.
    if let Some(found) = directory.ancestors().find(|path| path.exists() && !path.is_dir()) {
        let name = if found == directory { "it".into() } else { found.display().to_string() };
        return Err(io::Error::other(format!("{name} is a file, not a directory")));
    }
    // Jobs may hold secrets: for the owner alone.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_directory(parent.unwrap_or_else(|| Path::new(".")))
}

/// Jobs may hold secrets: for the owner alone, also in a directory that was there before. SQLite gives the log and its index
/// the mode of the database when it makes them.
pub(super) fn keep_private(directory: &Path) -> io::Result<()> {
    let database = directory.join(schema::DATABASE);
    OpenOptions::new().append(true).create(true).mode(0o600).open(database)?;
    for name in [schema::DATABASE, schema::LOG, schema::LOG_INDEX] {
        let path = directory.join(name);
        match fs::metadata(&path) {
            Ok(found) if found.mode() & 0o777 != 0o600 => fs::set_permissions(&path, Permissions::from_mode(0o600))?,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// New names in a directory survive a power cut only once the directory itself is on disk.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
