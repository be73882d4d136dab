//! A store on Redis: every call is a task, and settlements that wait for the same queue are joined into one.

use crate::domain::{Lease, QueueName, Settings, Timestamp};
use crate::env::Clock;
use crate::lock::lock;
use crate::queue::Settlements;
use crate::queue::{self, Call, Event, Host, Notifier, Queues, Reply, Setup, StoreLimits, Verb, View, Viewed};
use crate::store::redis::{Hint, OpenError, Options, RedisStorage, Task};
use crate::store::storage::Reads;
use crate::store::{Health, Result, Room, Taken};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Reads at the same time.
const READS_MAX: usize = 16;
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
/// Every so many looks other servers learn which queues this one's workers ask for.
const CLAIMS_NOTED_AFTER: u32 = 3;

/// A store that many servers share.
pub type RedisStore = Queues<RedisHost>;

pub struct RedisHost {
    shared: Arc<Shared>,
    /// The subscription to hints of other servers, and the looks at their queues.
    _watch: Option<[Task; 2]>,
}

struct Shared {
    storage: RedisStorage,
    notifier: Arc<Notifier>,
    limits: StoreLimits,
    room: Room,
    reading: Semaphore,
    joins: Mutex<HashMap<(QueueName, bool), Joins>>,
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
    taken: Taken,
}

impl RedisStore {
    /// `watch`: subscribes to what other servers do, and looks at the queues now and then.
    pub async fn open_redis(
        options: Options, max_queues: usize, watch: bool, clock: Arc<dyn Clock>, setup: Setup,
    ) -> Result<Self, OpenError> {
        let storage = RedisStorage::open(options, clock).await?;
        let clock = storage.clone();
        let notifier = queue::notifier(setup, move || clock.now());
        let notifier = notifier.map_err(|error| OpenError::Refused(error.to_string()))?;
        let shared = Arc::new(Shared {
            storage,
            notifier: notifier.clone(),
            limits: StoreLimits { queues: max_queues, leases: usize::MAX, finished_keys: StoreLimits::FINISHED_KEYS },
            room: Room::new("Redis"),
            reading: Semaphore::new(READS_MAX),
            joins: Mutex::default(),
        });
        let watch = watch.then(|| [shared.subscribe(), Task::spawn(look(shared.clone()))]);
        let host = RedisHost { shared, _watch: watch };
        Self::open(host, notifier).await.map_err(|error| OpenError::Refused(error.to_string()))
    }

    pub fn storage(&self) -> &RedisStorage {
        &self.host().shared.storage
    }

    /// Waits until everything that was begun has ended.
    pub async fn rest(&self) {
        self.host().shared.room.is_empty().await;
    }
}

impl Shared {
    async fn run(&self, settings: Arc<Settings>, seed: u64, verb: Verb) -> Result<queue::Answer> {
        let mut storage = self.storage.clone();
        let mut cx = self.notifier.context(settings, seed, self.limits);
        let spoken_of = spoken_of(&verb);
        let request_id = if let Verb::Claim(claim) = &verb { claim.request_id.clone() } else { String::new() };
        let mut answer = queue::run(&mut storage, &mut cx, verb).await;
        if answer.is_ok()
            && let Err(error) =
                storage.confirm_reads(|queue| spoken_of.as_ref().is_none_or(|all| all.contains(queue))).await
            && let Ok(queue::Answer::Claim(Some(mut claimed))) = std::mem::replace(&mut answer, Err(error))
        {
            // Dropped here, its jobs return.
            claimed.guard(&request_id, &self.notifier);
        }
        for event in &cx.events {
            if let Event::CancelRequested(lease) = event {
                // Its worker may wait at another server; a message that is lost is made up for by the next Extend.
                let token = lease.to_string();
                log_failure("a hint of a cancellation", self.storage.publish(&lease.queue, token.as_bytes()).await);
            }
        }
        self.notifier.publish(cx.events);
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
        let mut joins = lock(&self.joins);
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
        let mut joins = lock(&self.joins);
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
        let settings = &join.waiting[0].call.settings;
        let same = |waiting: &&Waiting| Arc::ptr_eq(&waiting.call.settings, settings);
        let first = join.waiting.iter().take_while(same).map(fits).take_while(|fits| *fits).count();
        Some(join.waiting.drain(..first).collect())
    }

    // ---- other servers ----

    fn subscribe(self: &Arc<Self>) -> Task {
        let shared = self.clone();
        self.storage.subscribe(move |hint| match hint {
            Hint::Ready(queue, jobs) => {
                // What held the queue back here may be over.
                shared.notifier.memory().forget_facts(&queue);
                let jobs = usize::try_from(jobs).unwrap_or(usize::MAX);
                shared.notifier.publish(vec![Event::Available { queue, jobs }]);
            }
            Hint::Message(_, token) => {
                let lease = std::str::from_utf8(&token).ok().and_then(Lease::parse);
                shared.notifier.publish(lease.map(Event::CancelRequested).into_iter().collect());
            }
            Hint::Missed => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    log_failure("a look at all queues", shared.look_at(usize::MAX, &mut None).await);
                });
            }
        })
    }

    /// Looks at some queues: when something is due in them, and what is ready.
    async fn look_at(&self, count: usize, after: &mut Option<QueueName>) -> Result<()> {
        let names = self.storage.clone().queues(after.as_ref(), count.min(10_000)).await?;
        *after = names.last().cloned();
        self.run(self.notifier.settings(), 0, Verb::Look(names)).await.map(drop)
    }

    async fn note_claims(&self) -> Result<()> {
        let claims = self.notifier.memory().new_claims(self.storage.now());
        self.run(self.notifier.settings(), 0, Verb::NoteClaims(claims)).await.map(drop)
    }
}

