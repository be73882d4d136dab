//! The engine for many servers: Redis holds the queues, and any number of servers without a state of their own work on them.
//!
//! Three scripts do it: `read`, `apply` and `take`, on the keys of one queue, which are in one slot. They know tables,
//! indexes and fences; what is in them is decided in Rust.

mod catalogue;
mod clock;
mod columns;
pub mod connection;
mod keys;
mod membership;
mod pubsub;
mod reply;
mod scripts;
mod storage;
mod store_state;
mod take;

pub use clock::TimeSource;
pub use membership::Digest;
pub use pubsub::{Hint, Subscription};

pub use connection::{Address, Found, Unfit, durability::Durability};

use super::StoreError;
use crate::{
    domain::ids::QueueName,
    env::{self, Clock},
};
use catalogue::Catalogue;
use clock::StoreTime;
use connection::{ConnectionOptions, Redis};
use keys::Namespace;
use membership::{HEARTBEAT, Membership};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use storage::ScanKeys;
use store_state::StoreState;
use tokio::task::AbortHandle;

#[derive(Clone, Debug)]
pub struct Options {
    pub address: Address,
    pub connection: ConnectionOptions,
    /// What all keys begin with.
    pub namespace: String,
    pub time: TimeSource,
    /// What the other servers call this one.
    pub server: String,
    /// Samples TIME, and compares the generation and the format of the store, once a second.
    pub heartbeat: bool,
}

impl Options {
    pub fn new(address: Address) -> Self {
        Self {
            address,
            connection: ConnectionOptions::default(),
            namespace: "redrive".into(),
            time: TimeSource::Redis,
            server: format!("process {}", std::process::id()),
            heartbeat: true,
        }
    }
}

/// Why a store cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// It holds something that this version does not work with.
    #[error("{0}")]
    Refused(String),
}

/// A handle on the engine; clones share everything.
#[derive(Clone, Debug)]
pub struct RedisStorage {
    core: Arc<Core>,
    /// What the servers were when the store was opened.
    found: Arc<Found>,
    scan: Option<ScanKeys>,
    /// Queues that this handle has read from since it last wrote to them, where writes are confirmed.
    unconfirmed: HashSet<QueueName>,
    _heartbeat: Option<Arc<Heartbeat>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Core {
    redis: Redis,
    names: Namespace,
    options: Options,
    time: StoreTime,
    state: StoreState,
    catalogue: Catalogue,
    membership: Membership,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Ends with the last handle.
#[derive(Debug)]
struct Heartbeat(AbortHandle);

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Heartbeat {
    fn start(core: Arc<Core>) -> Self {
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(HEARTBEAT).await;
                // The next one makes up for one that fails; what halts the server stays noted.
                drop(core.heartbeat().await);
            }
        });
        Self(task.abort_handle())
    }
}

impl RedisStorage {
    pub async fn open(options: Options, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let unfit = |error: StoreError| OpenError::Unfit(error.into());
        let redis = Redis::open(&options.address, &options.connection).await.map_err(unfit)?;
        let found = Arc::new(redis.look().await?);
        let core = Arc::new(Core {
            redis,
            names: Namespace::new(&options.namespace),
            time: StoreTime::new(options.time.clone(), clock),
            options,
            state: StoreState::default(),
            catalogue: Catalogue::default(),
            membership: Membership::new(env::random()),
        });
        if let Err(error) = core.open_store().await {
            return Err(core.halted().map_or_else(|| unfit(error), OpenError::Refused));
        }
        let heartbeat = core.options.heartbeat.then(|| Arc::new(Heartbeat::start(core.clone())));
        Ok(Self { core, found, scan: None, unconfirmed: HashSet::new(), _heartbeat: heartbeat })
    }

    /// The connections: health, warnings and outages.
    pub fn redis(&self) -> &Redis {
        &self.core.redis
    }

    /// What the servers were when the store was opened.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Why writes are refused: Redis was emptied or replaced, or a newer version has changed the format.
    pub fn halted(&self) -> Option<String> {
        self.core.halted()
    }

    /// Takes the store as it is now, after a halt. What this server knew of the former one is dropped.
    pub async fn open_again(&self) -> Result<(), StoreError> {
        self.core.open_store().await
    }

    /// Calls `subscriber` with every hint until the subscription is dropped. It must not block.
    pub fn subscribe(&self, subscriber: impl Fn(Hint) + Send + Sync + 'static) -> Subscription {
        self.core.subscribe(subscriber)
    }

    /// Sends a message to the subscribers of all servers, this one included. It may get lost.
    pub async fn publish(&self, queue: &QueueName, message: &[u8]) -> Result<(), StoreError> {
        self.core.publish(queue, message).await
    }

    /// How many servers subscribe to this namespace, in any database of this Redis.
    pub async fn subscribers(&self) -> Result<u64, StoreError> {
        self.core.subscribers().await
    }

    /// The other servers are told of this one and of its settings, from the next heartbeat on.
    pub fn join(&self, settings: Digest) {
        self.core.membership.join(settings);
    }

    /// Renews this server's note and samples TIME now.
    pub async fn heartbeat(&self) -> Result<(), StoreError> {
        self.core.heartbeat().await
    }

    /// This server shuts down.
    pub async fn leave(&self) -> Result<(), StoreError> {
        self.core.leave().await
    }

    /// That servers have different settings, if they do.
    pub fn warning(&self) -> Option<String> {
        self.core.membership.warning()
    }
}
