//! Real Redis and Valkey servers on loopback, and ways to make them fail: for every test crate that needs them.
//!
//! A server that is not installed fails the test: `script/test` installs them.

// Not every crate that shares this module makes use of all of it.
#![allow(dead_code, unused_imports, clippy::disallowed_methods, clippy::unwrap_used)]

mod certificates;
mod cluster;
mod process;
mod proxy;
mod sentinel;
mod wall_clock;

pub(crate) use certificates::Certificates;
pub(crate) use cluster::Cluster;
pub(crate) use process::{Kind, Launch, Server};
pub(crate) use proxy::{Fault, Proxy};
pub(crate) use sentinel::Watched;
pub(crate) use wall_clock::WallClock;

use std::{future::Future, time::Duration};

/// Nothing takes this long unless it is broken.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Waits for a fact about another process, which sends no event: polls often, and panics when time is up.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is: impl FnMut() -> F) {
    let asking = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(LONG, asking).await;
    assert!(found.is_ok(), "it never came about that {what}");
}
