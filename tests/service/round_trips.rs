//! What is said on the wire is understood as it was meant: values of every kind come back, and none makes reading stumble.

use crate::server::{Server, Setup, error, inner, job, job_of};
use crate::shapes::{self, by_oldest};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use pb::enqueue_request::Body;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use prost_types::{Duration, Timestamp, Value, value::Kind};
use redrive::domain::{Limits, Preset, Timestamp as StoreTime};
use redrive::grpc::{caller_patience, duration_out, pb, timestamp_out};
use serde_json::{Value as Json, json};
use std::time;
use tonic::{Code, Status, metadata::MetadataMap};

const DAY: i64 = 24 * 3_600;
/// Where the server's clock stands.
const NOW: i64 = 1_800_000_000;

/// Tries many values on one server.
fn with_any<S: Strategy>(values: S, check: impl AsyncFn(&Server, S::Value)) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start());
    let config = Config { failure_persistence: None, ..Config::default() };
    let check = |value| {
        runtime.block_on(check(&server, value));
        Ok(())
    };
    TestRunner::new(config).run(&values, check).unwrap();
}

/// Understood, or refused for what it is.
fn is_read<T>(reply: Result<T, Status>) {
    if let Err(status) = reply {
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    }
}

async fn explain(server: &Server, policy: pb::RetryPolicy) -> Result<pb::RetryPolicy, Status> {
    let request = pb::ExplainPolicyRequest { policy: Some(policy), ..Default::default() };
    let explained = inner(server.admin().explain_policy(request).await)?;
    Ok(explained.resolved.unwrap())
}

#[test]
fn durations_read_back() {
    with_any((0..366 * DAY, 0..1_000_000_000), async |server, (seconds, nanos)| {
        let base_delay = Some(Duration { seconds, nanos });
        let policy = pb::RetryPolicy { base_delay, ..Default::default() };
        assert_eq!(explain(server, policy).await.unwrap().base_delay, base_delay);
    });
}

#[test]
fn times_read_back() {
    with_any((NOW..NOW + 366 * DAY, 0..1_000), async |server, (seconds, millis)| {
        let run_at = Some(Timestamp { seconds, nanos: millis * 1_000_000 });
        let enqueued = server.enqueue(pb::EnqueueRequest { start: shapes::run_at(run_at), ..job("times") }).await;
        assert_eq!(enqueued.unwrap().run_at, run_at);
    });
}

#[test]
fn no_duration_or_time_makes_reading_stumble() {
    with_any(any::<(i64, i32)>(), async |server, (seconds, nanos)| {
        let base_delay = Some(Duration { seconds, nanos });
        is_read(explain(server, pb::RetryPolicy { base_delay, ..Default::default() }).await);
        let run_at = Some(Timestamp { seconds, nanos });
        is_read(server.enqueue(pb::EnqueueRequest { start: shapes::run_at(run_at), ..job("times") }).await);
    });
}

#[test]
fn the_end_of_time_is_the_year_9999() {
    assert_eq!(timestamp_out(StoreTime::MAX).seconds, 253_402_300_799);
    assert_eq!(duration_out(time::Duration::MAX), Duration { seconds: 315_576_000_000, nanos: 0 });
}

#[test]
fn a_caller_waits_for_its_deadline_less_the_way_back() {
    for (header, patience) in [
        ("30S", Some(29_750)),
        ("1000m", Some(750)),
        ("100m", Some(0)),
        ("1M", Some(59_750)),
        ("1H", Some(3_599_750)),
        ("5000000u", Some(4_750)),
        ("99999999n", Some(0)),
        ("S", None),
        ("", None),
        ("123456789S", None),
        ("5x", None),
    ] {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", header.parse().unwrap());
        assert_eq!(caller_patience(&metadata), patience.map(time::Duration::from_millis), "{header}");
    }
    assert_eq!(caller_patience(&MetadataMap::new()), None);
}

