//! One connection to one server, made anew whenever it breaks. While there is none, calls are refused at once.

use super::{
    address::Endpoint,
    fault::Fault,
    sentinel::Finder,
    stream::{Driver, Way},
    watch::{Sample, Watch},
};
use crate::env;
use redis::{Pipeline, Value, aio::MultiplexedConnection};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

/// So many calls in a row without an answer, and the connection counts as dead: a socket may swallow everything in silence.
const TIMEOUTS_MAX: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Every so many heartbeats the sentinels are asked whether this is still the primary.
const ASK_SENTINELS_EVERY: u32 = 3;

/// Ends its task when the last one is dropped.
pub(super) struct Link {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    finder: Finder,
    way: Arc<Way>,
    response_timeout: Duration,
    watch: Option<Arc<Watch>>,
    state: watch::Sender<State>,
}

#[derive(Clone)]
enum State {
    /// `tries`: how often in a row it could not be made.
    Down {
        why: String,
        tries: u32,
    },
    Up(Arc<Line>),
}

/// A connection that works, or did so when it was last used.
pub(super) struct Line {
    connection: MultiplexedConnection,
    pub(super) endpoint: Endpoint,
    timeouts: AtomicU32,
    /// Why it must be replaced.
    condemned: watch::Sender<Option<String>>,
}

/// Why a connection is not to be used.
enum Unfit {
    /// No answer.
    Silent(String),
    No(String),
}

impl Link {
    /// Begins to connect, in a task of its own. `watch`: who is told of the server's state.
    pub(super) fn start(
        finder: Finder,
        way: Arc<Way>,
        response_timeout: Duration,
        watch: Option<Arc<Watch>>,
    ) -> Self {
        let down = State::Down { why: "not yet connected".into(), tries: 0 };
        let state = watch::Sender::new(down);
        let shared = Arc::new(Shared { finder, way, response_timeout, watch, state });
        let task = tokio::spawn(supervise(shared.clone())).abort_handle();
        Self { shared, task }
    }

