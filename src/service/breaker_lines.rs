//! The log lines about breakers, as an operator would write them. Opening, falling and closing get one always, and so does the
//! first recovery after each; failed probes and what else is between one a minute, which says how many it stands for: a queue
//! that is held after every 429 would fill the log.

use crate::domain::duration::human;
use crate::domain::{BreakerKind, BreakerState, Outage, Recovery};
use crate::log_limit::LogLimit;
use crate::queue::{BreakerEvent, DegradedEvent};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Which events of breakers get a line.
#[derive(Debug, Default)]
pub(super) struct BreakerLines {
    /// Those that are not closed, by name.
    open: HashMap<String, OpenBreaker>,
    /// By name: when one last said that it is degraded, and whether it still is.
    degraded: HashMap<String, (LogLimit, bool)>,
}

#[derive(Debug, Default)]
struct OpenBreaker {
    limit: LogLimit,
    /// What was told of last: how often it had fallen, and whether it recovered from that.
    told: Option<(u32, bool)>,
}

impl BreakerLines {
    /// How many events of this breaker got no line since the last one; none: this one gets none either.
    pub(super) fn admit(&mut self, event: &BreakerEvent, now: Instant) -> Option<u64> {
        let name = event.name.to_string();
        if event.state == BreakerState::Closed {
            return Some(self.open.remove(&name).unwrap_or_default().limit.always(now));
        }
        let open = self.open.entry(name).or_default();
        let breaker = &event.view.breaker;
        let falls = breaker.outage.as_ref().map_or(0, |outage| outage.falls);
        let recovers = event.state == BreakerState::Recovering;
        let news = match open.told {
            None => true,
            Some((told, _)) if told != falls => true,
            Some((_, recovered)) => recovers && !recovered,
        };
        if news {
            open.told = Some((falls, recovers));
        }
        if news || breaker.forced.is_some() { Some(open.limit.always(now)) } else { open.limit.admit(now) }
    }

    /// The same of a queue that is degraded: one that is so again and again says it once a minute. That it is over is said
    /// where the beginning was.
    pub(super) fn admit_degraded(&mut self, event: &DegradedEvent, now: Instant) -> Option<u64> {
        let (limit, told) = self.degraded.entry(event.name.to_string()).or_default();
        let left_out = match event.degraded {
            Some(_) => limit.admit(now),
            None if *told => Some(0),
            None => None,
        };
        *told = event.degraded.is_some() && left_out.is_some();
        left_out
    }
}

pub(super) fn sentence(event: &BreakerEvent) -> String {
    let breaker = &event.view.breaker;
    if let Some(forced) = &breaker.forced {
        let reason = if forced.reason.is_empty() { "no reason given" } else { &forced.reason };
        return format!("{} by an operator until it is reset: {reason}", event.state.as_str());
    }
    let outage = breaker.outage.as_deref();
    match (event.state, event.name.kind, outage) {
        (BreakerState::Open, BreakerKind::DeadLetters, _) => {
            let what = "new dead letters go to the overflow; requeue or purge some, or raise max_entries";
            format!("OPEN: {}: {what}", breaker.last_error)
        }
        (BreakerState::Open, BreakerKind::Work, Some(outage)) => open(event, outage),
        (BreakerState::Recovering, _, Some(outage)) => recovering(event, outage),
        (BreakerState::HalfOpen, BreakerKind::Work, Some(_)) => {
            let held = grouped(event.view.held);
            format!("HALF_OPEN: the next job is a probe, after {}; {held} jobs held", breaker.last_error)
        }
        (BreakerState::Closed, ..) => closed(event),
        (state, ..) => state.as_str().to_owned(),
    }
}

/// `OPEN since … (3m): ConnectionRefused; 4,812 jobs held, 35 failures not counted, next probe in 7s`
fn open(event: &BreakerEvent, outage: &Outage) -> String {
    let view = &event.view;
    let lasted = event.at.since(outage.since);
    let since = if lasted.is_zero() { String::new() } else { format!(" since {} ({})", outage.since, rough(lasted)) };
    let again = match outage.falls {
        0 => String::new(),
        1 => " again, a recovery has failed,".into(),
        falls => format!(" again, {falls} recoveries have failed,"),
    };
    let probe = event.probe_at.map_or_else(String::new, |at| format!(", next probe in {}", rough(at.since(event.at))));
    format!(
        "OPEN{again}{since}: {}; {} jobs held, {} failures not counted{probe}",
        view.breaker.last_error,
        grouped(view.held),
        grouped(view.uncounted),
    )
}

