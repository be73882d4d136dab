//! Why a job does not run: limits, outages and pauses are named.

use crate::server::{Server, claim, job, job_of, nack, time};
use crate::shapes::after;
use redrive::grpc::pb;
use std::time::Duration;

impl Server {
    async fn why(&self, id: &str) -> String {
        self.get_job(id).await.unwrap().waiting_because
    }

    async fn take_all(&self, queue: &str) -> usize {
        self.claim(pb::ClaimRequest { max_jobs: 100, ..claim(queue) }).await.unwrap().jobs.len()
    }
}

fn keyed(id: &str, key: &str) -> pb::EnqueueRequest {
    pb::EnqueueRequest { breaker_key: key.into(), ..job_of("q", id) }
}

#[tokio::test]
async fn a_job_that_waits_for_a_limit_is_told_which() {
    let file = "[queues.few]\nmax_in_flight = 2\n[queues.slow]\nmax_rate = \"6/m\"\n\
                [queues.q.breaker_keys.\"api.*\"]\nmax_in_flight = 1\n";
    let server = Server::configured(file).await;
    for number in 0..4 {
        server.enqueue(job_of("few", &format!("few{number}"))).await.unwrap();
        server.enqueue(job_of("slow", &format!("slow{number}"))).await.unwrap();
    }
    assert!(server.why("few0").await.starts_with("it is next"), "nothing binds yet");
    assert_eq!((server.take_all("few").await, server.take_all("slow").await), (2, 1));
    let full = "the queue has max_in_flight, 2, of its jobs leased: one has to end first";
    assert_eq!(server.why("few2").await, full);
    assert_eq!(server.why("few3").await, format!("1 job of higher or equal priority goes first, and {full}"));
    let paced = "the queue hands out no more than max_rate, 6/m: the next job leaves at 2027-01-15T08:00:10Z";
    assert_eq!(server.why("slow1").await, paced);
    for (id, key) in [("a", "api.one"), ("b", "api.one"), ("c", "api.two")] {
        server.enqueue(keyed(id, key)).await.unwrap();
    }
    assert_eq!(server.take_all("q").await, 2, "one of each key");
    assert_eq!(server.why("b").await, "api.one has max_in_flight, 1, of its jobs leased: one has to end first");
}

#[tokio::test]
async fn a_claim_that_wants_no_jobs_is_told_of_limits_too() {
    let server = Server::configured("[queues.few]\nmax_in_flight = 1\n[queues.slow]\nmax_rate = \"6/m\"\n").await;
    let idle = async |queue| {
        let idle = server.claim(pb::ClaimRequest { max_jobs: 0, ..claim(queue) }).await.unwrap().idle.remove(0);
        (idle.reason(), idle.retry_after)
    };
    for queue in ["few", "slow"] {
        server.enqueue(job(queue)).await.unwrap();
        assert_eq!(server.take_all(queue).await, 1);
        assert_eq!(idle(queue).await.0, pb::IdleReason::Empty, "no job waits");
        server.enqueue(job(queue)).await.unwrap();
    }
    assert_eq!(idle("few").await, (pb::IdleReason::Limited, None));
    assert_eq!(idle("slow").await, (pb::IdleReason::Limited, time(10, 0)));
}

#[tokio::test]
async fn a_job_that_is_not_due_says_that_its_queue_is_held() {
    let server = Server::start().await;
    server.enqueue(pb::EnqueueRequest { start: after(time(60, 0)), ..job_of("q", "later") }).await.unwrap();
    assert_eq!(server.why("later").await, "it is due in 1m");
    server.trip().await;
    let why = server.why("later").await;
    assert!(why.starts_with("it is due in 59s, but the queue's breaker is open until 2027-01-15T08:00:0"), "{why}");
    // The sweep returns what was counted before it opened.
    server.pass(Duration::from_millis(1)).await;
    let why = server.why("j0").await;
    assert!(why.starts_with("it failed once in an outage, which does not count, and is due in "), "{why}");
    assert!(why.contains(", but the queue's breaker is open until ") && why.ends_with("after ConnectionRefused"));
    let pause = pb::PauseQueueRequest { queue: "q".into(), reason: "deploy".into(), ..Default::default() };
    server.admin().pause_queue(pause).await.unwrap();
    assert_eq!(server.why("later").await, "it is due in 58.999s, but the queue is paused until it is resumed: deploy");
}

#[tokio::test]
async fn a_job_of_a_breaker_key_says_whose_breaker_holds_it() {
    let server = Server::start().await;
    for number in 0..6 {
        server.enqueue(keyed(&format!("j{number}"), "api.one")).await.unwrap();
    }
    let jobs = server.claim(pb::ClaimRequest { max_jobs: 5, ..claim("q") }).await.unwrap().jobs;
    server.pass(Duration::from_secs(1)).await;
    for job in jobs {
        server.nack(nack(&job.lease, "ConnectionRefused")).await.unwrap();
    }
    let why = server.why("j5").await;
    assert!(why.starts_with("the breaker of api.one is open until 2027-01-15T08:00:0"), "{why}");
    server.set_breaker("queue:q", pb::BreakerState::Open, "move").await.unwrap();
    let why = server.why("j5").await;
    assert_eq!(why, "the queue's breaker is forced open until it is reset: move");
}
