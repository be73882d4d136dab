//! Connections: how many, and what becomes of the silent ones.

use crate::server::{Server, Setup, job};
use redrive::domain::Bounds;
use redrive::grpc::ServerFacts;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn who_begins_to_say_hello_and_stops_loses_its_place() {
    let bounds = Bounds { connections: 2, connections_per_peer: Some(2), ..Bounds::default() };
    let facts = ServerFacts { bounds, ..ServerFacts::default() };
    let server = Server::with(Setup { facts, ..Setup::default() }).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"PRI").await.unwrap();
    let patience = Duration::from_secs(30);
    let ended = tokio::time::timeout(patience, slow.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "it still has its place");
    server.enqueue(job("q")).await.unwrap();
}
