//! What every engine must do. The semantics live here; an engine joins by one line in `harness.rs` and passes.
//!
//! Time is the harness's own, chance is seeded, nothing sleeps. `model` says the same once more as a program of its own,
//! and `machine.rs` lets chance look for a difference.

#![allow(clippy::unwrap_used, reason = "a test that unwraps nothing fails, as it should")]

#[macro_use]
mod harness;
mod builders;
mod engines;
mod redis_server;

mod abandoned;
mod backlog;
mod breaker;
mod breaker_kept;
mod breaker_key_limits;
mod breaker_keys;
mod cancel;
mod claim;
mod completed;
mod corruption;
mod corruption_redis;
mod counts;
mod dead_breaker;
mod dead_letters;
mod degraded;
mod enqueue;
mod failures;
mod filters;
mod footprint;
mod history;
mod holds;
mod import;
mod job_events;
mod keys;
mod killed;
mod limits;
mod list;
mod machine;
mod model;
mod newer_records;
mod opening;
mod order;
mod own_ids;
mod pause;
mod purge;
mod recorded_events;
mod recovering;
mod repeating;
mod requeue;
mod restart;
mod retention;
mod returned;
mod run_now;
mod servers;
mod settle;
mod shared_outcome_stats;
mod stats;
mod steps;
mod store_events;
mod stored_format;
mod time;
mod together;
mod verified;
mod verify;
mod verify_redis;
