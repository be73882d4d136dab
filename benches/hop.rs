//! How long a job takes from one server to a worker who waits at another: from the call of Enqueue to the job in hand.
//!
//!     cargo bench --bench hop
//!
//! Starts two real servers on a Redis of its own, on loopback. Meant for an idle machine.

#[allow(dead_code, reason = "the suite uses the rest of it")]
#[path = "../tests/store/redis_server.rs"]
mod redis_server;
mod subjects;

use redrive::{grpc::pb, grpc::pb::queue_service_client::QueueServiceClient};
use std::time::{Duration, Instant};
use subjects::server::Server;
use tonic::transport::Channel;

const HOPS: usize = 500;
const P99_MAX: Duration = Duration::from_millis(25);
const QUEUE: &str = "hop";

async fn client(server: &Server) -> QueueServiceClient<Channel> {
    QueueServiceClient::connect(server.address.clone()).await.expect("the server answers")
}

fn job() -> pb::EnqueueRequest {
    pb::EnqueueRequest { queue: QUEUE.into(), r#type: "t".into(), ..Default::default() }
}

/// Waits for one job and acknowledges it; says when it came.
async fn work(client: &mut QueueServiceClient<Channel>) -> Instant {
    let claim = pb::ClaimRequest {
        queues: vec![QUEUE.into()],
        wait: Some(Duration::from_secs(30).try_into().expect("it fits")),
        ..Default::default()
    };
    let reply = client.claim(claim).await.expect("it is handed out").into_inner();
    let came = now();
    let lease = reply.jobs.first().expect("there is a job").lease.clone();
    let ack = pb::AckRequest { lease, ..Default::default() };
    client.ack(ack).await.expect("it is done");
    came
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let redis = redis_server::Server::start();
    let servers = [(), ()].map(|()| Server::start("--redis", redis.address()));
    let (mut producer, mut worker) = (client(&servers[0]).await, client(&servers[1]).await);
    producer.enqueue(job()).await.expect("it is added");
    work(&mut worker).await;
    let mut took = Vec::with_capacity(HOPS);
    while took.len() < HOPS {
        // By then the worker waits; how long it has done so makes no difference.
        let pause = Duration::from_millis(10 + took.len() as u64 % 7);
        let producing = async {
            tokio::time::sleep(pause).await;
            let sent = now();
            producer.enqueue(job()).await.expect("it is added");
            sent
        };
        let (came, sent) = tokio::join!(work(&mut worker), producing);
        took.push(came.saturating_duration_since(sent));
    }
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!("{HOPS} jobs from one server to a worker waiting at another, Redis on loopback:");
    println!("  p50 {:?}   p90 {:?}   p99 {:?}   max {:?}", at(0.5), at(0.9), at(0.99), at(1.0));
    assert!(at(0.99) < P99_MAX, "p99 is {:?}, and should be under {P99_MAX:?}", at(0.99));
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures")]
fn now() -> Instant {
    Instant::now()
}
