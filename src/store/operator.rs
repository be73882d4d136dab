//! What operators ask a store to do.

use super::Refused;
use crate::domain::{ids::QueueName, job::State};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPause {
    /// None: until somebody resumes it.
    pub duration: Option<Duration>,
    pub reason: String,
}

/// Why a queue was neither paused nor resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PauseRefused {
    NoSuchQueue,
    /// It is configured and would have to be made.
    NotMade(Refused),
}

/// What cancelling came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It was waiting, and is gone with all that hung on it.
    Removed,
    /// It is out: its worker learns of it by Extend, and only an Ack keeps it from dying.
    Requested,
}

/// Why nothing was done to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobRefused {
    NoSuchJob,
    /// Several queues have a job of this id.
    Ambiguous {
        queues: Vec<QueueName>,
    },
    WrongState {
        state: State,
    },
}
