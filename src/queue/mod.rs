//! The queue: every verb once, as read → decide → apply.
//!
//! A verb reads facts (`facts.rs`), asks the pure functions of `domain` what follows from them, and applies one batch whose
//! fences say what the decision was made from (`state_changes.rs` is the only writer of indexes). A fence that fails means that
//! the facts were old: the verb reads again.

pub(crate) mod cancel;
pub(crate) mod context;
pub(crate) mod encoding;
pub(crate) mod enqueue;
pub(crate) mod facts;
pub(crate) mod find;
pub(crate) mod get_job;
pub(crate) mod list_jobs;
pub(crate) mod records;
pub(crate) mod state_changes;

pub use context::{CallContext, Event, QueueMemory, StoreLimits};
