//! All connections, and what each of them takes: connections in all and per peer, calls, waits, replies that are not read. What
//! a bound refuses is said to the client, and logged once a minute with the peers that hold most.

use super::calls::Kind;
use crate::domain::{Bounds, duration::human};
use crate::service::{ConnectionBudget, MessageBudget};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};

/// HTTP/2's codes for the end of a connection.
const NO_ERROR: u32 = 0;
const ENHANCE_YOUR_CALM: u32 = 11;
/// How exactly ages are known.
const TICK: Duration = Duration::from_secs(1);
/// A limit that is reached all the time is logged this often.
const LOG_EVERY_TICKS: u64 = 60;
/// Peers named in the log.
const NAMED: usize = 3;
/// Ages of replies are told apart by this part of the time to read them.
const AGES: u64 = 4;
/// More than `AGES`, so that an age is not taken for the one before it.
const BUCKETS: usize = 8;

const DECODED_AT_ONCE: usize = 4;

#[derive(Debug)]
pub(in crate::grpc) struct Peers {
    pub(super) bounds: Bounds,
    budget: Arc<MessageBudget>,
    /// Since the start, counted by `watch`: ages need no clock.
    ticks: AtomicU64,
    calls: AtomicUsize,
    waits: AtomicUsize,
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
    by_address: HashMap<IpAddr, usize>,
}

/// Why a connection is ended, as its client hears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::grpc) struct Ending {
    pub(super) code: u32,
    pub(super) why: String,
}

