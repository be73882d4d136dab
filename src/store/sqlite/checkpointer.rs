//! Copies the write-ahead log into the database while the writer goes on.
//!
//! A thread with a connection of its own copies what is there and brings it to the disk. The little that came meanwhile the
//! writer copies itself, between two transactions; then the log starts from its beginning again.

use super::failure::Failure;
use rusqlite::{Connection, wal::CheckpointMode};
use std::{
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{self, Receiver, SyncSender, TryRecvError},
    },
    thread,
};

/// Pages in the log from which on it is copied: 16 MiB.
const PAGES: u32 = 4_000;
/// What the writer copies itself at most,
const REST: u32 = 500;
/// unless the thread has failed to catch up with it as often as this.
const ROUNDS: usize = 4;

pub(super) struct Checkpointer {
    /// In the log, since it last began.
    pages: Arc<AtomicU32>,
    /// From how many of them on they are copied.
    start_at: u32,
    is_copying: bool,
    requests: Option<SyncSender<()>>,
    copied: Receiver<Result<Copied, Failure>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// How far the thread has come.
enum Copied {
    /// As many pages of the log, and the rest is little.
    UpTo(u32),
    /// No further: a reader still needs what the database held before.
    InPart,
}

impl Checkpointer {
    /// `connection` is another one to the writer's database. `file`: the database, where it has to reach the disk. Locks on a
    /// file end when the process closes it, so it is closed after all connections.
    pub(super) fn start(
        writer: &mut Connection,
        connection: Connection,
        file: Option<Arc<File>>,
    ) -> io::Result<Self> {
        let pages = Arc::<AtomicU32>::default();
        let seen = pages.clone();
        let count = move |_: &mut rusqlite::hooks::Wal, in_log| {
            seen.store(u32::try_from(in_log).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        writer.wal_hook(Some(count)).map_err(io::Error::other)?;
        let (requests, inbox) = mpsc::sync_channel(1);
        let (outbox, copied) = mpsc::sync_channel(1);
        let seen = pages.clone();
        let run = move || {
            while inbox.recv().is_ok()
                && outbox.send(copy_most(&connection, file.as_deref(), &seen)).is_ok()
            {}
        };
        let thread = thread::Builder::new().name("redrive-checkpointer".into()).spawn(run)?;
        let (requests, thread) = (Some(requests), Some(thread));
        Ok(Self { pages, start_at: PAGES, is_copying: false, requests, copied, thread })
    }

    /// Between two transactions.
    pub(super) fn run_once(&mut self, writer: &Connection) -> Result<(), Failure> {
        let pages = self.pages.load(Ordering::Relaxed);
        if !self.is_copying {
            if pages >= self.start_at {
                self.start_copy()?;
            }
            return Ok(());
        }
        let copied = match self.copied.try_recv() {
            Ok(copied) => copied,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => return Err(thread_ended()),
        };
        self.is_copying = false;
        let copied = match copied {
            // The log has begun again since.
            Ok(Copied::UpTo(copied)) if copied > pages => {
                self.start_at = PAGES;
                return Ok(());
            }
            Ok(Copied::UpTo(_)) => copy(writer),
            Ok(Copied::InPart) => Ok(0),
            Err(failure) => Err(failure),
        };
        match copied {
            Ok(copied) if copied >= pages => {
                self.pages.store(0, Ordering::Relaxed);
                self.start_at = PAGES;
            }
            Ok(_) => self.start_at = pages + REST,
            Err(Failure::Refused(error)) => {
                tracing::warn!(%error, pages, "the write-ahead log stays long");
                self.start_at = pages + REST;
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn start_copy(&mut self) -> Result<(), Failure> {
        self.is_copying = true;
        match self.requests.as_ref().map(|requests| requests.try_send(())) {
            Some(Ok(())) => Ok(()),
            _ => Err(thread_ended()),
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn copy_most(
    connection: &Connection,
    file: Option<&File>,
    pages: &AtomicU32,
) -> Result<Copied, Failure> {
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
            return Ok(Copied::InPart);
        }
    }
    Ok(Copied::UpTo(copied))
}

/// Copies what no reader needs any more, and returns how many pages of the log have been copied since it began.
fn copy(connection: &Connection) -> Result<u32, Failure> {
    let (_, copied) = connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE)?;
    Ok(u32::try_from(copied).unwrap_or(0))
}

fn thread_ended() -> Failure {
    Failure::Stopped("the checkpointer has ended".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::{Durability, schema};
    use tempfile::TempDir;

    struct Fixture {
        directory: TempDir,
        writer: Connection,
        checkpointer: Checkpointer,
        written: u32,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = TempDir::new().unwrap();
            let path = directory.path().join(schema::DATABASE);
            let open = || schema::open_writer(&path, Durability::None).unwrap();
            let mut writer = open();
            let checkpointer = Checkpointer::start(&mut writer, open(), None).unwrap();
            writer.execute_batch("CREATE TABLE rows (row, filler)").unwrap();
            Self { directory, writer, checkpointer, written: 0 }
        }

        fn write(&mut self) {
            let insert = "INSERT INTO rows VALUES (?1, zeroblob(20000))";
            self.writer.execute(insert, [self.written]).unwrap();
            self.written += 1;
            self.checkpointer.run_once(&self.writer).unwrap();
        }

        fn write_while(&mut self, condition: impl Fn(&Checkpointer) -> bool) {
            while condition(&self.checkpointer) {
                self.write();
            }
        }

        fn reader(&self) -> Connection {
            schema::open_reader(&self.directory.path().join(schema::DATABASE)).unwrap()
        }
    }

    fn in_log(checkpointer: &Checkpointer) -> u32 {
        checkpointer.pages.load(Ordering::Relaxed)
    }

    fn rows(connection: &Connection) -> u32 {
        connection.query_row("SELECT count(*) FROM rows", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn the_log_starts_over_while_the_writer_goes_on() {
        let mut fixture = Fixture::new();
        for _ in 0..3 {
            fixture.write_while(|checkpointer| in_log(checkpointer) < PAGES);
            fixture.write_while(|checkpointer| in_log(checkpointer) >= PAGES);
        }
        fixture.write();
        assert!(in_log(&fixture.checkpointer) < PAGES, "it never began again");
        assert_eq!(rows(&fixture.reader()), fixture.written);
    }

    #[test]
    fn a_reader_keeps_the_log_only_as_long_as_it_reads() {
        let mut fixture = Fixture::new();
        fixture.write();
        let reader = fixture.reader();
        reader.execute_batch("BEGIN").unwrap();
        assert_eq!(rows(&reader), 1);
        fixture.write_while(|checkpointer| !checkpointer.is_copying);
        fixture.write_while(|checkpointer| checkpointer.is_copying);
        assert!(in_log(&fixture.checkpointer) >= PAGES);
        assert_eq!(rows(&reader), 1, "it reads what was there when it began");
        reader.execute_batch("COMMIT").unwrap();
        fixture.write_while(|checkpointer| in_log(checkpointer) >= PAGES);
        assert_eq!(rows(&reader), fixture.written);
    }

    #[test]
    fn a_log_that_has_begun_again_by_itself_is_copied_as_early_as_ever() {
        let mut fixture = Fixture::new();
        for _ in 0..10 {
            fixture.write();
        }
        // As after a long read.
        fixture.checkpointer.start_at = 1_000_000;
        fixture.checkpointer.start_copy().unwrap();
        let copied = fixture.checkpointer.copied.recv().unwrap();
        let (answer, copied_again) = mpsc::sync_channel(1);
        answer.send(copied).unwrap();
        fixture.checkpointer.copied = copied_again;
        // All of it is copied, so this goes to the beginning of the log.
        fixture.writer.execute("INSERT INTO rows VALUES (0, NULL)", []).unwrap();
        fixture.checkpointer.run_once(&fixture.writer).unwrap();
        assert_eq!(fixture.checkpointer.start_at, PAGES);
    }
}
