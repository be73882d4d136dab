//! Import: jobs that come from another store, with all that they have been through.

use crate::domain::{Breaker, Pause, QueueName};
use crate::queue::JobView;

/// Jobs that one call imports.
pub const IMPORT_MAX: usize = 100;

/// Jobs of one queue, at most [`IMPORT_MAX`], and what holds that queue back.
#[derive(Clone, Debug)]
pub struct Import {
    pub queue: QueueName,
    pub holds: QueueHolds,
    /// In full, as the other store shows them. One that is leased there arrives READY at its old position, with nothing
    /// counted but the delivery.
    pub jobs: Vec<JobView>,
}

/// What holds a queue back. Where there is nothing, the queue stays as it is here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueHolds {
    pub pause: Option<Pause>,
    pub work: Breaker,
    /// Of breaker keys.
    pub keys: Vec<Breaker>,
    pub dead_letters: Breaker,
}

/// What became of one of the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    Added,
    /// A job of this id is in the queue.
    AlreadyThere,
    /// It waits, and another live job has its key.
    KeyTaken,
}
