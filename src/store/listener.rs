//! What a store tells by itself.

use crate::domain::{
    breaker::{BreakerName, BreakerState, Forced},
    ids::{JobId, QueueName},
    job::DeadReason,
    lease::Lease,
    time::Timestamp,
};

/// What a store tells while it works. Called after the commit; must return quickly.
pub trait Listener: Send + Sync + 'static {
    /// Something has become available: this queue could hand out so many jobs now. Never told of one that is paused or
    /// held back by its breaker.
    fn available(&self, queue: &QueueName, jobs: usize);

    /// A scheduled job of this queue has come due: a claim that looks now may get it, without a sweep. Comes at any time,
    /// and from a thread of its own.
    fn come_due(&self, queue: &QueueName);

    /// `sweep` has something to do at this time.
    fn due(&self, at: Timestamp);

    /// A job has become a dead letter.
    fn died(&self, notice: &DeadNotice);

    /// Somebody cancelled the job that is out under this lease.
    fn cancel_requested(&self, lease: Lease);

    /// A breaker has opened, closed or turned half open, or an operator has stepped in.
    fn breaker(&self, notice: &BreakerNotice);
}

/// For the log line that every dead letter gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadNotice {
    pub queue: QueueName,
    pub id: JobId,
    pub job_type: String,
    pub reason: DeadReason,
    pub attempts: u32,
    pub error_type: String,
    pub overflow: bool,
}

/// For the log line that every transition of a breaker gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerNotice {
    pub name: BreakerName,
    /// From now on.
    pub state: BreakerState,
    /// While OPEN: when probes begin.
    pub probe_at: Option<Timestamp>,
    /// What opened it last.
    pub error: String,
    pub forced: Option<Forced>,
}
