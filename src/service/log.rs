//! The log lines about store events: every dead letter gets one; those of breakers are in [`super::breaker_lines`].

use super::breaker_lines::{self, BreakerLines, sentence};
use crate::domain::{BreakerKind, BreakerState};
use crate::env;
use crate::lock::lock;
use crate::queue::{BreakerEvent, DeadLetterEvent, DegradedEvent, Event, EventKind, Subscriber};
use std::sync::Mutex;

/// A subscriber that logs.
#[derive(Debug, Default)]
pub struct EventLog {
    breakers: Mutex<BreakerLines>,
}

impl Subscriber for EventLog {
    fn wants(&self, kind: EventKind) -> bool {
        matches!(kind, EventKind::DeadLettered | EventKind::Breaker)
    }

    fn event(&self, event: &Event) {
        match event {
            Event::DeadLettered(event) => dead_lettered(event),
            Event::Breaker(event) => {
                let mut lines = lock(&self.breakers);
                if let Some(left_out) = lines.admit(event, env::instant()) {
                    breaker(event, left_out);
                }
            }
            Event::Degraded(event) => {
                let mut lines = lock(&self.breakers);
                if let Some(left_out) = lines.admit_degraded(event, env::instant()) {
                    degraded(event, left_out);
                }
            }
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

/// `left_out`: events of this breaker without a line since its last one.
fn breaker(event: &BreakerEvent, left_out: u64) {
    let (name, state) = (tracing::field::display(&event.name), event.state.as_str());
    let left_out = (left_out > 0).then_some(left_out);
    let what = sentence(event);
    match (event.state, event.name.kind) {
        (BreakerState::Open, BreakerKind::DeadLetters) => {
            tracing::error!(breaker = name, state, left_out, "{what}");
        }
        (BreakerState::Open, BreakerKind::Work) => tracing::warn!(breaker = name, state, left_out, "{what}"),
        _ if event.view.breaker.forced.is_some() => tracing::warn!(breaker = name, state, left_out, "{what}"),
        _ => tracing::info!(breaker = name, state, left_out, "{what}"),
    }
}

fn degraded(event: &DegradedEvent, left_out: u64) {
    let (name, what) = (tracing::field::display(&event.name), breaker_lines::degraded(event));
    let left_out = (left_out > 0).then_some(left_out);
    match event.degraded {
        Some(_) => tracing::warn!(breaker = name, left_out, "{what}"),
        None => tracing::info!(breaker = name, left_out, "{what}"),
    }
}
