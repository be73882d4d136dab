//! The embedded engine: SQLite, one writer with group commit, readers beside it.
//!
//! Calls that change something go to the writer's thread, which takes whatever has arrived, applies it in one transaction
//! and answers after the fsync; while it waits for the disk, the next lot gathers. Reads have connections of their own.

mod alarm;
mod audit;
mod breakers;
mod claim;
mod completed;
mod counts;
mod dead;
mod directory_lock;
mod disk;
mod enqueue;
mod flush;
mod guards;
mod leases;
mod list;
mod lookup;
mod memory;
mod operate;
mod options;
mod pause;
mod places;
mod purge;
mod read;
mod replies;
mod requeue;
mod retention;
mod schema;
mod settle;
mod statements;
mod stats;
mod sweep;
mod take_in;
mod wal;
mod writer;
mod writer_thread;

pub use audit::audit;
pub use flush::Durability;
pub use options::{OpenError, Options, look_for};

use super::codec;
use crate::{
    domain::{
        breaker::BreakerName,
        ids::{JobId, QueueName},
        job::NewJob,
        time::Timestamp,
    },
    env::Clock,
    store::{
        Ask, BreakerOrder, BreakerView, BreakerViews, Cancelled, Claim, Claimed, DeadCountQuery,
        DeadCounts, DeadLetterPage, DeadLetterQuery, Enqueued, Health, JobPage, JobQuery,
        JobRefused, JobView, Listener, NewPause, Newcomers, Purge, PurgeRefused, Purged,
        QueueRefused, QueueView, Refused, Requeue, RequeueRefused, Requeued, Settled, Settlements,
        Stats, Store, StoreError, Sweep, Swept, TakenIn, Unanswered,
    },
};
use alarm::Alarm;
use disk::{Disk, create_directory, sync_directory};
use enqueue::Incoming;
use flush::Flusher;
use rusqlite::Connection;
use std::{
    fs::File,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    thread,
};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};
use wal::Wal;
use writer::{Answer, Call, Command, SharedClock, Writer, start_clock};
use writer_thread::{Beside, close, run};

/// Calls that wait for the writer; more are refused as overload.
const WAITING_MAX: usize = 16_384;
/// What they bring along, together.
const WAITING_KIB_MAX: usize = 256 * 1024;
/// Reads at the same time.
const READERS_MAX: usize = 8;

/// A handle on the engine; the last one to go closes it.
#[derive(Debug)]
pub struct Embedded {
    database: PathBuf,
    commands: mpsc::Sender<Call>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    readers: Arc<Mutex<Vec<Connection>>>,
    clock: Arc<dyn Clock>,
    time: SharedClock,
    health: Arc<RwLock<Health>>,
    disk: Disk,
    reading: Arc<Semaphore>,
    /// In KiB.
    room: Semaphore,
    /// The database; after the readers, see `Wal::start`.
    _file: Option<Arc<File>>,
}

