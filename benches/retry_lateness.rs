//! How late a retry is: from `retry_at` to the moment a waiting worker has the job, on an idle server.
//!
//!     cargo bench --bench retry_lateness
//!
//! Starts the real server on a fresh directory, lets one worker fail every job it gets and wait for it again.

mod subjects;

use redrive::{grpc::pb, grpc::pb::queue_service_client::QueueServiceClient};
use std::time::{Duration, SystemTime};
use subjects::server::Server;

const RETRIES: usize = 500;
const P99_MAX: Duration = Duration::from_millis(20);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let data = tempfile::tempdir().expect("there is room for a directory");
    let server = Server::start("--data", &data.path().display().to_string());
    let mut client = QueueServiceClient::connect(server.address.clone()).await.expect("the server answers");
    let policy = pb::RetryPolicy {
        max_retries: Some(1000),
        strategy: pb::BackoffStrategy::Fixed.into(),
        base_delay: Some(Duration::from_millis(60).try_into().expect("it fits")),
        jitter: pb::JitterKind::Equal.into(),
        ..Default::default()
    };
    let job = pb::EnqueueRequest {
        queue: "late".into(),
        r#type: "fails".into(),
        retry_policy: Some(policy),
        ..Default::default()
    };
    client.enqueue(job).await.expect("it is added");

    let mut lateness = Vec::with_capacity(RETRIES);
    let mut retry_at = None;
    while lateness.len() < RETRIES {
        let claim = pb::ClaimRequest {
            queues: vec!["late".into()],
            wait: Some(Duration::from_secs(30).try_into().expect("it fits")),
            ..Default::default()
        };
        let reply = client.claim(claim).await.expect("it is handed out").into_inner();
        let now = wall();
        let job = reply.jobs.first().expect("there is one job");
        if let Some(retry_at) = retry_at {
            let late = now.checked_sub(retry_at).expect("no retry comes before its time");
            lateness.push(late);
        }
        let nack = pb::NackRequest {
            lease: job.lease.clone(),
            error: Some(pb::Failure { r#type: "Late".into(), ..Default::default() }),
            ..Default::default()
        };
        let reply = client.nack(nack).await.expect("it is scheduled").into_inner();
        let at = reply.retry_at.expect("there is a next time");
        retry_at = Some(Duration::new(at.seconds.cast_unsigned(), at.nanos.cast_unsigned()));
    }
    lateness.sort_unstable();
    let at = |share: f64| lateness[((lateness.len() - 1) as f64 * share) as usize];
    println!("retry lateness over {RETRIES} retries, one waiting worker, idle server, fsync:");
    println!("  p50 {:?}   p90 {:?}   p99 {:?}   max {:?}", at(0.5), at(0.9), at(0.99), at(1.0));
    assert!(at(0.99) < P99_MAX, "p99 is {:?}, and should be under {P99_MAX:?}", at(0.99));
}

/// A fresh store's time is wall time.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures")]
fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970")
}
