//! All connections, and what each of them takes: connections in all and per peer, calls, waits, replies that are not read. What
//! a bound refuses is said to the client, and logged once a minute with the peers that hold most.

use super::peer::Peer;
use crate::domain::Bounds;
use crate::lock::lock;
use crate::service::{AddressBudget, MessageBudget};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

/// HTTP/2's codes for the end of a connection.
const NO_ERROR: u32 = 0;
const ENHANCE_YOUR_CALM: u32 = 11;
/// How exactly ages are known.
const TICK: Duration = Duration::from_secs(1);
/// A limit that is reached all the time is logged this often.
const LOG_EVERY_TICKS: u64 = 60;
/// Peers named in the log.
const NAMED: usize = 3;
const DECODED_AT_ONCE: usize = 4;

#[derive(Debug)]
pub(in crate::grpc) struct Peers {
    pub(super) bounds: Bounds,
    budget: Arc<MessageBudget>,
    /// Since the start, counted by `watch`: ages need no clock.
    ticks: AtomicU64,
    pub(super) calls: AtomicUsize,
    pub(super) waits: AtomicUsize,
    /// Queues that calls wait for; one that several wait for counts as often.
    pub(super) waited_for: AtomicUsize,
    /// Long requests that are decoded at the same time.
    pub(super) large: Arc<Semaphore>,
    live: Mutex<Live>,
    /// When each limit was last logged.
    logged: Mutex<HashMap<&'static str, u64>>,
}

#[derive(Debug, Default)]
struct Live {
    next: u64,
    connections: HashMap<u64, Arc<Peer>>,
    by_address: HashMap<IpAddr, Arc<Address>>,
}

/// What the connections of one address take together.
#[derive(Debug)]
pub(super) struct Address {
    pub(super) ip: IpAddr,
    pub(super) budget: Arc<AddressBudget>,
    connections: AtomicUsize,
    pub(super) calls: AtomicUsize,
    pub(super) waits: AtomicUsize,
    pub(super) waited_for: AtomicUsize,
}

/// What a limit is one of: those who have most of it are named.
#[derive(Clone, Copy, Debug)]
pub(super) enum Of {
    Connections,
    Calls,
    Waits,
    Bytes,
}

/// Why a connection is ended, as its client hears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::grpc) struct Ending {
    pub(super) code: u32,
    pub(super) why: String,
}

impl Ending {
    pub(super) fn abuse(why: impl Into<String>) -> Self {
        Self { code: ENHANCE_YOUR_CALM, why: why.into() }
    }

    pub(super) fn is_abuse(&self) -> bool {
        self.code != NO_ERROR
    }
}

/// Whose address it is: who has one of IPv6 has a network of them.
fn of_one_peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

impl Peers {
    pub(in crate::grpc) fn new(bounds: Bounds) -> Arc<Self> {
        let budget = MessageBudget::new(&bounds);
        let (live, logged) = Default::default();
        let (ticks, calls, waits, waited_for) = Default::default();
        let large = Arc::new(Semaphore::new(DECODED_AT_ONCE));
        Arc::new(Self { bounds, budget, ticks, calls, waits, waited_for, large, live, logged })
    }

    pub(super) fn tick(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// A new connection, unless there are too many.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Admitted, Ending> {
        let ip = of_one_peer(address);
        let per_peer = self.bounds.connections_per_peer();
        let mut live = lock(&self.live);
        if live.by_address.get(&ip).is_some_and(|address| address.connections.load(Ordering::Relaxed) >= per_peer) {
            drop(live);
            self.reached("connections_per_peer", per_peer, Of::Connections);
            return Err(Ending::abuse(format!(
                "{per_peer} connections from one address are the most this server takes"
            )));
        }
        let most = self.bounds.connections;
        if live.connections.len() >= most {
            let idle = live.connections.values().filter_map(|peer| Some((peer.idle_since()?, peer)));
            let longest = idle.min_by_key(|(since, _)| *since).map(|(_, peer)| peer.clone());
            if let Some(idle) = &longest {
                idle.end(Ending { code: NO_ERROR, why: "idle, and others need the connection".into() });
                live.remove(idle);
            }
            let full = live.connections.len() >= most;
            drop(live);
            self.reached("connections", most, Of::Connections);
            if full {
                return Err(Ending::abuse(format!("{most} connections are the most this server takes")));
            }
            live = lock(&self.live);
        }
        let id = live.next;
        live.next += 1;
        let address = live.by_address.entry(ip).or_insert_with(|| Arc::new(Address::new(ip, &self.budget))).clone();
        address.connections.fetch_add(1, Ordering::Relaxed);
        let peer = Arc::new(Peer::new(self.clone(), id, address));
        live.connections.insert(id, peer.clone());
        Ok(Admitted(peer))
    }

    /// Ends what has lasted too long, for ever.
    pub(in crate::grpc) async fn watch(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(TICK).await;
            let tick = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
            let connections: Vec<_> = lock(&self.live).connections.values().cloned().collect();
            for peer in connections {
                peer.check(tick);
            }
        }
    }

    /// Logs that a limit is reached, at most once a minute.
    pub(super) fn reached(&self, limit: &'static str, value: usize, of: Of) {
        let tick = self.tick();
        let before = lock(&self.logged).get(limit).copied();
        if before.is_some_and(|before| tick < before + LOG_EVERY_TICKS) {
            return;
        }
        lock(&self.logged).insert(limit, tick);
        let peers = self.largest(of);
        tracing::warn!(limit, value, peers, "a limit is reached: what is beyond it is refused");
    }

    /// The addresses that hold most of it, in words.
    fn largest(&self, of: Of) -> String {
        let mut all: Vec<_> =
            lock(&self.live).by_address.values().map(|address| (address.ip, address.takes())).collect();
        all.sort_by_key(|(ip, takes)| (Reverse(takes[of as usize]), *ip));
        let words = all.iter().take(NAMED).map(|(ip, [connections, calls, waits, bytes])| {
            let (net, mib) = (if ip.is_ipv6() { "/64" } else { "" }, bytes >> 20);
            format!("{ip}{net} ({connections} connections, {calls} calls, {waits} of them waiting, {mib} MiB)")
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

impl Address {
    fn new(ip: IpAddr, budget: &Arc<MessageBudget>) -> Self {
        let (connections, calls, waits, waited_for) = Default::default();
        Self { ip, budget: budget.address(), connections, calls, waits, waited_for }
    }

    /// In the order of `Of`.
    fn takes(&self) -> [usize; 4] {
        let counted = [&self.connections, &self.calls, &self.waits].map(|count| count.load(Ordering::Relaxed));
        let [connections, calls, waits] = counted;
        [connections, calls, waits, self.budget.used()]
    }
}

impl Live {
    fn remove(&mut self, peer: &Peer) {
        if self.connections.remove(&peer.id).is_some() && peer.address.connections.fetch_sub(1, Ordering::Relaxed) == 1
        {
            self.by_address.remove(&peer.address.ip);
        }
    }
}

/// A connection that counts until this is dropped.
#[derive(Debug)]
pub(super) struct Admitted(pub(super) Arc<Peer>);

impl Drop for Admitted {
    fn drop(&mut self) {
        lock(&self.0.peers.live).remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_peer_with_ipv6_alone() {
        let peer = |address: &str| of_one_peer(address.parse().expect("an address")).to_string();
        assert_eq!(peer("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(peer("2001:db8:1:3:3:4:5:6"), "2001:db8:1:3::");
        assert_eq!([peer("192.0.2.1"), peer("::ffff:192.0.2.2")], ["192.0.2.1", "192.0.2.2"]);
    }
}
