//! What the operator wants: the file, over it the environment, over that the flags.

mod environment;
mod error;
mod file;
mod policy;
mod queue;
mod rules;
mod section;
#[cfg(test)]
mod tests;
mod words;

pub use environment::Environment;
pub use error::{ConfigError, Invalid, Problem};
pub use words::{Durability, LogFormat, LogLevel, Unread};

use crate::domain::{
    policy::RetryPolicy,
    rules::Then,
    settings::{QueueSettings, Settings},
};
use crate::store::{redis, sqlite};
use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

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
    pub insecure: bool,
    pub durability: Durability,
    pub shutdown_timeout: Duration,
    pub log: Log,
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

/// What environment and flags say; the file is below them.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub config: Option<PathBuf>,
    pub listen: Option<SocketAddr>,
    pub data: Option<PathBuf>,
    pub redis: Vec<Unread>,
    pub insecure: Option<bool>,
    pub durability: Option<Durability>,
    pub log_format: Option<LogFormat>,
    pub log_level: Option<LogLevel>,
    pub log_directives: Option<String>,
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
    pub fn resolve(
        overrides: &Overrides,
        file: Option<(&Path, &str)>,
    ) -> Result<Self, ConfigError> {
        let file::File { server, settings } = match file {
            Some((path, text)) => file::parse(path, text)?,
            None => file::File::default(),
        };
        let over = overrides.clone();
        let (data, redis) = place(&over, server.data, server.redis)?;
        let durability = over.durability.or(server.durability);
        Ok(Self {
            listen: over.listen.or(server.listen).unwrap_or(DEFAULT_LISTEN),
            insecure: over.insecure.or(server.insecure).unwrap_or(false),
            durability: level(durability, redis.is_some())?,
            data,
            redis,
            shutdown_timeout: server.shutdown_timeout.unwrap_or(DEFAULT_SHUTDOWN_TIMEOUT),
            log: Log {
                format: over.log_format.or(server.log_format).unwrap_or_default(),
                level: over.log_level.or(server.log_level).unwrap_or_default(),
                directives: over.log_directives,
            },
            warnings: warnings(&settings),
            settings: Arc::new(settings),
            source: file.map(|(path, _)| path.into()),
        })
    }

    /// An address that others can reach needs somebody who says that this is meant.
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
        policies(&self.settings)
    }
}

/// Where jobs are kept: what environment and flags say goes over the file.
fn place(
    over: &Overrides,
    data: Option<PathBuf>,
    redis: Option<redis::Address>,
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
        Some(level) if level.is_of_redis() == on_redis => Ok(level),
        Some(level) => Err(ConfigError::OtherEngine { level, on_redis }),
    }
}

/// Refused: everybody who reaches the address could do everything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "refusing to listen on {0}: other machines can reach this address, and there are no keys yet, \
     so everybody who reaches it could read, add and delete jobs\n\
     listen on 127.0.0.1:{port}, or pass --insecure (or insecure = true in [server]) if only \
     machines you trust reach it", port = .0.port()
)]
pub struct Exposed(pub SocketAddr);

/// A policy and where it applies.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedPolicy {
    /// None: the queues that have no section.
    pub queue: Option<String>,
    /// The error rule it belongs to.
    pub rule: Option<String>,
    pub policy: RetryPolicy,
}

fn policies(settings: &Settings) -> Vec<NamedPolicy> {
    let mut queues: Vec<_> = settings.queues.iter().collect();
    queues.sort_by_key(|(name, _)| *name);
    let queues = queues.into_iter().map(|(name, queue)| (Some(name.to_string()), queue));
    std::iter::once((None, &settings.defaults))
        .chain(queues)
        .flat_map(|(name, queue)| of_queue(name, queue))
        .collect()
}

fn of_queue(queue: Option<String>, settings: &QueueSettings) -> Vec<NamedPolicy> {
    let own = NamedPolicy { queue: queue.clone(), rule: None, policy: settings.policy.clone() };
    let of_rules = settings.rules.iter().filter_map(|rule| {
        let Then::Policy(over) = &rule.then else {
            return None;
        };
        let policy = settings.policy.apply(over);
        Some(NamedPolicy { queue: queue.clone(), rule: Some(rule.name.clone()), policy })
    });
    std::iter::once(own).chain(of_rules).collect()
}

fn warnings(settings: &Settings) -> Vec<String> {
    let of_policy = |named: NamedPolicy| {
        let mut place = match named.queue {
            Some(name) => format!("[queues.{name}]"),
            None => "[defaults]".to_owned(),
        };
        if let Some(rule) = named.rule {
            place += &format!(" {rule}");
        }
        let warnings = named.policy.warnings();
        warnings.into_iter().map(move |warning| format!("{place}: {warning}"))
    };
    policies(settings).into_iter().flat_map(of_policy).collect()
}

/// Reads `127.0.0.1:7433` or `[::1]:7433`.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "{text:?} is not an address to listen on: write an IP address and a port, for example \
             \"127.0.0.1:7433\" or \"[::1]:7433\""
        )
    })
}
