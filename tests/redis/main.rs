//! The way to Redis, against real servers that are killed, frozen, filled up and cut off.

// Elapsed time is what some of these tests are about; and their helpers fail the way tests do.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod address;
mod clock;
mod cluster;
mod confirmed;
mod cut_off;
mod failover;
mod failover_monitor;
mod preflight;
mod replies;
mod scene;
mod servers;
mod start_checks;
mod storage;
mod subscriber;
mod tls;
mod working;
