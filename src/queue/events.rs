//! Store events: published after the commit, to any number of subscribers.

use crate::domain::{BreakerName, BreakerState, DeadReason, Degraded, JobId, Lease, QueueName, Timestamp};
use crate::queue::BreakerView;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// This queue could hand out so many jobs now. Never published for one that is paused or held back by its breaker.
    Available {
        queue: QueueName,
        jobs: usize,
    },
    /// A sweep of this queue has something to do then. `job`: a job becomes ready.
    Due {
        queue: QueueName,
        at: Timestamp,
        job: bool,
    },
    /// A waiting job of this queue is due now: a claim that looks may get it, without a sweep. Comes at any time, and from a
    /// thread of its own.
    JobDue {
        queue: QueueName,
    },
    /// The next sweep has something to do at this time, which is earlier than announced before.
    SweepDue {
        at: Timestamp,
    },
    DeadLettered(DeadLetterEvent),
    /// The job of this lease was cancelled.
    CancelRequested(Lease),
    /// A breaker has opened, closed or turned half open, or an operator has set it.
    Breaker(Box<BreakerEvent>),
    Degraded(DegradedEvent),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Available,
    Due,
    JobDue,
    SweepDue,
    DeadLettered,
    CancelRequested,
    Breaker,
}

impl Event {
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Available { .. } => EventKind::Available,
            Self::Due { .. } => EventKind::Due,
            Self::JobDue { .. } => EventKind::JobDue,
            Self::SweepDue { .. } => EventKind::SweepDue,
            Self::DeadLettered(_) => EventKind::DeadLettered,
            Self::CancelRequested(_) => EventKind::CancelRequested,
            Self::Breaker(_) | Self::Degraded(_) => EventKind::Breaker,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterEvent {
    pub queue: QueueName,
    pub id: JobId,
    pub job_type: String,
    pub reason: DeadReason,
    pub attempts: u32,
    pub error_type: String,
    pub overflow: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BreakerEvent {
    pub name: BreakerName,
    /// From now on.
    pub state: BreakerState,
    /// While OPEN: when probes begin.
    pub probe_at: Option<Timestamp>,
    pub at: Timestamp,
    /// With what an operator is shown of it.
    pub view: BreakerView,
}

/// Far more of a queue's calls fail than usual, or no longer.
#[derive(Clone, Debug, PartialEq)]
pub struct DegradedEvent {
    /// The breaker that sees it.
    pub name: BreakerName,
    /// None: no longer.
    pub degraded: Option<Degraded>,
    pub usual_share: f64,
}

pub trait Subscriber: Send + Sync + 'static {
    /// What no subscriber wants is not built. Asked once.
    fn wants(&self, kind: EventKind) -> bool;

    /// Called after the commit; must return quickly.
    fn event(&self, event: &Event);
}

/// All subscribers of a store.
#[derive(Clone, Default)]
pub struct Subscribers {
    all: Vec<Arc<dyn Subscriber>>,
}

impl Subscribers {
    pub fn with(mut self, subscriber: Arc<dyn Subscriber>) -> Self {
        self.all.push(subscriber);
        self
    }

    pub(crate) fn wanted(&self) -> Wanted {
        use EventKind::{Available, Breaker, CancelRequested, DeadLettered, Due, JobDue, SweepDue};
        let kinds = [Available, Due, JobDue, SweepDue, DeadLettered, CancelRequested, Breaker];
        let wanted = kinds.into_iter().filter(|kind| self.all.iter().any(|it| it.wants(*kind)));
        Wanted(wanted.fold(0, |set, kind| set | 1 << kind as u8))
    }

    pub(crate) fn publish(&self, event: &Event) {
        for subscriber in self.all.iter().filter(|it| it.wants(event.kind())) {
            subscriber.event(event);
        }
    }
}

/// The kinds of events that some subscriber wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted(u8);

impl Wanted {
    pub(crate) const ALL: Self = Self(u8::MAX);

    pub(crate) fn has(self, kind: EventKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }
}
