//! The write-ahead log on its way into the database, beside the writer: no caller waits for all of it.
//!
//! A thread with a connection of its own copies what is there while the writer goes on. What the writer has added by then,
//! it copies itself between two transactions; with all of it copied, the log starts from its beginning again.

use super::writer::Failure;
use rusqlite::{Connection, wal::CheckpointMode};
use std::{
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
const ROUNDS: u32 = 4;

pub(super) struct Wal {
    /// In the log, since it last began.
    pages: Arc<AtomicU32>,
    /// From how many of them on they are copied.
    start_at: u32,
    /// How often the thread has been asked, this time; 0: it has nothing to do.
    round: u32,
    orders: Option<SyncSender<()>>,
    copied: Receiver<rusqlite::Result<u32>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Wal {
    /// `beside`: another connection to the writer's database.
    pub(super) fn start(writer: &mut Connection, beside: Connection) -> io::Result<Self> {
        let pages = Arc::<AtomicU32>::default();
        let seen = pages.clone();
        let count = move |_: &mut rusqlite::hooks::Wal, in_log| {
            seen.store(u32::try_from(in_log).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        writer.wal_hook(Some(count)).map_err(io::Error::other)?;
        let (orders, inbox) = mpsc::sync_channel(1);
        let (outbox, copied) = mpsc::sync_channel(1);
        let run = move || {
            while inbox.recv().is_ok() && outbox.send(copy(&beside)).is_ok() {}
        };
        let thread = thread::Builder::new().name("redrive-wal".into()).spawn(run)?;
        let (orders, thread) = (Some(orders), Some(thread));
        Ok(Self { pages, start_at: PAGES, round: 0, orders, copied, thread })
    }

    /// Between two transactions.
    pub(super) fn go_on(&mut self, writer: &Connection) -> Result<(), Failure> {
        let pages = self.pages.load(Ordering::Relaxed);
        if self.round == 0 {
            if pages >= self.start_at {
                self.copy_beside()?;
            }
            return Ok(());
        }
        let copied = match self.copied.try_recv() {
            Ok(copied) => copied,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => return Err(thread_ended()),
        };
        let copied = match copied {
            Ok(copied) if pages.saturating_sub(copied) > REST && self.round < ROUNDS => {
                return self.copy_beside();
            }
            Ok(_) => copy(writer),
            failed => failed,
        };
        self.round = 0;
        match copied.map_err(Failure::from) {
            Ok(copied) if copied >= pages => {
                self.pages.store(0, Ordering::Relaxed);
                self.start_at = PAGES;
            }
            // Somebody still reads what the database held before.
            Ok(_) => self.start_at = pages + REST,
            Err(Failure::Refused(error)) => {
                tracing::warn!(%error, "the write-ahead log stays long: it does not fit into the database");
                self.start_at = pages + REST;
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn copy_beside(&mut self) -> Result<(), Failure> {
        self.round += 1;
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

/// Copies what nobody is in the way of, and says how many pages of the log have been copied since it began.
fn copy(connection: &Connection) -> rusqlite::Result<u32> {
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
            let wal = Wal::start(&mut writer, open()).unwrap();
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
        assert_eq!(rows(&scene.reader()), scene.written);
    }

    #[test]
    fn a_reader_keeps_the_log_only_as_long_as_it_reads() {
        let mut scene = Scene::new();
        scene.write();
        let reader = scene.reader();
        reader.execute_batch("BEGIN").unwrap();
        assert_eq!(rows(&reader), 1);
        scene.write_while(|wal| wal.round == 0);
        scene.write_while(|wal| wal.round > 0);
        assert!(in_log(&scene.wal) >= PAGES);
        assert_eq!(rows(&reader), 1, "it reads what was there when it began");
        reader.execute_batch("COMMIT").unwrap();
        scene.write_while(|wal| in_log(wal) >= PAGES);
        assert_eq!(rows(&reader), scene.written);
    }
}
