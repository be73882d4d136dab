//! Seed 000: a retry handler with exponential backoff, a dead-letter queue, and a breaker in front of that.

use super::{dead, dead_counts, dead_letter_many, dead_of, delays, explain, fail, preset, requeue};
use crate::server::{Server, at, error, job, job_of, long, time};
use crate::shapes::{by_all, by_oldest};
use redrive::grpc::pb;
use std::time::Duration;

#[tokio::test]
async fn seed_000_retry_handler_with_backoff_and_dead_letter_queue() {
    retry_config_and_its_delay_table().await;
    retry_result().await;
    job_failure_with_its_context().await;
    dead_letter_management().await;
    pages_of_a_hundred_and_at_most_a_thousand().await;
    no_job_is_lost_when_the_dead_letters_are_full().await;
    dead_letter_breaker().await;
}

/// What "with jitter (0-25%)" says for the attempts 1, 2, 3 ... in milliseconds.
const DELAY_TABLE: [(i64, i64); 7] = [
    (1_000, 1_250),
    (2_000, 2_500),
    (4_000, 5_000),
    (8_000, 10_000),
    (16_000, 20_000),
    (30_000, 37_500),
    (30_000, 37_500),
];

async fn retry_config_and_its_delay_table() {
    // Without a word of configuration: these are the defaults.
    let server = Server::configured("").await;
    let (config, rows) = explain(&server, pb::RetryPolicy::default()).await;
    assert_eq!((config.max_retries, config.factor), (Some(3), Some(2.0)));
    assert_eq!((config.base_delay, config.max_delay), (time(1, 0), time(30, 0)));
    assert_eq!((config.jitter(), config.jitter_fraction), (pb::JitterKind::Proportional, Some(0.25)));
    assert_eq!(rows, DELAY_TABLE[..3]);
    assert_eq!(delays(&server, "standard", 7).await, DELAY_TABLE);
    let plain = pb::RetryPolicy { jitter: pb::JitterKind::None.into(), ..preset("standard") };
    assert_eq!(explain(&server, plain).await.1, [(1_000, 1_000), (2_000, 2_000), (4_000, 4_000)]);

    server.enqueue(job("detection_queue")).await.unwrap();
    for (least, most) in &DELAY_TABLE[..3] {
        let delay = long(fail(&server, "detection_queue", error("DetectionFailed")).await.delay);
        assert!((least..=most).contains(&&delay), "{delay}");
        server.pass(Duration::from_millis(delay as u64 + 1)).await;
    }
}

/// success, error, attempts, moved_to_dlq: an Ack says the first, the answer to a Nack the others.
async fn retry_result() {
    let server = Server::configured("").await;
    server.enqueue(job_of("detection_queue", "recovers")).await.unwrap();
    let retried = fail(&server, "detection_queue", error("DetectionFailed")).await;
    assert_eq!(retried.outcome(), pb::NackOutcome::RetryScheduled);
    server.pass(Duration::from_secs(2)).await;
    let lease = server.take("detection_queue").await.lease;
    assert!(!server.ack(&lease).await.unwrap().already_gone);

    let policy = pb::RetryPolicy { jitter: pb::JitterKind::None.into(), ..Default::default() };
    let hopeless = pb::EnqueueRequest { retry_policy: Some(policy), ..job_of("detection_queue", "hopeless") };
    server.enqueue(hopeless).await.unwrap();
    for (attempts, left, seconds) in [(1, 3, 1), (2, 2, 2), (3, 1, 4)] {
        let result = fail(&server, "detection_queue", error("Refused")).await;
        assert_eq!((result.attempt, result.retries_left), (attempts, left));
        assert_eq!(result.outcome(), pb::NackOutcome::RetryScheduled);
        server.pass(Duration::from_secs(seconds)).await;
    }
    let refused = pb::Failure { message: "the camera is gone".into(), ..error("Refused") };
    let result = fail(&server, "detection_queue", refused).await;
    assert_eq!((result.attempt, result.retries_left), (4, 0));
    assert_eq!(result.outcome(), pb::NackOutcome::DeadLettered, "moved to the dead letters");
    assert_eq!(result.dead_reason(), pb::DeadReason::Exhausted);
    let letter = server.list_dead(dead_of("detection_queue")).await.unwrap().dead_letters.remove(0);
    assert_eq!(letter.failure.unwrap().message, "the camera is gone");
}

