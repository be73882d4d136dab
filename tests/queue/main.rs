//! Verbs and views of the queue on the engine in memory, down to what they store.

#![allow(clippy::unwrap_used, reason = "a test that unwraps nothing fails, as it should")]

mod bulk;
mod cancel;
mod copy;
mod enqueue;
mod imported;
mod in_doubt;
mod jobs_fixture;
mod keys;
mod list_jobs;
mod migrate;
mod newer_records;
mod overtaken;
mod unknown_fields;
mod verify;
