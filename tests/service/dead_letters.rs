//! What a dead letter keeps, and how the dead are listed.

use crate::server::{Server, Setup, at, claim, error, job_of, long, millis, nack, steady};
use crate::shapes::{after, by_ids, expires_in};
use prost_types::{Struct, Value, value::Kind};
use redrive::domain::{DeadLetterSettings, Limits, QueueSettings};
use redrive::grpc::pb;
use std::time::Duration;

fn list(queue: &str) -> pb::ListDeadLettersRequest {
    pb::ListDeadLettersRequest { queue: queue.into(), ..Default::default() }
}

fn full(queue: &str) -> pb::ListDeadLettersRequest {
    pb::ListDeadLettersRequest { view: pb::JobView::Full.into(), ..list(queue) }
}

/// A failure with everything in it, told apart by its number.
fn whole_failure(number: u32) -> pb::Failure {
    let kind = Some(Kind::NumberValue(number.into()));
    let fields = [("attempt".to_owned(), Value { kind })].into();
    pb::Failure {
        r#type: format!("E{number}"),
        message: format!("{number}: {}", "m".repeat(1_000)),
        stack_trace: format!("at line {number}"),
        http_status: 500 + number,
        response_body: format!("body {number}"),
        details: Some(Struct { fields }),
        truncated: false,
        category: pb::FailureCategory::Internal.into(),
        code: format!("C{number}"),
        category_derived: false,
        details_dropped: false,
        breaker_key: format!("K{number}"),
    }
}

/// A job that failed four times, each time differently.
async fn failed_four_times(server: &Server) {
    let request = pb::EnqueueRequest {
        body: crate::server::text("payload"),
        headers: [("tenant".to_owned(), "7".to_owned())].into(),
        ..job_of("q", "poison")
    };
    server.enqueue(request).await.unwrap();
    for attempt in 1..=4 {
        let request = pb::ClaimRequest { worker_id: format!("w{attempt}"), ..claim("q") };
        let job = server.take_by(request).await;
        let brief = |failure| pb::Failure { stack_trace: String::new(), response_body: String::new(), ..failure };
        assert_eq!(job.last_failure, (attempt > 1).then(|| brief(whole_failure(attempt - 1))));
        server.pass(Duration::from_millis(100)).await;
        let request = pb::NackRequest {
            error: Some(whole_failure(attempt)),
            checkpoint: format!("c{attempt}"),
            ..nack(&job.lease, "")
        };
        server.nack(request).await.unwrap();
        server.pass(Duration::from_secs(10)).await;
    }
}

#[tokio::test]
async fn a_dead_letter_says_what_stood_around_it() {
    let dead_letters = DeadLetterSettings { max_entries: 2, ..DeadLetterSettings::default() };
    let defaults = QueueSettings { dead_letters, ..steady(Duration::from_secs(10)) };
    let server = Server::with(Setup { defaults, ..Setup::default() }).await;
    // As many as tell one number from another; the last of the three dead letters before it is in the overflow.
    for id in ["dead-1", "dead-2", "dead-3"] {
        server.dead_letter("q", id, error("E")).await;
    }
    for n in 0..4 {
        server.enqueue(job_of("q", &format!("retrying-{n}"))).await.unwrap();
        let lease = server.take("q").await.lease;
        server.nack(nack(&lease, "E")).await.unwrap();
    }
    for n in 0..5 {
        let later = pb::EnqueueRequest { start: after(millis(60_000)), ..job_of("q", &format!("later-{n}")) };
        server.enqueue(later).await.unwrap();
    }
    for n in 0..6 {
        server.enqueue(job_of("q", &format!("running-{n}"))).await.unwrap();
        server.take("q").await;
    }
    for n in 0..7 {
        server.enqueue(job_of("q", &format!("ready-{n}"))).await.unwrap();
    }
    server.dead_letter("q", "last", error("E")).await;
    let last = server.list_dead(list("q")).await.unwrap().dead_letters.pop().unwrap();
    assert_eq!((last.job.unwrap().job_id.as_str(), last.overflow), ("last", true));
    let expected = pb::DeathContext {
        ready: 7,
        scheduled: 5,
        retrying: 4,
        leased: 6,
        dead: 3,
        overflow: 1,
        queue_breaker: pb::BreakerState::Closed.into(),
        dlq_breaker: pb::BreakerState::Closed.into(),
    };
    assert_eq!(last.context, Some(expected));
}

