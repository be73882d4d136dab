//! The way out of a connection: replies that are ready at the same moment leave together.
//!
//! A commit answers many calls at once. HTTP/2 would write each of their replies by itself, since the connection has its
//! turn right after every call. Here what is written is gathered, and before it leaves, all who are ready have their turn.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{io::AsyncWrite, net::TcpStream};

const GATHERED_MAX: usize = 64 << 10;
/// More than this is not held on to: most connections are quiet.
const KEPT_MAX: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) stream: TcpStream,
    gathered: Vec<u8>,
    /// How much of it has left.
    sent: usize,
    /// The others have had their turn.
    waited: bool,
}

impl Outgoing {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, gathered: Vec::new(), sent: 0, waited: false }
    }

    /// The connection's turn begins. Within one, nobody is waited for twice.
    pub(super) fn turn(&mut self) {
        self.waited &= !self.gathered.is_empty();
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.gathered.len() {
            let stream = Pin::new(&mut self.stream);
            match ready!(stream.poll_write(cx, &self.gathered[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        self.sent = 0;
        self.gathered.clear();
        self.gathered.shrink_to(KEPT_MAX);
        Poll::Ready(Ok(()))
    }
}

/// Pieces come one by one: told that they may come together, HTTP/2 would have each reply of 256 bytes flushed.
impl AsyncWrite for Outgoing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        piece: &[u8],
    ) -> Poll<io::Result<usize>> {
        let piece = &piece[..piece.len().min(GATHERED_MAX)];
        if self.gathered.len() + piece.len() > GATHERED_MAX {
            ready!(self.poll_send(cx))?;
        }
        self.gathered.extend_from_slice(piece);
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.gathered.is_empty() {
            if !self.waited {
                self.waited = true;
                // To the end of the line.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(self.poll_send(cx))?;
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    /// Both ends of a connection.
    async fn connection() -> (Outgoing, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (Outgoing::new(server), client)
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
    async fn within_a_turn_nobody_is_waited_for_twice() {
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
    async fn long_and_short_pieces_arrive_in_order_and_whole() {
        let (mut server, mut client) = connection().await;
        let lengths = [3, GATHERED_MAX, 70_000, 1, GATHERED_MAX - 1, 5 << 20, 0, 9];
        let pieces: Vec<Vec<u8>> = lengths.iter().zip(0..).map(|(n, i)| vec![i; *n]).collect();
        let expected = pieces.concat();
        let sending = async {
            for piece in pieces {
                server.write_all(&piece).await.unwrap();
                assert!(server.gathered.len() <= GATHERED_MAX);
            }
            // What is gathered leaves before the end is told.
            server.shutdown().await.unwrap();
        };
        let mut heard = Vec::new();
        let (_, read) = tokio::join!(sending, client.read_to_end(&mut heard));
        read.unwrap();
        assert!(heard == expected);
    }

    #[tokio::test]
    async fn a_quiet_connection_holds_little() {
        let (mut server, mut client) = connection().await;
        for _ in 0..6 {
            server.write_all(&[1; 10_000]).await.unwrap();
        }
        assert_eq!(server.gathered.len(), 60_000, "nothing leaves before the flush");
        let mut heard = [0; 60_000];
        let (flushed, read) = tokio::join!(server.flush(), client.read_exact(&mut heard));
        flushed.unwrap();
        read.unwrap();
        assert!(server.gathered.capacity() <= KEPT_MAX);
    }
}
