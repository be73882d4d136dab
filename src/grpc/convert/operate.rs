//! What operators do to queues and jobs.

use super::check::{Check, Invalid};
use crate::{
    domain::{
        ids::{JobId, QueueName},
        limits::Limits,
    },
    grpc::pb,
    store::NewPause,
};

pub(in crate::grpc) fn pause_queue(
    limits: &Limits,
    request: pb::PauseQueueRequest,
) -> Result<(QueueName, NewPause), Invalid> {
    let mut check = Check::new(limits);
    let queue = check.queue("queue", &request.queue);
    let duration = check.duration_at_most("duration", request.duration, limits.delay);
    if duration.is_some_and(|duration| duration.is_zero()) {
        check.refuse("duration", "must be more than 0; leave it out to pause until resumed");
    }
    check.at_most("reason", request.reason.len(), limits.note_bytes);
    check.done(queue.map(|queue| (queue, NewPause { duration, reason: request.reason })))
}

pub(in crate::grpc) fn resume_queue(
    limits: &Limits,
    request: &pb::ResumeQueueRequest,
) -> Result<QueueName, Invalid> {
    let mut check = Check::new(limits);
    let queue = check.queue("queue", &request.queue);
    check.done(queue)
}

/// Which job, and why.
pub(in crate::grpc) fn cancel_job(
    limits: &Limits,
    request: pb::CancelJobRequest,
) -> Result<(JobId, Option<QueueName>, String), Invalid> {
    let mut check = Check::new(limits);
    let id = check.job_id("job_id", &request.job_id);
    let queue = check.queue_if_given("queue", &request.queue);
    check.at_most("reason", request.reason.len(), limits.note_bytes);
    check.done(id.map(|id| (id, queue, request.reason)))
}

pub(in crate::grpc) fn run_job_now(
    limits: &Limits,
    request: &pb::RunJobNowRequest,
) -> Result<(JobId, Option<QueueName>), Invalid> {
    let mut check = Check::new(limits);
    let id = check.job_id("job_id", &request.job_id);
    let queue = check.queue_if_given("queue", &request.queue);
    check.done(id.map(|id| (id, queue)))
}
