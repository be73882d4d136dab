//! The engine for one process: SQLite, one writer with group commit, readers beside it.
//!
//! It knows tables, indexes and fences. What is done with them comes as [`Work`], which runs on the writer's thread.

mod apply;
mod cache;
mod checkpointer;
mod directory_lock;
mod disk;
mod durability;
mod failure;
mod fences;
mod integrity;
mod options;
mod pending;
mod read;
mod reader;
mod rows;
mod schema;
mod statements;
mod storage;
mod take;
mod writer;

pub use durability::Durability;
pub use options::{OpenError, Options, look_for};
pub use reader::SqliteReader;
pub use storage::SqliteStorage;
pub use writer::Work;

use crate::{
    domain::{store_clock::StoreClock, time::Timestamp},
    env::Clock,
    store::{Health, StoreError},
};
use cache::{SharedVolatile, StoreRow};
use checkpointer::Checkpointer;
use directory_lock::DirectoryLock;
use disk::{Disk, OpenedFile, create_directory, sync_directory};
use rusqlite::Connection;
use schema::SchemaError;
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    thread,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use writer::{Envelope, Setup, SharedClock, Writer, is_stopped};

/// Calls that wait for the writer; more are refused as overload.
const WAITING_MAX: usize = 16_384;
/// What they bring along, together.
const WAITING_KIB_MAX: usize = 256 * 1024;
/// Reads at the same time.
const READERS_MAX: usize = 8;

/// A handle on the engine; the last one to go closes it.
#[derive(Debug)]
pub struct SqliteStore<W: Work> {
    database: PathBuf,
    inbox: mpsc::Sender<Envelope<W>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    readers: Arc<Mutex<Vec<Connection>>>,
    volatile: SharedVolatile,
    clock: Arc<dyn Clock>,
    time: SharedClock,
    health: Arc<RwLock<Health>>,
    disk: Disk,
    reading: Arc<Semaphore>,
    /// In KiB.
    room: Arc<Semaphore>,
    /// The database; after the readers, see `Checkpointer::start`.
    _file: Option<Arc<File>>,
}

