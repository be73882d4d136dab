//! The same job twice is one job; two jobs under one name are a conflict.

use crate::scene::assert_refused;
use crate::server::{Server, Setup, error, job, job_of, nack, steady, text, time};
use redrive::{domain::QueueSettings, grpc::pb};
use std::time::Duration;
use tonic::Code;
use tonic_types::StatusExt;

fn keyed(key: &str, body: &str) -> pb::EnqueueRequest {
    pb::EnqueueRequest { idempotency_key: key.into(), body: text(body), ..job("q") }
}

#[tokio::test]
async fn the_same_key_or_id_adds_the_job_once() {
    let server = Server::start().await;
    let by_key = keyed("k", "a");
    let by_id = pb::EnqueueRequest { body: text("a"), ..job_of("q", "own") };
    for request in [by_key, by_id] {
        let first = server.enqueue(request.clone()).await.unwrap();
        let again = server.enqueue(request).await.unwrap();
        assert_eq!((first.outcome(), again.outcome()), (pb::EnqueueOutcome::Added, pb::EnqueueOutcome::Existing));
        assert_eq!((again.job_id, again.state), (first.job_id, first.state));
        assert_eq!(again.run_at, first.run_at);
    }
    assert_eq!(server.list_queues().await[0].ready, 2);
}

#[tokio::test]
async fn what_does_not_make_a_job_another_one_may_differ() {
    let server = Server::start().await;
    server.enqueue(keyed("k", "a")).await.unwrap();
    let differs =
        pb::EnqueueRequest { priority: 9, headers: [("tenant".to_owned(), "7".to_owned())].into(), ..keyed("k", "a") };
    assert_eq!(server.enqueue(differs).await.unwrap().outcome(), pb::EnqueueOutcome::Existing);
}

#[tokio::test]
async fn another_job_under_the_same_name_is_a_conflict() {
    let server = Server::start().await;
    let there = pb::EnqueueRequest { job_id: "own".into(), ..keyed("k", "a") };
    server.enqueue(there.clone()).await.unwrap();
    let other = pb::EnqueueRequest { job_id: "other".into(), ..keyed("k2", "a") };
    server.enqueue(other).await.unwrap();
    let with = |id: &str, key: &str, job_type: &str, body: &str| pb::EnqueueRequest {
        job_id: id.into(),
        r#type: job_type.into(),
        ..keyed(key, body)
    };
    for (request, field) in [
        (with("", "k", "t", "b"), "idempotency_key"),
        (with("", "k", "u", "a"), "idempotency_key"),
        (with("own", "", "t", "b"), "job_id"),
        (with("own", "", "u", "a"), "job_id"),
        // One job's id, another's key.
        (with("own", "k2", "t", "a"), "job_id"),
        // The same bytes as data are another body.
        (
            pb::EnqueueRequest { body: Some(pb::enqueue_request::Body::Data("a".into())), ..with("own", "", "t", "") },
            "job_id",
        ),
    ] {
        let refused = server.enqueue(request).await.unwrap_err();
        assert_refused(&refused, Code::AlreadyExists, "KEY_CONFLICT", &[field]);
    }
    assert_eq!(server.enqueue(there).await.unwrap().outcome(), pb::EnqueueOutcome::Existing);
    assert_eq!(server.list_queues().await[0].ready, 2);
}

#[tokio::test]
async fn another_queue_is_another_world() {
    let server = Server::start().await;
    server.enqueue(keyed("k", "a")).await.unwrap();
    let elsewhere = pb::EnqueueRequest { queue: "other".into(), ..keyed("k", "b") };
    assert_eq!(server.enqueue(elsewhere).await.unwrap().outcome(), pb::EnqueueOutcome::Added);
}

