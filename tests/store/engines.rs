//! The engines that the suite runs on, and how each is opened.

use crate::redis_server;
use redrive::{
    domain::store_clock::{Kept, StoreClock},
    env::{Clock, SystemClock},
    queue::{
        self, StoreLimits,
        hosts::{
            memory::MemoryStore,
            redis::RedisStore,
            sqlite::{SqliteStore, verify_directory},
        },
    },
    store::{
        Ask, AuditReport, Listener, Settlements, Store,
        memory::MemoryStorage,
        redis::{
            self, Durability, TimeSource,
            connection::{Address, ConnectionOptions},
        },
        sqlite,
    },
};
use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// A store that the suite can open.
pub(crate) trait Engine: Store + Sized {
    /// What a closed breaker has counted is known over a restart.
    const KEEPS_TALLY: bool;

    fn open(
        place: &Place,
        clock: Arc<dyn Clock>,
        told: Arc<dyn Listener>,
    ) -> impl Future<Output = Result<Self, String>>;

    /// What `redrive audit` says.
    fn audit(&self, place: &Place) -> impl Future<Output = AuditReport>;

    /// Ends when everything that was asked before has been answered.
    fn catch_up(&self, ask: Ask) -> impl Future<Output = ()>;
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
    const KEEPS_TALLY: bool = false;

    async fn open(
        place: &Place,
        clock: Arc<dyn Clock>,
        told: Arc<dyn Listener>,
    ) -> Result<Self, String> {
        let options = sqlite::Options {
            durability: sqlite::Durability::None,
            reserve_bytes: 0,
            ..sqlite::Options::new(&place.directory)
        };
        let limits = StoreLimits { queues: place.max_queues, ..Self::default_limits() };
        let opened = Self::open_sqlite(options, limits, clock, told).await;
        opened.map_err(|error| error.to_string())
    }

    async fn audit(&self, place: &Place) -> AuditReport {
        let report = verify_directory(&place.directory, &SystemClock::new(), &mut |_| {});
        report.expect("a store that is open").expect("the store is well")
    }

    async fn catch_up(&self, ask: Ask) {
        self.settle(ask, Settlements::default()).await.expect("the store is well");
    }
}

impl Engine for MemoryStore {
    const KEEPS_TALLY: bool = true;

    async fn open(
        place: &Place,
        clock: Arc<dyn Clock>,
        told: Arc<dyn Listener>,
    ) -> Result<Self, String> {
        let storage = match lock(&place.memory).take() {
            Some(before) => before.restarted(clock),
            None => MemoryStorage::new(clock),
        };
        *lock(&place.memory) = Some(storage.clone());
        let limits = StoreLimits { queues: place.max_queues, leases: 1_000_000 };
        MemoryStore::open_memory(storage, limits, told).await.map_err(|error| error.to_string())
    }

    async fn audit(&self, place: &Place) -> AuditReport {
        let mut storage = lock(&place.memory).clone().expect("a store that is open");
        queue::verify(&mut storage, &mut |_| {}).await.expect("the store is well")
    }

    async fn catch_up(&self, ask: Ask) {
        self.settle(ask, Settlements::default()).await.expect("the store is well");
    }
}

impl Engine for RedisStore {
    const KEEPS_TALLY: bool = true;

    async fn open(
        place: &Place,
        clock: Arc<dyn Clock>,
        told: Arc<dyn Listener>,
    ) -> Result<Self, String> {
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
        let opened = Self::open_redis(options, place.max_queues, false, clock, told).await;
        opened.map_err(|error| error.to_string())
    }

    async fn audit(&self, _: &Place) -> AuditReport {
        let mut storage = self.storage().clone();
        queue::verify(&mut storage, &mut |_| {}).await.expect("the store is well")
    }

    async fn catch_up(&self, ask: Ask) {
        self.rest().await;
        self.settle(ask, Settlements::default()).await.expect("the store is well");
    }
}
