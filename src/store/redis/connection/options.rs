//! How long things may take, and how certain they must be.

use super::durability::Durability;
use crate::domain::with_defaults;
use crate::env::{Clock, SystemClock};
use std::{sync::Arc, time::Duration};

with_defaults! {
    #[derive(Clone, Debug)]
    ConnectionOptions {
        durability: Durability = Durability::Primary,
        /// Name lookup, socket, TLS and login together.
        connect_timeout: Duration = Duration::from_secs(1),
        response_timeout: Duration = Duration::from_secs(2),
        /// How long replicas have to confirm.
        confirm_within: Duration = Duration::from_secs(1),
        /// How often a connection is tried, and what it leads to is looked at.
        heartbeat: Duration = Duration::from_secs(1),
        /// Commands that wait for an answer at the same time; more are refused. More than there is room for calls, which have one
        /// each, mostly: so those that end leases find room here, too.
        calls_max: usize = 20_000,
        clock: Arc<dyn Clock> = Arc::new(SystemClock::new()),
    }
}
