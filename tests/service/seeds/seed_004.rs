//! Seed 004: dead-letter queue management.
//!
//! API keys on destructive calls, and the metrics of depths and breakers, come in a later version.

use super::{dead, dead_counts, dead_of, fail, requeue};
use crate::server::{Server, at, error, inner, job_of, long, text};
use crate::shapes::{by_all, by_filter, by_oldest};
use redrive::grpc::pb;
use std::time::Duration;

#[tokio::test]
async fn seed_004_dead_letter_queue_management() {
    the_record_of_the_example().await;
    statistics_and_the_errors_behind_them().await;
    a_list_in_pages().await;
    requeue_one_requeue_all_and_clear().await;
    selective_requeue_by_error().await;
    batch_requeue_after_a_fix().await;
    a_full_queue_loses_nothing().await;
    dead_letter_breaker().await;
}

/// Three attempts, as the seed's example has them; 000 counts those where redrive counts retries.
const DETECTION: &str = r#"
[queues.detection_queue]
policy = { max_retries = 2, jitter = "none" }
"#;

async fn the_record_of_the_example() {
    let server = Server::configured(DETECTION).await;
    for (queue, id) in [("detection_queue", "a"), ("detection_queue", "b")] {
        server.enqueue(pb::EnqueueRequest { priority: -1, ..job_of(queue, id) }).await.unwrap();
    }
    let original = r#"{"camera_id":"front_door"}"#;
    let request = pb::EnqueueRequest { body: text(original), ..job_of("detection_queue", "x") };
    server.enqueue(request).await.unwrap();
    for attempt in 1..=3 {
        let failure = pb::Failure {
            message: "Connection refused: YOLO26 service unavailable".into(),
            stack_trace: format!("Traceback (most recent call last), attempt {attempt}"),
            http_status: 503,
            response_body: "unavailable".into(),
            ..error("ConnectionRefusedError")
        };
        fail(&server, "detection_queue", failure).await;
        if attempt < 3 {
            server.pass(Duration::from_secs(attempt)).await;
        }
    }
    let full = pb::ListDeadLettersRequest { view: pb::JobView::Full.into(), ..dead_of("dlq:detection_queue") };
    let letter = server.list_dead(full).await.unwrap().dead_letters.remove(0);
    let job = letter.job.unwrap();
    assert_eq!(job.body, Some(pb::job::Body::Text(original.into())));
    assert_eq!((job.queue.as_str(), letter.attempt_count), ("detection_queue", 3));
    let failure = letter.failure.unwrap();
    assert_eq!(failure.r#type, "ConnectionRefusedError");
    assert_eq!(failure.message, "Connection refused: YOLO26 service unavailable");
    assert!(failure.stack_trace.ends_with("attempt 3") && !failure.truncated);
    assert_eq!((failure.http_status, failure.response_body.as_str()), (503, "unavailable"));
    assert_eq!(at(letter.last_failed_at) - at(letter.first_failed_at), 3_000);
    let delays: Vec<_> = letter.retry_delays.into_iter().map(|delay| long(Some(delay))).collect();
    assert_eq!(delays, [1_000, 2_000]);
    let context = letter.context.unwrap();
    assert_eq!((context.ready, context.dlq_breaker()), (2, pb::BreakerState::Closed));
    assert_eq!(letter.attempts.len(), 3);
}

async fn statistics_and_the_errors_behind_them() {
    let server = Server::configured(DETECTION).await;
    for (queue, id, error_type) in [
        ("detection_queue", "1", "ConnectionError"),
        ("detection_queue", "2", "ConnectionError"),
        ("detection_queue", "3", "Timeout"),
        ("analysis_queue", "4", "Timeout"),
    ] {
        server.dead_letter(queue, id, error(error_type)).await;
    }
    let (counts, total) = dead_counts(&server).await;
    assert_eq!(counts, [("analysis_queue".into(), 1), ("detection_queue".into(), 3)]);
    assert_eq!(total, 4);
    let queue = "dlq:detection_queue".into();
    let request = pb::GetDeadLetterStatsRequest { queue, ..Default::default() };
    let stats = inner(server.admin().get_dead_letter_stats(request).await).unwrap();
    let types = stats.queues[0].by_error_type.iter();
    let types: Vec<_> = types.map(|of| (of.error_type.as_str(), of.count)).collect();
    assert_eq!(types, [("ConnectionError", 2), ("Timeout", 1)]);
}

async fn a_list_in_pages() {
    let server = Server::configured("").await;
    for id in ["a", "b", "c", "d", "e"] {
        server.dead_letter("detection_queue", id, error("E")).await;
    }
    let mut request = pb::ListDeadLettersRequest { page_size: 2, ..dead_of("dlq:detection_queue") };
    let mut pages = Vec::new();
    loop {
        let page = server.list_dead(request.clone()).await.unwrap();
        assert_eq!(page.queue_total, 5);
        let ids = page.dead_letters.into_iter().map(|letter| letter.job.unwrap().job_id);
        pages.push(ids.collect::<String>());
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(pages, ["ab", "cd", "e"]);
}

async fn requeue_one_requeue_all_and_clear() {
    let server = Server::configured("").await;
    for id in ["a", "b", "c", "d"] {
        server.dead_letter("detection_queue", id, error("E")).await;
    }
    let one = pb::RequeueRequest { selector: by_oldest(1), ..requeue("dlq:detection_queue") };
    assert_eq!(server.requeue(one).await.unwrap().job_ids, ["a"]);
    let limited = pb::RequeueRequest { selector: by_all(), limit: 2, ..requeue("dlq:detection_queue") };
    let reply = server.requeue(limited).await.unwrap();
    assert_eq!((reply.requeued, reply.has_more), (2, true));
    let queue = "dlq:detection_queue".into();
    let clear = pb::PurgeDeadLettersRequest { queue, selector: by_all(), ..Default::default() };
    let dry = pb::PurgeDeadLettersRequest { dry_run: true, ..clear.clone() };
    assert_eq!(server.purge(dry).await.unwrap().purged, 1, "first review, then clear");
    assert_eq!(server.purge(clear).await.unwrap().purged, 1);
    assert_eq!(dead_counts(&server).await.1, 0);
    for id in ["a", "b", "c"] {
        assert_eq!(server.take("detection_queue").await.job_id, id);
    }
}

/// Pattern 1: those whose error was temporary go back, the others stay.
async fn selective_requeue_by_error() {
    let server = Server::configured("").await;
    for (id, message) in [("a", "Temporary failure in name resolution"), ("b", "bad image"), ("c", "temporary")] {
        let failure = pb::Failure { message: message.into(), ..error("E") };
        server.dead_letter("detection_queue", id, failure).await;
    }
    let filter = pb::DeadLetterFilter { message_contains: "temporary".into(), ..Default::default() };
    let selected = pb::RequeueRequest { selector: by_filter(filter), ..requeue("dlq:detection_queue") };
    assert_eq!(server.requeue(selected).await.unwrap().job_ids, ["a", "c"]);
    assert_eq!(dead(&server, "dlq:detection_queue").await, ["b"]);
}

/// Pattern 2: all of them, once what they need is there again; and this time they succeed.
async fn batch_requeue_after_a_fix() {
    let server = Server::configured("").await;
    for id in ["a", "b", "c"] {
        server.dead_letter("detection_queue", id, error("ConnectionRefusedError")).await;
    }
    let all = pb::RequeueRequest { selector: by_all(), ..requeue("dlq:detection_queue") };
    assert_eq!(server.requeue(all).await.unwrap().requeued, 3);
    for _ in 0..3 {
        let job = server.take("detection_queue").await;
        assert_eq!(job.attempt, 1, "they start again");
        server.ack(&job.lease).await.unwrap();
    }
    let stats = server.stats("detection_queue").await.unwrap();
    assert_eq!((stats.completed, stats.requeued, stats.held), (3, 3, 0));
}

/// `dlq:overflow:`: where the seed loses jobs.
async fn a_full_queue_loses_nothing() {
    let full = "[queues.detection_queue]\ndead_letters = { max_entries = 1 }";
    let server = Server::configured(full).await;
    for id in ["a", "b", "c"] {
        server.dead_letter("detection_queue", id, error("E")).await;
    }
    assert_eq!(dead(&server, "dlq:overflow:detection_queue").await, ["b", "c"]);
    assert_eq!(dead(&server, "dlq:detection_queue").await, ["a", "b", "c"]);
    let queue = server.list_queues().await.remove(0);
    assert_eq!((queue.dead, queue.overflow), (3, 2));
}

/// Its state and failures, whether it is open, and its reset; room that is made closes it as well.
async fn dead_letter_breaker() {
    use pb::BreakerState::{Closed, Open};
    let full = "[queues.detection_queue]\ndead_letters = { max_entries = 1 }";
    let server = Server::configured(full).await;
    let name = "dlq:detection_queue";
    for number in 0..=5 {
        let status = server.breaker(name).await.unwrap();
        assert_eq!((status.state(), status.failure_count), (Closed, number.max(1) - 1));
        server.dead_letter("detection_queue", &number.to_string(), error("E")).await;
    }
    let open = server.breaker(name).await.unwrap();
    assert_eq!((open.state(), open.trips), (Open, 1), "new letters are overflow without asking");
    assert_eq!(server.reset_breaker(name).await.unwrap().state(), Closed);
    for number in 6..=10 {
        server.dead_letter("detection_queue", &number.to_string(), error("E")).await;
    }
    assert_eq!(server.breaker(name).await.unwrap().state(), Open);
    let all: Vec<_> = (0..=10).map(|number| number.to_string()).collect();
    assert_eq!(dead(&server, name).await, all, "open or not, none was lost");
    let one = pb::RequeueRequest { selector: by_oldest(1), ..requeue(name) };
    assert_eq!(server.requeue(one).await.unwrap().job_ids, ["0"]);
    assert_eq!(server.breaker(name).await.unwrap().state(), Closed, "there is room again");
}
