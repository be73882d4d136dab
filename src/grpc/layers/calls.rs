//! One call, from its headers to its last byte: how much of it is open at once, how long it may take, and what its messages
//! take of memory.

use super::peers::{OpenCall, Peer, Unread};
use super::{error_reason, trace, undelivered};
use crate::domain::duration::human;
use crate::grpc::{convert, status};
use crate::service::Held;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Sleep;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Service as _, http};
use tonic::service::Routes;
use tonic::{Status, TimeoutExpired};
use tracing::Instrument;

/// What a message takes beside its bytes.
const OVERHEAD_BYTES: usize = 1 << 10;
/// Before each message of gRPC: a flag, and its length.
const PREFIX_BYTES: usize = 5;

/// What may be refused, and when.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Ends or prolongs leases: never refused for want of memory.
    Settles,
    /// Settles, and looks after its reply itself.
    Claims,
    Streams,
    /// Changes nothing: its reply may be refused when it is made.
    Reads,
    /// Anything else must be refused before it is carried out.
    Changes,
}

impl Kind {
    fn of(path: &str) -> Self {
        match path.rsplit('/').next().unwrap_or_default() {
            "Ack" | "Nack" | "Extend" | "Settle" => Self::Settles,
            "Claim" => Self::Claims,
            "Work" => Self::Streams,
            name if !path.starts_with("/redrive.") => match name {
                "Check" => Self::Reads,
                _ => Self::Streams,
            },
            "BreakerStatus" | "ExplainPolicy" => Self::Reads,
            name if name.starts_with("Get") || name.starts_with("List") => Self::Reads,
            _ => Self::Changes,
        }
    }

    fn settles(self) -> bool {
        matches!(self, Self::Settles | Self::Claims)
    }
}

/// Put among a response's extensions: what its service has taken for it already.
#[derive(Clone)]
pub(in crate::grpc) struct HeldForResponse(#[expect(dead_code, reason = "it is there to be dropped")] Arc<Held>);

impl From<Held> for HeldForResponse {
    fn from(held: Held) -> Self {
        Self(Arc::new(held))
    }
}

/// The calls of one connection.
#[derive(Clone)]
pub(super) struct Calls {
    pub(super) routes: Routes,
    pub(super) peer: Arc<Peer>,
    pub(super) longest: Duration,
}

impl hyper::service::Service<http::Request<Incoming>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn call(&self, mut request: http::Request<Incoming>) -> Self::Future {
        let span = trace::span(request.uri().path());
        let (kind, peer) = (Kind::of(request.uri().path()), self.peer.clone());
        let begun = peer.begin_call(kind.settles()).and_then(|open| match kind {
            Kind::Reads | Kind::Changes if peer.budget.room() < OVERHEAD_BYTES => Err(peer.too_many_bytes()),
            _ => Ok(open),
        });
        let open = match begun {
            Ok(open) => open,
            Err(why) => return Box::pin(std::future::ready(Ok(status::overloaded(&why).into_http()))),
        };
        let asked = convert::grpc_timeout(request.headers());
        let longest = asked.map_or(self.longest, |asked| asked.min(self.longest));
        request.extensions_mut().insert(peer.clone());
        let request = request.map(|body| Body::new(Request::new(body, peer.clone(), kind)));
        let answered = self.routes.clone().call(request);
        let call = async move {
            let response = match tokio::time::timeout(longest, answered).await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => Status::from_error(Box::new(TimeoutExpired(()))).into_http(),
            };
            let response = count(undelivered::watch(response), &peer, kind, open);
            Ok(trace::outcome(error_reason::give(response)))
        };
        Box::pin(call.instrument(span))
    }
}

/// A request on its way in.
struct Request {
    body: Incoming,
    peer: Arc<Peer>,
    kind: Kind,
    held: Option<Held>,
    /// Of the message that a stream is in.
    prefix: [u8; PREFIX_BYTES],
    known: usize,
    missing: usize,
    /// Runs once the request has to be waited for.
    within: Option<Pin<Box<Sleep>>>,
}

