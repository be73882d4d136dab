//! The engine for many servers: Redis holds the queues, and any number of servers without a state of their own work on
//! them.
//!
//! Each verb is a script that compares and moves, or a look, a decision and a script that applies it under a fence. A
//! script has the keys of one queue, which are in one slot; what concerns several queues is several scripts.

mod agenda;
mod audit;
mod breakers;
mod claim;
mod clock;
mod completed;
pub mod connection;
mod court;
mod dead;
mod ending;
mod enqueue;
mod fetch;
mod forget;
mod guards;
mod hints;
mod keys;
mod list;
mod look;
mod moves;
mod operate;
mod peers;
mod plans;
mod record;
mod registry;
mod replies;
mod reply;
mod requeue;
mod scripts;
mod settle;
mod stats;
mod sweep;
mod take_in;
mod tally;

pub use clock::TimeSource;
pub use connection::{Address, durability::Durability};

use crate::{
    domain::{
        breaker::BreakerName,
        ids::{JobId, QueueName},
        job::NewJob,
        limits::Limits,
        settings::Settings,
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
use agenda::Agenda;
use clock::RedisClock;
use connection::{Arg, ConnectionOptions, Redis, Script};
pub use connection::{Found, Unfit};
use fetch::Fetch;
use forget::Tidying;
use hints::Watch;
use keys::Namespace;
use peers::Peers;
use registry::{Queue, Registry};
use reply::Reply;
use std::{
    future::Future,
    sync::{Arc, Mutex, RwLock, Weak},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot},
    task::JoinSet,
};

/// Calls at the same time; more are refused as overload.
const CALLS_MAX: u32 = 16_384;
/// Queues that one call asks at the same time.
const ASKED_AT_ONCE: usize = 64;

#[derive(Clone, Debug)]
pub struct Options {
    pub address: Address,
    pub connection: ConnectionOptions,
    /// What all keys begin with.
    pub namespace: String,
    pub time: TimeSource,
    pub max_queues: usize,
    /// What the other servers call this one.
    pub server: String,
    /// Hears of what other servers do, and looks around now and then.
    pub watch: bool,
}

impl Options {
    pub fn new(address: Address) -> Self {
        Self {
            address,
            connection: ConnectionOptions::default(),
            namespace: "redrive".into(),
            time: TimeSource::Redis,
            max_queues: Limits::default().queues,
            server: format!("process {}", std::process::id()),
            watch: true,
        }
    }
}

/// A handle on the engine.
#[derive(Debug)]
pub struct RedisStore {
    core: Arc<Core>,
    calls: Arc<Semaphore>,
    /// What the servers were when the store was opened.
    found: Found,
    _watch: Option<Watch>,
}

/// What the verbs work with.
pub(super) struct Core {
    redis: Redis,
    names: Namespace,
    options: Options,
    clock: RedisClock,
    registry: Registry,
    agenda: Agenda,
    peers: Peers,
    listener: Arc<dyn Listener>,
    /// As the last call brought them; none: there was none.
    settings: RwLock<Option<Arc<Settings>>>,
    /// The settings that the agenda was made under.
    under: Mutex<Weak<Settings>>,
    tidying: Mutex<Tidying>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Core {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Runs a script on a queue; with what it replies comes the time at which it ran.
    async fn run(
        &self,
        script: &Script,
        queue: &Queue,
        args: Vec<Arg>,
    ) -> Result<(Timestamp, Reply), StoreError> {
        let mut all: Vec<Arg> = Vec::with_capacity(args.len() + 1);
        all.push(self.clock.given().as_str().into());
        all.extend(args);
        let sent_us = self.clock.boot_us();
        let mut reply = Reply::of(self.redis.run(script, queue.keys.all(), all).await?)?;
        let now = reply.time()?;
        self.clock.heard(now, sent_us);
        Ok((now, reply))
    }

    /// Asks Redis what time it is.
    async fn hear_time(&self) -> Result<(), StoreError> {
        let key = self.names.next_number();
        let sent_us = self.clock.boot_us();
        let mut reply = Reply::of(self.redis.command(&key, redis::cmd("TIME")).await?)?;
        let (seconds, micros) = (reply.count()?, reply.count()?);
        self.clock.heard(Timestamp::from_millis(seconds * 1_000 + micros / 1_000), sent_us);
        Ok(())
    }

    /// Asks many queues at the same time; the answers are in the order of the queues.
    async fn each<T, F>(
        self: &Arc<Self>,
        queues: Vec<Arc<Queue>>,
        ask: impl Fn(Arc<Self>, Arc<Queue>) -> F,
    ) -> Result<Vec<(Arc<Queue>, T)>, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let mut answers = Vec::with_capacity(queues.len());
        for some in queues.chunks(ASKED_AT_ONCE) {
            let mut asked = JoinSet::new();
            for (at, queue) in some.iter().enumerate() {
                let answer = ask(self.clone(), queue.clone());
                asked.spawn(async move { (at, answer.await) });
            }
            let mut some_answers = Vec::with_capacity(some.len());
            while let Some(answered) = asked.join_next().await {
                let (at, answer) = answered.map_err(|_| unanswered())?;
                some_answers.push((at, answer?));
            }
            some_answers.sort_by_key(|(at, _)| *at);
            answers.extend(some_answers.into_iter().map(|(at, answer)| (some[at].clone(), answer)));
        }
        Ok(answers)
    }
}

impl RedisStore {
    pub async fn open(
        options: Options,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn Listener>,
    ) -> Result<Self, Unfit> {
        let redis = Redis::open(&options.address, &options.connection).await?;
        let found = redis.look().await?;
        let core = Arc::new(Core {
            redis,
            names: Namespace::new(&options.namespace),
            clock: RedisClock::new(options.time.clone(), clock),
            options,
            registry: Registry::default(),
            agenda: Agenda::new(listener.clone()),
            peers: Peers::new(crate::env::random()),
            listener,
            settings: RwLock::default(),
            under: Mutex::default(),
            tidying: Mutex::default(),
        });
        core.begin().await?;
        let watch = core.options.watch.then(|| Watch::start(&core));
        let calls = Arc::new(Semaphore::new(CALLS_MAX as usize));
        Ok(Self { core, calls, found, _watch: watch })
    }

    /// Does the work in a task of its own: whoever asked may go away, and what was begun is finished.
    async fn call<T, F>(&self, work: impl FnOnce(Arc<Core>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let place = self.place()?;
        let work = work(self.core.clone());
        let task = tokio::spawn(async move {
            let _place = place;
            work.await
        });
        task.await.unwrap_or_else(|_| Err(unanswered()))
    }

    /// As `call`, for what depends on the settings.
    async fn ask<T, F>(
        &self,
        ask: Ask,
        work: impl FnOnce(Arc<Core>, Ask) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.call(|core| async move {
            core.follow(&ask.settings).await?;
            work(core, ask).await
        })
        .await
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        self.calls.clone().try_acquire_owned().map_err(|error| match error {
            TryAcquireError::NoPermits => {
                StoreError::Overloaded(format!("{CALLS_MAX} calls wait for Redis"))
            }
            TryAcquireError::Closed => StoreError::Unavailable("the store is closed".into()),
        })
    }

    /// What the servers were when the store was opened.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// How many servers hear what happens in this store, or in one of the same name in another database of this Redis.
    /// One that has just lost its connection is not among them.
    pub async fn listening(&self) -> Result<u64, StoreError> {
        let mut command = redis::cmd("PUBLISH");
        command.arg(self.core.names.of_no_queue()).arg("");
        let heard = self.core.redis.on_every_primary(&command).await?;
        let count = |heard: redis::Value| match heard {
            redis::Value::Int(count) => count.cast_unsigned(),
            _ => 0,
        };
        Ok(heard.into_iter().map(|(_, heard)| count(heard)).sum())
    }

    /// Jobs on their way from one queue to another, which may be seen in both; a server that runs completes their moves.
    pub async fn moving(&self) -> Result<u64, StoreError> {
        let queues = self.core.all_queues().await?;
        Ok(self.core.states(queues).await?.iter().map(|(_, state)| state.moving).sum())
    }

    /// Waits until everything that was begun has ended.
    pub async fn rest(&self) {
        drop(self.calls.acquire_many(CALLS_MAX).await);
    }
}

impl Store for RedisStore {
    fn now(&self) -> Timestamp {
        self.core.now()
    }

    async fn enqueue(
        &self,
        ask: Ask,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Result<Enqueued, Refused>>, StoreError> {
        self.ask(ask, |core, ask| async move { core.enqueue(ask, jobs).await }).await
    }

    async fn claim(&self, ask: Ask, claim: Claim) -> Result<Claimed, StoreError> {
        let place = self.place()?;
        let (reply, answer) = oneshot::channel();
        let request_id = claim.request_id.clone();
        let core = self.core.clone();
        let mut fetch = Fetch { store: self, answer, request_id: request_id.clone() };
        tokio::spawn(async move {
            let _place = place;
            let claimed = match core.follow(&ask.settings).await {
                Ok(()) => core.claim(ask, claim).await,
                Err(error) => Err(error),
            };
            if let Err(Ok(claimed)) = reply.send(claimed) {
                let unanswered = Unanswered::new(&claimed.jobs, claimed.answer, &request_id);
                // If even this cannot be said, the leases run out.
                drop(core.unclaim(unanswered).await);
            }
        });
        (&mut fetch.answer).await.unwrap_or_else(|_| Err(unanswered()))
    }

    async fn settle(&self, ask: Ask, settlements: Settlements) -> Result<Settled, StoreError> {
        self.ask(ask, |core, ask| async move { core.settle(&ask, settlements).await }).await
    }

    async fn unclaim(&self, unanswered: Unanswered) -> Result<(), StoreError> {
        self.call(|core| async move { core.unclaim(unanswered).await }).await
    }

    async fn sweep(&self, ask: Ask, sweep: Sweep) -> Result<Swept, StoreError> {
        self.ask(ask, move |core, ask| async move { core.sweep(ask, sweep).await }).await
    }

    async fn requeue(
        &self,
        ask: Ask,
        requeue: Requeue,
    ) -> Result<Result<Requeued, RequeueRefused>, StoreError> {
        self.ask(ask, |core, _| async move { core.requeue(requeue).await }).await
    }

    async fn purge(&self, purge: Purge) -> Result<Result<Purged, PurgeRefused>, StoreError> {
        self.call(|core| async move { core.purge(purge).await }).await
    }

    async fn job(&self, id: JobId, queue: Option<QueueName>) -> Result<Vec<JobView>, StoreError> {
        self.call(|core| async move { core.job(id, queue).await }).await
    }

    async fn dead_letters(
        &self,
        query: DeadLetterQuery,
    ) -> Result<Option<DeadLetterPage>, StoreError> {
        self.call(|core| async move { core.dead_letters(query).await }).await
    }

    async fn dead_letter_counts(&self, query: DeadCountQuery) -> Result<DeadCounts, StoreError> {
        self.call(|core| async move { core.dead_letter_counts(query).await }).await
    }

    async fn queues(
        &self,
        after: Option<QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueView>, StoreError> {
        self.call(|core| async move { core.queues(after, limit).await }).await
    }

    async fn stats(&self, queue: Option<QueueName>) -> Result<Option<Stats>, StoreError> {
        self.call(|core| async move { core.stats(queue).await }).await
    }

    async fn pause(
        &self,
        ask: Ask,
        queue: QueueName,
        pause: Option<NewPause>,
    ) -> Result<Result<(), QueueRefused>, StoreError> {
        self.ask(ask, |core, ask| async move { core.pause(ask, queue, pause).await }).await
    }

    async fn breakers(
        &self,
        ask: Ask,
        queues: Vec<QueueName>,
    ) -> Result<Vec<BreakerViews>, StoreError> {
        self.ask(ask, |core, ask| async move { core.breakers(ask, queues).await }).await
    }

    async fn set_breaker(
        &self,
        ask: Ask,
        name: BreakerName,
        order: BreakerOrder,
    ) -> Result<Result<BreakerView, QueueRefused>, StoreError> {
        self.ask(ask, |core, ask| async move { core.set_breaker(ask, name, order).await }).await
    }

    async fn cancel(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<Cancelled, JobRefused>, StoreError> {
        self.call(|core| async move { core.cancel(id, queue).await }).await
    }

    async fn run_now(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<(), JobRefused>, StoreError> {
        self.call(|core| async move { core.run_now(id, queue).await }).await
    }

    async fn jobs(&self, query: JobQuery) -> Result<Option<JobPage>, StoreError> {
        self.call(|core| async move { core.jobs(query).await }).await
    }

    async fn take_in(
        &self,
        ask: Ask,
        newcomers: Newcomers,
    ) -> Result<Result<Vec<TakenIn>, Refused>, StoreError> {
        self.ask(ask, |core, ask| async move { core.take_in(ask, newcomers).await }).await
    }

    fn notices(&self) -> Vec<String> {
        let found = self.found.warnings.iter().cloned();
        let noticed = self.core.redis.notices();
        let noticed = noticed.iter().map(ToString::to_string);
        found.chain(noticed).chain(self.core.peers.notice()).collect()
    }

    fn outages(&self) -> u64 {
        self.core.redis.outages()
    }

    fn health(&self) -> Health {
        if self.calls.is_closed() {
            return Health::Stopped("the store is closed".into());
        }
        self.core.redis.health()
    }

    async fn close(&self) {
        // Whoever came before is answered; whoever comes after finds the door shut.
        self.rest().await;
        self.calls.close();
        if self.core.options.watch {
            self.core.take_leave().await;
        }
    }
}

/// The task that worked on it has gone.
fn unanswered() -> StoreError {
    StoreError::OutcomeUnknown("the call ended without an answer".into())
}
