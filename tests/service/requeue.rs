//! Dead letters on their way back to work.

use crate::server::{Server, Setup, claim, error, job, job_of, nack, text, time};
use crate::shapes::{by_all, by_ids, by_oldest, expires_in};
use redrive::{domain::Limits, grpc::pb};
use std::time::Duration;

fn requeue(queue: &str) -> pb::RequeueRequest {
    pb::RequeueRequest { queue: queue.into(), ..Default::default() }
}

fn all(queue: &str) -> pb::RequeueRequest {
    pb::RequeueRequest { selector: by_all(), ..requeue(queue) }
}

/// A server on whose queue `q` these have died, in this order.
async fn dead(ids: &[&str]) -> Server {
    let server = Server::start().await;
    for id in ids {
        server.dead_letter("q", id, error("E")).await;
    }
    server
}

fn skipped(reply: &pb::RequeueResponse) -> Vec<(&str, &str)> {
    let skipped = reply.skipped.iter();
    skipped.map(|job| (job.job_id.as_str(), job.reason.as_str())).collect()
}

#[tokio::test]
async fn by_id_those_that_are_dead_go_back() {
    let server = dead(&["a", "b", "c"]).await;
    server.enqueue(job_of("q", "alive")).await.unwrap();
    let job_ids = ["c", "missing", "a", "alive"].map(str::to_owned).into();
    let reply = server.requeue(pb::RequeueRequest { selector: by_ids(job_ids), ..requeue("q") }).await.unwrap();
    assert_eq!((reply.requeued, reply.job_ids.clone()), (2, vec!["c".into(), "a".into()]));
    let expected = [("missing", "JOB_NOT_FOUND"), ("alive", "JOB_NOT_FOUND")];
    assert_eq!(skipped(&reply), expected);
    assert!(!reply.has_more && reply.cutoff.is_empty());
    let queue = server.list_queues().await.remove(0);
    assert_eq!((queue.ready, queue.dead), (3, 1));
}

#[tokio::test]
async fn the_oldest_go_first() {
    let server = dead(&["a", "b", "c"]).await;
    let oldest = pb::RequeueRequest { selector: by_oldest(2), ..requeue("dlq:q") };
    let reply = server.requeue(oldest).await.unwrap();
    assert_eq!(reply.job_ids, ["a", "b"]);
    assert!(reply.has_more);
}

#[tokio::test]
async fn going_on_with_the_cutoff_meets_nothing_twice() {
    let server = dead(&["a", "b", "c"]).await;
    let two = pb::RequeueRequest { limit: 2, ..all("q") };
    let first = server.requeue(two.clone()).await.unwrap();
    assert_eq!((first.job_ids.join(""), first.has_more), ("ab".into(), true));
    // Those that were sent round die again, and a new one dies.
    for _ in 0..2 {
        let lease = server.take("q").await.lease;
        let kind = pb::NackKind::Permanent.into();
        server.nack(pb::NackRequest { kind, ..nack(&lease, "E") }).await.unwrap();
    }
    server.dead_letter("q", "new", error("E")).await;
    let rest = pb::RequeueRequest { cutoff: first.cutoff, ..two };
    let second = server.requeue(rest).await.unwrap();
    assert_eq!((second.job_ids.join(""), second.has_more), ("c".into(), false));
    assert_eq!(server.list_queues().await[0].dead, 3);
}

