//! A subscriber that remembers.

use redrive::domain::{Lease, Timestamp};
use redrive::queue::{BreakerEvent, DeadLetterEvent, DegradedEvent, Event, EventKind, Subscriber};

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The store events, in order.
#[derive(Debug, Default)]
pub(crate) struct RecordedEvents {
    available: Mutex<Vec<(String, usize)>>,
    come_due: Mutex<VecDeque<String>>,
    has_come_due: Condvar,
    due: Mutex<Vec<Timestamp>>,
    died: Mutex<Vec<DeadLetterEvent>>,
    breakers: Mutex<Vec<BreakerEvent>>,
    degraded: Mutex<Vec<DegradedEvent>>,
    cancels: Mutex<Vec<Lease>>,
    /// While a test holds this, the store waits where it tells of available jobs.
    pub(crate) gate: Mutex<()>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics with this lock")
}

impl RecordedEvents {
    pub(crate) fn take_available(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut lock(&self.available))
    }

    /// Waits for the next queue that something has come due in.
    pub(crate) fn next_come_due(&self) -> String {
        let patience = Duration::from_secs(20);
        let come_due = lock(&self.come_due);
        let waited = self.has_come_due.wait_timeout_while(come_due, patience, |due| due.is_empty());
        let (mut come_due, _) = waited.expect("no thread panics with this lock");
        come_due.pop_front().expect("something comes due")
    }

    pub(crate) fn take_died(&self) -> Vec<DeadLetterEvent> {
        std::mem::take(&mut lock(&self.died))
    }

    pub(crate) fn take_breakers(&self) -> Vec<BreakerEvent> {
        std::mem::take(&mut lock(&self.breakers))
    }

    pub(crate) fn take_degraded(&self) -> Vec<DegradedEvent> {
        std::mem::take(&mut lock(&self.degraded))
    }

    pub(crate) fn take_cancels(&self) -> Vec<Lease> {
        std::mem::take(&mut lock(&self.cancels))
    }

    pub(crate) fn take_due(&self) -> Vec<Timestamp> {
        std::mem::take(&mut lock(&self.due))
    }
}

impl Subscriber for RecordedEvents {
    fn wants(&self, kind: EventKind) -> bool {
        kind != EventKind::Due
    }

    fn event(&self, event: &Event) {
        match event {
            Event::Available { queue, jobs } => {
                let _open = lock(&self.gate);
                lock(&self.available).push((queue.to_string(), *jobs));
            }
            Event::JobDue { queue } => {
                lock(&self.come_due).push_back(queue.to_string());
                self.has_come_due.notify_one();
            }
            Event::SweepDue { at } => lock(&self.due).push(*at),
            Event::DeadLettered(notice) => lock(&self.died).push(notice.clone()),
            Event::CancelRequested(lease) => lock(&self.cancels).push(lease.clone()),
            Event::Breaker(notice) => lock(&self.breakers).push((**notice).clone()),
            Event::Degraded(notice) => lock(&self.degraded).push(notice.clone()),
            Event::Due { .. } => {}
        }
    }
}
