//! Seed 001: a retry and backoff policy with full jitter.
//!
//! Its metrics and alerts (`retries_total`, `retry_exhausted_total`, `retry_latency_seconds`) come with the metrics, in a
//! later version.

use super::{dead_of, delays, explain, fail, preset};
use crate::scene::assert_refused;
use crate::server::{Server, at, claim, error, inner, job_of, long, nack, text, time};
use redrive::grpc::pb;
use std::time::Duration;
use tonic::Code;

const FULL_JITTER: &str = "[defaults]\npolicy = \"full-jitter\"";

#[tokio::test]
async fn seed_001_retry_policy_with_full_jitter() {
    max_retries_and_a_failure_that_stays_visible().await;
    the_delay_table().await;
    three_examples().await;
    not_claimable_before_retry_at().await;
    a_retry_keeps_its_priority().await;
    at_least_once_and_idempotency().await;
}

async fn max_retries_and_a_failure_that_stays_visible() {
    let server = Server::configured(FULL_JITTER).await;
    server.enqueue(job_of("q", "x")).await.unwrap();
    for attempt in 1..=3 {
        let retried = fail(&server, "q", error("E")).await;
        assert_eq!((retried.attempt, retried.retries_left), (attempt, 4 - attempt));
        server.pass(Duration::from_secs(30)).await;
    }
    let failed = fail(&server, "q", error("E")).await;
    assert_eq!((failed.attempt, failed.dead_reason()), (4, pb::DeadReason::Exhausted));
    server.pass(Duration::from_secs(365 * 86_400)).await;
    assert!(server.claim(claim("q")).await.unwrap().jobs.is_empty(), "it is not delivered any more");
    let info = server.get_job("x").await.unwrap();
    assert_eq!((info.state(), info.attempts.len()), (pb::JobState::Dead, 4));
    assert_eq!(server.list_dead(dead_of("q")).await.unwrap().queue_total, 1);
}

/// "6+" is the cap already in the seed's table, and 16 s by its formula: the formula wins.
async fn the_delay_table() {
    let server = Server::configured(FULL_JITTER).await;
    let longest = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000];
    let rows = delays(&server, "full-jitter", 8).await;
    assert_eq!(rows, longest.map(|most| (0, most)));
    // The whole window is used: of many retries some come early and some late.
    let mut chosen = Vec::new();
    for number in 0..60 {
        let id = number.to_string();
        server.enqueue(job_of(&format!("q{number}"), &id)).await.unwrap();
        chosen.push(long(fail(&server, &format!("q{number}"), error("E")).await.delay));
    }
    assert!(chosen.iter().all(|delay| (0..=500).contains(delay)), "{chosen:?}");
    assert!(chosen.iter().any(|delay| *delay < 250), "{chosen:?}");
    assert!(chosen.iter().any(|delay| *delay >= 250), "{chosen:?}");
}

async fn three_examples() {
    let server = Server::configured("").await;
    for (name, max_retries, base, cap, first, last) in [
        ("conservative", 5, time(1, 0), time(60, 0), 1_000, 16_000),
        ("aggressive", 2, time(0, 100_000_000), time(5, 0), 100, 200),
    ] {
        let (policy, rows) = explain(&server, preset(name)).await;
        assert_eq!(policy.max_retries, Some(max_retries), "{name}");
        assert_eq!((policy.base_delay, policy.max_delay), (base, cap), "{name}");
        assert_eq!((rows[0], rows[rows.len() - 1]), ((0, first), (0, last)), "{name}");
    }
    let once = pb::EnqueueRequest { retry_policy: Some(preset("one-shot")), ..job_of("q", "once") };
    server.enqueue(once).await.unwrap();
    let failed = fail(&server, "q", error("E")).await;
    assert_eq!((failed.attempt, failed.dead_reason()), (1, pb::DeadReason::Exhausted));
}

async fn not_claimable_before_retry_at() {
    let server = Server::configured("[defaults]\npolicy = { jitter = \"none\" }").await;
    server.enqueue(job_of("q", "x")).await.unwrap();
    let retry_at = at(fail(&server, "q", error("E")).await.retry_at);
    let info = server.get_job("x").await.unwrap();
    assert_eq!((info.state(), at(info.run_at)), (pb::JobState::Retrying, retry_at));
    server.pass(Duration::from_millis(999)).await;
    let early = server.claim(claim("q")).await.unwrap();
    assert_eq!((early.jobs.len(), at(early.server_time)), (0, retry_at - 1));
    assert_eq!(early.idle[0].reason(), pb::IdleReason::NotDue);
    server.pass(Duration::from_millis(1)).await;
    assert_eq!(server.take("q").await.attempt, 2);
}

async fn a_retry_keeps_its_priority() {
    let server = Server::configured("[defaults]\npolicy = { jitter = \"none\" }").await;
    for (id, priority) in [("urgent", 5), ("slow", 0)] {
        let request = pb::EnqueueRequest { priority, ..job_of("q", id) };
        server.enqueue(request).await.unwrap();
    }
    fail(&server, "q", error("E")).await;
    server.enqueue(job_of("q", "slower")).await.unwrap();
    server.pass(Duration::from_secs(1)).await;
    for id in ["urgent", "slow", "slower"] {
        let job = server.take("q").await;
        assert_eq!((job.job_id.as_str(), job.priority), (id, if id == "urgent" { 5 } else { 0 }));
    }
}

async fn at_least_once_and_idempotency() {
    let server = Server::configured("").await;
    let keyed =
        |body: &str| pb::EnqueueRequest { idempotency_key: "order-17".into(), body: text(body), ..job_of("q", "") };
    let first = server.enqueue(keyed("charge 5")).await.unwrap();
    let again = server.enqueue(keyed("charge 5")).await.unwrap();
    assert_eq!((again.outcome(), &again.job_id), (pb::EnqueueOutcome::Existing, &first.job_id));
    let other = server.enqueue(keyed("charge 6")).await.unwrap_err();
    assert_refused(&other, Code::AlreadyExists, "KEY_CONFLICT", &["idempotency_key"]);

    // A worker that vanishes: the job comes again, and can be told from the first time.
    let lost = server.take("q").await;
    server.pass(Duration::from_secs(30)).await;
    server.pass(Duration::from_secs(2)).await;
    let came_again = server.take("q").await;
    assert_eq!((&came_again.job_id, &lost.job_id), (&first.job_id, &first.job_id));
    assert!(came_again.deliveries > lost.deliveries, "a fence for the worker's own writes");
    let late = server.ack(&lost.lease).await.unwrap_err();
    assert_refused(&late, Code::FailedPrecondition, "LEASE_LOST", &[]);
    let late = server.nack(nack(&lost.lease, "E")).await.unwrap_err();
    assert_refused(&late, Code::FailedPrecondition, "LEASE_LOST", &[]);
    server.ack(&came_again.lease).await.unwrap();
    assert!(server.ack(&came_again.lease).await.unwrap().already_gone);
    let stats = inner(server.admin().get_stats(pb::GetStatsRequest::default()).await).unwrap();
    assert_eq!((stats.enqueued, stats.completed), (1, 1));
}
