//! A store on Redis: every call is a task, and settlements that wait for the same queue are joined into one.

use crate::{
    domain::{ids::QueueName, lease::Lease, limits::Limits, settings::Settings, time::Timestamp},
    env::Clock,
    queue::{
        self, Call, CallContext, Event, Host, Notifier, Queues, Reply, StoreLimits, Verb, View,
        Viewed,
    },
    store::{
        Health, Listener, Settlements, StoreError, Unanswered,
        redis::{Hint, OpenError, Options, RedisStorage, Subscription},
        storage::Reads,
    },
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError},
    task::AbortHandle,
};

/// Calls at the same time; more are refused as overload.
const CALLS_MAX: u32 = 16_384;
/// Items of settlements that are joined.
const JOINED_MAX: usize = 100;
const JOINED_BYTES_MAX: usize = 1 << 20;
/// Joined settlements of one queue that run at the same time. Nacks change what the breaker has counted: one after the other
/// they do not overtake each other.
const ACKS_AT_ONCE: usize = 4;
const NACKS_AT_ONCE: usize = 1;
/// How often the queues are looked at for what other servers left, so many of them each time.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOKED_AT_ONCE: usize = 100;

/// A store that many servers share.
pub type RedisStore = Queues<RedisHost>;

pub struct RedisHost {
    shared: Arc<Shared>,
    _subscription: Option<Subscription>,
    _looking: Option<Looking>,
}

struct Shared {
    storage: RedisStorage,
    notifier: Arc<Notifier>,
    limits: StoreLimits,
    calls: Arc<Semaphore>,
    joins: Mutex<HashMap<(QueueName, bool), Joins>>,
    /// As the last call brought them; the other servers hear of them.
    settings: Mutex<Weak<Settings>>,
}

/// Settlements of one queue.
#[derive(Default)]
struct Joins {
    running: usize,
    waiting: Vec<Waiting>,
}

struct Waiting {
    call: Call,
    reply: Reply,
    permit: OwnedSemaphorePermit,
}

struct Looking(AbortHandle);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RedisStore {
    /// `watch`: hears what other servers do, and looks at the queues now and then.
    pub async fn open_redis(
        options: Options,
        max_queues: usize,
        watch: bool,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn Listener>,
    ) -> Result<Self, OpenError> {
        let storage = RedisStorage::open(options, clock).await?;
        let clock = storage.clone();
        let refused = |error: String| OpenError::Refused(error);
        let notifier = queue::notifier(listener, move || clock.now())
            .map_err(|error| refused(error.to_string()))?;
        let shared = Arc::new(Shared {
            storage,
            notifier: notifier.clone(),
            limits: StoreLimits { queues: max_queues, leases: usize::MAX },
            calls: Arc::new(Semaphore::new(CALLS_MAX as usize)),
            joins: Mutex::default(),
            settings: Mutex::default(),
        });
        let subscription = watch.then(|| shared.subscribe());
        let looking = watch.then(|| Looking(tokio::spawn(look(shared.clone())).abort_handle()));
        let host = RedisHost { shared, _subscription: subscription, _looking: looking };
        Self::open(host, notifier).await.map_err(|error| refused(error.to_string()))
    }

    pub async fn open_with_limits(
        options: Options,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn Listener>,
    ) -> Result<Self, OpenError> {
        Self::open_redis(options, Limits::default().queues, true, clock, listener).await
    }

    pub fn storage(&self) -> &RedisStorage {
        &self.host().shared.storage
    }

    /// Waits until everything that was begun has ended.
    pub async fn rest(&self) {
        drop(self.host().shared.calls.acquire_many(CALLS_MAX).await);
    }
}

impl Shared {
    fn joins(&self) -> MutexGuard<'_, HashMap<(QueueName, bool), Joins>> {
        self.joins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The other servers are told of the settings that this one uses.
    fn follow(&self, settings: &Arc<Settings>) {
        let mut known = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Arc::downgrade(settings);
        self.storage.join(settings.digest());
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        self.calls.clone().try_acquire_owned().map_err(|error| match error {
            TryAcquireError::NoPermits => {
                StoreError::Overloaded(format!("{CALLS_MAX} calls wait for Redis"))
            }
            TryAcquireError::Closed => StoreError::Unavailable("the store is closed".into()),
        })
    }

