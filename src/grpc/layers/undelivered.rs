//! A claim whose answer the transport does not take, because its caller is gone: its jobs return. Innermost, so that it sees the
//! body as the service made it.
//!
//! A call notices that its caller is gone only while it waits. From then on this does: the answer's end is held back until its
//! data has been written, since the transport drops what it has not written of an answer that is not wanted.

use crate::lock::lock;
use crate::queue::HandoverGuard;
use bytes::Bytes;
use http_body::Frame;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, http};

/// Put among a response's extensions: its jobs return unless the response is taken whole.
#[derive(Clone)]
pub(in crate::grpc) struct HandoverInResponse(Arc<Mutex<Option<HandoverGuard>>>);

impl HandoverInResponse {
    pub(in crate::grpc) fn new(handover: HandoverGuard) -> Self {
        Self(Arc::new(Mutex::new(Some(handover))))
    }

    fn delivered(&self) {
        let handover = lock(&self.0).take();
        handover.into_iter().for_each(HandoverGuard::delivered);
    }
}

/// Ties the handover to the body of its response.
pub(super) fn watch(mut response: http::Response<Body>) -> http::Response<Body> {
    match response.extensions_mut().remove::<HandoverInResponse>() {
        None => response,
        Some(handover) => response.map(|body| Body::new(Watched { body, handover, written: None })),
    }
}

struct Watched {
    body: Body,
    handover: HandoverInResponse,
    /// Ends when the transport lets go of the last data it was given.
    written: Option<oneshot::Receiver<()>>,
}

/// Data that tells by its end that the transport is done with it.
struct Told {
    data: Bytes,
    _written: oneshot::Sender<()>,
}

impl AsRef<[u8]> for Told {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(written) = &mut self.written {
            // Nothing is ever sent: the sender goes with the data.
            let _ = ready!(Pin::new(written).poll(context));
            self.written = None;
            // Written or thrown away? The transport knows, and looks again before it asks for more.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let last = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    let (sender, written) = oneshot::channel();
                    self.written = Some(written);
                    let told = Told { data, _written: sender };
                    return Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(told)))));
                }
                Err(trailers) => Some(Ok(trailers)),
            },
            last => last,
        };
        self.handover.delivered();
        Poll::Ready(last)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
