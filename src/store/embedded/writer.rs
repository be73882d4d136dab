//! The one writer: a step takes what has arrived, applies it in one transaction, and answers once that is on disk.
//!
//! `step` is the whole of it; the thread in `writer_thread.rs` is a loop around it.

use super::{
    Durability, Options, alarm::Due, enqueue::Incoming, lock, memory::Memory,
    statements::Statements,
};
use crate::{
    domain::{
        breaker::BreakerName,
        ids::{JobId, QueueName},
        lease::Lease,
        store_clock::{Kept, Reading, StoreClock},
        time::Timestamp,
    },
    store::{
        Ask, BreakerNotice, BreakerOrder, BreakerView, BreakerViews, Cancelled, Claim, Claimed,
        DeadNotice, Enqueued, JobRefused, Listener, NewPause, Newcomers, Purge, PurgeRefused,
        Purged, QueueRefused, Refused, Requeue, RequeueRefused, Requeued, Settled, Settlements,
        StoreError, Sweep, Swept, TakenIn, Unanswered, sizes,
    },
};
use rusqlite::{Connection, ErrorCode};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// The store's one clock.
pub(super) type SharedClock = Arc<Mutex<StoreClock>>;

/// How many queues that are held back the alarm passes over, to find one that is not. All are the sweep's.
const DUES_LOOKED_AT: usize = 16;

/// A call on its way to the writer, and where its answer goes.
pub(super) struct Call {
    pub(super) command: Command,
    pub(super) reply: oneshot::Sender<Result<Answer, StoreError>>,
}

impl Call {
    /// Nothing is taken after it.
    pub(super) fn is_the_last(&self) -> bool {
        matches!(self.command, Command::Close)
    }
}

impl Command {
    /// What it brings along, if anything.
    fn ask(&self) -> Option<&Ask> {
        match self {
            Self::Enqueue(ask, _)
            | Self::Claim(ask, _)
            | Self::Settle(ask, _)
            | Self::Sweep(ask, _)
            | Self::Requeue(ask, _)
            | Self::Pause(ask, ..)
            | Self::Breakers(ask, _)
            | Self::SetBreaker(ask, ..)
            | Self::TakeIn(ask, _) => Some(ask),
            Self::Unclaim(_)
            | Self::Cancel(..)
            | Self::RunNow(..)
            | Self::Close
            | Self::Purge(_) => None,
        }
    }

    /// Most of these find nothing to change.
    fn looks_only(&self) -> bool {
        matches!(self, Self::Claim(..) | Self::Breakers(..))
    }

    /// About what it takes of memory and disk.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Enqueue(_, jobs) => jobs.iter().map(|incoming| incoming.job.bytes()).sum(),
            Self::Settle(_, settlements) => settlements.bytes(),
            Self::Claim(_, claim) => claim.settle.bytes(),
            Self::TakeIn(_, newcomers) => newcomers.jobs.iter().map(sizes::of_view).sum(),
            _ => 0,
        }
    }
}

pub(super) enum Command {
    Enqueue(Ask, Vec<Incoming>),
    Claim(Ask, Claim),
    Settle(Ask, Settlements),
    Unclaim(Unanswered),
    Sweep(Ask, Sweep),
    Requeue(Ask, Requeue),
    Pause(Ask, QueueName, Option<NewPause>),
    Cancel(JobId, Option<QueueName>),
    RunNow(JobId, Option<QueueName>),
    /// No more calls after this one.
    Close,
    Purge(Purge),
    Breakers(Ask, Vec<QueueName>),
    SetBreaker(Ask, BreakerName, BreakerOrder),
    TakeIn(Ask, Newcomers),
}

/// Each command has the answer of its name.
pub(super) enum Answer {
    Enqueue(Vec<Result<Enqueued, Refused>>),
    /// `request_id`: with one, the caller can come again.
    Claim {
        claimed: Claimed,
        request_id: String,
    },
    Settle(Settled),
    Sweep(Swept),
    Requeue(Result<Requeued, RequeueRefused>),
    Pause(Result<(), QueueRefused>),
    Cancel(Result<Cancelled, JobRefused>),
    RunNow(Result<(), JobRefused>),
    Done,
    Purge(Result<Purged, PurgeRefused>),
    Breakers(Vec<BreakerViews>),
    SetBreaker(Result<BreakerView, QueueRefused>),
    TakeIn(Result<Vec<TakenIn>, Refused>),
}

/// Why a step did not happen.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was written, and the next step may work.
    Refused(StoreError),
    /// Nothing was written, but something is wrong that a restart has to look at. No more writes until then.
    Stopped(String),
    /// Nobody knows what is on disk. No more writes until a restart reads it afresh.
    Unknown(String),
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

impl Failure {
    /// A commit that fails for want of room has written nothing that counts; any other may have.
    fn of_commit(error: rusqlite::Error) -> Self {
        match error.into() {
            Self::Stopped(why) => Self::Unknown(why),
            refused => refused,
        }
    }