fn any_json() -> impl Strategy<Value = Json> {
    let exact = -9_007_199_254_740_991_i64..=9_007_199_254_740_991;
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|b| json!(b)),
        exact.prop_map(|n| json!(n)),
        (-1.0..1.0f64).prop_map(|n| json!(n)),
        ".{0,12}".prop_map(|s| json!(s)),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(|v| json!(v)),
            prop::collection::btree_map(".{0,6}", inner, 0..6).prop_map(|m| json!(m)),
        ]
    })
}

/// The text that a JSON body is kept as.
async fn kept(server: &Server, value: Value) -> Result<String, Status> {
    let request = pb::EnqueueRequest { body: Some(Body::Json(value)), ..job("json") };
    server.enqueue(request).await?;
    let job = server.take("json").await;
    server.ack(&job.lease).await?;
    let Some(pb::job::Body::Text(text)) = job.body else { panic!("{:?}", job.body) };
    Ok(text)
}

#[test]
fn other_readers_read_the_same_json() {
    with_any(any_json(), async |server, value| {
        let wire = crate::bodies::value_of(&value);
        let text = kept(server, wire.clone()).await.unwrap();
        let read: Json = serde_json::from_str(&text).unwrap();
        assert_eq!(crate::bodies::value_of(&read), wire);
        // Details of errors come back as they went.
        let details = json!({ "value": value });
        let Some(Kind::StructValue(details)) = crate::bodies::value_of(&details).kind else { unreachable!() };
        let id = server.enqueue(job("details")).await.unwrap().job_id;
        let lease = server.take("details").await.lease;
        let failed = pb::Failure { details: Some(details), ..error("E") };
        let kind = pb::NackKind::Permanent.into();
        let nack = pb::NackRequest { lease, error: Some(failed.clone()), kind, ..Default::default() };
        server.nack(nack).await.unwrap();
        let shown = server.get_job(&id).await.unwrap().job.unwrap().last_failure.unwrap();
        assert_eq!(shown.details, failed.details);
    });
}

#[test]
fn every_number_reads_back_exactly() {
    with_any(any::<f64>(), async |server, number| {
        match kept(server, Value { kind: Some(Kind::NumberValue(number)) }).await {
            Ok(text) => assert_eq!(text.parse::<f64>().unwrap(), number),
            refused => {
                is_read(refused);
                assert!(!number.is_finite() || number.abs() >= 2f64.powi(53), "{number}");
            }
        }
    });
}

#[tokio::test]
async fn policies_and_overrides_read_back() {
    let server = Server::start().await;
    for preset in Preset::ALL {
        let named = pb::RetryPolicy { preset: preset.as_str().into(), ..Default::default() };
        let resolved = explain(&server, named).await.unwrap();
        assert_eq!(resolved.preset, "");
        assert_eq!(resolved.max_retries, Some(preset.policy().max_retries));
        assert_eq!(explain(&server, resolved.clone()).await.unwrap(), resolved);
        let retry_policy = Some(pb::RetryPolicy { preset: preset.as_str().into(), ..resolved });
        let request = pb::EnqueueRequest { retry_policy: retry_policy.clone(), ..job_of("q", preset.as_str()) };
        server.enqueue(request).await.unwrap();
        assert_eq!(server.get_job(preset.as_str()).await.unwrap().retry_policy, retry_policy);
    }
    let empty = pb::EnqueueRequest { retry_policy: Some(pb::RetryPolicy::default()), ..job_of("q", "empty") };
    server.enqueue(empty).await.unwrap();
    assert_eq!(server.get_job("empty").await.unwrap().retry_policy, None);
}

#[test]
fn answers_come_in_request_order() {
    with_any(prop::collection::vec(any::<bool>(), 0..50), async |server, valid| {
        let id = |at: usize| format!("job {at}");
        let jobs = valid.iter().enumerate().map(|(at, valid)| job_of(if *valid { "q" } else { "?" }, &id(at)));
        let request = pb::EnqueueBatchRequest { jobs: jobs.collect() };
        let results = inner(server.queue().enqueue_batch(request).await).unwrap().results;
        let answered = results.into_iter().map(|result| match result.outcome {
            Some(pb::enqueue_result::Outcome::Ok(job)) => Some(job.job_id),
            _ => None,
        });
        let expected = valid.iter().enumerate().map(|(at, valid)| valid.then(|| id(at)));
        assert!(answered.eq(expected));
    });
}

