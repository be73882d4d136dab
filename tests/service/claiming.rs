//! Who gets which job, in which order, how many, and why none.

use crate::server::{Server, claim, claim_of, error, job, job_of, long, millis, nack, steady, time, unguarded};
use crate::shapes::after;
use redrive::grpc::pb;
use std::time::Duration;

/// Ten jobs in each queue.
async fn filled(queues: &[&str]) -> Server {
    let server = Server::start().await;
    for queue in queues {
        let jobs = vec![job(queue); 10];
        server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    }
    server
}

/// The queues of the next jobs, claimed one by one.
async fn order(server: &Server, request: pb::ClaimRequest, count: usize) -> String {
    let mut queues = String::new();
    for _ in 0..count {
        queues += &server.take_by(request.clone()).await.queue;
    }
    queues
}

#[tokio::test]
async fn queues_take_turns() {
    let server = filled(&["a", "b", "c"]).await;
    assert_eq!(order(&server, claim_of(&["a", "b", "c"]), 7).await, "abcabca");
    let both = pb::ClaimRequest { max_jobs: 6, ..claim_of(&["a", "b"]) };
    let jobs = server.claim(both).await.unwrap().jobs;
    let of_a = jobs.iter().filter(|job| job.queue == "a").count();
    assert_eq!((jobs.len(), of_a), (6, 3));
}

#[tokio::test]
async fn a_weight_is_how_often_a_turn_comes() {
    let server = filled(&["a", "b"]).await;
    let request = pb::ClaimRequest { weights: [("a".to_owned(), 3)].into(), ..claim_of(&["a", "b"]) };
    let order = order(&server, request.clone(), 8).await;
    assert_eq!(order.matches('a').count(), 6, "{order}");
    let many = pb::ClaimRequest { max_jobs: 4, ..request };
    let jobs = server.claim(many).await.unwrap().jobs;
    assert_eq!(jobs.iter().filter(|job| job.queue == "a").count(), 3);
}

#[tokio::test]
async fn a_queue_without_work_gives_its_turn_away() {
    let server = filled(&["b"]).await;
    let request = pb::ClaimRequest { max_jobs: 8, ..claim_of(&["a", "b"]) };
    assert_eq!(server.claim(request).await.unwrap().jobs.len(), 8);
}

#[tokio::test]
async fn strict_order_empties_the_first_queue_first() {
    let server = filled(&["a", "b"]).await;
    let strict = pb::ClaimRequest { order: pb::ClaimOrder::Strict.into(), ..claim_of(&["b", "a"]) };
    assert_eq!(order(&server, strict, 12).await, "bbbbbbbbbbaa");
}

#[tokio::test]
async fn within_a_queue_priority_goes_first_then_the_time_of_becoming_ready() {
    let server = Server::start().await;
    for (id, priority) in [("low", -1), ("first", 0), ("second", 0), ("high", 1)] {
        let request = pb::EnqueueRequest { priority, ..job_of("q", id) };
        server.enqueue(request).await.unwrap();
        server.pass(Duration::from_millis(1)).await;
    }
    let request = pb::ClaimRequest { max_jobs: 10, ..claim("q") };
    let jobs = server.claim(request).await.unwrap().jobs;
    let ids: Vec<_> = jobs.iter().map(|job| job.job_id.as_str()).collect();
    assert_eq!(ids, ["high", "first", "second", "low"]);
}

#[tokio::test]
async fn a_released_job_goes_behind_its_priority_level() {
    let server = Server::start().await;
    for id in ["a", "b"] {
        server.enqueue(job_of("q", id)).await.unwrap();
        server.pass(Duration::from_millis(1)).await;
    }
    let first = server.take("q").await;
    assert_eq!(first.job_id, "a");
    let release = pb::NackRequest { kind: pb::NackKind::Release.into(), ..nack(&first.lease, "") };
    let reply = server.nack(release).await.unwrap();
    assert!(!reply.attempt_counted && reply.retry_at.is_none());
    assert_eq!(server.take("q").await.job_id, "b");
    let again = server.take("q").await;
    assert_eq!((again.job_id.as_str(), again.attempt, again.deliveries), ("a", 1, 2));
}

#[tokio::test]
async fn replies_are_bounded_but_one_job_always_comes() {
    let server = Server::start().await;
    for _ in 0..3 {
        let body = crate::server::text(&"x".repeat(100_000));
        server.enqueue(pb::EnqueueRequest { body, ..job("q") }).await.unwrap();
    }
    let bounded = |max_bytes| pb::ClaimRequest { max_jobs: 10, max_bytes, ..claim("q") };
    assert_eq!(server.claim(bounded(1)).await.unwrap().jobs.len(), 1);
    assert_eq!(server.claim(bounded(250_000)).await.unwrap().jobs.len(), 2);
}

