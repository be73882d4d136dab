//! The one writer: takes the calls that wait, runs them in one transaction, and answers once that is on disk. While one
//! transaction is on its way to the disk, the calls of the next one gather.

use super::checkpointer::Checkpointer;
use super::disk::Disk;
use super::failure::Failure;
use super::storage::{SqliteStorage, Written};
use super::{Durability, lock, schema};
use crate::domain::{StoreClock, Timestamp};
use crate::env::{self, Clock};
use crate::log_limit::LogLimit;
use crate::store::{Result, StoreError, Taken};
use rusqlite::Connection;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use std::{fs::File, mem};
use tokio::sync::mpsc;

/// The calls of one transaction.
const STEP_MAX: usize = 2_048;
const STEP_BYTES_MAX: usize = 16 << 20;
/// Store time is written at least so often while there are calls: callers see it, and it must not go back.
const SAVE_TIME_EVERY: Duration = Duration::from_secs(1);

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

    /// Such calls find room when others are refused.
    fn has_reserve(call: &Self::Call) -> bool;

    /// Such calls write nothing that must reach the disk before it is seen. A guess: what they write otherwise gets there too.
    fn only_promotes(&mut self, _: &mut SqliteStorage<'_>, _: &Self::Call) -> bool {
        false
    }

    /// One answer for each call, in their order. An error undoes all of them.
    fn run(&mut self, storage: &mut SqliteStorage<'_>, calls: Vec<Self::Call>) -> Result<Vec<Self::Answer>>;

    /// It is on disk; the callers are answered next.
    fn committed(&mut self) {}

    /// Nothing of the calls happened.
    fn rolled_back(&mut self) {}

    fn answer(reply: Self::Reply, answer: Result<Self::Answer>);
}

/// Where an answer goes, and the memory that its call takes.
pub(super) type Waiting<W> = (<W as Work>::Reply, Taken);

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
    fn gather(first: Envelope<W>, inbox: &mut mpsc::UnboundedReceiver<Envelope<W>>) -> Self {
        let mut step = Self { calls: Vec::new(), replies: Vec::new(), bytes: 0, closing: false };
        let mut next = Some(first);
        while let Some(envelope) = next {
            match envelope {
                Envelope::Call(call, reply) => {
                    step.bytes += W::bytes(&call);
                    step.calls.push(call);
                    step.replies.push(reply);
                }
                Envelope::Close => {
                    step.closing = true;
                    inbox.close();
                }
            }
            let is_full = step.calls.len() >= STEP_MAX || step.bytes >= STEP_BYTES_MAX;
            next = if is_full { None } else { inbox.try_recv().ok() };
        }
        step
    }

    fn refuse(self, error: &StoreError) {
        for (reply, _room) in self.replies {
            W::answer(reply, Err(error.clone()));
        }
    }

    /// Looks once for all that is to be written together, and refuses new jobs if there is no room for them.
    fn refuse_jobs_when_low(&mut self, disk: &Disk) {
        if !self.calls.iter().any(W::adds_jobs) {
            return;
        }
        // Everything is written twice: to the log, and from there to the database.
        let Some(why) = disk.low_after(2 * self.bytes as u64) else { return };
        let calls = mem::take(&mut self.calls).into_iter().zip(mem::take(&mut self.replies));
        let (adding, others): (Vec<_>, Vec<_>) = calls.partition(|(call, _)| W::adds_jobs(call));
        (self.calls, self.replies) = others.into_iter().unzip();
        for (_, (reply, _room)) in adding {
            W::answer(reply, Err(StoreError::DiskLow(why.clone())));
        }
    }
}

/// What the handles on a store and its writer share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) time: Mutex<StoreClock>,
    pub(super) disk: Disk,
    pub(super) durability: Durability,
    /// It stays the same file while the database is open.
    pub(super) log: File,
    /// Why no more is written.
    pub(super) stopped: OnceLock<String>,
    /// See [`Checkpointer::new`].
    pub(super) _file: Option<Arc<File>>,
}

impl Shared {
    pub(super) fn now(&self) -> Timestamp {
        lock(&self.time).now(self.clock.read())
    }
}

pub(super) struct Writer<'c, W: Work> {
    storage: SqliteStorage<'c>,
    work: W,
    shared: Arc<Shared>,
    /// Whether commits wait for the disk.
    waits_for_disk: bool,
    /// Store time as it was last written.
    saved_at: Timestamp,
    /// Of lines about what was refused.
    refused: LogLimit,
}

