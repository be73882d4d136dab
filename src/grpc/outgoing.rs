//! The way out of a connection: replies that are ready at the same moment leave together.
//!
//! A commit answers many calls at once. HTTP/2 would write each of their replies by itself, since the connection has its
//! turn right after every call. Here what is written is gathered, and before it leaves, all who are ready have their turn.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{io::AsyncWrite, net::TcpStream};

/// What is as long as this is not worth a copy.
const LONG: usize = 16 << 10;
const GATHERED_MAX: usize = 64 << 10;
/// More than this is not held on to: most connections are quiet.
const KEPT_MAX: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) stream: TcpStream,
    gathered: Vec<u8>,
    /// How much of it has left.
    sent: usize,
    /// The others have had their turn since the last flush.
    waited: bool,
}

impl Outgoing {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, gathered: Vec::new(), sent: 0, waited: false }
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

impl AsyncWrite for Outgoing {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        piece: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(piece)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = pieces.iter().map(|piece| piece.len()).sum();
        if length >= LONG || self.gathered.len() + length > GATHERED_MAX {
            ready!(self.poll_send(cx))?;
        }
        if length >= LONG {
            return Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        }
        for piece in pieces {
            self.gathered.extend_from_slice(piece);
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
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
        self.waited = false;
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
    async fn what_is_written_before_a_flush_leaves_with_it() {
        let (mut server, mut client) = connection().await;
        server.write_all(b"one ").await.unwrap();
        server.write_all(b"two").await.unwrap();
        let mut heard = [0; 7];
        assert!(client.try_read(&mut heard).is_err(), "nothing has left");
        server.flush().await.unwrap();
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"one two");
    }

    #[tokio::test]
    async fn a_flush_lets_those_who_are_ready_speak_first() {
        let (mut server, mut client) = connection().await;
        let (words, mut inbox) = tokio::sync::mpsc::channel(8);
        // As a connection does: everything that is there, then a flush, which goes on when it is polled again.
        let connection = tokio::spawn(async move {
            std::future::poll_fn(|cx| {
                while let Poll::Ready(Some(word)) = inbox.poll_recv(cx) {
                    let written = Pin::new(&mut server).poll_write(cx, word);
                    assert!(matches!(written, Poll::Ready(Ok(4))));
                }
                ready!(Pin::new(&mut server).poll_flush(cx)).unwrap();
                if inbox.is_closed() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            server
        });
        for word in [b"one ", b"two "] {
            let words = words.clone();
            tokio::spawn(async move { words.send(word as &[u8]).await.unwrap() });
        }
        drop(words);
        let mut heard = [0; 16];
        assert_eq!(client.read(&mut heard).await.unwrap(), 8, "both in one");
        connection.await.unwrap();
    }

    #[tokio::test]
    async fn long_and_short_pieces_arrive_in_order_and_whole() {
        let (mut server, mut client) = connection().await;
        let pieces: Vec<Vec<u8>> = [3, LONG, 70_000, 1, LONG - 1, 5 << 20, 0, 9]
            .iter()
            .zip(0..)
            .map(|(n, i)| vec![i; *n])
            .collect();
        let expected = pieces.concat();
        let sending = tokio::spawn(async move {
            for piece in pieces {
                server.write_all(&piece).await.unwrap();
            }
            // What is gathered leaves before the end is told.
            server.shutdown().await.unwrap();
        });
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        sending.await.unwrap();
        assert!(heard == expected);
    }

    #[tokio::test]
    async fn a_quiet_connection_holds_little() {
        let (mut server, mut client) = connection().await;
        for _ in 0..6 {
            server.write_all(&[1; 10_000]).await.unwrap();
        }
        server.flush().await.unwrap();
        client.read_exact(&mut [0; 60_000]).await.unwrap();
        assert!(server.gathered.capacity() <= KEPT_MAX);
    }
}
