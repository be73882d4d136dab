//! Replies that are not read.

use crate::beside::{Beside, job, memory};
use crate::raw::Raw;
use crate::server::{Launch, Server, scratch};
use redrive::grpc::pb::ClaimRequest;
use std::time::{Duration, Instant};

const JOBS: usize = 300;
const CONNECTIONS: usize = 100;
const CLAIMS: usize = 40;
/// What the server may use under this attack, in MB.
const MEMORY_MAX: u64 = 500;

fn short_claim() -> ClaimRequest {
    ClaimRequest {
        queues: vec!["large".into()],
        max_jobs: 3,
        lease_duration: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..ClaimRequest::default()
    }
}

async fn fill(server: &Server) {
    let mut client = server.queue().await;
    for _ in 0..JOBS {
        client.enqueue(job("large", 1 << 20)).await.unwrap();
    }
}

/// Claims on many connections that read nothing of their replies, until `long` has passed.
async fn leave_unread(server: &Server, long: Duration) -> u64 {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Raw::connect(server.address, 0).await.unwrap());
    }
    let (began, mut most, mut round) = (Instant::now(), 0, 0);
    while began.elapsed() < long {
        if round < CLAIMS {
            for raw in &connections {
                // One that was ended has had its share.
                let _ = raw.call("QueueService/Claim", &short_claim()).await;
            }
            round += 1;
        }
        most = most.max(memory(server));
        assert!(most <= MEMORY_MAX, "{most} MB in round {round}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_no_replies_takes_a_bounded_part_of_memory() {
    let data = scratch();
    let server = Launch::on(data.path()).start();
    fill(&server).await;
    let beside = Beside::start(&server).await;
    leave_unread(&server, Duration::from_secs(8)).await;
    beside.p99().await;
}
