//! Several servers on one Redis: the real program, real Redis processes, real sockets, and what goes wrong with each.
//!
//! `fleet` starts the servers, `load` keeps them busy, `ledger` remembers what was promised and counts what was not kept.

// Elapsed time is what some of these tests are about; and their helpers fail the way tests do.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod clocks;
mod faults;
mod fleet;
mod hop;
mod ledger;
mod load;
mod moves;
#[path = "../service/shapes.rs"]
mod shapes;
mod shortage;
mod stream;
mod together;

// The other crates make use of the rest.
#[allow(dead_code)]
#[path = "../process/power_cut_image/random.rs"]
mod random;
#[path = "../process/requests.rs"]
mod requests;
#[allow(dead_code)]
#[path = "../process/server.rs"]
mod server;
#[path = "../redis/servers/mod.rs"]
mod servers;
#[path = "../process/wall_clock.rs"]
mod wall_clock;
