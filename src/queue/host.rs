//! A store: an engine that runs calls, and around it all that engines have in common.

mod store;

use super::{
    api::{Answer, Call, Verb, View, Viewed},
    due_timer::DueTimer,
    notifier::Notifier,
};
use crate::{
    domain::{ids::QueueName, settings::Settings, time::Timestamp},
    store::{Ask, Health, Listener, StoreError, Unanswered},
};
use std::{
    future::Future,
    io,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};
use tokio::sync::oneshot;

/// Queues that one sweep looks at; the others are due at once.
const SWEPT_AT_ONCE: usize = 64;
/// Queues that are unused are looked for now and then, so many at a time.
const TIDY_EVERY: Duration = Duration::from_secs(10);
const TIDIED_AT_ONCE: usize = 100;
/// How long to wait for another server's answer to the same claim.
const IN_PROGRESS: Duration = Duration::from_millis(20);

/// An engine that runs calls.
pub trait Host: Send + Sync + 'static {
    /// Store time.
    fn now(&self) -> Timestamp;

    /// From now on calls come with these settings.
    fn follow(&self, _: &Arc<Settings>) {}

    /// Takes a call; its answer goes to `reply` after the commit, and after its events were told.
    fn submit(&self, call: Call, reply: Reply) -> Result<(), StoreError>;

    fn view(&self, view: View) -> impl Future<Output = Result<Viewed, StoreError>> + Send;

    /// Whether the engine can take writes, and if not, why.
    fn health(&self) -> Health;

    /// What operators should know of how the engine does, oldest first.
    fn warnings(&self) -> Vec<String>;

    /// How often the engine was out of reach for longer than leases bear, and has come back.
    fn outages(&self) -> u64;

    /// Lets what was accepted become durable, then closes.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Where the answer to a call goes. Jobs of a claim that it does not reach return to their queues.
pub struct Reply {
    sender: oneshot::Sender<Result<Answer, StoreError>>,
    /// Of a claim.
    request_id: String,
    notifier: Arc<Notifier>,
}

impl Reply {
    pub fn send(self, answer: Result<Answer, StoreError>) {
        if let Err(Ok(Answer::Claim(Some(claimed)))) = self.sender.send(answer) {
            let now = claimed.now;
            let claim = Unanswered::new(&claimed.jobs, claimed.answer, &self.request_id);
            self.notifier.undelivered(claim, now);
        }
    }
}

/// The store: one of these around every engine.
pub struct Queues<H> {
    host: H,
    notifier: Arc<Notifier>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// As the last call brought them.
    settings: Option<Arc<Settings>>,
    /// Under which every queue was swept.
    swept_under: Option<Arc<Settings>>,
    tidied_at: Timestamp,
    /// The last queue that was looked at.
    tidied: Option<QueueName>,
}

impl<H> std::fmt::Debug for Queues<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queues").finish_non_exhaustive()
    }
}

/// Runs a verb on an engine whose calls never wait: one poll completes it.
pub fn poll_once<T>(future: impl Future<Output = T>) -> Result<T, StoreError> {
    match pin!(future).poll(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Err(StoreError::Unavailable(
            "a verb waits for something that is not the storage".into(),
        )),
    }
}

/// What an engine tells of its commits. `now`: its clock.
pub fn notifier(
    listener: Arc<dyn Listener>,
    now: impl Fn() -> Timestamp + Send + 'static,
) -> io::Result<Arc<Notifier>> {
    let made: Arc<OnceLock<Weak<Notifier>>> = Arc::default();
    let notifier = made.clone();
    let until = move |at: Timestamp| at.since(now());
    let timer = DueTimer::start(until, move |queue| {
        if let Some(notifier) = notifier.get().and_then(Weak::upgrade) {
            notifier.job_is_due(queue);
        }
    })?;
    let notifier = Arc::new(Notifier::new(listener, timer));
    drop(made.set(Arc::downgrade(&notifier)));
    Ok(notifier)
}

impl<H: Host> Queues<H> {
    /// Looks what is due, and announces it.
    pub async fn open(host: H, notifier: Arc<Notifier>) -> Result<Self, StoreError> {
        let queues = Self { host, notifier, inner: Mutex::default() };
        lock(&queues.inner).tidied_at = queues.host.now();
        let names = queues.names().await?;
        let next = match queues.run(Arc::default(), 0, Verb::NextDue(names)).await? {
            Answer::Sweep(_, next) => next,
            _ => Vec::new(),
        };
        for (queue, at) in next {
            if let Some(at) = at {
                let event = super::Event::Due { queue, at, job: false };
                queues.notifier.note(event);
            }
        }
        queues.notifier.announce();
        Ok(queues)
    }

    /// Jobs on their way from one queue to another, which may be seen in both; a server that runs completes their moves.
    pub async fn moving(&self) -> Result<u64, StoreError> {
        match self.host.view(View::Moving).await? {
            Viewed::Moving(jobs) => Ok(jobs),
            _ => Err(wrong_answer()),
        }
    }

    pub fn host(&self) -> &H {
        &self.host
    }

