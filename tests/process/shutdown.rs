//! SIGTERM: those who wait go home, what is under way ends, and nothing hangs.

use crate::ledger::{Ledger, Mark};
use crate::load::{self, Load};
use crate::requests::{claim, job, seconds};
use crate::server::{LONG, Launch, Server, config_file, scratch};
use crate::tap::Tap;
use redrive::grpc::pb::enqueue_request::Body;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::grpc::pb::{ClaimRequest, ClaimResponse, EnqueueRequest, GetJobRequest, IdleReason};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::{net::TcpStream, task::JoinHandle};
use tonic::{Response, Status, Streaming, transport::Channel};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

const SERVICES: [&str; 3] = ["", "redrive.v1.QueueService", "redrive.v1.AdminService"];
/// Much less than what a claim would wait.
const QUICKLY: Duration = Duration::from_secs(5);

/// An answer from the same connection: everything sent on it before has arrived.
pub(crate) async fn ping(channel: &Channel) {
    let request = HealthCheckRequest::default();
    let mut client = HealthClient::new(channel.clone());
    client.check(request).await.expect("a server that runs");
}

/// A worker that waits for work, and does so when this returns.
async fn waiting_worker(server: &Server, queue: &str) -> JoinHandle<Result<Response<ClaimResponse>, Status>> {
    let tap = Tap::default();
    let channel = tap.connect(server).await;
    let mut client = QueueServiceClient::new(channel.clone());
    let request = ClaimRequest { wait: seconds(30), ..claim(queue) };
    let worker = tokio::spawn(async move { client.claim(request).await });
    tap.has_sent(queue.as_bytes()).await;
    ping(&channel).await;
    worker
}

async fn assert_drained(worker: JoinHandle<Result<Response<ClaimResponse>, Status>>) {
    let reply = worker.await.unwrap().unwrap().into_inner();
    assert_eq!(reply.jobs, []);
    assert_eq!(reply.idle[0].reason(), IdleReason::Draining);
}

async fn watch(server: &Server, service: &str) -> Streaming<HealthCheckResponse> {
    let request = HealthCheckRequest { service: service.into() };
    let mut client = HealthClient::new(server.connect().await);
    client.watch(request).await.unwrap().into_inner()
}

async fn until(status: ServingStatus, watch: &mut Streaming<HealthCheckResponse>) {
    while watch.message().await.unwrap().expect("more").status() != status {}
}

fn launch_with_bound(place: &Path, bound: &str) -> Launch {
    let text = format!("[server]\nshutdown_timeout = \"{bound}\"\n");
    let config = config_file(place, &text);
    Launch::on(&place.join("data")).arg("--config").arg(config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_wait_for_work_are_told_that_the_server_goes() {
    let place = scratch();
    let mut server = Launch::on(place.path()).start();
    let mut workers = Vec::new();
    for number in 0..20 {
        workers.push(waiting_worker(&server, &format!("waiting-{number}")).await);
    }
    let began = Instant::now();
    server.terminate();
    for worker in workers {
        assert_drained(worker).await;
    }
    let told = began.elapsed();
    let status = server.wait_within(QUICKLY);
    assert_eq!(status.code(), Some(0), "{}", server.stderr());
    println!("told after {told:?}, gone after {:?}", began.elapsed());
    assert!(began.elapsed() < QUICKLY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_under_way_is_carried_out_and_kept() {
    let place = scratch();
    let mut server = Launch::on(place.path()).start();
    let worker = waiting_worker(&server, "witness").await;
    let tap = Tap::default();
    let channel = tap.connect(&server).await;
    ping(&channel).await;
    tap.hold_after(10_000);
    let mut client = QueueServiceClient::new(channel);
    let half_sent =
        EnqueueRequest { job_id: "half-sent".into(), body: Some(Body::Text("x".repeat(30_000))), ..job("q") };
    let call = tokio::spawn(async move { client.enqueue(half_sent).await });
    tap.is_holding().await;

    server.terminate();
    assert_drained(worker).await;
    tap.let_go();
    assert_eq!(call.await.unwrap().unwrap().into_inner().job_id, "half-sent");
    assert_eq!(server.wait_within(QUICKLY).code(), Some(0));

    let server = Launch::on(place.path()).start();
    let request = GetJobRequest { job_id: "half-sent".into(), queue: "q".into(), ..GetJobRequest::default() };
    server.admin().await.get_job(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_until_the_end_is_there_at_the_next_start() {
    let place = scratch();
    let config = config_file(place.path(), load::CONFIG);
    let launch = || Launch::on(&place.path().join("data")).arg("--config").arg(&config);
    let ledger = Arc::new(Ledger::new());
    let mut server = launch().start();
    for round in 0..3 {
        let mut load = Load::on(&server, &ledger, round).await;
        load.run(&ledger, 200).await;
        server.stop();
        load.end().await;
        server = launch().start();
        let mut report = ledger.check(&server, Mark::MAX).await;
        ledger.redeem(&server, &mut report).await;
        report.assert_word_kept();
        ledger.begin_anew(&report);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_says_of_every_service_that_it_serves_until_it_stops() {
    let place = scratch();
    let mut server = Launch::on(place.path()).start();
    let mut watches = Vec::new();
    for service in SERVICES {
        let mut watch = watch(&server, service).await;
        until(ServingStatus::Serving, &mut watch).await;
        watches.push(watch);
    }
    server.terminate();
    for watch in &mut watches {
        until(ServingStatus::NotServing, watch).await;
    }
    drop(watches);
    assert_eq!(server.wait_within(QUICKLY).code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_who_say_nothing_cannot_hold_up_a_shutdown() {
    let place = scratch();
    let mut server = launch_with_bound(place.path(), "1s").start();
    let silent = TcpStream::connect(server.address).await.unwrap();
    let mut listening = watch(&server, "").await;
    until(ServingStatus::Serving, &mut listening).await;
    let began = Instant::now();
    server.terminate();
    let status = server.wait_within(LONG);
    println!("gone after {:?}", began.elapsed());
    assert_eq!(status.code(), Some(0), "{}", server.stderr());
    assert!(began.elapsed() < Duration::from_secs(3));
    drop((silent, listening));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_who_never_finishes_is_cut_off_at_the_bound() {
    let place = scratch();
    let mut server = launch_with_bound(place.path(), "1s").start();
    let tap = Tap::default();
    let channel = tap.connect(&server).await;
    ping(&channel).await;
    tap.hold_after(10_000);
    let mut client = QueueServiceClient::new(channel);
    let endless = EnqueueRequest { body: Some(Body::Text("x".repeat(30_000))), ..job("q") };
    let call = tokio::spawn(async move { client.enqueue(endless).await });
    tap.is_holding().await;
    let began = Instant::now();
    server.terminate();
    let status = server.wait_within(LONG);
    assert_eq!(status.code(), Some(0), "{}", server.stderr());
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(900) && took < Duration::from_secs(3), "{took:?}");
    call.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_it_at_once_and_the_exit_code_says_which() {
    for (again, code) in [(Server::terminate as fn(&Server), 143), (Server::interrupt, 130)] {
        let place = scratch();
        let mut server = launch_with_bound(place.path(), "1h").start();
        let mut listening = watch(&server, "").await;
        until(ServingStatus::Serving, &mut listening).await;
        server.terminate();
        server.log_line("a second signal stops at once");
        again(&server);
        assert_eq!(server.wait_within(LONG).code(), Some(code));
        drop(listening);
    }
}
