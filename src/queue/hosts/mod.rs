//! How verbs run on each engine.

pub mod memory;
