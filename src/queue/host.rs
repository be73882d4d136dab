//! A store: an engine that runs calls, and around it all that engines have in common.

mod calls;

use super::api::{Answer, Call, Verb, View, Viewed};
use super::due_timer::DueTimer;
use super::handover::UndeliveredClaim;
use super::notifier::{Notifier, Setup};
use super::refusal::{Error, Refusal};
use crate::domain::{QueueName, Settings, Timestamp};
use crate::lock::lock;
use crate::store::{Health, Result, StoreError};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Queues that one sweep looks at; the others are due at once.
const SWEPT_AT_ONCE: usize = 64;
/// Queues that are unused are looked for now and then, so many at a time.
const TIDY_EVERY: Duration = Duration::from_secs(10);
const TIDIED_AT_ONCE: usize = 100;
/// How long to wait for another server's answer to the same claim, or for what is in hand to be received.
const IN_PROGRESS: Duration = Duration::from_millis(20);

const CROWDED_AT_ONCE: usize = 4;

/// An engine that runs calls.
pub trait Host: Send + Sync + 'static {
    /// Store time.
    fn now(&self) -> Timestamp;

    /// From now on calls come with these settings.
    fn follow(&self, _: &Settings) {}

    /// Takes a call; its answer goes to `reply` after the commit, and after its events were published.
    fn submit(&self, call: Call, reply: Reply) -> Result<()>;

    fn view(&self, view: View) -> impl Future<Output = Result<Viewed>> + Send;

    /// Whether the engine can take writes, and if not, why.
    fn health(&self) -> Health;

    /// What the store says of the version that it needs, if that is a newer one.
    fn needs_newer(&self) -> impl Future<Output = Option<String>> + Send {
        async { None }
    }

    /// What operators should know of how the engine does, oldest first.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// How often the engine was out of reach for longer than leases bear, and has come back, or its clock jumped.
    fn outages(&self) -> u64 {
        0
    }

    /// Lets what was accepted become durable, then closes.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Where the answer to a call goes. Jobs of a claim that it does not reach return to their queues, as do those of a caller that
/// goes away before it looks at the answer.
pub struct Reply {
    sender: oneshot::Sender<Result<Answer>>,
    /// Of a claim.
    request_id: String,
    notifier: Arc<Notifier>,
}

impl Reply {
    pub fn send(self, mut answer: Result<Answer>) {
        if let Ok(Answer::Claim(Some(claimed))) = &mut answer {
            claimed.guard(&self.request_id, &self.notifier);
        }
        drop(self.sender.send(answer));
    }
}

/// The store: one of these around every engine.
pub struct Queues<H> {
    host: H,
    notifier: Arc<Notifier>,
    inner: Mutex<Inner>,
    /// For claims that run again because too much is in hand.
    crowded: Semaphore,
}

#[derive(Default)]
struct Inner {
    /// Whose queues are made.
    followed: Option<Arc<Settings>>,
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
pub fn poll_once<T>(future: impl Future<Output = T>) -> Result<T> {
    match pin!(future).poll(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Err(StoreError::Unavailable("a verb waits for something that is not the storage".into())),
    }
}

/// Publishes the events of an engine's commits. `now`: its clock.
pub fn notifier(setup: Setup, now: impl Fn() -> Timestamp + Send + 'static) -> io::Result<Arc<Notifier>> {
    let made: Arc<OnceLock<Weak<Notifier>>> = Arc::default();
    let notifier = made.clone();
    let until = move |at: Timestamp| at.since(now());
    let timer = DueTimer::start(until, move |queue| {
        if let Some(notifier) = notifier.get().and_then(Weak::upgrade) {
            notifier.job_is_due(queue);
        }
    })?;
    let notifier = Arc::new(Notifier::new(setup, timer));
    drop(made.set(Arc::downgrade(&notifier)));
    Ok(notifier)
}

impl<H: Host> Queues<H> {
    /// Makes the configured queues, looks what is due, and announces it.
    pub async fn open(host: H, notifier: Arc<Notifier>) -> Result<Self> {
        let queues = Self { host, notifier, inner: Mutex::default(), crowded: Semaphore::new(CROWDED_AT_ONCE) };
        lock(&queues.inner).tidied_at = queues.host.now();
        let names = queues.names().await?;
        if let Answer::Sweep(_, next) = queues.run(Verb::NextDue(names)).await? {
            for (queue, at) in next {
                at.into_iter().for_each(|at| queues.notifier.note(&queue, at));
            }
        }
        queues.notifier.announce();
        queues.follow().await?;
        Ok(queues)
    }

    /// Jobs on their way from one queue to another, which may be seen in both; a server that runs completes their moves.
    pub async fn moving(&self) -> Result<u64> {
        match self.host.view(View::Moving).await? {
            Viewed::Moving(jobs) => Ok(jobs),
            _ => Err(wrong_answer()),
        }
    }

    pub fn host(&self) -> &H {
        &self.host
    }

    /// The same store with its engine inside another one: tests watch it so.
    pub fn wrap<G: Host>(self, around: impl FnOnce(H) -> G) -> Queues<G> {
        Queues { host: around(self.host), notifier: self.notifier, inner: self.inner, crowded: self.crowded }
    }