impl Request {
    fn new(body: Incoming, peer: Arc<Peer>, kind: Kind) -> Self {
        Self { body, peer, kind, held: None, prefix: [0; PREFIX_BYTES], known: 0, missing: 0, within: None }
    }

    fn hold(&mut self, bytes: usize) -> Result<(), Status> {
        if bytes > self.peer.budget.room() && !self.kind.settles() {
            return Err(status::overloaded(&self.peer.too_many_bytes()));
        }
        match &mut self.held {
            Some(held) => held.add(bytes),
            None => self.held = Some(self.peer.budget.hold(bytes)),
        }
        self.peer.check_reserve();
        Ok(())
    }

    /// Of a stream only the message that is not complete is held: the others have been read.
    fn follow(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.missing == 0 {
                let taken = (PREFIX_BYTES - self.known).min(bytes.len());
                self.prefix[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
                self.known += taken;
                bytes = &bytes[taken..];
                if self.known == PREFIX_BYTES {
                    let [_, length @ ..] = self.prefix;
                    (self.known, self.missing) = (0, u32::from_be_bytes(length) as usize);
                }
            } else {
                let taken = self.missing.min(bytes.len());
                self.missing -= taken;
                bytes = &bytes[taken..];
            }
        }
        if self.missing == 0 {
            self.held = None;
        }
    }
}

impl HttpBody for Request {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.hold(data.len())?;
                    if self.kind == Kind::Streams {
                        self.follow(data);
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(Status::from_error(error.into())))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                // A stream has its own time for its first message.
                if self.kind == Kind::Streams {
                    return Poll::Pending;
                }
                let timeout = self.peer.peers.bounds.request_timeout;
                let within = self.within.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                match within.as_mut().poll(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(()) => Poll::Ready(Some(Err(status::incomplete(&human(timeout))))),
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Counts what a reply takes until the transport is done with it.
fn count(mut response: http::Response<Body>, peer: &Arc<Peer>, kind: Kind, open: OpenCall) -> http::Response<Body> {
    // A refusal is nothing but headers, and must stay so: gRPC reads a status there only where the stream ends with them.
    if response.body().is_end_stream() {
        return response;
    }
    let held = response.extensions_mut().remove::<HeldForResponse>();
    let (parts, mut body) = response.into_parts();
    // The message of a call is there already; that of a stream comes when it likes, and is counted then.
    let first = match Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(first) => Some(first),
        Poll::Pending => None,
    };
    let bytes = match &first {
        Some(Some(Ok(frame))) => frame.data_ref().map(Bytes::len),
        _ => None,
    };
    if let (Some(bytes), Kind::Reads, None) = (bytes, kind, &held)
        && bytes + OVERHEAD_BYTES > peer.budget.room()
    {
        return status::overloaded(&peer.too_many_bytes()).into_http();
    }
    let mut reply = Reply { body, first: None, held, peer: peer.clone(), _open: open };
    reply.first = first.map(|first| first.map(|frame| frame.map(|frame| reply.counted(frame))));
    http::Response::from_parts(parts, Body::new(reply))
}

/// A reply on its way out.
struct Reply {
    body: Body,
    /// Polled already.
    first: Option<Option<Result<Frame<Bytes>, Status>>>,
    held: Option<HeldForResponse>,
    peer: Arc<Peer>,
    _open: OpenCall,
}

/// Data, and what it takes until the transport lets go of it.
struct CountedData {
    data: Bytes,
    _held: (Option<HeldForResponse>, Option<Held>),
    _unread: Unread,
}

impl AsRef<[u8]> for CountedData {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Reply {
    fn counted(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        let peer = &self.peer;
        frame.map_data(|data| {
            let claimed = self.held.take();
            let held = claimed.is_none().then(|| peer.budget.hold(data.len() + OVERHEAD_BYTES));
            peer.check_reserve();
            Bytes::from_owner(CountedData { data, _held: (claimed, held), _unread: peer.unread() })
        })
    }
}

impl HttpBody for Reply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(first);
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(self.counted(frame)))),
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.first, Some(None)) || self.first.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.first.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}
