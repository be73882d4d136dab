//! The queue: every verb once, as read → decide → apply.
//!
//! A verb reads facts (`facts.rs`), asks the pure functions of `domain` what follows from them, and applies one batch whose
//! fences say what the decision was made from (`state_changes.rs` is the only writer of indexes). A fence that fails means that
//! the facts were old: the verb reads again.

mod answers;
mod api;
mod breaker_keys;
mod breakers;
mod bulk;
mod calls;
mod cancel;
mod claim;
mod claim_requests;
mod claimed_bytes;
mod context;
mod cross_queue;
mod dead_letters;
mod due_timer;
mod encoding;
mod enqueue;
mod events;
mod facts;
mod find;
mod get_job;
mod handover;
mod host;
pub mod hosts;
mod import;
mod list_jobs;
mod new_queues;
mod notifier;
mod outcome;
mod queues;
mod records;
mod refusal;
mod removal;
mod requests;
mod requeue;
mod retention;
mod returned;
mod select;
mod settle;
mod sizes;
mod state_changes;
mod sweep;
mod undelivered;
mod verify;
mod views;
mod waiting_because;

/// The records of jobs, for the benchmarks alone.
#[doc(hidden)]
pub mod measured {
    use super::records;
    use crate::domain::Spec;
    use bytes::Bytes;

    pub fn write_job(spec: &Spec) -> Bytes {
        records::job(spec, 1, 0, None, &Default::default()).record
    }

    pub fn read_job(record: &Bytes) -> Option<Spec> {
        records::read_job(record, None).ok()
    }
}

pub use api::{Answer, Call, Parts, Verb, View, Viewed, run, view};
pub use calls::*;
pub use claimed_bytes::InHand;
pub use context::{CallContext, QueueMemory, StoreLimits};
pub use enqueue::Incoming;
pub use events::{BreakerEvent, DeadLetterEvent, DegradedEvent, Event, EventKind, Subscriber, Subscribers};
pub use handover::{ABANDONED_CLAIM_KEPT, Handover, HandoverGuard, UndeliveredClaim};
pub use host::{Host, Queues, Reply, notifier, poll_once};
pub use notifier::{Notifier, Setup};
pub use refusal::{Error, Refusal};
pub use verify::{FINDINGS_MAX, VerifiedQueue, VerifyProgress, VerifyReport, verify};
pub use views::*;
pub use waiting_because::waiting_because;
