//! A store: an engine that runs calls, and around it all that engines have in common.

use super::{
    api::{Answer, Call, Verb, View, Viewed},
    due_timer::DueTimer,
    enqueue::Incoming,
    notifier::Notifier,
};
use crate::{
    domain::{
        breaker::BreakerName,
        ids::{JobId, QueueName},
        job::NewJob,
        settings::Settings,
        time::Timestamp,
    },
    store::{
        Ask, BreakerOrder, BreakerView, BreakerViews, Cancelled, Claim, Claimed, DeadCountQuery,
        DeadCounts, DeadLetterPage, DeadLetterQuery, Enqueued, Health, JobPage, JobQuery,
        JobRefused, JobView, Listener, NewPause, Newcomers, Purge, PurgeRefused, Purged,
        QueueRefused, QueueView, Refused, Requeue, RequeueRefused, Requeued, Settled, Settlements,
        Stats, Store, StoreError, Sweep, Swept, TakenIn, Unanswered,
    },
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
        Poll::Pending => {
            Err(StoreError::Unavailable("a verb waits for something that is not the storage".into()))
        }
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

    fn reply(
        &self,
        request_id: String,
    ) -> (Reply, oneshot::Receiver<Result<Answer, StoreError>>) {
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
            let submitted = self.host.submit(Call { settings: settings.clone(), seed, verb }, reply);
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

impl<H: Host> Store for Queues<H> {
    fn now(&self) -> Timestamp {
        self.host.now()
    }

    async fn enqueue(
        &self,
        ask: Ask,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Result<Enqueued, Refused>>, StoreError> {
        let jobs = jobs.into_iter().map(Incoming::new).collect();
        match self.call(ask, Verb::Enqueue(jobs)).await? {
            Answer::Enqueue(results) => Ok(results),
            _ => Err(wrong_answer()),
        }
    }

    async fn claim(&self, ask: Ask, claim: Claim) -> Result<Claimed, StoreError> {
        self.follow(&ask.settings).await?;
        let request_id = claim.request_id.clone();
        let mut settle = claim.clone();
        let mut claim = Some(claim);
        loop {
            let verb = Verb::Claim(claim.take().unwrap_or_else(|| settle.clone()));
            let call = Call { settings: ask.settings.clone(), seed: ask.seed, verb };
            let (reply, answer) = self.reply(request_id.clone());
            let mut fetch = Fetch { notifier: &self.notifier, answer, request_id: &request_id };
            self.host.submit(call, reply)?;
            match (&mut fetch.answer).await.unwrap_or_else(|_| Err(unanswered()))? {
                Answer::Claim(Some(claimed)) => return Ok(claimed),
                Answer::Claim(None) => {}
                _ => return Err(wrong_answer()),
            }
            // What it settles has been settled.
            settle.settle = Settlements::default();
            tokio::time::sleep(IN_PROGRESS).await;
        }
    }

    async fn settle(&self, ask: Ask, settlements: Settlements) -> Result<Settled, StoreError> {
        match self.call(ask, Verb::Settle(settlements)).await? {
            Answer::Settle(settled) => Ok(settled),
            _ => Err(wrong_answer()),
        }
    }

    async fn unclaim(&self, unanswered: Unanswered) -> Result<(), StoreError> {
        let seed = unanswered.answer;
        self.run(self.last_settings(), seed, Verb::Undelivered(unanswered)).await.map(drop)
    }

    async fn sweep(&self, ask: Ask, sweep: Sweep) -> Result<Swept, StoreError> {
        self.follow(&ask.settings).await?;
        self.schedule_all(&ask.settings).await?;
        let now = self.host.now();
        let due = self.notifier.take_due(now, SWEPT_AT_ONCE);
        if due.is_empty() {
            self.tidy(&ask).await?;
            return Ok(Swept { next: self.notifier.swept(&[]), ..Swept::default() });
        }
        // A claim that was not delivered makes its queue due: what was noted since the last look is returned before the note
        // is gone.
        let verb = Verb::Sweep(sweep, due.clone());
        let swept = match self.return_undelivered(&ask.settings).await {
            Ok(()) => self.run(ask.settings.clone(), ask.seed, verb).await,
            Err(error) => Err(error),
        };
        match swept {
            Ok(Answer::Sweep(mut swept, next)) => {
                swept.next = self.notifier.swept(&next);
                self.tidy(&ask).await?;
                Ok(swept)
            }
            Ok(_) => Err(wrong_answer()),
            Err(error) => {
                let again: Vec<_> = due.into_iter().map(|queue| (queue, Some(now))).collect();
                self.notifier.swept(&again);
                Err(error)
            }
        }
    }

    async fn requeue(
        &self,
        ask: Ask,
        requeue: Requeue,
    ) -> Result<Result<Requeued, RequeueRefused>, StoreError> {
        match self.call(ask, Verb::Requeue(requeue)).await? {
            Answer::Requeue(requeued) => Ok(requeued),
            _ => Err(wrong_answer()),
        }
    }

    async fn purge(&self, purge: Purge) -> Result<Result<Purged, PurgeRefused>, StoreError> {
        let ask = Ask { settings: self.last_settings(), seed: 0 };
        match self.call(ask, Verb::Purge(purge)).await? {
            Answer::Purge(purged) => Ok(purged),
            _ => Err(wrong_answer()),
        }
    }

    async fn job(&self, id: JobId, queue: Option<QueueName>) -> Result<Vec<JobView>, StoreError> {
        match self.host.view(View::Job(id, queue)).await? {
            Viewed::Job(views) => Ok(views),
            _ => Err(wrong_answer()),
        }
    }

    async fn dead_letters(
        &self,
        query: DeadLetterQuery,
    ) -> Result<Option<DeadLetterPage>, StoreError> {
        match self.host.view(View::DeadLetters(query)).await? {
            Viewed::DeadLetters(page) => Ok(page),
            _ => Err(wrong_answer()),
        }
    }

    async fn dead_letter_counts(&self, query: DeadCountQuery) -> Result<DeadCounts, StoreError> {
        match self.host.view(View::DeadLetterCounts(query)).await? {
            Viewed::DeadLetterCounts(counts) => Ok(counts),
            _ => Err(wrong_answer()),
        }
    }

    async fn queues(
        &self,
        after: Option<QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueView>, StoreError> {
        match self.host.view(View::Queues(after, limit)).await? {
            Viewed::Queues(queues) => Ok(queues),
            _ => Err(wrong_answer()),
        }
    }

    async fn stats(&self, queue: Option<QueueName>) -> Result<Option<Stats>, StoreError> {
        match self.host.view(View::Stats(queue)).await? {
            Viewed::Stats(stats) => Ok(stats),
            _ => Err(wrong_answer()),
        }
    }

    async fn pause(
        &self,
        ask: Ask,
        queue: QueueName,
        pause: Option<NewPause>,
    ) -> Result<Result<(), QueueRefused>, StoreError> {
        match self.call(ask, Verb::Pause(queue, pause)).await? {
            Answer::Pause(paused) => Ok(paused),
            _ => Err(wrong_answer()),
        }
    }

    async fn breakers(
        &self,
        ask: Ask,
        queues: Vec<QueueName>,
    ) -> Result<Vec<BreakerViews>, StoreError> {
        match self.call(ask, Verb::Breakers(queues)).await? {
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
        match self.call(ask, Verb::SetBreaker(name, order)).await? {
            Answer::SetBreaker(view) => Ok(view),
            _ => Err(wrong_answer()),
        }
    }

    async fn cancel(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<Cancelled, JobRefused>, StoreError> {
        let ask = Ask { settings: self.last_settings(), seed: 0 };
        match self.call(ask, Verb::Cancel(id, queue)).await? {
            Answer::Cancel(cancelled) => Ok(cancelled),
            _ => Err(wrong_answer()),
        }
    }

    async fn run_now(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<(), JobRefused>, StoreError> {
        let ask = Ask { settings: self.last_settings(), seed: 0 };
        match self.call(ask, Verb::RunNow(id, queue)).await? {
            Answer::RunNow(done) => Ok(done),
            _ => Err(wrong_answer()),
        }
    }

    async fn jobs(&self, query: JobQuery) -> Result<Option<JobPage>, StoreError> {
        match self.host.view(View::Jobs(query)).await? {
            Viewed::Jobs(page) => Ok(page),
            _ => Err(wrong_answer()),
        }
    }

    async fn take_in(
        &self,
        ask: Ask,
        newcomers: Newcomers,
    ) -> Result<Result<Vec<TakenIn>, Refused>, StoreError> {
        match self.call(ask, Verb::Import(newcomers)).await? {
            Answer::Import(taken) => Ok(taken),
            _ => Err(wrong_answer()),
        }
    }

    fn health(&self) -> Health {
        self.host.health()
    }

    fn notices(&self) -> Vec<String> {
        self.host.warnings()
    }

    fn outages(&self) -> u64 {
        self.host.outages()
    }

    async fn close(&self) {
        // Jobs of callers who have gone return now: later no process remembers them.
        drop(self.return_undelivered(&self.last_settings()).await);
        self.host.close().await;
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
