//! What every call passes, from the socket to the service and back; a file each.
//!
//! ```text
//! socket → accept → limits → deadline → trace → service
//! socket ← write_coalescing ← trace ← error_reason ← response_budget ← undelivered ← service
//! ```

pub(super) mod accept;
mod deadline;
mod error_reason;
mod limits;
pub(super) mod response_budget;
mod trace;
pub(super) mod undelivered;
pub mod write_coalescing;

pub(super) use trace::record;

use crate::domain::Limits;
use tonic::{body::Body, codegen::http::Response, transport::Server};
use tower::layer::util::{Identity, Stack};
use tower::util::MapResponseLayer;

type Reply = fn(Response<Body>) -> Response<Body>;
pub(super) type Layers = Stack<MapResponseLayer<Reply>, Identity>;

/// A server with all of them.
pub(super) fn server(limits: &Limits) -> Server<Layers> {
    let server = limits::apply(Server::builder()).timeout(deadline::longest(limits)).trace_fn(trace::span);
    server.layer(MapResponseLayer::new(|reply| {
        trace::outcome(error_reason::give(response_budget::keep(undelivered::watch(reply))))
    }))
}