impl Ending {
    fn abuse(why: impl Into<String>) -> Self {
        Self { code: ENHANCE_YOUR_CALM, why: why.into() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    pub(in crate::grpc) fn new(bounds: Bounds) -> Arc<Self> {
        let budget = MessageBudget::new(&bounds);
        let (live, logged) = Default::default();
        let (ticks, calls, waits) = Default::default();
        let large = Arc::new(Semaphore::new(DECODED_AT_ONCE));
        Arc::new(Self { bounds, budget, ticks, calls, waits, large, live, logged })
    }

    pub(super) fn tick(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// A new connection, unless there are too many.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Admitted, Ending> {
        let address = address.to_canonical();
        let per_peer = self.bounds.connections_per_peer();
        let mut live = lock(&self.live);
        if live.by_address.get(&address).is_some_and(|count| *count >= per_peer) {
            drop(live);
            self.reached("connections_per_peer", per_peer);
            return Err(Ending::abuse(format!(
                "{per_peer} connections from one address are the most this server takes"
            )));
        }
        let most = self.bounds.connections;
        if live.connections.len() >= most {
            let idle = live.connections.values().filter(|peer| peer.is_idle());
            let longest = idle.min_by_key(|peer| peer.idle_since.load(Ordering::Relaxed)).cloned();
            if let Some(idle) = &longest {
                idle.end(Ending { code: NO_ERROR, why: "idle, and others need the connection".into() });
                live.remove(idle);
            }
            if longest.is_none() || live.connections.len() >= most {
                drop(live);
                self.reached("connections", most);
                return Err(Ending::abuse(format!("{most} connections are the most this server takes")));
            }
        }
        let id = live.next;
        live.next += 1;
        let peer = Arc::new(Peer::new(self.clone(), id, address));
        live.connections.insert(id, peer.clone());
        *live.by_address.entry(address).or_default() += 1;
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
    pub(super) fn reached(&self, limit: &'static str, value: usize) {
        let tick = self.tick();
        let before = lock(&self.logged).get(limit).copied();
        if before.is_some_and(|before| tick < before + LOG_EVERY_TICKS) {
            return;
        }
        lock(&self.logged).insert(limit, tick);
        let peers = self.largest();
        tracing::warn!(limit, value, peers, "a limit is reached: what is beyond it is refused");
    }

    /// The addresses that hold most, in words.
    fn largest(&self) -> String {
        let mut by_address = BTreeMap::<IpAddr, [usize; 4]>::new();
        for peer in lock(&self.live).connections.values() {
            let [connections, calls, waits, bytes] = by_address.entry(peer.address).or_default();
            *connections += 1;
            *calls += peer.calls.load(Ordering::Relaxed);
            *waits += peer.waits.load(Ordering::Relaxed);
            *bytes += peer.budget.used();
        }
        let mut all: Vec<_> = by_address.into_iter().collect();
        all.sort_by_key(|(_, [connections, calls, _, bytes])| std::cmp::Reverse((*bytes >> 20, *calls, *connections)));
        let words = all.iter().take(NAMED).map(|(address, [connections, calls, waits, bytes])| {
            let mib = bytes >> 20;
            format!("{address} ({connections} connections, {calls} calls, {waits} of them waiting, {mib} MiB)")
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

impl Live {
    fn remove(&mut self, peer: &Peer) {
        if self.connections.remove(&peer.id).is_some()
            && let Some(count) = self.by_address.get_mut(&peer.address)
        {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&peer.address);
            }
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

/// One connection.
#[derive(Debug)]
pub(in crate::grpc) struct Peer {
    pub(super) peers: Arc<Peers>,
    id: u64,
    pub(super) address: IpAddr,
    pub(in crate::grpc) budget: Arc<ConnectionBudget>,
    calls: AtomicUsize,
    /// Those that are not of foreign streams.
    busy: AtomicUsize,
    waits: AtomicUsize,
    /// The tick at which its last call ended.
    idle_since: AtomicU64,
    /// One more than the tick at which headers were begun that have not ended; 0: none.
    headers_since: AtomicU64,
    /// Replies that wait to be read, by age.
    unread: [AtomicUsize; BUCKETS],
    ending: OnceLock<Ending>,
    ended: Notify,
    /// True once it is to be left: no more calls, and streams drain.
    retiring: watch::Sender<bool>,
}

impl Peer {
    fn new(peers: Arc<Peers>, id: u64, address: IpAddr) -> Self {
        let (budget, tick) = (peers.budget.connection(), peers.tick());
        Self {
            peers,
            id,
            address,
            budget,
            calls: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            idle_since: AtomicU64::new(tick),
            headers_since: AtomicU64::new(0),
            unread: Default::default(),
            ending: OnceLock::new(),
            ended: Notify::new(),
            retiring: watch::Sender::new(false),
        }
    }

    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }

    /// Ends the connection as soon as its task runs.
    pub(super) fn end(&self, ending: Ending) {
        tracing::debug!(address = %self.address, why = ending.why, "ending a connection");
        if self.ending.set(ending).is_ok() {
            self.ended.notify_one();
        }
    }

    pub(super) fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }

    pub(in crate::grpc) fn request_timeout(&self) -> Duration {
        self.peers.bounds.request_timeout
    }

    pub(super) fn retire(&self) {
        self.retiring.send_replace(true);
    }

    pub(in crate::grpc) fn retiring(&self) -> watch::Receiver<bool> {
        self.retiring.subscribe()
    }

    // ---- what lasts too long ----

    fn check(&self, tick: u64) {
        let bounds = &self.peers.bounds;
        let headers = self.headers_since.load(Ordering::Relaxed);
        if headers > 0 && tick > headers + bounds.preface_timeout.as_secs() {
            let within = human(bounds.preface_timeout);
            self.end(Ending::abuse(format!("the headers of a call were not complete within {within}")));
        }
        let age = tick / self.age_ticks();
        let too_old = age.checked_sub(AGES + 1).map(|old| &self.unread[old as usize % BUCKETS]);
        if too_old.is_some_and(|unread| unread.load(Ordering::Relaxed) > 0) {
            self.peers.reached("read_timeout", bounds.read_timeout.as_secs() as usize);
            let within = human(bounds.read_timeout);
            self.end(Ending::abuse(format!("a reply was not read within {within}")));
        }
    }

    fn age_ticks(&self) -> u64 {
        self.peers.bounds.read_timeout.as_secs().div_ceil(AGES).max(1)
    }

    /// Headers of a call have begun, or have ended.
    pub(super) fn headers_open(&self, open: bool) {
        let since = if open { self.peers.tick() + 1 } else { 0 };
        if !open || self.headers_since.load(Ordering::Relaxed) == 0 {
            self.headers_since.store(since, Ordering::Relaxed);
        }
    }

    /// A reply waits to be read.
    pub(super) fn unread(self: &Arc<Self>) -> Unread {
        let bucket = (self.peers.tick() / self.age_ticks()) as usize % BUCKETS;
        self.unread[bucket].fetch_add(1, Ordering::Relaxed);
        Unread { peer: self.clone(), bucket }
    }

    // ---- what is too much ----

    pub(super) fn too_many_control_frames(&self) {
        let most = self.peers.bounds.control_frames_per_second;
        self.peers.reached("control_frames_per_second", most);
        self.end(Ending::abuse(format!("more than {most} frames in a second that carry nothing")));
    }

    /// A call, unless there are too many. Those that end leases keep a reserve.
    pub(super) fn begin_call(self: &Arc<Self>, kind: Kind) -> Result<OpenCall, String> {
        let calls = self.peers.calls.fetch_add(1, Ordering::Relaxed);
        let busy = kind != Kind::Foreign;
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.busy.fetch_add(usize::from(busy), Ordering::Relaxed);
        let open = OpenCall { peer: self.clone(), busy };
        let most = self.peers.bounds.calls;
        if calls >= if kind.settles() { most + most / 2 } else { most } {
            drop(open);
            self.peers.reached("calls", most);
            return Err(format!("{most} calls are open, the most that this server takes"));
        }
        Ok(open)
    }

    /// A call that waits: for work, or on a stream.
    pub(in crate::grpc) fn begin_wait(self: &Arc<Self>) -> Result<OpenWait, String> {
        let bounds = &self.peers.bounds;
        let all = self.peers.waits.fetch_add(1, Ordering::Relaxed);
        let own = self.waits.fetch_add(1, Ordering::Relaxed);
        let open = OpenWait(self.clone());
        if own >= bounds.waits_per_connection {
            let most = bounds.waits_per_connection;
            drop(open);
            self.peers.reached("waits_per_connection", most);
            return Err(format!(
                "{most} Claims that wait and Work streams are open on this connection, the most that it may have; \
                 use one Work stream, or more connections"
            ));
        }
        if all >= bounds.waits {
            let most = bounds.waits;
            drop(open);
            self.peers.reached("waits", most);
            return Err(format!("{most} Claims that wait and Work streams are open, the most that this server takes"));
        }
        Ok(open)
    }

    /// Messages of this connection are refused.
    pub(in crate::grpc) fn too_many_bytes(&self) -> String {
        self.peers.reached("message_bytes", self.peers.bounds.message_bytes);
        "too much of what was sent to this connection waits to be read; read replies, and ask for less at a time".into()
    }

    /// Replies that must not be refused have become too many.
    pub(super) fn check_reserve(&self) {
        if self.budget.is_over_reserve() {
            let most = self.peers.bounds.message_bytes_per_connection;
            self.peers.reached("message_bytes_per_connection", most);
            self.end(Ending::abuse("replies are not read"));
        }
    }
}

#[derive(Debug)]
pub(super) struct Unread {
    peer: Arc<Peer>,
    bucket: usize,
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.peer.unread[self.bucket].fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct OpenCall {
    peer: Arc<Peer>,
    busy: bool,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let Self { peer, busy } = self;
        peer.peers.calls.fetch_sub(1, Ordering::Relaxed);
        peer.calls.fetch_sub(1, Ordering::Relaxed);
        if *busy && peer.busy.fetch_sub(1, Ordering::Relaxed) == 1 {
            peer.idle_since.store(peer.peers.tick(), Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
pub(in crate::grpc) struct OpenWait(Arc<Peer>);

impl Drop for OpenWait {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Ordering::Relaxed);
        self.0.peers.waits.fetch_sub(1, Ordering::Relaxed);
    }
}
