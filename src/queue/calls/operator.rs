//! What operators ask a store to do.

use crate::domain::{QueueName, State, Timestamp};
use crate::queue::JobView;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPause {
    /// None: until it is resumed.
    pub duration: Option<Duration>,
    pub reason: String,
}

/// What an operator wants of a breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerOrder {
    /// This and nothing else, until it is reset.
    Force { open: bool, reason: String },
    /// Closed, everything counted from zero, and by itself again.
    Reset,
}

/// What cancelling came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It was waiting, and is gone, or kept like a completed one.
    Cancelled,
    /// It is out: its worker learns of it by Extend, and every end of its delivery but an Ack is the job's.
    Requested,
}

/// Records that one page of a listing looks at.
pub const LOOKS_MAX: usize = 10_000;

/// A page of a queue's jobs: READY in the order in which they are handed out, those with a breaker key behind the others and key
/// by key, SCHEDULED by when they are due, LEASED in the order in which they were enqueued, DEAD in their order of death, COMPLETED and CANCELLED in the order in which they came to that.
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

impl JobQuery {
    /// The states that are left to walk through, in the order of a listing; the first one from where the page before ended.
    pub fn walk(&self) -> impl Iterator<Item = (State, Option<&JobPosition>)> {
        let order = [
            State::Ready,
            State::Scheduled,
            State::Retrying,
            State::Leased,
            State::Dead,
            State::Completed,
            State::Cancelled,
        ];
        let wanted = move |state: &State| self.state.is_none_or(|wanted| wanted == *state);
        let ended = self.after.as_ref().map(|after| after.state);
        let passed = move |state: &State| ended.is_some_and(|ended| ended != *state);
        // A page that ended in a state which is not asked for began anew.
        let begins = ended.is_some_and(|ended| wanted(&ended));
        let left = order.into_iter().skip_while(move |state| begins && passed(state));
        left.filter(wanted).map(|state| (state, self.after.as_ref().filter(|after| after.state == state)))
    }
}

/// Where a job stands in the order of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPosition {
    pub state: State,
    /// Of its breaker key, while it waits: the jobs of a key come one after the other, behind those without one.
    pub group: u16,
    pub priority: i8,
    /// When it became ready, is due or was done.
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
