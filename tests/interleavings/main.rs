//! Verbs that run at the same time, in every order of their storage steps.
//!
//! A verb is a handful of storage steps, and between two of them any other server may do anything. Here every pair of verbs, and
//! every triple of those that settle the same delivery, its expiry among them, runs in *every* interleaving of their steps, and
//! what comes of it must be what comes of running them one after the other, in some order. Then the same with a server that dies
//! after each step: what is left must be a store in order, and what the dead server did not finish can be said again.

#![allow(clippy::unwrap_used, reason = "a test that unwraps nothing fails, as it should")]

mod crashes;
mod fixture;
mod pairs;
mod returned;
mod schedule;
mod stepped;
mod triples;
