//! Refusals that come from the transport, before a service sees the request, get a reason like all others. Outside the service,
//! because that never sees such a request.

use crate::grpc::status;
use tonic::{Code, Status, body::Body, codegen::http::Response};

/// No service of ours uses these codes: they stand for a request that was too long or that was none.
pub(super) fn give(response: Response<Body>) -> Response<Body> {
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
