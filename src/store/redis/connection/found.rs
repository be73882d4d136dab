//! What the servers are, looked at before the first job: what cannot work is refused, what is risky is told.

use super::{Redis, Servers, address::Endpoint, durability::Durability, info::Info, node::Node};
use crate::{domain::store_clock::Reading, env::Clock, store::StoreError};
use redis::{Pipeline, Value};
use std::{fmt, time::Duration};

/// Sharded pub/sub came with these.
const REDIS_MIN: Version = Version(7, 0, 0);
const VALKEY_MIN: Version = Version(7, 2, 0);
/// WAITAOF came with this; Valkey has always had it.
const REDIS_WAITAOF: Version = Version(7, 2, 0);
/// Clocks that are kept right differ by less.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(1);

/// For the banner, and for whoever asks the server how it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// A label and what was found.
    pub lines: Vec<(&'static str, String)>,
    /// What works, but not as well as it should.
    pub warnings: Vec<String>,
}

/// Why jobs cannot be kept there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error(transparent)]
    Unreachable(#[from] StoreError),
    #[error("{at} is {name} {version}, and redrive needs Redis 7.0 or Valkey 7.2, or newer")]
    TooOld { at: Endpoint, name: &'static str, version: Version },
    #[error(
        "{at} throws keys away when its memory is full (maxmemory-policy {policy}), and that would \
         be jobs: set maxmemory-policy to noeviction, also in its configuration file"
    )]
    Evicts { at: Endpoint, policy: String },
    #[error("{at}: durability {level} needs {needs}")]
    NotDurable { at: Endpoint, level: Durability, needs: &'static str },
    #[error("{at} does not tell what it is: {why}")]
    Silent { at: Endpoint, why: String },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32, u32);

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        });
        let mut next = || parts.next().unwrap_or(Some(0));
        Some(Self(next()?, next()?, next()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// One primary.
#[derive(Clone, Debug)]
struct Facts {
    at: Endpoint,
    info: Info,
    /// None: it does not let itself be asked.
    appendfsync: Option<String>,
    save: Option<String>,
    clock_ahead_ms: i64,
}

impl Redis {
    /// Looks at every primary.
    pub async fn look(&self) -> Result<Found, Unfit> {
        let mut all = Vec::new();
        for node in self.primaries() {
            all.push(facts(&node, self.shared.options.clock.as_ref()).await?);
        }
        let uncovered = match &self.shared.servers {
            Servers::One(..) => None,
            Servers::Cluster(cluster) => Some(cluster.slots_without_owner()),
        };
        judge(&all, self.shared.options.durability, uncovered)
    }
}

/// Whether the server knows of others that share its slots.
pub(super) async fn belongs_to_cluster(node: &Node) -> Result<bool, String> {
    let mut commands = redis::pipe();
    commands.cmd("INFO").arg("cluster");
    let replies = node.ask(&commands).await.map_err(|fault| fault.told(false).to_string())?;
    let info = Info::read(replies.first().unwrap_or(&Value::Nil))?;
    Ok(info.number("cluster_enabled") == Some(1))
}

async fn facts(node: &Node, clock: &dyn Clock) -> Result<Facts, Unfit> {
    let line = node.tried().await.map_err(StoreError::Unavailable)?;
    let at = line.endpoint.clone();
    let mut commands = Pipeline::new();
    commands.cmd("TIME").cmd("INFO");
    commands.cmd("CONFIG").arg("GET").arg("appendfsync");
    commands.cmd("CONFIG").arg("GET").arg("save");
    let before = clock.read();
    let replies = node.ask(&commands).await.map_err(|fault| fault.told(false))?;
    let after = clock.read();
    let [time, info, appendfsync, save] = &replies[..] else {
        return Err(Unfit::Silent { at, why: "answers are missing".into() });
    };
    let info = match Info::read(info) {
        Ok(info) => info,
        Err(why) => return Err(Unfit::Silent { at, why }),
    };
    let clock_ahead_ms = ahead_ms(time, before, after);
    Ok(Facts { at, info, appendfsync: setting(appendfsync), save: setting(save), clock_ahead_ms })
}

/// How much later it is for Redis than for us.
fn ahead_ms(time: &Value, before: Reading, after: Reading) -> i64 {
    let (seconds, micros): (i64, i64) = redis::from_redis_value(time.clone()).unwrap_or_default();
    let ours = before.wall_us.midpoint(after.wall_us).cast_signed();
    (seconds * 1_000_000 + micros - ours) / 1_000
}

/// The value in a reply to CONFIG GET.
fn setting(reply: &Value) -> Option<String> {
    let pairs: Vec<String> = redis::from_redis_value(reply.clone()).ok()?;
    pairs.into_iter().nth(1)
}

fn judge(all: &[Facts], level: Durability, uncovered: Option<usize>) -> Result<Found, Unfit> {
    let mut found = Found::default();
    for facts in all {
        facts.must_do(level)?;
        facts.warn(level, &mut found.warnings);
    }
    if let Some(missing @ 1..) = uncovered {
        let message =
            format!("{missing} slots of the Cluster have no server: their queues are out");
        found.warnings.push(message);
    }
    if let Some(first) = all.first() {
        let (name, version) = first.product();
        let kind = match uncovered {
            Some(_) => format!(", a Cluster of {} primaries", all.len()),
            None => String::new(),
        };
        found.lines.push(("redis", format!("{name} {version} at {}{kind}", first.at)));
        found.lines.push(("persistence", first.persistence()));
        let replicas: Vec<_> = all.iter().map(|facts| facts.replicas().to_string()).collect();
        found.lines.push(("replicas", replicas.join(", ")));
    }
    Ok(found)
}

impl Facts {
    fn product(&self) -> (&'static str, Version) {
        let version = |field| self.info.get(field).and_then(Version::parse);
        match version("valkey_version") {
            Some(version) => ("Valkey", version),
            None => ("Redis", version("redis_version").unwrap_or_default()),
        }
    }

    fn replicas(&self) -> i64 {
        self.info.number("connected_slaves").unwrap_or(0)
    }

    fn has_aof(&self) -> bool {
        self.info.number("aof_enabled") == Some(1)
    }

    fn must_do(&self, level: Durability) -> Result<(), Unfit> {
        let at = self.at.clone();
        let (name, version) = self.product();
        let least = if name == "Valkey" { VALKEY_MIN } else { REDIS_MIN };
        if version < least {
            return Err(Unfit::TooOld { at, name, version });
        }
        match self.info.get("maxmemory_policy") {
            Some("noeviction") | None => {}
            Some(policy) => return Err(Unfit::Evicts { at, policy: policy.to_owned() }),
        }
        if matches!(level, Durability::Fsync(_)) {
            let needs = "Redis 7.2 or Valkey, for WAITAOF";
            if name == "Redis" && version < REDIS_WAITAOF {
                return Err(Unfit::NotDurable { at, level, needs });
            }
            if !self.has_aof() {
                let needs = "an append-only file: set appendonly yes";
                return Err(Unfit::NotDurable { at, level, needs });
            }
        }
        Ok(())
    }

    fn persistence(&self) -> String {
        let snapshots = match self.save.as_deref() {
            Some("") => "no snapshots",
            Some(_) => "snapshots",
            None => "snapshots not known",
        };
        match (self.has_aof(), self.appendfsync.as_deref()) {
            (true, Some(when)) => format!("append-only file, fsync {when}; {snapshots}"),
            (true, None) => format!("append-only file, fsync not known; {snapshots}"),
            (false, _) => format!("no append-only file; {snapshots}"),
        }
    }

    fn warn(&self, level: Durability, warnings: &mut Vec<String>) {
        let at = &self.at;
        let mut warn = |message: String| warnings.push(format!("Redis at {at}: {message}"));
        match (self.has_aof(), self.appendfsync.as_deref(), level) {
            (false, ..) if self.save.as_deref() == Some("") => {
                warn("it keeps nothing on disk: a restart loses every job".into());
            }
            (false, ..) => warn(
                "it has no append-only file: a crash loses everything since the last snapshot; \
                 set appendonly yes"
                    .into(),
            ),
            (true, Some("always"), _) | (true, _, Durability::Fsync(_)) => {}
            (true, Some("no"), _) => warn(
                "appendfsync is no: a power cut loses what the system had not written yet".into(),
            ),
            (true, ..) => warn(
                "appendfsync is not always: a power cut loses up to a second of what was \
                 acknowledged"
                    .into(),
            ),
        }
        for field in
            ["aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"]
        {
            if self.info.get(field).is_some_and(|status| status != "ok") {
                warn(format!("{field} is not ok: look at its log and its disk"));
            }
        }
        let (Durability::Replicated(wanted) | Durability::Fsync(wanted)) = level else {
            return self.warn_of_clock(warnings);
        };
        if self.replicas() < i64::from(wanted) {
            let have = self.replicas();
            warn(format!(
                "{have} replicas are connected and {level} asks for {wanted}: writes will fail"
            ));
        }
        self.warn_of_clock(warnings);
    }

    fn warn_of_clock(&self, warnings: &mut Vec<String>) {
        let apart = self.clock_ahead_ms;
        if u128::from(apart.unsigned_abs()) > CLOCKS_APART_MAX.as_millis() {
            let (by, how) = (apart.abs(), if apart > 0 { "ahead of" } else { "behind" });
            warnings.push(format!(
                "Redis at {}: its clock is {by} ms {how} this machine's; its own counts for \
                 everything that is due",
                self.at
            ));
        }
    }
}

#[cfg(test)]
mod tests;