/// What a job brings along counts as well: its last failure can be larger than its body.
#[tokio::test]
async fn a_claim_fits_into_a_reply_whatever_the_jobs_bring_along() {
    use prost::Message;
    use prost_types::{ListValue, Struct, Value, value::Kind};
    let server = Server::with(unguarded(steady(Duration::from_secs(10)))).await;
    let jobs = vec![job("q"); 80];
    server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    let everything = pb::ClaimRequest { max_jobs: 1_000, ..claim("q") };
    // As text 16,000 bytes, on the wire more than five times as much.
    let one = Value { kind: Some(Kind::NumberValue(1.0)) };
    let kind = Some(Kind::ListValue(ListValue { values: vec![one; 8_000] }));
    let fields = [("k".to_owned(), Value { kind })].into();
    let failure = pb::Failure { message: "m".repeat(4_096), details: Some(Struct { fields }), ..error("E") };
    for chunk in server.claim(everything.clone()).await.unwrap().jobs.chunks(40) {
        let nacks = chunk.iter().map(|job| pb::NackRequest { error: Some(failure.clone()), ..nack(&job.lease, "") });
        let settle = pb::SettleRequest { nacks: nacks.collect(), ..Default::default() };
        server.settle(settle).await.unwrap();
    }
    server.pass(Duration::from_secs(10)).await;
    let mut taken = 0;
    while taken < 80 {
        let reply = server.claim(everything.clone()).await.unwrap();
        assert!(reply.encoded_len() <= 7 << 19, "{} bytes", reply.encoded_len());
        assert!(!reply.jobs.is_empty(), "{taken} taken");
        taken += reply.jobs.len();
    }
}

#[tokio::test]
async fn the_same_request_gets_its_jobs_again() {
    let server = filled(&["q"]).await;
    let request = pb::ClaimRequest { worker_id: "w1".into(), request_id: "r1".into(), max_jobs: 3, ..claim("q") };
    let first = server.claim(request.clone()).await.unwrap().jobs;
    let again = server.claim(request.clone()).await.unwrap().jobs;
    assert_eq!(again, first);
    let other = pb::ClaimRequest { worker_id: "w2".into(), ..request.clone() };
    let of_other = server.claim(other).await.unwrap().jobs;
    assert!(!of_other.iter().any(|job| first.iter().any(|own| own.lease == job.lease)), "it is the other worker's");
    for job in of_other {
        server.ack(&job.lease).await.unwrap();
    }
    server.ack(&first[1].lease).await.unwrap();
    let rest = server.claim(request.clone()).await.unwrap().jobs;
    assert_eq!(rest, [first[0].clone(), first[2].clone()]);
    // With none left it claims anew.
    for job in rest {
        server.ack(&job.lease).await.unwrap();
    }
    let anew = server.claim(request).await.unwrap().jobs;
    assert_eq!(anew.len(), 3);
    assert!(anew.iter().all(|job| !first.iter().any(|old| old.lease == job.lease)));
    assert_eq!(server.list_queues().await[0].leased, 3);
}

#[tokio::test]
async fn a_claim_that_gets_nothing_says_why_for_each_queue() {
    let server = Server::start().await;
    server.enqueue(pb::EnqueueRequest { start: after(millis(2_500)), ..job("later") }).await.unwrap();
    server.enqueue(job("empty")).await.unwrap();
    let lease = server.take("empty").await.lease;
    server.ack(&lease).await.unwrap();
    let reply = server.claim(claim_of(&["later", "empty", "missing"])).await.unwrap();
    let mut idle: Vec<_> = reply
        .idle
        .iter()
        .map(|idle| (idle.queue.as_str(), idle.reason(), idle.retry_after.map(|t| long(Some(t)))))
        .collect();
    idle.sort_by_key(|(queue, ..)| *queue);
    assert_eq!(
        idle,
        [
            ("empty", pb::IdleReason::Empty, None),
            ("later", pb::IdleReason::NotDue, Some(2_500)),
            ("missing", pb::IdleReason::NoSuchQueue, None),
        ]
    );
    assert!(reply.server_time.is_some());
    server.service.drain();
    let reply = server.claim(claim("later")).await.unwrap();
    assert_eq!(reply.idle[0].reason(), pb::IdleReason::Draining);
}

/// A claim makes no queue.
#[tokio::test]
async fn an_early_worker_waits_for_a_queue_that_is_not_there_yet() {
    let server = Server::start().await;
    let waiting = pb::ClaimRequest { wait: time(20, 0), ..claim("soon") };
    let mut queue = server.queue();
    let worker = tokio::spawn(async move { queue.claim(waiting).await });
    server.service.queues().host().looked(1).await;
    assert!(server.list_queues().await.is_empty());
    server.enqueue(job_of("soon", "first")).await.unwrap();
    let reply = worker.await.unwrap().unwrap().into_inner();
    assert_eq!(reply.jobs[0].job_id, "first");
}
