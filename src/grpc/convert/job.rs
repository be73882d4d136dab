//! Jobs, attempts and their states on the way out.

use super::failure::{brief_failure_out, failure_out};
use super::same_name::SameName;
use super::time::{duration_out, timestamp_out};
use crate::domain::{Attempt, Body, Delivery, JobEvent, Progress, QueueName, Settings, Spec, State};
use crate::grpc::pb;
use crate::queue::Delivered;

/// A job for its worker.
pub(super) fn delivered(settings: &Settings, job: Delivered) -> pb::Job {
    let Delivered { queue, mut spec, progress, delivery, last_failure, learnt_key } = job;
    spec.breaker_key = learnt_key.or(spec.breaker_key);
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
    settings: &Settings, queue: &QueueName, mut spec: Spec, mut progress: Progress,
    (state, delivery): (State, Option<&Delivery>), view: View,
) -> pb::Job {
    let attempt = match (delivery, state) {
        (Some(delivery), _) => delivery.attempt,
        (None, State::Scheduled | State::Retrying | State::Ready | State::Leased) => progress.tries + 1,
        (None, State::Completed | State::Cancelled | State::Dead) => progress.tries,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum View {
    /// Without body, headers, checkpoint, attempts and events.
    #[default]
    Basic,
    Full,
}

fn plain(settings: &Settings, queue: &QueueName, spec: Spec, progress: Progress, attempt: u32) -> pb::Job {
    let policy = &settings.queue(queue).policy;
    let max_retries = match (progress.max_retries, &spec.policy) {
        // As the last failure was decided, so the next one is expected to be.
        (Some(max_retries), _) => max_retries,
        (None, None) => policy.max_retries,
        (None, Some(over)) => policy.apply(over).max_retries,
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
        breaker_key: spec.breaker_key.unwrap_or_default(),
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

pub(super) fn attempt_out(attempt: Attempt) -> pb::Attempt {
    pb::Attempt {
        number: attempt.number,
        status: attempt.status.out(),
        worker_id: attempt.worker_id,
        started_at: Some(timestamp_out(attempt.started_at)),
        ended_at: Some(timestamp_out(attempt.ended_at)),
        note: attempt.note,
        failure: attempt.failure.map(failure_out),
        delay: attempt.delay.map(duration_out),
        explanation: attempt.explanation,
        delivery: attempt.delivery,
        counted: attempt.counted,
        probe: attempt.probe,
        rule: attempt.rule,
    }
}

pub(super) fn event_out(event: JobEvent) -> pb::JobEvent {
    pb::JobEvent {
        time: Some(timestamp_out(event.at)),
        kind: event.kind.out(),
        by: event.by,
        reason: event.reason,
        detail: event.detail,
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