#[tokio::test]
async fn a_limit_over_the_limit_is_cut() {
    let limits = Limits { bulk_max: 2, bulk_default: 1, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    for id in ["a", "b", "c", "d"] {
        server.dead_letter("q", id, error("E")).await;
    }
    assert_eq!(server.requeue(all("q")).await.unwrap().requeued, 1);
    let greedy = pb::RequeueRequest { limit: u32::MAX, ..all("q") };
    assert_eq!(server.requeue(greedy).await.unwrap().requeued, 2);
    let oldest = pb::RequeueRequest { selector: by_oldest(u32::MAX), ..requeue("q") };
    assert_eq!(server.requeue(oldest).await.unwrap().requeued, 1);
}

#[tokio::test]
async fn a_dry_run_tells_and_moves_nothing() {
    let server = dead(&["a", "b"]).await;
    let before = server.list_queues().await;
    let dry = pb::RequeueRequest { dry_run: true, target_queue: "not-made".into(), ..all("q") };
    let reply = server.requeue(dry).await.unwrap();
    assert_eq!((reply.requeued, reply.job_ids.join("")), (2, "ab".into()));
    assert_eq!(server.list_queues().await, before);
}

#[tokio::test]
async fn a_requeued_job_starts_again_and_keeps_its_history() {
    let server = Server::start().await;
    let body = text("payload");
    let request = pb::EnqueueRequest { deadline: expires_in(time(60, 0)), body, ..job_of("q", "x") };
    server.enqueue(request).await.unwrap();
    for _ in 0..4 {
        let lease = server.take("q").await.lease;
        let save = pb::NackRequest { checkpoint: "page 3".into(), ..nack(&lease, "E") };
        server.nack(save).await.unwrap();
        server.pass(Duration::from_secs(10)).await;
    }
    server.pass(Duration::from_secs(60)).await;
    assert_eq!(server.requeue(all("q")).await.unwrap().requeued, 1);
    let info = server.get_job("x").await.unwrap();
    assert_eq!((info.state(), info.attempts.len()), (pb::JobState::Ready, 4));
    let job = server.take("q").await;
    assert_eq!((job.attempt, job.deliveries, job.is_last_attempt), (1, 5, false));
    assert_eq!(job.checkpoint, "page 3");
    // Its deadline has passed and is cleared.
    assert_eq!(job.expires_at, None);
    assert_eq!(job.body, Some(pb::job::Body::Text("payload".into())));
    let permanent = pb::NackRequest { kind: pb::NackKind::Permanent.into(), ..nack(&job.lease, "E") };
    server.nack(permanent).await.unwrap();
    let list = pb::ListDeadLettersRequest { queue: "q".into(), ..Default::default() };
    assert_eq!(server.list_dead(list).await.unwrap().dead_letters[0].redrives, 1);
}

#[tokio::test]
async fn keeping_attempts_is_one_more_try() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    for _ in 0..4 {
        let lease = server.take("q").await.lease;
        server.nack(nack(&lease, "E")).await.unwrap();
        server.pass(Duration::from_secs(10)).await;
    }
    let keep = pb::RequeueRequest { keep_attempts: true, ..all("q") };
    server.requeue(keep).await.unwrap();
    let job = server.take("q").await;
    assert_eq!((job.attempt, job.is_last_attempt), (5, true));
    let dead = server.nack(nack(&job.lease, "E")).await.unwrap();
    assert_eq!(dead.dead_reason(), pb::DeadReason::Exhausted);
}

#[tokio::test]
async fn a_target_queue_is_made_if_need_be() {
    let server = dead(&["a", "b"]).await;
    let target = pb::RequeueRequest { target_queue: "repair".into(), ..all("q") };
    assert_eq!(server.requeue(target).await.unwrap().requeued, 2);
    let queues = server.list_queues().await;
    assert_eq!((queues[0].name.as_str(), queues[0].dead), ("q", 0));
    assert_eq!((queues[1].name.as_str(), queues[1].ready), ("repair", 2));
    let job = server.take("repair").await;
    assert_eq!((job.queue.as_str(), job.job_id.as_str()), ("repair", "a"));
    server.ack(&job.lease).await.unwrap();
}

#[tokio::test]
async fn a_job_whose_key_or_id_is_taken_stays_dead() {
    let server = Server::start().await;
    let keyed =
        |id: &str, body: &str| pb::EnqueueRequest { idempotency_key: "k".into(), body: text(body), ..job_of("q", id) };
    server.enqueue(keyed("old", "a")).await.unwrap();
    let lease = server.take("q").await.lease;
    let permanent = pb::NackRequest { kind: pb::NackKind::Permanent.into(), ..nack(&lease, "E") };
    server.nack(permanent).await.unwrap();
    server.enqueue(keyed("new", "b")).await.unwrap();
    let reply = server.requeue(all("q")).await.unwrap();
    assert_eq!((reply.requeued, skipped(&reply)), (0, vec![("old", "KEY_TAKEN")]));

    server.enqueue(job_of("other", "old")).await.unwrap();
    let target = pb::RequeueRequest { target_queue: "other".into(), ..all("q") };
    let reply = server.requeue(target).await.unwrap();
    assert_eq!((reply.requeued, skipped(&reply)), (0, vec![("old", "ID_TAKEN")]));
    assert_eq!(server.get_job_in("old", "q").await.unwrap().state(), pb::JobState::Dead);
}

#[tokio::test]
async fn a_requeue_wakes_a_waiting_worker() {
    let server = dead(&["a"]).await;
    let before = server.service.queues().host().looks();
    let waiting = pb::ClaimRequest { wait: time(20, 0), ..claim("q") };
    let mut queue = server.queue();
    let worker = tokio::spawn(async move { queue.claim(waiting).await });
    server.service.queues().host().looked(before + 1).await;
    server.requeue(all("q")).await.unwrap();
    let reply = worker.await.unwrap().unwrap().into_inner();
    assert_eq!(reply.jobs[0].job_id, "a");
}