    async fn names(&self) -> Result<Vec<QueueName>> {
        match self.host.view(View::Names).await? {
            Viewed::Names(names) => Ok(names),
            _ => Err(wrong_answer()),
        }
    }

    /// Hands a call to the engine.
    fn submit(&self, verb: Verb, request_id: String) -> Result<oneshot::Receiver<Result<Answer>>> {
        let (sender, answer) = oneshot::channel();
        let reply = Reply { sender, request_id, notifier: self.notifier.clone() };
        let call = Call { settings: self.settings(), seed: self.notifier.random(), verb };
        self.host.submit(call, reply)?;
        Ok(answer)
    }

    async fn run(&self, verb: Verb) -> Result<Answer> {
        let answer = self.submit(verb, String::new())?;
        self.answer(answer).await
    }

    async fn answer(&self, answer: oneshot::Receiver<Result<Answer>>) -> Result<Answer> {
        let answer = answer.await.unwrap_or_else(|_| Err(unanswered()));
        self.or_needs_newer(answer).await
    }

    /// An error about a record of a newer server names the version that the store needs.
    async fn or_needs_newer<T>(&self, answer: Result<T>) -> Result<T> {
        let Err(StoreError::NewerFormat(what)) = answer else { return answer };
        let needs = self.host.needs_newer().await.map(|needs| format!(" ({needs})"));
        Err(StoreError::NewerFormat(what + &needs.unwrap_or_default()))
    }

    /// Jobs of callers that have gone return before anything else is done.
    async fn call(&self, verb: Verb) -> Result<Answer, Error> {
        self.follow().await?;
        match self.run(verb).await? {
            Answer::Refused(refusal) => Err(self.refused(refusal)),
            answer => Ok(answer),
        }
    }

    async fn view(&self, view: View) -> Result<Viewed, Error> {
        let viewed = self.host.view(view).await;
        match self.or_needs_newer(viewed).await? {
            Viewed::Refused(refusal) => Err(self.refused(refusal)),
            viewed => Ok(viewed),
        }
    }

    fn refused(&self, mut refusal: Refusal) -> Error {
        if let Refusal::JobNotFound { searched: Some((queue, kept)), .. } | Refusal::KeyNotFound { queue, kept, .. } =
            &mut refusal
        {
            *kept = self.settings().queue(queue).completed_retention;
        }
        refusal.into()
    }

    /// All of them are handed to the engine before the first is waited for: the caller may go away meanwhile. Those that the
    /// engine refuses return when their leases end.
    async fn return_undelivered(&self) -> Result<()> {
        let submit = |claim: UndeliveredClaim| self.submit(Verb::Undelivered(claim), String::new());
        let submitted: Vec<_> = self.notifier.take_undelivered().into_iter().map(submit).collect();
        for answer in submitted {
            self.answer(answer?).await?;
        }
        Ok(())
    }

    /// Those in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.notifier.settings()
    }

    /// Calls from now on are decided by these; the next one makes their queues.
    pub fn set_settings(&self, settings: Arc<Settings>) {
        self.notifier.set_settings(settings);
    }

    /// The same, and makes their queues.
    pub async fn replace_settings(&self, settings: Arc<Settings>) -> Result<()> {
        self.set_settings(settings);
        self.follow().await
    }

    /// Where the settings are others than before, their queues are made, and jobs that they admit are published. Jobs of
    /// callers that have gone return.
    async fn follow(&self) -> Result<()> {
        let settings = self.settings();
        let same = |known: &Arc<Settings>| Arc::ptr_eq(known, &settings);
        if !lock(&self.inner).followed.as_ref().is_some_and(same) {
            self.host.follow(&settings);
            if !settings.queues.is_empty() {
                self.run(Verb::Register(settings.queues.keys().cloned().collect())).await?;
            }
            let guarded = self.notifier.memory().guarded();
            if !guarded.is_empty() {
                self.run(Verb::Look(guarded)).await?;
            }
            lock(&self.inner).followed = Some(settings);
        }
        self.return_undelivered().await
    }

    /// New settings may make anything due.
    async fn schedule_all(&self) -> Result<()> {
        let settings = self.settings();
        let known = lock(&self.inner).swept_under.clone();
        if known.is_some_and(|known| Arc::ptr_eq(&known, &settings)) {
            return Ok(());
        }
        let now = self.host.now();
        for queue in self.names().await? {
            self.notifier.note(&queue, now);
        }
        lock(&self.inner).swept_under = Some(settings);
        Ok(())
    }

    /// Queues that are empty and unused are forgotten.
    async fn tidy(&self) -> Result<()> {
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
        let idle: Vec<_> = some.into_iter().filter(|queue| !self.notifier.is_scheduled(queue)).collect();
        if !idle.is_empty() {
            self.run(Verb::Forget(idle)).await?;
        }
        Ok(())
    }
}

/// Each verb has one kind of answer; another one says nothing about what was written.
fn wrong_answer() -> StoreError {
    StoreError::OutcomeUnknown("the engine answered another call".into())
}

/// The engine went away with the call.
fn unanswered() -> StoreError {
    StoreError::OutcomeUnknown("the engine ended before it answered".into())
}
