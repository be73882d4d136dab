//! The jobs that are enqueued, and what their bodies remember.

use super::{QUEUE, Round};
use crate::env;
use crate::grpc::pb::{self, enqueue_request, job};
use bytes::{BufMut, Bytes, BytesMut};
use std::time::Duration;

/// How many microseconds after the round's beginning a job was made; other bodies are zeros.
const STAMP: usize = size_of::<u64>();

impl Round {
    pub(super) fn jobs(&self, count: usize) -> Vec<pb::EnqueueRequest> {
        (0..count).map(|_| self.job(self.elapsed())).collect()
    }

    fn job(&self, now: Duration) -> pb::EnqueueRequest {
        let key = match self.plan.keys {
            true => format!("{:032x}", env::random::<u128>()),
            false => String::new(),
        };
        pb::EnqueueRequest {
            retry_policy: (self.plan.fail_rate > 0.0).then(retries),
            idempotency_key: key,
            ..job(body(self.plan.payload, now))
        }
    }
}

/// Jobs that only wait.
pub(in crate::bench) fn backlog(payload: usize, count: usize) -> Vec<pb::EnqueueRequest> {
    let body = Bytes::from(vec![0; payload]);
    (0..count).map(|_| job(body.clone())).collect()
}

fn job(body: Bytes) -> pb::EnqueueRequest {
    pb::EnqueueRequest {
        queue: QUEUE.into(),
        r#type: "bench".into(),
        body: Some(enqueue_request::Body::Data(body)),
        ..pb::EnqueueRequest::default()
    }
}

fn body(size: usize, now: Duration) -> Bytes {
    let mut body = BytesMut::with_capacity(size);
    if size >= STAMP {
        body.put_u64((now.as_micros() as u64).max(1));
    }
    body.resize(size, 0);
    body.freeze()
}

/// When the job was made, after the beginning of its round.
pub(super) fn made_at(job: &pb::Job) -> Option<Duration> {
    let Some(job::Body::Data(body)) = &job.body else { return None };
    let stamp = u64::from_be_bytes(body.get(..STAMP)?.try_into().ok()?);
    (stamp > 0).then(|| Duration::from_micros(stamp))
}

/// Soon, and until it is done.
fn retries() -> pb::RetryPolicy {
    let delay = prost_types::Duration { seconds: 0, nanos: 100_000_000 };
    pb::RetryPolicy {
        max_retries: Some(1_000),
        strategy: pb::BackoffStrategy::Fixed.into(),
        base_delay: Some(delay),
        max_delay: Some(delay),
        jitter: pb::JitterKind::Equal.into(),
        ..pb::RetryPolicy::default()
    }
}

/// What a failed attempt is reported with.
pub(super) fn failure(lease: String) -> pb::NackRequest {
    let error = pb::Failure {
        r#type: "BenchFailure".into(),
        message: "this attempt was meant to fail".into(),
        ..pb::Failure::default()
    };
    pb::NackRequest { lease, error: Some(error), ..pb::NackRequest::default() }
}
