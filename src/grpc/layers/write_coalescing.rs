//! Replies that are ready at the same moment leave together. At the socket, because only there all calls of a connection meet.
//!
//! A commit answers many calls at once. HTTP/2 would write each of their replies by itself, since the connection has its
//! turn right after every call. Here what is written is gathered, and before it leaves, all who are ready have their turn.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::{io::AsyncWrite, net::TcpStream};

pub const GATHERED_MAX: usize = 64 << 10;
/// More than this is not held on to: most connections are quiet.
pub const KEPT_MAX: usize = 16 << 10;

#[derive(Debug)]
pub struct CoalescingWriter {
    pub(super) stream: TcpStream,
    gathered: Vec<u8>,
    /// How much of it has left.
    sent: usize,
    /// The others have had their turn.
    waited: bool,
}

impl CoalescingWriter {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, gathered: Vec::new(), sent: 0, waited: false }
    }

    /// The connection's turn begins. Within one, the others are waited for once.
    pub fn turn(&mut self) {
        self.waited &= !self.gathered.is_empty();
    }

    /// The bytes that are gathered, and the memory that is held for them.
    pub fn held(&self) -> (usize, usize) {
        (self.gathered.len(), self.gathered.capacity())
    }

    /// Adds what is said before the end, and sends what the socket takes of it all.
    pub(super) fn last(&mut self, cx: &mut Context<'_>, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
        // The rest is lost, as everything is at such an end.
        let _ = self.poll_send(cx);
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
impl AsyncWrite for CoalescingWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, piece: &[u8]) -> Poll<io::Result<usize>> {
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
