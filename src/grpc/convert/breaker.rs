//! Breakers on the wire.

use super::check::Check;
use super::page_token::{self, Kind};
use super::same_name::SameName;
use super::time::{duration_out, timestamp_out};
use super::{Context, count};
use crate::domain::{BreakerName, BreakerSettings, BreakerState, Limits};
use crate::grpc::pb;
use crate::queue::{BreakerOrder, BreakerView};
use crate::queue::{Error, Refusal};
use tonic::Status;

const BREAKERS: (Kind, &str) = (Kind::Breakers, "");

/// One breaker, or a page of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WhichBreakers {
    One(BreakerName),
    Page { after: Option<BreakerName>, limit: usize },
}

pub(crate) fn breaker_status(limits: &Limits, request: &pb::BreakerStatusRequest) -> Result<WhichBreakers, Status> {
    let mut check = Check::new(limits);
    if !request.name.is_empty() {
        return Ok(WhichBreakers::One(breaker_name(&request.name)?));
    }
    let read = |position: &[u8]| BreakerName::parse(str::from_utf8(position).ok()?);
    let after = check.token("page_token", BREAKERS, &request.page_token, read);
    let limit = check.page_size(request.page_size);
    Ok(check.done(Some(WhichBreakers::Page { after, limit }))?)
}

pub(crate) fn set_breaker(
    limits: &Limits, request: pb::SetBreakerRequest,
) -> Result<(BreakerName, BreakerOrder), Status> {
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
    check.done(Some(()))?;
    Ok((breaker_name(&request.name)?, order))
}

pub(crate) fn reset_breaker(limits: &Limits, request: pb::ResetBreakerRequest) -> Result<BreakerName, Status> {
    let mut check = Check::new(limits);
    needs_name(&mut check, &request.name);
    check.done(Some(()))?;
    Ok(breaker_name(&request.name)?)
}

/// No other name can be that of a breaker.
fn breaker_name(name: &str) -> Result<BreakerName, Error> {
    BreakerName::parse(name).ok_or_else(|| Refusal::BreakerNotFound { name: name.to_owned() }.into())
}

fn needs_name(check: &mut Check<'_>, name: &str) {
    if name.is_empty() {
        check.refuse("name", "must be \"queue:\" or \"dlq:\" and the name of a queue");
    }
}

/// `limit`: what was asked for; a full page may have another behind it.
pub(crate) fn breakers_page(
    context: &Context<'_>, breakers: Vec<(BreakerName, BreakerView)>, limit: usize,
) -> pb::BreakerStatusResponse {
    let next = breakers.last().filter(|_| breakers.len() >= limit).map(|(last, _)| last.clone());
    let breakers = breakers.into_iter().map(|(name, view)| {
        let breaker = breaker_out(context, &name, view);
        (name, breaker)
    });
    let position = |name: BreakerName| name.to_string();
    let (breakers, next_page_token) = page_token::page(BREAKERS, context.limits, breakers, next, position);
    pb::BreakerStatusResponse { breakers, next_page_token }
}

pub(crate) fn breaker_out(context: &Context<'_>, name: &BreakerName, view: BreakerView) -> pb::Breaker {
    let (now, settings, breaker) = (context.now, context.settings.breaker(name), view.breaker);
    let state = breaker.state(settings, now);
    let (opened_at, probe_at) = (breaker.opened_at(settings, now), breaker.probe_at(settings, now));
    let half_open = state == BreakerState::HalfOpen;
    let forced_reason = breaker.forced.as_ref().map(|forced| forced.reason.clone());
    pb::Breaker {
        name: name.to_string(),
        state: state.out(),
        failure_count: if state == BreakerState::Closed { view.failures } else { 0 },
        success_count: breaker.open.filter(|_| half_open).map_or(0, |open| open.successes),
        settings: Some(settings_out(settings)),
        opened_at: opened_at.map(timestamp_out),
        probe_at: probe_at.map(timestamp_out),
        probes_in_flight: if half_open { count(view.probes as u64) } else { 0 },
        trips: breaker.trips,
        last_error: breaker.last_error,
        forced: breaker.forced.is_some(),
        forced_reason: forced_reason.unwrap_or_default(),
    }
}

fn settings_out(settings: &BreakerSettings) -> pb::BreakerSettings {
    pb::BreakerSettings {
        failure_threshold: settings.failure_threshold,
        recovery_timeout: Some(duration_out(settings.recovery_timeout)),
        half_open_max_calls: settings.half_open_max_calls,
        success_threshold: settings.success_threshold,
        disabled: settings.disabled,
    }
}
