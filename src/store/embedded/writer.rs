//! The one writer: a step takes what has arrived, applies it in one transaction, and answers once that is on disk.
//!
//! `step` is the whole of it; the thread in `mod.rs` is a loop around it, and tests drive it in line.

use super::{Options, lock, memory::Memory, statements::Statements};
use crate::{
    domain::{
        job::NewJob,
        lease::Lease,
        store_clock::{Kept, Reading, StoreClock},
        time::Timestamp,
    },
    store::{
        ABANDONED_CLAIM_KEPT, Ask, Claim, Claimed, Enqueued, Listener, Refused, Requeue,
        RequeueRefused, Requeued, Settled, Settlements, StoreError, Sweep, Swept,
    },
};
use rusqlite::{Connection, ErrorCode};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// The store's one clock.
pub(super) type SharedClock = Arc<Mutex<StoreClock>>;

/// A call, on its way to the writer.
pub(super) enum Command {
    Enqueue(Ask, Vec<NewJob>, Reply<Vec<Result<Enqueued, Refused>>>),
    Claim(Ask, Claim, Reply<Claimed>),
    Settle(Ask, Settlements, Reply<Settled>),
    Unclaim(Vec<Lease>, Reply<()>),
    Sweep(Ask, Sweep, Reply<Swept>),
    Requeue(Ask, Requeue, Reply<Result<Requeued, RequeueRefused>>),
    /// The caller of a claim has gone without reading its answer.
    Abandon {
        leases: Vec<Lease>,
        has_request_id: bool,
    },
    /// No more calls after this one.
    Close,
}

/// An answer that waits for the commit.
enum Done {
    Enqueue(
        Vec<Result<Enqueued, Refused>>,
        Reply<Vec<Result<Enqueued, Refused>>>,
    ),
    Claim {
        claimed: Claimed,
        has_request_id: bool,
        reply: Reply<Claimed>,
    },
    Settle(Settled, Reply<Settled>),
    Unclaim(Reply<()>),
    Sweep(Swept, Reply<Swept>),
    Requeue(
        Result<Requeued, RequeueRefused>,
        Reply<Result<Requeued, RequeueRefused>>,
    ),
    /// Nobody asked for one.
    Silent,
}

/// Why a step did not happen.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was written, and the next step may work.
    Refused(StoreError),
    /// What is on disk is no longer certain. No more writes until a restart reads it afresh.
    Stopped(String),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Refused(StoreError::DiskLow(error.to_string())),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Refused(StoreError::Unavailable(error.to_string()))
            }
            _ => Self::Stopped(error.to_string()),
        }
    }
}

pub(super) struct Writer<'c> {
    pub(super) connection: &'c Connection,
    pub(super) sql: Statements<'c>,
    pub(super) memory: Memory,
    pub(super) options: Options,
    pub(super) scratch: Vec<u8>,
    pub(super) now: Timestamp,
    pub(super) last_tidied: Timestamp,
    clock: SharedClock,
    listener: Arc<dyn Listener>,
    announced: Option<Timestamp>,
}

impl<'c> Writer<'c> {
    pub(super) fn open(
        connection: &'c Connection,
        options: Options,
        listener: Arc<dyn Listener>,
        reading: Reading,
    ) -> rusqlite::Result<Self> {
        let kept = read_kept(connection)?;
        let mut clock = StoreClock::start(kept, reading);
        let now = clock.now(reading);
        if kept.is_none() {
            connection.execute(
                "INSERT INTO store VALUES (1, ?1, ?2, ?3, 1)",
                (
                    clock.kept().time_us.cast_signed(),
                    clock.kept().boot_us.cast_signed(),
                    clock.kept().boot_id.to_be_bytes(),
                ),
            )?;
        }
        let mut writer = Self {
            connection,
            sql: Statements::prepare(connection)?,
            memory: Memory::default(),
            options,
            scratch: Vec::new(),
            now,
            last_tidied: now,
            clock: Arc::new(Mutex::new(clock)),
            listener,
            announced: None,
        };
        writer.load()?;
        writer.announce();
        Ok(writer)
    }

    /// The one clock, for whoever else asks for the time.
    pub(super) fn clock(&self) -> SharedClock {
        self.clock.clone()
    }

    /// Reads back what is kept in memory.
    fn load(&mut self) -> rusqlite::Result<()> {
        let abandoned = std::mem::take(&mut self.memory.abandoned);
        self.memory = Memory::load(self.connection)?;
        self.memory.abandoned = abandoned;
        let numbers: Vec<_> = self.memory.queues().map(|queue| queue.number).collect();
        for number in numbers {
            self.refresh_due(number)?;
        }
        self.refresh_deadline()
    }

