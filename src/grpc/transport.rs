//! Refusals that come from the transport, before a service sees the request: they get a reason like all others.

use super::status;
use tonic::{Code, Status, body::Body, codegen::http::Response};
use tower::{
    layer::util::{Identity, Stack},
    util::MapResponseLayer,
};

type Rename = fn(Response<Body>) -> Response<Body>;
pub(super) type Layers = Stack<MapResponseLayer<Rename>, Identity>;

pub(super) fn layer() -> MapResponseLayer<Rename> {
    MapResponseLayer::new(give_reason)
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
