//! The log lines about store events: every dead letter gets one, and every breaker that opens or closes. What a breaker does
//! between these two gets one a minute: a queue that is held after every 429 would fill the log.

use crate::domain::{BreakerKind, BreakerState};
use crate::env;
use crate::lock::lock;
use crate::log_limit::LogLimit;
use crate::queue::{BreakerEvent, DeadLetterEvent, Event, EventKind, Subscriber};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

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

/// Which events of breakers get a line.
#[derive(Debug, Default)]
struct BreakerLines {
    /// Of those that are not closed, by name.
    open: HashMap<String, LogLimit>,
}

impl BreakerLines {
    /// How many events of this breaker got no line since the last one; none: this one gets none either.
    fn admit(&mut self, event: &BreakerEvent, now: Instant) -> Option<u64> {
        let name = event.name.to_string();
        if event.state == BreakerState::Closed {
            return Some(self.open.remove(&name).unwrap_or_default().always(now));
        }
        let limit = self.open.entry(name).or_default();
        if event.forced.is_some() { Some(limit.always(now)) } else { limit.admit(now) }
    }
}

/// `left_out`: events of this breaker without a line since its last one.
fn breaker(event: &BreakerEvent, left_out: u64) {
    let name = tracing::field::display(&event.name);
    let state = event.state.as_str();
    let left_out = (left_out > 0).then_some(left_out);
    if let Some(forced) = &event.forced {
        tracing::warn!(breaker = name, state, reason = forced.reason, left_out, "breaker forced");
        return;
    }
    let probe_at = event.probe_at.map(tracing::field::display);
    match (event.state, event.name.kind) {
        (BreakerState::Open, BreakerKind::Work) => {
            let what = "breaker open: the queue is held back";
            let since = event.outage_since.map(tracing::field::display);
            tracing::warn!(
                breaker = name,
                state,
                error = event.error,
                outage_since = since,
                probe_at,
                left_out,
                "{what}"
            );
        }
        (BreakerState::Open, BreakerKind::DeadLetters) => {
            let what = "breaker open: new dead letters go to the overflow; requeue or purge some, or raise max_entries";
            tracing::error!(breaker = name, state, error = event.error, probe_at, left_out, "{what}");
        }
        (BreakerState::Recovering, _) => {
            let (since, load) = (event.outage_since.map(tracing::field::display), format!("{:.1}", event.load));
            let what = "breaker recovering: the queue hands out jobs at a load that grows";
            tracing::info!(breaker = name, state, outage_since = since, load, left_out, "{what}");
        }
        (BreakerState::HalfOpen, _) => tracing::info!(breaker = name, state, left_out, "breaker half open: probing"),
        (BreakerState::Closed, _) => tracing::info!(breaker = name, state, left_out, "breaker closed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{BreakerName, Forced};
    use std::time::Duration;

    #[test]
    fn a_breaker_that_opens_or_closes_gets_a_line_and_what_is_between_one_a_minute() {
        let (start, mut lines) = (env::instant(), BreakerLines::default());
        let mut at = |seconds, name: &str, state, forced: Option<Forced>| {
            let name = BreakerName::parse(name).expect("a name");
            let (outage_since, load) = (None, 0.0);
            let event = BreakerEvent { name, state, probe_at: None, error: String::new(), outage_since, load, forced };
            lines.admit(&event, start + Duration::from_secs(seconds))
        };
        use BreakerState::{Closed, HalfOpen, Open};
        assert_eq!(at(0, "queue:q", Open, None), Some(0));
        for second in 1..60 {
            let state = if second % 2 == 0 { Open } else { HalfOpen };
            assert_eq!(at(second, "queue:q", state, None), None);
        }
        assert_eq!(at(59, "dlq:q", Open, None), Some(0), "another one has lines of its own");
        assert_eq!(at(60, "queue:q", Open, None), Some(59));
        assert_eq!(at(61, "queue:q", HalfOpen, None), None);
        assert_eq!(at(62, "queue:q", Closed, None), Some(1));
        assert_eq!(at(62, "queue:q", Closed, None), Some(0));
        assert_eq!(at(63, "queue:q", Open, None), Some(0), "it opens again");
        let by_hand = Forced { open: true, since: Default::default(), reason: "maintenance".into() };
        assert_eq!(at(64, "queue:q", Open, Some(by_hand)), Some(0));
    }
}
