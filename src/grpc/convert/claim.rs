//! Claims and what they hand out.

use super::{
    batch::{RefusedSettlements, settlements},
    check::{Check, Invalid},
    job::delivered,
    settle::settle_response,
    time::{duration_out, timestamp_out},
};
use crate::{
    broker::{ClaimReply, ClaimRequest, Order},
    domain::{ids::QueueName, limits::Limits, settings::Settings, time::Timestamp},
    grpc::pb,
    store::{Idle, IdleReason, Settlements},
};
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

const QUEUES_MAX: usize = 100;
const WEIGHT_MAX: u32 = 1_000;

/// `patience`: how long the caller can wait, by its own deadline.
pub(in crate::grpc) fn claim(
    limits: &Limits,
    patience: Option<Duration>,
    request: pb::ClaimRequest,
) -> Result<(ClaimRequest, RefusedSettlements), Invalid> {
    let mut check = Check::new(limits);
    let queues = queues(&mut check, &request.queues);
    let order = order(&mut check, request.order, &request.queues, request.weights);
    let wait = check.duration("wait", request.wait).unwrap_or_default();
    let lease_duration = check.lease_duration(request.lease_duration);
    check.name("worker_id", &request.worker_id);
    check.name("request_id", &request.request_id);
    let (settle, refused) = settlements(limits, request.settle.unwrap_or_default(), true)
        .unwrap_or_else(|Invalid(found)| {
            for violation in found {
                check.refuse(violation.field, violation.message);
            }
            Default::default()
        });
    let max_bytes = default_and_most(request.max_bytes, limits.reply_bytes, limits.reply_bytes);
    let claim = order.map(|order| ClaimRequest {
        queues,
        order,
        max_jobs: default_and_most(request.max_jobs, 1, limits.batch_items),
        // The bound is on the whole reply, the answers to `settle` included.
        max_bytes: max_bytes.saturating_sub(answer_bytes(&settle, &refused)),
        wait: wait.min(limits.wait).min(patience.unwrap_or(Duration::MAX)),
        lease_duration,
        worker_id: request.worker_id,
        request_id: request.request_id,
        settle,
    });
    Ok((check.done(claim)?, refused))
}

/// About what the answers to settlements take.
fn answer_bytes(settle: &Settlements, refused: &RefusedSettlements) -> usize {
    let refused = refused.acks.len() + refused.nacks.len() + refused.extends.len();
    16 * settle.acks.len() + 512 * settle.nacks.len() + 32 * settle.extends.len() + 1024 * refused
}

fn default_and_most(given: u32, default: usize, most: usize) -> usize {
    match given {
        0 => default,
        given => (given as usize).min(most),
    }
}

pub(super) fn queues(check: &mut Check<'_>, names: &[String]) -> Vec<QueueName> {
    if names.is_empty() || names.len() > QUEUES_MAX {
        check.refuse("queues", format!("name 1 to {QUEUES_MAX} queues, not {}", names.len()));
        return Vec::new();
    }
    let mut seen = HashSet::with_capacity(names.len());
    let mut queues = Vec::with_capacity(names.len());
    for (at, name) in names.iter().enumerate() {
        let field = format_args!("queues[{at}]");
        if !seen.insert(name) {
            check.refuse(field, "named twice");
        } else {
            queues.extend(check.queue(field, name));
        }
    }
    queues
}

pub(super) fn order(
    check: &mut Check<'_>,
    given: i32,
    queues: &[String],
    mut weights: HashMap<String, u32>,
) -> Option<Order> {
    let strict = match pb::ClaimOrder::try_from(given) {
        Ok(pb::ClaimOrder::Unspecified | pb::ClaimOrder::RoundRobin) => false,
        Ok(pb::ClaimOrder::Strict) => true,
        Err(_) => {
            check.unknown_value("order", given);
            return None;
        }
    };
    if strict {
        if !weights.is_empty() {
            check.refuse("weights", "have no meaning with strict order; leave them out");
        }
        return Some(Order::Strict);
    }
    let mut in_order = Vec::with_capacity(queues.len());
    for queue in queues {
        let weight = weights.remove(queue).unwrap_or(1);
        if !(1..=WEIGHT_MAX).contains(&weight) {
            let message = format!("must be 1 to {WEIGHT_MAX}, not {weight}");
            check.refuse(format_args!("weights[{queue:?}]"), message);
        }
        in_order.push(weight);
    }
    let mut others: Vec<_> = weights.into_keys().collect();
    others.sort_unstable();
    for queue in others {
        check.refuse(format_args!("weights[{queue:?}]"), "is not among `queues`");
    }
    Some(Order::RoundRobin { weights: in_order })
}

pub(in crate::grpc) fn claim_response(
    settings: &Settings,
    reply: ClaimReply,
    settle: Option<RefusedSettlements>,
) -> pb::ClaimResponse {
    let now = reply.now;
    pb::ClaimResponse {
        jobs: reply.jobs.into_iter().map(|job| delivered(settings, job)).collect(),
        idle: reply.idle.into_iter().map(|idle| idle_out(now, idle)).collect(),
        server_time: Some(timestamp_out(now)),
        settled: settle.map(|refused| settle_response(reply.settled, refused)),
    }
}

