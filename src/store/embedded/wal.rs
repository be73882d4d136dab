//! The write-ahead log on its way into the database, beside the writer.
//!
//! A thread with a connection of its own copies what is there while the writer goes on, and brings it to the disk. The
//! little that came meanwhile the writer copies itself, between two transactions; then the log starts from its beginning
//! again.

use super::writer::Failure;
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

pub(super) struct Wal {
    /// In the log, since it last began.
    pages: Arc<AtomicU32>,
    /// From how many of them on they are copied.
    start_at: u32,
    is_asked: bool,
    orders: Option<SyncSender<()>>,
    copied: Receiver<Result<Copied, Failure>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// How far the thread has come.
enum Copied {
    /// As many pages of the log, and the rest is little.
    UpTo(u32),
    /// No further: somebody still reads what the database held before.
    InPart,
}

impl Wal {
    /// `beside` is another connection to the writer's database. `file`: the same, where it has to reach the disk. Locks on
    /// a file end when the process closes it, so nobody may hold it last who still has connections to close.
    pub(super) fn start(
        writer: &mut Connection,
        beside: Connection,
        file: Option<Arc<File>>,
    ) -> io::Result<Self> {
        let pages = Arc::<AtomicU32>::default();
        let seen = pages.clone();
        let count = move |_: &mut rusqlite::hooks::Wal, in_log| {
            seen.store(u32::try_from(in_log).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        writer.wal_hook(Some(count)).map_err(io::Error::other)?;
        let (orders, inbox) = mpsc::sync_channel(1);
        let (outbox, copied) = mpsc::sync_channel(1);
        let seen = pages.clone();
        let run = move || {
            while inbox.recv().is_ok()
                && outbox.send(copy_most(&beside, file.as_deref(), &seen)).is_ok()
            {}
        };
        let thread = thread::Builder::new().name("redrive-wal".into()).spawn(run)?;
        let (orders, thread) = (Some(orders), Some(thread));
        Ok(Self { pages, start_at: PAGES, is_asked: false, orders, copied, thread })
    }

    /// Between two transactions.
    pub(super) fn go_on(&mut self, writer: &Connection) -> Result<(), Failure> {
        let pages = self.pages.load(Ordering::Relaxed);
        if !self.is_asked {
            if pages >= self.start_at {
                self.ask()?;
            }
            return Ok(());
        }
        let copied = match self.copied.try_recv() {
            Ok(copied) => copied,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => return Err(thread_ended()),
        };
        self.is_asked = false;
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

    fn ask(&mut self) -> Result<(), Failure> {
        self.is_asked = true;
        match self.orders.as_ref().map(|orders| orders.try_send(())) {
            Some(Ok(())) => Ok(()),
            _ => Err(thread_ended()),
        }
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn copy_most(
    beside: &Connection,
    file: Option<&File>,
    pages: &AtomicU32,
) -> Result<Copied, Failure> {
    let mut copied = 0;
    for _ in 0..ROUNDS {
        let before = std::mem::replace(&mut copied, copy(beside)?);
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

/// Copies what nobody is in the way of, and says how many pages of the log have been copied since it began.
fn copy(connection: &Connection) -> Result<u32, Failure> {
    let (_, copied) = connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE)?;
    Ok(u32::try_from(copied).unwrap_or(0))
}

fn thread_ended() -> Failure {
    Failure::Stopped("the thread that empties the write-ahead log has ended".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::embedded::{Durability, schema};
    use std::fs;
    use tempfile::TempDir;

    struct Scene {
        directory: TempDir,
        writer: Connection,
        wal: Wal,
        written: u32,
    }

    impl Scene {
        fn new() -> Self {
            let directory = TempDir::new().unwrap();
            let path = directory.path().join(schema::DATABASE);
            let open = || schema::open_writer(&path, Durability::None).unwrap();
            let mut writer = open();
            let wal = Wal::start(&mut writer, open(), None).unwrap();
            writer.execute_batch("CREATE TABLE rows (row, filler)").unwrap();
            Self { directory, writer, wal, written: 0 }
        }

        fn write(&mut self) {
            let insert = "INSERT INTO rows VALUES (?1, zeroblob(20000))";
            self.writer.execute(insert, [self.written]).unwrap();
            self.written += 1;
            self.wal.go_on(&self.writer).unwrap();
        }

        fn write_while(&mut self, goes_on: impl Fn(&Wal) -> bool) {
            while goes_on(&self.wal) {
                self.write();
            }
        }

        fn reader(&self) -> Connection {
            schema::open_reader(&self.directory.path().join(schema::DATABASE)).unwrap()
        }
    }

    fn in_log(wal: &Wal) -> u32 {
        wal.pages.load(Ordering::Relaxed)
    }

    fn rows(connection: &Connection) -> u32 {
        connection.query_row("SELECT count(*) FROM rows", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn the_log_starts_over_while_the_writer_goes_on() {
        let mut scene = Scene::new();
        for _ in 0..3 {
            scene.write_while(|wal| in_log(wal) < PAGES);
            scene.write_while(|wal| in_log(wal) >= PAGES);
        }
        let log = scene.directory.path().join(format!("{}-wal", schema::DATABASE));
        let (log, written) = (fs::metadata(log).unwrap().len(), 20_000 * u64::from(scene.written));
        assert!(log < written, "{log} bytes of log for {written}: it never began again");
        assert_eq!(rows(&scene.reader()), scene.written);
    }

    #[test]
    fn a_reader_keeps_the_log_only_as_long_as_it_reads() {
        let mut scene = Scene::new();
        scene.write();
        let reader = scene.reader();
        reader.execute_batch("BEGIN").unwrap();
        assert_eq!(rows(&reader), 1);
        scene.write_while(|wal| !wal.is_asked);
        scene.write_while(|wal| wal.is_asked);
        assert!(in_log(&scene.wal) >= PAGES);
        assert_eq!(rows(&reader), 1, "it reads what was there when it began");
        reader.execute_batch("COMMIT").unwrap();
        scene.write_while(|wal| in_log(wal) >= PAGES);
        assert_eq!(rows(&reader), scene.written);
    }

    #[test]
    fn a_log_that_has_begun_again_by_itself_is_copied_as_early_as_ever() {
        let mut scene = Scene::new();
        for _ in 0..10 {
            scene.write();
        }
        // As after somebody who read for long.
        scene.wal.start_at = 1_000_000;
        scene.wal.ask().unwrap();
        let copied = scene.wal.copied.recv().unwrap();
        let (answer, copied_again) = mpsc::sync_channel(1);
        answer.send(copied).unwrap();
        scene.wal.copied = copied_again;
        // All of it is copied, so this goes to the beginning of the log.
        scene.writer.execute("INSERT INTO rows VALUES (0, NULL)", []).unwrap();
        scene.wal.go_on(&scene.writer).unwrap();
        assert_eq!(scene.wal.start_at, PAGES);
    }
}
