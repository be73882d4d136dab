//! Breakers on the wire.

use super::{
    check::{Check, Invalid},
    count,
    dead_letters::page_size,
    page_token::{self, Kind},
    time::{duration_out, timestamp_out},
};
use crate::{
    broker::BreakerReport,
    domain::{
        breaker::{BreakerName, BreakerState},
        limits::Limits,
        settings::BreakerSettings,
    },
    grpc::pb,
    store::BreakerOrder,
};

/// One breaker, or a page of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::grpc) enum WhichBreakers {
    One(String),
    Page { after: Option<BreakerName>, limit: usize },
}

pub(in crate::grpc) fn breaker_status(
    limits: &Limits,
    request: &pb::BreakerStatusRequest,
) -> Result<WhichBreakers, Invalid> {
    let mut check = Check::new(limits);
    if !request.name.is_empty() {
        return check.done(Some(WhichBreakers::One(request.name.clone())));
    }
    let mut after = None;
    if !request.page_token.is_empty() {
        let name = page_token::decode(Kind::Breakers, "", &request.page_token);
        match name.map(|name| String::from_utf8(name).ok()) {
            Ok(name) => after = name.and_then(|name| BreakerName::parse(&name)),
            Err(problem) => check.refuse("page_token", problem),
        }
    }
    let limit = page_size(request.page_size, limits);
    check.done(Some(WhichBreakers::Page { after, limit }))
}

pub(in crate::grpc) fn set_breaker(
    limits: &Limits,
    request: pb::SetBreakerRequest,
) -> Result<(String, BreakerOrder), Invalid> {
    let mut check = Check::new(limits);
    needs_name(&mut check, &request.name);
    let open = match request.state() {
        pb::BreakerState::Open => true,
        pb::BreakerState::Closed => false,
        pb::BreakerState::Unspecified | pb::BreakerState::HalfOpen => {
            check.refuse("state", "must be BREAKER_STATE_OPEN or BREAKER_STATE_CLOSED");
            false
        }
    };
    check.at_most("reason", request.reason.len(), limits.note_bytes);
    let order = BreakerOrder::Force { open, reason: request.reason };
    check.done(Some((request.name, order)))
}

pub(in crate::grpc) fn reset_breaker(
    limits: &Limits,
    request: pb::ResetBreakerRequest,
) -> Result<String, Invalid> {
    let mut check = Check::new(limits);
    needs_name(&mut check, &request.name);
    check.done(Some(request.name))
}

fn needs_name(check: &mut Check<'_>, name: &str) {
    if name.is_empty() {
        check.refuse("name", "must be \"queue:\" or \"dlq:\" and the name of a queue");
    }
}

/// `limit`: what was asked for; a full page may have another behind it.
pub(in crate::grpc) fn breakers_page(
    limits: &Limits,
    reports: Vec<BreakerReport>,
    limit: usize,
) -> pb::BreakerStatusResponse {
    let full = reports.len() >= limit;
    let last = reports.last().filter(|_| full).map(|last| last.name.clone());
    let breakers = reports.into_iter().map(|report| (report.name.clone(), breaker_out(report)));
    let (breakers, cut_after) = page_token::fit(breakers, limits.reply_bytes);
    let token =
        |name: BreakerName| page_token::encode(Kind::Breakers, "", name.to_string().as_bytes());
    let next_page_token = cut_after.or(last).map(token).unwrap_or_default();
    pb::BreakerStatusResponse { breakers, next_page_token }
}

pub(in crate::grpc) fn breaker_out(report: BreakerReport) -> pb::Breaker {
    let state = report.state();
    let BreakerReport { name, view, settings, now } = report;
    let breaker = view.breaker;
    let (opened_at, probe_at) =
        (breaker.opened_at(&settings, now), breaker.probe_at(&settings, now));
    let half_open = state == BreakerState::HalfOpen;
    let forced_reason = breaker.forced.as_ref().map(|forced| forced.reason.clone());
    pb::Breaker {
        name: name.to_string(),
        state: breaker_state_out(state).into(),
        failure_count: if state == BreakerState::Closed { view.failures } else { 0 },
        success_count: breaker.open.filter(|_| half_open).map_or(0, |open| open.successes),
        settings: Some(settings_out(&settings)),
        opened_at: opened_at.map(timestamp_out),
        probe_at: probe_at.map(timestamp_out),
        probes_in_flight: if half_open { count(view.probes as u64) } else { 0 },
        trips: breaker.trips,
        last_error: breaker.last_error,
        forced: breaker.forced.is_some(),
        forced_reason: forced_reason.unwrap_or_default(),
    }
}

pub(super) fn breaker_state_out(state: BreakerState) -> pb::BreakerState {
    match state {
        BreakerState::Closed => pb::BreakerState::Closed,
        BreakerState::Open => pb::BreakerState::Open,
        BreakerState::HalfOpen => pb::BreakerState::HalfOpen,
    }
}

fn settings_out(settings: &BreakerSettings) -> pb::BreakerSettings {
    pb::BreakerSettings {
        failure_threshold: settings.failure_threshold,
        recovery_timeout: Some(duration_out(settings.recovery_timeout)),
        half_open_max_calls: settings.half_open_max_calls,
        success_threshold: settings.success_threshold,
        quiet_period: Some(duration_out(settings.quiet_period)),
        disabled: settings.disabled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::convert::testing::refusals;

    #[test]
    fn bad_fields_are_named() {
        let limits = Limits::default();
        let request = pb::SetBreakerRequest {
            name: String::new(),
            state: pb::BreakerState::HalfOpen.into(),
            reason: "x".repeat(1_025),
        };
        let refused = refusals(set_breaker(&limits, request));
        for (refusal, field) in refused.iter().zip(["name: ", "state: ", "reason: "]) {
            assert!(refusal.starts_with(field), "{refused:?}");
        }
        assert_eq!(refused.len(), 3);
        let request = pb::BreakerStatusRequest { page_token: "x".into(), ..Default::default() };
        assert!(refusals(breaker_status(&limits, &request))[0].starts_with("page_token: "));
        let request = pb::ResetBreakerRequest { name: String::new() };
        assert!(refusals(reset_breaker(&limits, request))[0].starts_with("name: "));
    }
}
