//! What is done to every reply on its way out, innermost first.
//!
//! - `unanswered::watch`: a reply that nobody takes is undone.
//! - `reply_room::keep`: a large reply has room until it is sent.
//! - `give_reason`: refusals that come from the transport, before a service sees the request, get a reason like all others.

use super::{reply_room, status, unanswered};
use tonic::{Code, Status, body::Body, codegen::http::Response};
use tower::{
    layer::util::{Identity, Stack},
    util::MapResponseLayer,
};

type Reply = fn(Response<Body>) -> Response<Body>;
pub(super) type Layers = Stack<MapResponseLayer<Reply>, Identity>;

pub(super) fn layer() -> MapResponseLayer<Reply> {
    MapResponseLayer::new(|reply| give_reason(reply_room::keep(unanswered::watch(reply))))
}

/// No service of ours uses these codes: they stand for a request that was too long or that was none.
fn give_reason(response: Response<Body>) -> Response<Body> {
    // Only a reply that is nothing but a refusal has its status in the headers.
    let Some(refusal) = Status::from_header_map(response.headers()) else {
        return response;
    };
    match refusal.code() {
        Code::OutOfRange => status::message_too_large(refusal.message()).into_http(),
        Code::Internal if refusal.message().starts_with("failed to decode") => {
            status::unreadable(refusal.message()).into_http()
        }
        _ => response,
    }
}
