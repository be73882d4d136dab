//! What the server is made of: the store below the broker, and gRPC above it.

use crate::{
    broker::{Broker, Wakeups},
    config::{Config, Durability},
    env::SystemClock,
    grpc::{self, ServerFacts},
    store::{
        Store,
        embedded::{Embedded, OpenError, Options},
    },
};
use std::{future::Future, sync::Arc};
use tokio::net::TcpListener;

pub(super) fn open_store(config: &Config, wakeups: Arc<Wakeups>) -> Result<Embedded, OpenError> {
    let options =
        Options { sync: config.durability == Durability::Fsync, ..Options::new(&config.data) };
    Embedded::open(options, Arc::new(SystemClock::new()), wakeups)
}

/// Half of the file descriptors that the system allows: the store and its readers need some, too.
fn connections_max() -> usize {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let half =
        allowed.map_or(usize::MAX, |allowed| usize::try_from(allowed / 2).unwrap_or(usize::MAX));
    half.min(ServerFacts::default().connections_max)
}

pub(super) async fn serve_grpc<S: Store>(
    broker: Arc<Broker<S>>,
    listener: TcpListener,
    config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), String> {
    let facts = ServerFacts {
        durability: config.durability.as_str().into(),
        warnings: config.warnings,
        shutdown_within: config.shutdown_timeout,
        connections_max: connections_max(),
        ..ServerFacts::default()
    };
    grpc::serve(broker, listener, facts, stop).await.map_err(|error| error.to_string())
}
