//! The memory that messages on their way may take: replies until they are read, requests until they are complete. By connection
//! and in all.

use crate::domain::Bounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A connection may have this part of what is left for all: the more is taken, the less each may take, so that a connection that
/// takes little finds some however many others take all they can.
const PART: usize = 8;

/// Of all connections.
#[derive(Debug)]
pub struct MessageBudget {
    most: usize,
    per_connection: usize,
    used: AtomicUsize,
}

impl MessageBudget {
    pub fn new(bounds: &Bounds) -> Arc<Self> {
        let (most, per_connection) = (bounds.message_bytes, bounds.message_bytes_per_connection);
        Arc::new(Self { most, per_connection, used: AtomicUsize::new(0) })
    }

    /// The part of a new connection.
    pub fn connection(self: &Arc<Self>) -> Arc<ConnectionBudget> {
        Arc::new(ConnectionBudget { all: self.clone(), used: AtomicUsize::new(0), refused: AtomicUsize::new(0) })
    }
}

/// Of one connection.
#[derive(Debug)]
pub struct ConnectionBudget {
    all: Arc<MessageBudget>,
    used: AtomicUsize,
    /// What was refused last: until there is room for it, trying again would only take jobs and return them.
    refused: AtomicUsize,
}

impl ConnectionBudget {
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// What it may take at most, what it has taken included.
    fn most(&self) -> usize {
        let left = self.all.most.saturating_sub(self.all.used.load(Ordering::Relaxed));
        self.all.per_connection.min(left / PART)
    }

    /// What it may still take.
    pub fn room(&self) -> usize {
        self.most().saturating_sub(self.used())
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

    fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.all.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Even what must not be refused has become too much.
    pub fn is_over_reserve(&self) -> bool {
        let all = self.all.used.load(Ordering::Relaxed) > self.all.most + self.all.most / 4;
        self.used() > 2 * self.all.per_connection || (all && self.used() > self.all.per_connection / PART)
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
        self.connection.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.connection.all.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