    async fn run(
        &self,
        settings: Arc<Settings>,
        seed: u64,
        verb: Verb,
    ) -> Result<queue::Answer, StoreError> {
        let mut storage = self.storage.clone();
        let mut cx = CallContext::new(settings, seed, self.notifier.memory(), self.limits);
        let (confirmed, request_id) = (Confirmed::of(&verb), request_id(&verb));
        let mut answer = queue::run(&mut storage, &mut cx, verb).await;
        if answer.is_ok()
            && let Err(error) = storage.confirm_reads(|queue| confirmed.has(queue)).await
        {
            if let Ok(queue::Answer::Claim(Some(claimed))) = &answer {
                let claim = Unanswered::new(&claimed.jobs, claimed.answer, &request_id);
                self.notifier.undelivered(claim, claimed.now);
            }
            answer = Err(error);
        }
        for event in &cx.events {
            if let Event::CancelRequested(lease) = event {
                // Its worker may wait at another server; a message that is lost is made up for by the next Extend.
                let token = lease.to_string();
                drop(self.storage.publish(&lease.queue, token.as_bytes()).await);
            }
        }
        self.notifier.tell(cx.events);
        answer
    }

    // ---- joined settlements ----

    /// The queue of a settlement, and whether it has nacks. None: it concerns several queues.
    fn join_key(call: &Call) -> Option<(QueueName, bool)> {
        let Verb::Settle(items) = &call.verb else { return None };
        let mut queues = leases(items).map(|lease| &lease.queue);
        let first = queues.next()?;
        queues.all(|queue| queue == first).then(|| (first.clone(), !items.nacks.is_empty()))
    }

    fn settle(self: &Arc<Self>, key: (QueueName, bool), waiting: Waiting) {
        let mut joins = self.joins();
        let join = joins.entry(key.clone()).or_default();
        let most = if key.1 { NACKS_AT_ONCE } else { ACKS_AT_ONCE };
        join.waiting.push(waiting);
        if join.running < most {
            join.running += 1;
            drop(joins);
            tokio::spawn(settle_joined(self.clone(), key));
        }
    }

    /// As many of the settlements that wait as are joined. None: nothing waits.
    fn next_joined(&self, key: &(QueueName, bool)) -> Option<Vec<Waiting>> {
        let mut joins = self.joins();
        let join = joins.get_mut(key)?;
        if join.waiting.is_empty() {
            join.running -= 1;
            if join.running == 0 {
                joins.remove(key);
            }
            return None;
        }
        let (mut items, mut bytes) = (0, 0);
        let fits = |waiting: &Waiting| {
            let before = items;
            items += waiting.call.items();
            bytes += waiting.call.bytes();
            before == 0 || items <= JOINED_MAX && bytes <= JOINED_BYTES_MAX
        };
        let first = join.waiting.iter().map(fits).take_while(|fits| *fits).count();
        let same = {
            let settings = &join.waiting[0].call.settings;
            join.waiting
                .iter()
                .take(first)
                .take_while(|waiting| Arc::ptr_eq(&waiting.call.settings, settings))
                .count()
        };
        Some(join.waiting.drain(..same).collect())
    }

    // ---- other servers ----

    fn subscribe(self: &Arc<Self>) -> Subscription {
        let shared = self.clone();
        self.storage.subscribe(move |hint| match hint {
            Hint::Ready(queue, jobs) => {
                // What held the queue back here may be over.
                shared.notifier.memory().forget_facts(&queue);
                shared.notifier.available(&queue, usize::try_from(jobs).unwrap_or(usize::MAX));
            }
            Hint::Message(_, token) => {
                let lease = std::str::from_utf8(&token).ok().and_then(Lease::parse);
                shared.notifier.tell(lease.map(Event::CancelRequested).into_iter().collect());
            }
            Hint::Missed => {
                let shared = shared.clone();
                tokio::spawn(async move { drop(shared.look_at(usize::MAX, &mut None).await) });
            }
        })
    }

    /// Looks at some queues: when something is due in them, and what is ready.
    async fn look_at(&self, count: usize, after: &mut Option<QueueName>) -> Result<(), StoreError> {
        let settings = {
            let known = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
            known.upgrade().unwrap_or_default()
        };
        let names = self.storage.clone().queues(after.as_ref(), count.min(10_000)).await?;
        *after = names.last().cloned();
        self.run(settings, 0, Verb::Look(names)).await.map(drop)
    }
}

/// Which queues an answer speaks of: what was found in them must be as durable as what is written. A call that is said again
/// finds what it did the first time, which may not have been confirmed.
enum Confirmed {
    All,
    None,
    These(Vec<QueueName>),
}

