//! The server over a real socket, in front of a store that only pretends.

mod pretend;

use super::*;
use crate::{
    broker::Wakeups,
    domain::{lease::Lease, limits::Limits},
};
use pb::{admin_service_client::AdminServiceClient, queue_service_client::QueueServiceClient};
use pretend::Pretend;
use std::{net::SocketAddr, sync::Mutex};
use tokio::{io::AsyncReadExt, net::TcpStream, task::JoinHandle};
use tonic::{Code, Request, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;

struct Running {
    store: Arc<Pretend>,
    address: SocketAddr,
    channel: Channel,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    fn queue(&self) -> QueueServiceClient<Channel> {
        QueueServiceClient::new(self.channel.clone())
    }

    async fn health(&self, service: &str) -> ServingStatus {
        let request = HealthCheckRequest { service: service.into() };
        let reply = HealthClient::new(self.channel.clone()).check(request).await.unwrap();
        match reply.into_inner().status {
            1 => ServingStatus::Serving,
            2 => ServingStatus::NotServing,
            _ => ServingStatus::Unknown,
        }
    }
}

async fn start(facts: ServerFacts) -> Running {
    let store = Arc::new(Pretend { health: Mutex::new(Health::Well), enqueued: Mutex::default() });
    let settings = Arc::default();
    let wakeups = Arc::new(Wakeups::default());
    let broker = Broker::new(store.clone(), wakeups, settings, Limits::default(), || 7);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let server = tokio::spawn(serve(broker, listener, facts, async {
        let _ = stopped.await;
    }));
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    Running { store, address, channel, stop, server }
}

fn job(job_type: &str) -> pb::EnqueueRequest {
    let body = Some(pb::enqueue_request::Body::Text("hi".into()));
    pb::EnqueueRequest { queue: "q".into(), r#type: job_type.into(), body, ..Default::default() }
}

#[tokio::test]
async fn a_job_goes_in_with_the_trace_of_its_call() {
    let running = start(ServerFacts::default()).await;
    let mut request = Request::new(job("t"));
    request.metadata_mut().insert("traceparent", "00-aa".parse().unwrap());
    let reply = running.queue().enqueue(request).await.unwrap().into_inner();
    assert_eq!((reply.job_id.as_str(), reply.state()), ("made", pb::JobState::Ready));
    let kept = running.store.enqueued.lock().unwrap();
    assert_eq!(kept[0].headers, [("traceparent".to_owned(), "00-aa".to_owned())]);
}

#[tokio::test]
async fn bad_and_refused_items_stand_between_the_good_ones() {
    let running = start(ServerFacts::default()).await;
    let jobs = vec![job("t"), job(&"x".repeat(300)), job("full"), job("t")];
    let reply = running.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    let reasons: Vec<_> = reply
        .into_inner()
        .results
        .into_iter()
        .map(|result| match result.outcome {
            Some(pb::enqueue_result::Outcome::Error(error)) => error.reason,
            _ => "OK".into(),
        })
        .collect();
    assert_eq!(reasons, ["OK", "INVALID_FIELD", "QUEUE_FULL", "OK"]);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_told_so_however_large_it_is() {
    let running = start(ServerFacts::default()).await;
    for mebibytes in [2, 5, 7] {
        let mut large = job("t");
        let body = vec![0; mebibytes << 20].into();
        large.body = Some(pb::enqueue_request::Body::Data(body));
        let status = running.queue().enqueue(large).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        let info = status.get_details_error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("BODY_TOO_LARGE", "redrive"));
    }
}

#[tokio::test]
async fn json_is_either_taken_or_refused_with_a_reason_however_deep_it_is() {
    use prost_types::{ListValue, Struct, Value, value::Kind};
    let running = start(ServerFacts::default()).await;
    let list = |inner| Kind::ListValue(ListValue { values: vec![inner] });
    let object = |inner| Kind::StructValue(Struct { fields: [("k".to_owned(), inner)].into() });
    for (depth, fits) in [(32, true), (33, false), (200, false)] {
        for wrap in [&list as &dyn Fn(Value) -> Kind, &object] {
            let leaf = Value { kind: Some(Kind::BoolValue(true)) };
            let value = (0..depth).fold(leaf, |inner, _| Value { kind: Some(wrap(inner)) });
            let body = Some(pb::enqueue_request::Body::Json(value));
            let jobs = vec![pb::EnqueueRequest { body, ..job("t") }];
            let single = running.queue().enqueue(jobs[0].clone()).await;
            let batch = running.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await;
            match single {
                Ok(_) => assert!(fits && batch.is_ok(), "{depth}"),
                Err(status) => {
                    assert!(!fits, "{depth}: {status}");
                    assert_eq!(status.get_details_error_info().unwrap().reason, "INVALID_FIELD");
                }
            }
        }
    }
}

#[tokio::test]
async fn refusals_reach_the_caller_with_their_reason() {
    let running = start(ServerFacts::default()).await;
    let lease = Lease { number: 1, delivery: 1, nonce: 1 }.to_string();
    let error = Some(pb::Failure { r#type: "E".into(), ..Default::default() });
    let nack = pb::NackRequest { lease, error, ..Default::default() };
    let mut admin = AdminServiceClient::new(running.channel.clone());
    let info = pb::GetServerInfoRequest {};
    let info = admin.get_server_info(info).await.unwrap().into_inner();
    assert_eq!((info.engine.as_str(), info.limits["body"].as_str()), ("embedded", "1 MiB"));
    let id = pb::GetJobRequest { job_id: "x".into(), queue: String::new() };
    let statuses = [
        (running.queue().nack(nack).await.unwrap_err(), "LEASE_LOST"),
        (admin.get_job(id).await.unwrap_err(), "JOB_NOT_FOUND"),
        (
            admin.list_queues(pb::ListQueuesRequest::default()).await.unwrap_err(),
            "STORE_UNAVAILABLE",
        ),
        (admin.list_jobs(pb::ListJobsRequest::default()).await.unwrap_err(), "NOT_IMPLEMENTED"),
        (running.queue().work(tokio_stream::empty()).await.unwrap_err(), "NOT_IMPLEMENTED"),
    ];
    for (status, reason) in statuses {
        assert_eq!(status.get_details_error_info().unwrap().reason, reason);
    }
}

fn long_poll() -> pb::ClaimRequest {
    let wait = Some(prost_types::Duration { seconds: 30, nanos: 0 });
    pb::ClaimRequest { queues: vec!["q".into()], wait, ..Default::default() }
}

#[tokio::test]
async fn a_long_poll_ends_before_the_callers_deadline() {
    let running = start(ServerFacts::default()).await;
    let mut request = Request::new(long_poll());
    request.set_timeout(Duration::from_millis(600));
    let reply = running.queue().claim(request).await.unwrap().into_inner();
    assert_eq!(reply.idle[0].reason(), pb::IdleReason::Empty);
}

#[tokio::test]
async fn a_shutdown_sends_waiting_workers_home() {
    let running = start(ServerFacts::default()).await;
    let mut queue = running.queue();
    let poll = tokio::spawn(async move { queue.claim(long_poll()).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    running.stop.send(()).unwrap();
    let reply = poll.await.unwrap().unwrap().into_inner();
    assert_eq!(reply.idle[0].reason(), pb::IdleReason::Draining);
    drop(running.channel);
    running.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_that_says_nothing_does_not_hold_up_a_shutdown() {
    let within = Duration::from_millis(300);
    let facts = ServerFacts { shutdown_within: within, ..ServerFacts::default() };
    let running = start(facts).await;
    let silent = TcpStream::connect(running.address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    running.stop.send(()).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), running.server).await;
    ended.expect("the server ends").unwrap().unwrap();
    drop(silent);
}

#[tokio::test]
async fn connections_beyond_the_bound_wait_for_a_place() {
    let running = start(ServerFacts { connections_max: 1, ..ServerFacts::default() }).await;
    let mut second = TcpStream::connect(running.address).await.unwrap();
    let mut byte = [0];
    let read = tokio::time::timeout(Duration::from_millis(300), second.read(&mut byte)).await;
    assert!(read.is_err(), "nobody greets it");
    // The first connection still works.
    running.queue().enqueue(job("t")).await.unwrap();
}

#[tokio::test]
async fn health_follows_the_store_for_every_service() {
    let running = start(ServerFacts::default()).await;
    for service in SERVICES {
        assert_eq!(running.health(service).await, ServingStatus::Serving, "{service}");
    }
    *running.store.health.lock().unwrap() = Health::Stopped("pretending".into());
    tokio::time::sleep(HEALTH_EVERY + Duration::from_millis(300)).await;
    for service in SERVICES {
        assert_eq!(running.health(service).await, ServingStatus::NotServing, "{service}");
    }
}

#[test]
fn reflection_knows_every_service_in_both_versions() {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
    };
    assert!(builder().build_v1().is_ok() && builder().build_v1alpha().is_ok());
}
