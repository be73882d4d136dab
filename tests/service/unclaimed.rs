//! Which queues workers ask for.

use crate::server::{Server, at, claim, claim_of, job, time};
use redrive::domain::QueueName;
use redrive::grpc::pb;
use redrive::service::{Unclaimed, UnclaimedQueues};
use std::collections::HashSet;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

async fn last_claim(server: &Server, name: &str) -> Option<i64> {
    let queues = server.list_queues().await;
    queues.into_iter().find(|queue| queue.name == name)?.last_claim_at.map(|time| at(Some(time)))
}

fn told(unclaimed: &[Unclaimed]) -> Vec<(&str, u64, Option<&str>)> {
    unclaimed.iter().map(|it| (it.queue.as_str(), it.ready, it.near.as_deref())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waits_asks_all_the_time() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    server.take("q").await;
    let mut known = UnclaimedQueues::new(server.service.queues().now());
    let waiting = pb::ClaimRequest { wait: time(25, 0), ..claim("q") };
    let mut client = server.queue();
    let worker = tokio::spawn(async move { client.claim(waiting).await });
    server.service.queues().host().looked(2).await;
    server.pass(MINUTE).await;
    server.service.unclaimed_if_due(&mut known).await.unwrap();
    let now = server.service.queues().now().millis();
    assert_eq!(last_claim(&server, "q").await, Some(now.cast_signed()));
    server.enqueue(job("q")).await.unwrap();
    worker.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_queue_with_ready_jobs_that_no_worker_asks_for_is_named_once() {
    let server = Server::start().await;
    let mut known = UnclaimedQueues::new(server.service.queues().now());
    for queue in ["emials", "emials", "reports", "billing", "empty"] {
        server.enqueue(job(queue)).await.unwrap();
    }
    // Workers ask for a queue that is not there, for one that has jobs, and for one that they empty.
    server.take_by(claim_of(&["emails", "billing"])).await;
    server.enqueue(job("billing")).await.unwrap();
    server.take("empty").await;
    server.pass(MINUTE - Duration::from_millis(1)).await;
    assert_eq!(server.service.unclaimed_if_due(&mut known).await, Ok(vec![]), "not for a minute");
    server.enqueue(job("new")).await.unwrap();
    server.pass(Duration::from_millis(1)).await;
    let unclaimed = server.service.unclaimed_if_due(&mut known).await.unwrap();
    assert_eq!(told(&unclaimed), [("emials", 2, Some("emails")), ("reports", 1, None)]);
    server.pass(MINUTE).await;
    let unclaimed = server.service.unclaimed_if_due(&mut known).await.unwrap();
    assert_eq!(told(&unclaimed), [("new", 1, None)]);
    assert_eq!(last_claim(&server, "emials").await, None);
}

#[tokio::test]
async fn names_that_are_made_up_leave_room_for_queues_and_for_others_later() {
    let server = Server::start().await;
    let queues = server.service.queues();
    server.enqueue(job("q")).await.unwrap();
    let made_up = |prefix: &str| -> Vec<QueueName> {
        (0..3_000).map(|number| QueueName::parse(&format!("{prefix}-{number}")).unwrap()).collect()
    };
    queues.note_claims(made_up("a").iter());
    assert_eq!(queues.claimed_queues().len(), 1_000);
    server.take("q").await;
    assert!(last_claim(&server, "q").await.is_some(), "it is a queue");
    queues.note_claims(made_up("b").iter());
    assert_eq!(queues.claimed_queues().len(), 1_001);
    server.pass(60 * MINUTE).await;
    queues.note_claims(made_up("c").iter());
    let claimed = queues.claimed_queues();
    assert!(claimed.len() <= 1_001 && claimed.iter().any(|queue| queue.as_str() == "c-0"), "{}", claimed.len());
}

#[tokio::test]
async fn a_few_unclaimed_queues_are_named_at_a_time() {
    let server = Server::start().await;
    let mut known = UnclaimedQueues::new(server.service.queues().now());
    for number in 10..35 {
        server.enqueue(job(&format!("queue-{number}"))).await.unwrap();
    }
    server.pass(2 * MINUTE).await;
    let mut all = HashSet::new();
    for expected in [10, 10, 5, 0] {
        let told = server.service.unclaimed_if_due(&mut known).await.unwrap();
        assert_eq!(told.len(), expected);
        all.extend(told.into_iter().map(|unclaimed| unclaimed.queue));
        server.pass(MINUTE).await;
    }
    assert_eq!(all.len(), 25);
}

#[tokio::test]
async fn after_a_restart_workers_have_a_minute_to_come_back() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    server.pass(10 * MINUTE).await;
    let server = server.restarted().await;
    let mut known = UnclaimedQueues::new(server.service.queues().now());
    assert_eq!(server.service.unclaimed_if_due(&mut known).await, Ok(vec![]));
    server.pass(MINUTE).await;
    assert_eq!(server.service.unclaimed_if_due(&mut known).await.unwrap().len(), 1);
}
