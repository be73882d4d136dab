//! What the server is made of: the store below the broker, and gRPC above it.

use crate::{
    broker::{Broker, Wakeups},
    config::{Config, Durability},
    env::SystemClock,
    store::{
        Store,
        embedded::{Embedded, OpenError, Options},
    },
};
use std::{future::Future, sync::Arc};
use tokio::net::TcpListener;

pub(super) fn open_store(config: &Config, wakeups: Arc<Wakeups>) -> Result<Embedded, OpenError> {
    let options = Options {
        sync: config.durability == Durability::Fsync,
        ..Options::new(&config.data)
    };
    Embedded::open(options, Arc::new(SystemClock::new()), wakeups)
}

/// INTEGRATION: `grpc::serve(broker, listener, facts, stop)` goes here, its facts from the configuration: durability,
/// warnings, shutdown timeout.
pub(super) async fn serve_grpc<S: Store>(
    _broker: Arc<Broker<S>>,
    _listener: TcpListener,
    _config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), String> {
    stop.await;
    Ok(())
}