impl<W: Work> SqliteStore<W> {
    pub fn open(options: Options, clock: Arc<dyn Clock>, work: W) -> Result<Self, OpenError> {
        let Options { directory, durability, reserve_bytes } = options;
        let in_directory = |error| OpenError::Directory { directory: directory.clone(), error };
        create_directory(&directory).map_err(in_directory)?;
        let lock = DirectoryLock::take(&directory)
            .map_err(|error| OpenError::Lock { directory: directory.clone(), error })?;
        let database = directory.join(schema::DATABASE);
        let in_database = |error: SchemaError| OpenError::Schema { path: database.clone(), error };
        let open = || schema::open_writer(&database, durability).map_err(in_database);
        let mut connection = open()?;
        let file = match durability {
            Durability::Fsync => Some(Arc::new(File::open(&database).map_err(in_directory)?)),
            Durability::None => None,
        };
        let mut checkpointer =
            Checkpointer::start(&mut connection, open()?, file.clone()).map_err(in_directory)?;
        let time = start_clock(&connection, &*clock).map_err(|error| in_database(error.into()))?;
        let health = Arc::new(RwLock::new(Health::Well));
        let disk = Disk { directory: directory.clone(), reserve_bytes };
        let setup = Setup {
            clock: clock.clone(),
            time: time.clone(),
            disk: disk.clone(),
            opened: OpenedFile::new(&directory).map_err(in_directory)?,
            durability,
            // It stays the same file while the database is open.
            log: File::open(directory.join(schema::LOG)).map_err(in_directory)?,
            health: health.clone(),
        };
        sync_directory(&directory).map_err(in_directory)?;

        // The storage borrows its connection, so it lives on the thread's own stack; whether that failed comes back here.
        let (opened, opening) = std::sync::mpsc::channel();
        let (inbox, calls) = mpsc::channel(WAITING_MAX);
        let volatile = SharedVolatile::default();
        let thread = {
            let (volatile, health, file) = (volatile.clone(), health.clone(), file.clone());
            let run = move || {
                let (now, kept) = {
                    let mut time = self::lock(&setup.time);
                    (time.now(setup.clock.read()), time.kept())
                };
                match SqliteStorage::open(&connection, volatile, kept, now) {
                    Ok(storage) => {
                        drop(opened.send(Ok(())));
                        Writer::new(storage, work, setup).run(calls, &mut checkpointer);
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
                drop(checkpointer);
                writer::close(connection, &health);
                drop((file, lock));
            };
            let thread = thread::Builder::new().name("redrive-writer".into());
            thread.spawn(run).map_err(in_directory)?
        };
        match opening.recv() {
            Ok(Ok(())) => {}
            failed => {
                drop(thread.join());
                return Err(match failed {
                    Ok(Err(error)) => in_database(error.into()),
                    _ => in_directory(io::Error::other("the writer did not start")),
                });
            }
        }
        Ok(Self {
            database,
            inbox,
            thread: Mutex::new(Some(thread)),
            readers: Arc::default(),
            volatile,
            clock,
            time,
            health,
            disk,
            reading: Arc::new(Semaphore::new(READERS_MAX)),
            room: Arc::new(Semaphore::new(WAITING_KIB_MAX)),
            _file: file,
        })
    }

    /// Store time.
    pub fn now(&self) -> Timestamp {
        lock(&self.time).now(self.clock.read())
    }

    /// Hands a call to the writer; its answer goes to `reply`.
    pub fn submit(&self, call: W::Call, reply: W::Reply) -> Result<(), StoreError> {
        let room = self.room_for(&call)?;
        self.send(Envelope::Call(call, (reply, room)))
    }

    fn send(&self, envelope: Envelope<W>) -> Result<(), StoreError> {
        self.inbox.try_send(envelope).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                StoreError::Overloaded(format!("{WAITING_MAX} calls wait for the disk"))
            }
            mpsc::error::TrySendError::Closed(_) => {
                StoreError::Unavailable("the store is closed".into())
            }
        })
    }

    /// What waits for the disk takes memory, which has an end.
    fn room_for(&self, call: &W::Call) -> Result<OwnedSemaphorePermit, StoreError> {
        let kib = u32::try_from(W::bytes(call) / 1024 + 1).unwrap_or(u32::MAX);
        self.room.clone().try_acquire_many_owned(kib).map_err(|_| {
            StoreError::Overloaded(format!("{} MiB wait for the disk", WAITING_KIB_MAX / 1024))
        })
    }

    /// Runs a read on a connection of its own, on a thread where it may wait for the disk.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut SqliteReader<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (readers, database) = (self.readers.clone(), self.database.clone());
        let (volatile, now) = (self.volatile.clone(), self.now());
        // Connections have caches, and there are only so many cores to read with.
        let place = self.reading.clone().acquire_owned().await;
        let work = move || {
            let _place = place;
            let idle = lock(&readers).pop();
            let connection = match idle {
                Some(connection) => connection,
                None => schema::open_reader(&database)
                    .map_err(|error| StoreError::Unavailable(error.to_string()))?,
            };
            let result = read(&mut SqliteReader { connection: &connection, volatile, now });
            let mut readers = lock(&readers);
            if result.is_ok() && readers.len() < READERS_MAX {
                readers.push(connection);
            }
            result
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(StoreError::Unavailable(error.to_string())),
        }
    }

    pub fn health(&self) -> Health {
        match is_stopped(&self.health) {
            Some(why) => Health::Stopped(why),
            None if self.inbox.is_closed() => Health::Stopped("the writer has ended".into()),
            None => self.disk.low_after(0).map_or(Health::Well, Health::DiskLow),
        }
    }

    /// Calls that come after this are refused; those that came before are answered.
    pub async fn close(&self) {
        drop(self.inbox.send(Envelope::Close).await);
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
    directory: &Path,
    clock: &dyn Clock,
    read: impl FnOnce(&mut SqliteReader<'_>) -> T,
) -> Result<T, OpenError> {
    look_for(directory)?;
    let database = directory.join(schema::DATABASE);
    let in_database = |error: SchemaError| OpenError::Schema { path: database.clone(), error };
    let connection = schema::open_reader(&database).map_err(in_database)?;
    let time = start_clock(&connection, clock).map_err(|error| in_database(error.into()))?;
    let now = lock(&time).now(clock.read());
    Ok(read(&mut SqliteReader {
        connection: &connection,
        volatile: SharedVolatile::default(),
        now,
    }))
}

/// The one clock, going on from where the store has been. A store without one is new.
fn start_clock(connection: &Connection, clock: &dyn Clock) -> rusqlite::Result<SharedClock> {
    let kept = StoreRow::load(connection)?.map(|store| store.kept);
    Ok(Arc::new(Mutex::new(StoreClock::start(kept, clock.read()))))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
