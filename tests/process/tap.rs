//! A connection whose bytes can be looked at and held back.

use crate::server::Server;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint};

#[derive(Clone, Default)]
pub(crate) struct Tap {
    state: Arc<Mutex<State>>,
    moved: Arc<Notify>,
}

#[derive(Default)]
struct State {
    sent: Vec<u8>,
    received: Vec<u8>,
    /// How many bytes may be sent in all. None: any number.
    most: Option<usize>,
    waker: Option<Waker>,
}

impl State {
    fn is_held(&self) -> bool {
        self.most == Some(self.sent.len())
    }
}

impl Tap {
    /// Connects to a server through this tap.
    pub(crate) async fn connect(&self, server: &Server) -> Channel {
        let (tap, address) = (self.clone(), server.address);
        let connect = tower::service_fn(move |_| {
            let tap = tap.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                io::Result::Ok(TokioIo::new(Tapped { stream, tap }))
            }
        });
        Endpoint::from_static("http://tapped")
            .connect_with_connector(connect)
            .await
            .expect("a server that says where it listens")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while holding it")
    }

    /// Lets so many more bytes go, and holds back what comes after.
    pub(crate) fn hold_after(&self, bytes: usize) {
        let mut state = self.state();
        state.most = Some(state.sent.len() + bytes);
    }

    pub(crate) fn let_go(&self) {
        let mut state = self.state();
        state.most = None;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Waits until the system has taken these bytes on their way to the server.
    pub(crate) async fn has_sent(&self, bytes: &[u8]) {
        loop {
            let moved = self.moved.notified();
            if contains(&self.state().sent, bytes) {
                return;
            }
            moved.await;
        }
    }

    /// Waits until all that may go has gone.
    pub(crate) async fn is_holding(&self) {
        loop {
            let moved = self.moved.notified();
            if self.state().is_held() {
                return;
            }
            moved.await;
        }
    }

    pub(crate) fn has_received(&self, bytes: &[u8]) -> bool {
        contains(&self.state().received, bytes)
    }
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

struct Tapped {
    stream: TcpStream,
    tap: Tap,
}

impl AsyncRead for Tapped {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let mut state = self.tap.state();
        state.received.extend(&buffer.filled()[before..]);
        polled
    }
}

impl AsyncWrite for Tapped {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let tap = self.tap.clone();
        let mut state = tap.state();
        let most = state.most.map_or(usize::MAX, |most| most - state.sent.len());
        let bytes = &bytes[..bytes.len().min(most)];
        if bytes.is_empty() {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = polled {
            state.sent.extend(&bytes[..count]);
            tap.moved.notify_waiters();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