impl Embedded {
    pub fn open(
        options: Options,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn Listener>,
    ) -> Result<Self, OpenError> {
        let directory = options.directory.clone();
        let in_directory = |error| OpenError::Directory { directory: directory.clone(), error };
        create_directory(&directory).map_err(in_directory)?;
        let lock = directory_lock::DirectoryLock::take(&directory)
            .map_err(|error| OpenError::Lock { directory: directory.clone(), error })?;
        let database = directory.join(schema::DATABASE);
        let in_database =
            |error: schema::SchemaError| OpenError::Schema { path: database.clone(), error };
        let open = || schema::open_writer(&database, options.durability).map_err(in_database);
        let mut connection = open()?;
        let file = match options.durability {
            Durability::Fsync | Durability::Interval(_) => {
                Some(Arc::new(File::open(&database).map_err(in_directory)?))
            }
            Durability::None => None,
        };
        let wal = Wal::start(&mut connection, open()?, file.clone()).map_err(in_directory)?;
        sync_directory(&directory).map_err(in_directory)?;

        // The writer borrows its connection, so it lives on the thread's own stack; whether that failed comes back here.
        let reading = clock.read();
        let time = start_clock(&connection, reading).map_err(|error| in_database(error.into()))?;
        let alarm =
            Alarm::start(clock.clone(), time.clone(), listener.clone()).map_err(in_directory)?;
        let (opened, opening) = std::sync::mpsc::channel();
        let (commands, inbox) = mpsc::channel(WAITING_MAX);
        let health = Arc::new(RwLock::new(Health::Well));
        let disk = Disk { directory: directory.clone(), reserve_bytes: options.reserve_bytes };
        let flusher = match options.durability {
            Durability::Interval(interval) => {
                Some(Flusher::start(&directory, interval, health.clone()).map_err(in_directory)?)
            }
            Durability::Fsync | Durability::None => None,
        };
        let mut beside = Beside { alarm, wal, flusher };
        let thread = {
            let (clock, time, health) = (clock.clone(), time.clone(), health.clone());
            let (disk, file) = (disk.clone(), file.clone());
            thread::Builder::new()
                .name("redrive-writer".into())
                .spawn(move || {
                    match Writer::open(&connection, options, listener, time, reading) {
                        Ok(writer) => {
                            drop(opened.send(Ok(())));
                            run(writer, inbox, &*clock, &disk, &mut beside, &health);
                        }
                        Err(error) => drop(opened.send(Err(error))),
                    };
                    drop(beside);
                    close(connection, &health);
                    drop((file, lock));
                })
                .map_err(in_directory)?
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
            commands,
            thread: Mutex::new(Some(thread)),
            readers: Arc::default(),
            clock,
            time,
            health,
            disk,
            reading: Arc::new(Semaphore::new(READERS_MAX)),
            room: Semaphore::new(WAITING_KIB_MAX),
            _file: file,
        })
    }

    /// Hands a call to the writer and waits for its answer.
    async fn write(&self, command: Command) -> Result<Answer, StoreError> {
        let _room = self.room_for(&command)?;
        let (reply, answer) = oneshot::channel();
        self.send(Call { command, reply })?;
        answer.await.unwrap_or_else(|_| Err(unanswered()))
    }

    fn send(&self, call: Call) -> Result<(), StoreError> {
        self.commands.try_send(call).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                StoreError::Overloaded(format!("{WAITING_MAX} calls wait for the disk"))
            }
            mpsc::error::TrySendError::Closed(_) => closed(),
        })
    }

    /// Runs a read on a connection of its own.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (readers, database) = (self.readers.clone(), self.database.clone());
        // Connections have caches, and there are only so many cores to read with.
        let place = self.reading.clone().acquire_owned().await;
        let work = move || {
            let _place = place;
            let idle = lock(&readers).pop();
            let connection = match idle {
                Some(connection) => connection,
                None => schema::open_reader(&database)?,
            };
            let result = read(&connection);
            let mut readers = lock(&readers);
            if result.is_ok() && readers.len() < READERS_MAX {
                readers.push(connection);
            }
            result
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result.map_err(|error| StoreError::Unavailable(error.to_string())),
            Err(error) => Err(StoreError::Unavailable(error.to_string())),
        }
    }

    /// What waits for the disk takes memory, which has an end.
    fn room_for(&self, command: &Command) -> Result<SemaphorePermit<'_>, StoreError> {
        let kib = u32::try_from(command.bytes() / 1024 + 1).unwrap_or(u32::MAX);
        self.room.try_acquire_many(kib).map_err(|_| {
            StoreError::Overloaded(format!("{} MiB wait for the disk", WAITING_KIB_MAX / 1024))
        })
    }

    fn stopped(&self) -> Option<StoreError> {
        match &*self.health.read().unwrap_or_else(PoisonError::into_inner) {
            Health::Stopped(why) => Some(StoreError::Unavailable(why.clone())),
            _ => None,
        }
    }
}

impl Store for Embedded {
    fn now(&self) -> Timestamp {
        lock(&self.time).now(self.clock.read())
    }

