//! The closed list of reasons to say no.

use crate::domain::{QueueName, State};
use crate::store::StoreError;
use std::time::Duration;

/// Why a call was not carried out.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("{0:?}")]
    Refused(Refusal),
    #[error(transparent)]
    Store(StoreError),
}

/// What a verb comes to.
pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

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
    /// No job has this idempotency key.
    KeyNotFound {
        key: String,
        queue: QueueName,
        /// How long the queue keeps completed jobs.
        kept: Option<Duration>,
    },
    QueueNotFound {
        queue: QueueName,
    },
    BreakerNotFound {
        name: String,
    },
    LeaseLost,
    /// Several queues have a job of this id.
    AmbiguousJobId {
        id: String,
        queues: Vec<QueueName>,
    },
    /// What was asked does not fit what the job is.
    WrongState {
        id: String,
        state: State,
    },
    /// The same id with another type or body.
    IdTaken,
    /// The same key with another type or body.
    KeyTaken,
    /// Id and key name two jobs.
    IdAndKeyDiffer,
    /// The request id of another call.
    RequestIdTaken,
    QueueFull {
        limit: u64,
    },
    /// A queue would have to be made.
    TooManyQueues {
        limit: usize,
    },
    /// A queue would have to be made, and too many were made in this minute.
    NewQueuesTooFast {
        limit: usize,
        after: Duration,
    },
}

impl Refusal {
    pub(crate) fn no_queue(queue: &QueueName) -> Self {
        Self::QueueNotFound { queue: queue.clone() }
    }
}
