//! What the servers are, looked at before the first job: what cannot work is refused, what is risky is a warning.

use super::{Redis, Servers, address::Endpoint, durability::Durability, info::Info, node::Node};
use crate::{domain::Reading, env::Clock, store::StoreError};
use redis::Value;

/// Major and minor; sharded pub/sub came with these.
const REDIS_MIN: (u32, u32) = (7, 0);
const VALKEY_MIN: (u32, u32) = (7, 2);
/// WAITAOF came with this; Valkey has always had it.
const REDIS_WAITAOF: (u32, u32) = (7, 2);
/// Clocks that are kept right differ by less.
const CLOCKS_APART_MAX_MS: u64 = 1_000;

/// For the banner, and for GetServerInfo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreflightReport {
    /// A label and what was found.
    pub lines: Vec<(&'static str, String)>,
    /// What works, but not as well as it should.
    pub warnings: Vec<String>,
}

/// Why jobs cannot be kept there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreflightError {
    #[error(transparent)]
    Unreachable(#[from] StoreError),
    #[error("{at} is {product}, and redrive needs Redis 7.0 or Valkey 7.2, or newer")]
    TooOld { at: Endpoint, product: String },
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

/// One primary.
#[derive(Clone, Debug)]
pub struct PrimaryFacts {
    pub at: Endpoint,
    pub info: Info,
    /// None: it does not answer CONFIG GET.
    pub appendfsync: Option<String>,
    pub save: Option<String>,
    pub clock_ahead_ms: i64,
}

impl Redis {
    /// Looks at every primary.
    pub async fn preflight(&self) -> Result<PreflightReport, PreflightError> {
        let mut all = Vec::new();
        for node in self.primaries() {
            all.push(facts(&node, self.shared.connector.options.clock.as_ref()).await?);
        }
        let uncovered = match &self.shared.servers {
            Servers::One(..) => None,
            Servers::Cluster { cluster, .. } => Some(cluster.slots_without_owner()),
        };
        PreflightReport::of(&all, self.durability(), uncovered)
    }
}

/// Whether the server knows of others that share its slots.
pub(super) async fn belongs_to_cluster(node: &Node) -> Result<bool, String> {
    let info = Info::read(&node.ask(redis::cmd("INFO").arg("cluster")).await?)?;
    Ok(info.number("cluster_enabled") == Some(1))
}

async fn facts(node: &Node, clock: &dyn Clock) -> Result<PrimaryFacts, PreflightError> {
    let at = node.connection.tried().await.map_err(StoreError::Unavailable)?.endpoint.clone();
    let mut commands = redis::pipe();
    commands.cmd("TIME").cmd("INFO");
    commands.cmd("CONFIG").arg("GET").arg("appendfsync");
    commands.cmd("CONFIG").arg("GET").arg("save");
    let before = clock.read();
    let (_, replies) = node.connection.send(&commands).await.map_err(|fault| fault.store_error(false))?;
    let after = clock.read();
    let [time, info, appendfsync, save] = &replies[..] else {
        return Err(PreflightError::Silent { at, why: "answers are missing".into() });
    };
    let info = match Info::read(info) {
        Ok(info) => info,
        Err(why) => return Err(PreflightError::Silent { at, why }),
    };
    let clock_ahead_ms = ahead_ms(time, before, after);
    Ok(PrimaryFacts { at, info, appendfsync: setting(appendfsync), save: setting(save), clock_ahead_ms })
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

impl PreflightReport {
    /// `uncovered`: slots of a Cluster that have no server.
    pub fn of(all: &[PrimaryFacts], level: Durability, uncovered: Option<usize>) -> Result<Self, PreflightError> {
        let mut found = Self::default();
        for facts in all {
            facts.must_do(level)?;
            let warnings = facts.warnings(level);
            found.warnings.extend(warnings.iter().map(|warning| format!("Redis at {}: {warning}", facts.at)));
        }
        if let Some(missing @ 1..) = uncovered {
            let message = format!("{missing} slots of the Cluster have no server: their queues are out");
            found.warnings.push(message);
        }
        if let Some(first) = all.first() {
            let cluster = uncovered.map(|_| format!(", a Cluster of {} primaries", all.len())).unwrap_or_default();
            let replicas: Vec<_> = all.iter().map(|facts| facts.replicas().to_string()).collect();
            found.lines = vec![
                ("redis", format!("{} at {}{cluster}", first.product(), first.at)),
                ("persistence", first.persistence()),
                ("replicas", replicas.join(", ")),
            ];
        }
        Ok(found)
    }
}

impl PrimaryFacts {
    /// Valkey calls itself Redis as well, for the sake of old clients.
    fn version(&self) -> (&'static str, &str) {
        let redis = || ("Redis", self.info.get("redis_version").unwrap_or("0"));
        self.info.get("valkey_version").map_or_else(redis, |version| ("Valkey", version))
    }

    fn product(&self) -> String {
        let (name, version) = self.version();
        format!("{name} {version}")
    }

    fn replicas(&self) -> i64 {
        self.info.number("connected_slaves").unwrap_or(0)
    }

    fn has_aof(&self) -> bool {
        self.info.number("aof_enabled") == Some(1)
    }

    fn must_do(&self, level: Durability) -> Result<(), PreflightError> {
        let at = self.at.clone();
        let (name, version) = self.version();
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let (least, waitaof) = if name == "Valkey" { (VALKEY_MIN, VALKEY_MIN) } else { (REDIS_MIN, REDIS_WAITAOF) };
        if version < least {
            return Err(PreflightError::TooOld { at, product: self.product() });
        }
        if let Some(policy) = self.info.get("maxmemory_policy").filter(|policy| *policy != "noeviction") {
            return Err(PreflightError::Evicts { at, policy: policy.to_owned() });
        }
        let needs = match level {
            Durability::Fsync(_) if version < waitaof => "Redis 7.2 or Valkey, for WAITAOF",
            Durability::Fsync(_) if !self.has_aof() => "an append-only file: set appendonly yes",
            _ => return Ok(()),
        };
        Err(PreflightError::NotDurable { at, level, needs })
    }

    fn persistence(&self) -> String {
        let snapshots = match self.save.as_deref() {
            Some("") => "no snapshots",
            Some(_) => "snapshots",
            None => "snapshots not known",
        };
        if !self.has_aof() {
            return format!("no append-only file; {snapshots}");
        }
        let fsync = self.appendfsync.as_deref().unwrap_or("not known");
        format!("append-only file, fsync {fsync}; {snapshots}")
    }

    fn warnings(&self, level: Durability) -> Vec<String> {
        let at_risk = match (self.has_aof(), self.appendfsync.as_deref(), level) {
            (false, ..) if self.save.as_deref() == Some("") => {
                Some("it keeps nothing on disk: a restart loses every job")
            }
            (false, ..) => Some(
                "it has no append-only file: a crash loses everything since the last snapshot; \
                 set appendonly yes",
            ),
            (true, Some("always"), _) | (true, _, Durability::Fsync(_)) => None,
            (true, Some("no"), _) => Some("appendfsync is no: a power cut loses what the system had not written yet"),
            (true, ..) => Some(
                "appendfsync is not always: a power cut loses up to a second of what was \
                 acknowledged",
            ),
        };
        let mut warnings: Vec<_> = at_risk.map(str::to_owned).into_iter().collect();
        for field in ["aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"] {
            if self.info.get(field).is_some_and(|status| status != "ok") {
                warnings.push(format!("{field} is not ok: look at its log and its disk"));
            }
        }
        let have = self.replicas();
        if let Durability::Replicated(wanted) | Durability::Fsync(wanted) = level
            && have < i64::from(wanted)
        {
            warnings.push(format!("{have} replicas are connected and {level} asks for {wanted}: writes will fail"));
        }
        let apart = self.clock_ahead_ms;
        if apart.unsigned_abs() > CLOCKS_APART_MAX_MS {
            let (by, how) = (apart.abs(), if apart > 0 { "ahead of" } else { "behind" });
            warnings
                .push(format!("its clock is {by} ms {how} this machine's; its own counts for everything that is due"));
        }
        warnings
    }
}
