//! The one writer: takes the calls that wait, runs them in one transaction, and answers once that is on disk. While one
//! transaction is on its way to the disk, the calls of the next one gather.

use super::{
    Durability,
    checkpointer::Checkpointer,
    disk::{Disk, OpenedFile},
    failure::Failure,
    lock, schema,
    storage::{SqliteStorage, Written},
};
use crate::{
    domain::{
        store_clock::{Reading, StoreClock},
        time::Timestamp,
    },
    env::Clock,
    store::{Health, StoreError},
};
use rusqlite::Connection;
use std::{
    fs::File,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// The calls of one transaction.
const STEP_MAX: usize = 2_048;
const STEP_BYTES_MAX: usize = 16 << 20;
/// Store time is written at least so often while there are calls: callers are told of it, and it must not go back.
const SAVE_TIME_EVERY: Duration = Duration::from_secs(1);

/// The store's one clock.
pub(super) type SharedClock = Arc<Mutex<StoreClock>>;

/// What the writer's thread does with calls. It owns the work, and runs it in a transaction.
pub trait Work: Send + 'static {
    type Call: Send + 'static;
    type Answer: Send + 'static;
    /// Where an answer goes.
    type Reply: Send + 'static;

    /// About what a call takes of memory and disk.
    fn bytes(call: &Self::Call) -> usize;

    /// Such calls are refused when the disk is nearly full.
    fn adds_jobs(call: &Self::Call) -> bool;

    /// Such calls write nothing that must reach the disk before it is seen. A guess: what they write otherwise gets there too.
    fn only_promotes(&mut self, _: &mut SqliteStorage<'_>, _: &Self::Call) -> bool {
        false
    }

    /// One answer for each call, in their order. An error undoes all of them.
    fn run(
        &mut self,
        storage: &mut SqliteStorage<'_>,
        calls: Vec<Self::Call>,
    ) -> Result<Vec<Self::Answer>, StoreError>;

    /// It is on disk; the callers are answered next.
    fn committed(&mut self, _: &mut SqliteStorage<'_>) {}

    /// Nothing of the calls happened.
    fn rolled_back(&mut self) {}

    fn answer(reply: Self::Reply, answer: Result<Self::Answer, StoreError>);

    /// Runs after the last call, in its transaction.
    fn close(&mut self, _: &mut SqliteStorage<'_>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Where an answer goes, and the memory that its call takes.
pub(super) type Waiting<W> = (<W as Work>::Reply, OwnedSemaphorePermit);

pub(super) enum Envelope<W: Work> {
    Call(W::Call, Waiting<W>),
    /// No more calls after this one.
    Close,
}

/// Calls that become one transaction.
struct Step<W: Work> {
    calls: Vec<W::Call>,
    replies: Vec<Waiting<W>>,
    bytes: usize,
    closing: bool,
}

impl<W: Work> Step<W> {
    fn new() -> Self {
        Self { calls: Vec::new(), replies: Vec::new(), bytes: 0, closing: false }
    }

    fn add(&mut self, envelope: Envelope<W>) {
        match envelope {
            Envelope::Call(call, reply) => {
                self.bytes += W::bytes(&call);
                self.calls.push(call);
                self.replies.push(reply);
            }
            Envelope::Close => self.closing = true,
        }
    }

    fn is_full(&self) -> bool {
        self.calls.len() >= STEP_MAX || self.bytes >= STEP_BYTES_MAX
    }

    /// Looks once for all that is to be written together, and refuses new jobs if there is no room for them.
    fn refuse_jobs_when_low(&mut self, disk: &Disk) {
        if !self.calls.iter().any(W::adds_jobs) {
            return;
        }
        // Everything is written twice: to the log, and from there to the database.
        let Some(why) = disk.low_after(2 * self.bytes as u64) else { return };
        let calls = std::mem::take(&mut self.calls).into_iter();
        for (call, reply) in calls.zip(std::mem::take(&mut self.replies)) {
            if W::adds_jobs(&call) {
                refuse::<W>(reply, StoreError::DiskLow(why.clone()));
            } else {
                self.calls.push(call);
                self.replies.push(reply);
            }
        }
    }
}

fn refuse<W: Work>((reply, _room): Waiting<W>, error: StoreError) {
    W::answer(reply, Err(error));
}

/// What the writer is started with.
pub(super) struct Setup {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) time: SharedClock,
    pub(super) disk: Disk,
    pub(super) opened: OpenedFile,
    pub(super) durability: Durability,
    pub(super) log: File,
    pub(super) health: Arc<RwLock<Health>>,
}

pub(super) struct Writer<'c, W: Work> {
    storage: SqliteStorage<'c>,
    work: W,
    setup: Setup,
    /// Whether commits wait for the disk.
    waits_for_disk: bool,
    /// Store time as it was last written.
    saved_at: Timestamp,
}

impl<'c, W: Work> Writer<'c, W> {
    pub(super) fn new(storage: SqliteStorage<'c>, work: W, setup: Setup) -> Self {
        Self { storage, work, setup, waits_for_disk: true, saved_at: Timestamp::default() }
    }

    /// Takes calls until the store is closed.
    pub(super) fn run(
        mut self,
        mut inbox: mpsc::Receiver<Envelope<W>>,
        checkpointer: &mut Checkpointer,
    ) {
        loop {
            let mut step = Step::new();
            let Some(first) = inbox.blocking_recv() else { return };
            step.add(first);
            while !step.is_full()
                && let Ok(envelope) = inbox.try_recv()
            {
                step.add(envelope);
            }
            if step.closing {
                inbox.close();
            }
            step.refuse_jobs_when_low(&self.setup.disk);
            let reading = self.setup.clock.read();
            let connection = self.storage.connection;
            let stepped = self.step(reading, step).and_then(|()| checkpointer.run_once(connection));
            match stepped {
                Ok(()) => {}
                Err(Failure::Refused(error)) => tracing::warn!(%error, "nothing was written"),
                Err(Failure::Stopped(why) | Failure::Unknown(why)) => {
                    return stop(&mut inbox, &self.setup.health, &why);
                }
            }
        }
    }

    /// Runs the calls in one transaction and answers them when it is on disk.
    fn step(&mut self, reading: Reading, step: Step<W>) -> Result<(), Failure> {
        let Step { calls, replies, closing, .. } = step;
        match self.transact(reading, calls, closing) {
            Ok(answers) => {
                self.work.committed(&mut self.storage);
                for ((reply, _room), answer) in replies.into_iter().zip(answers) {
                    W::answer(reply, Ok(answer));
                }
                Ok(())
            }
            Err(failure) => {
                // Best effort: a transaction that cannot even be rolled back is gone with the connection.
                let _ = self.storage.rollback();
                self.work.rolled_back();
                let failure = match self.storage.reload() {
                    Ok(()) => failure,
                    Err(error) => Failure::Unknown(error.to_string()),
                };
                for reply in replies {
                    refuse::<W>(reply, failure.error());
                }
                Err(failure)
            }
        }
    }

    fn transact(
        &mut self,
        reading: Reading,
        calls: Vec<W::Call>,
        closing: bool,
    ) -> Result<Vec<W::Answer>, Failure> {
        let now = lock(&self.setup.time).now(reading);
        let count = calls.len();
        self.storage.now = now;
        let (work, storage) = (&mut self.work, &mut self.storage);
        let only_promotes = calls.iter().all(|call| work.only_promotes(storage, call));
        self.wait_for_disk(closing || !only_promotes)?;
        self.storage.begin(now)?;
        let ran = self.work.run(&mut self.storage, calls).and_then(|answers| {
            if closing {
                self.work.close(&mut self.storage)?;
            }
            Ok(answers)
        });
        // A verb may not go on after a failure of the database.
        let answers = match (self.storage.take_failure(), ran) {
            (Some(failure), _) => return Err(failure),
            (None, Err(error)) => return Err(Failure::Refused(error)),
            (None, Ok(answers)) => answers,
        };
        if answers.len() != count {
            return Err(Failure::Stopped(format!("{count} calls have {} answers", answers.len())));
        }
        let told = now.since(self.saved_at) >= SAVE_TIME_EVERY || closing;
        if self.storage.written == Written::Nothing && !told {
            // Calls that found nothing cost no fsync.
            self.storage.rollback()?;
            return Ok(answers);
        }
        if let Some(why) = self.setup.opened.replaced() {
            return Err(Failure::Stopped(why));
        }
        let kept = lock(&self.setup.time).kept();
        self.storage.save(kept)?;
        self.saved_at = now;
        self.storage.commit().map_err(Failure::of_commit)?;
        if self.storage.written == Written::Changes && !self.waits_for_disk {
            let synced = self.setup.log.sync_data();
            synced.map_err(|error| {
                Failure::Unknown(format!("the log did not reach the disk: {error}"))
            })?;
        }
        Ok(answers)
    }

    /// Whether the next commit is on disk when it ends; otherwise it gets there with the one after it.
    fn wait_for_disk(&mut self, wait: bool) -> Result<(), Failure> {
        if self.setup.durability == Durability::Fsync && self.waits_for_disk != wait {
            let level = if wait { "FULL" } else { "NORMAL" };
            self.storage.connection.pragma_update(None, "synchronous", level)?;
            self.waits_for_disk = wait;
        }
        Ok(())
    }
}

/// Refuses everything from now on, until the store is closed.
fn stop<W: Work>(inbox: &mut mpsc::Receiver<Envelope<W>>, health: &RwLock<Health>, why: &str) {
    tracing::error!(
        why,
        "the store takes no more writes: what is on disk must be read afresh, so restart redrive"
    );
    *health.write().unwrap_or_else(PoisonError::into_inner) = Health::Stopped(why.to_owned());
    while let Some(envelope) = inbox.blocking_recv() {
        match envelope {
            Envelope::Call(_, reply) => {
                refuse::<W>(reply, StoreError::Unavailable(format!("writes have stopped: {why}")));
            }
            Envelope::Close => inbox.close(),
        }
    }
}

pub(super) fn is_stopped(health: &RwLock<Health>) -> Option<String> {
    match &*health.read().unwrap_or_else(PoisonError::into_inner) {
        Health::Stopped(why) => Some(why.clone()),
        _ => None,
    }
}

/// Puts all of the write-ahead log into the database, so that a copy of the one file is whole. After a failure it is
/// left as it is: what of it has reached the disk is found out by reading all of it again.
pub(super) fn close(connection: Connection, health: &RwLock<Health>) {
    if is_stopped(health).is_none() {
        drop(connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"));
    } else {
        drop(schema::leave_log_alone(&connection));
    }
    drop(connection.close());
}