/// `RECOVERING after 3m: 6.2 jobs in flight (about 150/s), growing; 3,100 waiting, about 20s`
fn recovering(event: &BreakerEvent, outage: &Outage) -> String {
    let view = &event.view;
    let Recovery { load, ceiling, ceiling_until, .. } = &outage.recovery;
    let rate = if view.per_second > 0.0 { format!(" (about {:.0}/s)", view.per_second) } else { String::new() };
    let growth = match (ceiling, ceiling_until) {
        (Some(ceiling), Some(until)) if outage.falls > 0 => {
            format!("growing to {ceiling:.1} and held there until {until}, since it fell above")
        }
        (Some(ceiling), Some(until)) => format!("growing to {ceiling:.1} and held there until {until}"),
        _ => "growing".into(),
    };
    let drain = view.drain.map_or_else(String::new, |drain| format!(", about {}", rough(drain)));
    format!(
        "RECOVERING after {}: {load:.1} jobs in flight{rate}, {growth}; {} waiting{drain}",
        rough(event.at.since(outage.since)),
        grouped(view.held),
    )
}

/// The outage is no more, but its transitions say when it began.
fn closed(event: &BreakerEvent) -> String {
    let log = &event.view.breaker.log;
    let before = log.len().saturating_sub(1);
    let began = log[..before].iter().rev().take_while(|it| it.to != BreakerState::Closed).last();
    let lasted = began.map_or_else(String::new, |began| format!(", after {}", rough(event.at.since(began.at))));
    format!("CLOSED{lasted}: nothing is held back any more")
}

