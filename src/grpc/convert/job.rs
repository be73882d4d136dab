//! Jobs, attempts and their states on the way out.

use super::{
    failure::{brief_failure_out, failure_out},
    time::{duration_out, timestamp_out},
};
use crate::{
    domain::{
        ids::QueueName,
        job::{Attempt, AttemptStatus, Body, DeadReason, Delivery, Progress, Spec, State},
        settings::Settings,
    },
    grpc::pb,
    store::Delivered,
};

/// A job for its worker.
pub(super) fn delivered(settings: &Settings, job: Delivered) -> pb::Job {
    let Delivered { queue, spec, progress, delivery, last_failure } = job;
    let mut out = plain(settings, &queue, spec, progress, delivery.attempt);
    out.is_last_attempt &= !delivery.probe;
    out.lease = delivery.lease.to_string();
    out.lease_duration = Some(duration_out(delivery.duration));
    out.lease_expires_at = Some(timestamp_out(delivery.expires_at));
    out.last_failure = last_failure.map(brief_failure_out);
    out
}

/// A job for operators: without its lease, and with the attempt that it is at, comes to, or died of.
pub(super) fn viewed(
    settings: &Settings,
    queue: &QueueName,
    mut spec: Spec,
    mut progress: Progress,
    (state, delivery): (State, Option<&Delivery>),
    view: View,
) -> pb::Job {
    let attempt = match (delivery, state) {
        (Some(delivery), _) => delivery.attempt,
        (None, State::Scheduled | State::Ready | State::Leased) => progress.tries + 1,
        (None, State::Completed | State::Dead) => progress.tries,
    };
    if view == View::Basic {
        spec.body = Body::None;
        spec.headers.clear();
        progress.checkpoint.clear();
    }
    let mut out = plain(settings, queue, spec, progress, attempt);
    if let Some(delivery) = delivery {
        out.is_last_attempt &= !delivery.probe;
        out.lease_duration = Some(duration_out(delivery.duration));
        out.lease_expires_at = Some(timestamp_out(delivery.expires_at));
    }
    out
}

/// How much of a job is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grpc) enum View {
    /// Without body, headers, checkpoint and attempts.
    Basic,
    Full,
}

fn plain(
    settings: &Settings,
    queue: &QueueName,
    spec: Spec,
    progress: Progress,
    attempt: u32,
) -> pb::Job {
    let policy = &settings.queue(queue).policy;
    let max_retries = match &spec.policy {
        None => policy.max_retries,
        Some(over) => policy.apply(over).max_retries,
    };
    pb::Job {
        job_id: spec.id.to_string(),
        queue: queue.as_str().to_owned(),
        r#type: spec.job_type,
        body: body_out(spec.body),
        content_type: spec.content_type,
        headers: spec.headers.into_iter().collect(),
        priority: spec.priority.into(),
        attempt,
        max_retries,
        is_last_attempt: attempt > max_retries,
        enqueued_at: Some(timestamp_out(spec.enqueued_at)),
        expires_at: progress.deadline(spec.expires_at).map(timestamp_out),
        deliveries: progress.deliveries,
        checkpoint: progress.checkpoint,
        ..pb::Job::default()
    }
}

/// Nothing is copied where the bytes have no other owner.
fn body_out(body: Body) -> Option<pb::job::Body> {
    match body {
        Body::None => None,
        Body::Data(data) => Some(pb::job::Body::Data(data)),
        Body::Text(text) => Some(match String::from_utf8(Vec::from(text)) {
            Ok(text) => pb::job::Body::Text(text),
            // Only a damaged record; its bytes are still worth seeing.
            Err(error) => pb::job::Body::Data(error.into_bytes().into()),
        }),
    }
}

pub(super) fn state_out(state: State) -> pb::JobState {
    match state {
        State::Scheduled => pb::JobState::Scheduled,
        State::Ready => pb::JobState::Ready,
        State::Leased => pb::JobState::Leased,
        State::Completed => pb::JobState::Completed,
        State::Dead => pb::JobState::Dead,
    }
}

pub(super) fn dead_reason_out(reason: DeadReason) -> pb::DeadReason {
    match reason {
        DeadReason::Exhausted => pb::DeadReason::Exhausted,
        DeadReason::NonRetryable => pb::DeadReason::NonRetryable,
        DeadReason::Expired => pb::DeadReason::Expired,
        DeadReason::WouldMissDeadline => pb::DeadReason::WouldMissDeadline,
        DeadReason::Cancelled => pb::DeadReason::Cancelled,
        DeadReason::Corrupt => pb::DeadReason::Corrupt,
    }
}

pub(super) fn dead_reason_in(reason: pb::DeadReason) -> Option<DeadReason> {
    Some(match reason {
        pb::DeadReason::Unspecified => return None,
        pb::DeadReason::Exhausted => DeadReason::Exhausted,
        pb::DeadReason::NonRetryable => DeadReason::NonRetryable,
        pb::DeadReason::Expired => DeadReason::Expired,
        pb::DeadReason::WouldMissDeadline => DeadReason::WouldMissDeadline,
        pb::DeadReason::Cancelled => DeadReason::Cancelled,
        pb::DeadReason::Corrupt => DeadReason::Corrupt,
    })
}

fn status_out(status: AttemptStatus) -> pb::AttemptStatus {
    match status {
        AttemptStatus::Running => pb::AttemptStatus::Running,
        AttemptStatus::Succeeded => pb::AttemptStatus::Succeeded,
        AttemptStatus::Failed => pb::AttemptStatus::Failed,
        AttemptStatus::LeaseExpired => pb::AttemptStatus::LeaseExpired,
        AttemptStatus::Released => pb::AttemptStatus::Released,
        AttemptStatus::Interrupted => pb::AttemptStatus::Interrupted,
        AttemptStatus::Cancelled => pb::AttemptStatus::Cancelled,
    }
}

pub(super) fn attempt_out(attempt: &Attempt) -> pb::Attempt {
    pb::Attempt {
        number: attempt.number,
        status: status_out(attempt.status).into(),
        worker_id: attempt.worker_id.clone(),
        started_at: Some(timestamp_out(attempt.started_at)),
        ended_at: Some(timestamp_out(attempt.ended_at)),
        note: attempt.note.clone(),
        failure: attempt.failure.as_ref().map(failure_out),
        delay: attempt.delay.map(duration_out),
        explanation: attempt.explanation.clone(),
        delivery: attempt.delivery,
        counted: attempt.counted,
        probe: attempt.probe,
        rule: attempt.rule.clone(),
    }
}

/// The attempt that a worker is at now.
pub(super) fn running_out(delivery: &Delivery) -> pb::Attempt {
    pb::Attempt {
        number: delivery.attempt,
        status: pb::AttemptStatus::Running.into(),
        worker_id: delivery.worker_id.clone(),
        started_at: Some(timestamp_out(delivery.started_at)),
        delivery: delivery.lease.delivery,
        probe: delivery.probe,
        ..pb::Attempt::default()
    }
}
