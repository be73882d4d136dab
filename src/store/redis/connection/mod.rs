//! The way to Redis: one multiplexed connection to each server, whatever becomes of the servers.
//!
//! A call is sent once. What Redis refuses unseen (it does not know the script, the slot has moved) is sent again to
//! where it belongs; where an answer is missing, it cannot be known whether the call was carried out, and that is what the
//! caller gets: [`StoreError::OutcomeUnknown`].

pub mod address;
mod cluster;
pub mod durability;
mod failover_monitor;
mod fault;
mod info;
mod node;
mod options;
mod preflight;
mod reconnecting;
mod replicated_writes;
mod script;
pub mod secret;
mod sentinel;
mod slot;
mod stream;
mod subscriber;
mod task;

pub use address::Address;
pub use cluster::slot_owners;
pub use failover_monitor::{FailoverMonitor, Loss, Sample, Warning};
pub use fault::Fault;
pub use info::Info;
pub use options::ConnectionOptions;
pub use preflight::{PreflightError, PreflightReport, PrimaryFacts};
pub use replicated_writes::Confirm;
pub use script::Script;
pub use slot::slot_of;
pub use subscriber::{PubSubEvent, Subscription};
pub use task::Task;

use self::address::{Endpoint, Place};
use self::cluster::Cluster;
use self::durability::Durability;
use self::node::{Call, Node, Preface};
use self::sentinel::Finder;
use self::stream::Connector;
use crate::store::{Health, Result, StoreError};
use redis::{Cmd, ToRedisArgs, Value};
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
    connector: Arc<Connector>,
    monitor: Arc<FailoverMonitor>,
    room: Semaphore,
}

#[derive(Clone)]
enum Servers {
    One(Arc<Node>, Finder),
    Cluster { cluster: Arc<Cluster>, _keeps_fresh: Arc<Task> },
}

impl Redis {
    /// Connects. Fails if there is no Redis now; later it is waited for.
    pub async fn open(address: &Address, options: &ConnectionOptions) -> Result<Self> {
        let connector = Arc::new(Connector::new(address, options).map_err(StoreError::Unavailable)?);
        let monitor = Arc::new(FailoverMonitor::default());
        let servers = Servers::open(address, &connector, &monitor).await.map_err(StoreError::Unavailable)?;
        let room = Semaphore::new(options.calls_max);
        Ok(Self { shared: Arc::new(Shared { servers, connector, monitor, room }) })
    }

    /// Runs a script by its sum, after loading it where Redis does not know it. All keys are in one slot.
    pub async fn run(&self, script: &Script, keys: &[Vec<u8>], args: impl ToRedisArgs) -> Result<Value> {
        let key = keys.first().map(Vec::as_slice).unwrap_or_default();
        let cmd = script.call(keys, args);
        self.perform(Call { key: key.into(), cmd, script: Some(script.clone()), writes: !script.reads_only }).await
    }

    /// One plain command that changes nothing, routed by `key`.
    pub async fn query(&self, key: &[u8], cmd: &Cmd) -> Result<Value> {
        self.perform(Call { key: key.into(), cmd: cmd.clone(), script: None, writes: false }).await
    }

    /// One plain command that may change something, routed by `key`.
    pub async fn command(&self, key: &[u8], cmd: Cmd) -> Result<Value> {
        self.perform(Call { key: key.into(), cmd, script: None, writes: true }).await
    }

    /// For callers that answer with what they have read: it was written before, but may not be confirmed yet. `key` has a hash
    /// tag.
    pub async fn confirm(&self, key: &[u8]) -> Result<()> {
        if self.durability() == Durability::Primary {
            return Ok(());
        }
        self.command(key, replicated_writes::mark(key)).await.map(drop)
    }

    /// One plain command that only reads, on every primary.
    pub async fn on_every_primary(&self, cmd: &Cmd) -> Result<Vec<Value>> {
        let call = Call { key: Vec::new(), cmd: cmd.clone(), script: None, writes: false };
        let mut replies = Vec::new();
        for node in self.primaries() {
            node.connection.tried().await.map_err(StoreError::Unavailable)?;
            let reply = node.run(&call, Preface::default()).await;
            replies.push(reply.map_err(|fault| fault.store_error(false))?);
        }
        Ok(replies)
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self.shared.servers, Servers::Cluster { .. })
    }

    pub fn durability(&self) -> Durability {
        self.shared.connector.options.durability
    }

    pub fn health(&self) -> Health {
        let down = self.primaries().iter().find_map(|node| node.connection.down());
        down.map_or(Health::Well, Health::Stopped)
    }

    /// Of failovers and clocks, oldest first.
    pub fn warnings(&self) -> Vec<Warning> {
        self.shared.monitor.warnings()
    }

    /// How often servers were lost for longer than leases bear, and have come back.
    pub fn outages(&self) -> u64 {
        self.shared.monitor.outages()
    }

    /// Receives what is published on channels of this pattern.
    pub fn subscribe(&self, pattern: &str) -> Subscription {
        Subscription::start(self.shared.servers.clone(), self.shared.connector.clone(), pattern.to_owned())
    }

    fn primaries(&self) -> Vec<Arc<Node>> {
        match &self.shared.servers {
            Servers::One(node, _) => vec![node.clone()],
            Servers::Cluster { cluster, .. } => cluster.primaries(),
        }
    }

    async fn perform(&self, call: Call) -> Result<Value> {
        let most = self.shared.connector.options.calls_max;
        let full = |_| StoreError::Overloaded(format!("{most} calls wait for Redis already"));
        let _room = self.shared.room.try_acquire().map_err(full)?;
        let done = match &self.shared.servers {
            Servers::One(node, _) => on_one(node, &call).await,
            Servers::Cluster { cluster, .. } => on_cluster(cluster, slot_of(&call.key), &call).await,
        };
        done.map_err(|fault| fault.store_error(call.writes))
    }
}

impl Servers {
    async fn open(
        address: &Address, connector: &Arc<Connector>, monitor: &Arc<FailoverMonitor>,
    ) -> Result<Self, String> {
        let cluster = async |seeds| {
            let cluster = Cluster::open(seeds, connector.clone(), monitor.clone()).await?;
            let task = Task::spawn(cluster::keep_fresh(cluster.clone()));
            Ok(Self::Cluster { cluster, _keeps_fresh: Arc::new(task) })
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
        let node = Node::start(finder.clone(), connector, monitor);
        match (node.connection.tried().await, &address.place) {
            (Ok(connection), _) if preflight::belongs_to_cluster(&node).await? => {
                cluster(vec![connection.endpoint.clone()]).await
            }
            (Ok(_), _) => Ok(Self::One(Arc::new(node), finder)),
            // A replica of a Cluster can lead to it as well.
            (Err(why), Place::One(seed)) => cluster(vec![seed.clone()]).await.map_err(|no_cluster| {
                tracing::debug!("there is no Cluster either: {no_cluster}");
                why
            }),
            (Err(why), _) => Err(why),
        }
    }

    /// Where one can subscribe: the primary, or any server of a Cluster.
    async fn endpoint(&self, connector: &Connector, tries: u32) -> Result<Endpoint, String> {
        match self {
            Self::One(_, finder) => finder.find(connector).await,
            Self::Cluster { cluster, .. } => {
                let all = cluster.endpoints();
                let at = tries as usize % all.len().max(1);
                all.into_iter().nth(at).ok_or_else(|| "no server of the Cluster is known".into())
            }
        }
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
                cluster.stale.notify_one();
                return Err(fault);
            }
        }
    }
    Err(Fault::TryAgain)
}
