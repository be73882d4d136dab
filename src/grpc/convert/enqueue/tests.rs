use super::*;
use crate::domain::time::Timestamp;
use crate::grpc::convert::testing::{context, refusals};
use std::time::Duration;

fn request() -> pb::EnqueueRequest {
    pb::EnqueueRequest { queue: "q".into(), r#type: "t".into(), ..Default::default() }
}

fn read(change: impl FnOnce(&mut pb::EnqueueRequest)) -> Result<NewJob, Invalid> {
    let mut request = request();
    change(&mut request);
    enqueue(&context(), None, request)
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn at(seconds: i64) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds, nanos: 0 })
}

#[test]
#[expect(clippy::type_complexity, reason = "a table of changes")]
fn every_rule_names_its_field() {
    let year_and_more = 367 * 86_400;
    let cases: Vec<(&[&str], Box<dyn FnOnce(&mut pb::EnqueueRequest)>)> = vec![
        (&["queue"], Box::new(|r| r.queue = "dlq:q".into())),
        (&["type"], Box::new(|r| r.r#type = "x".repeat(257))),
        (&["content_type"], Box::new(|r| r.content_type = "x".repeat(257))),
        (&["idempotency_key"], Box::new(|r| r.idempotency_key = "x".repeat(257))),
        (&["idempotency_key"], Box::new(|r| r.idempotency_key = "a\0".into())),
        (&["job_id"], Box::new(|r| r.job_id = "a\n".into())),
        (&["job_id"], Box::new(|r| r.job_id = "x".repeat(257))),
        (&["breaker_key"], Box::new(|r| r.breaker_key = "b".into())),
        (&["group_key"], Box::new(|r| r.group_key = "g".into())),
        (&["priority"], Box::new(|r| r.priority = 128)),
        (&["priority"], Box::new(|r| r.priority = -129)),
        (&["delay"], Box::new(|r| r.delay = seconds(-1))),
        (&["delay"], Box::new(move |r| r.delay = seconds(year_and_more))),
        (&["run_at"], Box::new(move |r| r.run_at = at(1_000 + year_and_more))),
        (&["expires_in"], Box::new(move |r| r.expires_in = seconds(year_and_more))),
        (&["expires_at"], Box::new(move |r| r.expires_at = at(1_000 + year_and_more))),
        (&["delay", "run_at"], Box::new(|r| (r.delay, r.run_at) = (seconds(1), at(1)))),
        (
            &["expires_in", "expires_at"],
            Box::new(|r| (r.expires_in, r.expires_at) = (seconds(1), at(1))),
        ),
        (
            &["headers"],
            Box::new(|r| r.headers = (0..65).map(|n| (n.to_string(), "".into())).collect()),
        ),
        (&["headers"], Box::new(|r| r.headers = [("k".into(), "x".repeat(16 << 10))].into())),
        (&["headers"], Box::new(|r| r.headers = [("".into(), "x".into())].into())),
        (&["text"], Box::new(|r| r.body = Some(Wire::Text("x".repeat((1 << 20) + 1))))),
        (&["data"], Box::new(|r| r.body = Some(Wire::Data(vec![0; (1 << 20) + 1].into())))),
        (&["json"], Box::new(|r| r.body = Some(Wire::Json(prost_types::Value::default())))),
        (
            &["retry_policy.delays"],
            Box::new(|r| {
                let strategy = pb::BackoffStrategy::List.into();
                r.retry_policy = Some(pb::RetryPolicy { strategy, ..Default::default() });
            }),
        ),
    ];
    for (fields, change) in cases {
        let refused = refusals(read(change));
        let starts = |(r, field): (&String, &&str)| r.starts_with(&format!("{field}: "));
        assert_eq!(refused.len(), fields.len(), "{fields:?}: {refused:?}");
        assert!(refused.iter().zip(fields).all(starts), "{fields:?}: {refused:?}");
    }
}

#[test]
fn all_bad_fields_are_named_at_once_under_their_item() {
    let request = pb::EnqueueRequest { priority: 900, ..Default::default() };
    let place = Some(Place { list: "jobs", at: 3 });
    let refused = refusals(enqueue(&context(), place, request));
    let fields: Vec<_> = refused.iter().filter_map(|r| r.split(": ").next()).collect();
    assert_eq!(fields, ["jobs[3].queue", "jobs[3].priority"]);
}

#[test]
fn a_body_over_the_limit_is_told_apart() {
    let Err(Invalid(found)) = read(|r| r.body = Some(Wire::Text("x".repeat((1 << 20) + 1)))) else {
        panic!("accepted")
    };
    assert_eq!(found[0].body_too_large, Some(((1 << 20) + 1, 1 << 20)));
    assert!(found[0].message.contains("1048576"));
}

#[test]
fn bodies_have_their_usual_content_types() {
    let value = prost_types::Value { kind: Some(prost_types::value::Kind::BoolValue(true)) };
    for (body, kept, content_type) in [
        (Wire::Json(value), Body::Text("true".into()), "application/json"),
        (Wire::Text("hi".into()), Body::Text("hi".into()), "text/plain"),
        (Wire::Data("hi".into()), Body::Data("hi".into()), "application/octet-stream"),
    ] {
        let job = read(|r| r.body = Some(body.clone())).unwrap();
        assert_eq!((job.body, job.content_type.as_str()), (kept, content_type));
        let own = |r: &mut pb::EnqueueRequest| {
            (r.body, r.content_type) = (Some(body), "x/y".into());
        };
        assert_eq!(read(own).unwrap().content_type, "x/y");
    }
}

#[test]
fn the_limits_themselves_are_allowed() {
    let job = read(|r| {
        r.body = Some(Wire::Data(vec![0; 1 << 20].into()));
        r.delay = seconds(366 * 86_400);
        r.expires_at = at(1_000 + 366 * 86_400);
        r.priority = -128;
        r.job_id = "x".repeat(256);
        r.headers = (0..64).map(|n| (n.to_string(), "x".into())).collect();
    })
    .unwrap();
    assert_eq!(job.start, Start::After(Duration::from_secs(366 * 86_400)));
    assert_eq!(job.expiry, Expiry::At(Timestamp::from_millis((1_000 + 366 * 86_400) * 1_000)));
    assert_eq!(job.priority, -128);
}

#[test]
fn trace_headers_of_the_call_do_not_replace_the_jobs_own() {
    let mut metadata = MetadataMap::new();
    for name in TRACE_HEADERS {
        metadata.insert(name, "call".parse().unwrap());
    }
    let trace = trace_headers(&metadata);
    let mut request = request();
    request.headers = [("traceparent".to_owned(), "job".to_owned())].into();
    let job = enqueue(&Context { trace: &trace, ..context() }, None, request).unwrap();
    let pair = |(a, b): (&str, &str)| (a.to_owned(), b.to_owned());
    assert_eq!(
        job.headers,
        [("baggage", "call"), ("traceparent", "job"), ("tracestate", "call")].map(pair)
    );
}
