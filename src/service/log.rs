//! The log lines about store events: every dead letter and every transition of a breaker gets one.

use crate::domain::{BreakerKind, BreakerState};
use crate::queue::{BreakerEvent, DeadLetterEvent, Event, EventKind, Subscriber};

/// A subscriber that logs.
#[derive(Debug, Default)]
pub struct EventLog;

impl Subscriber for EventLog {
    fn wants(&self, kind: EventKind) -> bool {
        matches!(kind, EventKind::DeadLettered | EventKind::Breaker)
    }

    fn event(&self, event: &Event) {
        match event {
            Event::DeadLettered(event) => dead_lettered(event),
            Event::Breaker(event) => breaker(event),
            _ => {}
        }
    }
}

fn dead_lettered(event: &DeadLetterEvent) {
    tracing::warn!(
        queue = %event.queue,
        job_id = %event.id,
        job_type = event.job_type,
        reason = event.reason.as_str(),
        attempts = event.attempts,
        error_type = event.error_type,
        overflow = event.overflow,
        "dead-lettered"
    );
}

fn breaker(event: &BreakerEvent) {
    let name = tracing::field::display(&event.name);
    let state = event.state.as_str();
    if let Some(forced) = &event.forced {
        tracing::warn!(breaker = name, state, reason = forced.reason, "breaker forced");
        return;
    }
    let probe_at = event.probe_at.map(tracing::field::display);
    match (event.state, event.name.kind) {
        (BreakerState::Open, BreakerKind::Work) => {
            let what = "breaker open: the queue is held back";
            tracing::warn!(breaker = name, state, error = event.error, probe_at, "{what}");
        }
        (BreakerState::Open, BreakerKind::DeadLetters) => {
            let what = "breaker open: new dead letters go to the overflow; requeue or purge some, or raise max_entries";
            tracing::error!(breaker = name, state, error = event.error, probe_at, "{what}");
        }
        (BreakerState::HalfOpen, _) => tracing::info!(breaker = name, state, "breaker half open: probing"),
        (BreakerState::Closed, _) => tracing::info!(breaker = name, state, "breaker closed"),
    }
}
