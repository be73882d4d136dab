//! Jobs that are done, where their queue keeps them: what can be seen of them, and for how long.

use crate::scene::{KEPT, Scene, assert_refused};
use crate::server::{Server, Setup, at, claim, extend, inner, job, job_of, nack, text};
use crate::stats::assert_balanced;
use redrive::{domain::QueueSettings, grpc::pb};
use std::time::Duration;
use tonic::Code;

/// Every queue keeps what is done.
async fn keeping() -> Server {
    let defaults = QueueSettings { completed_retention: Some(KEPT), ..QueueSettings::default() };
    Server::with(Setup { defaults, ..Setup::default() }).await
}

fn listed(queue: &str, view: pb::JobView) -> pb::ListJobsRequest {
    let state = pb::JobState::Completed.into();
    pb::ListJobsRequest { queue: queue.into(), state, view: view.into(), ..Default::default() }
}

#[tokio::test]
async fn a_job_that_is_done_shows_its_result_and_how_it_came_to_it() {
    let server = keeping().await;
    let request = pb::EnqueueRequest { body: text("payload"), ..job_of("q", "x") };
    server.enqueue(request).await.unwrap();
    let taken = server.take_by(pb::ClaimRequest { worker_id: "w1".into(), ..claim("q") }).await;
    server.pass(Duration::from_millis(250)).await;
    let result: bytes::Bytes = (0..=255).cycle().take(64 << 10).collect::<Vec<u8>>().into();
    let (lease, note) = (taken.lease, "sent".to_owned());
    let ack = pb::AckRequest { lease, note, result: result.clone(), ..pb::AckRequest::default() };
    assert!(!inner(server.queue().ack(ack.clone()).await).unwrap().already_gone);
    server.pass(Duration::from_secs(1)).await;

    let info = server.get_job("x").await.unwrap();
    assert_eq!((info.state(), info.waiting_because.as_str()), (pb::JobState::Completed, "it is done"));
    assert_eq!(info.result, result);
    assert_eq!(info.attempts.len(), 1);
    let attempt = &info.attempts[0];
    assert_eq!(attempt.status(), pb::AttemptStatus::Succeeded);
    assert_eq!((attempt.worker_id.as_str(), attempt.note.as_str()), ("w1", "sent"));
    assert_eq!((attempt.number, attempt.delivery, attempt.counted), (1, 1, true));
    assert_eq!((attempt.failure.as_ref(), attempt.delay), (None, None));
    assert_eq!(at(attempt.ended_at) - at(attempt.started_at), 250);
    assert_eq!(info.completed_at, attempt.ended_at);
    let shown = info.job.as_ref().unwrap();
    assert_eq!(shown.body, Some(pb::job::Body::Text("payload".into())));
    assert_eq!((shown.lease.as_str(), shown.attempt, shown.deliveries), ("", 1, 1));
    assert_eq!((info.run_at, info.dead_reason()), (None, pb::DeadReason::Unspecified));

    let full = inner(server.admin().list_jobs(listed("q", pb::JobView::Full)).await).unwrap();
    assert_eq!(full.jobs, std::slice::from_ref(&info));
    let basic = inner(server.admin().list_jobs(listed("q", pb::JobView::Basic)).await).unwrap();
    let mut expected = info;
    expected.attempts.clear();
    expected.result.clear();
    expected.job.as_mut().unwrap().body = None;
    assert_eq!(basic.jobs, [expected]);
}

#[tokio::test]
async fn settling_it_once_more_changes_nothing() {
    let scene = Scene::set().await;
    let server = &scene.server;
    let ack = pb::AckRequest {
        lease: scene.lease.clone(),
        note: "first".into(),
        result: "first".into(),
        ..pb::AckRequest::default()
    };
    server.queue().ack(ack.clone()).await.unwrap();
    let before = server.get_job("running").await.unwrap();
    let again = pb::AckRequest { note: "second".into(), result: "second".into(), ..ack };
    assert!(inner(server.queue().ack(again).await).unwrap().already_gone);
    let lost = Code::FailedPrecondition;
    scene.refuses(server.nack(nack(&scene.lease, "E")), lost, "LEASE_LOST", &[]).await;
    scene.refuses(server.extend(extend(&scene.lease)), lost, "LEASE_LOST", &[]).await;
    assert_eq!(server.get_job("running").await.unwrap(), before);
    assert_eq!(server.stats("q").await.unwrap().completed, 2);
}

#[tokio::test]
async fn enqueueing_it_again_finds_it_done_while_it_is_kept_and_its_id_is_held() {
    let scene = Scene::set().await;
    let server = &scene.server;
    let again = server.enqueue(job_of("q", "done")).await.unwrap();
    assert_eq!((again.outcome(), again.state()), (pb::EnqueueOutcome::Existing, pb::JobState::Completed));
    let other = pb::EnqueueRequest { body: text("other"), ..job_of("q", "done") };
    let call = server.enqueue(other.clone());
    scene.refuses(call, Code::AlreadyExists, "KEY_CONFLICT", &["job_id"]).await;
    server.pass(KEPT).await;
    assert_eq!(server.enqueue(job_of("q", "done")).await.unwrap().outcome(), pb::EnqueueOutcome::Existing);
    server.pass(Duration::from_secs(600)).await;
    assert_eq!(server.enqueue(other).await.unwrap().outcome(), pb::EnqueueOutcome::Added);
}

#[tokio::test]
async fn it_counts_as_completed_and_not_as_held_before_and_after_it_goes() {
    let server = keeping().await;
    for _ in 0..3 {
        server.enqueue(job("q")).await.unwrap();
    }
    for _ in 0..2 {
        server.ack(&server.take("q").await.lease).await.unwrap();
    }
    let before = server.stats("q").await.unwrap();
    assert_balanced(&before);
    assert_eq!((before.enqueued, before.completed, before.held), (3, 2, 1));
    server.pass(KEPT).await;
    let list = inner(server.admin().list_jobs(listed("q", pb::JobView::Basic)).await).unwrap();
    assert!(list.jobs.is_empty());
    assert_eq!(server.stats("q").await.unwrap(), before);
}

#[tokio::test]
async fn who_asks_too_late_hears_what_the_queue_keeps() {
    let scene = Scene::set().await;
    let server = &scene.server;
    server.pass(KEPT - Duration::from_secs(1)).await;
    assert_eq!(server.get_job("done").await.unwrap().state(), pb::JobState::Completed);
    server.pass(Duration::from_secs(1)).await;
    server.enqueue(job_of("forgets", "done")).await.unwrap();
    server.ack(&server.take("forgets").await.lease).await.unwrap();
    for (queue, says) in [
        ("q", "this queue keeps completed jobs for 1h"),
        ("forgets", "this queue keeps no completed jobs, since it sets no completed_retention"),
        ("", "kept only where their queue sets completed_retention"),
    ] {
        let gone = server.get_job_in("done", queue).await.unwrap_err();
        assert_refused(&gone, Code::NotFound, "JOB_NOT_FOUND", &[]);
        assert!(gone.message().ends_with(says), "{}", gone.message());
    }
}
