//! A store of one process: verbs run on SQLite's writer thread, and those that came together are one transaction.

use crate::{
    domain::{limits::Limits, time::Timestamp},
    env::Clock,
    queue::{
        self, Answer, Call, CallContext, Event, Host, Notifier, Queues, Reply, StoreLimits, Verb,
        View, Viewed, poll_once, sweep,
    },
    store::{
        AuditProgress, AuditReport, Health, Listener, StoreError,
        sqlite::{self, OpenError, Options, SqliteStorage, SqliteStore as Engine, Work},
    },
};
use std::{
    io,
    path::Path,
    sync::{Arc, OnceLock, Weak},
};

/// Leases that the writer keeps in memory.
const LEASES_MAX: usize = 1_000_000;

/// A store in a directory.
pub type SqliteStore = Queues<SqliteHost>;

pub struct SqliteHost {
    engine: Arc<Engine<QueueWork>>,
}

impl SqliteStore {
    pub async fn open_sqlite(
        options: Options,
        limits: StoreLimits,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn Listener>,
    ) -> Result<Self, OpenError> {
        let directory = options.directory.clone();
        let in_directory = |error| OpenError::Directory { directory: directory.clone(), error };
        // The notifier's timer asks for the time of an engine that is opened after it, and that it must not keep open.
        let opened: Arc<OnceLock<Weak<Engine<QueueWork>>>> = Arc::default();
        let engine = opened.clone();
        let now = move || {
            let engine = engine.get().and_then(Weak::upgrade);
            engine.map_or_else(Timestamp::default, |engine| engine.now())
        };
        let notifier = queue::notifier(listener, now).map_err(in_directory)?;
        let work = QueueWork { notifier: notifier.clone(), limits, events: Vec::new() };
        let engine = Arc::new(Engine::open(options, clock, work)?);
        drop(opened.set(Arc::downgrade(&engine)));
        let host = SqliteHost { engine };
        let refused = |error: StoreError| in_directory(io::Error::other(error.to_string()));
        Self::open(host, notifier).await.map_err(refused)
    }

    pub fn default_limits() -> StoreLimits {
        StoreLimits { queues: Limits::default().queues, leases: LEASES_MAX }
    }
}

/// Looks at everything in a directory, which a server may have open, and changes nothing.
pub fn verify_directory(
    directory: &Path,
    clock: &dyn Clock,
    progress: &mut (dyn FnMut(AuditProgress) + Send),
) -> Result<Result<AuditReport, StoreError>, OpenError> {
    sqlite::read_directory(directory, clock, |reader| {
        let mut report = AuditReport::default();
        reader.check_files(&mut report, progress)?;
        let of_queues = poll_once(queue::verify(reader, progress))??;
        report.include(of_queues);
        Ok(report)
    })
}

/// Runs the calls of one transaction.
pub struct QueueWork {
    notifier: Arc<Notifier>,
    limits: StoreLimits,
    /// Of this transaction, to be told once it is on disk.
    events: Vec<Event>,
}

impl QueueWork {
    fn run_one(
        &mut self,
        storage: &mut SqliteStorage<'_>,
        call: Call,
    ) -> Result<Answer, StoreError> {
        let memory = self.notifier.memory();
        let mut cx = CallContext::new(call.settings, call.seed, memory, self.limits);
        let answer = poll_once(queue::run(storage, &mut cx, call.verb))??;
        self.events.append(&mut cx.events);
        Ok(answer)
    }
}

impl Work for QueueWork {
    type Call = Call;
    type Answer = Answer;
    type Reply = Reply;

    fn bytes(call: &Call) -> usize {
        call.bytes()
    }

    fn adds_jobs(call: &Call) -> bool {
        call.adds_jobs()
    }

    fn only_promotes(&mut self, storage: &mut SqliteStorage<'_>, call: &Call) -> bool {
        match &call.verb {
            Verb::NextDue(_) | Verb::Look(_) => true,
            Verb::Sweep(_, queues) => queues.iter().all(|queue| {
                let ends = poll_once(sweep::ends_anything(storage, queue)).and_then(|ends| ends);
                matches!(ends, Ok(false))
            }),
            _ => false,
        }
    }

    /// Calls of one kind that came together are one call: verbs take many jobs at once.
    fn run(
        &mut self,
        storage: &mut SqliteStorage<'_>,
        calls: Vec<Call>,
    ) -> Result<Vec<Answer>, StoreError> {
        let mut answers = Vec::with_capacity(calls.len());
        let mut calls = calls.into_iter().peekable();
        while let Some(mut call) = calls.next() {
            if calls.peek().is_none_or(|next| !call.joins(next)) {
                answers.push(self.run_one(storage, call)?);
                continue;
            }
            let mut parts = vec![call.parts()];
            while let Some(next) = calls.next_if(|next| call.joins(next)) {
                parts.push(next.parts());
                call.join(next);
            }
            answers.extend(self.run_one(storage, call)?.split(&parts));
        }
        Ok(answers)
    }

    fn committed(&mut self, _: &mut SqliteStorage<'_>) {
        if !self.events.is_empty() {
            self.notifier.tell(std::mem::take(&mut self.events));
        }
    }

    fn rolled_back(&mut self) {
        self.events.clear();
        // What was remembered did not happen.
        self.notifier.memory().forget_all_facts();
    }

    fn answer(reply: Reply, answer: Result<Answer, StoreError>) {
        reply.send(answer);
    }
}

impl Host for SqliteHost {
    fn now(&self) -> Timestamp {
        self.engine.now()
    }

    fn submit(&self, call: Call, reply: Reply) -> Result<(), StoreError> {
        self.engine.submit(call, reply)
    }

    async fn view(&self, view: View) -> Result<Viewed, StoreError> {
        self.engine.read(move |reader| poll_once(queue::view(reader, view))?).await
    }

    fn health(&self) -> Health {
        self.engine.health()
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// A disk that fails stops the store for good.
    fn outages(&self) -> u64 {
        0
    }

    async fn close(&self) {
        self.engine.close().await;
    }
}
