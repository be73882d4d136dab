//! Room for large replies: one that nobody reads takes memory until it is sent or its connection ends, and there is only so
//! much of it for all.

use super::status;
use crate::{broker::Error, store::StoreError};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use prost::Message;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{
    Response, Status,
    body::Body,
    codegen::{Body as HttpBody, http},
};

/// For all connections together.
const MIB: usize = 256;
/// Smaller replies are not worth counting.
const SMALL_BYTES: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(super) struct ReplyRoom(Arc<Semaphore>);

impl Default for ReplyRoom {
    fn default() -> Self {
        Self::of(MIB)
    }
}

/// Put among a response's extensions: the room that it takes until it is sent.
#[derive(Clone)]
struct Taken(#[expect(dead_code, reason = "it is there to be dropped")] Arc<OwnedSemaphorePermit>);

impl ReplyRoom {
    fn of(mib: usize) -> Self {
        Self(Arc::new(Semaphore::new(mib << 10)))
    }

    /// A response that takes its room along, or a refusal while too much waits to be read.
    pub(super) fn response<T: Message>(&self, reply: T) -> Result<Response<T>, Status> {
        let bytes = reply.encoded_len();
        let mut response = Response::new(reply);
        if bytes > SMALL_BYTES {
            let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
            let taken = self.0.clone().try_acquire_many_owned(kib).map_err(|_| {
                let why = format!("{MIB} MiB of replies wait for callers to read them");
                status::status(Error::Store(StoreError::Overloaded(why)))
            })?;
            response.extensions_mut().insert(Taken(Arc::new(taken)));
        }
        Ok(response)
    }
}

/// Ties the room to the body of its response.
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

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn replies_that_nobody_reads_leave_no_room_for_more() {
        let room = ReplyRoom::of(1);
        let reply = || "x".repeat(700 << 10);
        let first = room.response(reply()).unwrap();
        assert_eq!(room.response(reply()).unwrap_err().code(), Code::ResourceExhausted);
        assert!(room.response("small".to_owned()).is_ok());
        drop(first);
        assert!(room.response(reply()).is_ok());
    }
}
