//! The engine for many servers: Redis holds the queues, and any number of servers without a state of their own work on them.
//!
//! Three scripts do it: `read`, `apply` and `take`, on the keys of one queue, which are in one slot. They know tables,
//! indexes and fences; what is in them is decided in Rust.

mod catalogue;
pub mod clock;
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
pub use pubsub::Hint;

pub use connection::address::{Access, Tls};
pub use connection::{Address, PreflightError, PreflightReport, Task, durability::Durability};

use super::{Result, StoreError};
use crate::domain::QueueName;
use crate::env::Clock;
use crate::lock::lock;
use catalogue::Catalogue;
use clock::StoreTime;
use connection::{ConnectionOptions, Redis};
use keys::Namespace;
use membership::{HEARTBEAT, Membership};
use std::collections::HashSet;
use std::sync::Arc;
use storage::ScanKeys;
use store_state::StoreState;

#[derive(Clone)]
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
    Preflight(#[from] PreflightError),
    /// It holds something that this version does not work with.
    #[error("{0}")]
    Refused(String),
}

/// A handle on the engine; clones share everything.
#[derive(Clone)]
pub struct RedisStorage {
    core: Arc<Core>,
    scan: Option<ScanKeys>,
    /// Queues that this handle has read from since it last wrote to them, where writes are confirmed.
    unconfirmed: HashSet<QueueName>,
    _heartbeat: Option<Arc<Task>>,
}

struct Core {
    redis: Redis,
    /// What the servers were when the store was opened.
    preflight: PreflightReport,
    names: Namespace,
    options: Options,
    time: StoreTime,
    state: StoreState,
    catalogue: Catalogue,
    membership: Membership,
}

/// Ends with the last handle.
async fn heartbeats(core: Arc<Core>) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        // The next one makes up for one that fails; what halts the server stays noted.
        if let Err(error) = core.heartbeat().await {
            tracing::debug!("a heartbeat has failed: {error}");
        }
    }
}

impl RedisStorage {
    pub async fn open(options: Options, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let unfit = |error: StoreError| OpenError::Preflight(error.into());
        let redis = Redis::open(&options.address, &options.connection).await.map_err(unfit)?;
        let core = Arc::new(Core {
            preflight: redis.preflight().await?,
            redis,
            names: Namespace(options.namespace.clone()),
            time: StoreTime::new(options.time.clone(), clock),
            options,
            state: StoreState::default(),
            catalogue: Catalogue::default(),
            membership: Membership::default(),
        });
        if let Err(error) = core.open_store().await {
            return Err(core.halted().map_or_else(|| unfit(error), OpenError::Refused));
        }
        let heartbeat = core.options.heartbeat.then(|| Arc::new(Task::spawn(heartbeats(core.clone()))));
        Ok(Self { core, scan: None, unconfirmed: HashSet::new(), _heartbeat: heartbeat })
    }

    /// How often the clocks of Redis and this machine have jumped apart.
    pub fn clock_jumps(&self) -> u64 {
        self.core.time.jumps()
    }

    /// The connections: health, warnings and outages.
    pub fn redis(&self) -> &Redis {
        &self.core.redis
    }

    /// What the servers were when the store was opened.
    pub fn preflight(&self) -> &PreflightReport {
        &self.core.preflight
    }

    /// Why writes are refused: Redis was emptied or replaced, or a newer version has changed the format.
    pub fn halted(&self) -> Option<String> {
        self.core.halted()
    }

    /// Renews this server's note and samples TIME now.
    pub async fn heartbeat(&self) -> Result<()> {
        self.core.heartbeat().await
    }
}
