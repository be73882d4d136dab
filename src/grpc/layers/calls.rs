//! One call, from its headers to its last byte: how many are open at once, how long they may take, and which may be refused.

use super::peer::{OpenCall, OpenWait, Peer};
use super::request::Request;
use super::{error_reason, reply, trace, undelivered};
use crate::domain::Bounds;
use crate::grpc::{FILE_DESCRIPTOR_SET, convert, status};
use crate::service::Held;
use hyper::body::Incoming;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tonic::body::Body;
use tonic::codegen::{Service as _, http};
use tonic::service::Routes;
use tonic::{Status, TimeoutExpired};
use tracing::Instrument;

/// What a message takes beside its bytes.
pub(super) const OVERHEAD_BYTES: usize = 1 << 10;
/// The request of a call that brings neither jobs nor settlements, and that of a service which is not ours.
const SMALL_REQUEST: usize = 64 << 10;
const FOREIGN_REQUEST: usize = 4 << 10;

/// How the paths of our own services begin.
const OURS: &str = "/redrive.";
const REFLECTION: &str = "/grpc.reflection.";
/// Of reflection: one answer is written, one waits for that, and one is made. None is longer than all files.
const REFLECTED_BYTES: usize = 3 * FILE_DESCRIPTOR_SET.len();

/// What may be refused, and when.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Ends or prolongs leases: never refused for want of memory.
    Settles,
    /// Settles, and looks after its reply itself.
    Claims,
    Streams,
    /// A stream of a service that is not ours, which minds no bounds itself.
    Foreign,
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
            name if !path.starts_with(OURS) => match name {
                "Check" => Self::Reads,
                _ => Self::Foreign,
            },
            "BreakerStatus" | "ExplainPolicy" => Self::Reads,
            name if name.starts_with("Get") || name.starts_with("List") => Self::Reads,
            _ => Self::Changes,
        }
    }

    pub(super) fn streams(self) -> bool {
        matches!(self, Self::Streams | Self::Foreign)
    }

    pub(super) fn settles(self) -> bool {
        matches!(self, Self::Settles | Self::Claims)
    }
}

/// What a message of a call may have.
fn request_bytes(path: &str, bounds: &Bounds) -> usize {
    let most = match path.rsplit('/').next().unwrap_or_default() {
        _ if !path.starts_with(OURS) => FOREIGN_REQUEST,
        "Enqueue" | "EnqueueBatch" | "Claim" | "Work" | "Ack" | "Nack" | "Extend" | "Settle" => usize::MAX,
        // Ids, and an error as a Nack has it.
        "Requeue" | "PurgeDeadLetters" | "ExplainPolicy" => usize::MAX,
        _ => SMALL_REQUEST,
    };
    most.min(bounds.request_bytes)
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

/// Put among the extensions of a Claim for which there is only the reserve: it settles, and claims nothing.
#[derive(Clone, Copy, Debug)]
pub(in crate::grpc) struct InReserve;

/// What a call has of the server until it ends.
pub(super) struct Open {
    call: OpenCall,
    _wait: Option<OpenWait>,
    _held: Held,
    /// Why the request of a foreign stream was not read to its end: its service would end without a word.
    pub(super) refusal: Arc<OnceLock<Status>>,
}

impl Calls {
    /// Unless a bound is reached.
    fn begin(&self, kind: Kind, request: &http::Request<Incoming>) -> Result<Open, String> {
        let peer = &self.peer;
        let call = peer.begin_call(kind)?;
        let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
        let mut bytes = headers.sum();
        if request.uri().path().starts_with(REFLECTION) {
            bytes += REFLECTED_BYTES;
        }
        let refusable = matches!(kind, Kind::Reads | Kind::Changes | Kind::Foreign);
        if refusable && bytes + OVERHEAD_BYTES > peer.budget.room() {
            return Err(peer.too_many_bytes());
        }
        let wait = if kind == Kind::Foreign { Some(peer.begin_wait(0)?) } else { None };
        Ok(Open { call, _wait: wait, _held: peer.budget.hold(bytes), refusal: Arc::default() })
    }
}

impl hyper::service::Service<http::Request<Incoming>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn call(&self, mut request: http::Request<Incoming>) -> Self::Future {
        let span = trace::span(request.uri().path());
        let (kind, peer) = (Kind::of(request.uri().path()), self.peer.clone());
        let most = request_bytes(request.uri().path(), &peer.peers.bounds);
        let open = match self.begin(kind, &request) {
            Ok(open) => open,
            Err(why) => return Box::pin(std::future::ready(Ok(status::overloaded(&why).into_http()))),
        };
        let asked = convert::grpc_timeout(request.headers());
        let longest = asked.map_or(self.longest, |asked| asked.min(self.longest));
        request.extensions_mut().insert(peer.clone());
        if open.call.in_reserve {
            request.extensions_mut().insert(InReserve);
        }
        let refusal = open.refusal.clone();
        let request = request.map(|body| Body::new(Request::new(body, peer.clone(), kind, most, refusal)));
        let answered = self.routes.clone().call(request);
        let call = async move {
            let response = match tokio::time::timeout(longest, answered).await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => Status::from_error(Box::new(TimeoutExpired(()))).into_http(),
            };
            let response = reply::count(undelivered::watch(response), &peer, kind, open);
            Ok(trace::outcome(error_reason::give(response)))
        };
        Box::pin(call.instrument(span))
    }
}
