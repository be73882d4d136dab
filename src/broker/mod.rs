//! The use cases: one file each. Knows the domain and the store contract, nothing of gRPC.

mod breakers;
mod cancel;
mod claim;
mod dead_letter_stats;
mod dead_letters;
mod enqueue;
mod explain;
mod get_job;
mod list_jobs;
mod pause;
mod purge;
mod queues;
mod reminder;
mod run_now;
mod settle;
mod stats;
mod sweeper;
mod turns;
mod wakeups;
mod work;

pub use breakers::BreakerReport;
pub use claim::{ClaimReply, ClaimRequest, Order};
pub use dead_letters::{RequeueRequest, Selector};
pub use explain::{ExplainRequest, Explained, ExplainedDelay};
pub use get_job::JobReport;
pub use list_jobs::JobListing;
pub use purge::PurgeRequest;
pub use queues::QueueReport;
pub use reminder::Reminder;
pub use settle::SettleReply;
pub use wakeups::Wakeups;
pub use work::{HandedOver, Heard, Outbox, WorkHello, WorkMessage, WorkReply};

use crate::{
    domain::{ids::QueueName, job::State, limits::Limits, settings::Settings},
    store::{Ask, LeaseLost, Refused, Store, StoreError},
};
use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};
use tokio::sync::watch;

/// All that the use cases share.
#[derive(Debug)]
pub struct Broker<S> {
    store: S,
    wakeups: Arc<Wakeups>,
    settings: RwLock<Arc<Settings>>,
    limits: Limits,
    turns: turns::Turns,
    draining: watch::Sender<bool>,
    random: fn() -> u64,
}

impl<S: Store> Broker<S> {
    /// `wakeups` is the listener that the store was opened with; `random` gives each call its seed.
    pub fn new(
        store: S,
        wakeups: Arc<Wakeups>,
        settings: Arc<Settings>,
        limits: Limits,
        random: fn() -> u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            wakeups,
            settings: RwLock::new(settings),
            limits,
            turns: turns::Turns::default(),
            draining: watch::Sender::new(false),
            random,
        })
    }

    pub fn store(&self) -> &S {
        &self.store
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls from now on are judged by these.
    pub fn replace_settings(&self, settings: Arc<Settings>) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// From now on claims find nothing, and those that wait come home.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    fn ask(&self) -> Ask {
        Ask { settings: self.settings(), seed: (self.random)() }
    }
}

/// Why a call was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Refused(Refusal),
    Store(StoreError),
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<LeaseLost> for Refusal {
    fn from(_: LeaseLost) -> Self {
        Self::LeaseLost
    }
}

/// The closed list of reasons to say no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A field that cannot be as it is.
    Field {
        field: String,
        message: String,
    },
    JobNotFound {
        id: String,
        /// The one queue that was searched, and how long that keeps completed jobs. None: all were.
        searched: Option<(QueueName, Option<Duration>)>,
    },
    QueueNotFound {
        queue: QueueName,
    },
    BreakerNotFound {
        name: String,
    },
    LeaseLost,
    AmbiguousJobId {
        id: String,
        queues: Vec<QueueName>,
    },
    NotAdded(Refused),
    /// What was asked does not fit what the job is.
    WrongState {
        id: String,
        state: State,
    },
}
