//! A Cluster: which server has which slot, learnt anew when it changes.

use super::{
    address::Endpoint, fault::Fault, node::Node, sentinel::Finder, slot::SLOTS, stream::Way,
    watch::Watch,
};
use redis::Value;
use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};
use tokio::{
    sync::Notify,
    task::AbortHandle,
    time::{sleep, timeout},
};

/// The map is learnt anew at least this often,
const REFRESH_EVERY: Duration = Duration::from_secs(10);
/// and at most this often, however much is wrong.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Cluster {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    seeds: Vec<Endpoint>,
    way: Arc<Way>,
    watch: Arc<Watch>,
    map: RwLock<Map>,
    stale: Notify,
}

#[derive(Default)]
struct Map {
    /// Of every slot, by its number.
    owners: Vec<Option<Endpoint>>,
    nodes: HashMap<Endpoint, Arc<Node>>,
}

impl Cluster {
    /// Learns the map from whichever server answers.
    pub(super) async fn open(
        seeds: Vec<Endpoint>,
        way: Arc<Way>,
        watch: Arc<Watch>,
    ) -> Result<Self, String> {
        let map = RwLock::default();
        let shared = Arc::new(Shared { seeds, way, watch, map, stale: Notify::new() });
        shared.refresh().await?;
        for node in shared.primaries() {
            // One that is down is no reason not to begin.
            let _ = node.tried().await;
        }
        let task = tokio::spawn(keep_fresh(shared.clone())).abort_handle();
        Ok(Self { shared, task })
    }

    pub(super) fn owner(&self, slot: u16) -> Result<Arc<Node>, Fault> {
        let map = self.shared.read();
        let owner = map.owners.get(usize::from(slot)).and_then(Option::as_ref);
        match owner.and_then(|owner| map.nodes.get(owner)) {
            Some(node) => Ok(node.clone()),
            None => {
                self.shared.stale.notify_one();
                Err(Fault::Unsent(format!("no server of the Cluster has slot {slot}")))
            }
        }
    }

    /// A server that another one has named.
    pub(super) fn node(&self, endpoint: &Endpoint) -> Arc<Node> {
        self.shared.node(endpoint)
    }

    /// The slot has a new owner, and others may have as well.
    pub(super) fn moved(&self, slot: u16, to: &Endpoint) -> Arc<Node> {
        let node = self.shared.node(to);
        let mut map = self.shared.map.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = map.owners.get_mut(usize::from(slot)) {
            *owner = Some(to.clone());
        }
        drop(map);
        self.shared.stale.notify_one();
        node
    }

    /// Something is wrong: the map may be out of date.
    pub(super) fn doubt(&self) {
        self.shared.stale.notify_one();
    }

