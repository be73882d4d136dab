//! Streams of services that are not ours: reflection, and Watch of health.

use crate::by_hand::{ByHand, framed, trailers};
use crate::raw::Raw;
use crate::server::{LONG, Launch, Server, config_file, scratch};
use bytes::Bytes;
use prost::Message;
use redrive::grpc::pb::GetServerInfoRequest;
use tempfile::TempDir;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{ServerReflectionRequest, server_reflection_request::MessageRequest};

pub(crate) const REFLECTION: &str = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
pub(crate) const WATCH: &str = "grpc.health.v1.Health/Watch";

fn limited(limits: &str) -> (Server, TempDir) {
    let data = scratch();
    let config = config_file(data.path(), &format!("[limits]\n{limits}"));
    (Launch::on(data.path()).arg("--config").arg(config).start(), data)
}

pub(crate) fn symbol(name: &str) -> Bytes {
    let request = Some(MessageRequest::FileContainingSymbol(name.into()));
    framed(&ServerReflectionRequest { message_request: request, ..Default::default() }.encode_to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_reads_no_long_requests() {
    let (server, _data) = limited("");
    let client = ByHand::connect(&server).await;
    let trailers = client.trailers(REFLECTION, symbol(&"x".repeat(5_000))).await;
    assert_eq!(trailers["redrive-reason"], "BODY_TOO_LARGE", "{trailers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_streams_count_as_calls_that_wait() {
    let (server, _data) = limited("waits_per_connection = 2\nrequest_timeout = \"1s\"\n");
    let client = ByHand::connect(&server).await;
    let watch = client.begin(WATCH, framed(&HealthCheckRequest::default().encode_to_vec())).await;
    let reflection = client.begin(REFLECTION, Bytes::new()).await;
    let refused = client.trailers(REFLECTION, Bytes::new()).await;
    assert_eq!(refused["redrive-reason"], "OVERLOADED", "{refused:?}");
    server.log_line("waits_per_connection");
    // One that says nothing has as long as any other request, and makes room.
    let late = trailers(reflection.0).await.unwrap();
    assert_eq!(late["redrive-reason"], "OVERLOADED", "{late:?}");
    let answered = client.begin(REFLECTION, symbol("redrive.v1.QueueService")).await;
    let mut body = answered.0.await.unwrap().into_body();
    assert!(body.data().await.unwrap().unwrap().len() > 1_000);
    drop(watch);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_reflection_that_are_not_read_count() {
    let (server, _data) = limited("message_bytes = 33554432\nmessage_bytes_per_connection = 4194304\n");
    let client = ByHand::with_window(&server, 0).await;
    let mut refused = 0;
    let mut open = Vec::new();
    for _ in 0..60 {
        let asks = [&symbol("redrive.v1.QueueService")[..], &symbol("redrive.v1.QueueService")].concat();
        let (response, out) = client.begin(REFLECTION, asks.into()).await;
        let response = response.await.unwrap();
        refused += usize::from(response.headers().contains_key("redrive-reason"));
        open.push((response, out));
    }
    // Three answers of 100 KB can be under way on each.
    assert!((40..=55).contains(&refused), "{refused} of 60 are refused");
    server.log_line("message_bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_foreign_streams_alone_makes_way() {
    let (server, _data) = limited("connections = 2\nconnections_per_peer = 10\n");
    let mut watching = HealthClient::new(server.connect().await);
    let mut watched = watching.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    watched.message().await.unwrap();
    let busy = Raw::connect(server.address, 65_535).await.unwrap();
    busy.open("QueueService/Work").await.unwrap();
    let after = busy.call("AdminService/GetServerInfo", &GetServerInfoRequest {}).await.unwrap();
    assert!(busy.wait_for(LONG, |seen| seen.streams.get(&after).is_some_and(|heard| heard.ended)).await);
    let fresh = Raw::connect(server.address, 65_535).await.unwrap();
    let end = tokio::time::timeout(LONG, async { while let Ok(Some(_)) = watched.message().await {} }).await;
    end.expect("it keeps others out");
    let heard = fresh.call("AdminService/GetServerInfo", &GetServerInfoRequest {}).await.unwrap();
    assert!(fresh.wait_for(LONG, |seen| seen.streams.get(&heard).is_some_and(|heard| heard.ended)).await);
    assert!(!busy.seen().closed);
}