impl<'c, W: Work> Writer<'c, W> {
    pub(super) fn new(storage: SqliteStorage<'c>, work: W, shared: Arc<Shared>) -> Self {
        Self {
            storage,
            work,
            shared,
            waits_for_disk: true,
            saved_at: Timestamp::default(),
            refused: LogLimit::default(),
        }
    }

    pub(super) fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Envelope<W>>, checkpointer: &mut Checkpointer) {
        while let Some(first) = inbox.blocking_recv() {
            let mut step = Step::gather(first, &mut inbox);
            if let Some(why) = self.shared.stopped.get() {
                step.refuse(&StoreError::Unavailable(format!("writes have stopped: {why}")));
                continue;
            }
            step.refuse_jobs_when_low(&self.shared.disk);
            let connection = self.storage.connection;
            match self.step(step).and_then(|()| checkpointer.run_once(connection)) {
                Ok(()) => {}
                Err(Failure::Refused(error)) => {
                    if let Some(left_out) = self.refused.admit(env::instant()) {
                        let left_out = (left_out > 0).then_some(left_out);
                        tracing::warn!(%error, left_out, "nothing was written");
                    }
                }
                Err(Failure::Stopped(why) | Failure::Unknown(why)) => {
                    tracing::error!(
                        why,
                        "the store takes no more writes: what is on disk must be read afresh, so restart redrive"
                    );
                    drop(self.shared.stopped.set(why));
                }
            }
        }
    }

    fn step(&mut self, mut step: Step<W>) -> Result<(), Failure> {
        match self.transact(mem::take(&mut step.calls), step.closing) {
            Ok(answers) => {
                self.work.committed();
                for ((reply, _room), answer) in step.replies.into_iter().zip(answers) {
                    W::answer(reply, Ok(answer));
                }
                Ok(())
            }
            Err(failure) => {
                // Best effort: a transaction that cannot even be rolled back is gone with the connection.
                let _ = self.storage.sql.rollback.execute([]);
                self.work.rolled_back();
                let failure = match self.storage.reload() {
                    Ok(()) => failure,
                    Err(error) => Failure::Unknown(error.to_string()),
                };
                step.refuse(&failure.error());
                Err(failure)
            }
        }
    }

    fn transact(&mut self, calls: Vec<W::Call>, closing: bool) -> Result<Vec<W::Answer>, Failure> {
        let now = self.shared.now();
        let count = calls.len();
        self.storage.now = now;
        let only_promotes = calls.iter().all(|call| self.work.only_promotes(&mut self.storage, call));
        self.wait_for_disk(closing || !only_promotes)?;
        self.storage.begin(now)?;
        let ran = self.work.run(&mut self.storage, calls);
        // A verb may not go on after a failure of the database.
        let answers = match (self.storage.failure.take(), ran) {
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
            self.storage.sql.rollback.execute([])?;
            return Ok(answers);
        }
        if let Some(why) = self.shared.disk.replaced() {
            return Err(Failure::Stopped(why));
        }
        let kept = lock(&self.shared.time).kept();
        self.storage.save(kept)?;
        self.saved_at = now;
        self.storage.sql.commit.execute([]).map_err(Failure::of_commit)?;
        if self.storage.written == Written::Changes && !self.waits_for_disk {
            let synced = self.shared.log.sync_data();
            synced.map_err(|error| Failure::Unknown(format!("the log did not reach the disk: {error}")))?;
        }
        Ok(answers)
    }

    /// Whether the next commit is on disk when it ends; otherwise it gets there with the one after it.
    fn wait_for_disk(&mut self, wait: bool) -> Result<(), Failure> {
        if self.shared.durability == Durability::Fsync && self.waits_for_disk != wait {
            let level = if wait { "FULL" } else { "NORMAL" };
            self.storage.connection.pragma_update(None, "synchronous", level)?;
            self.waits_for_disk = wait;
        }
        Ok(())
    }
}

/// Puts all of the write-ahead log into the database, so that a copy of the one file is whole. After a failure it is
/// left as it is: what of it has reached the disk is found out by reading all of it again.
pub(super) fn close(connection: Connection, is_stopped: bool) {
    if is_stopped {
        drop(schema::leave_log_alone(&connection, true));
    } else {
        drop(connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"));
    }
    drop(connection.close());
}
