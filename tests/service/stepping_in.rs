//! CancelJob and RunJobNow: an operator steps in for one job.

use crate::scene::Scene;
use crate::server::{Server, claim, extend, inner, job_of, nack, time};
use crate::shapes::after;
use crate::stats::assert_balanced;
use redrive::grpc::pb;
use std::time::Duration;
use tonic::{Code, Status};

async fn cancel(server: &Server, id: &str, queue: &str) -> Result<bool, Status> {
    let (job_id, queue) = (id.into(), queue.into());
    let request = pb::CancelJobRequest { job_id, queue, reason: "a mistake".into() };
    inner(server.admin().cancel_job(request).await).map(|reply| reply.outcome() == pb::CancelOutcome::Cancelled)
}

async fn run_now(server: &Server, id: &str, queue: &str) -> Result<(), Status> {
    let request = pb::RunJobNowRequest { job_id: id.into(), queue: queue.into(), ..Default::default() };
    inner(server.admin().run_job_now(request).await).map(|_| ())
}

#[tokio::test]
async fn a_waiting_job_is_cancelled_and_counted() {
    let scene = Scene::set().await;
    let server = &scene.server;
    assert!(cancel(server, "waiting", "").await.unwrap());
    assert!(cancel(server, "later", "q").await.unwrap());
    // The queue keeps completed jobs, and so cancelled ones.
    assert_eq!(server.get_job("waiting").await.unwrap().state(), pb::JobState::Cancelled);
    let stats = server.stats("q").await.unwrap();
    assert_balanced(&stats);
    // Beside those that were cancelled before, and are dead, retrying and running.
    assert_eq!((stats.cancelled, stats.held), (1 + 2, 3));
    scene.still_works().await;
}

#[tokio::test]
async fn the_worker_of_a_running_job_learns_of_it_by_extend() {
    let scene = Scene::set().await;
    let server = &scene.server;
    assert!(!cancel(server, "running", "").await.unwrap(), "it is with its worker");
    assert!(server.get_job("running").await.unwrap().cancel_requested);
    assert!(server.extend(extend(&scene.lease)).await.unwrap().cancel_requested);
    let nacked = server.nack(nack(&scene.lease, "Stopped")).await.unwrap();
    assert_eq!(nacked.outcome(), pb::NackOutcome::Cancelled);
    let info = server.get_job("running").await.unwrap();
    assert_eq!((info.state(), info.attempts[0].status()), (pb::JobState::Cancelled, pb::AttemptStatus::Cancelled));
    assert_eq!(server.stats("q").await.unwrap().dead_lettered, 1, "the one that was dead before");
}

#[tokio::test]
async fn a_running_job_that_was_cancelled_may_still_be_done() {
    let scene = Scene::set().await;
    assert!(!cancel(&scene.server, "running", "q").await.unwrap());
    assert!(!scene.server.ack(&scene.lease).await.unwrap().already_gone);
    let stats = scene.server.stats("q").await.unwrap();
    assert_balanced(&stats);
    assert_eq!((stats.completed, stats.cancelled), (2, 1), "the one that was cancelled before");
    let info = scene.server.get_job("running").await.unwrap();
    assert_eq!((info.state(), info.cancel_requested), (pb::JobState::Completed, true));
}

#[tokio::test]
async fn a_job_runs_before_its_time() {
    let scene = Scene::set().await;
    let server = &scene.server;
    server.ack(&server.take("q").await.lease).await.unwrap();
    run_now(server, "later", "").await.unwrap();
    run_now(server, "later", "q").await.unwrap();
    let info = server.get_job("later").await.unwrap();
    assert_eq!((info.state(), info.run_at), (pb::JobState::Ready, None));
    let job = server.take("q").await;
    assert_eq!((job.job_id.as_str(), job.attempt), ("later", 1));
    server.nack(nack(&job.lease, "Timeout")).await.unwrap();
    run_now(server, "later", "").await.unwrap();
    assert_eq!(server.take("q").await.attempt, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_worker_gets_the_job_that_is_run_now() {
    let server = Server::start().await;
    let later = pb::EnqueueRequest { start: after(time(3_600, 0)), ..job_of("q", "x") };
    server.enqueue(later).await.unwrap();
    let waiting = pb::ClaimRequest { wait: time(25, 0), ..claim("q") };
    let mut client = server.queue();
    let worker = tokio::spawn(async move { client.claim(waiting).await });
    server.service.queues().host().looked(1).await;
    run_now(&server, "x", "").await.unwrap();
    assert_eq!(worker.await.unwrap().unwrap().into_inner().jobs[0].job_id, "x");
}

#[tokio::test]
async fn what_cannot_be_done_to_a_job_is_refused_and_leaves_no_mark() {
    let scene = Scene::set().await;
    let server = &scene.server;
    let precondition = Code::FailedPrecondition;
    let dead = scene.refuses(cancel(server, "dead", ""), precondition, "WRONG_STATE", &[]).await;
    assert_eq!(dead.message(), "the job \"dead\" is DEAD: requeue it to run it again, or purge it to be rid of it");
    scene.refuses(run_now(server, "dead", ""), precondition, "WRONG_STATE", &[]).await;
    let done = scene.refuses(cancel(server, "done", ""), precondition, "WRONG_STATE", &[]).await;
    assert_eq!(done.message(), "the job \"done\" is COMPLETED: it is done");
    scene.refuses(run_now(server, "done", "q"), precondition, "WRONG_STATE", &[]).await;
    scene.refuses(run_now(server, "running", "q"), precondition, "WRONG_STATE", &[]).await;
    for (id, queue, reason) in
        [("missing", "", "JOB_NOT_FOUND"), ("missing", "q", "JOB_NOT_FOUND"), ("waiting", "nowhere", "QUEUE_NOT_FOUND")]
    {
        scene.refuses(cancel(server, id, queue), Code::NotFound, reason, &[]).await;
        scene.refuses(run_now(server, id, queue), Code::NotFound, reason, &[]).await;
    }
    server.enqueue(job_of("q2", "waiting")).await.unwrap();
    let ambiguous = "AMBIGUOUS_JOB_ID";
    scene.refuses(cancel(server, "waiting", ""), precondition, ambiguous, &[]).await;
    scene.refuses(run_now(server, "waiting", ""), precondition, ambiguous, &[]).await;
    let long = "x".repeat(257);
    scene.refuses_fields(cancel(server, "", "a b"), &["job_id", "queue"]).await;
    scene.refuses_fields(run_now(server, &long, "a b"), &["job_id", "queue"]).await;
    let wordy = pb::CancelJobRequest { job_id: "waiting".into(), reason: "x".repeat(1_025), ..Default::default() };
    let call = async { inner(server.admin().cancel_job(wordy).await) };
    scene.refuses_fields(call, &["reason"]).await;
    scene.still_works().await;
}

#[tokio::test]
async fn a_cancelled_job_whose_worker_died_is_no_dead_letter() {
    let scene = Scene::set().await;
    assert!(!cancel(&scene.server, "running", "").await.unwrap());
    scene.server.pass(Duration::from_secs(30)).await;
    assert_eq!(scene.server.get_job("running").await.unwrap().state(), pb::JobState::Cancelled);
    assert_eq!(scene.server.stats("q").await.unwrap().dead_lettered, 1, "the one that was dead before");
}
