//! An answer that the transport does not take, because its caller hung up: what it handed out goes back.
//!
//! A call notices that its caller has gone only while it waits. From then on this does: the answer's end is held back
//! until its data has been written, since the transport drops what it has not written of an answer nobody wants.

use bytes::Bytes;
use http_body::Frame;
use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};
use tokio::sync::oneshot;
use tonic::{
    Status,
    body::Body,
    codegen::{Body as HttpBody, http},
};

type Undo = Box<dyn FnOnce() + Send>;

/// Put among a response's extensions: undoes what was done unless the response is taken whole.
#[derive(Clone)]
pub(super) struct IfUnanswered {
    undo: Arc<Armed>,
}

struct Armed(Mutex<Option<Undo>>);

impl IfUnanswered {
    pub(super) fn new(undo: impl FnOnce() + Send + 'static) -> Self {
        let armed = Armed(Mutex::new(Some(Box::new(undo))));
        Self { undo: Arc::new(armed) }
    }
}

impl Armed {
    fn take(&self) -> Option<Undo> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        if let Some(undo) = self.take() {
            undo();
        }
    }
}

/// Ties what is to be undone to the body of its response.
pub(super) fn watch(mut response: http::Response<Body>) -> http::Response<Body> {
    match response.extensions_mut().remove::<IfUnanswered>() {
        None => response,
        Some(undo) => response.map(|body| Body::new(Watched { body, undo, written: None })),
    }
}

struct Watched {
    body: Body,
    undo: IfUnanswered,
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

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(written) = &mut self.written {
            // Nobody ever sends: the sender goes with the data.
            let _ = ready!(Pin::new(written).poll(context));
            self.written = None;
            // Written or thrown away? The transport knows, and looks again before it asks for more.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(match frame {
            Some(Ok(frame)) if frame.is_data() => Some(frame.into_data().map_or_else(
                |_| Err(Status::internal("data that is none")),
                |data| {
                    let (sender, written) = oneshot::channel();
                    self.written = Some(written);
                    let told = Told { data, _written: sender };
                    Ok(Frame::data(Bytes::from_owner(told)))
                },
            )),
            last => {
                drop(self.undo.undo.take());
                last
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
