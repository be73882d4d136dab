//! Breakers on the wire.

use super::check::Check;
use super::page_token::{self, Kind};
use super::same_name::SameName;
use super::time::{duration_out, timestamp_out};
use super::{Context, count};
use crate::domain::{BreakerName, BreakerSettings, BreakerState, Limits, Transition};
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
        pb::BreakerState::Unspecified | pb::BreakerState::HalfOpen | pb::BreakerState::Recovering => {
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
    let counts = matches!(state, BreakerState::Closed | BreakerState::Recovering);
    let forced_reason = breaker.forced.as_ref().map(|forced| forced.reason.clone());
    let drain = view.drain.filter(|_| state == BreakerState::Recovering);
    let outage = breaker.outage.filter(|_| state != BreakerState::Closed).unwrap_or_default();
    let degraded = view.degraded.filter(|_| state == BreakerState::Closed);
    let transition_out = |transition: Transition| pb::BreakerTransition {
        at: Some(timestamp_out(transition.at)),
        state: transition.to.out(),
        reason: transition.why,
    };
    pb::Breaker {
        name: name.to_string(),
        state: state.out(),
        failure_count: if counts { view.failures } else { 0 },
        success_count: if half_open { outage.successes } else { 0 },
        settings: Some(settings_out(settings)),
        opened_at: opened_at.map(timestamp_out),
        probe_at: probe_at.map(timestamp_out),
        probes_in_flight: if half_open { count(view.probes) } else { 0 },
        trips: breaker.trips,
        last_error: breaker.last_error,
        forced: breaker.forced.is_some(),
        forced_reason: forced_reason.unwrap_or_default(),
        outage_since: Some(outage.since).filter(|since| since.millis() > 0).map(timestamp_out),
        held_jobs: if state == BreakerState::Closed { 0 } else { view.held },
        uncounted_failures: view.uncounted,
        load: outage.recovery.load,
        load_per_second: view.per_second,
        drain_estimate: drain.map(duration_out),
        falls: outage.falls,
        degraded_until: degraded.map(|degraded| timestamp_out(degraded.until)),
        failure_share: degraded.map_or(0.0, |degraded| degraded.share),
        usual_failure_share: view.usual_share,
        transitions: breaker.log.into_iter().map(transition_out).collect(),
    }
}

fn settings_out(settings: &BreakerSettings) -> pb::BreakerSettings {
    pb::BreakerSettings {
        failure_threshold: settings.failure_threshold,
        recovery_timeout: Some(duration_out(settings.recovery_timeout)),
        half_open_max_calls: settings.half_open_max_calls,
        success_threshold: settings.success_threshold,
        disabled: settings.disabled,
        first_probe: Some(duration_out(settings.first_probe)),
        outage_grace: Some(duration_out(settings.outage_grace)),
        ramp: settings.ramp,
    }
}
