//! What lasts longer than one call of the queue: claims that wait, streams, timers. No rule and no storage.

mod breaker_lines;
mod claim;
mod explain;
mod log;
mod message_budget;
mod operator;
mod reminder;
mod round_robin;
mod sweeper;
mod unclaimed;
mod waiters;
mod work;

pub use claim::{ClaimReply, ClaimRequest, Order};
pub use explain::{ExplainRequest, Explained, ExplainedDelay};
pub use log::EventLog;
pub use message_budget::{AddressBudget, ConnectionBudget, Held, MessageBudget};
pub use reminder::Reminder;
pub use round_robin::RoundRobin;
pub use unclaimed::{Unclaimed, UnclaimedQueues};
pub use waiters::{Waiter, Waiters};
pub use work::{Outbox, Received, WorkConnection, WorkHello, WorkMessage, WorkReply, WorkSettlements};

use crate::domain::Limits;
use crate::queue::{Host, Queues};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

#[derive(Debug)]
pub struct Service<H> {
    queues: Queues<H>,
    waiters: Arc<Waiters>,
    limits: Limits,
    round_robin: round_robin::RoundRobin,
    draining: watch::Sender<bool>,
    lease_lines: Mutex<sweeper::LeaseLines>,
}

impl<H: Host> Service<H> {
    /// `waiters` are among the subscribers of the store.
    pub fn new(queues: Queues<H>, waiters: Arc<Waiters>, limits: Limits) -> Arc<Self> {
        let (round_robin, lease_lines) = Default::default();
        let draining = watch::Sender::new(false);
        Arc::new(Self { queues, waiters, limits, round_robin, draining, lease_lines })
    }

    pub fn queues(&self) -> &Queues<H> {
        &self.queues
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// From now on claims find nothing, and those that wait are answered.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}
