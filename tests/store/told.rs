//! A listener that remembers.

use redrive::{
    domain::{ids::QueueName, lease::Lease, time::Timestamp},
    store::{BreakerNotice, DeadNotice, Listener},
};
use std::sync::Mutex;

/// What the store told, in order.
#[derive(Debug, Default)]
pub(crate) struct Told {
    available: Mutex<Vec<(String, usize)>>,
    come_due: Mutex<Vec<String>>,
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

    pub(crate) fn take_come_due(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.come_due))
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
        lock(&self.come_due).push(queue.to_string());
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
