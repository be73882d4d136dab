//! Replies that are ready at the same moment leave together.

use redrive::grpc::write_coalescing::{CoalescingWriter, GATHERED_MAX, KEPT_MAX};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::ready;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Both ends of a connection.
async fn connection() -> (CoalescingWriter, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (CoalescingWriter::new(server), client)
}

#[tokio::test]
async fn a_flush_lets_those_who_are_ready_speak_first() {
    let (mut server, mut client) = connection().await;
    let replies = Arc::new(Mutex::new(vec![b"one "]));
    let late = replies.clone();
    // As HTTP/2 does: everything that is there, then a flush, which goes on when it is polled again.
    let connection = std::future::poll_fn(|cx| {
        server.turn();
        for reply in replies.lock().unwrap().drain(..) {
            assert!(Pin::new(&mut server).poll_write(cx, reply).is_ready());
        }
        Pin::new(&mut server).poll_flush(cx)
    });
    let other = async { late.lock().unwrap().push(b"two ") };
    let (flushed, ()) = tokio::join!(connection, other);
    flushed.unwrap();
    let mut heard = [0; 16];
    let length = client.read(&mut heard).await.unwrap();
    assert_eq!(&heard[..length], b"one two ");
}

#[tokio::test]
async fn within_a_turn_others_are_waited_for_once() {
    let (mut server, mut client) = connection().await;
    let mut polls = 0;
    let mut rest = 3;
    std::future::poll_fn(|cx| {
        polls += 1;
        server.turn();
        while rest > 0 {
            // What is gathered of the turn before leaves first.
            ready!(Pin::new(&mut server).poll_flush(cx)).unwrap();
            assert!(Pin::new(&mut server).poll_write(cx, b"long").is_ready());
            rest -= 1;
        }
        Pin::new(&mut server).poll_flush(cx)
    })
    .await
    .unwrap();
    assert_eq!(polls, 2);
    client.read_exact(&mut [0; 12]).await.unwrap();
}

#[tokio::test]
async fn long_and_short_pieces_arrive_whole_and_little_is_held_afterwards() {
    let (mut server, mut client) = connection().await;
    let lengths = [3, GATHERED_MAX, 70_000, 1, GATHERED_MAX - 1, 5 << 20, 0, 9];
    let pieces: Vec<Vec<u8>> = lengths.iter().zip(0..).map(|(n, i)| vec![i; *n]).collect();
    let expected = pieces.concat();
    let sending = async {
        for piece in pieces {
            server.write_all(&piece).await.unwrap();
            assert!(server.held().0 <= GATHERED_MAX);
        }
        // What is gathered leaves before the end is told.
        server.shutdown().await.unwrap();
    };
    let mut heard = Vec::new();
    let (_, read) = tokio::join!(sending, client.read_to_end(&mut heard));
    read.unwrap();
    assert!(heard == expected);
    assert!(server.held().1 <= KEPT_MAX);
}
