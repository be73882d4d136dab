//! The real program over real gRPC: power cuts, kills, clocks, shutdown, and everything that can go wrong at the start.
//!
//! `server` starts and ends the program, `tap` looks at the bytes of a connection, `load` keeps it busy and remembers
//! what was acknowledged, `power_cut_image` builds what a disk holds after a power cut.

// Elapsed time is what some of these tests are about; and their helpers fail the way tests do.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod bench;
mod clock;
mod command_line;
mod gone_callers;
mod kill;
mod ledger;
mod load;
mod log_lines;
mod migrate;
mod power_cut;
mod power_cut_image;
mod reload;
mod requests;
mod server;
#[path = "../redis/servers/mod.rs"]
mod servers;
#[path = "../service/shapes.rs"]
mod shapes;
mod shim;
mod shutdown;
mod sick_disk;
mod start_up;
mod states;
mod tap;
mod verify;
mod wall_clock;
