//! How verbs run on each engine.

pub mod memory;
pub mod redis;
pub mod sqlite;
