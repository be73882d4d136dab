//! Claims that wait for work. As many are notified as there is work for, in the order they came.
//!
//! A waiter registers before it looks for work, so nothing that comes between looking and waiting is missed. Those that were
//! notified and have not looked yet count for what they can take, so a burst notifies none for nothing. A waiter that leaves
//! with an unused notification passes it on, and every claim that leaves work behind notifies the next waiter; so a job is
//! never ready while a claim waits for it.

use crate::domain::{Lease, QueueName, Timestamp};
use crate::lock::lock;
use crate::queue::{Event, EventKind, Subscriber};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, broadcast};

/// Cancelled jobs that a stream has not received yet; one that falls behind learns of the rest by Extend.
const CANCELS_KEPT: usize = 1_024;

#[derive(Debug)]
pub struct Waiters {
    registry: Mutex<Registry>,
    /// Leases whose jobs were cancelled.
    cancels: broadcast::Sender<Lease>,
    /// When the sweeper is needed.
    due: Mutex<Option<Timestamp>>,
    due_changed: Notify,
}

#[derive(Debug, Default)]
struct Registry {
    next: u64,
    registered: HashMap<u64, Registered>,
    by_queue: HashMap<QueueName, QueueWaiters>,
}

#[derive(Debug)]
struct Registered {
    queues: Vec<QueueName>,
    wants: usize,
    /// And has not looked yet.
    notified: bool,
    notify: Arc<Notify>,
}

/// The waiters of one queue.
#[derive(Debug, Default)]
struct QueueWaiters {
    /// In the order they came.
    waiting: BTreeSet<u64>,
    /// What those that are notified can take.
    notified_for: usize,
}

impl Registry {
    /// The waiter looks now, and goes on waiting if it finds nothing.
    fn waits(&mut self, number: u64) {
        let Some(waiter) = self.registered.get_mut(&number) else {
            return;
        };
        let was_notified = std::mem::take(&mut waiter.notified);
        for queue in &waiter.queues {
            let queue_waiters = self.by_queue.entry(queue.clone()).or_default();
            queue_waiters.waiting.insert(number);
            if was_notified {
                queue_waiters.notified_for -= waiter.wants;
            }
        }
    }

    fn notify(&mut self, number: u64) {
        let Some(waiter) = self.registered.get_mut(&number) else {
            return;
        };
        waiter.notified = true;
        waiter.notify.notify_one();
        for queue in &waiter.queues {
            if let Some(queue_waiters) = self.by_queue.get_mut(queue) {
                queue_waiters.waiting.remove(&number);
                queue_waiters.notified_for += waiter.wants;
            }
        }
    }

    /// Notifies waiters until those that are notified could take `jobs`.
    fn notify_for(&mut self, queue: &QueueName, jobs: usize) {
        while let Some(queue_waiters) = self.by_queue.get(queue)
            && queue_waiters.notified_for < jobs
            && let Some(&number) = queue_waiters.waiting.first()
        {
            self.notify(number);
        }
    }

    fn leave(&mut self, number: u64) {
        let Some(waiter) = self.registered.remove(&number) else {
            return;
        };
        for queue in &waiter.queues {
            let Some(queue_waiters) = self.by_queue.get_mut(queue) else {
                continue;
            };
            queue_waiters.waiting.remove(&number);
            if waiter.notified {
                // It never looked at what it was notified of: another one must.
                let for_all = queue_waiters.notified_for;
                queue_waiters.notified_for -= waiter.wants;
                self.notify_for(queue, for_all);
            }
            let unused = |waiters: &QueueWaiters| waiters.waiting.is_empty() && waiters.notified_for == 0;
            if self.by_queue.get(queue).is_some_and(unused) {
                self.by_queue.remove(queue);
            }
        }
    }
}

impl Default for Waiters {
    fn default() -> Self {
        let (cancels, _) = broadcast::channel(CANCELS_KEPT);
        Self { registry: Mutex::default(), cancels, due: Mutex::default(), due_changed: Notify::new() }
    }
}

impl Waiters {
    /// Nothing is remembered of waiters that have left.
    pub fn is_empty(&self) -> bool {
        let registry = self.registry();
        registry.by_queue.is_empty() && registry.registered.is_empty()
    }

    /// Receives the leases of cancelled jobs from now on.
    pub(super) fn cancels(&self) -> broadcast::Receiver<Lease> {
        self.cancels.subscribe()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    /// For a claim that could take `wants` jobs of these queues.
    pub fn register(self: &Arc<Self>, queues: Vec<QueueName>, wants: usize) -> Waiter {
        let mut registry = self.registry();
        let number = registry.next;
        registry.next += 1;
        let notify = Arc::new(Notify::new());
        let waiter = Registered { queues, wants, notified: false, notify: notify.clone() };
        registry.registered.insert(number, waiter);
        registry.waits(number);
        Waiter { number, notify, waiters: self.clone() }
    }

    /// Those that claims wait for.
    pub(super) fn queues(&self) -> Vec<QueueName> {
        self.registry().by_queue.keys().cloned().collect()
    }

    /// Sleeps until something earlier is due than was known; the sweeper's.
    pub(super) async fn due_changed(&self) {
        self.due_changed.notified().await;
    }

    /// Takes the earliest time announced since the last call.
    pub(super) fn take_due(&self) -> Option<Timestamp> {
        lock(&self.due).take()
    }
}

impl Subscriber for Waiters {
    fn wants(&self, kind: EventKind) -> bool {
        use EventKind::{Available, CancelRequested, JobDue, SweepDue};
        matches!(kind, Available | JobDue | SweepDue | CancelRequested)
    }

    fn event(&self, event: &Event) {
        match event {
            Event::Available { queue, jobs } => self.registry().notify_for(queue, *jobs),
            Event::JobDue { queue } => self.registry().notify_for(queue, 1),
            Event::SweepDue { at } => {
                let mut due = lock(&self.due);
                if due.is_none_or(|earlier| *at < earlier) {
                    *due = Some(*at);
                    self.due_changed.notify_one();
                }
            }
            Event::CancelRequested(lease) => {
                // Only streams subscribe; without one there is no receiver.
                let _ = self.cancels.send(lease.clone());
            }
            Event::Due { .. } | Event::DeadLettered(_) | Event::Breaker(_) | Event::Degraded(_) => {}
        }
    }
}

/// A registered waiter; unregistered when dropped.
#[derive(Debug)]
pub struct Waiter {
    number: u64,
    notify: Arc<Notify>,
    waiters: Arc<Waiters>,
}

impl Waiter {
    /// Sleeps until there may be work. A waiter that finds nothing keeps its turn.
    pub async fn notified(&self) {
        self.notify.notified().await;
        self.waiters.registry().waits(self.number);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.waiters.registry().leave(self.number);
    }
}
