//! Why a job is not running now.

use crate::domain::duration::human;
use crate::domain::{
    Admission, Attempt, AttemptStatus, Breaker, BreakerSettings, BreakerState, Gate, HeldBy, KeyLimits, QueueSettings,
    Settings, State, Timestamp,
};
use crate::queue::JobView;

/// One sentence, naming the real reason.
pub fn waiting_because(view: &JobView, settings: &Settings, now: Timestamp) -> String {
    let settings = settings.queue(&view.queue);
    match view.state {
        State::Scheduled | State::Retrying => {
            let due = due(view, now);
            let recovers = view.breaker.state(&settings.breaker, now) == BreakerState::Recovering;
            // One that recovers may have come back by then.
            match held(view, &settings.breaker, now).filter(|_| !recovers) {
                Some(held) => format!("{due}, but {held}"),
                None => due,
            }
        }
        State::Ready => {
            if let Some(held) = held(view, &settings.breaker, now) {
                return held;
            }
            match (ahead(view), limited(view, settings, now)) {
                (Some(ahead), Some(limited)) => format!("{ahead}, and {limited}"),
                (Some(why), None) | (None, Some(why)) => why,
                (None, None) => "it is next; no worker has asked for it yet".into(),
            }
        }
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

/// What it waits for that is not due yet.
fn due(view: &JobView, now: Timestamp) -> String {
    let wait = view.ready_at.map_or_else(String::new, |at| human(at.since(now)));
    let released = |attempt: &Attempt| attempt.status == AttemptStatus::Released;
    let progress = &view.progress;
    if view.attempts.last().is_some_and(released) {
        format!("it was released and is due in {wait}")
    } else if progress.tries > 0 {
        format!("its retry after attempt {} is due in {wait}", progress.tries)
    } else if progress.uncounted > 0 {
        let times = if progress.uncounted == 1 { "once".into() } else { format!("{} times", progress.uncounted) };
        format!("it failed {times} in an outage, which does not count, and is due in {wait}")
    } else {
        format!("it is due in {wait}")
    }
}

fn ahead(view: &JobView) -> Option<String> {
    let ahead = view.ahead.filter(|ahead| ahead.jobs > 0)?;
    Some(match ahead.jobs {
        jobs if ahead.more => format!("more than {jobs} jobs of higher or equal priority go first"),
        1 => "1 job of higher or equal priority goes first".into(),
        jobs => format!("{jobs} jobs of higher or equal priority go first"),
    })
}

/// What holds all jobs of its queue, or of its breaker key.
fn held(view: &JobView, settings: &BreakerSettings, now: Timestamp) -> Option<String> {
    if let Some(pause) = view.pause.as_ref().filter(|pause| pause.holds(now)) {
        return Some(format!("the queue is {pause}"));
    }
    if let Some(forced) = view.forced.as_ref().filter(|forced| forced.open) {
        return Some(forced_open("the queue's breaker", &forced.reason));
    }
    (view.breaker.state(settings, now) != BreakerState::Closed).then(|| held_back(&view.breaker, settings, now))
}

fn forced_open(breaker: &str, reason: &str) -> String {
    let reason = if reason.is_empty() { "no reason given" } else { reason };
    format!("{breaker} is forced open until it is reset: {reason}")
}

/// By a breaker that is not closed.
fn held_back(breaker: &Breaker, settings: &BreakerSettings, now: Timestamp) -> String {
    let (name, of) = match breaker.key.as_str() {
        "" => ("the queue's breaker".to_owned(), "the queue".to_owned()),
        key => (format!("the breaker of {key}"), key.to_owned()),
    };
    if let Some(forced) = &breaker.forced {
        return forced_open(&name, &forced.reason);
    }
    let after = &breaker.last_error;
    if breaker.state(settings, now) == BreakerState::Recovering {
        let load = breaker.outage.as_ref().map_or(0.0, |outage| outage.recovery.load);
        return format!("{of} recovers from an outage, with {load:.1} jobs in flight so far, after {after}");
    }
    match breaker.probe_at(settings, now) {
        Some(at) => format!("{name} is open until {at}, after {after}"),
        None => format!("{name} is half open and lets out only probes, after {after}"),
    }
}

/// A limit that lets out no more now.
fn limited(view: &JobView, settings: &QueueSettings, now: Timestamp) -> Option<String> {
    let key = &view.breaker.key;
    let of_key = settings.limits_of_key(key).filter(|_| !key.is_empty());
    let limits_of_key =
        |limits: &KeyLimits| Gate { max_in_flight: limits.max_in_flight, max_rate: limits.max_rate, ..Gate::default() };
    let QueueSettings { max_in_flight, max_rate, .. } = *settings;
    let whole = Gate { max_in_flight, max_rate, ..Gate::default() };
    let gates = [
        ("the queue", whole, view.measured),
        (key.as_str(), of_key.map(limits_of_key).unwrap_or_default(), view.measured_of_key),
    ];
    gates.into_iter().find_map(|(of, gate, measured)| {
        let Admission::Jobs(allowed) = gate.admission(std::iter::empty(), now) else { return None };
        let (by, until) = allowed.held_by(&measured, now)?;
        Some(match by {
            HeldBy::MaxRate => {
                let rate = gate.max_rate.map(|rate| rate.to_string()).unwrap_or_default();
                let until = until.map(|at| format!(": the next job leaves at {at}")).unwrap_or_default();
                format!("{of} hands out no more than max_rate, {rate}{until}")
            }
            _ => {
                let most = gate.max_in_flight.unwrap_or_default();
                format!("{of} has max_in_flight, {most}, of its jobs leased: one has to end first")
            }
        })
    })
}
