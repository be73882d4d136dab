//! Claims and what they hand out.

use super::batch::{RefusedSettlements, settlements};
use super::check::{Check, Invalid, bounded};
use super::job::delivered;
use super::same_name::SameName;
use super::settle::settle_response;
use super::time::{duration_out, timestamp_out};
use crate::domain::{Limits, QueueName, Settings, Timestamp};
use crate::grpc::pb;
use crate::queue::Delivered;
use crate::queue::{Claimed, Idle, Settlements};
use crate::service::{ClaimRequest, ConnectionBudget, Order};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

const QUEUES_MAX: usize = 100;
const WEIGHT_MAX: u32 = 1_000;

/// `patience`: how long the caller can wait, by its own deadline.
pub(crate) fn claim(
    limits: &Limits, patience: Option<Duration>, budget: Arc<ConnectionBudget>, request: pb::ClaimRequest,
) -> Result<(ClaimRequest, RefusedSettlements), Invalid> {
    let mut check = Check::new(limits);
    let queues = queues(&mut check, &request.queues);
    let order = order(&mut check, request.order, &request.queues, request.weights);
    let wait = check.duration("wait", request.wait).unwrap_or_default();
    let lease_duration = check.lease_duration(request.lease_duration);
    check.name("worker_id", &request.worker_id);
    check.name("request_id", &request.request_id);
    if request.worker_id.is_empty() && !request.request_id.is_empty() {
        check.refuse("worker_id", "is needed with a request_id, which is remembered for each worker by itself");
    }
    let (settle, refused) = settlements(limits, request.settle.unwrap_or_default(), true).unwrap_or_else(|invalid| {
        check.invalid.include(invalid);
        Default::default()
    });
    let max_bytes = bounded(request.max_bytes, limits.reply_bytes, limits.reply_bytes);
    let claim = order.map(|order| ClaimRequest {
        queues,
        order,
        max_jobs: bounded(request.max_jobs, 1, limits.batch_items),
        // The bound is on the whole reply, the answers to `settle` included.
        max_bytes: max_bytes.saturating_sub(answer_bytes(&settle, &refused)),
        wait: wait.min(limits.wait).min(patience.unwrap_or(Duration::MAX)),
        lease_duration,
        budget,
        worker_id: request.worker_id,
        request_id: request.request_id,
        settle,
    });
    Ok((check.done(claim)?, refused))
}

/// About what the answers to settlements take.
fn answer_bytes(settle: &Settlements, refused: &RefusedSettlements) -> usize {
    let refused = refused.items();
    16 * settle.acks.len() + 512 * settle.nacks.len() + 32 * settle.extensions.len() + 1024 * refused
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
    check: &mut Check<'_>, given: i32, queues: &[String], mut weights: HashMap<String, u32>,
) -> Option<Order> {
    match pb::ClaimOrder::try_from(given) {
        Ok(pb::ClaimOrder::Unspecified | pb::ClaimOrder::RoundRobin) => {}
        Ok(pb::ClaimOrder::Strict) => {
            if !weights.is_empty() {
                check.refuse("weights", "have no meaning with strict order; leave them out");
            }
            return Some(Order::Strict);
        }
        Err(_) => {
            check.unknown_value("order", given);
            return None;
        }
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

pub(crate) fn claim_response(
    settings: &Settings, claimed: Claimed, jobs: Vec<Delivered>, settle: Option<RefusedSettlements>,
) -> pb::ClaimResponse {
    let now = claimed.now;
    pb::ClaimResponse {
        jobs: jobs.into_iter().map(|job| delivered(settings, job)).collect(),
        idle: claimed.idle.into_iter().map(|idle| idle_out(now, idle)).collect(),
        server_time: Some(timestamp_out(now)),
        settled: settle.map(|refused| settle_response(claimed.settled, refused)),
    }
}

pub(super) fn idle_out(now: Timestamp, idle: Idle) -> pb::QueueIdle {
    pb::QueueIdle {
        queue: idle.queue.as_str().to_owned(),
        reason: idle.reason.out(),
        retry_after: idle.until.map(|until| duration_out(until.since(now))),
        breaker_key: idle.breaker_key,
    }
}
