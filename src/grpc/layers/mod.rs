//! What every call passes, from the socket to the service and back; a file each.
//!
//! ```text
//! socket → accept → connection (frames) → calls → request → trace → service
//! socket ← connection (write_coalescing) ← trace ← error_reason ← reply ← undelivered ← service
//! ```
//!
//! `peers` knows all connections, `peer` what one of them takes.

pub(super) mod accept;
pub(super) mod calls;
mod connection;
pub(super) mod deadline;
mod error_reason;
pub mod frames;
pub(super) mod peer;
pub(super) mod peers;
mod reply;
mod request;
mod trace;
pub(super) mod undelivered;
pub mod write_coalescing;

pub(super) use trace::record;
