//! What a worker has been handed and has not settled, as far as its stream knows.

use crate::domain::{Lease, Outcome, Timestamp};
use crate::queue::{Delivered, Nack, Settled};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a job takes beside its body.
const OVERHEAD_BYTES: usize = 320;

#[derive(Debug, Default)]
pub(super) struct InFlight {
    jobs: HashMap<Lease, JobInFlight>,
    bytes: usize,
}

#[derive(Debug)]
struct JobInFlight {
    bytes: usize,
    expires_at: Timestamp,
    started: bool,
    /// The transport has it.
    delivered: Arc<AtomicBool>,
}

/// The leases that settlements name, in their order.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) ended: Vec<Lease>,
    pub(super) extended: Vec<Lease>,
}

impl InFlight {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn has(&self, lease: &Lease) -> bool {
        self.jobs.contains_key(lease)
    }

    pub(super) fn add(&mut self, job: &Delivered, delivered: Arc<AtomicBool>) {
        let bytes = job.spec.body.bytes().len() + OVERHEAD_BYTES;
        self.bytes += bytes;
        let expires_at = job.delivery.expires_at;
        self.jobs.insert(job.delivery.lease.clone(), JobInFlight { bytes, expires_at, started: false, delivered });
    }

    pub(super) fn start(&mut self, lease: &Lease) {
        if let Some(job) = self.jobs.get_mut(lease) {
            job.started = true;
        }
    }

    /// Bytes that may still be handed over. A worker that has nothing gets a job of any size.
    pub(super) fn room(&self, most: usize) -> usize {
        if self.jobs.is_empty() { most.max(1) } else { most.saturating_sub(self.bytes) }
    }

    fn remove(&mut self, lease: &Lease) {
        if let Some(job) = self.jobs.remove(lease) {
            self.bytes -= job.bytes;
        }
    }

    /// Whatever the answer: a lease that was acked or nacked is no longer out, and one that cannot be extended neither.
    pub(super) fn settled(&mut self, named: &Named, settled: &Settled) {
        for lease in &named.ended {
            self.remove(lease);
        }
        for (lease, extended) in named.extended.iter().zip(&settled.extensions) {
            match (extended, self.jobs.get_mut(lease)) {
                (Ok(extended), Some(job)) => job.expires_at = extended.expires_at,
                (Err(_), Some(_)) => self.remove(lease),
                (_, None) => {}
            }
        }
    }

    /// Leases that ran out leave room for others.
    pub(super) fn forget_expired(&mut self, now: Timestamp) {
        let over: Vec<Lease> =
            self.jobs.iter().filter(|(_, job)| job.expires_at <= now).map(|(lease, _)| lease.clone()).collect();
        for lease in &over {
            self.remove(lease);
        }
    }

    /// What the transport took and the worker has not begun, as it ends with the stream.
    pub(super) fn interrupted(&self) -> Vec<Nack> {
        let lost = self.jobs.iter().filter(|(_, job)| {
            // What the transport never took goes back by itself.
            !job.started && job.delivered.load(Ordering::Acquire)
        });
        let nack = |(lease, _): (&Lease, &JobInFlight)| Nack {
            lease: lease.clone(),
            outcome: Outcome::Interrupted,
            checkpoint: String::new(),
        };
        lost.map(nack).collect()
    }
}
