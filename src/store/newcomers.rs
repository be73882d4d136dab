//! Moving house: jobs that come from another store, with all that they have been through.

use super::JobView;
use crate::domain::{breaker::Breaker, ids::QueueName, pause::Pause, time::Timestamp};

/// Jobs that one call takes in.
pub const NEWCOMERS_MAX: usize = 100;

/// Jobs of one queue, at most [`NEWCOMERS_MAX`], and what holds that queue back.
#[derive(Clone, Debug)]
pub struct Newcomers {
    pub queue: QueueName,
    pub standing: Standing,
    /// In full, as the other store shows them. One that is out there arrives READY at its old place, with nothing counted
    /// but the delivery.
    pub jobs: Vec<JobView>,
}

/// What holds a queue back. Where there is nothing, the queue stays as it is here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub pause: Option<Pause>,
    pub work: Breaker,
    pub dead_letters: Breaker,
}

/// What became of one newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenIn {
    Added,
    /// A job of this id is in the queue.
    AlreadyThere,
    /// It waits, and another live job has its key.
    KeyTaken,
}

impl JobView {
    /// Where it stands in line, or will: when it became, becomes or had become ready.
    pub(crate) fn waits_at(&self) -> Timestamp {
        self.ready_at.or(self.old_place).unwrap_or(self.spec.run_at)
    }

    /// The type of error under which it is counted when it is dead.
    pub(crate) fn error_type(&self) -> &str {
        self.last_failure.as_ref().map_or("", |failure| failure.error_type.as_str())
    }
}

/// A breaker that comes from elsewhere, in the place of this one. Transitions never go back: deliveries remember them.
pub(crate) fn take_over(here: &mut Breaker, from_there: &Breaker) -> bool {
    if *from_there == Breaker::default() {
        return false;
    }
    let transitions = here.transitions.max(from_there.transitions);
    let new = Breaker { transitions, ..from_there.clone() };
    let differs = *here != new;
    *here = new;
    differs
}