    /// What the callers hear.
    fn error(&self) -> StoreError {
        match self {
            Self::Refused(error) => error.clone(),
            Self::Stopped(why) => StoreError::Unavailable(why.clone()),
            Self::Unknown(why) => StoreError::OutcomeUnknown(why.clone()),
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
    /// Dead letters of this transaction, to be told of once it is on disk.
    pub(super) died: Vec<DeadNotice>,
    /// The same for cancelled jobs that are out, and for breakers.
    pub(super) cancels: Vec<Lease>,
    pub(super) breaker_notices: Vec<BreakerNotice>,
    clock: SharedClock,
    listener: Arc<dyn Listener>,
    announced: Option<Timestamp>,
    answers: u64,
    waits_for_disk: bool,
}

impl<'c> Writer<'c> {
    pub(super) fn open(
        connection: &'c Connection,
        options: Options,
        listener: Arc<dyn Listener>,
        clock: SharedClock,
        reading: Reading,
    ) -> rusqlite::Result<Self> {
        let now = lock(&clock).now(reading);
        let mut writer = Self {
            connection,
            sql: Statements::prepare(connection)?,
            memory: Memory::default(),
            options,
            scratch: Vec::new(),
            now,
            last_tidied: now,
            died: Vec::new(),
            cancels: Vec::new(),
            breaker_notices: Vec::new(),
            clock,
            listener,
            announced: None,
            answers: 0,
            waits_for_disk: true,
        };
        writer.load()?;
        // From here on somebody may be told the time, and after a restart it must not be earlier.
        writer.save_clock()?;
        writer.announce();
        Ok(writer)
    }

    /// Reads back what is kept in memory.
    fn load(&mut self) -> rusqlite::Result<()> {
        let answers = self.memory.leases.answers();
        let settings = std::mem::take(&mut self.memory.settings);
        self.memory = Memory::load(self.connection)?;
        self.memory.settings = settings;
        for (lease, answer, unclaim_at) in answers {
            self.memory.leases.answered_again(lease.number, answer);
            if let Some(at) = unclaim_at {
                self.memory.leases.abandon(&lease, answer, at);
            }
        }
        let numbers: Vec<_> = self.memory.queues().map(|queue| queue.number).collect();
        for number in numbers {
            self.refresh_due(number)?;
            self.memory.refresh_gate(number, self.now);
        }
        self.refresh_deadline()
    }

    /// Applies the calls in one transaction and answers them when it is on disk.
    pub(super) fn step(&mut self, reading: Reading, calls: Vec<Call>) -> Result<(), Failure> {
        self.now = lock(&self.clock).now(reading);
        let (commands, replies): (Vec<_>, Vec<_>) =
            calls.into_iter().map(|call| (call.command, call.reply)).unzip();
        match self.commit(commands) {
            Ok(answers) => {
                let listener = self.listener.clone();
                self.memory.committed(self.now, |queue, jobs| listener.available(queue, jobs));
                for notice in self.died.drain(..) {
                    listener.died(&notice);
                }
                for lease in self.cancels.drain(..) {
                    listener.cancel_requested(lease);
                }
                for notice in self.breaker_notices.drain(..) {
                    listener.breaker(&notice);
                }
                for (reply, answer) in replies.into_iter().zip(answers) {
                    self.answer(reply, answer);
                }
                self.announce();
                Ok(())
            }
            Err(failure) => {
                // Best effort: a transaction that cannot even be rolled back is gone with the connection.
                let _ = self.sql.rollback.execute([]);
                self.died.clear();
                self.cancels.clear();
                self.breaker_notices.clear();
                let failure = match self.load() {
                    Ok(()) => failure,
                    Err(error) => Failure::Unknown(error.to_string()),
                };
                for reply in replies {
                    drop(reply.send(Err(failure.error())));
                }
                Err(failure)
            }
        }
    }

    fn commit(&mut self, commands: Vec<Command>) -> Result<Vec<Answer>, Failure> {
        let only_promotes = |command: &Command| self.only_promotes(command);
        let wait = !commands.iter().all(only_promotes);
        let looks_only =
            commands.iter().all(|command| command.looks_only() || only_promotes(command));
        self.wait_for_disk(wait)?;
        self.sql.begin.execute([])?;
        let written = self.connection.total_changes();
        let answers =
            commands.into_iter().map(|command| self.apply(command)).collect::<Result<_, _>>()?;
        if looks_only && self.connection.total_changes() == written {
            // Who found nothing costs no fsync.
            self.sql.rollback.execute([])?;
            return Ok(answers);
        }
        self.save()?;
        self.sql.commit.execute([]).map_err(Failure::of_commit)?;
        Ok(answers)
    }

    /// Whether the next commit is on disk when it ends; otherwise it gets there with the one after it.
    fn wait_for_disk(&mut self, wait: bool) -> Result<(), Failure> {
        if self.options.durability == Durability::Fsync && self.waits_for_disk != wait {
            let level = if wait { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.waits_for_disk = wait;
        }
        Ok(())
    }

    fn apply(&mut self, command: Command) -> Result<Answer, Failure> {
        if let Some(ask) = command.ask() {
            self.memory.follow(&ask.settings, self.now);
        }
        Ok(match command {
            Command::Enqueue(ask, jobs) => Answer::Enqueue(self.enqueue(&ask, jobs)?),
            Command::Claim(ask, claim) => Answer::Claim {
                request_id: claim.request_id.clone(),
                claimed: self.claim(&ask, claim)?,
            },
            Command::Settle(ask, settlements) => Answer::Settle(self.settle(&ask, settlements)?),
            Command::Unclaim(unanswered) => {
                self.abandon(&unanswered);
                self.return_abandoned()?;
                Answer::Done
            }
            Command::Sweep(ask, sweep) => Answer::Sweep(self.sweep(&ask, sweep)?),
            Command::Requeue(ask, requeue) => Answer::Requeue(self.requeue(&ask, &requeue)?),
            Command::Pause(ask, queue, pause) => Answer::Pause(self.pause(&ask, &queue, pause)?),
            Command::Cancel(id, queue) => Answer::Cancel(self.cancel(&id, queue.as_ref())?),
            Command::RunNow(id, queue) => Answer::RunNow(self.run_now(&id, queue.as_ref())?),
            Command::Close => {
                // Nobody remembers them after this.
                for (lease, _) in self.memory.leases.abandoned() {
                    self.unclaim(&lease)?;
                }
                Answer::Done
            }
            Command::Purge(purge) => Answer::Purge(self.purge(&purge)?),
            Command::Breakers(ask, queues) => Answer::Breakers(self.breakers(&ask, &queues)),
            Command::SetBreaker(ask, name, order) => {
                Answer::SetBreaker(self.set_breaker(&ask, &name, order)?)
            }
            Command::TakeIn(ask, newcomers) => Answer::TakeIn(self.take_in(&ask, newcomers)?),
        })
    }

    /// What is written once per transaction: store time, and each queue that changed.
    fn save(&mut self) -> Result<(), Failure> {
        for queue in self.memory.changed() {
            let d = &queue.depths;
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
            ];
            let columns = columns.into_iter().chain(queue.totals.values()).map(u64::cast_signed);
            self.sql.save_queue.execute(rusqlite::params_from_iter(columns))?;
        }
        Ok(self.save_clock()?)
    }

    fn save_clock(&mut self) -> rusqlite::Result<()> {
        let kept = lock(&self.clock).kept();
        self.sql.save_store.execute((
            kept.time_us.cast_signed(),
            kept.boot_us.cast_signed(),
            kept.boot_id.to_be_bytes(),
            self.memory.next_number.cast_signed(),
        ))?;
        Ok(())
    }

    fn answer(&mut self, reply: oneshot::Sender<Result<Answer, StoreError>>, mut answer: Answer) {
        if let Answer::Sweep(swept) = &mut answer {
            swept.next = self.memory.next_event();
            // The sweeper hears it here; from now on only what comes earlier is announced.
            self.announced = swept.next;
        }
        if let Err(Ok(Answer::Claim { claimed, request_id })) = reply.send(Ok(answer)) {
            self.abandon(&Unanswered::new(&claimed.jobs, claimed.answer, &request_id));
        }
    }

    /// The caller has gone: its jobs go back, at once or after a while.
    fn abandon(&mut self, unanswered: &Unanswered) {
        let at = self.now.after(unanswered.after);
        for lease in &unanswered.leases {
            self.memory.leases.abandon(lease, unanswered.answer, at);
        }
    }

    /// A number for each answer to a claim, so that giving one back does not take away what a later one handed out.
    pub(super) fn next_answer(&mut self) -> u64 {
        self.answers += 1;
        self.answers
    }

    /// What the alarm is to ring for: the first of the queues that could hand out what comes due.
    pub(super) fn next_ring(&self) -> Option<Due> {
        if self.leases_are_full() {
            return None;
        }
        let mut dues = self.memory.dues().take(DUES_LOOKED_AT);
        let (at, queue) = dues.find(|(_, queue)| self.memory.width(queue, self.now) > 0)?;
        Some(Due { at, queue: queue.name.clone() })
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

/// The one clock, going on from where the store has been. A store without one is new.
pub(super) fn start_clock(
    connection: &Connection,
    reading: Reading,
) -> rusqlite::Result<SharedClock> {
    let kept = read_kept(connection)?;
    let clock = StoreClock::start(kept, reading);
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
    Ok(Arc::new(Mutex::new(clock)))
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
