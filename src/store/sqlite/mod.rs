//! The engine for one process: SQLite, one writer with group commit, readers beside it.
//!
//! It knows tables, indexes and fences. What is done with them comes as [`Work`], which runs on the writer's thread.

mod apply;
mod cache;
mod checkpointer;
mod disk;
mod failure;
mod integrity;
mod options;
mod pending;
mod read;
mod rows;
mod schema;
mod statements;
mod storage;
mod take;
mod volatile;
mod writer;

pub use options::{Durability, OpenError, Options, look_for};
pub use read::SqliteReader;
pub use storage::SqliteStorage;
pub use writer::Work;

use crate::domain::{StoreClock, Timestamp};
use crate::env::Clock;
use crate::lock::lock;
use crate::store::{Health, Result, Room, StoreError};
use cache::StoreRow;
use checkpointer::Checkpointer;
use disk::{Disk, create_directory, keep_private, lock_directory, sync_directory};
use rusqlite::Connection;
use schema::SchemaError;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::{io, thread};
use tokio::sync::Semaphore;
use tokio::sync::mpsc;
use volatile::SharedVolatile;
use writer::{Envelope, Shared, Writer};

const READERS_MAX: usize = 8;

/// A handle on the engine; the last one to go closes it.
#[derive(Debug)]
pub struct SqliteEngine<W: Work> {
    database: PathBuf,
    /// As long as there is room.
    inbox: mpsc::UnboundedSender<Envelope<W>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    readers: Arc<Mutex<Vec<Connection>>>,
    volatile: SharedVolatile,
    reading: Arc<Semaphore>,
    room: Room,
    /// It holds the database open: after the readers, see `Checkpointer::new`.
    shared: Arc<Shared>,
}

impl<W: Work> SqliteEngine<W> {
    pub fn open(options: Options, clock: Arc<dyn Clock>, work: W) -> Result<Self, OpenError> {
        let Options { directory, durability, reserve_bytes } = options;
        let in_directory = |error| OpenError::Directory { directory: directory.clone(), error };
        create_directory(&directory).map_err(in_directory)?;
        let lock = lock_directory(&directory).map_err(in_directory)?;
        keep_private(&directory).map_err(in_directory)?;
        let database = directory.join(schema::DATABASE);
        let in_database = |error: SchemaError| OpenError::Schema { path: database.clone(), error };
        let open = || schema::open_writer(&database, durability).map_err(in_database);
        let mut connection = open()?;
        let file = (durability == Durability::Fsync).then(|| File::open(&database).map(Arc::new));
        let file = file.transpose().map_err(in_directory)?;
        let mut checkpointer =
            Checkpointer::new(&mut connection, open()?, file.clone()).map_err(|error| in_database(error.into()))?;
        let time = start_clock(&connection, &*clock).map_err(|error| in_database(error.into()))?;
        let shared = Arc::new(Shared {
            clock,
            time: Mutex::new(time),
            disk: Disk::new(directory.clone(), reserve_bytes).map_err(in_directory)?,
            durability,
            log: File::open(directory.join(schema::LOG)).map_err(in_directory)?,
            stopped: OnceLock::new(),
            _file: file,
        });
        sync_directory(&directory).map_err(in_directory)?;

        // The storage borrows its connection, so it lives on the thread's own stack; whether that failed comes back here.
        let (opened, opening) = std::sync::mpsc::channel();
        let (inbox, calls) = mpsc::unbounded_channel();
        let volatile = SharedVolatile::default();
        let (in_writer, of_writer) = (volatile.clone(), shared.clone());
        let run = move || {
            match SqliteStorage::open(&connection, in_writer, &of_writer) {
                Ok(storage) => {
                    drop(opened.send(Ok(())));
                    Writer::new(storage, work, of_writer.clone()).run(calls, &mut checkpointer);
                }
                Err(error) => drop(opened.send(Err(error))),
            }
            drop(checkpointer);
            writer::close(connection, of_writer.stopped.get().is_some());
            drop((of_writer, lock));
        };
        let thread = thread::Builder::new().name("redrive-writer".into()).spawn(run).map_err(in_directory)?;
        let failed = match opening.recv() {
            Ok(opened) => opened.err().map(|error| in_database(error.into())),
            Err(_) => Some(in_directory(io::Error::other("the writer did not start"))),
        };
        if let Some(failed) = failed {
            drop(thread.join());
            return Err(failed);
        }
        Ok(Self {
            database,
            inbox,
            thread: Mutex::new(Some(thread)),
            readers: Arc::default(),
            volatile,
            reading: Arc::new(Semaphore::new(READERS_MAX)),
            room: Room::new("the disk"),
            shared,
        })
    }

