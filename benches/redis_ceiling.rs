//! What gRPC and the broker leave of Redis, and what more servers cost it.
//!
//!     cargo bench --bench redis_ceiling
//!
//! Takes jobs through their life in batches of 100, in turn: through `redrive serve`, and in a bare loop that runs the same
//! scripts on the same Redis from this process. Then the same load through one server and through three, and Redis' own
//! CPU time for each job. Starts a redis-server of its own. Meant for an idle machine.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on stops")]

#[allow(dead_code, reason = "the suite uses the rest of it")]
#[path = "../tests/store/redis_server.rs"]
mod redis_server;
mod subjects;

use redis_server::Server;
use redrive::domain::{Limits, Settings};
use redrive::env::{SystemClock, instant};
use redrive::grpc::pb;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::queue::hosts::redis::RedisStore;
use redrive::queue::{Ack, Claim, Settlements, Share};
use redrive::store::redis::Options;
use redrive::store::redis::connection::Address;
use std::{sync::Arc, time::Duration};
use subjects::server::Server as Served;
use tonic::transport::Channel;

const ROUNDS: usize = 5;
const JOBS: usize = 60_000;
const BATCH: usize = 100;
const WORKERS: usize = 18;
const RATIO_MIN: f64 = 0.6;
const SPREAD_MAX: f64 = 1.15;

#[tokio::main]
async fn main() {
    let redis = Server::start();
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let served = {
            let servers = vec![Served::start("--redis", redis.address())];
            served(&servers).await
        };
        let bare = bare(redis.address()).await;
        ratios.push(served / bare);
        println!(
            "round {round}   through a server {served:>8.0} jobs/s   bare loop {bare:>8.0} jobs/s   ratio {:.2}",
            served / bare
        );
    }
    let ratio = median(ratios);
    println!("median ratio {ratio:.2}\n");
    let mut spreads = Vec::new();
    for round in 1..=ROUNDS {
        let mut costs = Vec::new();
        for count in [1, 3] {
            let servers: Vec<_> = (0..count).map(|_| Served::start("--redis", redis.address())).collect();
            let before = cpu_seconds(&redis);
            served(&servers).await;
            costs.push((cpu_seconds(&redis) - before) / JOBS as f64 * 1e6);
        }
        let (one, three) = (costs[0], costs[1]);
        spreads.push(three / one);
        println!(
            "round {round}   Redis' CPU per job: one server {one:.2} µs, three servers {three:.2} µs, {:.2} ×",
            three / one
        );
    }
    let spread = median(spreads);
    println!("median {spread:.2} ×");
    assert!(ratio >= RATIO_MIN, "the ratio is {ratio:.2}, and should be at least {RATIO_MIN}");
    assert!(spread <= SPREAD_MAX, "three servers cost {spread:.2} ×, at most {SPREAD_MAX} is wanted");
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

// ---- through servers ----

/// The same load, spread over servers; jobs a second.
async fn served(servers: &[Served]) -> f64 {
    let mut clients = Vec::new();
    for worker in 0..WORKERS {
        let address = servers[worker % servers.len()].address.clone();
        clients.push(QueueServiceClient::connect(address).await.unwrap());
    }
    let began = instant();
    let loops: Vec<_> = clients.into_iter().map(|client| tokio::spawn(calls(client))).collect();
    for ended in loops {
        ended.await.unwrap();
    }
    (JOBS / WORKERS / BATCH * WORKERS * BATCH) as f64 / began.elapsed().as_secs_f64()
}

/// What one worker calls: it takes as many jobs as it has enqueued, whosever they are.
async fn calls(mut client: QueueServiceClient<Channel>) {
    let queue = subjects::queue().to_string();
    let job = pb::EnqueueRequest {
        queue: queue.clone(),
        r#type: "send-welcome-email".into(),
        body: Some(pb::enqueue_request::Body::Data(vec![7; subjects::PAYLOAD].into())),
        ..Default::default()
    };
    for _ in 0..JOBS / WORKERS / BATCH {
        let jobs = vec![job.clone(); BATCH];
        client.enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
        let mut missing = BATCH;
        while missing > 0 {
            let claim = pb::ClaimRequest {
                queues: vec![queue.clone()],
                max_jobs: missing as u32,
                wait: Some(Duration::from_secs(10).try_into().unwrap()),
                ..Default::default()
            };
            let claimed = client.claim(claim).await.unwrap().into_inner().jobs;
            missing -= claimed.len();
            let ack = |job: pb::Job| pb::AckRequest { lease: job.lease, ..Default::default() };
            let acks = claimed.into_iter().map(ack).collect();
            client.settle(pb::SettleRequest { acks, ..Default::default() }).await.unwrap();
        }
    }
}

fn cpu_seconds(redis: &Server) -> f64 {
    let mut connection = redis::Client::open(redis.address()).and_then(|client| client.get_connection()).unwrap();
    let info: String = redis::cmd("INFO").arg("cpu").query(&mut connection).unwrap();
    let used = |field: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
        line.trim().parse::<f64>().expect("a number")
    };
    used("used_cpu_user:") + used("used_cpu_sys:")
}

// ---- without ----

async fn bare(redis: &str) -> f64 {
    let options = Options::new(Address::parse(redis).unwrap());
    let (clock, setup) = (Arc::new(SystemClock::new()), subjects::setup(Settings::default()));
    let queues = Limits::default().queues;
    let store = RedisStore::open_redis(options, queues, false, clock, setup);
    let store = Arc::new(store.await.unwrap());
    let began = instant();
    let loops: Vec<_> = (0..WORKERS)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..JOBS / WORKERS / BATCH {
                    lives(&store).await;
                }
            })
        })
        .collect();
    for ended in loops {
        ended.await.unwrap();
    }
    let rate = (JOBS / WORKERS / BATCH * WORKERS * BATCH) as f64 / began.elapsed().as_secs_f64();
    store.close().await;
    rate
}

/// A batch of jobs from its beginning to its end.
async fn lives(store: &RedisStore) {
    let jobs = (0..BATCH).map(|_| subjects::new_job()).collect();
    store.enqueue(jobs).await.unwrap();
    let claim = Claim {
        shares: vec![Share { queue: subjects::queue(), first: usize::MAX }],
        max_jobs: BATCH,
        max_bytes: usize::MAX,
        lease_duration: None,
        worker_id: "worker-1".into(),
        request_id: String::new(),
        settle: Settlements::default(),
    };
    let claimed = store.claim(claim).await.unwrap().jobs.delivered();
    assert_eq!(claimed.len(), BATCH, "there are as many jobs as workers ask for");
    let ack = |lease| Ack { lease, note: String::new(), result: Default::default(), breaker_key: String::new() };
    let acks = claimed.into_iter().map(|job| ack(job.delivery.lease)).collect();
    let settled = store.settle(Settlements { acks, ..Settlements::default() }).await.unwrap();
    assert!(settled.acks.iter().all(Result::is_ok));
}
