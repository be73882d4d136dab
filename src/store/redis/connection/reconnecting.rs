//! One connection to one server, made anew whenever it breaks. While there is none, calls are refused at once.

use super::address::Endpoint;
use super::failover_monitor::{FailoverMonitor, Sample};
use super::fault::Fault;
use super::sentinel::Finder;
use super::stream::{Connector, Driver};
use super::task::Task;
use crate::env;
use redis::{Pipeline, Value, aio::MultiplexedConnection};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// So many calls in a row without an answer, and the connection counts as dead: a socket may drop everything silently.
const TIMEOUTS_MAX: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Every so many heartbeats the sentinels are asked whether this is still the primary.
const ASK_SENTINELS_EVERY: u32 = 3;

pub(super) struct Reconnecting {
    shared: Arc<Shared>,
    _task: Task,
}

struct Shared {
    finder: Finder,
    connector: Arc<Connector>,
    response_timeout: Duration,
    monitor: Option<Arc<FailoverMonitor>>,
    state: watch::Sender<State>,
}

#[derive(Clone)]
enum State {
    /// `tries`: how often in a row it could not be made.
    Down {
        why: String,
        tries: u32,
    },
    Up(Arc<LiveConnection>),
}

/// A connection that works, or did so when it was last used.
pub(super) struct LiveConnection {
    multiplexed: MultiplexedConnection,
    pub(super) endpoint: Endpoint,
    timeouts: AtomicU32,
    /// Why it must be replaced.
    broken: watch::Sender<Option<String>>,
}

/// Why a connection is not to be used.
enum Unusable {
    /// No answer.
    Silent(String),
    No(String),
}

impl Reconnecting {
    /// Begins to connect, in a task of its own. `monitor` gets the server's figures.
    pub(super) fn start(
        finder: Finder, connector: Arc<Connector>, response_timeout: Duration, monitor: Option<Arc<FailoverMonitor>>,
    ) -> Self {
        let down = State::Down { why: "not yet connected".into(), tries: 0 };
        let state = watch::Sender::new(down);
        let shared = Arc::new(Shared { finder, connector, response_timeout, monitor, state });
        let task = Task::spawn(supervise(shared.clone()));
        Self { shared, _task: task }
    }

    /// Waits until it is up, or has been tried in vain.
    pub(super) async fn tried(&self) -> Result<Arc<LiveConnection>, String> {
        let mut state = self.shared.state.subscribe();
        let tried = |state: &State| !matches!(state, State::Down { tries: 0, .. });
        match state.wait_for(tried).await.as_deref() {
            Ok(State::Up(connection)) => Ok(connection.clone()),
            Ok(State::Down { why, .. }) => Err(why.clone()),
            Err(_) => Err("closed".into()),
        }
    }

    /// Why there is no connection now.
    pub(super) fn down(&self) -> Option<String> {
        match &*self.shared.state.borrow() {
            State::Up(_) => None,
            State::Down { why, .. } => Some(why.clone()),
        }
    }

    async fn connection(&self) -> Result<Arc<LiveConnection>, Fault> {
        let mut state = self.shared.state.subscribe();
        let settled = |state: &State| match state {
            // It is broken and not replaced yet: what is sent there now would be in doubt.
            State::Up(connection) => connection.broken.borrow().is_none(),
            State::Down { tries, .. } => *tries > 0,
        };
        // A connection that is being made for the first time, or has just broken, is mostly there in a moment.
        let patience = self.shared.connector.options.connect_timeout;
        let settled = timeout(patience, state.wait_for(settled)).await;
        match settled.as_ref().map(|state| state.as_deref()) {
            Ok(Ok(State::Up(connection))) => Ok(connection.clone()),
            Ok(Ok(State::Down { why, .. })) => Err(Fault::Unsent(why.clone())),
            _ => Err(Fault::Unsent(self.down().unwrap_or_default())),
        }
    }

    /// Sends commands together and in order, and hands back all replies; a server's error is a reply as well.
    pub(super) async fn send(&self, commands: &Pipeline) -> Result<(Arc<LiveConnection>, Vec<Value>), Fault> {
        let connection = self.connection().await?;
        let replies = connection.send(commands).await?;
        Ok((connection, replies))
    }
}

impl LiveConnection {
    async fn send(&self, commands: &Pipeline) -> Result<Vec<Value>, Fault> {
        let mut multiplexed = self.multiplexed.clone();
        match multiplexed.send_packed_commands(commands, 0, commands.len()).await {
            Ok(replies) => {
                self.timeouts.store(0, Ordering::Relaxed);
                Ok(replies)
            }
            Err(error) => {
                let why = format!("Redis at {}: {error}", self.endpoint);
                let timeouts = self.timeouts.fetch_add(1, Ordering::Relaxed) + 1;
                if !error.is_timeout() || timeouts >= TIMEOUTS_MAX {
                    self.mark_broken(&why);
                }
                Err(Fault::Lost(why))
            }
        }
    }

