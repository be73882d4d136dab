//! The queue: every verb once, as read → decide → apply.
//!
//! A verb reads facts (`facts.rs`), asks the pure functions of `domain` what follows from them, and applies one batch whose
//! fences say what the decision was made from (`state_changes.rs` is the only writer of indexes). A fence that fails means that
//! the facts were old: the verb reads again.

mod api;
mod breakers;
mod bulk;
mod cancel;
mod claim;
mod claim_requests;
mod context;
mod copy;
mod cross_queue;
mod dead_letters;
mod due_timer;
mod encoding;
mod enqueue;
mod facts;
mod find;
#[cfg(test)]
mod fixture;
mod get_job;
mod host;
pub mod hosts;
mod list_jobs;
mod notifier;
mod outcome;
mod pause;
mod purge;
mod queues;
mod records;
mod removal;
mod requests;
mod requeue;
mod retention;
mod select;
mod settle;
mod state_changes;
mod stats;
mod sweep;
mod undelivered;
mod verify;

/// The records of jobs, for the benchmarks alone.
#[doc(hidden)]
pub mod measured {
    use super::records;
    use crate::domain::job::Spec;
    use bytes::Bytes;

    pub fn write_job(spec: &Spec) -> Bytes {
        records::job(spec, 1, None, &Default::default()).record
    }

    pub fn read_job(record: &Bytes) -> Option<Spec> {
        records::read_job(record, None).ok()
    }
}

pub use api::{Answer, Call, Parts, Verb, View, Viewed, run, view};
pub use context::{CallContext, Event, QueueMemory, StoreLimits};
pub use enqueue::Incoming;
pub use host::{Host, Queues, Reply, notifier, poll_once};
pub use notifier::Notifier;
pub use verify::verify;
