//! Jobs that must not get in.

use crate::scene::Scene;
use crate::server::{claim, inner, job, job_of, text, time};
use pb::enqueue_request::Body;
use prost_types::{ListValue, Struct, Value, value::Kind};
use redrive::grpc::pb;
use tonic::Code;

const MEBIBYTE: usize = 1 << 20;

/// Puts a text into one field of a job.
type Fill = fn(&mut pb::EnqueueRequest, String);

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn number(number: f64) -> Value {
    value(Kind::NumberValue(number))
}

fn object(key: &str, inner: Value) -> Value {
    let fields = [(key.to_owned(), inner)].into();
    value(Kind::StructValue(Struct { fields }))
}

fn list(values: Vec<Value>) -> Value {
    value(Kind::ListValue(ListValue { values }))
}

fn with_body(body: Body) -> pb::EnqueueRequest {
    pb::EnqueueRequest { body: Some(body), ..job("q") }
}

#[tokio::test]
async fn a_body_may_have_a_mebibyte_and_not_a_byte_more() {
    let scene = Scene::set().await;
    let json = |bytes| Body::Json(value(Kind::StringValue("x".repeat(bytes - 2))));
    let text = |bytes| Body::Text("x".repeat(bytes));
    let data = |bytes| Body::Data(vec![0; bytes].into());
    for (field, body) in [
        ("json", json(MEBIBYTE + 1)),
        ("text", text(MEBIBYTE + 1)),
        ("data", data(MEBIBYTE + 1)),
        ("data", data(5 * MEBIBYTE)),
    ] {
        let call = scene.server.enqueue(with_body(body));
        let refused = scene.refuses(call, Code::InvalidArgument, "BODY_TOO_LARGE", &[field]).await;
        assert!(refused.message().contains("1048576"), "{}", refused.message());
    }
    for body in [json(MEBIBYTE), text(MEBIBYTE), data(MEBIBYTE)] {
        scene.server.enqueue(with_body(body)).await.unwrap();
    }
    scene.still_works().await;
}

#[tokio::test]
async fn an_empty_body_is_a_body() {
    let scene = Scene::set().await;
    for (body, back) in [
        (None, None),
        (text(""), Some(pb::job::Body::Text(String::new()))),
        (Some(Body::Data(Vec::new().into())), Some(pb::job::Body::Data(Vec::new().into()))),
    ] {
        let request = pb::EnqueueRequest { body, ..job("empty") };
        scene.server.enqueue(request).await.unwrap();
        assert_eq!(scene.server.take("empty").await.body, back);
    }
}

#[tokio::test]
async fn a_call_over_four_mebibytes_is_refused_as_a_whole() {
    let scene = Scene::set().await;
    let jobs: Vec<_> = (0..5).map(|_| with_body(Body::Data(vec![0; 900 << 10].into()))).collect();
    let call = async {
        let jobs = jobs.clone();
        let batch = pb::EnqueueBatchRequest { jobs };
        inner(scene.server.queue().enqueue_batch(batch).await)
    };
    let refused = scene.refuses_fields(call, &["jobs"]).await;
    assert!(refused.message().contains("4194304"), "{}", refused.message());

    // Far over it, nothing is even read.
    let huge = with_body(Body::Data(vec![0; 7 * MEBIBYTE].into()));
    let call = scene.server.enqueue(huge);
    scene.refuses(call, Code::InvalidArgument, "BODY_TOO_LARGE", &[]).await;
    scene.still_works().await;
}

#[tokio::test]
async fn a_batch_has_at_most_a_thousand_jobs() {
    let scene = Scene::set().await;
    let call = async {
        let jobs = vec![job("q"); 1_001];
        let batch = pb::EnqueueBatchRequest { jobs };
        inner(scene.server.queue().enqueue_batch(batch).await)
    };
    let refused = scene.refuses_fields(call, &["jobs"]).await;
    assert!(refused.message().contains("at most 1000 items"), "{}", refused.message());
    let jobs = vec![job("many"); 1_000];
    let batch = pb::EnqueueBatchRequest { jobs };
    let reply = inner(scene.server.queue().enqueue_batch(batch).await).unwrap();
    assert_eq!(reply.results.len(), 1_000);
}

