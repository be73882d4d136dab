//! The engine on Redis: one server, a Cluster, and a Valkey that confirms every write.

use crate::{engines::TestEngine, redis_server};
use redrive::domain::{Kept, StoreClock};
use redrive::env::{Clock, ManualClock};
use redrive::store::redis::connection::{Address, ConnectionOptions};
use redrive::store::redis::{Durability, Options, RedisStorage, TimeSource};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) struct OnRedis<S> {
    storage: RedisStorage,
    clock: Arc<ManualClock>,
    namespace: String,
    /// Store time goes on over a restart, as that of the other engines does.
    kept: Arc<Mutex<Option<Kept>>>,
    site: std::marker::PhantomData<S>,
}

pub(crate) type OnOne = OnRedis<One>;
pub(crate) type OnCluster = OnRedis<Cluster>;
pub(crate) type OnValkey = OnRedis<Valkey>;

/// Which servers.
pub(crate) trait Site {
    const CASES: u32;

    fn address() -> &'static str;

    fn durability() -> Durability {
        Durability::Primary
    }
}

pub(crate) struct One;
pub(crate) struct Cluster;
pub(crate) struct Valkey;

impl Site for One {
    const CASES: u32 = 80;

    fn address() -> &'static str {
        redis_server::shared().address()
    }
}

impl Site for Cluster {
    const CASES: u32 = 24;

    fn address() -> &'static str {
        redis_server::cluster().address()
    }
}

impl Site for Valkey {
    const CASES: u32 = 24;

    fn address() -> &'static str {
        redis_server::valkey().address()
    }

    fn durability() -> Durability {
        Durability::Fsync(0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Site> OnRedis<S> {
    async fn start(namespace: String, clock: Arc<ManualClock>, kept: Arc<Mutex<Option<Kept>>>) -> Self {
        let store_clock = Mutex::new(StoreClock::start(*lock(&kept), clock.read()));
        let (local, keep) = (clock.clone(), kept.clone());
        let time = TimeSource::Given(Arc::new(move || {
            let mut store_clock = lock(&store_clock);
            let now = store_clock.now(local.read());
            *lock(&keep) = Some(store_clock.kept());
            now
        }));
        let durability = S::durability();
        let options = Options {
            namespace: namespace.clone(),
            time,
            heartbeat: false,
            connection: ConnectionOptions { durability, ..ConnectionOptions::default() },
            ..Options::new(Address::parse(S::address()).unwrap())
        };
        let storage = RedisStorage::open(options, clock.clone()).await.unwrap();
        Self { storage, clock, namespace, kept, site: std::marker::PhantomData }
    }
}

impl<S: Site> TestEngine for OnRedis<S> {
    type Storage = RedisStorage;

    const KEEPS_OUTCOMES: bool = true;
    // A lease costs Redis no memory of the server's.
    const BOUNDS_LEASES: bool = false;
    const CASES: u32 = S::CASES;

    async fn open(clock: Arc<ManualClock>) -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        let namespace = format!("test-{}", STORES.fetch_add(1, Ordering::Relaxed));
        Self::start(namespace, clock, Arc::default()).await
    }

    async fn reopen(self) -> Self {
        Self::start(self.namespace, self.clock, self.kept).await
    }

    fn storage(&mut self) -> &mut RedisStorage {
        &mut self.storage
    }
}
