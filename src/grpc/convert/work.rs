//! The worker's stream.

use super::batch::{RefusedSettlements, settlements};
use super::check::{Check, Invalid};
use super::claim::{idle_out, order, queues};
use super::job::delivered;
use super::settle::settle_response;
use crate::domain::{Limits, Settings};
use crate::grpc::pb;
use crate::queue::{Handover, REFUSED_BYTES};
use crate::service::{ConnectionBudget, WorkConnection, WorkHello, WorkMessage, WorkReply, WorkSettlements};
use std::sync::Arc;

/// Of jobs in one message: enough for a good batch, and little enough to be held for a worker that does not read.
const MESSAGE_BYTES: usize = 256 << 10;
/// Where the worker names no bound.
const IN_FLIGHT_BYTES: usize = 64 << 20;

/// What comes back with the answer to settlements.
#[derive(Debug)]
pub(crate) struct SettleTag {
    id: u64,
    refused: RefusedSettlements,
}

/// The first message: what the stream works on, and what else it says.
pub(crate) fn work_hello(
    limits: &Limits, connection: WorkConnection, mut request: pb::WorkRequest,
) -> Result<(WorkHello, WorkMessage<SettleTag>), Invalid> {
    let mut check = Check::new(limits);
    let Some(hello) = request.hello.take() else {
        check.refuse("hello", "the first message must say what the stream works on");
        return check.done(None);
    };
    let names = queues(&mut check, &hello.queues);
    let order = order(&mut check, hello.order, &hello.queues, hello.weights);
    let lease_duration = check.lease_duration(hello.lease_duration);
    check.name("worker_id", &hello.worker_id);
    let max_bytes_in_flight = match hello.max_bytes_in_flight {
        0 => IN_FLIGHT_BYTES,
        bytes => bytes as usize,
    };
    let budget = connection.budget.clone();
    let hello = check.done(order.map(|order| WorkHello {
        queues: names,
        order,
        lease_duration,
        worker_id: hello.worker_id,
        max_bytes_in_flight,
        reports_started: hello.reports_started,
        max_jobs: limits.batch_items,
        max_bytes: MESSAGE_BYTES.min(limits.reply_bytes),
        connection,
    }))?;
    Ok((hello, work_message(limits, &budget, request)?))
}

/// Every message, after its hello has been taken.
pub(crate) fn work_message(
    limits: &Limits, budget: &Arc<ConnectionBudget>, request: pb::WorkRequest,
) -> Result<WorkMessage<SettleTag>, Invalid> {
    let mut check = Check::new(limits);
    if request.hello.is_some() {
        check.refuse("hello", "belongs into the first message only; open another stream");
    }
    let most = limits.batch_items;
    if request.started.len() > most {
        let count = request.started.len();
        check.refuse("started", format!("a message takes at most {most}, not {count}; send several messages"));
        return check.done(None);
    }
    let mut started = Vec::with_capacity(request.started.len());
    for (at, token) in request.started.iter().enumerate() {
        started.extend(check.lease(format_args!("started[{at}]"), token));
    }
    let settle = match request.settle {
        None => None,
        Some(settle) => {
            let (settle, bad) = settlements(limits, settle, true)?;
            let refused = bad.items();
            let held = budget.hold(settle.bytes() + refused * REFUSED_BYTES);
            Some(WorkSettlements { tag: SettleTag { id: request.settle_id, refused: bad }, settle, refused, held })
        }
    };
    let (add_credits, stop) = (request.add_credits, request.stop);
    check.done(Some(WorkMessage { add_credits, settle, started, stop }))
}

pub(crate) fn work_response(settings: &Settings, reply: WorkReply<SettleTag>) -> pb::WorkResponse {
    let jobs = reply.jobs.map(Handover::delivered).unwrap_or_default();
    let mut response = pb::WorkResponse {
        jobs: jobs.into_iter().map(|job| delivered(settings, job)).collect(),
        idle: reply.idle.into_iter().map(|idle| idle_out(reply.now, idle)).collect(),
        cancel_requested: reply.cancel_requested.iter().map(ToString::to_string).collect(),
        keepalive: reply.keepalive,
        drain: reply.drain,
        ..pb::WorkResponse::default()
    };
    if let Some((tag, settled)) = reply.settled {
        response.settle_id = tag.id;
        response.settled = Some(settle_response(settled, tag.refused));
    }
    response
}
