//! Outages over virtual time: the scenarios of `docs/outages.md`, and random downstreams.

mod downstream;
mod opposite;
mod random;
mod scenario;
mod scenarios;
mod simulation;
