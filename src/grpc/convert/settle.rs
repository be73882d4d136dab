//! Acks, nacks and extensions, and what came of them.

use super::batch::{RefusedSettlements, results};
use super::check::{Check, Invalid, Place};
use super::failure;
use super::same_name::SameName;
use super::time::{duration_out, timestamp_out};
use crate::domain::{Attempt, AttemptStatus, Limits, Next, Outcome, cut_bytes};
use crate::grpc::pb;
use crate::queue::{Ack, Acked, Extend, Extended, Nack, Settled};

pub(crate) fn ack(limits: &Limits, place: Option<Place>, request: pb::AckRequest) -> Result<Ack, Invalid> {
    let mut check = Check::at(limits, place);
    let lease = check.lease("lease", &request.lease);
    check.at_most("note", request.note.len(), limits.note_bytes);
    check.at_most("result", request.result.len(), limits.result_bytes);
    let mut breaker_key = request.breaker_key;
    breaker_key.retain(|c| !c.is_control());
    cut_bytes(&mut breaker_key, limits.name_bytes);
    check.done(lease.map(|lease| Ack { lease, note: request.note, result: request.result, breaker_key }))
}

pub(crate) fn nack(limits: &Limits, place: Option<Place>, request: pb::NackRequest) -> Result<Nack, Invalid> {
    let mut check = Check::at(limits, place);
    let lease = check.lease("lease", &request.lease);
    let failure = failure::failure(limits, request.error.unwrap_or_default());
    let retry_after = check.duration("retry_after", request.retry_after);
    check.at_most("checkpoint", request.checkpoint.len(), limits.checkpoint_bytes);
    let kind = pb::NackKind::try_from(request.kind);
    let keep_position = request.keep_position;
    if keep_position && kind != Ok(pb::NackKind::Release) {
        check.refuse("keep_position", "has a meaning only with kind RELEASE");
    }
    if keep_position && retry_after.is_some() {
        check.refuse("keep_position", "goes with no retry_after: a job that waits for a time has no position");
    }
    let failed = |permanent| Some(Outcome::Failed { failure, permanent, retry_after });
    let outcome = match kind {
        Ok(pb::NackKind::Unspecified | pb::NackKind::Retry) => failed(false),
        Ok(pb::NackKind::Permanent) => failed(true),
        Ok(pb::NackKind::Release) => Some(Outcome::Released { retry_after, keep_position }),
        Err(_) => {
            check.unknown_value("kind", request.kind);
            None
        }
    };
    let nack = lease.zip(outcome).map(|(lease, outcome)| Nack { lease, outcome, checkpoint: request.checkpoint });
    check.done(nack)
}

pub(crate) fn extend(limits: &Limits, place: Option<Place>, request: pb::ExtendRequest) -> Result<Extend, Invalid> {
    let mut check = Check::at(limits, place);
    let lease = check.lease("lease", &request.lease);
    let duration = check.lease_duration(request.lease_duration);
    check.at_most("checkpoint", request.checkpoint.len(), limits.checkpoint_bytes);
    let checkpoint = request.checkpoint;
    check.done(lease.map(|lease| Extend { lease, duration, checkpoint }))
}

pub(crate) fn acked(acked: Acked) -> pb::AckResponse {
    pb::AckResponse { already_gone: acked.already_gone }
}

/// The decision, as the attempt's record has it.
pub(crate) fn nacked(attempt: Attempt) -> pb::NackResponse {
    use pb::NackOutcome::{Cancelled, DeadLettered, Released, RetryScheduled};
    let released = attempt.status == AttemptStatus::Released;
    let (outcome, retry_at, dead_reason) = match attempt.next {
        Next::Later { at } if released => (Released, Some(at), None),
        Next::Later { at } => (RetryScheduled, Some(at), None),
        Next::Behind { .. } | Next::OldPlace => (Released, None, None),
        Next::Cancelled => (Cancelled, None, None),
        Next::DeadLetter(reason) => (DeadLettered, None, Some(reason)),
    };
    pb::NackResponse {
        outcome: outcome.into(),
        attempt: attempt.number,
        attempt_counted: attempt.counted,
        retries_left: attempt.retries_left,
        delay: attempt.delay.map(duration_out),
        retry_at: retry_at.map(timestamp_out),
        dead_reason: dead_reason.map_or(0, SameName::out),
        rule: attempt.rule,
        explanation: attempt.explanation,
        queue_breaker: attempt.breaker.out(),
    }
}

pub(crate) fn extended(extended: Extended) -> pb::ExtendResponse {
    pb::ExtendResponse {
        run_until: Some(timestamp_out(extended.run_until)),
        lease_expires_at: Some(timestamp_out(extended.expires_at)),
        cancel_requested: extended.cancel_requested,
    }
}

pub(crate) fn settle_response(reply: Settled, refused: RefusedSettlements) -> pb::SettleResponse {
    macro_rules! results {
        ($list:ident, $result:ident, $module:ident, $out:ident) => {
            results(reply.$list, refused.$list, |result| {
                use pb::$module::Outcome;
                pb::$result { outcome: Some(result.map_or_else(Outcome::Error, |done| Outcome::Ok($out(done)))) }
            })
        };
    }
    pb::SettleResponse {
        acks: results!(acks, AckResult, ack_result, acked),
        nacks: results!(nacks, NackResult, nack_result, nacked),
        extensions: results!(extensions, ExtendResult, extend_result, extended),
    }
}
