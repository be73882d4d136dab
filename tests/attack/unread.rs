//! Replies that are not read.

use crate::beside::{Beside, job, memory};
use crate::raw::{DATA, ENHANCE_YOUR_CALM, Raw, frame, message};
use crate::server::{LONG, Launch, Server, config_file, scratch};
use redrive::grpc::pb::{
    AckRequest, ClaimRequest, GetServerInfoRequest, GetStatsRequest, SettleRequest, WorkHello, WorkRequest,
};
use std::time::{Duration, Instant};

const JOBS: usize = 300;
const CONNECTIONS: usize = 100;
const CLAIMS: usize = 40;
/// What the server may use under this attack, in MB.
const MEMORY_MAX: u64 = 500;

pub(crate) fn short_claim() -> ClaimRequest {
    ClaimRequest {
        queues: vec!["large".into()],
        max_jobs: 3,
        lease_duration: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..ClaimRequest::default()
    }
}

pub(crate) async fn fill(server: &Server) {
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
    leave_unread(&server, Duration::from_secs(6)).await;
    // The operator learns of it, and of who does it.
    let line = server.log_line("a limit is reached");
    assert!(line.contains("message_bytes") && line.contains("127.0.0.1 (100 connections"), "{line}");
    beside.p99().await;
}

/// With these bounds a connection has half a second more than a second to read.
const SHORT: &str = "[limits]\nread_timeout = \"1s\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_reads_no_replies_is_told_so_and_ended() {
    let data = scratch();
    let config = config_file(data.path(), SHORT);
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let raw = Raw::connect(server.address, 0).await.unwrap();
    raw.call("AdminService/GetServerInfo", &GetServerInfoRequest {}).await.unwrap();
    assert!(raw.wait_for(LONG, |seen| seen.closed).await, "it still has its connection");
    let goaway = raw.seen().goaway.clone();
    assert_eq!(goaway, Some((ENHANCE_YOUR_CALM, "a reply was not read within 1s".into())));
    server.log_line("read_timeout");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_not_read_ends_with_its_connection() {
    let data = scratch();
    let config = config_file(data.path(), SHORT);
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let mut client = server.queue().await;
    client.enqueue(job("q", 10)).await.unwrap();
    let raw = Raw::connect(server.address, 0).await.unwrap();
    let stream = raw.open("QueueService/Work").await.unwrap();
    let hello = WorkHello { queues: vec!["q".into()], ..WorkHello::default() };
    let said = WorkRequest { hello: Some(hello), add_credits: 1, ..WorkRequest::default() };
    raw.send(&frame(DATA, 0, stream, &message(&said))).await.unwrap();
    assert!(raw.wait_for(LONG, |seen| seen.closed).await, "it still has its connection");
    let goaway = raw.seen().goaway.clone();
    assert_eq!(goaway, Some((ENHANCE_YOUR_CALM, "a reply was not read within 1s".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reply_counts_and_settling_goes_on_when_nothing_else_does() {
    let data = scratch();
    let config = config_file(data.path(), "[limits]\nmessage_bytes_per_connection = 4194304\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let mut client = server.queue().await;
    for _ in 0..4 {
        client.enqueue(job("large", 1 << 20)).await.unwrap();
    }
    let claim = ClaimRequest { queues: vec!["large".into()], ..ClaimRequest::default() };
    let lease = client.claim(claim.clone()).await.unwrap().into_inner().jobs.remove(0).lease;

    let raw = Raw::connect(server.address, 0).await.unwrap();
    // Replies of a few hundred bytes, none of them read.
    let mut opened = Vec::new();
    for _ in 0..3 {
        raw.call("QueueService/Claim", &ClaimRequest { max_jobs: 1, ..claim.clone() }).await.unwrap();
        opened.push(raw.call("AdminService/GetServerInfo", &GetServerInfoRequest {}).await.unwrap());
    }
    // A call that is refused has its end in its headers, which no window holds back: 3 MiB of 4 are taken, and no job of 1 MiB
    // and a little fits any more.
    client.enqueue(job("large", 1 << 20)).await.unwrap();
    let settle =
        SettleRequest { acks: vec![AckRequest { lease, ..AckRequest::default() }], ..SettleRequest::default() };
    let refused = raw.call("QueueService/Claim", &ClaimRequest { settle: Some(settle), ..claim }).await.unwrap();
    assert!(raw.wait_for(LONG, |seen| seen.streams.get(&refused).is_some_and(|heard| heard.ended)).await);
    assert_eq!(raw.seen().streams[&refused].headers, 1);
    assert!(opened.iter().all(|stream| !raw.seen().streams.get(stream).is_some_and(|heard| heard.ended)));
    // What it settled is settled: of five jobs one is done, three are on their way and one is ready.
    let stats = server.admin().await.get_stats(GetStatsRequest::default()).await.unwrap().into_inner();
    assert_eq!(stats.completed, 1, "{stats:?}");
}
