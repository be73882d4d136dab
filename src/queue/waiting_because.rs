//! Why a job is not running now.

use crate::domain::duration::human;
use crate::domain::{Attempt, AttemptStatus, Breaker, BreakerSettings, BreakerState, Settings, State, Timestamp};
use crate::queue::JobView;

/// One sentence, naming the real reason.
pub fn waiting_because(view: &JobView, settings: &Settings, now: Timestamp) -> String {
    let breaker = &settings.queue(&view.queue).breaker;
    let pause = view.pause.as_ref().filter(|pause| pause.holds(now));
    match view.state {
        State::Scheduled | State::Retrying => {
            let wait = view.ready_at.map_or_else(String::new, |at| human(at.since(now)));
            let released = |attempt: &Attempt| attempt.status == AttemptStatus::Released;
            if view.attempts.last().is_some_and(released) {
                format!("it was released and is due in {wait}")
            } else if view.progress.tries > 0 {
                format!("its retry after attempt {} is due in {wait}", view.progress.tries)
            } else {
                format!("it is due in {wait}")
            }
        }
        State::Ready => match (pause, view.ahead) {
            (Some(pause), _) => format!("the queue is {pause}"),
            _ if view.breaker.state(breaker, now) != BreakerState::Closed => held_back(&view.breaker, breaker, now),
            (None, Some(ahead)) if ahead.more => {
                format!("more than {} jobs of higher or equal priority go first", ahead.jobs)
            }
            (None, Some(ahead)) if ahead.jobs == 1 => "1 job of higher or equal priority goes first".into(),
            (None, Some(ahead)) if ahead.jobs > 0 => {
                format!("{} jobs of higher or equal priority go first", ahead.jobs)
            }
            _ => "it is next; no worker has asked for it yet".into(),
        },
        State::Leased => view.delivery.as_ref().map_or_else(String::new, |delivery| {
            let worker = match delivery.worker_id.as_str() {
                "" => "a worker without a name",
                name => name,
            };
            format!("it is leased to {worker} until {}", delivery.expires_at)
        }),
        State::Dead => view.death.as_ref().map_or_else(String::new, |death| {
            format!("it is dead ({}) and runs again only when it is requeued", death.reason.as_str())
        }),
        State::Completed if view.corrupt => "it is done, but what is kept of it is damaged on disk".into(),
        State::Completed => "it is done".into(),
        State::Cancelled => "it was cancelled".into(),
    }
}

/// Why a READY job waits while its queue's breaker is not closed.
fn held_back(breaker: &Breaker, settings: &BreakerSettings, now: Timestamp) -> String {
    let name = match breaker.key.as_str() {
        "" => "the queue's breaker".to_owned(),
        key => format!("the breaker of {key}"),
    };
    if let Some(forced) = &breaker.forced {
        let reason = if forced.reason.is_empty() { "no reason given" } else { &forced.reason };
        return format!("{name} is forced open until it is reset: {reason}");
    }
    if breaker.state(settings, now) == BreakerState::Recovering {
        let load = breaker.outage.as_ref().map_or(0.0, |outage| outage.recovery.load);
        return format!(
            "the queue recovers from an outage, with {load:.1} jobs in flight so far, after {}",
            breaker.last_error
        );
    }
    match breaker.probe_at(settings, now) {
        Some(at) => format!("{name} is open until {at}, after {}", breaker.last_error),
        None => format!("{name} is half open and lets out only probes, after {}", breaker.last_error),
    }
}