impl Confirmed {
    fn of(verb: &Verb) -> Self {
        match verb {
            Verb::Enqueue(_)
            | Verb::Settle(_)
            | Verb::Requeue(_)
            | Verb::Purge(_)
            | Verb::Pause(..)
            | Verb::SetBreaker(..)
            | Verb::Cancel(..)
            | Verb::RunNow(..)
            | Verb::Import(_) => Self::All,
            Verb::Claim(claim) => Self::These(leases(&claim.settle).map(queue_of).collect()),
            Verb::Undelivered(_)
            | Verb::Sweep(..)
            | Verb::NextDue(_)
            | Verb::Look(_)
            | Verb::Forget(_)
            | Verb::Breakers(_) => Self::None,
        }
    }

    fn has(&self, queue: &QueueName) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::These(queues) => queues.contains(queue),
        }
    }
}

fn queue_of(lease: &Lease) -> QueueName {
    lease.queue.clone()
}

fn leases(items: &Settlements) -> impl Iterator<Item = &Lease> {
    let acks = items.acks.iter().map(|ack| &ack.lease);
    let nacks = items.nacks.iter().map(|nack| &nack.lease);
    let extends = items.extends.iter().map(|extend| &extend.lease);
    acks.chain(nacks).chain(extends)
}

fn request_id(verb: &Verb) -> String {
    match verb {
        Verb::Claim(claim) => claim.request_id.clone(),
        _ => String::new(),
    }
}

async fn settle_joined(shared: Arc<Shared>, key: (QueueName, bool)) {
    while let Some(joined) = shared.next_joined(&key) {
        let mut parts = Vec::with_capacity(joined.len());
        let mut replies = Vec::with_capacity(joined.len());
        let mut all: Option<Call> = None;
        for Waiting { call, reply, permit } in joined {
            parts.push(call.parts());
            replies.push((reply, permit));
            match &mut all {
                Some(all) => all.join(call),
                None => all = Some(call),
            }
        }
        let Some(call) = all else { continue };
        match shared.run(call.settings, call.seed, call.verb).await {
            Ok(answer) if parts.len() > 1 => {
                for ((reply, _), answer) in replies.into_iter().zip(answer.split(&parts)) {
                    reply.send(Ok(answer));
                }
            }
            Ok(answer) => {
                if let Some((reply, _)) = replies.pop() {
                    reply.send(Ok(answer));
                }
            }
            Err(error) => replies.into_iter().for_each(|(reply, _)| reply.send(Err(error.clone()))),
        }
    }
}

/// A hint may be lost, and a server may die with what it meant to do: a slow look makes up for both.
async fn look(shared: Arc<Shared>) {
    let mut after = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        // The next look makes up for one that fails.
        drop(shared.look_at(LOOKED_AT_ONCE, &mut after).await);
    }
}

impl Host for RedisHost {
    fn now(&self) -> Timestamp {
        self.shared.storage.now()
    }

    fn follow(&self, settings: &Arc<Settings>) {
        self.shared.follow(settings);
    }

    fn submit(&self, call: Call, reply: Reply) -> Result<(), StoreError> {
        let permit = self.shared.permit()?;
        if let Some(key) = Shared::join_key(&call) {
            self.shared.settle(key, Waiting { call, reply, permit });
            return Ok(());
        }
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let _permit = permit;
            reply.send(shared.run(call.settings, call.seed, call.verb).await);
        });
        Ok(())
    }

    async fn view(&self, view: View) -> Result<Viewed, StoreError> {
        let _permit = self.shared.permit()?;
        queue::view(&mut self.shared.storage.clone(), view).await
    }

    fn health(&self) -> Health {
        if self.shared.calls.is_closed() {
            return Health::Stopped("the store is closed".into());
        }
        match self.shared.storage.halted() {
            Some(why) => Health::Stopped(why),
            None => self.shared.storage.redis().health(),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let storage = &self.shared.storage;
        let found = storage.found().warnings.iter().cloned();
        let noticed = storage.redis().notices().iter().map(ToString::to_string).collect::<Vec<_>>();
        found.chain(noticed).chain(storage.warning()).collect()
    }

    fn outages(&self) -> u64 {
        self.shared.storage.redis().outages()
    }

    async fn close(&self) {
        // What was begun is finished; what comes after is refused.
        drop(self.shared.calls.acquire_many(CALLS_MAX).await);
        self.shared.calls.close();
        drop(self.shared.storage.leave().await);
    }
}