    async fn enqueue(
        &self,
        ask: Ask,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Result<Enqueued, Refused>>, StoreError> {
        let jobs = jobs.into_iter().map(Incoming::new).collect();
        match self.write(Command::Enqueue(ask, jobs)).await? {
            Answer::Enqueue(results) => Ok(results),
            _ => Err(wrong_answer()),
        }
    }

    async fn claim(&self, ask: Ask, claim: Claim) -> Result<Claimed, StoreError> {
        let command = Command::Claim(ask, claim);
        let _room = self.room_for(&command)?;
        let (reply, answer) = oneshot::channel();
        let mut fetch = Fetch { store: self, answer };
        self.send(Call { command, reply })?;
        match (&mut fetch.answer).await.unwrap_or_else(|_| Err(unanswered()))? {
            Answer::Claim { claimed, .. } => Ok(claimed),
            _ => Err(wrong_answer()),
        }
    }

    async fn settle(&self, ask: Ask, settlements: Settlements) -> Result<Settled, StoreError> {
        match self.write(Command::Settle(ask, settlements)).await? {
            Answer::Settle(settled) => Ok(settled),
            _ => Err(wrong_answer()),
        }
    }

    async fn unclaim(&self, unanswered: Unanswered) -> Result<(), StoreError> {
        self.write(Command::Unclaim(unanswered)).await.map(|_| ())
    }

    async fn sweep(&self, ask: Ask, sweep: Sweep) -> Result<Swept, StoreError> {
        match self.write(Command::Sweep(ask, sweep)).await? {
            Answer::Sweep(swept) => Ok(swept),
            _ => Err(wrong_answer()),
        }
    }

    async fn requeue(
        &self,
        ask: Ask,
        requeue: Requeue,
    ) -> Result<Result<Requeued, RequeueRefused>, StoreError> {
        match self.write(Command::Requeue(ask, requeue)).await? {
            Answer::Requeue(requeued) => Ok(requeued),
            _ => Err(wrong_answer()),
        }
    }

    async fn purge(&self, purge: Purge) -> Result<Result<Purged, PurgeRefused>, StoreError> {
        match self.write(Command::Purge(purge)).await? {
            Answer::Purge(purged) => Ok(purged),
            _ => Err(wrong_answer()),
        }
    }

    async fn job(&self, id: JobId, queue: Option<QueueName>) -> Result<Vec<JobView>, StoreError> {
        self.read(move |connection| read::jobs(connection, &id, queue.as_ref())).await
    }

    async fn dead_letters(
        &self,
        query: DeadLetterQuery,
    ) -> Result<Option<DeadLetterPage>, StoreError> {
        self.read(move |connection| read::dead_letters(connection, &query)).await
    }

    async fn dead_letter_counts(&self, query: DeadCountQuery) -> Result<DeadCounts, StoreError> {
        self.read(move |connection| counts::dead_letter_counts(connection, &query)).await
    }

    async fn queues(
        &self,
        after: Option<QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueView>, StoreError> {
        self.read(move |connection| read::queues(connection, after.as_ref(), limit)).await
    }

    async fn pause(
        &self,
        ask: Ask,
        queue: QueueName,
        pause: Option<NewPause>,
    ) -> Result<Result<(), QueueRefused>, StoreError> {
        match self.write(Command::Pause(ask, queue, pause)).await? {
            Answer::Pause(paused) => Ok(paused),
            _ => Err(wrong_answer()),
        }
    }

    async fn breakers(
        &self,
        ask: Ask,
        queues: Vec<QueueName>,
    ) -> Result<Vec<BreakerViews>, StoreError> {
        match self.write(Command::Breakers(ask, queues)).await? {
            Answer::Breakers(views) => Ok(views),
            _ => Err(wrong_answer()),
        }
    }

    async fn set_breaker(
        &self,
        ask: Ask,
        name: BreakerName,
        order: BreakerOrder,
    ) -> Result<Result<BreakerView, QueueRefused>, StoreError> {
        match self.write(Command::SetBreaker(ask, name, order)).await? {
            Answer::SetBreaker(view) => Ok(view),
            _ => Err(wrong_answer()),
        }
    }

    async fn cancel(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<Cancelled, JobRefused>, StoreError> {
        match self.write(Command::Cancel(id, queue)).await? {
            Answer::Cancel(cancelled) => Ok(cancelled),
            _ => Err(wrong_answer()),
        }
    }

    async fn run_now(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<(), JobRefused>, StoreError> {
        match self.write(Command::RunNow(id, queue)).await? {
            Answer::RunNow(done) => Ok(done),
            _ => Err(wrong_answer()),
        }
    }

    async fn jobs(&self, query: JobQuery) -> Result<Option<JobPage>, StoreError> {
        self.read(move |connection| list::jobs(connection, &query)).await
    }

    async fn take_in(
        &self,
        ask: Ask,
        newcomers: Newcomers,
    ) -> Result<Result<Vec<TakenIn>, Refused>, StoreError> {
        match self.write(Command::TakeIn(ask, newcomers)).await? {
            Answer::TakeIn(taken) => Ok(taken),
            _ => Err(wrong_answer()),
        }
    }

    async fn stats(&self, queue: Option<QueueName>) -> Result<Option<Stats>, StoreError> {
        self.read(move |connection| stats::stats(connection, queue.as_ref())).await
    }

    fn health(&self) -> Health {
        match self.stopped() {
            Some(why) => Health::Stopped(why.to_string()),
            None if self.commands.is_closed() => Health::Stopped("the writer has ended".into()),
            None => self.disk.low().map_or(Health::Well, Health::DiskLow),
        }
    }

    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// A disk that fails stops the store for good.
    fn outages(&self) -> u64 {
        0
    }

    async fn close(&self) {
        // Whoever comes after this finds the door shut; whoever came before is answered.
        let (reply, _) = oneshot::channel();
        drop(self.commands.send(Call { command: Command::Close, reply }).await);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // The thread ends once it has answered what it was given.
            drop(tokio::task::spawn_blocking(move || thread.join()).await);
        }
        lock(&self.readers).clear();
    }
}

/// A claim's caller, who may go away when the answer is there but not yet fetched: then the jobs have to go back.
struct Fetch<'a> {
    store: &'a Embedded,
    answer: oneshot::Receiver<Result<Answer, StoreError>>,
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        // From here on the writer notices by itself that nobody is there.
        self.answer.close();
        if let Ok(Ok(Answer::Claim { claimed, request_id })) = self.answer.try_recv()
            && !claimed.jobs.is_empty()
        {
            let unanswered = Unanswered::new(&claimed.jobs, claimed.answer, &request_id);
            let command = Command::Unclaim(unanswered);
            let (reply, _) = oneshot::channel();
            // If even this cannot be said, the leases run out.
            drop(self.store.send(Call { command, reply }));
        }
    }
}

/// Each command has one kind of answer; another one tells nothing about what was written.
fn wrong_answer() -> StoreError {
    StoreError::OutcomeUnknown("the writer answered another question".into())
}

/// The writer went away with the call.
fn unanswered() -> StoreError {
    StoreError::OutcomeUnknown("the writer ended before it answered".into())
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