/// The queues that an answer speaks of; none: all. What was found in them must be as durable as what is written: a call that
/// is said again finds what it did the first time, which may not have been confirmed.
fn spoken_of(verb: &Verb) -> Option<Vec<QueueName>> {
    match verb {
        Verb::Claim(claim) => Some(leases(&claim.settle).map(|lease| lease.queue.clone()).collect()),
        Verb::Undelivered(_) | Verb::Sweep(..) | Verb::NextDue(_) | Verb::Look(_) => Some(Vec::new()),
        Verb::Register(_) | Verb::Forget(_) | Verb::Breakers(_) | Verb::NoteClaims(_) => Some(Vec::new()),
        _ => None,
    }
}

fn leases(items: &Settlements) -> impl Iterator<Item = &Lease> {
    let acks = items.acks.iter().map(|ack| &ack.lease);
    let nacks = items.nacks.iter().map(|nack| &nack.lease);
    let extensions = items.extensions.iter().map(|extend| &extend.lease);
    acks.chain(nacks).chain(extensions)
}

/// What comes later makes up for it.
fn log_failure(what: &str, done: Result<()>) {
    if let Err(error) = done {
        tracing::debug!("{what} has failed: {error}");
    }
}

async fn settle_joined(shared: Arc<Shared>, key: (QueueName, bool)) {
    while let Some(joined) = shared.next_joined(&key) {
        let parts: Vec<_> = joined.iter().map(|waiting| waiting.call.parts()).collect();
        let mut replies = Vec::with_capacity(joined.len());
        let calls = joined.into_iter().map(|waiting| {
            replies.push((waiting.reply, waiting.taken));
            waiting.call
        });
        let all = calls.reduce(|mut all, call| {
            all.join(call);
            all
        });
        let Some(call) = all else { continue };
        match shared.run(call.settings, call.seed, call.verb).await {
            Ok(answer) if parts.len() > 1 => {
                for ((reply, _), answer) in replies.into_iter().zip(answer.split(&parts)) {
                    reply.send(Ok(answer));
                }
            }
            Ok(answer) => drop(replies.pop().map(|(reply, _)| reply.send(Ok(answer)))),
            Err(error) => replies.into_iter().for_each(|(reply, _)| reply.send(Err(error.clone()))),
        }
    }
}

/// A hint may be lost, and a server may die with what it meant to do: a slow look makes up for both.
async fn look(shared: Arc<Shared>) {
    let mut after = None;
    for looks in 1u32.. {
        tokio::time::sleep(LOOK_EVERY).await;
        log_failure("a look at some queues", shared.look_at(LOOKED_AT_ONCE, &mut after).await);
        if looks % CLAIMS_NOTED_AFTER == 0 {
            log_failure("the note of what workers ask for", shared.note_claims().await);
        }
    }
}

impl Host for RedisHost {
    fn now(&self) -> Timestamp {
        self.shared.storage.now()
    }

    /// The other servers learn of the settings that this one uses.
    fn follow(&self, settings: &Settings) {
        self.shared.storage.join(settings.digest());
    }

    fn submit(&self, call: Call, reply: Reply) -> Result<()> {
        let taken = self.shared.room.take(call.bytes(), call.has_reserve())?;
        if let Some(key) = Shared::join_key(&call) {
            self.shared.settle(key, Waiting { call, reply, taken });
            return Ok(());
        }
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let _taken = taken;
            reply.send(shared.run(call.settings, call.seed, call.verb).await);
        });
        Ok(())
    }

    async fn view(&self, view: View) -> Result<Viewed> {
        let _taken = self.shared.room.take(0, false)?;
        // The others wait: what is read takes memory.
        let _reading = self.shared.reading.acquire().await;
        queue::view(&mut self.shared.storage.clone(), view).await
    }

    async fn needs_newer(&self) -> Option<String> {
        let storage = &self.shared.storage;
        // Otherwise the next heartbeat finds it.
        log_failure("a look at the store's format", storage.heartbeat().await);
        storage.halted()
    }

    fn health(&self) -> Health {
        let closed = self.shared.room.is_closed().then(|| "the store is closed".to_owned());
        let why = closed.or_else(|| self.shared.storage.halted());
        why.map_or_else(|| self.shared.storage.redis().health(), Health::Stopped)
    }

    fn warnings(&self) -> Vec<String> {
        let storage = &self.shared.storage;
        let preflight = storage.preflight().warnings.iter().cloned();
        let failovers = storage.redis().warnings();
        preflight.chain(failovers.iter().map(ToString::to_string)).chain(storage.warning()).collect()
    }

    fn outages(&self) -> u64 {
        self.shared.storage.redis().outages() + self.shared.storage.clock_jumps()
    }

    async fn close(&self) {
        // What was begun is finished; what comes after is refused.
        self.shared.room.is_empty().await;
        self.shared.room.close();
        log_failure("the note that this server leaves", self.shared.storage.leave().await);
    }
}
