//! Acks, nacks and extends, and what came of them.

use super::{
    batch::{RefusedSettlements, merge},
    breaker::breaker_state_out,
    check::{Check, Invalid, Place},
    failure,
    job::dead_reason_out,
    time::{duration_out, timestamp_out},
};
use crate::{
    broker::{Refusal, SettleReply},
    domain::{
        job::{Attempt, AttemptStatus, Next},
        limits::Limits,
        verdict::Ending,
    },
    grpc::{
        pb::{self, ack_result, extend_result, nack_result},
        status,
    },
    store::{Ack, Acked, Extend, Extended, Nack},
};

pub(in crate::grpc) fn ack(
    limits: &Limits,
    place: Option<Place>,
    request: pb::AckRequest,
) -> Result<Ack, Invalid> {
    let mut check = Check::at(limits, place);
    let lease = check.lease("lease", &request.lease);
    check.at_most("note", request.note.len(), limits.note_bytes);
    check.at_most("result", request.result.len(), limits.result_bytes);
    check.done(lease.map(|lease| Ack { lease, note: request.note, result: request.result }))
}

pub(in crate::grpc) fn nack(
    limits: &Limits,
    place: Option<Place>,
    request: pb::NackRequest,
) -> Result<Nack, Invalid> {
    let mut check = Check::at(limits, place);
    let lease = check.lease("lease", &request.lease);
    let failure = failure::failure(&mut check, request.error.unwrap_or_default());
    let retry_after = check.duration("retry_after", request.retry_after);
    check.at_most("checkpoint", request.checkpoint.len(), limits.checkpoint_bytes);
    let kind = pb::NackKind::try_from(request.kind);
    if failure.error_type.is_empty() && !matches!(kind, Ok(pb::NackKind::Release) | Err(_)) {
        check.refuse("error.type", "must be given: error rules and statistics go by it");
    }
    let ending = match kind {
        Ok(pb::NackKind::Unspecified | pb::NackKind::Retry) => {
            Some(Ending::Failed { failure, permanent: false, retry_after })
        }
        Ok(pb::NackKind::Permanent) => {
            Some(Ending::Failed { failure, permanent: true, retry_after })
        }
        Ok(pb::NackKind::Release) => Some(Ending::Released { retry_after }),
        Err(_) => {
            check.unknown_value("kind", request.kind);
            None
        }
    };
    let nack = lease.zip(ending).map(|(lease, ending)| Nack {
        lease,
        ending,
        checkpoint: request.checkpoint,
    });
    check.done(nack)
}

pub(in crate::grpc) fn extend(
    limits: &Limits,
    place: Option<Place>,
    request: pb::ExtendRequest,
) -> Result<Extend, Invalid> {
    let mut check = Check::at(limits, place);
    let lease = check.lease("lease", &request.lease);
    let duration = check.lease_duration(request.lease_duration);
    check.at_most("checkpoint", request.checkpoint.len(), limits.checkpoint_bytes);
    let checkpoint = request.checkpoint;
    check.done(lease.map(|lease| Extend { lease, duration, checkpoint }))
}

pub(in crate::grpc) fn acked(acked: Acked) -> pb::AckResponse {
    pb::AckResponse { already_gone: acked.already_gone }
}

/// The decision, as the attempt's record tells it.
pub(in crate::grpc) fn nacked(attempt: Attempt) -> pb::NackResponse {
    use pb::NackOutcome::{DeadLettered, Released, RetryScheduled};
    let released = attempt.status == AttemptStatus::Released;
    let (outcome, retry_at, dead_reason) = match attempt.next {
        Next::Later { at } if released => (Released, Some(at), None),
        Next::Later { at } => (RetryScheduled, Some(at), None),
        Next::Behind { .. } | Next::OldPlace => (Released, None, None),
        Next::Bury(reason) => (DeadLettered, None, Some(reason)),
    };
    pb::NackResponse {
        outcome: outcome.into(),
        attempt: attempt.number,
        attempt_counted: attempt.counted,
        retries_left: attempt.retries_left,
        delay: attempt.delay.map(duration_out),
        retry_at: retry_at.map(timestamp_out),
        dead_reason: dead_reason.map_or(0, |reason| dead_reason_out(reason).into()),
        rule: attempt.rule,
        explanation: attempt.explanation,
        queue_breaker: breaker_state_out(attempt.breaker).into(),
    }
}

