//! A reply on its way out: what its messages take of memory until the transport is done with them.

use super::calls::{HeldForResponse, Kind, OVERHEAD_BYTES, Open};
use super::peer::{Peer, Unread};
use crate::grpc::status;
use crate::service::Held;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, http};

/// Counts what a reply takes until the transport is done with it.
pub(super) fn count(
    mut response: http::Response<Body>, peer: &Arc<Peer>, kind: Kind, open: Open,
) -> http::Response<Body> {
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
    let mut reply = Reply { body, first: None, held, peer: peer.clone(), open };
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
    open: Open,
}

/// Data, and what it takes until the transport lets go of it.
struct CountedData {
    data: Bytes,
    _held: Held,
    _unread: Unread,
}

impl AsRef<[u8]> for CountedData {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Reply {
    fn counted(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        if let (Some(refusal), true) = (self.open.refusal.get(), frame.is_trailers()) {
            return Frame::trailers(refusal.clone().into_http::<Body>().into_parts().0.headers);
        }
        let peer = &self.peer;
        frame.map_data(|data| {
            let _held = peer.budget.hold(data.len() + OVERHEAD_BYTES);
            // What its service took for it was for a part of it.
            self.held = None;
            peer.check_reserve();
            Bytes::from_owner(CountedData { data, _held, _unread: peer.unread() })
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
