//! What every engine must do with tables, indexes, fences and takes. An engine joins by one `impl` in `engines.rs`, one line
//! in `on_every_engine` and one test in `differential`.
//!
//! Scenarios say the contract one sentence at a time. `differential` generates what they do not think of, and compares an
//! engine with the one in memory after every step. Time stands still until a scenario moves it.

#![allow(clippy::unwrap_used, reason = "a test that unwraps nothing fails, as it should")]

#[macro_use]
mod fixture;
mod engines;
mod on_redis;
#[path = "../store/redis_server.rs"]
mod redis_server;

mod bytes;
mod catalogue;
mod differential;
mod fences;
mod groups;
mod indexes;
mod leases;
mod records;
mod restart;
mod sqlite;
mod sqlite_files;
mod sqlite_writer;
mod take;
mod take_limits;
mod take_records;
mod take_rules;
