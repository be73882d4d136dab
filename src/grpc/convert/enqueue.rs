//! Jobs on their way in.

use super::batch::{Refused, results};
use super::check::{Check, Invalid, Place};
use super::same_name::SameName;
use super::time::timestamp_out;
use super::{Context, json, policy};
use crate::domain::{Body, JobId, NewJob, OnConflict, When};
use crate::grpc::pb;
use crate::grpc::pb::enqueue_request::{Body as Wire, Deadline, Start};
use crate::queue::Enqueued;
use crate::queue::Refusal;
use std::collections::HashMap;
use std::time::Duration;
use tonic::metadata::MetadataMap;

/// Taken from the call's metadata by jobs that bring none themselves.
const TRACE_HEADERS: [&str; 3] = ["traceparent", "tracestate", "baggage"];

pub(crate) fn trace_headers(metadata: &MetadataMap) -> Vec<(String, String)> {
    let given = |name: &str| {
        let value = metadata.get(name)?.to_str().ok()?;
        Some((name.to_owned(), value.to_owned()))
    };
    TRACE_HEADERS.into_iter().filter_map(given).collect()
}

pub(crate) fn enqueue(
    context: &Context<'_>, place: Option<Place>, request: pb::EnqueueRequest,
) -> Result<NewJob, Invalid> {
    let mut check = Check::at(context.limits, place);
    let queue = check.queue("queue", &request.queue);
    check.name("type", &request.r#type);
    check.name("content_type", &request.content_type);
    check.clean_name("idempotency_key", &request.idempotency_key);
    check.clean_name("job_id", &request.job_id);
    check.clean_name("breaker_key", &request.breaker_key);
    check.without_meaning("group_key", !request.group_key.is_empty());
    let on_conflict = on_conflict(&mut check, &request);
    let key_ttl = key_ttl(&mut check, &request);
    let priority = priority(&mut check, request.priority);
    let start = request.start.and_then(|start| match start {
        Start::Delay(after) => check.delay("delay", Some(after)).map(When::After),
        Start::RunAt(at) => check.timestamp_before("run_at", Some(at), context.now).map(When::At),
    });
    let expiry = request.deadline.and_then(|deadline| match deadline {
        Deadline::ExpiresIn(after) => check.delay("expires_in", Some(after)).map(When::After),
        Deadline::ExpiresAt(at) => check.timestamp_before("expires_at", Some(at), context.now).map(When::At),
    });
    let headers = headers(&mut check, request.headers, context.trace);
    let policy = policy::policy(&mut check, "retry_policy", request.retry_policy);
    // Only where something is overridden: a broken policy of the queue is not the caller's fault.
    if let (Some(over), Some(queue)) = (&policy, &queue)
        && let Err(problem) = context.settings.queue(queue).policy.apply(over).validate()
    {
        check.refuse(format_args!("retry_policy.{}", problem.field), problem.message);
    }
    let (body, content_type) = body(&mut check, request.body, request.content_type);
    let job = queue.map(|queue| NewJob {
        queue,
        id: (!request.job_id.is_empty()).then(|| JobId::parse(&request.job_id)),
        key: (!request.idempotency_key.is_empty()).then_some(request.idempotency_key),
        job_type: request.r#type,
        content_type,
        headers,
        body,
        priority,
        start,
        expiry,
        policy: policy.map(Box::new),
        on_conflict,
        key_ttl,
        breaker_key: (!request.breaker_key.is_empty()).then_some(request.breaker_key),
    });
    check.done(job)
}

fn on_conflict(check: &mut Check<'_>, request: &pb::EnqueueRequest) -> OnConflict {
    let given = pb::OnConflict::try_from(request.on_conflict);
    let named = !request.idempotency_key.is_empty() || !request.job_id.is_empty();
    if !named && given != Ok(pb::OnConflict::Unspecified) {
        check.refuse("on_conflict", "has a meaning only with an idempotency_key or a job_id");
    }
    match given {
        Ok(pb::OnConflict::Unspecified | pb::OnConflict::RejectDifferent) => OnConflict::RejectDifferent,
        Ok(pb::OnConflict::ReturnExisting) => OnConflict::ReturnExisting,
        Ok(pb::OnConflict::ReplaceWaiting) => OnConflict::ReplaceWaiting,
        Err(_) => {
            check.unknown_value("on_conflict", request.on_conflict);
            OnConflict::default()
        }
    }
}

fn key_ttl(check: &mut Check<'_>, request: &pb::EnqueueRequest) -> Option<Duration> {
    let ttl = check.delay("key_ttl", Some(request.key_ttl?))?;
    if request.idempotency_key.is_empty() {
        check.refuse("key_ttl", "has a meaning only with an idempotency_key");
    }
    if ttl < Duration::from_secs(1) {
        check.refuse("key_ttl", "must be at least 1s");
    }
    Some(ttl)
}

fn priority(check: &mut Check<'_>, given: i32) -> i8 {
    i8::try_from(given).unwrap_or_else(|_| {
        check.refuse("priority", format!("must be -128 to 127, not {given}"));
        0
    })
}

/// In the order of their names. Trace headers of the call are added where there is room.
fn headers(check: &mut Check<'_>, given: HashMap<String, String>, trace: &[(String, String)]) -> Vec<(String, String)> {
    let (most, most_bytes) = (check.limits.header_entries, check.limits.headers_bytes);
    let size = |(key, value): (&String, &String)| key.len() + value.len();
    let mut bytes: usize = given.iter().map(size).sum();
    if given.len() > most {
        check.refuse("headers", format!("must be at most {most} entries, not {}", given.len()));
    }
    if bytes > most_bytes {
        let message = format!("must be at most {most_bytes} bytes, names included, not {bytes}");
        check.refuse("headers", message);
    }
    if given.contains_key("") {
        check.refuse("headers", "a header needs a name");
    }
    let mut headers = Vec::with_capacity(given.len() + trace.len());
    for (key, value) in trace {
        bytes += key.len() + value.len();
        if !given.contains_key(key) && given.len() + headers.len() < most && bytes <= most_bytes {
            headers.push((key.clone(), value.clone()));
        }
    }
    headers.extend(given);
    headers.sort_unstable();
    headers
}

/// The body, never copied, and its content type.
fn body(check: &mut Check<'_>, given: Option<Wire>, content_type: String) -> (Body, String) {
    let or = |default: &str| match content_type.is_empty() {
        true => default.to_owned(),
        false => content_type.clone(),
    };
    match given {
        None => (Body::None, content_type),
        Some(Wire::Json(value)) => {
            let text = json::canonical(value).unwrap_or_else(|json::NotJson { path, message }| {
                let message = format!("{message}; send the body as JSON text in `text` instead");
                check.refuse(format_args!("json{path}"), message);
                String::new()
            });
            check.body("json", text.len());
            (Body::Text(text.into()), or("application/json"))
        }
        Some(Wire::Text(text)) => {
            check.body("text", text.len());
            (Body::Text(text.into()), or("text/plain"))
        }
        Some(Wire::Data(data)) => {
            check.body("data", data.len());
            (Body::Data(data), or("application/octet-stream"))
        }
    }
}

pub(crate) fn enqueued(enqueued: Enqueued) -> pb::EnqueueResponse {
    pb::EnqueueResponse {
        job_id: enqueued.id.to_string(),
        outcome: enqueued.outcome.out(),
        state: enqueued.state.out(),
        run_at: enqueued.run_at.map(timestamp_out),
    }
}

/// One result for each job, in request order.
pub(crate) fn enqueue_batch_response(
    done: Vec<Result<Enqueued, Refusal>>, refused: Refused,
) -> pb::EnqueueBatchResponse {
    use pb::enqueue_result::Outcome;
    let result = |result: Result<_, _>| {
        let outcome = result.map_or_else(Outcome::Error, |job| Outcome::Ok(enqueued(job)));
        pb::EnqueueResult { outcome: Some(outcome) }
    };
    pb::EnqueueBatchResponse { results: results(done, refused, result) }
}