#[tokio::test]
async fn a_dead_letter_tells_the_whole_story() {
    let server = Server::start().await;
    failed_four_times(&server).await;
    let mut page = server.list_dead(full("q")).await.unwrap();
    assert_eq!((page.queue_total, page.dead_letters.len()), (1, 1));
    let letter = page.dead_letters.remove(0);
    assert_eq!(letter.reason(), pb::DeadReason::Exhausted);
    assert_eq!((letter.attempt_count, letter.redrives, letter.overflow), (4, 0, false));
    assert_eq!(letter.failure, Some(whole_failure(4)));
    let delays: Vec<_> = letter.retry_delays.iter().map(|delay| long(Some(*delay))).collect();
    assert_eq!(delays, [10_000; 3]);
    assert_eq!(at(letter.last_failed_at) - at(letter.first_failed_at), 30_300);
    assert_eq!(letter.died_at, letter.last_failed_at);
    assert!(letter.context.is_some() && !letter.fingerprint.is_empty());

    let job = letter.job.unwrap();
    assert_eq!(job.body, Some(pb::job::Body::Text("payload".into())));
    assert_eq!((job.headers["tenant"].as_str(), job.checkpoint.as_str()), ("7", "c4"));
    assert_eq!((job.lease.as_str(), job.attempt, job.deliveries), ("", 4, 4));

    assert_eq!(letter.attempts.len(), 4);
    for (attempt, number) in letter.attempts.iter().zip(1..) {
        assert_eq!((attempt.number, attempt.delivery, attempt.counted), (number, number, true));
        assert_eq!(attempt.status(), pb::AttemptStatus::Failed);
        assert_eq!(attempt.worker_id, format!("w{number}"));
        assert_eq!(at(attempt.ended_at) - at(attempt.started_at), 100);
        assert_eq!(attempt.delay.is_some(), number < 4);
        assert!(!attempt.explanation.is_empty());
        let failure = attempt.failure.clone().unwrap();
        if number == 1 || number == 4 {
            assert_eq!(failure, whole_failure(number));
        } else {
            let whole = whole_failure(number);
            assert_eq!((&failure.r#type, failure.http_status), (&whole.r#type, whole.http_status));
            assert_eq!(failure.message, whole.message[..512]);
            assert!(failure.truncated && failure.stack_trace.is_empty());
        }
    }
}

#[tokio::test]
async fn a_basic_view_leaves_out_what_is_large() {
    let server = Server::start().await;
    failed_four_times(&server).await;
    let everything = server.list_dead(full("q")).await.unwrap().dead_letters.remove(0);
    for view in [pb::JobView::Unspecified, pb::JobView::Basic] {
        let request = pb::ListDeadLettersRequest { view: view.into(), ..list("q") };
        let basic = server.list_dead(request).await.unwrap().dead_letters.remove(0);
        let mut expected = everything.clone();
        expected.attempts.clear();
        let job = expected.job.as_mut().unwrap();
        job.body = None;
        job.headers.clear();
        job.checkpoint.clear();
        assert_eq!(basic, expected);
    }
}

#[tokio::test]
async fn a_fingerprint_is_the_same_for_the_same_way_to_die() {
    let server = Server::start().await;
    let timeout = |message: &str| pb::Failure { message: message.into(), ..error("Timeout") };
    for (id, failure) in [
        ("a", timeout("order 17 took 30s")),
        ("b", timeout("order 4711 took 31s")),
        ("c", timeout("disk full")),
        ("d", pb::Failure { r#type: "Other".into(), ..timeout("order 17 took 30s") }),
    ] {
        server.dead_letter("q", id, failure).await;
    }
    let letters = server.list_dead(list("q")).await.unwrap().dead_letters;
    let prints: Vec<_> = letters.iter().map(|letter| letter.fingerprint.as_str()).collect();
    assert_eq!(prints[0], prints[1]);
    assert!(prints[0] != prints[2] && prints[0] != prints[3] && prints[2] != prints[3]);
}

/// Walks all pages; the ids of each.
async fn pages(server: &Server, request: pb::ListDeadLettersRequest) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut request = request;
    loop {
        let page = server.list_dead(request.clone()).await.unwrap();
        let ids = page.dead_letters.into_iter().map(|letter| letter.job.unwrap().job_id);
        pages.push(ids.collect());
        if page.next_page_token.is_empty() {
            return pages;
        }
        request.page_token = page.next_page_token;
    }
}

#[tokio::test]
async fn pages_are_stable_while_more_die_and_some_leave() {
    let server = Server::start().await;
    for id in ["a", "b", "c", "d", "e"] {
        server.dead_letter("q", id, error("E")).await;
    }
    let by_two = pb::ListDeadLettersRequest { page_size: 2, ..list("q") };
    let walked = pages(&server, by_two.clone()).await;
    assert_eq!(walked.concat(), ["a", "b", "c", "d", "e"]);
    assert!(walked.iter().all(|page| page.len() <= 2));

    let first = server.list_dead(by_two.clone()).await.unwrap();
    assert_eq!((first.dead_letters.len(), first.queue_total), (2, 5));
    server.dead_letter("q", "f", error("E")).await;
    let requeue =
        pb::RequeueRequest { queue: "q".into(), selector: by_ids(vec!["a".into(), "c".into()]), ..Default::default() };
    server.requeue(requeue).await.unwrap();
    let rest = pb::ListDeadLettersRequest { page_token: first.next_page_token, ..by_two };
    assert_eq!(pages(&server, rest).await.concat(), ["d", "e", "f"]);
}

#[tokio::test]
async fn listing_by_any_name_removes_nothing() {
    let server = Server::start().await;
    server.dead_letter("q", "a", error("E")).await;
    for _ in 0..2 {
        assert_eq!(server.list_dead(list("q")).await.unwrap().dead_letters.len(), 1);
        assert_eq!(server.list_dead(list("dlq:q")).await.unwrap().dead_letters.len(), 1);
        let overflow = server.list_dead(list("dlq:overflow:q")).await.unwrap();
        assert_eq!((overflow.dead_letters.len(), overflow.queue_total), (0, 0));
    }
}

#[tokio::test]
async fn pages_have_a_hundred_by_default_and_at_most_a_thousand() {
    let server = Server::start().await;
    for count in [1_000, 1] {
        let jobs = vec![crate::server::job("q"); count];
        server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
        let request = pb::ClaimRequest { max_jobs: 5_000, ..claim("q") };
        let nacks = server
            .claim(request)
            .await
            .unwrap()
            .jobs
            .into_iter()
            .map(|job| pb::NackRequest { kind: pb::NackKind::Permanent.into(), ..nack(&job.lease, "E") });
        let settle = pb::SettleRequest { nacks: nacks.collect(), ..Default::default() };
        assert_eq!(settle.nacks.len(), count);
        server.settle(settle).await.unwrap();
    }
    let page = server.list_dead(list("q")).await.unwrap();
    assert_eq!((page.dead_letters.len(), page.queue_total), (100, 1_001));
    let greedy = pb::ListDeadLettersRequest { page_size: u32::MAX, ..list("q") };
    let page = server.list_dead(greedy).await.unwrap();
    assert_eq!(page.dead_letters.len(), 1_000);
    assert!(!page.next_page_token.is_empty());
}

/// A page ends where the reply would get too long, and goes on there.
#[tokio::test]
async fn a_page_of_large_dead_letters_is_short() {
    use prost::Message;
    let limits = Limits { reply_bytes: 100_000, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    for id in ["a", "b", "c", "d"] {
        let body = crate::server::text(&"x".repeat(40_000));
        let request = pb::EnqueueRequest { body, ..job_of("q", id) };
        server.enqueue(request).await.unwrap();
        let request =
            pb::NackRequest { kind: pb::NackKind::Permanent.into(), ..nack(&server.take("q").await.lease, "E") };
        server.nack(request).await.unwrap();
    }
    let page = server.list_dead(full("q")).await.unwrap();
    assert!(page.encoded_len() <= 100_000 && page.dead_letters.len() == 2);
    assert_eq!(pages(&server, full("q")).await.concat(), ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn what_finds_the_dead_letters_full_is_marked_and_kept() {
    let dead_letters = DeadLetterSettings { max_entries: 2, ..DeadLetterSettings::default() };
    let defaults = QueueSettings { dead_letters, ..steady(Duration::from_secs(1)) };
    let server = Server::with(Setup { defaults, ..Setup::default() }).await;
    for id in ["a", "b", "c"] {
        server.dead_letter("q", id, error("E")).await;
    }
    let queue = server.list_queues().await.remove(0);
    assert_eq!((queue.dead, queue.overflow), (3, 1));
    assert_eq!(pages(&server, list("q")).await.concat(), ["a", "b", "c"]);
    assert_eq!(pages(&server, list("dlq:overflow:q")).await.concat(), ["c"]);
    let letters = server.list_dead(list("q")).await.unwrap().dead_letters;
    let marks: Vec<_> = letters.iter().map(|letter| letter.overflow).collect();
    assert_eq!(marks, [false, false, true]);
}

#[tokio::test]
async fn a_job_that_expired_unseen_has_no_failure() {
    let server = Server::start().await;
    let request = pb::EnqueueRequest { deadline: expires_in(millis(500)), ..job_of("q", "late") };
    server.enqueue(request).await.unwrap();
    server.pass(Duration::from_secs(1)).await;
    let letter = server.list_dead(full("q")).await.unwrap().dead_letters.remove(0);
    assert_eq!(letter.reason(), pb::DeadReason::Expired);
    assert_eq!((letter.attempt_count, letter.failure), (0, None));
    assert_eq!((letter.first_failed_at, letter.last_failed_at), (None, None));
}
