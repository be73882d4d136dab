//! Jobs on their way to a caller: whatever drops them undelivered, they return to their queues.

use super::notifier::Notifier;
use crate::domain::{Lease, Timestamp};
use crate::queue::Delivered;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the jobs of a claim with a request id stay leased for a caller that has gone.
pub const ABANDONED_CLAIM_KEPT: Duration = Duration::from_secs(10);

/// A claim whose answer never reached its caller.
#[derive(Clone, Debug, Default)]
pub struct UndeliveredClaim {
    pub leases: Vec<Lease>,
    /// Of [`super::Claimed::answer`].
    pub answer: u64,
    /// How long the jobs wait for the caller to come again.
    pub after: Duration,
}

/// The jobs of a claim. Dropped undelivered, they return.
#[derive(Debug, Default)]
pub struct Handover {
    jobs: Vec<Delivered>,
    to_return: Option<Return>,
}

/// How jobs that are not delivered return.
struct Return {
    answer: u64,
    after: Duration,
    now: Timestamp,
    notifier: Arc<Notifier>,
    delivered: Arc<AtomicBool>,
}

impl Return {
    fn delivered(self) {
        self.delivered.store(true, Ordering::Release);
    }

    fn undelivered(self, leases: Vec<Lease>) {
        self.notifier.undelivered(UndeliveredClaim { leases, answer: self.answer, after: self.after }, self.now);
    }
}

impl std::fmt::Debug for Return {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Return").field(&self.answer).finish()
    }
}

impl Handover {
    pub(crate) fn push(&mut self, job: Delivered) {
        self.jobs.push(job);
    }

    /// From here on the jobs return, unless they are delivered. `request_id`: with one, the caller can come again.
    pub(crate) fn guard(&mut self, answer: u64, request_id: &str, now: Timestamp, notifier: Arc<Notifier>) {
        if !self.jobs.is_empty() {
            let after = if request_id.is_empty() { Duration::ZERO } else { ABANDONED_CLAIM_KEPT };
            self.to_return = Some(Return { answer, after, now, notifier, delivered: Arc::default() });
        }
    }

    /// They have reached their caller: from now on their leases speak for them.
    pub fn delivered(mut self) -> Vec<Delivered> {
        self.to_return.take().into_iter().for_each(Return::delivered);
        std::mem::take(&mut self.jobs)
    }

    /// The jobs, and what returns them until they are delivered.
    pub fn split(mut self) -> (Vec<Delivered>, Option<HandoverGuard>) {
        let guard = self.to_return.take().map(|to_return| HandoverGuard(leases(&self.jobs), Some(to_return)));
        (std::mem::take(&mut self.jobs), guard)
    }

    /// Becomes true when they have reached their caller.
    pub fn is_delivered(&self) -> Arc<AtomicBool> {
        self.to_return.as_ref().map(|to_return| to_return.delivered.clone()).unwrap_or_default()
    }
}

fn leases(jobs: &[Delivered]) -> Vec<Lease> {
    jobs.iter().map(|job| job.delivery.lease.clone()).collect()
}

impl Drop for Handover {
    fn drop(&mut self) {
        if let Some(to_return) = self.to_return.take() {
            to_return.undelivered(leases(&self.jobs));
        }
    }
}

/// Of a caller that has its jobs already.
impl From<Vec<Delivered>> for Handover {
    fn from(jobs: Vec<Delivered>) -> Self {
        Self { jobs, to_return: None }
    }
}

impl std::ops::Deref for Handover {
    type Target = [Delivered];

    fn deref(&self) -> &[Delivered] {
        &self.jobs
    }
}

impl<'a> IntoIterator for &'a Handover {
    type Item = &'a Delivered;
    type IntoIter = std::slice::Iter<'a, Delivered>;

    fn into_iter(self) -> Self::IntoIter {
        self.jobs.iter()
    }
}

/// Returns jobs whose bytes are on their way, unless they arrive.
#[derive(Debug)]
pub struct HandoverGuard(Vec<Lease>, Option<Return>);

impl HandoverGuard {
    pub fn delivered(mut self) {
        self.1.take().into_iter().for_each(Return::delivered);
    }
}

impl Drop for HandoverGuard {
    fn drop(&mut self) {
        if let Some(to_return) = self.1.take() {
            to_return.undelivered(std::mem::take(&mut self.0));
        }
    }
}
