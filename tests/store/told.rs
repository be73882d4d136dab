//! A listener that remembers.

use redrive::{
    domain::{ids::QueueName, lease::Lease, time::Timestamp},
    store::{BreakerNotice, DeadNotice, Listener},
};
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex},
    time::Duration,
};

/// What the store told, in order.
#[derive(Debug, Default)]
pub(crate) struct Told {
    available: Mutex<Vec<(String, usize)>>,
    come_due: Mutex<VecDeque<String>>,
    has_come_due: Condvar,
    due: Mutex<Vec<Timestamp>>,
    died: Mutex<Vec<DeadNotice>>,
    breakers: Mutex<Vec<BreakerNotice>>,
    cancels: Mutex<Vec<Lease>>,
    /// While a test holds this, the store waits where it tells of available jobs.
    pub(crate) gate: Mutex<()>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics with this lock")
}

impl Told {
    pub(crate) fn take_available(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut lock(&self.available))
    }

    /// Waits for the next queue that something has come due in.
    pub(crate) fn next_come_due(&self) -> String {
        let patience = Duration::from_secs(20);
        let come_due = lock(&self.come_due);
        let waited = self.has_come_due.wait_timeout_while(come_due, patience, |due| due.is_empty());
        let (mut come_due, _) = waited.expect("nobody panics with this lock");
        come_due.pop_front().expect("something comes due")
    }

    pub(crate) fn take_died(&self) -> Vec<DeadNotice> {
        std::mem::take(&mut lock(&self.died))
    }

    pub(crate) fn take_breakers(&self) -> Vec<BreakerNotice> {
        std::mem::take(&mut lock(&self.breakers))
    }

    pub(crate) fn take_cancels(&self) -> Vec<Lease> {
        std::mem::take(&mut lock(&self.cancels))
    }

    pub(crate) fn take_due(&self) -> Vec<Timestamp> {
        std::mem::take(&mut lock(&self.due))
    }
}

impl Listener for Told {
    fn available(&self, queue: &QueueName, jobs: usize) {
        let _open = lock(&self.gate);
        lock(&self.available).push((queue.to_string(), jobs));
    }

    fn come_due(&self, queue: &QueueName) {
        lock(&self.come_due).push_back(queue.to_string());
        self.has_come_due.notify_one();
    }

    fn due(&self, at: Timestamp) {
        lock(&self.due).push(at);
    }

    fn died(&self, notice: &DeadNotice) {
        lock(&self.died).push(notice.clone());
    }

    fn cancel_requested(&self, lease: Lease) {
        lock(&self.cancels).push(lease);
    }

    fn breaker(&self, notice: &BreakerNotice) {
        lock(&self.breakers).push(notice.clone());
    }
}
