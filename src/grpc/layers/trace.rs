//! A span for each call, with its method, queue, job id and outcome. Outside the service, so that every line that a call logs
//! stands in it. `RUST_LOG=redrive::grpc=debug` shows a line for each call.

use std::fmt::Display;
use tonic::{Code, Status, body::Body, codegen::http};
use tracing::{Span, field};

pub(super) fn span(path: &str) -> Span {
    let method = path.rsplit('/').next().unwrap_or_default();
    tracing::debug_span!("call", method, queue = field::Empty, job_id = field::Empty, outcome = field::Empty)
}

/// Adds `queue` or `job_id` to the span of this call.
pub(in crate::grpc) fn record(field: &str, value: impl Display) {
    Span::current().record(field, field::display(value));
}

/// Only a reply that is nothing but a refusal has its status in the headers; any other succeeds, or ends later as a stream.
pub(super) fn outcome(response: http::Response<Body>) -> http::Response<Body> {
    if tracing::enabled!(tracing::Level::DEBUG) {
        let code = Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code());
        Span::current().record("outcome", field::debug(code));
        tracing::debug!("call answered");
    }
    response
}
