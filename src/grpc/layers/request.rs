//! A request on its way in: how long it may be and take, and what it takes of memory.

use super::calls::Kind;
use super::peer::Peer;
use crate::grpc::status;
use crate::service::Held;
use bytes::Bytes;
use http_body::Frame;
use hyper::body::Incoming;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tonic::Status;
use tonic::codegen::Body as HttpBody;

/// Before each message of gRPC: a flag, and its length.
const PREFIX_BYTES: usize = 5;
/// A message of a stream that is no longer is taken in like a Settle.
const SETTLING_MAX: usize = 64 << 10;
/// Of messages that are longer, few are decoded at a time.
const LARGE: usize = 1 << 20;

pub(super) struct Request {
    body: Incoming,
    peer: Arc<Peer>,
    kind: Kind,
    /// What a message may have.
    most: usize,
    message: Message,
    held: Option<Held>,
    /// A message has come.
    has_said: bool,
    /// The end of the message, kept back until the request has ended: what was decoded while the request goes on would wait for
    /// it, and can take many times as much.
    last: Option<Bytes>,
    /// Told to the reply, too.
    refusal: Arc<OnceLock<Status>>,
    ended: bool,
    turn: Option<Turn>,
    _decoding: Option<OwnedSemaphorePermit>,
    /// Runs once the request has to be waited for.
    within: Option<Pin<Box<Sleep>>>,
}

type Turn = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// How much of a message has come.
#[derive(Default)]
struct Message {
    prefix: [u8; PREFIX_BYTES],
    known: usize,
    length: usize,
    missing: usize,
}

impl Message {
    fn is_complete(&self) -> bool {
        self.known == PREFIX_BYTES && self.missing == 0
    }

    /// Takes in what belongs to this message, and gives back the rest; with it the length, once it is known.
    fn take<'b>(&mut self, bytes: &'b [u8]) -> (&'b [u8], Option<usize>) {
        let mut known = None;
        let (head, bytes) = bytes.split_at(bytes.len().min(PREFIX_BYTES - self.known));
        self.prefix[self.known..self.known + head.len()].copy_from_slice(head);
        self.known += head.len();
        if self.known == PREFIX_BYTES && !head.is_empty() {
            let [_, length @ ..] = self.prefix;
            self.length = u32::from_be_bytes(length) as usize;
            (self.missing, known) = (self.length, Some(self.length));
        }
        let (part, rest) = bytes.split_at(bytes.len().min(self.missing));
        self.missing -= part.len();
        (rest, known)
    }
}

impl Request {
    pub(super) fn new(
        body: Incoming, peer: Arc<Peer>, kind: Kind, most: usize, refusal: Arc<OnceLock<Status>>,
    ) -> Self {
        let (message, has_said, ended) = Default::default();
        let (held, last, turn, within) = Default::default();
        peer.request_begins();
        Self { body, peer, kind, most, message, held, has_said, last, refusal, ended, turn, _decoding: None, within }
    }

    fn came(&mut self, data: &[u8]) -> Result<(), Status> {
        let mut rest = data;
        while !rest.is_empty() {
            if self.message.is_complete() {
                if !self.kind.streams() {
                    return Err(status::unreadable("it goes on after its message"));
                }
                self.message = Message::default();
            }
            let length;
            (rest, length) = self.message.take(rest);
            if let Some(length) = length {
                self.begins(length)?;
            }
        }
        // Of a stream only the message that is not complete is held: the others have been read.
        if self.kind.streams() && self.message.is_complete() {
            (self.held, self.has_said) = (None, true);
        }
        Ok(())
    }

    /// A message of this length begins. Memory for all of it is set aside when its first byte has come.
    fn begins(&mut self, length: usize) -> Result<(), Status> {
        if length > self.most {
            let most = self.most;
            return Err(status::message_too_large(&format!("it has {length} bytes, and this call takes {most}")));
        }
        // A stream that ends takes its settlements with it.
        let settles = self.kind.settles() || self.kind == Kind::Streams && length <= SETTLING_MAX;
        let room = self.peer.budget.room();
        if self.peer.ending().is_some() || length > room && !settles {
            return Err(status::overloaded(&self.peer.too_many_bytes()));
        }
        self.held = Some(self.peer.budget.hold(length));
        self.peer.check_reserve();
        Ok(())
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        while !self.ended {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers of a request say nothing.
                    let Ok(data) = frame.into_data() else { continue };
                    self.peer.data_taken(data.len());
                    self.came(&data)?;
                    if self.kind.streams() || !self.message.is_complete() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                    self.last.get_or_insert(data);
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(Status::from_error(error.into())))),
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => return self.poll_time(cx).map(|late| Some(Err(late))),
            }
        }
        self.poll_last(cx).map(|last| last.map(Ok))
    }

    /// What was kept back; a long message once it may be decoded.
    fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.message.length > LARGE && self.last.is_some() && self._decoding.is_none() {
            let large = &self.peer.peers.large;
            let turn = self.turn.get_or_insert_with(|| {
                let turn = large.clone().acquire_owned();
                Box::pin(async { turn.await.ok() })
            });
            self._decoding = ready!(turn.as_mut().poll(cx));
        }
        Poll::Ready(self.last.take())
    }

    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        // Work has its own time for its first message; after it a stream may be quiet.
        if self.kind == Kind::Streams || self.kind == Kind::Foreign && self.has_said {
            return Poll::Pending;
        }
        let timeout = self.peer.peers.bounds.request_timeout;
        let within = self.within.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        within.as_mut().poll(cx).map(|()| self.peer.request_is_late())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.peer.request_ends();
    }
}

impl HttpBody for Request {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let data = ready!(self.poll_data(cx));
        if let Some(Err(refusal)) = &data
            && self.kind == Kind::Foreign
        {
            let _ = self.refusal.set(refusal.clone());
        }
        Poll::Ready(data.map(|data| data.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.last.is_none() && (self.ended || self.body.is_end_stream())
    }
}
