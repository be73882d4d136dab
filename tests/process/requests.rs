//! Requests in their shortest form.

use redrive::grpc::pb::{AckRequest, ClaimRequest, EnqueueRequest};

pub(crate) fn job(queue: &str) -> EnqueueRequest {
    EnqueueRequest { queue: queue.into(), r#type: "t".into(), ..EnqueueRequest::default() }
}

pub(crate) fn claim(queue: &str) -> ClaimRequest {
    ClaimRequest { queues: vec![queue.into()], ..ClaimRequest::default() }
}

pub(crate) fn ack(lease: &str) -> AckRequest {
    AckRequest { lease: lease.into(), ..AckRequest::default() }
}

pub(crate) fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}
