//! The engines that the suite runs on, and how each is opened.

use crate::redis_server;
use redrive::domain::{Kept, StoreClock};
use redrive::env::{Clock, SystemClock};
use redrive::queue::Settlements;
use redrive::queue::VerifyReport;
use redrive::queue::hosts::memory::{MemoryHost, MemoryStore};
use redrive::queue::hosts::redis::{RedisHost, RedisStore};
use redrive::queue::hosts::sqlite::{SqliteHost, SqliteStore, verify_directory};
use redrive::queue::{self, Host, Queues, Setup, StoreLimits};
use redrive::store::memory::MemoryStorage;
use redrive::store::redis::connection::{Address, ConnectionOptions};
use redrive::store::redis::{self, Durability, TimeSource};
use redrive::store::sqlite;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A store that the suite can open.
pub(crate) trait Engine: Sized + Send + Sync + 'static {
    type Host: Host;

    /// What a closed breaker has counted is known over a restart.
    const KEEPS_OUTCOME_STATS: bool;

    fn open(
        place: &Place, clock: Arc<dyn Clock>, setup: Setup,
    ) -> impl Future<Output = Result<Queues<Self::Host>, String>>;

    /// What `redrive verify` says.
    fn verify(store: &Queues<Self::Host>, place: &Place) -> impl Future<Output = VerifyReport>;

    /// Ends when everything that was asked before has been answered.
    fn catch_up(store: &Queues<Self::Host>) -> impl Future<Output = ()>;
}

/// Which Redis it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    One,
    /// Queues are on different servers.
    Cluster,
    /// Every write is waited for until it is on the disk.
    Valkey,
}

/// Where and how a store is opened.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
    pub(crate) max_queues: usize,
    site: Site,
    /// What tells the tests apart on the Redis that they share.
    pub(crate) namespace: String,
    /// The time that the tests hand to Redis: as the embedded store keeps it, also over a restart.
    kept: Arc<Mutex<Option<Kept>>>,
    /// What a store in memory has, also over a restart.
    memory: Mutex<Option<MemoryStorage>>,
}

impl Place {
    pub(crate) fn new(directory: &Path, site: Site) -> Self {
        static PLACES: AtomicU64 = AtomicU64::new(0);
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        Self {
            directory: directory.to_owned(),
            max_queues: 10_000,
            site,
            namespace: format!("test-{number}"),
            kept: Arc::default(),
            memory: Mutex::default(),
        }
    }

    /// A key of a queue, by its letter.
    pub(crate) fn key(&self, queue: &str, letter: &str) -> String {
        format!("{}:{{{queue}}}:{letter}", self.namespace)
    }

    fn time(&self, clock: Arc<dyn Clock>) -> TimeSource {
        let kept = self.kept.clone();
        let begun = *lock(&kept);
        let store_clock = Mutex::new(StoreClock::start(begun, clock.read()));
        TimeSource::Given(Arc::new(move || {
            let mut store_clock = lock(&store_clock);
            let now = store_clock.now(clock.read());
            *lock(&kept) = Some(store_clock.kept());
            now
        }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine for SqliteStore {
    type Host = SqliteHost;
    const KEEPS_OUTCOME_STATS: bool = false;

    async fn open(place: &Place, clock: Arc<dyn Clock>, setup: Setup) -> Result<Self, String> {
        let options = sqlite::Options {
            durability: sqlite::Durability::None,
            reserve_bytes: 0,
            ..sqlite::Options::new(&place.directory)
        };
        let limits = StoreLimits { queues: place.max_queues, ..Self::default_limits() };
        let opened = Self::open_sqlite(options, limits, clock, setup).await;
        opened.map_err(|error| error.to_string())
    }

    async fn verify(_: &Self, place: &Place) -> VerifyReport {
        let report = verify_directory(&place.directory, &SystemClock::new(), &mut |_| {});
        report.expect("a store that is open").expect("the store is well")
    }

    async fn catch_up(store: &Self) {
        store.settle(Settlements::default()).await.expect("the store is well");
    }
}

impl Engine for MemoryStore {
    type Host = MemoryHost;
    const KEEPS_OUTCOME_STATS: bool = true;

    async fn open(place: &Place, clock: Arc<dyn Clock>, setup: Setup) -> Result<Self, String> {
        let storage = match lock(&place.memory).take() {
            Some(before) => before.restarted(clock),
            None => MemoryStorage::new(clock),
        };
        *lock(&place.memory) = Some(storage.clone());
        let limits =
            StoreLimits { queues: place.max_queues, leases: 1_000_000, finished_keys: StoreLimits::FINISHED_KEYS };
        MemoryStore::open_memory(storage, limits, setup).await.map_err(|error| error.to_string())
    }

    async fn verify(_: &Self, place: &Place) -> VerifyReport {
        let mut storage = lock(&place.memory).clone().expect("a store that is open");
        queue::verify(&mut storage, &mut |_| {}).await.expect("the store is well")
    }

    async fn catch_up(store: &Self) {
        store.settle(Settlements::default()).await.expect("the store is well");
    }
}

impl Engine for RedisStore {
    type Host = RedisHost;
    const KEEPS_OUTCOME_STATS: bool = true;

    async fn open(place: &Place, clock: Arc<dyn Clock>, setup: Setup) -> Result<Self, String> {
        let (server, durability) = match place.site {
            Site::One => (redis_server::shared(), Durability::Primary),
            Site::Cluster => (redis_server::cluster(), Durability::Primary),
            Site::Valkey => (redis_server::valkey(), Durability::Fsync(0)),
        };
        let options = redis::Options {
            namespace: place.namespace.clone(),
            time: place.time(clock.clone()),
            heartbeat: false,
            connection: ConnectionOptions { durability, ..ConnectionOptions::default() },
            ..redis::Options::new(Address::parse(server.address())?)
        };
        // There is no other server, and what is told is compared.
        let opened = Self::open_redis(options, place.max_queues, false, clock, setup).await;
        opened.map_err(|error| error.to_string())
    }

    async fn verify(store: &Self, _: &Place) -> VerifyReport {
        let mut storage = store.storage().clone();
        queue::verify(&mut storage, &mut |_| {}).await.expect("the store is well")
    }

    async fn catch_up(store: &Self) {
        store.rest().await;
        store.settle(Settlements::default()).await.expect("the store is well");
    }
}
