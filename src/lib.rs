//! redrive: a durable job queue behind gRPC that decides what happens when a job fails.
//!
//! In reading order: `domain` decides (pure, no I/O), `queue` has every verb once, `store` keeps (tables, indexes and fences,
//! and the engines that have them), `service` is for what waits, `grpc` speaks the wire contract, `config` reads what the
//! operator wants, `serve` puts it together; `bench` is a client that measures it. Which folder may use which is in
//! ARCHITECTURE.md, and `tests/tidy.rs` checks it.

pub mod bench;
pub mod cli;
pub mod config;
pub mod domain;
pub mod env;
pub mod grpc;
mod lock;
mod log_limit;
pub mod migrate;
pub mod queue;
pub mod serve;
pub mod service;
pub mod store;
