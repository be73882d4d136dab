//! A Cluster: which server has which slot, learnt anew when it changes.

use super::{
    address::Endpoint, failover_monitor::FailoverMonitor, fault, fault::Fault, node::Node, sentinel::Finder,
    slot::SLOTS, stream::Connector,
};
use redis::Value;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The map is learnt anew at least this often,
const REFRESH_EVERY: Duration = Duration::from_secs(10);
/// and at most this often, however much is wrong.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Cluster {
    seeds: Vec<Endpoint>,
    connector: Arc<Connector>,
    monitor: Arc<FailoverMonitor>,
    map: RwLock<Map>,
    /// Something is wrong: the map may be out of date.
    pub(super) stale: Notify,
}

/// Of every slot, by its number.
type Owners = Vec<Option<Endpoint>>;

#[derive(Default)]
struct Map {
    owners: Owners,
    nodes: HashMap<Endpoint, Arc<Node>>,
}

impl Cluster {
    /// Learns the map from the first server that answers.
    pub(super) async fn open(
        seeds: Vec<Endpoint>, connector: Arc<Connector>, monitor: Arc<FailoverMonitor>,
    ) -> Result<Arc<Self>, String> {
        let cluster = Self { seeds, connector, monitor, map: RwLock::default(), stale: Notify::new() };
        cluster.refresh().await?;
        for node in cluster.primaries() {
            if let Err(why) = node.connection.tried().await {
                tracing::warn!("the Cluster begins without one of its servers: {why}");
            }
        }
        Ok(Arc::new(cluster))
    }

    pub(super) fn owner(&self, slot: u16) -> Result<Arc<Node>, Fault> {
        let map = self.read();
        let owner = map.owners.get(usize::from(slot)).and_then(Option::as_ref);
        owner.and_then(|owner| map.nodes.get(owner)).cloned().ok_or_else(|| {
            self.stale.notify_one();
            Fault::Unsent(format!("no server of the Cluster has slot {slot}"))
        })
    }

    /// The slot has a new owner, and others may have as well.
    pub(super) fn moved(&self, slot: u16, to: &Endpoint) -> Arc<Node> {
        let node = self.node(to);
        if let Some(owner) = self.write().owners.get_mut(usize::from(slot)) {
            *owner = Some(to.clone());
        }
        self.stale.notify_one();
        node
    }

    /// Where all are that have slots.
    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        distinct(&self.read().owners)
    }

    pub(super) fn primaries(&self) -> Vec<Arc<Node>> {
        let map = self.read();
        distinct(&map.owners).iter().filter_map(|owner| map.nodes.get(owner).cloned()).collect()
    }

    pub(super) fn slots_without_owner(&self) -> usize {
        self.read().owners.iter().filter(|owner| owner.is_none()).count()
    }

    fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server that another one has named.
    pub(super) fn node(&self, endpoint: &Endpoint) -> Arc<Node> {
        if let Some(node) = self.read().nodes.get(endpoint) {
            return node.clone();
        }
        let start = || Arc::new(Node::start(Finder::OfCluster(endpoint.clone()), &self.connector, &self.monitor));
        self.write().nodes.entry(endpoint.clone()).or_insert_with(start).clone()
    }

    /// Asks those it knows, then those that were named at the start, until one answers.
    async fn refresh(&self) -> Result<(), String> {
        let mut known: Vec<_> = self.read().nodes.keys().cloned().collect();
        known.sort_by_key(|endpoint| self.node(endpoint).connection.down().is_some());
        let unknown: Vec<_> = self.seeds.iter().filter(|seed| !known.contains(seed)).cloned().collect();
        let mut failures = Vec::new();
        for endpoint in known.into_iter().chain(unknown) {
            match self.ask(&endpoint).await {
                Ok(owners) => {
                    for why in failures {
                        tracing::debug!("a server of the Cluster does not say which slots there are: {why}");
                    }
                    self.replace(owners);
                    return Ok(());
                }
                Err(why) => failures.push(format!("{endpoint}: {why}")),
            }
        }
        Err(failures.join("; "))
    }

    async fn ask(&self, endpoint: &Endpoint) -> Result<Owners, String> {
        let node = self.node(endpoint);
        node.connection.tried().await?;
        let reply = node.ask(redis::cmd("CLUSTER").arg("SLOTS")).await?;
        slot_owners(&reply, endpoint)
    }

    fn replace(&self, owners: Owners) {
        let endpoints = distinct(&owners);
        for endpoint in &endpoints {
            self.node(endpoint);
        }
        let mut map = self.write();
        // A server without slots needs no connection.
        map.nodes.retain(|endpoint, _| endpoints.contains(endpoint));
        map.owners = owners;
    }
}

pub(super) async fn keep_fresh(cluster: Arc<Cluster>) {
    loop {
        // Both a sign that something is wrong and the end of the time are reasons.
        let _ = timeout(REFRESH_EVERY, cluster.stale.notified()).await;
        if let Err(why) = cluster.refresh().await {
            tracing::debug!("the map of the Cluster stays as it is: {why}");
        }
        sleep(REFRESH_PAUSE).await;
    }
}

fn distinct(owners: &Owners) -> Vec<Endpoint> {
    let mut endpoints: Vec<_> = owners.iter().flatten().cloned().collect();
    endpoints.sort();
    endpoints.dedup();
    endpoints
}

/// Reads the reply to `CLUSTER SLOTS`: from, to, primary, replicas.
pub fn slot_owners(reply: &Value, asked: &Endpoint) -> Result<Owners, String> {
    let ranges = match reply {
        Value::Array(ranges) => ranges,
        Value::ServerError(error) => return Err(fault::text(error)),
        other => return Err(format!("CLUSTER SLOTS was answered with {other:?}")),
    };
    let mut owners = vec![None; usize::from(SLOTS)];
    for range in ranges {
        let (from, to, primary) =
            range_of(range, asked).ok_or_else(|| format!("CLUSTER SLOTS was answered with {range:?}"))?;
        for owner in owners.iter_mut().take(to + 1).skip(from) {
            *owner = Some(primary.clone());
        }
    }
    if owners.iter().all(Option::is_none) {
        return Err("no slot has a server".into());
    }
    Ok(owners)
}

fn range_of(range: &Value, asked: &Endpoint) -> Option<(usize, usize, Endpoint)> {
    let Value::Array(range) = range else { return None };
    let [Value::Int(from), Value::Int(to), Value::Array(primary), ..] = &range[..] else { return None };
    let [host, Value::Int(port), ..] = &primary[..] else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        _ => "",
    };
    let endpoint = asked.sibling(host, u16::try_from(*port).ok()?)?;
    Some((usize::try_from(*from).ok()?, usize::try_from(*to).ok()?, endpoint))
}