pub(in crate::grpc) fn extended(extended: Extended) -> pb::ExtendResponse {
    pb::ExtendResponse {
        lease_expires_at: Some(timestamp_out(extended.expires_at)),
        cancel_requested: extended.cancel_requested,
    }
}

/// One result for each item, in request order.
pub(in crate::grpc) fn settle_response(
    reply: SettleReply,
    refused: RefusedSettlements,
) -> pb::SettleResponse {
    let item = |(at, invalid): (usize, Invalid)| (at, status::invalid_item(&invalid));
    let ack = |result: Result<Acked, Refusal>| match result {
        Ok(done) => ack_result::Outcome::Ok(acked(done)),
        Err(refusal) => ack_result::Outcome::Error(status::item(&refusal)),
    };
    let nack = |result: Result<Attempt, Refusal>| match result {
        Ok(done) => nack_result::Outcome::Ok(nacked(done)),
        Err(refusal) => nack_result::Outcome::Error(status::item(&refusal)),
    };
    let extend = |result: Result<Extended, Refusal>| match result {
        Ok(done) => extend_result::Outcome::Ok(extended(done)),
        Err(refusal) => extend_result::Outcome::Error(status::item(&refusal)),
    };
    let bad_acks = refused.acks.into_iter().map(item);
    let bad_nacks = refused.nacks.into_iter().map(item);
    let bad_extends = refused.extends.into_iter().map(item);
    pb::SettleResponse {
        acks: merge(
            reply.acks.into_iter().map(ack),
            bad_acks.map(|(at, error)| (at, ack_result::Outcome::Error(error))),
        )
        .into_iter()
        .map(|outcome| pb::AckResult { outcome: Some(outcome) })
        .collect(),
        nacks: merge(
            reply.nacks.into_iter().map(nack),
            bad_nacks.map(|(at, error)| (at, nack_result::Outcome::Error(error))),
        )
        .into_iter()
        .map(|outcome| pb::NackResult { outcome: Some(outcome) })
        .collect(),
        extends: merge(
            reply.extends.into_iter().map(extend),
            bad_extends.map(|(at, error)| (at, extend_result::Outcome::Error(error))),
        )
        .into_iter()
        .map(|outcome| pb::ExtendResult { outcome: Some(outcome) })
        .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{
            failure::Failure, ids::QueueName, job::DeadReason, lease::Lease, time::Timestamp,
        },
        grpc::convert::testing::refusals,
    };
    use std::time::Duration;

    fn lease() -> Lease {
        Lease {
            queue: QueueName::parse("emails").unwrap(),
            number: 7,
            delivery: 2,
            nonce: 9,
            flags: 0,
            epoch: 0,
            started_at: Timestamp::default(),
            duration_ms: 0,
            own_id: None,
        }
    }

    fn nack_request(kind: pb::NackKind, error_type: &str) -> pb::NackRequest {
        let error = Some(pb::Failure { r#type: error_type.into(), ..Default::default() });
        pb::NackRequest {
            lease: lease().to_string(),
            error,
            kind: kind.into(),
            ..Default::default()
        }
    }

    fn read(request: pb::NackRequest) -> Result<Nack, Invalid> {
        nack(&Limits::default(), None, request)
    }

    #[test]
    fn every_kind_of_nack_has_its_ending() {
        let failure = || Failure::new("E", "");
        for (kind, ending) in [
            (
                pb::NackKind::Unspecified,
                Ending::Failed { failure: failure(), permanent: false, retry_after: None },
            ),
            (
                pb::NackKind::Retry,
                Ending::Failed { failure: failure(), permanent: false, retry_after: None },
            ),
            (
                pb::NackKind::Permanent,
                Ending::Failed { failure: failure(), permanent: true, retry_after: None },
            ),
            (pb::NackKind::Release, Ending::Released { retry_after: None }),
        ] {
            assert_eq!(read(nack_request(kind, "E")).unwrap().ending, ending);
        }
    }

    #[test]
    fn a_failure_needs_a_type_and_a_release_does_not() {
        for kind in [pb::NackKind::Unspecified, pb::NackKind::Retry, pb::NackKind::Permanent] {
            let refused = refusals(read(nack_request(kind, "")));
            assert!(refused.len() == 1 && refused[0].starts_with("error.type: "), "{refused:?}");
        }
        assert!(read(nack_request(pb::NackKind::Release, "")).is_ok());
    }

    #[test]
    fn bad_fields_are_named() {
        let limits = Limits::default();
        let lease = lease().to_string();
        let minus = Some(prost_types::Duration { seconds: -1, nanos: 0 });
        let bad_nack = pb::NackRequest {
            lease: "x".into(),
            kind: 9,
            retry_after: minus,
            checkpoint: "x".repeat((16 << 10) + 1),
            ..Default::default()
        };
        let fields = |refused: Vec<String>| -> Vec<String> {
            refused.iter().filter_map(|r| Some(r.split_once(": ")?.0.to_owned())).collect()
        };
        let refused = fields(refusals(read(bad_nack)));
        assert_eq!(refused, ["lease", "retry_after", "checkpoint", "kind"]);

        let note = "x".repeat(1_025);
        let result = vec![0; (64 << 10) + 1].into();
        let bad_ack = pb::AckRequest { lease: String::new(), note, result };
        assert_eq!(fields(refusals(ack(&limits, None, bad_ack))), ["lease", "note", "result"]);

        for (millis, fits) in [(999, false), (1_000, true), (86_400_000, true), (86_400_001, false)]
        {
            let duration = Some(duration_out(Duration::from_millis(millis)));
            let lease = lease.clone();
            let request =
                pb::ExtendRequest { lease, lease_duration: duration, checkpoint: String::new() };
            let refused = fields(refusals(extend(&limits, None, request)));
            assert_eq!(refused.is_empty(), fits, "{millis}");
            assert!(fits || refused == ["lease_duration"]);
        }
    }

    #[test]
    fn the_answer_to_a_nack_tells_where_the_job_went() {
        use pb::NackOutcome::{DeadLettered, Released, RetryScheduled};
        let at = Timestamp::from_millis(5_000);
        for (status, next, outcome, has_time, reason) in [
            (AttemptStatus::Failed, Next::Later { at }, RetryScheduled, true, 0),
            (AttemptStatus::Released, Next::Later { at }, Released, true, 0),
            (AttemptStatus::Released, Next::Behind { at }, Released, false, 0),
            (AttemptStatus::Interrupted, Next::OldPlace, Released, false, 0),
            (AttemptStatus::Failed, Next::Bury(DeadReason::Exhausted), DeadLettered, false, 1),
        ] {
            let attempt = Attempt {
                number: 2,
                delivery: 2,
                nonce: 9,
                status,
                worker_id: String::new(),
                started_at: at,
                ended_at: at,
                note: String::new(),
                failure: None,
                next,
                delay: None,
                retries_left: 1,
                counted: true,
                probe: false,
                breaker: Default::default(),
                nacked: true,
                rule: String::new(),
                explanation: "why".into(),
            };
            let answer = nacked(attempt);
            assert_eq!(answer.outcome(), outcome);
            assert_eq!(answer.retry_at.is_some(), has_time);
            assert_eq!(answer.dead_reason, reason);
            assert_eq!((answer.attempt, answer.explanation.as_str()), (2, "why"));
            assert_eq!(answer.queue_breaker(), pb::BreakerState::Closed);
        }
    }
}
