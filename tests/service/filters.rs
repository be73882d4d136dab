//! Dead letters found by what they died of, over the wire.

use crate::server::{Server, Setup, error, job_of, nack, steady};
use crate::shapes::{self, by_filter};
use prost_types::Timestamp;
use redrive::{domain::Limits, grpc::pb};
use std::time::Duration;

fn list(filter: pb::DeadLetterFilter) -> pb::ListDeadLettersRequest {
    let filter = Some(filter);
    pb::ListDeadLettersRequest { queue: "q".into(), filter, ..Default::default() }
}

fn of_type(error_type: &str) -> pb::DeadLetterFilter {
    pb::DeadLetterFilter { error_type: error_type.into(), ..Default::default() }
}

fn ids(page: &pb::ListDeadLettersResponse) -> String {
    let jobs = page.dead_letters.iter().filter_map(|letter| letter.job.as_ref());
    jobs.map(|job| job.job_id.as_str()).collect::<Vec<_>>().join(" ")
}

/// Jobs here die on the second.
fn nanos_from(time: Option<Timestamp>, nanos: i32) -> Option<Timestamp> {
    time.map(|Timestamp { seconds, .. }| match nanos {
        0.. => Timestamp { seconds, nanos },
        _ => Timestamp { seconds: seconds - 1, nanos: 1_000_000_000 + nanos },
    })
}

async fn find(server: &Server, filter: pb::DeadLetterFilter) -> String {
    ids(&server.list_dead(list(filter)).await.unwrap())
}

/// Two timeouts, then a refusal, a second after each other.
async fn three_deaths(limits: Limits) -> Server {
    let defaults = steady(Duration::from_secs(10));
    let server = Server::with(Setup { defaults, limits, ..Setup::default() }).await;
    let slow = |host: &str| pb::Failure {
        message: format!("No answer from {host}"),
        http_status: 504,
        ..error("TimeoutError")
    };
    server.dead_letter("q", "slow-1", slow("host-1")).await;
    server.pass(Duration::from_secs(1)).await;
    server.dead_letter("q", "slow-2", slow("host-2")).await;
    server.pass(Duration::from_secs(1)).await;
    server.dead_letter("q", "refused", error("Refused")).await;
    server
}

#[tokio::test]
async fn dead_letters_are_found_by_each_field() {
    let server = three_deaths(Limits::default()).await;
    let everything = server.list_dead(list(Default::default())).await.unwrap().dead_letters;
    assert_eq!(everything.len(), 3);
    let (died_at, fingerprint) = (everything[1].died_at, everything[0].fingerprint.clone());
    let any = pb::DeadLetterFilter::default;
    for (filter, expected) in [
        (of_type("Timeout*"), "slow-1 slow-2"),
        (of_type("timeout*"), ""),
        (pb::DeadLetterFilter { r#type: "?".into(), ..any() }, "slow-1 slow-2 refused"),
        (pb::DeadLetterFilter { r#type: "other".into(), ..any() }, ""),
        (pb::DeadLetterFilter { reason: pb::DeadReason::NonRetryable.into(), ..any() }, "slow-1 slow-2 refused"),
        (pb::DeadLetterFilter { reason: pb::DeadReason::Exhausted.into(), ..any() }, ""),
        (pb::DeadLetterFilter { message_contains: "NO answer FROM".into(), ..any() }, "slow-1 slow-2"),
        (pb::DeadLetterFilter { http_status: 504, ..any() }, "slow-1 slow-2"),
        (pb::DeadLetterFilter { died_after: died_at, ..any() }, "refused"),
        (pb::DeadLetterFilter { died_before: died_at, ..any() }, "slow-1"),
        // Between two milliseconds nothing is left out.
        (pb::DeadLetterFilter { died_after: nanos_from(everything[2].died_at, -1), ..any() }, "refused"),
        (pb::DeadLetterFilter { died_before: nanos_from(died_at, 1), ..any() }, "slow-1 slow-2"),
        (pb::DeadLetterFilter { fingerprint, ..any() }, "slow-1 slow-2"),
        (pb::DeadLetterFilter { died_before: died_at, ..of_type("Refused") }, ""),
    ] {
        assert_eq!(find(&server, filter.clone()).await, expected, "{filter:?}");
    }
}

#[tokio::test]
async fn a_page_may_be_empty_and_still_have_a_next() {
    let server = three_deaths(Limits { filtered: 2, ..Limits::default() }).await;
    let first = server.list_dead(list(of_type("Refused"))).await.unwrap();
    assert_eq!((ids(&first).as_str(), first.queue_total), ("", 3));
    let page_token = first.next_page_token;
    let go_on = pb::ListDeadLettersRequest { page_token: page_token.clone(), ..list(of_type("Refused")) };
    let second = server.list_dead(go_on).await.unwrap();
    assert_eq!((ids(&second).as_str(), second.next_page_token.as_str()), ("refused", ""));
    // The token is this filter's own.
    for filter in [of_type("Timeout*"), pb::DeadLetterFilter::default()] {
        let other = pb::ListDeadLettersRequest { page_token: page_token.clone(), ..list(filter) };
        let status = server.list_dead(other).await.unwrap_err();
        let code = tonic::Code::InvalidArgument;
        crate::scene::assert_refused(&status, code, "INVALID_FIELD", &["page_token"]);
    }
}

#[tokio::test]
async fn after_the_fix_only_what_it_mends_goes_back() {
    let server = three_deaths(Limits::default()).await;
    let one = pb::RequeueRequest {
        queue: "q".into(),
        selector: by_filter(of_type("Timeout*")),
        limit: 1,
        ..Default::default()
    };
    let dry = pb::RequeueRequest { dry_run: true, limit: 0, ..one.clone() };
    assert_eq!(server.requeue(dry).await.unwrap().job_ids, ["slow-1", "slow-2"]);
    let first = server.requeue(one.clone()).await.unwrap();
    assert_eq!((first.job_ids.join(""), first.has_more), ("slow-1".into(), true));
    // It was not mended after all, and dies of the same.
    let lease = server.take("q").await.lease;
    let permanent = pb::NackKind::Permanent.into();
    let again = pb::NackRequest { kind: permanent, ..nack(&lease, "TimeoutError") };
    server.nack(again).await.unwrap();
    let go_on = pb::RequeueRequest { cutoff: first.cutoff, limit: 10, ..one };
    let second = server.requeue(go_on).await.unwrap();
    assert_eq!((second.job_ids.join(""), second.has_more), ("slow-2".into(), false));
    let queue = server.list_queues().await.remove(0);
    assert_eq!((queue.ready, queue.dead), (1, 2));
}

#[tokio::test]
async fn a_job_that_never_ran_is_found_by_its_death() {
    let server = Server::start().await;
    let expires_in = crate::server::time(1, 0);
    server
        .enqueue(pb::EnqueueRequest { deadline: shapes::expires_in(expires_in), ..job_of("q", "late") })
        .await
        .unwrap();
    server.pass(Duration::from_secs(1)).await;
    let reason = pb::DeadReason::Expired.into();
    assert_eq!(find(&server, pb::DeadLetterFilter { reason, ..Default::default() }).await, "late");
    assert_eq!(find(&server, of_type("*")).await, "");
}
