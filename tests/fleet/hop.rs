//! From one server to a worker who waits at another.

use crate::fleet::Fleet;
use crate::requests::{ack, claim, job, seconds};
use crate::servers::{Kind, Server, until};
use redrive::grpc::pb::ClaimRequest;
use std::time::{Duration, Instant};

const HOPS: usize = 60;
/// Without hints a job waits for the next sweep, half a second on average: so many as half of them are not this early
/// by chance.
const BY_HINT: Duration = Duration::from_millis(250);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_enqueued_at_one_server_reaches_a_worker_who_waits_at_another() {
    let redis = Server::start(Kind::Redis);
    let fleet = Fleet::start(&redis.address(), 2);
    let (mut producer, mut worker) = (fleet.ways().remove(0), fleet.ways().remove(1));
    producer.enqueue(job("q")).await.unwrap();
    let mut took = Vec::new();
    for _ in 0..=HOPS {
        let patient = ClaimRequest { wait: seconds(20), ..claim("q") };
        let waiting = claims(&redis);
        let claiming = tokio::spawn(async move {
            let reply = worker.claim(patient).await.unwrap().into_inner();
            let came = Instant::now();
            worker.ack(ack(&reply.jobs[0].lease)).await.unwrap();
            (worker, came)
        });
        // It has looked in vain, and waits.
        until("the worker waits", || async { claims(&redis) > waiting }).await;
        let sent = Instant::now();
        if !took.is_empty() {
            producer.enqueue(job("q")).await.unwrap();
        }
        let (back, came) = claiming.await.unwrap();
        worker = back;
        took.push(came.saturating_duration_since(sent));
    }
    // The first was there already: it made the queue known.
    let mut took = took.split_off(1);
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!("{HOPS} hops: p50 {:.1?}, p99 {:.1?}, longest {:.1?}", at(0.5), at(0.99), at(1.0));
    assert!(at(0.5) < BY_HINT, "half of them took {:?} and more", at(0.5));
}

/// Scripts that have run: a worker's look is one of them.
fn claims(redis: &Server) -> u64 {
    let stat = redis.info("cmdstat_evalsha");
    stat.split(['=', ',']).nth(1).map_or(0, |calls| calls.parse().unwrap())
}
