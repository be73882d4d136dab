//! What the operator wants: the file, over it the environment, over that the flags.

mod changes;
mod environment;
mod error;
mod file;
mod names;
mod overrides;
mod policy;
mod queue;
mod rules;
mod toml_reader;

pub use changes::changes;
pub use environment::Environment;
pub use error::{ConfigError, Invalid, Problem};
pub use names::{Durability, LogFormat, LogLevel, Unread};
pub use overrides::Overrides;

use crate::domain::{Bounds, QueueName, QueueSettings, RetryPolicy, Settings};
use crate::store::{redis, sqlite};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

/// Read when it is there and no other file is named.
pub const DEFAULT_FILE: &str = "redrive.toml";
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7433);
const DEFAULT_DATA: &str = "./redrive-data";
/// Shorter than the 30 s that Kubernetes grants, so that the store closes in peace.
const DEFAULT_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Everything decided.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub data: PathBuf,
    /// Jobs are kept there, and not in `data`.
    pub redis: Option<redis::Address>,
    /// How to get into a Redis, this or another.
    pub redis_access: redis::Access,
    pub insecure: bool,
    pub durability: Durability,
    pub shutdown_timeout: Duration,
    pub log: Log,
    /// What clients may take.
    pub bounds: Bounds,
    pub settings: Arc<Settings>,
    /// The file it came from.
    pub source: Option<PathBuf>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub format: LogFormat,
    pub level: LogLevel,
    /// `RUST_LOG`: finer than a level, and above it.
    pub directives: Option<String>,
}

impl Log {
    /// What is written, as directives. The libraries below say nothing that helps below a warning.
    pub fn filter(&self) -> String {
        match (&self.directives, self.level) {
            (Some(directives), _) => directives.clone(),
            (None, LogLevel::Error) => "error".into(),
            (None, level) => format!("warn,redrive={level:?}").to_lowercase(),
        }
    }
}

