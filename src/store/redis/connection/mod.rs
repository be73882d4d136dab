//! The way to Redis: one multiplexed connection to each server, whatever becomes of the servers.
//!
//! A call is sent once. What Redis refuses unseen (it does not know the script, the slot has moved) is sent again to
//! where it belongs; where an answer is missing, nobody can know whether the call was carried out, and that is what the
//! caller hears: [`StoreError::OutcomeUnknown`].

pub mod address;
mod cluster;
pub mod durability;
mod ear;
mod fault;
mod found;
mod info;
mod lane;
mod link;
mod node;
mod options;
mod script;
pub mod secret;
mod sentinel;
mod slot;
mod stream;
mod watch;

pub use address::Address;
pub use ear::{Ear, Heard};
pub use found::{Found, Unfit};
pub use options::ConnectionOptions;
pub use script::{Arg, Script};
pub use watch::{Loss, Notice};

use self::{
    address::{Endpoint, Place},
    cluster::Cluster,
    durability::Durability,
    ear::Places,
    fault::Fault,
    node::{Call, Node, Preface},
    sentinel::Finder,
    stream::Way,
    watch::Watch,
};
use crate::store::{Health, StoreError};
use redis::{Cmd, Value};
use std::{sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::sleep};

/// A slot on its way is asked for here and there; more often than this, something is wrong with the Cluster.
const HOPS_MAX: usize = 8;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// All servers of one Redis. Clones share their connections.
#[derive(Clone)]
pub struct Redis {
    shared: Arc<Shared>,
}

struct Shared {
    servers: Servers,
    way: Arc<Way>,
    watch: Arc<Watch>,
    options: ConnectionOptions,
    room: Semaphore,
}

enum Servers {
    One(Arc<Node>, Finder),
    Cluster(Arc<Cluster>),
}

impl Redis {
    /// Connects. Fails if there is no Redis now; later it is waited for.
    pub async fn open(address: &Address, options: &ConnectionOptions) -> Result<Self, StoreError> {
        let unavailable = StoreError::Unavailable;
        let tls = address.tls.as_ref().map(stream::tls).transpose().map_err(unavailable)?;
        let way = Arc::new(Way {
            credentials: address.credentials.clone(),
            db: address.db,
            tls,
            options: options.clone(),
        });
        let watch = Arc::new(Watch::default());
        let servers = servers(address, &way, &watch).await.map_err(unavailable)?;
        let room = Semaphore::new(options.calls_max);
        let options = options.clone();
        Ok(Self { shared: Arc::new(Shared { servers, way, watch, options, room }) })
    }

    /// Runs a script by its sum, after loading it where Redis does not know it. All keys are in one slot.
    pub async fn run(
        &self,
        script: &Script,
        keys: &[Vec<u8>],
        args: Vec<Arg>,
    ) -> Result<Value, StoreError> {
        let key = keys.first().map(Vec::as_slice).unwrap_or_default();
        let cmd = script.call(keys, &args);
        let (writes, script) = (!script.reads_only, Some(script.clone()));
        let call = Call { key: key.into(), cmd, script, writes };
        self.perform(key, call).await
    }

    /// One plain command, routed by `key`.
    pub async fn command(&self, key: &[u8], cmd: Cmd) -> Result<Value, StoreError> {
        let call = Call { key: key.into(), writes: !only_reads(&cmd), cmd, script: None };
        self.perform(key, call).await
    }

    /// For whoever answers with what it has read: it was written before, but perhaps nobody has confirmed it yet. `key` has a
    /// hash tag.
    pub async fn confirm(&self, key: &[u8]) -> Result<(), StoreError> {
        if self.shared.options.durability == Durability::Primary {
            return Ok(());
        }
        let call = Call { key: key.into(), cmd: lane::mark(key), script: None, writes: true };
        self.perform(key, call).await.map(|_| ())
    }