#[tokio::test]
async fn a_bad_item_of_a_batch_names_its_field_and_harms_no_other() {
    let scene = Scene::set().await;
    let bad = |change: fn(&mut pb::EnqueueRequest)| {
        let mut request = job("batch");
        change(&mut request);
        request
    };
    let jobs = vec![
        job_of("batch", "first"),
        bad(|job| job.priority = 1_000),
        bad(|job| job.queue = "no/queue".into()),
        bad(|job| {
            let max_retries = Some(1_001);
            job.retry_policy = Some(pb::RetryPolicy { max_retries, ..Default::default() });
        }),
        bad(|job| job.body = Some(Body::Data(vec![0; MEBIBYTE + 1].into()))),
        job_of("batch", "last"),
    ];
    let batch = pb::EnqueueBatchRequest { jobs };
    let reply = inner(scene.server.queue().enqueue_batch(batch).await).unwrap();
    let outcomes: Vec<_> = reply
        .results
        .into_iter()
        .enumerate()
        .map(|(at, result)| match result.outcome.expect("every item has an outcome") {
            pb::enqueue_result::Outcome::Ok(ok) => (ok.job_id, String::new()),
            pb::enqueue_result::Outcome::Error(error) => {
                assert_eq!((error.code, error.retryable), (3, false));
                assert!(error.message.starts_with(&format!("jobs[{at}].{}: ", error.field)), "{}", error.message);
                (error.reason, error.field)
            }
        })
        .collect();
    let expected = [
        ("first", ""),
        ("INVALID_FIELD", "priority"),
        ("INVALID_FIELD", "queue"),
        ("INVALID_FIELD", "retry_policy.max_retries"),
        ("BODY_TOO_LARGE", "data"),
        ("last", ""),
    ];
    let outcomes: Vec<_> = outcomes.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(outcomes, expected);
    let both = pb::ClaimRequest { max_jobs: 10, ..claim("batch") };
    assert_eq!(scene.server.claim(both).await.unwrap().jobs.len(), 2);
}

#[tokio::test]
async fn a_queue_needs_a_proper_name() {
    let scene = Scene::set().await;
    let long = "x".repeat(101);
    for name in ["", "-a", ".a", "_a", "a b", "ä", "a/b", "a\n", "a\0", "dlq:q", &long] {
        scene.refuses_fields(scene.server.enqueue(job(name)), &["queue"]).await;
        scene.refuses_fields(scene.server.claim(claim(name)), &["queues[0]"]).await;
        if !name.is_empty() {
            scene.refuses_fields(scene.server.get_job_in("dead", name), &["queue"]).await;
        }
    }
    scene.server.enqueue(job(&"x".repeat(100))).await.unwrap();
}

#[tokio::test]
async fn a_priority_fits_into_a_byte() {
    let scene = Scene::set().await;
    for priority in [128, -129, i32::MAX, i32::MIN] {
        let request = pb::EnqueueRequest { priority, ..job("q") };
        scene.refuses_fields(scene.server.enqueue(request), &["priority"]).await;
    }
    for priority in [-128, 127] {
        let request = pb::EnqueueRequest { priority, ..job("p") };
        scene.server.enqueue(request).await.unwrap();
    }
    assert_eq!(scene.server.take("p").await.priority, 127);
    assert_eq!(scene.server.take("p").await.priority, -128);
}

#[tokio::test]
async fn fields_without_a_meaning_are_refused_rather_than_ignored() {
    let scene = Scene::set().await;
    let request = pb::EnqueueRequest { group_key: "customer-7".into(), ..job("q") };
    scene.refuses_fields(scene.server.enqueue(request), &["group_key"]).await;
}

#[tokio::test]
async fn headers_are_bounded_in_number_and_size() {
    let scene = Scene::set().await;
    let many = |count| (0..count).map(|n| (format!("h{n}"), String::new()));
    let large = |bytes: usize| [("large".to_owned(), "x".repeat(bytes - 5))];
    let with = |headers| pb::EnqueueRequest { headers, ..job("q") };
    for headers in [many(65).collect(), large((16 << 10) + 1).into(), [(String::new(), "nameless".to_owned())].into()] {
        scene.refuses_fields(scene.server.enqueue(with(headers)), &["headers"]).await;
    }
    scene.server.enqueue(with(many(64).collect())).await.unwrap();
    scene.server.enqueue(with(large(16 << 10).into())).await.unwrap();
}

