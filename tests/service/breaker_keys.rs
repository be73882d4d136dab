//! Breaker keys as producers, workers and operators see them.

use crate::server::{Server, claim, job, job_of, nack};
use redrive::grpc::pb;
use std::time::Duration;

fn keyed(id: &str, key: &str) -> pb::EnqueueRequest {
    pb::EnqueueRequest { breaker_key: key.into(), ..job_of("q", id) }
}

fn failed_at(lease: &str, key: &str) -> pb::NackRequest {
    let mut request = nack(lease, "ConnectionRefused");
    request.error.as_mut().unwrap().breaker_key = key.into();
    request
}

/// So many jobs with a key fail, and its breaker opens.
async fn trip(server: &Server, key: &str) {
    for number in 0..20 {
        server.enqueue(keyed(&format!("{key}-{number}"), key)).await.unwrap();
    }
    for job in server.claim(pb::ClaimRequest { max_jobs: 20, ..claim("q") }).await.unwrap().jobs {
        server.nack(nack(&job.lease, "ConnectionRefused")).await.unwrap();
    }
}

#[tokio::test]
async fn a_key_whose_downstream_is_broken_is_told_by_its_name() {
    let server = Server::start().await;
    trip(&server, "smtp.example.com").await;
    server.enqueue(keyed("held", "smtp.example.com")).await.unwrap();
    server.enqueue(keyed("well", "api.example.com")).await.unwrap();
    let job = server.take("q").await;
    assert_eq!((job.job_id.as_str(), job.breaker_key.as_str()), ("well", "api.example.com"));
    let idle = server.claim(claim("q")).await.unwrap().idle.remove(0);
    assert_eq!((idle.reason(), idle.breaker_key.as_str()), (pb::IdleReason::BreakerOpen, "smtp.example.com"));
    assert!(idle.retry_after.is_some());
    let breaker = server.breaker("queue:q/smtp.example.com").await.unwrap();
    assert_eq!((breaker.state(), breaker.held_jobs), (pb::BreakerState::Open, 1));
    assert_eq!(server.breaker("queue:q").await.unwrap().state(), pb::BreakerState::Closed);
    let info = server.get_job_in("held", "q").await.unwrap();
    assert!(info.waiting_because.contains("breaker of smtp.example.com"), "{}", info.waiting_because);
    assert_eq!(info.job.unwrap().breaker_key, "smtp.example.com");
}

#[tokio::test]
async fn all_breakers_of_a_queue_are_listed_page_by_page() {
    let server = Server::start().await;
    for (id, key) in [("j1", "b"), ("j2", "a")] {
        server.enqueue(keyed(id, key)).await.unwrap();
    }
    let (mut names, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = pb::BreakerStatusRequest { page_size: 1, page_token, ..Default::default() };
        let page = server.queue().breaker_status(request).await.unwrap().into_inner();
        names.extend(page.breakers.into_iter().map(|breaker| breaker.name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["queue:q", "queue:q/a", "queue:q/b", "dlq:q"]);
}

#[tokio::test]
async fn a_nack_and_an_ack_may_name_what_they_met() {
    let server = Server::start().await;
    for number in 0..6 {
        server.enqueue(job_of("q", &format!("j{number}"))).await.unwrap();
    }
    let jobs = server.claim(pb::ClaimRequest { max_jobs: 6, ..claim("q") }).await.unwrap().jobs;
    for job in &jobs[..4] {
        server.nack(failed_at(&job.lease, "api")).await.unwrap();
    }
    assert_eq!(server.breaker("queue:q/api").await.unwrap().failure_count, 4);
    let ack = pb::AckRequest { lease: jobs[4].lease.clone(), breaker_key: "api".into(), ..Default::default() };
    server.queue().ack(ack).await.unwrap();
    assert_eq!(server.breaker("queue:q/api").await.unwrap().failure_count, 0);
    let info = server.get_job_in("j0", "q").await.unwrap();
    assert_eq!(info.attempts[0].failure.as_ref().unwrap().breaker_key, "api");
    assert_eq!(info.job.unwrap().breaker_key, "api");
    // Nothing in an error refuses a Nack.
    let long = "k\n".repeat(300);
    server.nack(failed_at(&jobs[5].lease, &long)).await.unwrap();
    let failure = server.get_job_in("j5", "q").await.unwrap().attempts.remove(0).failure.unwrap();
    assert_eq!((failure.breaker_key.len(), failure.truncated), (256, true));
}

#[tokio::test]
async fn a_key_that_is_too_long_is_refused_where_a_producer_gives_it() {
    let server = Server::start().await;
    for key in ["k".repeat(257), "a\nb".to_owned()] {
        let status = server.enqueue(keyed("j", &key)).await.unwrap_err();
        assert!(status.message().contains("breaker_key"), "{}", status.message());
    }
    server.enqueue(keyed("j", &"k".repeat(256))).await.unwrap();
    server.enqueue(job("other")).await.unwrap();
}

#[tokio::test]
async fn a_waiting_claim_gets_the_probe_of_a_key_when_its_time_comes() {
    let server = Server::start().await;
    trip(&server, "api").await;
    server.enqueue(keyed("held", "api")).await.unwrap();
    let wait = prost_types::Duration { seconds: 20, nanos: 0 };
    let waiting = server.claim(pb::ClaimRequest { wait: Some(wait), ..claim("q") });
    let passing = async {
        for _ in 0..40 {
            server.pass(Duration::from_millis(50)).await;
        }
    };
    let (claimed, ()) = tokio::join!(waiting, passing);
    assert_eq!(claimed.unwrap().jobs[0].breaker_key, "api");
}
