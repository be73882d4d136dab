//! redrive: a durable job queue behind gRPC that decides what happens when a job fails.
//!
//! In reading order: `domain` decides (pure, no I/O), `store` keeps (the contract and its engines), `broker` has the use
//! cases, `grpc` speaks the wire contract, `config` reads what the operator wants, `serve` puts it together; `bench` is a
//! client that measures it. Who may know whom is in ARCHITECTURE.md, and `tests/tidy.rs` holds it to that.

pub mod bench;
pub mod broker;
pub mod cli;
pub mod config;
pub mod domain;
pub mod env;
pub mod grpc;
pub mod migrate;
pub mod queue;
pub mod serve;
pub mod store;