    /// Applies the commands in one transaction and answers them when it is on disk.
    pub(super) fn step(&mut self, reading: Reading, commands: Vec<Command>) -> Result<(), Failure> {
        self.now = lock(&self.clock).now(reading);
        let mut answers = Answers::default();
        match self.apply_all(commands, &mut answers) {
            Ok(()) => {
                let listener = self.listener.clone();
                self.memory
                    .take_available(|queue, jobs| listener.available(queue, jobs));
                self.answer(answers.done);
                self.announce();
                Ok(())
            }
            Err(failure) => {
                // Best effort: a transaction that cannot even be rolled back is gone with the connection.
                let _ = self.sql.rollback.execute([]);
                let failure = match self.load() {
                    Ok(()) => failure,
                    Err(error) => Failure::Stopped(error.to_string()),
                };
                let error = match &failure {
                    Failure::Refused(error) => error.clone(),
                    Failure::Stopped(why) => StoreError::Unavailable(why.clone()),
                };
                answers.refuse(&error);
                Err(failure)
            }
        }
    }

    fn apply_all(&mut self, commands: Vec<Command>, answers: &mut Answers) -> Result<(), Failure> {
        answers.waiting = commands;
        answers.waiting.reverse();
        self.sql.begin.execute([])?;
        while let Some(command) = answers.waiting.pop() {
            match self.apply(command) {
                Ok(done) => answers.done.push(done),
                Err((failure, command)) => {
                    answers.waiting.push(command);
                    return Err(failure);
                }
            }
        }
        self.save()?;
        self.sql.commit.execute([])?;
        Ok(())
    }

    /// A command that fails is handed back with the failure, so that it gets its answer.
    fn apply(&mut self, command: Command) -> Result<Done, (Failure, Command)> {
        // The answers' channels are moved out only once there is an answer.
        Ok(match command {
            Command::Enqueue(ask, jobs, reply) => match self.enqueue(&ask, jobs) {
                Ok(results) => Done::Enqueue(results, reply),
                Err(failure) => return Err((failure, Command::Enqueue(ask, Vec::new(), reply))),
            },
            Command::Claim(ask, claim, reply) => {
                let has_request_id = !claim.request_id.is_empty();
                match self.claim(&ask, &claim) {
                    Ok(claimed) => Done::Claim {
                        claimed,
                        has_request_id,
                        reply,
                    },
                    Err(failure) => return Err((failure, Command::Claim(ask, claim, reply))),
                }
            }
            Command::Settle(ask, settlements, reply) => match self.settle(&ask, &settlements) {
                Ok(settled) => Done::Settle(settled, reply),
                Err(failure) => return Err((failure, Command::Settle(ask, settlements, reply))),
            },
            Command::Unclaim(leases, reply) => match self.unclaim(&leases) {
                Ok(()) => Done::Unclaim(reply),
                Err(failure) => return Err((failure, Command::Unclaim(leases, reply))),
            },
            Command::Sweep(ask, sweep, reply) => match self.sweep(&ask, sweep) {
                Ok(swept) => Done::Sweep(swept, reply),
                Err(failure) => return Err((failure, Command::Sweep(ask, sweep, reply))),
            },
            Command::Requeue(ask, requeue, reply) => match self.requeue(&ask, &requeue) {
                Ok(requeued) => Done::Requeue(requeued, reply),
                Err(failure) => return Err((failure, Command::Requeue(ask, requeue, reply))),
            },
            Command::Abandon {
                leases,
                has_request_id,
            } => {
                self.abandon(leases, has_request_id);
                Done::Silent
            }
            Command::Close => Done::Silent,
        })
    }

    /// What is written once per transaction: store time, and each queue that changed.
    fn save(&mut self) -> Result<(), Failure> {
        for queue in self.memory.changed() {
            let (d, t) = (&queue.depths, &queue.totals);
            let columns = [
                queue.number.cast_unsigned(),
                self.now.millis(),
                queue.next_death,
                queue.finished_keys,
                d.ready,
                d.scheduled,
                d.leased,
                d.completed,
                d.dead,
                d.overflow,
                t.enqueued,
                t.completed,
                t.failed_attempts,
                t.retries,
                t.successful_retries,
                t.retried_finished,
                t.dead_lettered,
                t.requeued,
                t.lease_expired,
                t.purged,
                t.cancelled,
                t.retention_expired,
                t.moved_in,
                t.moved_out,
            ];
            let columns = columns.map(u64::cast_signed);
            self.sql
                .save_queue
                .execute(rusqlite::params_from_iter(columns))?;
        }
        let kept = lock(&self.clock).kept();
        self.sql.save_store.execute((
            kept.time_us.cast_signed(),
            kept.boot_us.cast_signed(),
            kept.boot_id.to_be_bytes(),
            self.memory.next_number.cast_signed(),
        ))?;
        Ok(())
    }

