//! Connections: so many at once, and none that does not get to the point.

use super::outgoing::Outgoing;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Sleep,
};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

/// Who connects and has not said hello after this long is not a client.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// HTTP/2's preface and the head of its first frame. From there on the pings find out who is there.
const HELLO_BYTES: usize = 24 + 9;
/// After a connection that could not be accepted, mostly for want of file descriptors.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// Connections as they come; beyond `most` the next waits until one has ended.
pub(super) fn bounded(
    listener: TcpListener,
    most: usize,
) -> impl Stream<Item = io::Result<Connection>> {
    let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(TCP_KEEPALIVE)).then(
        move |stream| {
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
                let hello = Some(Box::pin(tokio::time::sleep(HELLO_WITHIN)));
                Ok(Connection { out: Outgoing::new(stream), heard: 0, hello, _place: place })
            }
        },
    )
}

/// A connection and the place that it takes.
#[derive(Debug)]
pub(super) struct Connection {
    out: Outgoing,
    /// Bytes, as far as they matter for the hello.
    heard: usize,
    /// Runs until the hello has come.
    hello: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.out.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.out.turn();
        let before = buf.filled().len();
        let read = Pin::new(&mut self.out.stream).poll_read(cx, buf);
        if self.hello.is_some() {
            self.heard += buf.filled().len() - before;
            if self.heard >= HELLO_BYTES {
                self.hello = None;
            }
        }
        if read.is_pending()
            && let Some(hello) = &mut self.hello
            && hello.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.out).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.out).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.out).poll_shutdown(cx)
    }
}
