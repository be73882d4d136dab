//! GetStats: the totals, and that they add up.

use crate::scene::{Scene, assert_refused};
use crate::server::{Server, Setup, claim, error, job, job_of, nack, steady, time};
use crate::shapes::{after, by_all};
use redrive::grpc::pb;
use std::time::Duration;
use tonic::Code;

#[track_caller]
pub(crate) fn assert_balanced(stats: &pb::GetStatsResponse) {
    let came = stats.enqueued + stats.moved_in;
    let went = stats.completed + stats.purged + stats.cancelled + stats.retention_expired;
    assert_eq!(came, went + stats.moved_out + stats.held, "{stats:?}");
}

#[tokio::test]
async fn after_a_mixed_story_the_totals_add_up() {
    let server = Server::start().await;
    for _ in 0..4 {
        server.enqueue(job("q")).await.unwrap();
    }
    server.enqueue(pb::EnqueueRequest { start: after(time(3_600, 0)), ..job("q") }).await.unwrap();
    // One succeeds at once, one after a retry, one never, one is lost with its worker.
    let lease = server.take("q").await.lease;
    server.ack(&lease).await.unwrap();
    let lease = server.take("q").await.lease;
    server.nack(nack(&lease, "Timeout")).await.unwrap();
    let lease = server.take("q").await.lease;
    let never = pb::NackRequest { kind: pb::NackKind::Permanent.into(), ..nack(&lease, "E") };
    server.nack(never).await.unwrap();
    server.take("q").await;
    server.pass(Duration::from_secs(30)).await;
    let lease = server.take("q").await.lease;
    server.ack(&lease).await.unwrap();
    server.dead_letter("other", "moves", error("E")).await;
    let requeue = pb::RequeueRequest {
        queue: "other".into(),
        target_queue: "q".into(),
        selector: by_all(),
        ..Default::default()
    };
    server.requeue(requeue).await.unwrap();

    let stats = server.stats("q").await.unwrap();
    assert_balanced(&stats);
    let expected = pb::GetStatsResponse {
        enqueued: 5,
        completed: 2,
        failed_attempts: 3,
        total_retries: 2,
        successful_retries: 1,
        retry_success_rate: 1.0,
        dead_lettered: 1,
        lease_expired: 1,
        moved_in: 1,
        held: 4,
        ..Default::default()
    };
    assert_eq!(stats, expected);
    let other = server.stats("other").await.unwrap();
    assert_balanced(&other);
    assert_eq!((other.moved_out, other.requeued, other.held), (1, 1, 0));
    let all = server.stats("").await.unwrap();
    assert_balanced(&all);
    assert_eq!((all.enqueued, all.dead_lettered, all.held), (6, 2, 4));
    assert_eq!((all.moved_in, all.moved_out), (1, 1));
}

#[tokio::test]
async fn the_success_rate_is_that_of_retried_jobs_which_are_finished() {
    let server = Server::start().await;
    assert_eq!(server.stats("").await.unwrap().retry_success_rate.to_bits(), 0);
    for id in ["good", "good-too", "bad", "still-at-it"] {
        server.enqueue(job_of("q", id)).await.unwrap();
        let lease = server.take("q").await.lease;
        server.nack(nack(&lease, "E")).await.unwrap();
    }
    assert_eq!(server.stats("q").await.unwrap().retry_success_rate.to_bits(), 0);
    server.pass(Duration::from_secs(10)).await;
    for _ in 0..4 {
        let job = server.take("q").await;
        if job.job_id.starts_with("good") {
            server.ack(&job.lease).await.unwrap();
        } else if job.job_id == "bad" {
            let kind = pb::NackKind::Permanent.into();
            server.nack(pb::NackRequest { kind, ..nack(&job.lease, "E") }).await.unwrap();
        }
    }
    let stats = server.stats("q").await.unwrap();
    assert!((stats.retry_success_rate - 2.0 / 3.0).abs() < 1e-9, "{stats:?}");
    assert_eq!((stats.total_retries, stats.successful_retries), (4, 2));
}

#[tokio::test]
async fn an_unknown_queue_has_no_totals() {
    let scene = Scene::set().await;
    let server = &scene.server;
    scene.refuses(server.stats("missing"), Code::NotFound, "QUEUE_NOT_FOUND", &[]).await;
    scene.refuses_fields(server.stats("a b"), &["queue"]).await;
    let queues = vec![("configured", steady(Duration::ZERO))];
    let server = Server::with(Setup { queues, ..Setup::default() }).await;
    assert_eq!(server.stats("configured").await.unwrap(), Default::default());
    // Asking makes no queue.
    let refused = server.stats("missing").await.unwrap_err();
    assert_refused(&refused, Code::NotFound, "QUEUE_NOT_FOUND", &[]);
    let idle = server.claim(claim("missing")).await.unwrap().idle;
    assert_eq!(idle[0].reason(), pb::IdleReason::NoSuchQueue);
}
