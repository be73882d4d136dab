//! What operators ask a store to do.

use super::{JobView, Refused};
use crate::domain::{ids::QueueName, job::State, time::Timestamp};
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

/// Records that one page of a listing looks at.
pub const LOOKS_MAX: usize = 10_000;

/// A page of a queue's jobs: READY in the order in which they are handed out, SCHEDULED by when they are due, LEASED in
/// the order in which they were enqueued, DEAD in their order of death.
#[derive(Clone, Debug)]
pub struct JobQuery {
    pub queue: QueueName,
    /// None: all states, in the order above.
    pub state: Option<State>,
    /// None: all types.
    pub job_type: Option<String>,
    /// Where the page before ended.
    pub after: Option<JobPosition>,
    pub limit: usize,
    /// Bodies, headers, checkpoints and attempts too.
    pub full: bool,
    /// Ends the page early.
    pub max_bytes: usize,
    /// Ends the page early, even empty.
    pub looks_max: usize,
}

/// Where a job stands in the order of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPosition {
    pub state: State,
    pub priority: i8,
    /// When it became ready or is due.
    pub at: Timestamp,
    /// The store's number for the job, or that of its death.
    pub number: u64,
    /// The caller's own. Empty: the store made it.
    pub id: String,
}

#[derive(Clone, Debug, Default)]
pub struct JobPage {
    pub jobs: Vec<(JobPosition, JobView)>,
    /// There is more after this.
    pub next: Option<JobPosition>,
}