    /// One plain command that only reads, on every primary.
    pub async fn on_every_primary(&self, cmd: &Cmd) -> Result<Vec<(Endpoint, Value)>, StoreError> {
        let call = Call { key: Vec::new(), cmd: cmd.clone(), script: None, writes: false };
        let mut replies = Vec::new();
        for node in self.primaries() {
            let line = node.tried().await.map_err(StoreError::Unavailable)?;
            let reply = node.run(&call, Preface::default()).await;
            replies.push((line.endpoint.clone(), reply.map_err(|fault| fault.told(false))?));
        }
        Ok(replies)
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self.shared.servers, Servers::Cluster(_))
    }

    pub fn health(&self) -> Health {
        let down = self.primaries().iter().find_map(|node| node.down());
        down.map_or(Health::Well, Health::Stopped)
    }

    /// What was noticed of failovers and clocks, oldest first.
    pub fn notices(&self) -> Vec<Notice> {
        self.shared.watch.notices()
    }

    /// How often servers were lost for longer than leases bear, and have come back.
    pub fn outages(&self) -> u64 {
        self.shared.watch.outages()
    }

    /// Hears what is published on channels of this pattern, by whomever.
    pub fn hear(&self, pattern: &str) -> Ear {
        let places = match &self.shared.servers {
            Servers::One(_, finder) => Places::One(finder.clone()),
            Servers::Cluster(cluster) => {
                let cluster = cluster.clone();
                Places::Any(Box::new(move || cluster.endpoints()))
            }
        };
        Ear::start(places, self.shared.way.clone(), pattern.to_owned())
    }

    fn primaries(&self) -> Vec<Arc<Node>> {
        match &self.shared.servers {
            Servers::One(node, _) => vec![node.clone()],
            Servers::Cluster(cluster) => cluster.primaries(),
        }
    }

    async fn perform(&self, key: &[u8], call: Call) -> Result<Value, StoreError> {
        let most = self.shared.options.calls_max;
        let full = |_| StoreError::Overloaded(format!("{most} calls wait for Redis already"));
        let _room = self.shared.room.try_acquire().map_err(full)?;
        let done = match &self.shared.servers {
            Servers::One(node, _) => on_one(node, &call).await,
            Servers::Cluster(cluster) => on_cluster(cluster, slot::of(key), &call).await,
        };
        done.map_err(|fault| fault.told(call.writes))
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("cluster", &self.is_cluster()).finish_non_exhaustive()
    }
}

async fn servers(address: &Address, way: &Arc<Way>, watch: &Arc<Watch>) -> Result<Servers, String> {
    let cluster = async |seeds| {
        let opened = Cluster::open(seeds, way.clone(), watch.clone()).await;
        opened.map(|cluster| Servers::Cluster(Arc::new(cluster)))
    };
    let finder = match &address.place {
        Place::Cluster(seeds) => return cluster(seeds.clone()).await,
        Place::One(endpoint) => Finder::Fixed(endpoint.clone()),
        Place::Sentinel { sentinels, name } => Finder::Sentinel {
            sentinels: sentinels.clone(),
            name: name.clone(),
            credentials: address.sentinel_credentials.clone(),
        },
    };
    let node = Node::start(finder.clone(), way, watch);
    match (node.tried().await, &address.place) {
        (Ok(line), _) if found::belongs_to_cluster(&node).await? => {
            cluster(vec![line.endpoint.clone()]).await
        }
        (Ok(_), _) => Ok(Servers::One(Arc::new(node), finder)),
        // A replica of a Cluster can lead to it as well.
        (Err(why), Place::One(seed)) => cluster(vec![seed.clone()]).await.map_err(|_| why),
        (Err(why), _) => Err(why),
    }
}

async fn on_one(node: &Node, call: &Call) -> Result<Value, Fault> {
    match node.run(call, Preface::default()).await {
        Err(Fault::NoScript) => node.run(call, Preface { load: true, asking: false }).await,
        done => done,
    }
}

async fn on_cluster(cluster: &Cluster, slot: u16, call: &Call) -> Result<Value, Fault> {
    let mut node = cluster.owner(slot)?;
    let mut preface = Preface::default();
    for _ in 0..HOPS_MAX {
        match node.run(call, preface).await {
            Ok(reply) => return Ok(reply),
            Err(Fault::NoScript) => preface.load = true,
            Err(Fault::Moved(to)) => {
                node = cluster.moved(slot, &to);
                preface = Preface::default();
            }
            Err(Fault::Ask(to)) => {
                node = cluster.node(&to);
                preface.asking = true;
            }
            Err(Fault::TryAgain) => sleep(TRY_AGAIN_AFTER).await,
            Err(fault) => {
                cluster.doubt();
                return Err(fault);
            }
        }
    }
    Err(Fault::TryAgain)
}

/// Those that the engine uses; of any other an unanswered one may have changed something.
fn only_reads(cmd: &Cmd) -> bool {
    const READING: [&str; 27] = [
        "GET",
        "MGET",
        "HGET",
        "HMGET",
        "HGETALL",
        "HLEN",
        "ZCARD",
        "ZCOUNT",
        "ZSCORE",
        "ZMSCORE",
        "ZRANGE",
        "ZRANGEBYSCORE",
        "ZRANK",
        "SMEMBERS",
        "SCARD",
        "SISMEMBER",
        "EXISTS",
        "TTL",
        "PTTL",
        "SCAN",
        "SSCAN",
        "HSCAN",
        "ZSCAN",
        "HEXISTS",
        "TIME",
        "INFO",
        "STRLEN",
    ];
    let Some(redis::Arg::Simple(name)) = cmd.args_iter().next() else {
        return false;
    };
    READING.iter().any(|reading| reading.as_bytes().eq_ignore_ascii_case(name))
}