impl Config {
    /// Reads the file named, or [`DEFAULT_FILE`] if there is one.
    pub fn load(overrides: &Overrides) -> Result<Self, ConfigError> {
        let path = overrides.config.as_deref().unwrap_or_else(|| Path::new(DEFAULT_FILE));
        match fs::read_to_string(path) {
            Ok(text) => Self::resolve(overrides, Some((path, &text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound && overrides.config.is_none() => {
                Self::resolve(overrides, None)
            }
            Err(error) => Err(ConfigError::Unreadable { path: path.into(), error }),
        }
    }

    /// Decides from what was read; reads nothing itself.
    pub fn resolve(overrides: &Overrides, file: Option<(&Path, &str)>) -> Result<Self, ConfigError> {
        let file::File { server, redis_access, bounds, settings } = match file {
            Some((path, text)) => file::parse(path, text)?,
            None => file::File::default(),
        };
        let over = overrides.clone();
        let (data, redis) = place(&over, server.data, server.redis)?;
        let redis = redis.map(|address| match address.check(&redis_access) {
            Ok(()) => Ok(address.with(&redis_access)),
            Err(why) => Err(ConfigError::RedisAccess(why)),
        });
        let redis = redis.transpose()?;
        let durability = over.durability.or(server.durability);
        let mut config = Self {
            listen: over.listen.or(server.listen).unwrap_or(DEFAULT_LISTEN),
            insecure: over.insecure.or(server.insecure).unwrap_or(false),
            durability: level(durability, redis.is_some())?,
            data,
            redis,
            redis_access,
            shutdown_timeout: server.shutdown_timeout.unwrap_or(DEFAULT_SHUTDOWN_TIMEOUT),
            log: Log {
                format: over.log_format.or(server.log_format).unwrap_or_default(),
                level: over.log_level.or(server.log_level).unwrap_or_default(),
                directives: over.log_directives,
            },
            bounds,
            warnings: Vec::new(),
            settings: Arc::new(settings),
            source: file.map(|(path, _)| path.into()),
        };
        config.warnings = config.policies().iter().flat_map(NamedPolicy::warnings).collect();
        Ok(config)
    }

    /// An address that others can reach needs a setting which says that this is meant.
    pub fn check_exposure(&self) -> Result<(), Exposed> {
        let reachable = !self.listen.ip().to_canonical().is_loopback();
        if reachable && !self.insecure { Err(Exposed(self.listen)) } else { Ok(()) }
    }

    /// The keys of `[server]` in which `self` differs: they need a restart.
    pub fn restart_keys(&self, running: &Self) -> Vec<&'static str> {
        [
            ("listen", self.listen != running.listen),
            ("data", self.data != running.data),
            ("redis", self.redis != running.redis),
            ("durability", self.durability != running.durability),
            ("insecure", self.insecure != running.insecure),
            ("shutdown_timeout", self.shutdown_timeout != running.shutdown_timeout),
            ("log_format", self.log.format != running.log.format),
            ("log_level", self.log.level != running.log.level),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }

    /// Each queue's policy and those of its rules, in the order of their names; the defaults first.
    pub fn policies(&self) -> Vec<NamedPolicy> {
        let mut queues: Vec<_> = self.settings.queues.iter().map(|(name, queue)| (Some(name), queue)).collect();
        queues.push((None, &self.settings.defaults));
        queues.sort_by_key(|(name, _)| *name);
        queues.into_iter().flat_map(|(name, queue)| of_queue(name, queue)).collect()
    }
}

/// Where jobs are kept: what environment and flags say goes over the file.
fn place(
    over: &Overrides, data: Option<PathBuf>, redis: Option<redis::Address>,
) -> Result<(PathBuf, Option<redis::Address>), ConfigError> {
    let default = || DEFAULT_DATA.into();
    match (&over.data, over.redis.as_slice()) {
        (Some(_), [_, ..]) => Err(ConfigError::TwoPlaces),
        (Some(data), []) => Ok((data.clone(), None)),
        (None, []) => Ok((data.unwrap_or_else(default), redis)),
        (None, texts) => {
            let address = redis::Address::parse_all(texts.iter().map(|text| text.0.as_str()));
            Ok((default(), Some(address.map_err(ConfigError::Redis)?)))
        }
    }
}

/// The level asked for, if it is one of the engine's.
fn level(asked: Option<Durability>, on_redis: bool) -> Result<Durability, ConfigError> {
    match asked {
        None if on_redis => Ok(Durability::Redis(redis::Durability::default())),
        None => Ok(Durability::Embedded(sqlite::Durability::default())),
        Some(level) if matches!(level, Durability::Redis(_)) == on_redis => Ok(level),
        Some(level) => Err(ConfigError::OtherEngine { level, on_redis }),
    }
}

/// Refused: all who reach the address could do everything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "refusing to listen on {0}: other machines can reach this address, and there are no keys yet, \
     so all who reach it could read, add and delete jobs\n\
     listen on 127.0.0.1:{port}, or pass --insecure (or insecure = true in [server]) if only \
     machines you trust reach it", port = .0.port()
)]
pub struct Exposed(pub SocketAddr);

/// A policy and where it applies.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedPolicy {
    /// None: the queues that have no table.
    pub queue: Option<String>,
    /// The error rule it belongs to.
    pub rule: Option<String>,
    pub policy: RetryPolicy,
    /// Of a queue: the one for what is down, where that is another.
    pub of_outages: Option<RetryPolicy>,
}

impl NamedPolicy {
    /// How long it keeps trying what is down, for people.
    pub fn horizon_of_outages(&self) -> Option<String> {
        self.of_outages.as_ref().map(|policy| format!("what is down: {}", policy.horizon()))
    }

    fn warnings(&self) -> Vec<String> {
        let queue = self.queue.as_ref().map_or_else(|| "[defaults]".to_owned(), |name| format!("[queues.{name}]"));
        let rule = self.rule.as_ref().map_or_else(String::new, |rule| format!(" {rule}"));
        self.policy.warnings().into_iter().map(|warning| format!("{queue}{rule}: {warning}")).collect()
    }
}

fn of_queue(name: Option<&QueueName>, settings: &QueueSettings) -> Vec<NamedPolicy> {
    let named = |rule, policy| NamedPolicy { queue: name.map(ToString::to_string), rule, policy, of_outages: None };
    let of_outages = settings.policy_of_outages().cloned();
    let mut policies = vec![NamedPolicy { of_outages, ..named(None, settings.policy.clone()) }];
    for rule in &settings.rules {
        if let Some(over) = rule.then.policy() {
            policies.push(named(Some(rule.name.clone()), settings.policy.apply(over)));
        }
    }
    policies
}
