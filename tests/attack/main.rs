//! What a hostile or broken client can take: each bound is exceeded once, against the real program, over raw sockets.
//!
//! `raw` speaks HTTP/2 as no library would; `beside` is the client that must not notice. `script/attack` runs the same attacks
//! for longer, and prints what they cost.

// Elapsed time is what some of these tests are about; and their helpers fail the way tests do.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::large_futures)]

mod addresses;
mod age;
mod beside;
mod by_hand;
mod connections;
mod decoding;
mod foreign;
mod frames;
mod queues;
mod raw;
mod rounds;
#[path = "../process/server.rs"]
#[allow(dead_code, reason = "other tests need the rest")]
mod server;
mod settlements;
mod stall;
mod unread;
mod waits;