    /// Where all are that have slots.
    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        self.shared.endpoints()
    }

    pub(super) fn primaries(&self) -> Vec<Arc<Node>> {
        self.shared.primaries()
    }

    pub(super) fn slots_without_owner(&self) -> usize {
        self.shared.read().owners.iter().filter(|owner| owner.is_none()).count()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_fresh(shared: Arc<Shared>) {
    loop {
        let _ = timeout(REFRESH_EVERY, shared.stale.notified()).await;
        if let Err(why) = shared.refresh().await {
            tracing::debug!("the map of the Cluster stays as it is: {why}");
        }
        sleep(REFRESH_PAUSE).await;
    }
}

impl Shared {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let mut owners: Vec<_> = self.read().owners.iter().flatten().cloned().collect();
        owners.sort();
        owners.dedup();
        owners
    }

    fn primaries(&self) -> Vec<Arc<Node>> {
        let owners = self.endpoints();
        let map = self.read();
        owners.iter().filter_map(|owner| map.nodes.get(owner).cloned()).collect()
    }

    fn node(&self, endpoint: &Endpoint) -> Arc<Node> {
        if let Some(node) = self.read().nodes.get(endpoint) {
            return node.clone();
        }
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let start =
            || Arc::new(Node::start(Finder::OfCluster(endpoint.clone()), &self.way, &self.watch));
        map.nodes.entry(endpoint.clone()).or_insert_with(start).clone()
    }

    /// Asks those it knows, then those that were named at the start, until one answers.
    async fn refresh(&self) -> Result<(), String> {
        let mut known: Vec<_> = self.read().nodes.keys().cloned().collect();
        known.sort_by_key(|endpoint| self.node(endpoint).down().is_some());
        known.extend(
            self.seeds
                .iter()
                .filter(|seed| !self.read().nodes.contains_key(seed))
                .cloned()
                .collect::<Vec<_>>(),
        );
        let mut failures = Vec::new();
        for endpoint in known {
            match self.ask(&endpoint).await {
                Ok(owners) => {
                    self.replace(owners);
                    return Ok(());
                }
                Err(why) => failures.push(format!("{endpoint}: {why}")),
            }
        }
        Err(failures.join("; "))
    }

    async fn ask(&self, endpoint: &Endpoint) -> Result<Vec<Option<Endpoint>>, String> {
        let node = self.node(endpoint);
        node.tried().await?;
        let mut commands = redis::pipe();
        commands.cmd("CLUSTER").arg("SLOTS");
        let replies = node.ask(&commands).await.map_err(|fault| fault.told(false).to_string())?;
        owners(replies.first().unwrap_or(&Value::Nil), endpoint)
    }

    fn replace(&self, owners: Vec<Option<Endpoint>>) {
        let mut endpoints: Vec<_> = owners.iter().flatten().cloned().collect();
        endpoints.sort();
        endpoints.dedup();
        for endpoint in &endpoints {
            self.node(endpoint);
        }
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        // A server without slots needs no connection.
        map.nodes.retain(|endpoint, _| endpoints.contains(endpoint));
        map.owners = owners;
    }
}

/// Reads the reply to `CLUSTER SLOTS`: from, to, primary, replicas.
fn owners(reply: &Value, asked: &Endpoint) -> Result<Vec<Option<Endpoint>>, String> {
    let ranges = match reply {
        Value::Array(ranges) => ranges,
        Value::ServerError(error) => {
            return Err(format!("{} {}", error.code(), error.details().unwrap_or_default()));
        }
        other => return Err(format!("CLUSTER SLOTS was answered with {other:?}")),
    };
    let mut owners = vec![None; usize::from(SLOTS)];
    for range in ranges {
        let (from, to, primary) = range_of(range, asked)
            .ok_or_else(|| format!("CLUSTER SLOTS was answered with {range:?}"))?;
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
    let Value::Array(range) = range else {
        return None;
    };
    let [Value::Int(from), Value::Int(to), Value::Array(primary), ..] = range.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else {
        return None;
    };
    let host = match (host, asked) {
        (Value::BulkString(host), _) if !matches!(host.as_slice(), b"" | b"?") => {
            String::from_utf8(host.clone()).ok()?
        }
        // It does not know its own name: it is where it was found.
        (_, Endpoint::Tcp { host, .. }) => host.clone(),
        _ => return None,
    };
    let endpoint = Endpoint::Tcp { host, port: u16::try_from(*port).ok()? };
    Some((usize::try_from(*from).ok()?, usize::try_from(*to).ok()?, endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: i64, to: i64, host: &str, port: i64) -> Value {
        let host = Value::BulkString(host.into());
        let server = Value::Array(vec![host, Value::Int(port), Value::BulkString("id".into())]);
        Value::Array(vec![Value::Int(from), Value::Int(to), server])
    }

    #[test]
    fn the_map_is_read_slot_by_slot() {
        let asked = Endpoint::Tcp { host: "here".into(), port: 1 };
        let reply = Value::Array(vec![range(0, 99, "a", 1), range(101, 16_383, "", 2)]);
        let owners = owners(&reply, &asked).unwrap();
        assert_eq!(owners.len(), 16_384);
        assert_eq!(owners[99], Some(Endpoint::Tcp { host: "a".into(), port: 1 }));
        assert_eq!(owners[100], None);
        assert_eq!(owners[16_383], Some(Endpoint::Tcp { host: "here".into(), port: 2 }));
    }

    #[test]
    fn a_server_that_knows_nothing_is_not_believed() {
        let asked = Endpoint::Tcp { host: "here".into(), port: 1 };
        assert!(owners(&Value::Array(vec![]), &asked).is_err());
        assert!(owners(&Value::Nil, &asked).is_err());
    }
}
