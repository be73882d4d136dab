//! What operators ask a store to do.

use super::Refused;
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
