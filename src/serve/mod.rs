//! The server put together: log, listener, store, service, gRPC, signals.

mod banner;
mod engine;
mod listen;
mod logging;
mod reload;
mod stop;

pub use banner::reachable;

use crate::config::{Config, Exposed, Overrides};
use crate::domain::Limits;
use crate::queue::{Host, Queues, Setup, Subscribers};
use crate::service::{EventLog, Service, Waiters};
use crate::store::{redis, sqlite};
use std::io::{self, Write};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Exposed(#[from] Exposed),
    #[error("RUST_LOG={directives:?} cannot be read: {why}")]
    LogFilter { directives: String, why: String },
    #[error("{0}")]
    Listen(String),
    #[error("jobs cannot be kept in Redis: {0}")]
    Redis(#[from] redis::OpenError),
    #[error("{0}{flag}", flag = flag_for(.0))]
    Store(#[from] sqlite::OpenError),
    #[error("the server has stopped by itself: {0}")]
    Server(String),
    #[error("the system refuses what the server needs: {0}")]
    System(#[from] io::Error),
}

/// How serve is told to use another directory.
fn flag_for(error: &sqlite::OpenError) -> &'static str {
    match error {
        sqlite::OpenError::Directory { error, .. } if error.kind() == io::ErrorKind::ResourceBusy => " with --data",
        _ => "",
    }
}

impl Error {
    /// The operator's settings are the cause, not the state of the machine.
    pub fn is_of_config(&self) -> bool {
        matches!(self, Self::Exposed(_) | Self::LogFilter { .. })
    }
}

/// Serves until a signal stops it. `overrides` are those that `config` was made with: a reload needs them again.
pub fn run(config: Config, overrides: Overrides, warnings: &[String]) -> Result<(), Error> {
    config.check_exposure()?;
    let _flush = logging::start(&config.log)?;
    for warning in warnings.iter().chain(&config.warnings) {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(start(config, overrides))
}

async fn start(config: Config, overrides: Overrides) -> Result<(), Error> {
    // Before the store: a second server by mistake ends here and touches nothing.
    let listener = listen::bind(config.listen).await.map_err(Error::Listen)?;
    let waiters = Arc::new(Waiters::default());
    let subscribers = Subscribers::default().with(waiters.clone()).with(Arc::new(EventLog::default()));
    let new_queues_per_minute = config.bounds.new_queues_per_minute;
    let setup = Setup { settings: config.settings.clone(), subscribers, new_queues_per_minute, ..Setup::default() };
    match config.redis.clone() {
        None => {
            let queues = engine::open_sqlite(&config, setup).await?;
            serve(queues, waiters, listener, config, overrides, &[]).await
        }
        Some(address) => {
            let queues = engine::open_redis(&config, address, setup).await?;
            let preflight = queues.storage().preflight().clone();
            for warning in &preflight.warnings {
                tracing::warn!("{warning}");
            }
            serve(queues, waiters, listener, config, overrides, &preflight.lines).await
        }
    }
}

async fn serve<H: Host>(
    queues: Queues<H>, waiters: Arc<Waiters>, listener: TcpListener, config: Config, overrides: Overrides,
    found: &[(&'static str, String)],
) -> Result<(), Error> {
    let service = Service::new(queues, waiters, Limits::default());
    // Before it is printed that the server runs.
    let mut signals = stop::Signals::new()?;
    let hangup = signal(SignalKind::hangup())?;
    let address = listener.local_addr()?;
    let banner = banner::text(&config, overrides.config.is_some(), address, found);
    let timeout = config.shutdown_timeout;

    let sweeper = tokio::spawn(service.clone().run_sweeper());
    let reminder = tokio::spawn(service.clone().run_reminder());
    let claims = tokio::spawn(service.clone().run_claim_watch());
    let (stopping, mut stopped) = watch::channel(false);
    let stop = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let server = tokio::spawn(engine::serve_grpc(service.clone(), listener, config.clone(), stop));
    let reloads = tokio::spawn(reload::at_every(hangup, service.clone(), config, overrides));
    // The reader may have gone; that is no reason to stop.
    let _ = io::stdout().lock().write_all(banner.as_bytes());
    tracing::info!(%address, version = env!("CARGO_PKG_VERSION"), "serving");

    let signal = async move {
        let name = signals.next().await;
        signals.exit_at_the_next();
        name
    };
    // The service knows the order: health first, then those who wait, then what is under way.
    let begin = || {
        stopping.send_replace(true);
    };
    let ended = stop::when_told(server, sweeper, signal, begin, timeout).await;
    reloads.abort();
    reminder.abort();
    claims.abort();
    service.queues().close().await;
    tracing::info!("stopped");
    ended
}
