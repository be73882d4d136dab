//! What the server is made of: the store below, and gRPC above it.

use crate::config::{Config, Durability};
use crate::domain::{Bounds, Limits};
use crate::env::SystemClock;
use crate::grpc::{self, ServerFacts};
use crate::queue::hosts::redis::RedisStore;
use crate::queue::hosts::sqlite::SqliteStore;
use crate::queue::{Host, Setup};
use crate::service::Service;
use crate::store::{redis, sqlite};
use std::{future::Future, sync::Arc};
use tokio::net::TcpListener;

pub(super) async fn open_sqlite(config: &Config, setup: Setup) -> Result<SqliteStore, sqlite::OpenError> {
    let mut options = sqlite::Options::new(&config.data);
    if let Durability::Embedded(level) = config.durability {
        options.durability = level;
    }
    let limits = SqliteStore::default_limits();
    SqliteStore::open_sqlite(options, limits, Arc::new(SystemClock::new()), setup).await
}

pub(super) async fn open_redis(
    config: &Config, address: redis::Address, setup: Setup,
) -> Result<RedisStore, redis::OpenError> {
    let mut options = redis::Options::new(address);
    options.server = format!("{} on {}", config.listen, machine());
    if let Durability::Redis(level) = config.durability {
        options.connection.durability = level;
    }
    let clock = Arc::new(SystemClock::new());
    RedisStore::open_redis(options, Limits::default().queues, true, clock, setup).await
}

/// What the other servers know this machine by.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "an unnamed machine".to_owned(), |name| name.trim().to_owned())
}

/// Half of the file descriptors that the system allows: the store and its readers need some, too.
fn connections_max(most: usize) -> usize {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let half = allowed.map_or(usize::MAX, |allowed| usize::try_from(allowed / 2).unwrap_or(usize::MAX));
    half.min(most)
}

pub(super) async fn serve_grpc<H: Host>(
    service: Arc<Service<H>>, listener: TcpListener, config: Config, stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), String> {
    let facts = ServerFacts {
        engine: if config.redis.is_some() { "redis" } else { "embedded" }.into(),
        durability: config.durability.to_string(),
        warnings: config.warnings,
        shutdown_within: config.shutdown_timeout,
        bounds: Bounds { connections: connections_max(config.bounds.connections), ..config.bounds },
    };
    grpc::serve(service, listener, facts, stop).await.map_err(|error| error.to_string())
}
