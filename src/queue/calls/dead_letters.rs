//! What is asked of dead letters.

use crate::domain::{DeadFilter, DeadPart, JobId, QueueName};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Requeue {
    pub part: DeadPart,
    pub which: Which,
    pub target: Option<QueueName>,
    pub keep_attempts: bool,
    /// The caller's, for the events of the jobs.
    pub reason: String,
    pub dry_run: bool,
    pub request: Option<RequestId>,
}

/// A call that may come again: within [`REPLY_KEPT`] it gets the answer of the first time, and nothing more happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    pub id: String,
    /// The sum of all that the call asks for: under the same id nothing else may be asked.
    pub asked: [u8; 32],
}

/// How long the answer to a call with a request id is remembered.
pub const REPLY_KEPT: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    Ids(Vec<JobId>),
    /// The first so many in the order of death. `among`: goes on with an earlier call's set.
    Oldest {
        limit: usize,
        among: Option<Deaths>,
    },
    /// The first so many that the search finds.
    Found {
        search: Search,
        limit: usize,
        among: Option<Deaths>,
    },
}

/// Looks for dead letters in the order of death.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    pub filter: DeadFilter,
    /// Records that one call looks at, at most.
    pub look_at: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requeued {
    pub ids: Vec<JobId>,
    pub skipped: Vec<(JobId, SkipReason)>,
    pub has_more: bool,
    /// What going on meets: not what was skipped, and not what died since the first call.
    pub left: Deaths,
}

/// A stretch of a queue's order of death.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deaths {
    pub after: u64,
    pub up_to: u64,
}

#[derive(Clone, Debug)]
pub struct Purge {
    pub part: DeadPart,
    pub which: Which,
    pub dry_run: bool,
    pub request: Option<RequestId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    pub count: u64,
    pub skipped: Vec<(JobId, SkipReason)>,
    pub has_more: bool,
    /// What going on meets: not what died since the first call.
    pub left: Deaths,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    JobNotFound,
    KeyTaken,
    IdTaken,
    DataCorrupt,
}

#[derive(Clone, Debug)]
pub struct DeadLetterQuery {
    pub part: DeadPart,
    /// Those that died after this one.
    pub after: u64,
    pub limit: usize,
    /// Only what it finds: the page may be short, or empty, and still have a next one.
    pub search: Option<Search>,
    /// Bodies and headers too.
    pub full: bool,
    /// Ends the page early.
    pub max_bytes: usize,
}

#[derive(Clone, Debug)]
pub struct DeadCountQuery {
    /// This queue, whether it has any. None: by name, those that have some.
    pub queue: Option<QueueName>,
    pub after: Option<QueueName>,
    pub limit: usize,
    /// For each queue so many types of error, the most frequent first.
    pub types: usize,
    /// And so many of those that died last.
    pub latest: usize,
}
