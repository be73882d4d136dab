//! Jobs on their way in.

use super::{
    Context,
    batch::{Refused, merge},
    check::{Check, Invalid, Place},
    job::state_out,
    json, policy,
    time::timestamp_out,
};
use crate::{
    broker::Refusal,
    domain::{
        ids::JobId,
        job::{Body, Expiry, NewJob, Start},
        policy::PolicyOverride,
    },
    grpc::{
        pb::{self, enqueue_request::Body as Wire},
        status,
    },
    store::Enqueued,
};
use std::collections::HashMap;
use tonic::metadata::MetadataMap;

/// Taken from the call's metadata by jobs that bring none themselves.
const TRACE_HEADERS: [&str; 3] = ["traceparent", "tracestate", "baggage"];

pub(in crate::grpc) fn trace_headers(metadata: &MetadataMap) -> Vec<(String, String)> {
    let given = |name: &str| {
        let value = metadata.get(name)?.to_str().ok()?;
        Some((name.to_owned(), value.to_owned()))
    };
    TRACE_HEADERS.into_iter().filter_map(given).collect()
}

pub(in crate::grpc) fn enqueue(
    context: &Context<'_>,
    place: Option<Place>,
    request: pb::EnqueueRequest,
) -> Result<NewJob, Invalid> {
    let mut check = Check::at(context.limits, place);
    let queue = check.queue("queue", &request.queue);
    check.name("type", &request.r#type);
    check.name("content_type", &request.content_type);
    check.clean_name("idempotency_key", &request.idempotency_key);
    check.clean_name("job_id", &request.job_id);
    check.without_meaning("breaker_key", !request.breaker_key.is_empty());
    check.without_meaning("group_key", !request.group_key.is_empty());
    let priority = priority(&mut check, request.priority);
    let start = start(&mut check, context, request.delay, request.run_at);
    let expiry = expiry(&mut check, context, request.expires_in, request.expires_at);
    let headers = headers(&mut check, request.headers, context.trace);
    let policy = policy::policy(&mut check, "retry_policy", request.retry_policy);
    if let (Some(over), Some(queue)) = (&policy, &queue) {
        check_resolved(&mut check, over, &context.settings.queue(queue).policy.apply(over));
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
    });
    check.done(job)
}

fn priority(check: &mut Check<'_>, given: i32) -> i8 {
    i8::try_from(given).unwrap_or_else(|_| {
        check.refuse("priority", format!("must be -128 to 127, not {given}"));
        0
    })
}

fn start(
    check: &mut Check<'_>,
    context: &Context<'_>,
    delay: Option<prost_types::Duration>,
    run_at: Option<prost_types::Timestamp>,
) -> Start {
    both(check, ["delay", "run_at"], delay.is_some() && run_at.is_some());
    let delay = check.duration_at_most("delay", delay, context.limits.delay);
    let run_at = check.timestamp_before("run_at", run_at, context.now);
    match (delay, run_at) {
        (Some(delay), _) => Start::After(delay),
        (None, Some(at)) => Start::At(at),
        (None, None) => Start::Now,
    }
}

fn expiry(
    check: &mut Check<'_>,
    context: &Context<'_>,
    expires_in: Option<prost_types::Duration>,
    expires_at: Option<prost_types::Timestamp>,
) -> Expiry {
    both(check, ["expires_in", "expires_at"], expires_in.is_some() && expires_at.is_some());
    let expires_in = check.duration_at_most("expires_in", expires_in, context.limits.delay);
    let expires_at = check.timestamp_before("expires_at", expires_at, context.now);
    match (expires_in, expires_at) {
        (Some(after), _) => Expiry::After(after),
        (None, Some(at)) => Expiry::At(at),
        (None, None) => Expiry::Never,
    }
}

fn both(check: &mut Check<'_>, [first, second]: [&str; 2], given: bool) {
    if given {
        check.refuse(first, format!("give either this or {second}"));
        check.refuse(second, format!("give either this or {first}"));
    }
}

/// In the order of their names. Trace headers of the call are added where there is room.
fn headers(
    check: &mut Check<'_>,
    given: HashMap<String, String>,
    trace: &[(String, String)],
) -> Vec<(String, String)> {
    let (most, most_bytes) = (check.limits.header_entries, check.limits.header_bytes);
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

fn check_resolved(
    check: &mut Check<'_>,
    over: &PolicyOverride,
    resolved: &crate::domain::policy::RetryPolicy,
) {
    // A broken queue policy is not the caller's fault.
    if !over.is_empty()
        && let Err(problem) = resolved.validate()
    {
        check.refuse(format_args!("retry_policy.{}", problem.field), problem.message);
    }
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
            let text = json::canonical(&value).unwrap_or_else(|json::NotJson { path, message }| {
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

pub(in crate::grpc) fn enqueued(enqueued: Enqueued) -> pb::EnqueueResponse {
    pb::EnqueueResponse {
        job_id: enqueued.id.to_string(),
        deduplicated: enqueued.deduplicated,
        state: state_out(enqueued.state).into(),
        run_at: enqueued.run_at.map(timestamp_out),
    }
}

/// One result for each job, in request order.
pub(in crate::grpc) fn enqueue_batch_response(
    results: Vec<Result<Enqueued, Refusal>>,
    refused: Refused,
) -> pb::EnqueueBatchResponse {
    use pb::enqueue_result::Outcome;
    let answers = results.into_iter().map(|result| match result {
        Ok(job) => Outcome::Ok(enqueued(job)),
        Err(refusal) => Outcome::Error(status::item(&refusal)),
    });
    let refused = refused
        .into_iter()
        .map(|(at, invalid)| (at, Outcome::Error(status::invalid_item(&invalid))));
    let result = |outcome| pb::EnqueueResult { outcome: Some(outcome) };
    pb::EnqueueBatchResponse { results: merge(answers, refused).into_iter().map(result).collect() }
}

#[cfg(test)]
mod tests;