    fn answer(&mut self, done: Vec<Done>) {
        for done in done {
            match done {
                Done::Enqueue(results, reply) => drop(reply.send(Ok(results))),
                Done::Settle(settled, reply) => drop(reply.send(Ok(settled))),
                Done::Unclaim(reply) => drop(reply.send(Ok(()))),
                Done::Sweep(mut swept, reply) => {
                    swept.next = self.memory.next_event();
                    // The sweeper hears it here; from now on only what comes earlier is announced.
                    self.announced = swept.next;
                    drop(reply.send(Ok(swept)));
                }
                Done::Requeue(requeued, reply) => drop(reply.send(Ok(requeued))),
                Done::Silent => {}
                Done::Claim {
                    claimed,
                    has_request_id,
                    reply,
                } => {
                    if let Err(Ok(claimed)) = reply.send(Ok(claimed)) {
                        self.abandon(leases_of(&claimed), has_request_id);
                    }
                }
            }
        }
    }

    /// The caller has gone: its jobs go back, at once or after a while.
    fn abandon(&mut self, leases: Vec<Lease>, has_request_id: bool) {
        if leases.is_empty() {
            return;
        }
        let kept = if has_request_id {
            ABANDONED_CLAIM_KEPT
        } else {
            std::time::Duration::ZERO
        };
        self.memory
            .abandoned
            .entry(self.now.after(kept))
            .or_default()
            .extend(leases);
    }

    /// Tells when `sweep` is needed, where that is earlier than was told before.
    fn announce(&mut self) {
        let next = self.memory.next_event();
        if let Some(at) = next
            && self.announced.is_none_or(|announced| at < announced)
        {
            self.announced = Some(at);
            self.listener.due(at);
        }
    }
}

pub(super) fn leases_of(claimed: &Claimed) -> Vec<Lease> {
    claimed.jobs.iter().map(|job| job.delivery.lease).collect()
}

/// The answers of one step: those that are ready, and the commands that were not reached.
#[derive(Default)]
struct Answers {
    done: Vec<Done>,
    waiting: Vec<Command>,
}

impl Answers {
    /// Nothing of this step was written; everybody hears why.
    fn refuse(self, error: &StoreError) {
        for done in self.done {
            match done {
                Done::Enqueue(_, reply) => drop(reply.send(Err(error.clone()))),
                Done::Claim { reply, .. } => drop(reply.send(Err(error.clone()))),
                Done::Settle(_, reply) => drop(reply.send(Err(error.clone()))),
                Done::Unclaim(reply) => drop(reply.send(Err(error.clone()))),
                Done::Sweep(_, reply) => drop(reply.send(Err(error.clone()))),
                Done::Requeue(_, reply) => drop(reply.send(Err(error.clone()))),
                Done::Silent => {}
            }
        }
        for command in self.waiting {
            command.refuse(error);
        }
    }
}

impl Command {
    pub(super) fn refuse(self, error: &StoreError) {
        match self {
            Self::Enqueue(_, _, reply) => drop(reply.send(Err(error.clone()))),
            Self::Claim(_, _, reply) => drop(reply.send(Err(error.clone()))),
            Self::Settle(_, _, reply) => drop(reply.send(Err(error.clone()))),
            Self::Unclaim(_, reply) => drop(reply.send(Err(error.clone()))),
            Self::Sweep(_, _, reply) => drop(reply.send(Err(error.clone()))),
            Self::Requeue(_, _, reply) => drop(reply.send(Err(error.clone()))),
            Self::Abandon { .. } | Self::Close => {}
        }
    }
}

fn read_kept(connection: &Connection) -> rusqlite::Result<Option<Kept>> {
    let row = |row: &rusqlite::Row<'_>| {
        Ok(Kept {
            time_us: row.get::<_, i64>(0)?.cast_unsigned(),
            boot_us: row.get::<_, i64>(1)?.cast_unsigned(),
            boot_id: u128::from_be_bytes(row.get(2)?),
        })
    };
    match connection.query_row("SELECT time_us, boot_us, boot_id FROM store", [], row) {
        Ok(kept) => Ok(Some(kept)),
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(error),
    }
}