    async fn names(&self) -> Result<Vec<QueueName>, StoreError> {
        match self.host.view(View::Names).await? {
            Viewed::Names(names) => Ok(names),
            _ => Err(wrong_answer()),
        }
    }

    async fn run(
        &self,
        settings: Arc<Settings>,
        seed: u64,
        verb: Verb,
    ) -> Result<Answer, StoreError> {
        let (reply, answer) = self.reply(String::new());
        self.host.submit(Call { settings, seed, verb }, reply)?;
        answer.await.unwrap_or_else(|_| Err(unanswered()))
    }

    fn reply(&self, request_id: String) -> (Reply, oneshot::Receiver<Result<Answer, StoreError>>) {
        let (sender, answer) = oneshot::channel();
        (Reply { sender, request_id, notifier: self.notifier.clone() }, answer)
    }

    /// Jobs of callers who have gone return before anything else is done.
    async fn call(&self, ask: Ask, verb: Verb) -> Result<Answer, StoreError> {
        self.follow(&ask.settings).await?;
        self.run(ask.settings, ask.seed, verb).await
    }

    /// All of them are handed to the engine before the first is waited for: the caller may go away meanwhile. Those that the
    /// engine refuses return when their leases end.
    async fn return_undelivered(&self, settings: &Arc<Settings>) -> Result<(), StoreError> {
        let mut refused = Ok(());
        let mut answers = Vec::new();
        for claim in self.notifier.take_undelivered() {
            let (reply, answer) = self.reply(String::new());
            let seed = claim.answer;
            let verb = Verb::Undelivered(claim);
            let submitted =
                self.host.submit(Call { settings: settings.clone(), seed, verb }, reply);
            match submitted {
                Ok(()) => answers.push(answer),
                Err(error) => refused = Err(error),
            }
        }
        for answer in answers {
            answer.await.unwrap_or_else(|_| Err(unanswered()))?;
        }
        refused
    }

    /// Settings that the last call brought, for calls that bring none.
    fn last_settings(&self) -> Arc<Settings> {
        lock(&self.inner).settings.clone().unwrap_or_default()
    }

    /// What other settings let out of a queue is told, and jobs of callers who have gone return.
    async fn follow(&self, settings: &Arc<Settings>) -> Result<(), StoreError> {
        let changed = {
            let mut inner = lock(&self.inner);
            let same = inner.settings.as_ref().is_some_and(|known| Arc::ptr_eq(known, settings));
            if !same {
                inner.settings = Some(settings.clone());
            }
            !same
        };
        if changed {
            self.host.follow(settings);
            let guarded = self.notifier.memory().guarded();
            if !guarded.is_empty() {
                self.run(settings.clone(), 0, Verb::Look(guarded)).await?;
            }
        }
        self.return_undelivered(settings).await
    }

    /// New settings may make anything due.
    async fn schedule_all(&self, settings: &Arc<Settings>) -> Result<(), StoreError> {
        let known = lock(&self.inner).swept_under.clone();
        if known.is_some_and(|known| Arc::ptr_eq(&known, settings)) {
            return Ok(());
        }
        let now = self.host.now();
        for queue in self.names().await? {
            self.notifier.note(super::Event::Due { queue, at: now, job: false });
        }
        lock(&self.inner).swept_under = Some(settings.clone());
        Ok(())
    }

    /// Queues that are empty and unused are forgotten.
    async fn tidy(&self, ask: &Ask) -> Result<(), StoreError> {
        let now = self.host.now();
        let after = {
            let mut inner = lock(&self.inner);
            if now.since(inner.tidied_at) < TIDY_EVERY {
                return Ok(());
            }
            inner.tidied_at = now;
            inner.tidied.take()
        };
        let names = self.names().await?;
        let from = names.partition_point(|name| after.as_ref().is_some_and(|after| name <= after));
        let some: Vec<_> = names[from..].iter().take(TIDIED_AT_ONCE).cloned().collect();
        if from + some.len() < names.len() {
            lock(&self.inner).tidied = some.last().cloned();
        }
        let idle: Vec<_> =
            some.into_iter().filter(|queue| !self.notifier.is_scheduled(queue)).collect();
        if !idle.is_empty() {
            self.run(ask.settings.clone(), ask.seed, Verb::Forget(idle)).await?;
        }
        Ok(())
    }
}

/// A claim's caller, who may go away when the answer is there but not yet received.
struct Fetch<'a> {
    notifier: &'a Notifier,
    answer: oneshot::Receiver<Result<Answer, StoreError>>,
    request_id: &'a str,
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        // From here on the engine notices by itself that the caller has gone.
        self.answer.close();
        if let Ok(Ok(Answer::Claim(Some(claimed)))) = self.answer.try_recv() {
            let claim = Unanswered::new(&claimed.jobs, claimed.answer, self.request_id);
            self.notifier.undelivered(claim, claimed.now);
        }
    }
}

/// Each verb has one kind of answer; another one tells nothing about what was written.
fn wrong_answer() -> StoreError {
    StoreError::OutcomeUnknown("the engine answered another call".into())
}

/// The engine went away with the call.
fn unanswered() -> StoreError {
    StoreError::OutcomeUnknown("the engine ended before it answered".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
