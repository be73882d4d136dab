//! One connection, and what it takes.

use super::calls::Kind;
use super::peers::{Address, Ending, Of, Peers};
use crate::domain::duration::human;
use crate::grpc::status;
use crate::service::{ConnectionBudget, WorkConnection};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tonic::Status;

/// Ages of replies are told apart by this part of the time to read them.
const AGES: u64 = 4;
/// More than `AGES`, so that an age is not taken for the one before it.
const BUCKETS: usize = 8;
/// Queues that a call waits for, where all do that may wait.
const QUEUES_PER_WAIT: usize = 10;

#[derive(Debug)]
pub(in crate::grpc) struct Peer {
    pub(super) peers: Arc<Peers>,
    pub(super) id: u64,
    pub(super) address: Arc<Address>,
    pub(in crate::grpc) budget: Arc<ConnectionBudget>,
    calls: AtomicUsize,
    /// Those that are not of foreign streams.
    busy: AtomicUsize,
    waits: AtomicUsize,
    /// Requests that are being read.
    requests: AtomicUsize,
    /// Bytes that none of them has taken; the least in this tick; and of that what is held.
    data: AtomicUsize,
    least_data: AtomicUsize,
    still_data: AtomicUsize,
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
    pub(super) fn new(peers: Arc<Peers>, id: u64, address: Arc<Address>) -> Self {
        let (budget, tick) = (address.budget.connection(), peers.tick());
        Self {
            peers,
            id,
            address,
            budget,
            calls: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            data: AtomicUsize::new(0),
            least_data: AtomicUsize::new(0),
            still_data: AtomicUsize::new(0),
            idle_since: AtomicU64::new(tick),
            headers_since: AtomicU64::new(0),
            unread: Default::default(),
            ending: OnceLock::new(),
            ended: Notify::new(),
            retiring: watch::Sender::new(false),
        }
    }

    /// Since when; none: it has calls.
    pub(super) fn idle_since(&self) -> Option<u64> {
        let idle = self.busy.load(Ordering::Relaxed) == 0;
        idle.then(|| self.idle_since.load(Ordering::Relaxed))
    }

