//! How long things may take, and how certain they must be.

use super::durability::Durability;
use crate::env::{Clock, SystemClock};
use std::{sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    pub durability: Durability,
    /// Name lookup, socket, TLS and login together.
    pub connect_timeout: Duration,
    pub response_timeout: Duration,
    /// How long replicas have to confirm.
    pub confirm_within: Duration,
    /// How often a connection is tried, and what it leads to is looked at.
    pub heartbeat: Duration,
    /// Calls that wait for an answer at the same time; more are refused.
    pub calls_max: usize,
    pub clock: Arc<dyn Clock>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Primary,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(2),
            confirm_within: Duration::from_secs(1),
            heartbeat: Duration::from_secs(1),
            calls_max: 10_000,
            clock: Arc::new(SystemClock::new()),
        }
    }
}
