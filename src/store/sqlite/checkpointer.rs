//! Copies the write-ahead log into the database while the writer goes on.
//!
//! A thread with a connection of its own copies what is there and brings it to the disk. The little that came meanwhile the
//! writer copies itself, between two transactions; then the log starts from its beginning again.

use super::{failure::Failure, lock};
use crate::store::StoreError;
use rusqlite::{Connection, wal::CheckpointMode};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::{fs::File, io};

/// Pages in the log from which on it is copied: 16 MiB.
const PAGES: u32 = 4_000;
/// And commits: SQLite goes through all the versions of a page in the log whenever it writes another one or looks for it.
const COMMITS: u32 = 256;
/// What the writer copies itself at most,
const REST: u32 = 500;
/// unless the thread has failed to catch up with it as often as this.
const ROUNDS: usize = 4;

pub(super) struct Checkpointer {
    /// In the log, since it last began.
    pages: Arc<AtomicU32>,
    /// So were they after the last commit, one of so many.
    last_seen: (u32, u32),
    /// As many were in it when not all of them could be copied.
    left_at: u32,
    connection: Arc<Mutex<Connection>>,
    file: Option<Arc<File>>,
    copying: Option<JoinHandle<Result<Option<u32>, Failure>>>,
}

impl Checkpointer {
    /// `own` is another connection to the writer's database. `file`: the database, where it has to reach the disk. Locks on a
    /// file end when the process closes it, so it is closed after all connections.
    pub(super) fn new(writer: &mut Connection, own: Connection, file: Option<Arc<File>>) -> rusqlite::Result<Self> {
        let pages = Arc::<AtomicU32>::default();
        let seen = pages.clone();
        let count = move |_: &mut rusqlite::hooks::Wal, in_log| {
            seen.store(u32::try_from(in_log).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        writer.wal_hook(Some(count))?;
        Ok(Self { pages, last_seen: (0, 0), left_at: 0, connection: Arc::new(Mutex::new(own)), file, copying: None })
    }

    /// Between two transactions.
    pub(super) fn run_once(&mut self, writer: &Connection) -> Result<(), Failure> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages != self.last_seen.0 {
            // Fewer than there were: the log has begun again.
            let commits = if pages < self.last_seen.0 { 0 } else { self.last_seen.1 };
            self.last_seen = (pages, commits + 1);
        }
        if self.copying.is_none() {
            let tried_in_vain = self.left_at > 0 && (self.left_at..self.left_at + REST).contains(&pages);
            if tried_in_vain || pages < PAGES && self.last_seen.1 < COMMITS {
                return Ok(());
            }
            let (connection, file, pages) = (self.connection.clone(), self.file.clone(), self.pages.clone());
            let run = move || copy_most(&lock(&connection), file.as_deref(), &pages);
            let thread = thread::Builder::new().name("redrive-checkpointer".into()).spawn(run);
            let refused = |error: io::Error| Failure::Refused(StoreError::Unavailable(error.to_string()));
            self.copying = Some(thread.map_err(refused)?);
            return Ok(());
        }
        let Some(thread) = self.copying.take_if(|thread| thread.is_finished()) else { return Ok(()) };
        let copied = match thread.join() {
            Ok(Ok(Some(copied))) if copied <= pages => copy(writer),
            // A reader is in the way, or the log has begun again since.
            Ok(copied) => copied.map(|_| 0),
            Err(_) => return Err(Failure::Stopped("the checkpointer has panicked".into())),
        };
        self.left_at = pages;
        match copied {
            Ok(copied) if copied >= pages => {
                self.pages.store(0, Ordering::Relaxed);
                (self.last_seen, self.left_at) = ((0, 0), 0);
            }
            Ok(_) => {}
            Err(Failure::Refused(error)) => tracing::warn!(%error, pages, "the write-ahead log stays long"),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        drop(self.copying.take().map(JoinHandle::join));
    }
}

/// Up to which page of the log all is copied, where the rest is little. None: a reader still needs what the database held before.
fn copy_most(connection: &Connection, file: Option<&File>, pages: &AtomicU32) -> Result<Option<u32>, Failure> {
    let mut copied = 0;
    for _ in 0..ROUNDS {
        let before = std::mem::replace(&mut copied, copy(connection)?);
        // SQLite does this only with the end of the log, and then all at once.
        if let Some(Err(error)) = file.map(File::sync_data) {
            let why = format!("what was copied into the database did not reach the disk: {error}");
            return Err(Failure::Stopped(why));
        }
        if pages.load(Ordering::Relaxed).saturating_sub(copied) <= REST {
            break;
        }
        if copied == before {
            return Ok(None);
        }
    }
    Ok(Some(copied))
}

/// Copies what no reader needs any more, and returns how many pages of the log have been copied since it began.
fn copy(connection: &Connection) -> Result<u32, Failure> {
    let (_, copied) = connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE)?;
    Ok(u32::try_from(copied).unwrap_or(0))
}
