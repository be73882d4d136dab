//! The memory that messages on their way may take: replies until they are read, requests until they are complete. In all, by
//! address and by connection.

use crate::domain::Bounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A connection may have this part of what is left for all, and that of what is left for its address: the more is taken, the less
/// each may take, so that a connection that takes little finds some however many others take all they can.
const PART: usize = 8;
const PART_OF_ADDRESS: usize = 3;
/// What must not be refused may take this part more, of an address and of all; beyond that, connections are ended.
const RESERVE_PART: usize = 16;
/// A connection that has less may have so much in any case, as long as twice the reserve is not taken.
const FLOOR: usize = 64 << 10;

/// Of all connections.
#[derive(Debug)]
pub struct MessageBudget {
    most: usize,
    per_address: usize,
    per_connection: usize,
    used: AtomicUsize,
    addresses: AtomicUsize,
}

impl MessageBudget {
    pub fn new(bounds: &Bounds) -> Arc<Self> {
        let (most, per_address) = (bounds.message_bytes, bounds.message_bytes_per_peer());
        let per_connection = bounds.message_bytes_per_connection;
        let (used, addresses) = Default::default();
        Arc::new(Self { most, per_address, per_connection, used, addresses })
    }

    /// The part of a new address.
    pub fn address(self: &Arc<Self>) -> Arc<AddressBudget> {
        self.addresses.fetch_add(1, Ordering::Relaxed);
        let (used, connections) = Default::default();
        Arc::new(AddressBudget { all: self.clone(), used, connections })
    }
}

/// Of the connections of one address.
#[derive(Debug)]
pub struct AddressBudget {
    all: Arc<MessageBudget>,
    used: AtomicUsize,
    connections: AtomicUsize,
}

impl AddressBudget {
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// What it may take, of what others leave.
    fn most(&self) -> usize {
        let all = &self.all;
        let others = all.used.load(Ordering::Relaxed).saturating_sub(self.used());
        let left = all.most.saturating_sub(others) as u128;
        (left * all.per_address as u128 / all.most as u128) as usize
    }

    /// The part of a new connection.
    pub fn connection(self: &Arc<Self>) -> Arc<ConnectionBudget> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let (used, refused) = Default::default();
        Arc::new(ConnectionBudget { address: self.clone(), used, refused })
    }
}

impl Drop for AddressBudget {
    fn drop(&mut self) {
        self.all.addresses.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Of one connection.
#[derive(Debug)]
pub struct ConnectionBudget {
    address: Arc<AddressBudget>,
    used: AtomicUsize,
    /// What was refused last: until there is room for it, trying again would only take jobs and return them.
    refused: AtomicUsize,
}

impl ConnectionBudget {
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// What it may still take.
    pub fn room(&self) -> usize {
        let (address, all) = (&self.address, &self.address.all);
        let (used, of_address) = (all.used.load(Ordering::Relaxed), address.used());
        let (most_of_address, reserve) = (address.most(), all.most / RESERVE_PART);
        let left = all.most.saturating_sub(used) / PART;
        let left_of_address = most_of_address.saturating_sub(of_address) / PART_OF_ADDRESS;
        let most = all.per_connection.min(left).min(left_of_address);
        let floor = used < all.most + 2 * reserve && of_address < most_of_address + 2 * reserve;
        most.max(if floor { FLOOR } else { 0 }).saturating_sub(self.used())
    }

    /// As `room`; None while it is less than what was refused last.
    pub fn room_for_jobs(&self) -> Option<usize> {
        let room = self.room();
        (room > self.refused.load(Ordering::Relaxed)).then_some(room)
    }

    /// None: it would be too much.
    pub fn try_hold(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        let fits = bytes <= self.room();
        self.refused.store(if fits { 0 } else { bytes }, Ordering::Relaxed);
        fits.then(|| self.hold(bytes))
    }

    /// Also beyond the bounds: for what must not be refused.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.add(bytes);
        Held { connection: self.clone(), bytes }
    }

    /// Held without a guard.
    pub fn add(&self, bytes: usize) {
        for used in [&self.used, &self.address.used, &self.address.all.used] {
            used.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub fn sub(&self, bytes: usize) {
        for used in [&self.used, &self.address.used, &self.address.all.used] {
            used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Even what must not be refused has become too much: of this connection; or of its address or of all, and then it is one of
    /// those that take more than an equal part.
    pub fn is_over_reserve(&self) -> bool {
        let (address, all) = (&self.address, &self.address.all);
        let (own, of_address, used) = (self.used(), address.used(), all.used.load(Ordering::Relaxed));
        let (most_of_address, reserve) = (address.most(), all.most / RESERVE_PART);
        let equal = |most: usize, among: &AtomicUsize| most / among.load(Ordering::Relaxed).max(1);
        let takes_more = own > equal(most_of_address, &address.connections).min(all.per_connection / PART);
        let over_all = used > all.most + reserve && of_address > equal(all.most, &all.addresses);
        let over = of_address > most_of_address + reserve || over_all;
        own > 2 * all.per_connection || over && takes_more
    }
}

impl Drop for ConnectionBudget {
    fn drop(&mut self) {
        self.address.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Taken of the budget until it is dropped.
#[derive(Debug)]
pub struct Held {
    connection: Arc<ConnectionBudget>,
    bytes: usize,
}

impl Held {
    pub fn add(&mut self, bytes: usize) {
        self.connection.add(bytes);
        self.bytes += bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.connection.sub(self.bytes);
    }
}
