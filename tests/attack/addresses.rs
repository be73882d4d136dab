//! What the connections of one address take together, and what is left for others.

use crate::beside::{ELSEWHERE, from, job};
use crate::by_hand::{ByHand, framed};
use crate::raw::Raw;
use crate::server::{LONG, Launch, Server, config_file, scratch};
use redrive::grpc::pb::admin_service_client::AdminServiceClient;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::grpc::pb::{AckRequest, ClaimRequest, GetServerInfoRequest, SettleRequest};
use tempfile::TempDir;
use tonic::Code;

fn limited(limits: &str) -> (Server, TempDir) {
    let data = scratch();
    let config = config_file(data.path(), &format!("[limits]\n{limits}"));
    (Launch::on(data.path()).arg("--config").arg(config).start(), data)
}

fn claim(queues: usize, seconds: i64) -> ClaimRequest {
    let wait = Some(prost_types::Duration { seconds, nanos: 0 });
    let queues = (0..queues).map(|number| format!("none-{number}")).collect();
    ClaimRequest { queues, wait, ..ClaimRequest::default() }
}

/// Answered on the same connection: what was sent before has been taken in.
async fn taken_in(raw: &Raw) {
    let after = raw.call("QueueService/Claim", &claim(1, 0)).await.unwrap();
    assert!(raw.wait_for(LONG, |seen| seen.streams.get(&after).is_some_and(|heard| heard.ended)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_takes_half_of_the_waits_and_of_the_queues_that_are_waited_for() {
    let (server, _data) = limited("waits = 6\n");
    let raw = Raw::connect(server.address, 65_535).await.unwrap();
    for _ in 0..3 {
        raw.call("QueueService/Claim", &claim(1, 30)).await.unwrap();
    }
    taken_in(&raw).await;
    let refused = server.queue().await.claim(claim(1, 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("from one address"), "{refused:?}");
    let mut elsewhere = QueueServiceClient::new(from(ELSEWHERE, &server).await);
    elsewhere.claim(claim(1, 1)).await.unwrap();
    assert!(server.log_line("waits_per_peer").contains("127.0.0.1 (2 connections, "));
    // Ten for each wait that an address may have.
    elsewhere.claim(claim(30, 1)).await.unwrap();
    let refused = elsewhere.claim(claim(31, 1)).await.unwrap_err();
    assert!(refused.message().contains("of one address that wait name 30 queues together"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_takes_half_of_the_calls_and_still_settles() {
    let (server, _data) = limited("calls = 8\n");
    let mut client = server.queue().await;
    client.enqueue(job("q", 10)).await.unwrap();
    let jobs = ClaimRequest { queues: vec!["q".into()], ..ClaimRequest::default() };
    let lease = client.claim(jobs).await.unwrap().into_inner().jobs.remove(0).lease;
    let raw = Raw::connect(server.address, 65_535).await.unwrap();
    let refused = loop {
        // Earlier calls may have their places still.
        raw.open("QueueService/Enqueue").await.unwrap();
        if let Err(refused) = server.admin().await.get_server_info(GetServerInfoRequest {}).await {
            break refused;
        }
    };
    assert!(refused.message().contains("4 calls are open from one address"), "{refused:?}");
    // A Claim has a place of the reserve, and settles there.
    let acks = vec![AckRequest { lease, ..AckRequest::default() }];
    let settle = Some(SettleRequest { acks: acks.clone(), ..SettleRequest::default() });
    let refused = client.claim(ClaimRequest { settle, ..claim(1, 0) }).await.unwrap_err();
    assert!(refused.message().contains("what the call settles was settled"), "{refused:?}");
    let acked = client.ack(acks[0].clone()).await.unwrap().into_inner();
    assert!(acked.already_gone);
    // Until that is taken, too: then nothing is changed, and it says so.
    let refused = loop {
        raw.open("QueueService/Settle").await.unwrap();
        if let Err(refused) = client.ack(acks[0].clone()).await {
            break refused;
        }
    };
    assert!(refused.message().contains("nothing was changed"), "{refused:?}");
    AdminServiceClient::new(from(ELSEWHERE, &server).await).get_server_info(GetServerInfoRequest {}).await.unwrap();
    assert!(server.log_line("calls_per_peer").contains("127.0.0.1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn however_much_waits_to_be_complete_others_are_served() {
    let (server, _data) = limited("message_bytes = 33554432\nmessage_bytes_per_connection = 4194304\n");
    let mut open = Vec::new();
    for _ in 0..20 {
        // As much of a request as there is room for, and no end of it.
        let client = ByHand::connect(&server).await;
        for bytes in [3 << 20, 1 << 20, 256 << 10, 64 << 10, 16 << 10, 4 << 10, 1 << 10] {
            // The end is missing.
            let part = framed(&vec![1; bytes]).slice(..bytes);
            open.push(client.begin("QueueService/Enqueue", part).await);
        }
        server.admin().await.get_server_info(GetServerInfoRequest {}).await.unwrap();
    }
    server.log_line("message_bytes");
    // A connection of the same address has a floor, one of another more than that.
    server.queue().await.enqueue(job("q", 32 << 10)).await.unwrap();
    let refused = server.queue().await.enqueue(job("q", 1 << 20)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let mut elsewhere = QueueServiceClient::new(from(ELSEWHERE, &server).await);
    elsewhere.enqueue(job("q", 1 << 20)).await.unwrap();
}