#[tokio::test]
async fn a_key_outlives_its_job_until_its_retention_is_over() {
    let server = Server::start().await;
    let first = server.enqueue(keyed("k", "a")).await.unwrap();
    let lease = server.take("q").await.lease;
    assert_eq!(server.enqueue(keyed("k", "a")).await.unwrap().state(), pb::JobState::Leased);
    server.ack(&lease).await.unwrap();
    let again = server.enqueue(keyed("k", "a")).await.unwrap();
    assert_eq!((again.outcome(), again.job_id), (pb::EnqueueOutcome::Existing, first.job_id));
    let refused = server.enqueue(keyed("k", "b")).await.unwrap_err();
    assert_refused(&refused, Code::AlreadyExists, "KEY_CONFLICT", &["idempotency_key"]);
    server.pass(Duration::from_secs(3_600)).await;
    assert_eq!(server.enqueue(keyed("k", "b")).await.unwrap().outcome(), pb::EnqueueOutcome::Added);
}

#[tokio::test]
async fn the_first_or_the_last_wins_where_the_caller_says_so() {
    let server = Server::start().await;
    let first = server.enqueue(keyed("k", "a")).await.unwrap();
    let other = |on_conflict: pb::OnConflict| pb::EnqueueRequest { on_conflict: on_conflict.into(), ..keyed("k", "b") };
    let refused = server.enqueue(other(pb::OnConflict::RejectDifferent)).await.unwrap_err();
    assert_refused(&refused, Code::AlreadyExists, "KEY_CONFLICT", &["idempotency_key"]);
    let there = server.enqueue(other(pb::OnConflict::ReturnExisting)).await.unwrap();
    assert_eq!((there.outcome(), &there.job_id), (pb::EnqueueOutcome::Existing, &first.job_id));
    let replaced = server.enqueue(other(pb::OnConflict::ReplaceWaiting)).await.unwrap();
    assert_eq!((replaced.outcome(), &replaced.job_id), (pb::EnqueueOutcome::Replaced, &first.job_id));
    let job = server.take("q").await;
    let body = Some(pb::job::Body::Text("b".into()));
    assert_eq!((job.job_id, job.body), (first.job_id, body));
    // It was delivered: the last comes too late.
    let late = server.enqueue(other(pb::OnConflict::ReplaceWaiting)).await.unwrap();
    assert_eq!((late.outcome(), late.state()), (pb::EnqueueOutcome::Existing, pb::JobState::Leased));
}

#[tokio::test]
async fn a_key_is_held_for_its_own_time_and_an_id_for_ten_minutes() {
    let server = Server::start().await;
    let short = pb::EnqueueRequest { key_ttl: time(60, 0), job_id: "own".into(), ..keyed("k", "a") };
    server.enqueue(short).await.unwrap();
    let lease = server.take("q").await.lease;
    server.ack(&lease).await.unwrap();
    server.pass(Duration::from_secs(59)).await;
    assert_eq!(server.enqueue(keyed("k", "a")).await.unwrap().outcome(), pb::EnqueueOutcome::Existing);
    server.pass(Duration::from_secs(1)).await;
    assert_eq!(server.enqueue(keyed("k", "b")).await.unwrap().outcome(), pb::EnqueueOutcome::Added);
    let by_id = pb::EnqueueRequest { body: text("a"), ..job_of("q", "own") };
    let there = server.enqueue(by_id.clone()).await.unwrap();
    assert_eq!((there.outcome(), there.state()), (pb::EnqueueOutcome::Existing, pb::JobState::Completed));
    assert_eq!(server.get_job("own").await.unwrap_err().code(), Code::NotFound);
    server.pass(Duration::from_secs(540)).await;
    assert_eq!(server.enqueue(by_id).await.unwrap().outcome(), pb::EnqueueOutcome::Added);
}

