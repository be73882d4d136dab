//! The decisions: pure functions of their arguments. Nothing here waits, reads a clock, rolls dice or knows a store.

pub mod backoff;
pub mod breaker;
pub mod chance;
pub mod dead_filter;
pub mod duration;
pub mod failure;
pub mod glob;
pub mod ids;
pub mod job;
pub mod lease;
pub mod limits;
pub mod pause;
pub mod policy;
pub mod presets;
pub mod rules;
pub mod sameness;
pub mod settings;
pub mod store_clock;
pub mod time;
pub mod verdict;
