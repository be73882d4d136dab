//! More connections than there may be.

use crate::raw::{ENHANCE_YOUR_CALM, Raw};
use crate::server::{LONG, Launch, Server, config_file, scratch};
use redrive::grpc::pb::{ClaimRequest, GetServerInfoRequest};

fn patient() -> ClaimRequest {
    let wait = Some(prost_types::Duration { seconds: 30, nanos: 0 });
    ClaimRequest { queues: vec!["q".into()], wait, ..ClaimRequest::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_has_so_many_connections_and_hears_that_it_has_too_many() {
    let data = scratch();
    let config = config_file(data.path(), "[limits]\nconnections = 10\nconnections_per_peer = 2\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let mut first = server.admin().await;
    let second = Raw::connect(server.address, 65_535).await.unwrap();
    let third = Raw::connect(server.address, 65_535).await.unwrap();
    assert!(third.wait_for(LONG, |seen| seen.closed).await);
    let why = "2 connections from one address are the most this server takes";
    assert_eq!(third.seen().goaway, Some((ENHANCE_YOUR_CALM, why.into())));
    assert!(!second.seen().closed);
    first.get_server_info(GetServerInfoRequest {}).await.unwrap();
    let line = server.log_line("connections_per_peer");
    assert!(line.contains("127.0.0.1 (2 connections"), "{line}");
}

fn descriptors(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_broke_keeps_no_descriptor() {
    let data = scratch();
    let server = Launch::on(data.path()).start();
    let before = descriptors(&server);
    let mut broken = Vec::new();
    for _ in 0..50 {
        let raw = Raw::connect(server.address, 65_535).await.unwrap();
        // A frame that is longer than any may be.
        raw.send(&[0xff; 100]).await.unwrap();
        broken.push(raw);
    }
    for raw in &broken {
        assert!(raw.wait_for(LONG, |seen| seen.closed).await);
        raw.close().await;
    }
    // The last of them may be about to be closed.
    let left = descriptors(&server) - before;
    assert!(left <= 10, "{left} are open");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_makes_way_and_one_with_a_call_does_not() {
    let data = scratch();
    let config = config_file(data.path(), "[limits]\nconnections = 2\nconnections_per_peer = 10\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let busy = Raw::connect(server.address, 65_535).await.unwrap();
    busy.call("QueueService/Claim", &patient()).await.unwrap();
    let after = busy.call("AdminService/GetServerInfo", &GetServerInfoRequest {}).await.unwrap();
    assert!(busy.wait_for(LONG, |seen| seen.streams.get(&after).is_some_and(|heard| heard.ended)).await);
    let idle = Raw::connect(server.address, 65_535).await.unwrap();
    assert!(idle.wait_for(LONG, |seen| seen.settings > 0).await);
    let fresh = Raw::connect(server.address, 65_535).await.unwrap();
    assert!(idle.wait_for(LONG, |seen| seen.closed).await, "it keeps others out");
    let heard = fresh.call("AdminService/GetServerInfo", &GetServerInfoRequest {}).await.unwrap();
    assert!(fresh.wait_for(LONG, |seen| seen.streams.get(&heard).is_some_and(|heard| heard.ended)).await);
    assert!(!busy.seen().closed);
    // With a call on every connection there is no way to make.
    fresh.call("QueueService/Claim", &patient()).await.unwrap();
    let after = fresh.call("AdminService/GetServerInfo", &GetServerInfoRequest {}).await.unwrap();
    assert!(fresh.wait_for(LONG, |seen| seen.streams.get(&after).is_some_and(|heard| heard.ended)).await);
    let refused = Raw::connect(server.address, 65_535).await.unwrap();
    assert!(refused.wait_for(LONG, |seen| seen.closed).await);
    let why = "2 connections are the most this server takes";
    assert_eq!(refused.seen().goaway, Some((ENHANCE_YOUR_CALM, why.into())));
    server.log_line("\"limit\":\"connections\"");
}
