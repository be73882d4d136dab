//! Connections: so many at once, and none that sends no HTTP/2 preface. First, so that a connection over the limit costs nothing.

use super::write_coalescing::CoalescingWriter;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

/// A connection that has not sent its preface after this long is not a client's.
const PREFACE_WITHIN: Duration = Duration::from_secs(10);
/// HTTP/2's preface and the head of its first frame. From there on pings find connections that are dead.
const PREFACE_BYTES: usize = 24 + 9;
/// After a connection that could not be accepted, mostly for want of file descriptors.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// Connections as they come; beyond `most` the next waits until one has ended.
pub(in crate::grpc) fn bounded(listener: TcpListener, most: usize) -> impl Stream<Item = io::Result<Connection>> {
    let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(TCP_KEEPALIVE)).then(move |stream| {
        let places = places.clone();
        async move {
            let place = places.acquire_owned().await.map_err(io::Error::other)?;
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
                    return Err(error);
                }
            };
            let preface = Some(Box::pin(tokio::time::sleep(PREFACE_WITHIN)));
            Ok(Connection { out: CoalescingWriter::new(stream), received: 0, preface, _place: place })
        }
    })
}

/// A connection and the place that it takes.
#[derive(Debug)]
pub(in crate::grpc) struct Connection {
    out: CoalescingWriter,
    /// Bytes read, as far as they matter for the preface.
    received: usize,
    /// Runs until the preface has come.
    preface: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.out.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.out.turn();
        let before = buf.filled().len();
        let read = Pin::new(&mut self.out.stream).poll_read(cx, buf);
        if self.preface.is_some() {
            self.received += buf.filled().len() - before;
            if self.received >= PREFACE_BYTES {
                self.preface = None;
            }
        }
        if read.is_pending()
            && let Some(preface) = &mut self.preface
            && preface.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.out).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.out).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.out).poll_shutdown(cx)
    }
}
