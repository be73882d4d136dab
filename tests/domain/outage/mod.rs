//! Outages over virtual time: the scenarios of `docs/outages.md`, and random downstreams.

mod downstream;
mod scenarios;
mod simulation;