/// A token of the same list and query that stands for another position.
fn forged(token: &str, position: &[u8]) -> String {
    let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(token).unwrap();
    bytes.truncate(5);
    bytes.extend(position);
    let sum = crc32c::crc32c(&bytes);
    bytes.extend(sum.to_be_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

#[test]
fn no_token_makes_reading_stumble() {
    let texts = (".{1,64}", any::<Vec<u8>>());
    with_any(texts, async |server, (text, position)| {
        for id in ["a", "b"] {
            if server.get_job(id).await.is_err() {
                server.dead_letter("q", id, error("E")).await;
            }
        }
        let jobs = async |page_token| {
            let request = pb::ListJobsRequest { queue: "q".into(), page_size: 1, page_token, ..Default::default() };
            inner(server.admin().list_jobs(request).await)
        };
        let dead = async |page_token| {
            let queue = "q".into();
            server.list_dead(pb::ListDeadLettersRequest { queue, page_size: 1, page_token, ..Default::default() }).await
        };
        let oldest = async |cutoff| {
            let request = pb::RequeueRequest {
                queue: "q".into(),
                selector: by_oldest(1),
                dry_run: true,
                cutoff,
                ..Default::default()
            };
            server.requeue(request).await
        };
        let token = jobs(String::new()).await.unwrap().next_page_token;
        is_read(jobs(forged(&token, &position)).await);
        let token = dead(String::new()).await.unwrap().next_page_token;
        is_read(dead(forged(&token, &position)).await);
        let token = oldest(String::new()).await.unwrap().cutoff;
        assert_eq!(oldest(forged(&token, &position)).await.is_ok(), position.len() == 16);
        assert_eq!(jobs(text.clone()).await.unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(dead(text.clone()).await.unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(oldest(text).await.unwrap_err().code(), Code::InvalidArgument);
    });
}

#[tokio::test]
async fn a_page_ends_before_it_gets_too_long_but_is_never_empty() {
    for (reply_bytes, pages) in [(1, vec![1, 1, 1]), (1 << 20, vec![3])] {
        let limits = Limits { reply_bytes, ..Limits::default() };
        let server = Server::with(Setup { limits, ..Setup::default() }).await;
        for queue in ["a", "b", "c"] {
            server.enqueue(job(queue)).await.unwrap();
        }
        let (mut page_token, mut lengths) = (String::new(), Vec::new());
        loop {
            let request = pb::ListQueuesRequest { page_token, ..Default::default() };
            let page = inner(server.admin().list_queues(request).await).unwrap();
            lengths.push(page.queues.len());
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(lengths, pages);
    }
}

#[tokio::test]
async fn every_state_and_reason_of_the_wire_is_known() {
    let server = Server::start().await;
    server.dead_letter("q", "dead", error("E")).await;
    for state in (0..).take_while(|number| pb::JobState::try_from(*number).is_ok()) {
        let request = pb::ListJobsRequest { queue: "q".into(), state, ..Default::default() };
        let listed = inner(server.admin().list_jobs(request).await).unwrap().jobs.len();
        let all_or_dead = [0, pb::JobState::Dead.into()].contains(&state);
        assert_eq!(listed, usize::from(all_or_dead), "{state}");
    }
    for reason in (0..).take_while(|number| pb::DeadReason::try_from(*number).is_ok()) {
        let filter = Some(pb::DeadLetterFilter { reason, ..Default::default() });
        let request = pb::ListDeadLettersRequest { queue: "q".into(), filter, ..Default::default() };
        let listed = server.list_dead(request).await.unwrap().dead_letters.len();
        let any_or_this = [0, pb::DeadReason::NonRetryable.into()].contains(&reason);
        assert_eq!(listed, usize::from(any_or_this), "{reason}");
    }
}
