//! What the log says, and how often.

use crate::requests::{claim, job};
use crate::server::{Launch, scratch};
use redrive::grpc::pb::{ClaimRequest, Failure, NackRequest};

#[tokio::test]
async fn a_queue_that_is_held_again_and_again_does_not_fill_the_log() {
    let place = scratch();
    let server = Launch::on(&place.path().join("data")).start();
    let mut queue = server.queue().await;
    queue.enqueue(job("q")).await.unwrap();
    for _ in 0..20 {
        let wait = Some(prost_types::Duration { seconds: 20, nanos: 0 });
        let reply = queue.claim(ClaimRequest { wait, ..claim("q") }).await.unwrap().into_inner();
        let error = Some(Failure { http_status: 429, ..Failure::default() });
        let retry_after = Some(prost_types::Duration { seconds: 0, nanos: 1_000_000 });
        let nack = NackRequest { lease: reply.jobs[0].lease.clone(), error, retry_after, ..NackRequest::default() };
        let answer = queue.nack(nack).await.unwrap().into_inner();
        assert!(answer.explanation.starts_with("the queue is held until "), "{}", answer.explanation);
    }
    // The log is whole once it says that the configuration was read again.
    server.reload();
    server.log_line("configuration reloaded");
    assert_eq!(server.log_lines("breaker"), 1, "at most one line a minute");
}
