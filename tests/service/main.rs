//! The service as its users and its attackers meet it: the real stack, in process, behind a real socket.

#![allow(clippy::unwrap_used, reason = "a test that unwraps nothing fails, as it should")]
#![allow(clippy::large_futures, reason = "the requests are large, and a test has room for them")]

mod bad_claim;
mod bad_dead_letters;
mod bad_enqueue;
mod bad_operator;
mod bad_settle;
mod bad_times;
mod bodies;
mod breaker_keys;
mod breakers;
mod claiming;
mod completed;
mod connections;
mod counting;
mod dead_letter_stats;
mod dead_letters;
mod error_table;
mod failing;
mod filters;
mod idempotency;
mod leases;
mod listing;
mod looking;
mod outage;
mod outage_status;
mod pausing;
mod purge;
mod reflection;
mod reminder;
mod requeue;
mod retention;
mod round_robin;
mod round_trips;
mod scene;
mod seeds;
mod sent_round;
mod server;
mod settling;
mod shapes;
mod stats;
mod stepping_in;
mod unclaimed;
mod waiters;
mod waiting_because;
mod waking;
mod work;
mod write_coalescing;
