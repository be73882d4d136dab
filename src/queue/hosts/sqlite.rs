//! A store of one process: verbs run on SQLite's writer thread, and those that came together are one transaction.

use crate::domain::{Limits, Timestamp};
use crate::env::Clock;
use crate::queue::{
    self, Answer, Call, Event, Host, Notifier, Queues, Reply, Setup, StoreLimits, Verb, View, Viewed, poll_once, sweep,
};
use crate::queue::{VerifyProgress, VerifyReport};
use crate::store::sqlite::{self, OpenError, Options, SqliteEngine, SqliteStorage, Work};
use crate::store::{Health, Result, StoreError};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

/// Leases that the writer keeps in memory.
const LEASES_MAX: usize = 1_000_000;

/// A store in a directory.
pub type SqliteStore = Queues<SqliteHost>;

pub struct SqliteHost {
    engine: Arc<SqliteEngine<QueueWork>>,
}

impl SqliteStore {
    pub async fn open_sqlite(
        options: Options, limits: StoreLimits, clock: Arc<dyn Clock>, setup: Setup,
    ) -> Result<Self, OpenError> {
        let directory = options.directory.clone();
        let in_directory = |error| OpenError::Directory { directory: directory.clone(), error };
        // The notifier's timer asks for the time of an engine that is opened after it, and that it must not keep open.
        let opened: Arc<OnceLock<Weak<SqliteEngine<QueueWork>>>> = Arc::default();
        let engine = opened.clone();
        let now = move || {
            let engine = engine.get().and_then(Weak::upgrade);
            engine.map_or_else(Timestamp::default, |engine| engine.now())
        };
        let notifier = queue::notifier(setup, now).map_err(in_directory)?;
        let work = QueueWork { notifier: notifier.clone(), limits, events: Vec::new() };
        let engine = Arc::new(SqliteEngine::open(options, clock, work)?);
        drop(opened.set(Arc::downgrade(&engine)));
        let refused = |error: StoreError| in_directory(io::Error::other(error.to_string()));
        Self::open(SqliteHost { engine }, notifier).await.map_err(refused)
    }

    pub fn default_limits() -> StoreLimits {
        StoreLimits { queues: Limits::default().queues, leases: LEASES_MAX, finished_keys: StoreLimits::FINISHED_KEYS }
    }
}

/// Looks at everything in a directory, which a server may have open, and changes nothing.
pub fn verify_directory(
    directory: &Path, clock: &dyn Clock, progress: &mut (dyn FnMut(VerifyProgress) + Send),
) -> Result<Result<VerifyReport>, OpenError> {
    sqlite::read_directory(directory, clock, |reader| {
        progress(VerifyProgress { step: "files", done: 0, of: None });
        let mut report = VerifyReport { findings: reader.check_files()?, ..VerifyReport::default() };
        report.include(poll_once(queue::verify(reader, progress))??);
        Ok(report)
    })
}

/// Runs the calls of one transaction.
pub struct QueueWork {
    notifier: Arc<Notifier>,
    limits: StoreLimits,
    /// Of this transaction, to be published once it is on disk.
    events: Vec<Event>,
}

impl QueueWork {
    fn run_one(&mut self, storage: &mut SqliteStorage<'_>, call: Call) -> Result<Answer> {
        let mut cx = self.notifier.context(call.settings, call.seed, self.limits);
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

    fn has_reserve(call: &Call) -> bool {
        call.has_reserve()
    }

    fn only_promotes(&mut self, storage: &mut SqliteStorage<'_>, call: &Call) -> bool {
        match &call.verb {
            Verb::NextDue(_) | Verb::Look(_) => true,
            Verb::Sweep(_, queues) => {
                queues.iter().all(|queue| matches!(poll_once(sweep::ends_anything(storage, queue)), Ok(Ok(false))))
            }
            _ => false,
        }
    }

    /// Calls of one kind that came together are one call: verbs take many jobs at once.
    fn run(&mut self, storage: &mut SqliteStorage<'_>, calls: Vec<Call>) -> Result<Vec<Answer>> {
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

    fn committed(&mut self) {
        if !self.events.is_empty() {
            self.notifier.publish(std::mem::take(&mut self.events));
        }
    }

    fn rolled_back(&mut self) {
        self.events.clear();
        // What was remembered did not happen.
        self.notifier.memory().forget_all_facts();
    }

    fn answer(reply: Reply, answer: Result<Answer>) {
        reply.send(answer);
    }
}

impl Host for SqliteHost {
    fn now(&self) -> Timestamp {
        self.engine.now()
    }

    fn submit(&self, call: Call, reply: Reply) -> Result<()> {
        self.engine.submit(call, reply)
    }

    async fn view(&self, view: View) -> Result<Viewed> {
        self.engine.read(move |reader| poll_once(queue::view(reader, view))?).await
    }

    async fn needs_newer(&self) -> Option<String> {
        self.engine.needs_newer().await
    }

    fn health(&self) -> Health {
        self.engine.health()
    }

    async fn close(&self) {
        self.engine.close().await;
    }
}
