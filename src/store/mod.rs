//! Where jobs are kept: an engine knows tables, indexes and fences (`storage.rs`), and nothing of jobs.
//!
//! A [`StoreError`] means that the engine itself is not well, and that nothing of the call was applied unless it says so.

mod error;
mod finding;
pub mod memory;
pub mod redis;
mod room;
pub mod sqlite;
pub mod storage;

pub use error::*;
pub use finding::*;
pub use room::*;