    /// Waits until it is up, or has been tried in vain.
    pub(super) async fn tried(&self) -> Result<Arc<Line>, String> {
        let mut state = self.shared.state.subscribe();
        let tried = |state: &State| !matches!(state, State::Down { tries: 0, .. });
        match state.wait_for(tried).await.as_deref() {
            Ok(State::Up(line)) => Ok(line.clone()),
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

    async fn line(&self) -> Result<Arc<Line>, Fault> {
        let mut state = self.shared.state.subscribe();
        let settled = |state: &State| match state {
            // Whoever condemned it was faster than its replacement: what is sent there now would be in doubt.
            State::Up(line) => line.condemned.borrow().is_none(),
            State::Down { tries, .. } => *tries > 0,
        };
        // A connection that is being made for the first time, or has just broken, is mostly there in a moment.
        let patience = self.shared.way.options.connect_timeout;
        let settled = timeout(patience, state.wait_for(settled)).await;
        match settled.as_ref().map(|state| state.as_deref()) {
            Ok(Ok(State::Up(line))) => Ok(line.clone()),
            Ok(Ok(State::Down { why, .. })) => Err(Fault::Unsent(why.clone())),
            _ => Err(Fault::Unsent(self.down().unwrap_or_default())),
        }
    }

    /// Sends commands together and in order, and hands back all replies; a server's error is a reply as well.
    pub(super) async fn send(&self, commands: &Pipeline) -> Result<(Arc<Line>, Vec<Value>), Fault> {
        let line = self.line().await?;
        let replies = line.send(commands).await?;
        Ok((line, replies))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Line {
    async fn send(&self, commands: &Pipeline) -> Result<Vec<Value>, Fault> {
        let mut connection = self.connection.clone();
        match connection.send_packed_commands(commands, 0, commands.len()).await {
            Ok(replies) => {
                self.timeouts.store(0, Ordering::Relaxed);
                Ok(replies)
            }
            Err(error) => {
                let why = format!("Redis at {}: {error}", self.endpoint);
                let timeouts = self.timeouts.fetch_add(1, Ordering::Relaxed) + 1;
                if !error.is_timeout() || timeouts >= TIMEOUTS_MAX {
                    self.condemn(&why);
                }
                Err(Fault::Lost(why))
            }
        }
    }

    /// The connection is to be replaced.
    pub(super) fn condemn(&self, why: &str) {
        self.condemned.send_if_modified(|condemned| {
            let first = condemned.is_none();
            condemned.get_or_insert_with(|| why.to_owned());
            first
        });
    }

    async fn is_condemned(&self) -> String {
        let mut condemned = self.condemned.subscribe();
        let why = condemned.wait_for(Option::is_some).await;
        why.ok().and_then(|why| why.clone()).unwrap_or_default()
    }
}

async fn supervise(shared: Arc<Shared>) {
    let mut tries = 0;
    let mut down_since_us = None;
    let now_us = || shared.way.options.clock.read().boot_us;
    loop {
        match shared.connect().await {
            Ok((line, driver)) => {
                let endpoint = line.endpoint.clone();
                shared.state.send_replace(State::Up(line.clone()));
                if let Some(since) = down_since_us {
                    shared.back(&endpoint, Duration::from_micros(now_us() - since));
                }
                let why = shared.attend(&line, driver).await;
                down_since_us = Some(now_us());
                tracing::warn!(%endpoint, "the connection to Redis is replaced: {why}");
                tries = 0;
                shared.state.send_replace(State::Down { why, tries });
            }
            Err(why) => {
                tries += 1;
                if tries == 1 || tries % 60 == 0 {
                    tracing::warn!(tries, "Redis cannot be reached: {why}");
                }
                shared.state.send_replace(State::Down { why, tries });
                sleep(pause(tries, env::random())).await;
            }
        }
    }
}

/// Doubles from try to try, and differs from server to server, so that they do not all come at once.
pub(super) fn pause(tries: u32, chance: u32) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << tries.min(10).saturating_sub(1)).min(LONGEST_PAUSE);
    whole / 2 + whole.mul_f64(f64::from(chance) / f64::from(u32::MAX) / 2.0)
}

impl Shared {
    /// There was no connection for so long.
    fn back(&self, endpoint: &Endpoint, lost_for: Duration) {
        if let Some(watch) = &self.watch {
            tracing::info!(%endpoint, "Redis is back after {lost_for:.1?}");
            watch.was_lost_for(lost_for);
        }
    }

    async fn connect(&self) -> Result<(Arc<Line>, Driver), String> {
        let endpoint = self.finder.find(&self.way).await?;
        let at = |why: String| format!("Redis at {endpoint}: {why}");
        let (connection, mut driver) =
            self.way.connect(&endpoint, self.response_timeout).await.map_err(at)?;
        let line = Arc::new(Line {
            connection,
            endpoint: endpoint.clone(),
            timeouts: AtomicU32::new(0),
            condemned: watch::Sender::new(None),
        });
        // Until the driver runs, nothing is sent.
        let looked = tokio::select! {
            looked = self.look(&line) => looked,
            () = &mut driver => Err(Unfit::Silent("it has closed the connection".into())),
        };
        match looked {
            Ok(()) => Ok((line, driver)),
            Err(Unfit::Silent(why)) => Err(why),
            Err(Unfit::No(why)) => Err(at(why)),
        }
    }

    /// Keeps the connection going; returns why it is no more.
    async fn attend(&self, line: &Arc<Line>, driver: Driver) -> String {
        tokio::select! {
            () = driver => format!("Redis at {} has closed the connection", line.endpoint),
            why = line.is_condemned() => why,
            why = self.beat(line) => why,
        }
    }

    /// Looks after an idle connection, too; returns why it cannot be used any longer.
    async fn beat(&self, line: &Arc<Line>) -> String {
        let mut ticks = interval(self.way.options.heartbeat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        for beat in 1.. {
            ticks.tick().await;
            // Silence is counted by the line itself: once is nothing.
            if let Err(Unfit::No(why)) = self.look(line).await {
                return format!("Redis at {}: {why}", line.endpoint);
            }
            if beat % ASK_SENTINELS_EVERY == 0
                && let Some(other) = self.finder.other_primary(&self.way, &line.endpoint).await
            {
                return format!("Sentinel calls {other} the primary, no longer {}", line.endpoint);
            }
        }
        String::new()
    }

    /// Whether this server may be written to.
    async fn look(&self, line: &Line) -> Result<(), Unfit> {
        let mut commands = redis::pipe();
        commands.cmd("PING").cmd("INFO").arg("replication").cmd("TIME");
        let clock = &self.way.options.clock;
        let before = clock.read();
        let silent = |fault: Fault| Unfit::Silent(fault.told(false).to_string());
        let replies = line.send(&commands).await.map_err(silent)?;
        let sample = Sample::read(&replies, before, clock.read()).map_err(Unfit::No)?;
        if !sample.primary && self.finder.must_be_primary() {
            return Err(Unfit::No("it is a replica, and jobs are kept on primaries".into()));
        }
        if let Some(watch) = self.watch.as_ref().filter(|_| sample.primary) {
            watch.note(&line.endpoint, &sample);
        }
        Ok(())
    }
}
