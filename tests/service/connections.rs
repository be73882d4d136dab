//! Connections: how many, and what becomes of the silent ones.

use crate::server::{Server, Setup, job};
use redrive::grpc::ServerFacts;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn connections_beyond_the_bound_wait_for_a_place() {
    let facts = ServerFacts { connections_max: 1, ..ServerFacts::default() };
    let server = Server::with(Setup { facts, ..Setup::default() }).await;
    let mut second = TcpStream::connect(server.address).await.unwrap();
    // That nothing comes for a while is what is tested.
    let greeting = tokio::time::timeout(Duration::from_millis(300), second.read_u8()).await;
    assert!(greeting.is_err(), "the server greeted it");
    server.enqueue(job("q")).await.unwrap();
}

#[tokio::test]
async fn who_begins_to_say_hello_and_stops_loses_its_place() {
    let facts = ServerFacts { connections_max: 2, ..ServerFacts::default() };
    let server = Server::with(Setup { facts, ..Setup::default() }).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"PRI").await.unwrap();
    let patience = Duration::from_secs(30);
    let ended = tokio::time::timeout(patience, slow.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "it still has its place");
    server.enqueue(job("q")).await.unwrap();
}