pub(super) fn idle_out(now: Timestamp, idle: Idle) -> pb::Idle {
    let reason = match idle.reason {
        IdleReason::Draining => pb::IdleReason::Draining,
        IdleReason::NoSuchQueue => pb::IdleReason::NoSuchQueue,
        IdleReason::Paused => pb::IdleReason::Paused,
        IdleReason::BreakerOpen => pb::IdleReason::BreakerOpen,
        IdleReason::Limited => pb::IdleReason::Limited,
        IdleReason::NotDue => pb::IdleReason::NotDue,
        IdleReason::Empty => pb::IdleReason::Empty,
    };
    pb::Idle {
        queue: idle.queue.as_str().to_owned(),
        reason: reason.into(),
        retry_after: idle.until.map(|until| duration_out(until.since(now))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::convert::testing::refusals;

    fn request(queues: &[&str]) -> pb::ClaimRequest {
        let queues = queues.iter().map(|&queue| queue.to_owned()).collect();
        pb::ClaimRequest { queues, ..Default::default() }
    }

    fn read(request: pb::ClaimRequest) -> Result<ClaimRequest, Invalid> {
        claim(&Limits::default(), None, request).map(|(claim, _)| claim)
    }

    #[test]
    fn defaults_are_one_job_in_turn_without_waiting() {
        let claim = read(request(&["a", "b"])).unwrap();
        assert_eq!((claim.max_jobs, claim.max_bytes, claim.wait), (1, 7 << 19, Duration::ZERO));
        assert_eq!(claim.order, Order::RoundRobin { weights: vec![1, 1] });
        assert_eq!(claim.lease_duration, None);
    }

    #[test]
    fn what_is_over_a_limit_is_cut() {
        let wait = Some(prost_types::Duration { seconds: 3_600, nanos: 0 });
        let given =
            pb::ClaimRequest { max_jobs: u32::MAX, max_bytes: u32::MAX, wait, ..request(&["a"]) };
        let cut = read(given.clone()).unwrap();
        assert_eq!((cut.max_jobs, cut.max_bytes), (1_000, 7 << 19));
        assert_eq!(cut.wait, Duration::from_secs(30));
        let patience = Some(Duration::from_secs(2));
        let (cut, _) = claim(&Limits::default(), patience, given).unwrap();
        assert_eq!(cut.wait, Duration::from_secs(2));
    }

    #[test]
    fn weights_follow_the_order_of_the_queues() {
        let weights = [("b".to_owned(), 3)].into();
        let claim = read(pb::ClaimRequest { weights, ..request(&["a", "b"]) }).unwrap();
        assert_eq!(claim.order, Order::RoundRobin { weights: vec![1, 3] });
    }

    #[test]
    fn bad_fields_are_named() {
        let weight = |queue: &str, weight| -> HashMap<_, _> { [(queue.to_owned(), weight)].into() };
        let many: Vec<_> = (0..101).map(|n| format!("q{n}")).collect();
        let long = "x".repeat(257);
        let half = Some(prost_types::Duration { seconds: 0, nanos: 500_000_000 });
        let minus = Some(prost_types::Duration { seconds: -1, nanos: 0 });
        let strict = pb::ClaimOrder::Strict.into();
        for (given, field) in [
            (request(&[]), "queues"),
            (pb::ClaimRequest { queues: many, ..Default::default() }, "queues"),
            (request(&["a", "a"]), "queues[1]"),
            (request(&["a", "b c"]), "queues[1]"),
            (pb::ClaimRequest { order: 7, ..request(&["a"]) }, "order"),
            (pb::ClaimRequest { weights: weight("b", 1), ..request(&["a"]) }, "weights[\"b\"]"),
            (pb::ClaimRequest { weights: weight("a", 0), ..request(&["a"]) }, "weights[\"a\"]"),
            (pb::ClaimRequest { weights: weight("a", 1_001), ..request(&["a"]) }, "weights[\"a\"]"),
            (
                pb::ClaimRequest { weights: weight("a", 1), order: strict, ..request(&["a"]) },
                "weights",
            ),
            (pb::ClaimRequest { wait: minus, ..request(&["a"]) }, "wait"),
            (pb::ClaimRequest { lease_duration: half, ..request(&["a"]) }, "lease_duration"),
            (pb::ClaimRequest { worker_id: long.clone(), ..request(&["a"]) }, "worker_id"),
            (pb::ClaimRequest { request_id: long, ..request(&["a"]) }, "request_id"),
        ] {
            let refused = refusals(read(given));
            let start = format!("{field}: ");
            assert!(refused.len() == 1 && refused[0].starts_with(&start), "{field}: {refused:?}");
        }
    }

    #[test]
    fn a_bad_settlement_does_not_keep_the_claim_from_working() {
        let acks = vec![pb::AckRequest::default()];
        let settle = Some(pb::SettleRequest { acks, ..Default::default() });
        let given = pb::ClaimRequest { settle, ..request(&["a"]) };
        let (claim, refused) = claim(&Limits::default(), None, given).unwrap();
        assert!(claim.settle.is_empty());
        assert_eq!(refused.acks.len(), 1);
    }
}
