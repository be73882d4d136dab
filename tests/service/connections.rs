//! Connections: how many, and what becomes of the silent ones.

use crate::server::{Server, Setup, job};
use redrive::grpc::ServerFacts;
use std::time::Duration;
use tokio::{io::AsyncReadExt, net::TcpStream};

#[tokio::test]
async fn connections_beyond_the_bound_wait_for_a_place() {
    let facts = ServerFacts { connections_max: 1, ..ServerFacts::default() };
    let server = Server::with(Setup { facts, ..Setup::default() }).await;
    let mut second = TcpStream::connect(server.address).await.unwrap();
    // That nothing comes for a while is what is tested.
    let greeting = tokio::time::timeout(Duration::from_millis(300), second.read_u8()).await;
    assert!(greeting.is_err(), "somebody greeted it");
    server.enqueue(job("q")).await.unwrap();
}
