//! PauseQueue and ResumeQueue.

use crate::scene::Scene;
use crate::server::{Server, Setup, at, claim, claim_of, inner, job, job_of, long, steady, time};
use redrive::grpc::pb;
use std::time::Duration;
use tonic::{Code, Status};

fn pause_for(queue: &str, seconds: i64) -> pb::PauseQueueRequest {
    let (queue, reason) = (queue.into(), "deploy of mailer".into());
    pb::PauseQueueRequest { queue, duration: time(seconds, 0), reason }
}

async fn pause(server: &Server, request: pb::PauseQueueRequest) -> Result<(), Status> {
    inner(server.admin().pause_queue(request).await).map(|_| ())
}

async fn resume(server: &Server, queue: &str) -> Result<(), Status> {
    let request = pb::ResumeQueueRequest { queue: queue.into() };
    inner(server.admin().resume_queue(request).await).map(|_| ())
}

#[tokio::test]
async fn a_paused_queue_says_so_wherever_one_looks() {
    let server = Server::start().await;
    server.enqueue(job_of("q", "x")).await.unwrap();
    server.enqueue(job_of("q", "y")).await.unwrap();
    pause(&server, pause_for("q", 90)).await.unwrap();
    let reply = server.claim(claim("q")).await.unwrap();
    assert!(reply.jobs.is_empty());
    assert_eq!(reply.idle[0].reason(), pb::IdleReason::Paused);
    assert_eq!(long(reply.idle[0].retry_after), 90_000);
    let queue = server.list_queues().await.remove(0);
    assert!(queue.paused && queue.ready == 2);
    assert_eq!((queue.paused_reason.as_str(), queue.paused_by.as_str()), ("deploy of mailer", ""));
    assert_eq!(at(queue.paused_until), 1_800_000_090_000);
    let why = server.get_job("y").await.unwrap().waiting_because;
    assert_eq!(why, "the queue is paused until 2027-01-15T08:01:30Z: deploy of mailer");

    let for_good = pb::PauseQueueRequest { queue: "q".into(), ..Default::default() };
    pause(&server, for_good).await.unwrap();
    let idle = server.claim(claim("q")).await.unwrap().idle.remove(0);
    assert_eq!((idle.reason(), idle.retry_after), (pb::IdleReason::Paused, None));
    let why = server.get_job("x").await.unwrap().waiting_because;
    assert_eq!(why, "the queue is paused until it is resumed");

    resume(&server, "q").await.unwrap();
    resume(&server, "q").await.unwrap();
    let queue = server.list_queues().await.remove(0);
    assert!(!queue.paused && queue.paused_until.is_none() && queue.paused_reason.is_empty());
    assert_eq!(server.take("q").await.job_id, "x");
}

#[tokio::test]
async fn a_pause_that_is_over_is_shown_nowhere() {
    let server = Server::start().await;
    server.enqueue(job_of("q", "x")).await.unwrap();
    pause(&server, pause_for("q", 10)).await.unwrap();
    server.pass(Duration::from_secs(10)).await;
    assert!(!server.list_queues().await[0].paused);
    assert!(server.get_job("x").await.unwrap().waiting_because.starts_with("it is next"));
    server.take("q").await;
}

#[tokio::test]
async fn other_queues_go_on() {
    let server = Server::start().await;
    server.enqueue(job_of("paused", "x")).await.unwrap();
    server.enqueue(job_of("open", "y")).await.unwrap();
    pause(&server, pause_for("paused", 60)).await.unwrap();
    let both = claim_of(&["paused", "open"]);
    assert_eq!(server.take_by(both.clone()).await.job_id, "y");
    let reply = server.claim(both).await.unwrap();
    let mut reasons: Vec<_> = reply.idle.iter().map(|idle| (idle.queue.as_str(), idle.reason())).collect();
    reasons.sort_by_key(|(queue, _)| *queue);
    assert_eq!(reasons, [("open", pb::IdleReason::Empty), ("paused", pb::IdleReason::Paused)]);
}

/// Deterministic: a waiter that was woken in vain would have looked once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_worker_sleeps_through_the_pause_and_is_woken_by_its_end() {
    let server = Server::with(Setup { real_time: true, ..Setup::default() }).await;
    server.enqueue(job_of("q", "first")).await.unwrap();
    let resumed_by_hand = pb::PauseQueueRequest { queue: "q".into(), ..Default::default() };
    let resumed_by_time = pb::PauseQueueRequest { duration: time(0, 300_000_000), ..resumed_by_hand.clone() };
    let store = server.service.queues().host();
    for request in [resumed_by_hand, resumed_by_time] {
        let by_hand = request.duration.is_none();
        pause(&server, request).await.unwrap();
        let looks = store.looks();
        let waiting = pb::ClaimRequest { wait: time(25, 0), ..claim("q") };
        let mut client = server.queue();
        let worker = tokio::spawn(async move { client.claim(waiting).await });
        store.looked(looks + 1).await;
        server.enqueue(job("q")).await.unwrap();
        if by_hand {
            resume(&server, "q").await.unwrap();
        }
        let reply = worker.await.unwrap().unwrap().into_inner();
        assert_eq!(reply.jobs.len(), 1);
        assert_eq!(store.looks(), looks + 2, "it looked once before and once after");
    }
}

#[tokio::test]
async fn a_queue_can_be_paused_before_its_first_job() {
    let queues = vec![("payments", steady(Duration::ZERO))];
    let server = Server::with(Setup { queues, ..Setup::default() }).await;
    resume(&server, "payments").await.unwrap();
    for queue in ["payments", "not-configured"] {
        pause(&server, pause_for(queue, 60)).await.unwrap();
        server.enqueue(job(queue)).await.unwrap();
        let idle = server.claim(claim(queue)).await.unwrap().idle;
        assert_eq!(idle[0].reason(), pb::IdleReason::Paused, "{queue}");
    }
    assert!(server.list_queues().await.iter().all(|queue| queue.paused));
}

#[tokio::test]
async fn bad_pauses_are_refused_and_leave_no_mark() {
    let scene = Scene::set().await;
    let server = &scene.server;
    let unknown = (Code::NotFound, "QUEUE_NOT_FOUND");
    scene.refuses(resume(server, "missing"), unknown.0, unknown.1, &[]).await;
    scene.refuses_fields(resume(server, ""), &["queue"]).await;
    let minus = pb::PauseQueueRequest { duration: time(-1, 0), ..pause_for("q", 0) };
    for (request, fields) in [
        (pause_for("", 60), &["queue"][..]),
        (pause_for("q", 0), &["duration"]),
        (minus, &["duration"]),
        (pause_for("q", 367 * 86_400), &["duration"]),
        (pb::PauseQueueRequest { reason: "x".repeat(1_025), ..pause_for("q", 1) }, &["reason"]),
        (pb::PauseQueueRequest { reason: "x".repeat(1_025), ..pause_for("a b", 0) }, &["queue", "duration", "reason"]),
    ] {
        scene.refuses_fields(pause(server, request), fields).await;
    }
    scene.still_works().await;
}