    /// The connection is to be replaced.
    pub(super) fn mark_broken(&self, why: &str) {
        self.broken.send_if_modified(|broken| {
            let first = broken.is_none();
            broken.get_or_insert_with(|| why.to_owned());
            first
        });
    }

    async fn until_broken(&self) -> String {
        let mut broken = self.broken.subscribe();
        let why = broken.wait_for(Option::is_some).await;
        why.ok().and_then(|why| why.clone()).unwrap_or_default()
    }
}

async fn supervise(shared: Arc<Shared>) {
    let mut tries = 0;
    let mut down_since_us = None;
    let now_us = || shared.connector.options.clock.read().boot_us;
    loop {
        match shared.connect().await {
            Ok((connection, driver)) => {
                let endpoint = &connection.endpoint;
                shared.state.send_replace(State::Up(connection.clone()));
                if let (Some(since), Some(monitor)) = (down_since_us, &shared.monitor) {
                    let lost_for = Duration::from_micros(now_us() - since);
                    tracing::info!(%endpoint, "Redis is back after {lost_for:.1?}");
                    monitor.was_lost_for(lost_for);
                }
                let why = tokio::select! {
                    () = driver => format!("Redis at {endpoint} has closed the connection"),
                    why = connection.until_broken() => why,
                    why = shared.beat(&connection) => why,
                };
                down_since_us = Some(now_us());
                tracing::warn!(%endpoint, "the connection to Redis is replaced: {why}");
                tries = 0;
                shared.state.send_replace(State::Down { why, tries });
            }
            Err(why) => {
                tries += 1;
                if tries == 1 || tries % 60 == 0 {
                    tracing::warn!(tries, "Redis cannot be reached: {why}");
                } else {
                    tracing::debug!(tries, "Redis cannot be reached: {why}");
                }
                shared.state.send_replace(State::Down { why, tries });
                sleep(pause(tries, env::random())).await;
            }
        }
    }
}

/// Doubles from try to try, and differs from server to server, so that they do not all come at once.
pub(super) fn pause(tries: u32, random: u32) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << tries.min(10).saturating_sub(1)).min(LONGEST_PAUSE);
    whole / 2 + whole.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
}

impl Shared {
    async fn connect(&self) -> Result<(Arc<LiveConnection>, Driver), String> {
        let endpoint = self.finder.find(&self.connector).await?;
        let at = |why: String| format!("Redis at {endpoint}: {why}");
        let (multiplexed, mut driver) = self.connector.connect(&endpoint, self.response_timeout).await.map_err(at)?;
        let connection = Arc::new(LiveConnection {
            multiplexed,
            endpoint: endpoint.clone(),
            timeouts: AtomicU32::new(0),
            broken: watch::Sender::new(None),
        });
        // Until the driver runs, nothing is sent.
        let looked = tokio::select! {
            looked = self.look(&connection) => looked,
            () = &mut driver => Err(Unusable::Silent("it has closed the connection".into())),
        };
        match looked {
            Ok(()) => Ok((connection, driver)),
            Err(Unusable::Silent(why)) => Err(why),
            Err(Unusable::No(why)) => Err(at(why)),
        }
    }

    /// Checks an idle connection, too; returns why it cannot be used any longer.
    async fn beat(&self, connection: &Arc<LiveConnection>) -> String {
        let mut ticks = interval(self.connector.options.heartbeat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        for beat in 1.. {
            ticks.tick().await;
            match self.look(connection).await {
                Ok(()) => {}
                Err(Unusable::No(why)) => return format!("Redis at {}: {why}", connection.endpoint),
                // Silence is counted by the connection itself: once is nothing.
                Err(Unusable::Silent(why)) => tracing::debug!("a heartbeat was not answered: {why}"),
            }
            if beat % ASK_SENTINELS_EVERY == 0
                && let Some(other) = self.finder.other_primary(&self.connector, &connection.endpoint).await
            {
                return format!("Sentinel calls {other} the primary, no longer {}", connection.endpoint);
            }
        }
        String::new()
    }

    /// Whether this server may be written to.
    async fn look(&self, connection: &LiveConnection) -> Result<(), Unusable> {
        let mut commands = redis::pipe();
        commands.cmd("PING").cmd("INFO").arg("replication").cmd("TIME");
        let clock = &self.connector.options.clock;
        let before = clock.read();
        let silent = |fault: Fault| Unusable::Silent(fault.store_error(false).to_string());
        let replies = connection.send(&commands).await.map_err(silent)?;
        let sample = Sample::read(&replies, before, clock.read()).map_err(Unusable::No)?;
        if !sample.primary && self.finder.must_be_primary() {
            return Err(Unusable::No("it is a replica, and jobs are kept on primaries".into()));
        }
        if let Some(monitor) = self.monitor.as_ref().filter(|_| sample.primary) {
            monitor.note(&connection.endpoint, &sample);
        }
        Ok(())
    }
}
