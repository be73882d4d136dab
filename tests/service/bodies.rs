//! What goes in comes out: bodies, content types, headers, ids.

use crate::server::{Server, inner, job, job_of, text};
use crate::shapes::after;
use pb::enqueue_request::Body;
use prost_types::{ListValue, Struct, Value, value::Kind};
use redrive::grpc::pb;
use tonic::{Code, Request};

pub(crate) fn value_of(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(values) => Kind::ListValue(ListValue { values: values.iter().map(value_of).collect() }),
        Json::Object(fields) => Kind::StructValue(Struct {
            fields: fields.iter().map(|(key, value)| (key.clone(), value_of(value))).collect(),
        }),
    };
    Value { kind: Some(kind) }
}

/// Sends the body through the server.
async fn through(server: &Server, body: Option<Body>, content_type: &str) -> pb::Job {
    let content_type = content_type.to_owned();
    let request = pb::EnqueueRequest { body, content_type, ..job("bodies") };
    server.enqueue(request).await.unwrap();
    server.take("bodies").await
}

#[tokio::test]
async fn json_comes_back_as_canonical_text() {
    let server = Server::start().await;
    for (json, canonical) in [
        (r#"{"b": 1, "a": {"z": [true, null], "y": ""}}"#, r#"{"a":{"y":"","z":[true,null]},"b":1}"#),
        ("[1.0, 1e3, 0.1, -0.0, 1e-7, 1.50]", "[1,1000,0.1,0,1e-7,1.5]"),
        (r#""é\n\"\\ \u0001 😀""#, r#""é\n\"\\ \u0001 😀""#),
        ("null", "null"),
        ("{}", "{}"),
        ("[]", "[]"),
        ("-9007199254740991", "-9007199254740991"),
    ] {
        let given = value_of(&serde_json::from_str(json).unwrap());
        let job = through(&server, Some(Body::Json(given)), "").await;
        assert_eq!(job.body, Some(pb::job::Body::Text(canonical.into())));
        assert_eq!(job.content_type, "application/json");
    }
}

#[tokio::test]
async fn text_and_data_come_back_byte_for_byte() {
    let server = Server::start().await;
    for given in ["{\"b\" : 1,\n \"a\":2}", " \t\r\n", "\0", "😀é\u{feff}", "18014398509481984"] {
        let job = through(&server, text(given), "").await;
        assert_eq!(job.body, Some(pb::job::Body::Text(given.into())));
        assert_eq!(job.content_type, "text/plain");
    }
    let every_byte: Vec<u8> = (0..=255).collect();
    let job = through(&server, Some(Body::Data(every_byte.clone().into())), "").await;
    assert_eq!(job.body, Some(pb::job::Body::Data(every_byte.into())));
    assert_eq!(job.content_type, "application/octet-stream");
}

#[tokio::test]
async fn a_content_type_of_ones_own_is_kept() {
    let server = Server::start().await;
    let json = Some(Body::Json(value_of(&serde_json::json!(1))));
    for body in [json, text("<a/>"), Some(Body::Data(vec![1].into())), None] {
        let job = through(&server, body, "application/xml").await;
        assert_eq!(job.content_type, "application/xml");
    }
}

#[tokio::test]
async fn headers_come_back_with_the_trace_of_the_call() {
    let server = Server::start().await;
    let own = |name: &str, value: &str| [(name.to_owned(), value.to_owned())];
    for (given, traceparent) in [(own("tenant", "7"), "00-call"), (own("traceparent", "00-own"), "00-own")] {
        let headers = given.clone().into();
        let mut request = Request::new(pb::EnqueueRequest { headers, ..job("traced") });
        for (name, value) in [
            ("traceparent", "00-call"),
            ("tracestate", "a=b"),
            ("baggage", "c=d"),
            ("x-secret", "not a header of the job"),
        ] {
            request.metadata_mut().insert(name, value.parse().unwrap());
        }
        server.queue().enqueue(request).await.unwrap();
        let headers = server.take("traced").await.headers;
        assert_eq!(headers["traceparent"], traceparent);
        assert_eq!(headers["tracestate"], "a=b");
        assert_eq!(headers["baggage"], "c=d");
        assert!(!headers.contains_key("x-secret"));
        assert_eq!(headers[&given[0].0], given[0].1);
    }
}

#[tokio::test]
async fn every_job_of_a_batch_carries_the_trace() {
    let server = Server::start().await;
    let jobs = vec![job("traced"), job("traced")];
    let mut request = Request::new(pb::EnqueueBatchRequest { jobs });
    request.metadata_mut().insert("traceparent", "00-call".parse().unwrap());
    server.queue().enqueue_batch(request).await.unwrap();
    for _ in 0..2 {
        assert_eq!(server.take("traced").await.headers["traceparent"], "00-call");
    }
}

#[tokio::test]
async fn ids_of_the_server_sort_and_ids_of_the_caller_are_kept() {
    let server = Server::start().await;
    let first = server.enqueue(job("ids")).await.unwrap().job_id;
    let second = server.enqueue(job("ids")).await.unwrap().job_id;
    assert!(first < second && first.len() == 36 && &first[14..15] == "7");
    for id in ["order 17", "ÄÖÜ", "00000000-0000-0000-0000-000000000000", "DEAD-BEEF", "-", "\\'\""] {
        let reply = server.enqueue(job_of("ids", id)).await.unwrap();
        assert_eq!((reply.job_id.as_str(), reply.outcome()), (id, pb::EnqueueOutcome::Added));
        assert_eq!(server.get_job(id).await.unwrap().job.unwrap().job_id, id);
    }
}

/// Ids of the server tell where the job lies; one that only looks like it must not find another's job.
#[tokio::test]
async fn an_id_made_up_in_the_servers_own_form_finds_only_its_own_job() {
    let server = Server::start().await;
    let real = server.enqueue(job("ids")).await.unwrap().job_id;
    // The same number inside, other chance bits and another time.
    let chance = if real.ends_with('0') { '1' } else { '0' };
    let forged = format!("{}{chance}", &real[..35]);
    let other_time = format!("00000000-0000{}", &real[13..]);
    for forged in [&forged, &other_time] {
        assert_eq!(server.get_job(forged).await.unwrap_err().code(), Code::NotFound);
        let body = text("mine");
        let own = pb::EnqueueRequest { body, ..job_of("ids", forged) };
        let reply = server.enqueue(own.clone()).await.unwrap();
        assert_eq!((&reply.job_id, reply.outcome()), (forged, pb::EnqueueOutcome::Added));
        assert_eq!(server.enqueue(own).await.unwrap().outcome(), pb::EnqueueOutcome::Existing);
        let found = server.get_job(forged).await.unwrap().job.unwrap();
        assert_eq!(found.body, Some(pb::job::Body::Text("mine".into())));
    }
    let found = server.get_job(&real).await.unwrap().job.unwrap();
    assert_eq!((found.job_id, found.body), (real, None));
}

#[tokio::test]
async fn a_delay_is_reported_and_kept() {
    let server = Server::start().await;
    let request = pb::EnqueueRequest { start: after(crate::server::millis(1_500)), ..job("later") };
    let reply = server.enqueue(request).await.unwrap();
    assert_eq!(reply.state(), pb::JobState::Scheduled);
    let info = inner(server.admin().get_server_info(pb::GetServerInfoRequest {}).await).unwrap();
    let wait = crate::server::at(reply.run_at) - crate::server::at(info.server_time);
    assert_eq!(wait, 1_500);
    assert!(server.claim(crate::server::claim("later")).await.unwrap().jobs.is_empty());
    server.pass(std::time::Duration::from_millis(1_500)).await;
    server.take("later").await;
}