#[tokio::test]
async fn a_dead_job_gives_its_key_free_and_keeps_its_id() {
    let server = Server::start().await;
    let request = pb::EnqueueRequest { job_id: "own".into(), ..keyed("k", "a") };
    server.enqueue(request.clone()).await.unwrap();
    die(&server).await;
    let refused = server.enqueue(pb::EnqueueRequest { body: text("b"), ..request.clone() });
    assert_refused(&refused.await.unwrap_err(), Code::AlreadyExists, "KEY_CONFLICT", &["job_id"]);
    let there = pb::EnqueueRequest { idempotency_key: String::new(), ..request };
    let there = server.enqueue(there).await.unwrap();
    assert_eq!((there.outcome(), there.state()), (pb::EnqueueOutcome::Existing, pb::JobState::Dead));
    assert_eq!(server.enqueue(keyed("k", "b")).await.unwrap().outcome(), pb::EnqueueOutcome::Added);
}

#[tokio::test]
async fn a_dead_job_holds_its_key_where_the_queue_says_so() {
    let defaults = QueueSettings { dead_jobs_hold_keys: true, ..steady(Duration::ZERO) };
    let server = Server::with(Setup { defaults, ..Setup::default() }).await;
    server.enqueue(keyed("k", "a")).await.unwrap();
    die(&server).await;
    let there = server.enqueue(keyed("k", "a")).await.unwrap();
    assert_eq!((there.outcome(), there.state()), (pb::EnqueueOutcome::Existing, pb::JobState::Dead));
}

async fn die(server: &Server) {
    let request = pb::NackRequest {
        kind: pb::NackKind::Permanent.into(),
        error: Some(error("E")),
        ..nack(&server.take("q").await.lease, "")
    };
    server.nack(request).await.unwrap();
}

#[tokio::test]
async fn a_batch_deduplicates_within_itself() {
    let server = Server::start().await;
    let jobs = vec![keyed("k", "a"), keyed("k", "a"), keyed("k", "b")];
    let reply = server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    let outcomes: Vec<_> = reply
        .into_inner()
        .results
        .into_iter()
        .map(|result| match result.outcome {
            Some(pb::enqueue_result::Outcome::Ok(ok)) => ok.outcome().as_str_name().into(),
            Some(pb::enqueue_result::Outcome::Error(error)) => error.reason,
            None => "nothing".into(),
        })
        .collect();
    assert_eq!(outcomes, ["ENQUEUE_OUTCOME_ADDED", "ENQUEUE_OUTCOME_EXISTING", "KEY_CONFLICT"]);
}

#[tokio::test]
async fn a_job_is_found_by_its_key_in_its_queue() {
    let server = Server::start().await;
    let added = server.enqueue(keyed("k", "a")).await.unwrap();
    let of = |queue: &str, key: &str| pb::GetJobRequest {
        queue: queue.into(),
        idempotency_key: key.into(),
        ..Default::default()
    };
    let found = server.admin().get_job(of("q", "k")).await.unwrap().into_inner().info.unwrap();
    assert_eq!((found.job.unwrap().job_id, found.idempotency_key.as_str()), (added.job_id, "k"));
    let missing = server.admin().get_job(of("q", "other")).await.unwrap_err();
    assert_refused(&missing, Code::NotFound, "JOB_NOT_FOUND", &[]);
    let says = "there is no job with idempotency_key \"other\" in q: ";
    assert!(missing.message().starts_with(says), "{}", missing.message());
    assert!(missing.message().contains("this queue keeps no completed jobs"), "{}", missing.message());
    let details = missing.get_error_details();
    let facts = &details.error_info().unwrap().metadata;
    assert_eq!((facts.get("idempotency_key").map(String::as_str), facts.get("job_id")), (Some("other"), None));
    let nowhere = server.admin().get_job(of("", "k")).await.unwrap_err();
    assert_refused(&nowhere, Code::InvalidArgument, "INVALID_FIELD", &["queue"]);
    let both = pb::GetJobRequest { job_id: "x".into(), ..of("q", "k") };
    let both = server.admin().get_job(both).await.unwrap_err();
    assert_refused(&both, Code::InvalidArgument, "INVALID_FIELD", &["job_id"]);
}
