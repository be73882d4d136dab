//! What jobs take in a reply, which is bounded as a whole.

use super::JobView;
use crate::domain::{Failure, JobId, Spec};

/// What a job adds to a reply beside its body and texts: queue, lease and times.
const JOB_OVERHEAD_BYTES: usize = 320;
/// Details are kept as text and sent as values: `1,` becomes eleven bytes.
const DETAILS_GROWTH: usize = 6;
/// What a view adds to a reply beside its texts.
const VIEW_OVERHEAD_BYTES: usize = 512;

/// And each of its events.
const EVENT_OVERHEAD_BYTES: usize = 32;

/// At least what a delivered job takes, but for what it has been through.
pub(crate) fn of_job(spec: &Spec) -> usize {
    let headers: usize = spec.headers.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    let id = match &spec.id {
        JobId::Text(id) => id.len(),
        JobId::Uuid(_) => 0,
    };
    spec.body.bytes().len() + headers + id + spec.job_type.len() + spec.content_type.len() + JOB_OVERHEAD_BYTES
}

/// And its last failure.
pub(crate) fn of_failure(failure: &Failure) -> usize {
    failure.error_type.len() + failure.code.len() + failure.message.len() + failure.details.len() * DETAILS_GROWTH
}

pub(crate) fn of_view(view: &JobView) -> usize {
    let failure = |failure: &Failure| {
        failure.message.len() + failure.stack_trace.len() + failure.response_body.len() + failure.details.len()
    };
    let headers: usize = view.spec.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    let attempts: usize = view
        .attempts
        .iter()
        .map(|attempt| {
            VIEW_OVERHEAD_BYTES
                + attempt.note.len()
                + attempt.explanation.len()
                + attempt.failure.as_ref().map_or(0, failure)
        })
        .sum();
    let events: usize = view
        .events
        .iter()
        .map(|event| EVENT_OVERHEAD_BYTES + event.by.len() + event.reason.len() + event.detail.len())
        .sum();
    view.spec.body.bytes().len()
        + headers
        + events
        + view.progress.checkpoint.len()
        + view.result.len()
        + view.last_failure.as_ref().map_or(0, failure)
        + attempts
        + VIEW_OVERHEAD_BYTES
}