async fn job_failure_with_its_context() {
    let server = Server::configured("[defaults]\npolicy = \"one-shot\"").await;
    server.enqueue(job_of("analysis_queue", "waiting")).await.unwrap();
    server.enqueue(job_of("detection_queue", "x")).await.unwrap();
    for _ in 0..2 {
        server.enqueue(pb::EnqueueRequest { priority: -1, ..job("detection_queue") }).await.unwrap();
    }
    let failure = pb::Failure {
        message: "503 from the model".into(),
        stack_trace: "ü".repeat(5_000),
        http_status: 503,
        response_body: "é".repeat(3_000),
        ..error("HTTPStatusError")
    };
    fail(&server, "detection_queue", failure).await;
    let full = pb::ListDeadLettersRequest { view: pb::JobView::Full.into(), ..dead_of("detection_queue") };
    let letter = server.list_dead(full).await.unwrap().dead_letters.remove(0);
    assert_eq!((letter.attempt_count, letter.attempts.len()), (1, 1));
    assert_eq!(letter.job.unwrap().queue, "detection_queue");
    let kept = letter.failure.unwrap();
    assert_eq!((kept.r#type.as_str(), kept.http_status), ("HTTPStatusError", 503));
    assert_eq!(kept.stack_trace, "ü".repeat(4_096));
    assert_eq!(kept.response_body, "é".repeat(2_048));
    assert!(kept.truncated, "and says that it was cut");
    assert_eq!(letter.first_failed_at, letter.last_failed_at);
    assert!(at(letter.died_at) > 0);
    // The state of things at that moment.
    let context = letter.context.unwrap();
    assert_eq!((context.ready, context.dead, context.dlq_breaker()), (2, 0, pb::BreakerState::Closed));
}

/// get_dlq_stats, get_dlq_jobs, requeue_dlq_job, move_dlq_job_to_queue, requeue-all with a limit, clear_dlq.
async fn dead_letter_management() {
    let server = Server::configured("").await;
    for id in ["d1", "d2", "d3", "d4", "d5"] {
        server.dead_letter("detection_queue", id, error("E")).await;
    }
    for id in ["a1", "a2"] {
        server.dead_letter("analysis_queue", id, error("E")).await;
    }
    let (counts, total) = dead_counts(&server).await;
    assert_eq!(counts, [("analysis_queue".into(), 2), ("detection_queue".into(), 5)]);
    assert_eq!(total, 7);

    let first = pb::ListDeadLettersRequest { page_size: 2, ..dead_of("dlq:detection_queue") };
    for _ in 0..2 {
        let peeked = server.list_dead(first.clone()).await.unwrap();
        assert_eq!((peeked.dead_letters.len(), peeked.queue_total), (2, 5), "looking takes nothing");
    }

    let oldest = pb::RequeueRequest { selector: by_oldest(1), ..requeue("dlq:detection_queue") };
    assert_eq!(server.requeue(oldest.clone()).await.unwrap().job_ids, ["d1"]);
    assert_eq!(server.take("detection_queue").await.job_id, "d1");
    let target_queue = "analysis_queue".into();
    let moved = pb::RequeueRequest { target_queue, ..oldest };
    assert_eq!(server.requeue(moved).await.unwrap().job_ids, ["d2"]);
    let job = server.take("analysis_queue").await;
    assert_eq!((job.job_id.as_str(), job.queue.as_str()), ("d2", "analysis_queue"));
    let some = pb::RequeueRequest { selector: by_all(), limit: 2, ..requeue("dlq:detection_queue") };
    let reply = server.requeue(some).await.unwrap();
    assert_eq!((reply.job_ids.join(" "), reply.has_more), ("d3 d4".into(), true));

    let clear =
        pb::PurgeDeadLettersRequest { queue: "dlq:detection_queue".into(), selector: by_all(), ..Default::default() };
    assert_eq!(server.purge(clear).await.unwrap().purged, 1);
    assert_eq!(dead(&server, "detection_queue").await, [""; 0]);
    assert_eq!(dead(&server, "analysis_queue").await, ["a1", "a2"]);
}

async fn pages_of_a_hundred_and_at_most_a_thousand() {
    let server = Server::configured("").await;
    for thousand in 0..2 {
        let ids = (0..600).map(|number| format!("{thousand}-{number}"));
        dead_letter_many(&server, "q", ids).await;
    }
    let page = server.list_dead(dead_of("dlq:q")).await.unwrap();
    assert_eq!((page.dead_letters.len(), page.queue_total), (100, 1_200));
    let greedy = pb::ListDeadLettersRequest { page_size: 5_000, ..dead_of("dlq:q") };
    assert_eq!(server.list_dead(greedy).await.unwrap().dead_letters.len(), 1_000);
}

/// The seed loses a job that dies while nothing more goes into its dead-letter queue.
async fn no_job_is_lost_when_the_dead_letters_are_full() {
    let full = "[queues.detection_queue]\ndead_letters = { max_entries = 2 }";
    let server = Server::configured(full).await;
    let ids = ["a", "b", "c", "d"];
    for id in ids {
        server.dead_letter("detection_queue", id, error("E")).await;
    }
    assert_eq!(dead(&server, "dlq:detection_queue").await, ids);
    assert_eq!(dead(&server, "dlq:overflow:detection_queue").await, ["c", "d"]);
    let all = pb::RequeueRequest { selector: by_all(), ..requeue("dlq:overflow:detection_queue") };
    assert_eq!(server.requeue(all).await.unwrap().job_ids, ["c", "d"]);
    for id in ["c", "d"] {
        assert_eq!(server.take("detection_queue").await.job_id, id);
    }
}

/// Status, whether it is open, reset, and its four settings. What dies while it is open is overflow, and never lost.
async fn dead_letter_breaker() {
    let file = r#"
        [queues.detection_queue.dead_letters]
        max_entries = 1
        breaker = { failure_threshold = 2, recovery_timeout = "30s", half_open_max_calls = 3, success_threshold = 4 }
    "#;
    let server = Server::configured(file).await;
    let name = "dlq:detection_queue";
    let settings = server.breaker(name).await.unwrap().settings.unwrap();
    assert_eq!((settings.failure_threshold, settings.recovery_timeout), (2, time(30, 0)));
    assert_eq!((settings.half_open_max_calls, settings.success_threshold), (3, 4));

    use pb::BreakerState::{Closed, HalfOpen, Open};
    for (id, state, failures) in [("a", Closed, 0), ("b", Closed, 1), ("c", Open, 0), ("d", Open, 0)] {
        server.dead_letter("detection_queue", id, error("E")).await;
        let breaker = server.breaker(name).await.unwrap();
        assert_eq!((breaker.state(), breaker.failure_count), (state, failures), "{id}");
    }
    assert_eq!(dead(&server, name).await, ["a", "b", "c", "d"]);
    assert_eq!(dead(&server, "dlq:overflow:detection_queue").await, ["b", "c", "d"]);
    server.pass(Duration::from_secs(30)).await;
    assert_eq!(server.breaker(name).await.unwrap().state(), HalfOpen, "it tries again");
    server.dead_letter("detection_queue", "e", error("E")).await;
    assert_eq!(server.breaker(name).await.unwrap().state(), Open, "and finds no room");

    let reset = server.reset_breaker(name).await.unwrap();
    assert_eq!((reset.state(), reset.failure_count, reset.trips), (Closed, 0, 0));
    let work = server.breaker("queue:detection_queue").await.unwrap();
    assert_eq!(work.state(), Closed, "the work itself was never held back");
}