#[tokio::test]
async fn names_are_at_most_256_bytes() {
    let scene = Scene::set().await;
    let set: [(&str, Fill); 4] = [
        ("type", |job, name| job.r#type = name),
        ("content_type", |job, name| job.content_type = name),
        ("idempotency_key", |job, name| job.idempotency_key = name),
        ("job_id", |job, name| job.job_id = name),
    ];
    for (field, set) in set {
        // Bytes, not characters.
        for long in ["x".repeat(257), "é".repeat(129)] {
            let mut request = job("q");
            set(&mut request, long);
            scene.refuses_fields(scene.server.enqueue(request), &[field]).await;
        }
        let mut request = job("names");
        set(&mut request, "é".repeat(128));
        scene.server.enqueue(request).await.unwrap();
    }
    for (field, set) in &set[2..] {
        let mut request = job("q");
        set(&mut request, "a\nb".into());
        scene.refuses_fields(scene.server.enqueue(request), &[field]).await;
    }
    let long = scene.server.get_job("x".repeat(257).leak());
    scene.refuses_fields(long, &["job_id"]).await;
    scene.refuses_fields(scene.server.get_job(""), &["job_id"]).await;
}

#[tokio::test]
async fn a_job_needs_no_type() {
    let scene = Scene::set().await;
    let request = pb::EnqueueRequest { r#type: String::new(), ..job("typeless") };
    scene.server.enqueue(request).await.unwrap();
    assert_eq!(scene.server.take("typeless").await.r#type, "");
}

#[tokio::test]
async fn numbers_that_json_cannot_carry_exactly_are_refused_with_their_path() {
    let scene = Scene::set().await;
    let two_to_53 = 9_007_199_254_740_992.0;
    for (json, field) in [
        (number(two_to_53), "json"),
        (number(-two_to_53), "json"),
        (number(1e300), "json"),
        (number(f64::NAN), "json"),
        (number(f64::INFINITY), "json"),
        (number(f64::NEG_INFINITY), "json"),
        (object("user", object("id", number(two_to_53))), "json.user.id"),
        (object("ids", list(vec![number(1.0), number(two_to_53)])), "json.ids[1]"),
        (Value { kind: None }, "json"),
        (value(Kind::NullValue(7)), "json"),
    ] {
        let call = scene.server.enqueue(with_body(Body::Json(json)));
        let refused = scene.refuses_fields(call, &[field]).await;
        assert!(refused.message().contains("`text`"), "{}", refused.message());
    }
    let fine = object("id", number(two_to_53 - 1.0));
    let fine = pb::EnqueueRequest { body: Some(Body::Json(fine)), ..job("exact") };
    scene.server.enqueue(fine).await.unwrap();
    let body = scene.server.take("exact").await.body;
    assert_eq!(body, Some(pb::job::Body::Text(r#"{"id":9007199254740991}"#.into())));
}

#[tokio::test]
async fn json_that_is_too_deep_is_refused_and_the_server_lives() {
    let scene = Scene::set().await;
    let deep = (0..33).fold(number(1.0), |inner, _| list(vec![inner]));
    let deepest = format!("json{}", "[0]".repeat(32));
    let refused = scene.refuses_fields(scene.server.enqueue(with_body(Body::Json(deep))), &[&deepest]).await;
    assert!(refused.message().contains("nested more than 32 deep"), "{}", refused.message());
    let fine = (0..32).fold(number(1.0), |inner, _| list(vec![inner]));
    scene.server.enqueue(with_body(Body::Json(fine))).await.unwrap();
    // So deep that it is not even read.
    let deeper = (0..200).fold(number(1.0), |inner, _| list(vec![inner]));
    scene.refuses_fields(scene.server.enqueue(with_body(Body::Json(deeper))), &[]).await;
    scene.still_works().await;
}

#[tokio::test]
async fn a_policy_that_cannot_be_is_refused_field_by_field() {
    let scene = Scene::set().await;
    let policy = |change: fn(&mut pb::RetryPolicy)| {
        let mut policy = pb::RetryPolicy::default();
        change(&mut policy);
        policy
    };
    let cases = [
        ("preset", policy(|p| p.preset = "heroic".into())),
        ("max_retries", policy(|p| p.max_retries = Some(1_001))),
        ("strategy", policy(|p| p.strategy = 99)),
        ("strategy", policy(|p| p.strategy = -1)),
        ("factor", policy(|p| p.factor = Some(f64::NAN))),
        ("factor", policy(|p| p.factor = Some(-1.0))),
        ("jitter", policy(|p| p.jitter = 99)),
        ("jitter_fraction", policy(|p| p.jitter_fraction = Some(1.5))),
        ("jitter_fraction", policy(|p| p.jitter_fraction = Some(f64::NAN))),
        ("delays", policy(|p| p.strategy = pb::BackoffStrategy::List.into())),
    ];
    for (field, policy) in cases {
        let retry_policy = Some(policy.clone());
        let request = pb::EnqueueRequest { retry_policy, ..job("q") };
        let named = format!("retry_policy.{field}");
        scene.refuses_fields(scene.server.enqueue(request), &[&named]).await;

        let explain = pb::ExplainPolicyRequest { policy: Some(policy), ..Default::default() };
        let named = format!("policy.{field}");
        let call = async { inner(scene.server.admin().explain_policy(explain).await) };
        scene.refuses_fields(call, &[&named]).await;
    }
    let long = "x".repeat(257);
    let explain =
        pb::ExplainPolicyRequest { queue: "!".into(), error_type: long.clone(), code: long, ..Default::default() };
    let call = async { inner(scene.server.admin().explain_policy(explain).await) };
    scene.refuses_fields(call, &["error_type", "code", "queue"]).await;
}

#[tokio::test]
async fn every_bad_field_is_named_at_once() {
    let scene = Scene::set().await;
    let request = pb::EnqueueRequest { queue: "!".into(), priority: 999, breaker_key: "a\nb".into(), ..job("q") };
    let fields = ["queue", "breaker_key", "priority"];
    scene.refuses_fields(scene.server.enqueue(request), &fields).await;
}

#[tokio::test]
async fn a_queue_at_its_depth_limit_takes_no_more_and_says_when_to_come_back() {
    use crate::server::{Server, Setup};
    use redrive::domain::QueueSettings;
    use tonic_types::StatusExt;
    let defaults = QueueSettings { max_depth: Some(1), ..QueueSettings::default() };
    let server = Server::with(Setup { defaults, ..Setup::default() }).await;
    server.enqueue(job("q")).await.unwrap();
    let refused = server.enqueue(job("q")).await.unwrap_err();
    crate::scene::assert_refused(&refused, Code::ResourceExhausted, "QUEUE_FULL", &[]);
    let batch = pb::EnqueueBatchRequest { jobs: vec![job("q")] };
    let item = inner(server.queue().enqueue_batch(batch).await).unwrap().results.remove(0);
    let Some(pb::enqueue_result::Outcome::Error(item)) = item.outcome else { panic!("{item:?}") };
    assert!(item.retryable && item.retry_after.is_some(), "{item:?}");
    assert!(refused.get_error_details().retry_info().is_some());
    let lease = server.take("q").await.lease;
    server.ack(&lease).await.unwrap();
    server.enqueue(job("q")).await.unwrap();
}

#[tokio::test]
async fn one_queue_too_many_is_refused() {
    use crate::server::{Server, Setup};
    use redrive::domain::Limits;
    let limits = Limits { queues: 2, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    server.enqueue(job("a")).await.unwrap();
    server.enqueue(job("b")).await.unwrap();
    let refused = server.enqueue(job("c")).await.unwrap_err();
    crate::scene::assert_refused(&refused, Code::ResourceExhausted, "TOO_MANY_QUEUES", &[]);
    assert_eq!(server.list_queues().await.len(), 2);
    server.enqueue(job("a")).await.unwrap();
}

#[tokio::test]
async fn a_conflict_needs_a_name_and_a_keys_time_a_key() {
    let scene = Scene::set().await;
    let replace = pb::OnConflict::ReplaceWaiting.into();
    let nameless = pb::EnqueueRequest { on_conflict: replace, ..job("q") };
    scene.refuses_fields(scene.server.enqueue(nameless), &["on_conflict"]).await;
    let unknown = pb::EnqueueRequest { on_conflict: 99, ..job_of("q", "new") };
    scene.refuses_fields(scene.server.enqueue(unknown), &["on_conflict"]).await;
    let keyless = pb::EnqueueRequest { key_ttl: time(60, 0), ..job_of("q", "new") };
    scene.refuses_fields(scene.server.enqueue(keyless), &["key_ttl"]).await;
    for (seconds, nanos) in [(0, 999_000_000), (-1, 0), (366 * 86_400 + 1, 0)] {
        let key_ttl = time(seconds, nanos);
        let request = pb::EnqueueRequest { key_ttl, idempotency_key: "k".into(), ..job("q") };
        scene.refuses_fields(scene.server.enqueue(request), &["key_ttl"]).await;
    }
    scene.still_works().await;
}