    pub fn now(&self) -> Timestamp {
        self.shared.now()
    }

    /// Hands a call to the writer; its answer goes to `reply`.
    pub fn submit(&self, call: W::Call, reply: W::Reply) -> Result<()> {
        let room = self.room.take(W::bytes(&call), W::has_reserve(&call))?;
        let closed = |_| StoreError::Unavailable("the store is closed".into());
        self.inbox.send(Envelope::Call(call, (reply, room))).map_err(closed)
    }

    /// Runs a read on a connection of its own, on a thread where it may wait for the disk.
    pub async fn read<T: Send + 'static>(
        &self, read: impl FnOnce(&mut SqliteReader<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (readers, database) = (self.readers.clone(), self.database.clone());
        let (volatile, now) = (self.volatile.clone(), self.now());
        // Connections have caches, and there are only so many cores to read with.
        let place = self.reading.clone().acquire_owned().await;
        let work = move || {
            let _place = place;
            let idle = lock(&readers).pop();
            let connection = idle.map_or_else(|| schema::open_reader(&database), Ok);
            let connection = connection.map_err(|error| StoreError::Unavailable(error.to_string()))?;
            let result = read(&mut SqliteReader { connection: &connection, volatile, now });
            let mut readers = lock(&readers);
            if result.is_ok() && readers.len() < READERS_MAX {
                readers.push(connection);
            }
            result
        };
        let ran = tokio::task::spawn_blocking(work).await;
        ran.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))
    }

    /// What the database says of the version that it needs, if that is a newer one.
    pub async fn needs_newer(&self) -> Option<String> {
        let database = self.database.clone();
        let opened = tokio::task::spawn_blocking(move || schema::open_reader(&database)).await.ok()?;
        opened.err().filter(|error| matches!(error, SchemaError::Newer { .. })).map(|error| error.to_string())
    }

    pub fn health(&self) -> Health {
        match self.shared.stopped.get() {
            Some(why) => Health::Stopped(why.clone()),
            None if self.inbox.is_closed() => Health::Stopped("the writer has ended".into()),
            None => self.shared.disk.low_after(0).map_or(Health::Well, Health::DiskLow),
        }
    }

    /// Calls that come after this are refused; those that came before are answered.
    pub async fn close(&self) {
        drop(self.inbox.send(Envelope::Close));
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // The thread ends once it has answered what it was given.
            drop(tokio::task::spawn_blocking(move || thread.join()).await);
        }
        lock(&self.readers).clear();
    }
}

/// Reads a store that a server may have open.
pub fn read_directory<T>(
    directory: &Path, clock: &dyn Clock, read: impl FnOnce(&mut SqliteReader<'_>) -> T,
) -> Result<T, OpenError> {
    let database = look_for(directory)?;
    let in_database = |error: SchemaError| OpenError::Schema { path: database.clone(), error };
    let connection = schema::open_reader(&database).map_err(in_database)?;
    let mut time = start_clock(&connection, clock).map_err(|error| in_database(error.into()))?;
    let now = time.now(clock.read());
    Ok(read(&mut SqliteReader { connection: &connection, volatile: SharedVolatile::default(), now }))
}

/// The one clock, going on from where the store has been. A store without one is new.
fn start_clock(connection: &Connection, clock: &dyn Clock) -> rusqlite::Result<StoreClock> {
    let kept = StoreRow::load(connection)?.map(|store| store.kept);
    Ok(StoreClock::start(kept, clock.read()))
}