    /// Ends the connection as soon as its task runs.
    pub(super) fn end(&self, ending: Ending) {
        tracing::debug!(address = %self.address.ip, why = ending.why, "ending a connection");
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

    /// What a stream of work knows of its connection.
    pub(in crate::grpc) fn of_stream(&self) -> WorkConnection {
        let drain_within = self.peers.bounds.connection_age_grace;
        WorkConnection { budget: self.budget.clone(), retiring: self.retiring.subscribe(), drain_within }
    }

    // ---- what lasts too long ----

    pub(super) fn check(&self, tick: u64) {
        let bounds = &self.peers.bounds;
        self.hold_still_data();
        let headers = self.headers_since.load(Ordering::Relaxed);
        if headers > 0 && tick > headers + bounds.preface_timeout.as_secs() {
            self.says_nothing();
            let within = human(bounds.preface_timeout);
            self.end(Ending::abuse(format!("the headers of a call were not complete within {within}")));
        }
        let age = tick / self.age_ticks();
        let too_old = age.checked_sub(AGES + 1).map(|old| &self.unread[old as usize % BUCKETS]);
        if too_old.is_some_and(|unread| unread.load(Ordering::Relaxed) > 0) {
            self.peers.reached("read_timeout", bounds.read_timeout.as_secs() as usize, Of::Bytes);
            let within = human(bounds.read_timeout);
            self.end(Ending::abuse(format!("a reply was not read within {within}")));
        }
    }

    fn age_ticks(&self) -> u64 {
        self.peers.bounds.read_timeout.as_secs().div_ceil(AGES).max(1)
    }

    /// A connection on which no frame has come.
    pub(super) fn says_nothing(&self) {
        self.peers.reached("preface_timeout", self.peers.bounds.preface_timeout.as_secs() as usize, Of::Connections);
    }

    /// What is said to a call whose request has not come in time.
    pub(in crate::grpc) fn request_is_late(&self) -> Status {
        let within = self.peers.bounds.request_timeout;
        self.peers.reached("request_timeout", within.as_secs() as usize, Of::Calls);
        status::incomplete(&human(within))
    }

    /// Headers of a call have begun, or have ended. HTTP/2 refuses those that are too long, also where they are only so once they are
    /// decoded.
    pub(super) fn headers_open(&self, open: bool, bytes: usize) {
        let most = self.peers.bounds.header_bytes;
        if bytes > most {
            self.peers.reached("header_bytes", most, Of::Connections);
        }
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

    // ---- data of requests that has come and that no call takes ----

    pub(super) fn data_came(&self, bytes: usize) {
        self.data.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn data_taken(&self, bytes: usize) {
        let take = |data: usize| Some(data.saturating_sub(bytes));
        let before = self.data.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        self.least_data.fetch_min(before.saturating_sub(bytes), Ordering::Relaxed);
    }

    /// Of this tick what was never taken stands still, and is held.
    fn hold_still_data(&self) {
        if self.requests.load(Ordering::Relaxed) == 0 {
            // What a call has left untaken is known only when there is none.
            self.data.store(0, Ordering::Relaxed);
            self.least_data.store(0, Ordering::Relaxed);
        }
        let still = self.least_data.swap(self.data.load(Ordering::Relaxed), Ordering::Relaxed);
        let before = self.still_data.swap(still, Ordering::Relaxed);
        self.budget.add(still);
        self.budget.sub(before);
        if still > before {
            self.check_reserve();
        }
    }

    pub(super) fn request_begins(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn request_ends(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    // ---- what is too much ----

    pub(super) fn too_many_control_frames(&self) {
        let most = self.peers.bounds.control_frames_per_second;
        self.peers.reached("control_frames_per_second", most, Of::Connections);
        self.end(Ending::abuse(format!("more than {most} frames in a second that carry nothing")));
    }

    /// A call, unless there are too many. Those that end leases keep a reserve.
    pub(super) fn begin_call(self: &Arc<Self>, kind: Kind) -> Result<OpenCall, String> {
        let (peers, address) = (&self.peers, &self.address);
        let busy = kind != Kind::Foreign;
        let of_connection = peers.bounds.calls_per_connection;
        if self.calls.fetch_add(1, Ordering::Relaxed) + 1 >= of_connection {
            // HTTP/2 refuses the next one.
            peers.reached("calls_per_connection", of_connection, Of::Calls);
        }
        self.busy.fetch_add(usize::from(busy), Ordering::Relaxed);
        let all = peers.calls.fetch_add(1, Ordering::Relaxed);
        let of_address = address.calls.fetch_add(1, Ordering::Relaxed);
        let mut open = OpenCall { peer: self.clone(), busy, in_reserve: false };
        let (most, per_peer) = (peers.bounds.calls, peers.bounds.calls_per_peer());
        let (limit, bound, place) = if all >= most {
            ("calls", most, "")
        } else if of_address >= per_peer {
            ("calls_per_peer", per_peer, " from one address")
        } else {
            return Ok(open);
        };
        open.in_reserve = kind.settles() && all < most + most / 2 && of_address < per_peer + per_peer / 2;
        let begun = if open.in_reserve { Some(open) } else { None };
        peers.reached(limit, bound, Of::Calls);
        begun.ok_or_else(|| format!("{bound} calls are open{place}, the most that this server takes"))
    }

    /// A call that waits: for work in so many queues, or on a stream.
    pub(in crate::grpc) fn begin_wait(self: &Arc<Self>, queues: usize) -> Result<OpenWait, String> {
        let (peers, address, bounds) = (&self.peers, &self.address, &self.peers.bounds);
        let own = self.waits.fetch_add(1, Ordering::Relaxed);
        let all = peers.waits.fetch_add(1, Ordering::Relaxed);
        let of_address = address.waits.fetch_add(1, Ordering::Relaxed);
        let mut open = OpenWait { peer: self.clone(), queues: 0 };
        let (most, per_connection, per_peer) = (bounds.waits, bounds.waits_per_connection, bounds.waits_per_peer());
        let (limit, bound, place) = if own >= per_connection {
            let place = " on this connection, the most that it may have; use one Work stream, or more connections";
            ("waits_per_connection", per_connection, place)
        } else if all >= most {
            ("waits", most, ", the most that this server takes")
        } else if of_address >= per_peer {
            ("waits_per_peer", per_peer, " from one address, the most that this server takes")
        } else {
            open.for_queues(queues)?;
            return Ok(open);
        };
        drop(open);
        peers.reached(limit, bound, Of::Waits);
        Err(format!("{bound} Claims that wait and Work streams are open{place}"))
    }

    /// Messages of this connection are refused.
    pub(in crate::grpc) fn too_many_bytes(&self) -> String {
        self.peers.reached("message_bytes", self.peers.bounds.message_bytes, Of::Bytes);
        "too much of what was sent to this connection waits to be read; read replies, and ask for less at a time".into()
    }

    /// Replies that must not be refused have become too many.
    pub(in crate::grpc) fn check_reserve(&self) {
        if self.budget.is_over_reserve() {
            let most = self.peers.bounds.message_bytes_per_connection;
            self.peers.reached("message_bytes_per_connection", most, Of::Bytes);
            self.end(Ending::abuse("replies are not read"));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.budget.sub(self.still_data.load(Ordering::Relaxed));
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
    /// Only what ends leases has a place here.
    pub(super) in_reserve: bool,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let Self { peer, busy, .. } = self;
        peer.peers.calls.fetch_sub(1, Ordering::Relaxed);
        peer.address.calls.fetch_sub(1, Ordering::Relaxed);
        peer.calls.fetch_sub(1, Ordering::Relaxed);
        if *busy && peer.busy.fetch_sub(1, Ordering::Relaxed) == 1 {
            peer.idle_since.store(peer.peers.tick(), Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
pub(in crate::grpc) struct OpenWait {
    peer: Arc<Peer>,
    queues: usize,
}

impl OpenWait {
    /// It waits for work in so many queues more.
    pub(in crate::grpc) fn for_queues(&mut self, queues: usize) -> Result<(), String> {
        let (peers, address) = (&self.peer.peers, &self.peer.address);
        self.queues += queues;
        let all = peers.waited_for.fetch_add(queues, Ordering::Relaxed) + queues;
        let of_address = address.waited_for.fetch_add(queues, Ordering::Relaxed) + queues;
        let most = QUEUES_PER_WAIT * peers.bounds.waits;
        let per_peer = QUEUES_PER_WAIT * peers.bounds.waits_per_peer();
        if all <= most && of_address <= per_peer {
            return Ok(());
        }
        peers.reached("waits", peers.bounds.waits, Of::Waits);
        let (most, place) = if all > most { (most, "") } else { (per_peer, " of one address") };
        Err(format!(
            "all calls{place} that wait name {most} queues together, the most that this server takes; name fewer"
        ))
    }
}

impl Drop for OpenWait {
    fn drop(&mut self) {
        let Self { peer, queues } = self;
        peer.waits.fetch_sub(1, Ordering::Relaxed);
        peer.peers.waits.fetch_sub(1, Ordering::Relaxed);
        peer.peers.waited_for.fetch_sub(*queues, Ordering::Relaxed);
        peer.address.waits.fetch_sub(1, Ordering::Relaxed);
        peer.address.waited_for.fetch_sub(*queues, Ordering::Relaxed);
    }
}