/// `DEGRADED: 41 % of the last 512 calls failed (usually 0.4 %): failures are not counted until …`
pub(super) fn degraded(event: &DegradedEvent) -> String {
    let usual = percent(event.usual_share);
    match &event.degraded {
        Some(it) => format!(
            "DEGRADED: {} of the last {} calls failed (usually {usual}): failures are not counted until {}",
            percent(it.share),
            grouped(it.outcomes),
            it.until,
        ),
        None => format!("no longer DEGRADED: failures are counted again ({usual} are usual)"),
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 10.0 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// To whole seconds, from one second on.
fn rough(time: Duration) -> String {
    let seconds = Duration::from_secs(time.as_secs_f64().round() as u64);
    if seconds.is_zero() { human(Duration::from_millis(time.as_millis() as u64)) } else { human(seconds) }
}

/// `12,345`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Breaker, BreakerName, Degraded, Forced, Timestamp, Transition};
    use crate::env;
    use crate::queue::BreakerView;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
    }

    fn event(state: BreakerState, outage: Option<Outage>) -> BreakerEvent {
        let name = BreakerName::parse("queue:q").expect("a name");
        let last_error = "ConnectionRefused".to_owned();
        let breaker = Breaker { outage: outage.map(Box::new), last_error, ..Breaker::default() };
        let view = BreakerView { breaker, held: 4_812, uncounted: 35, per_second: 149.7, ..BreakerView::default() };
        BreakerEvent { name, state, probe_at: None, at: at(180), view }
    }

    fn of(falls: u32) -> Option<Outage> {
        Some(Outage { since: at(0), falls, ..Outage::default() })
    }

    #[test]
    fn opening_falling_and_closing_are_never_left_out_and_failed_probes_get_a_line_a_minute() {
        let (start, mut lines) = (env::instant(), BreakerLines::default());
        let mut tell =
            |seconds, state, falls| lines.admit(&event(state, of(falls)), start + Duration::from_secs(seconds));
        use BreakerState::{Closed, HalfOpen, Open, Recovering};
        assert_eq!(tell(0, Open, 0), Some(0));
        for second in 1..60 {
            let state = if second % 2 == 0 { Open } else { HalfOpen };
            assert_eq!(tell(second, state, 0), None);
        }
        assert_eq!(tell(60, Open, 0), Some(59));
        assert_eq!(tell(61, HalfOpen, 0), None);
        assert_eq!(tell(62, Recovering, 0), Some(1), "the first recovery");
        assert_eq!(tell(63, Open, 1), Some(0), "it fell");
        assert_eq!(tell(64, HalfOpen, 1), None);
        assert_eq!(tell(65, Recovering, 1), Some(1));
        // Holds, again and again.
        for second in 66..90 {
            let state = if second % 2 == 0 { Open } else { Recovering };
            assert_eq!(tell(second, state, 1), None);
        }
        assert_eq!(tell(90, Closed, 0), Some(24));
        assert_eq!(tell(90, Closed, 0), Some(0));
        assert_eq!(tell(91, Open, 0), Some(0), "it opens again");
    }

    #[test]
    fn another_breaker_has_lines_of_its_own_and_an_operators_word_has_one_always() {
        let (now, mut lines) = (env::instant(), BreakerLines::default());
        let open = event(BreakerState::Open, of(0));
        assert_eq!((lines.admit(&open, now), lines.admit(&open, now)), (Some(0), None));
        let name = BreakerName::parse("queue:q/api").expect("a name");
        assert_eq!(lines.admit(&BreakerEvent { name, ..open.clone() }, now), Some(0));
        let mut forced = open;
        forced.view.breaker.forced = Some(Forced { open: true, since: at(0), reason: "maintenance".into() });
        assert_eq!(lines.admit(&forced, now), Some(1));
        assert_eq!(sentence(&forced), "OPEN by an operator until it is reset: maintenance");
    }

    #[test]
    fn a_breaker_that_is_open_says_since_when_after_what_and_what_waits() {
        let open = BreakerEvent { probe_at: Some(at(187)), ..event(BreakerState::Open, of(0)) };
        let rest = "ConnectionRefused; 4,812 jobs held, 35 failures not counted, next probe in 7s";
        assert_eq!(sentence(&open), format!("OPEN since 2027-01-15T08:00:00Z (3m): {rest}"));
        let just_now = BreakerEvent { at: at(0), probe_at: Some(at(1)), ..open.clone() };
        assert!(sentence(&just_now).starts_with("OPEN: ConnectionRefused; "), "{}", sentence(&just_now));
        let fallen = event(BreakerState::Open, of(2));
        let text = "OPEN again, 2 recoveries have failed, since 2027-01-15T08:00:00Z (3m): ConnectionRefused; ";
        assert!(sentence(&fallen).starts_with(text), "{}", sentence(&fallen));
        let probing = event(BreakerState::HalfOpen, of(0));
        assert_eq!(sentence(&probing), "HALF_OPEN: the next job is a probe, after ConnectionRefused; 4,812 jobs held");
    }

    #[test]
    fn a_breaker_that_recovers_says_its_load_and_how_long_it_will_take() {
        let mut outage = of(0).expect("an outage");
        outage.recovery.load = 6.23;
        let mut growing = event(BreakerState::Recovering, Some(outage.clone()));
        growing.view.drain = Some(Duration::from_millis(19_700));
        let text = "RECOVERING after 3m: 6.2 jobs in flight (about 150/s), growing; 4,812 waiting, about 20s";
        assert_eq!(sentence(&growing), text);
        (outage.falls, outage.recovery.ceiling, outage.recovery.ceiling_until) = (1, Some(7.0), Some(at(420)));
        let held = sentence(&event(BreakerState::Recovering, Some(outage)));
        let text = "growing to 7.0 and held there until 2027-01-15T08:07:00Z, since it fell above; 4,812 waiting";
        assert!(held.ends_with(text), "{held}");
    }

    #[test]
    fn a_breaker_that_closes_says_how_long_it_lasted() {
        let mut closed = event(BreakerState::Closed, None);
        let log = [(0, BreakerState::Closed), (60, BreakerState::Open), (150, BreakerState::Recovering)];
        let log = log.into_iter().chain([(180, BreakerState::Closed)]);
        let transition = |(seconds, to)| Transition { at: at(seconds), to, why: String::new() };
        closed.view.breaker.log = log.map(transition).collect();
        assert_eq!(sentence(&closed), "CLOSED, after 2m: nothing is held back any more");
    }

    #[test]
    fn a_queue_that_is_degraded_says_so_and_when_it_is_over() {
        let name = BreakerName::parse("queue:q").expect("a name");
        let it = Degraded { share: 0.41, outcomes: 512, until: at(900) };
        let begins = DegradedEvent { name: name.clone(), degraded: Some(it), usual_share: 0.004 };
        let text = "DEGRADED: 41 % of the last 512 calls failed (usually 0.4 %): failures are not counted until \
                    2027-01-15T08:15:00Z";
        assert_eq!(degraded(&begins), text);
        let ends = DegradedEvent { name, degraded: None, usual_share: 0.0 };
        assert_eq!(degraded(&ends), "no longer DEGRADED: failures are counted again (0 % are usual)");
        let (now, mut lines) = (env::instant(), BreakerLines::default());
        let mut tell = |event, seconds| lines.admit_degraded(event, now + Duration::from_secs(seconds));
        assert_eq!(
            [tell(&begins, 0), tell(&ends, 5), tell(&begins, 10), tell(&ends, 15)],
            [Some(0), Some(0), None, None]
        );
        assert_eq!([tell(&begins, 60), tell(&ends, 65)], [Some(1), Some(0)]);
    }
}
