//! The queue: every verb once, as read → decide → apply.
//!
//! A verb reads facts (`facts.rs`), asks the pure functions of `domain` what follows from them, and applies one batch whose
//! fences say what the decision was made from (`state_changes.rs` is the only writer of indexes). A fence that fails means that
//! the facts were old: the verb reads again.

mod api;
mod breakers;
mod claim;
mod claim_requests;
mod context;
mod copy;
mod due_timer;
mod encoding;
mod facts;
mod host;
mod notifier;
mod outcome;
mod pause;
mod records;
mod settle;
mod state_changes;
mod sweep;
mod undelivered;
mod verify;

pub use api::{Answer, Call, Parts, Verb, View, Viewed, run, view};
pub use context::{CallContext, Event, QueueMemory, StoreLimits};
pub use host::{Host, Queues, Reply, notifier};
pub use notifier::Notifier;
pub use verify::verify;
