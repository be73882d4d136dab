//! The memory that large replies may take: one that is not read takes it until it is sent or its connection ends. Outside the
//! undelivered claims, so that it lasts until the last byte has left.

use crate::{queue::Error, store::StoreError};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use prost::Message;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, http};
use tonic::{Response, Status};

/// For all connections together.
const MIB: usize = 256;
/// Smaller replies are not worth counting.
const SMALL_BYTES: usize = 64 << 10;

#[derive(Clone, Debug)]
pub struct ResponseBudget(Arc<Semaphore>);

impl Default for ResponseBudget {
    fn default() -> Self {
        Self::of(MIB)
    }
}

/// Put among a response's extensions: what it takes of the budget until it is sent.
#[derive(Clone)]
struct Taken(#[expect(dead_code, reason = "it is there to be dropped")] Arc<OwnedSemaphorePermit>);

impl ResponseBudget {
    pub fn of(mib: usize) -> Self {
        Self(Arc::new(Semaphore::new(mib << 10)))
    }

    /// A response with its part of the budget, or a refusal while too much waits to be read.
    pub fn response<T: Message>(&self, reply: T) -> Result<Response<T>, Status> {
        let bytes = reply.encoded_len();
        let mut response = Response::new(reply);
        if bytes > SMALL_BYTES {
            let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
            let taken = self.0.clone().try_acquire_many_owned(kib).map_err(|_| {
                let why = format!("{MIB} MiB of replies wait for callers to read them");
                Status::from(Error::Store(StoreError::Overloaded(why)))
            })?;
            response.extensions_mut().insert(Taken(Arc::new(taken)));
        }
        Ok(response)
    }
}

/// Ties the part of the budget to the body of its response.
pub(super) fn keep(mut response: http::Response<Body>) -> http::Response<Body> {
    match response.extensions_mut().remove::<Taken>() {
        None => response,
        Some(taken) => response.map(|body| Body::new(Keeping { body, _taken: taken })),
    }
}

struct Keeping {
    body: Body,
    _taken: Taken,
}

impl HttpBody for Keeping {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
