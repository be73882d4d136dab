//! What BreakerStatus tells of an outage, of the recovery from it, and of a queue that is degraded.

use crate::server::{Server, Setup, at, claim, inner, job, long, nack, steady};
use redrive::grpc::pb;
use std::time::Duration;

impl Server {
    async fn add(&self, jobs: usize) {
        let jobs = vec![job("q"); jobs];
        inner(self.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await).unwrap();
    }

    /// So many jobs are claimed, and each of which this is said fails.
    async fn run(&self, jobs: usize, fails: impl Fn(usize) -> bool) {
        let claimed = self.claim(pb::ClaimRequest { max_jobs: jobs as u32, ..claim("q") }).await.unwrap().jobs;
        assert_eq!(claimed.len(), jobs);
        for (number, job) in claimed.iter().enumerate() {
            match fails(number) {
                true => drop(self.nack(nack(&job.lease, "Broken")).await.unwrap()),
                false => drop(self.ack(&job.lease).await.unwrap()),
            }
        }
    }

    async fn status(&self) -> pb::Breaker {
        self.breaker("queue:q").await.unwrap()
    }

    /// The next probe fails. Says whether that counted against its job.
    async fn probe_fails(&self) -> bool {
        self.pass_to_probe().await;
        let probe = self.take("q").await;
        self.nack(nack(&probe.lease, "ConnectionRefused")).await.unwrap().attempt_counted
    }
}

#[tokio::test]
async fn failures_that_did_not_count_or_were_returned_are_summed_up() {
    let mut queue = steady(Duration::ZERO);
    queue.breaker.outage_grace = Duration::from_secs(30);
    queue.policy.max_retries = 100;
    let server = Server::with(Setup { defaults: queue, ..Setup::default() }).await;
    server.trip().await;
    assert_eq!(server.status().await.uncounted_failures, 5, "those that opened it are returned");
    assert!(!server.probe_fails().await);
    assert_eq!(server.status().await.uncounted_failures, 6);
    let mut uncounted = 6;
    let mut counted = 0;
    while counted < 3 {
        match server.probe_fails().await {
            true => counted += 1,
            false => uncounted += 1,
        }
        assert_eq!(server.status().await.uncounted_failures, uncounted, "after {counted} that counted");
    }
    let transitions = server.status().await.transitions;
    assert_eq!(transitions.len(), 1, "failed probes are none of their own: {transitions:?}");
}

#[tokio::test]
async fn a_recovery_says_how_long_draining_will_take() {
    let server = Server::with(Setup { defaults: steady(Duration::ZERO), ..Setup::default() }).await;
    server.trip().await;
    assert_eq!(server.status().await.drain_estimate, None);
    server.add(195).await;
    server.pass_to_probe().await;
    let probe = server.take("q").await;
    server.pass(Duration::from_millis(100)).await;
    server.ack(&probe.lease).await.unwrap();
    let status = server.status().await;
    assert_eq!((status.state(), status.held_jobs), (pb::BreakerState::Recovering, 200));
    // One job at a time, 100 ms each: nothing is known of more.
    assert_eq!((status.load, status.load_per_second), (1.0, 10.0));
    assert_eq!(long(status.drain_estimate), 20_000);
}

#[tokio::test]
async fn a_queue_that_is_degraded_says_until_when_failures_do_not_count() {
    let server = Server::with(Setup { defaults: steady(Duration::from_secs(3_600)), ..Setup::default() }).await;
    for _ in 0..7 {
        server.add(5).await;
        server.run(5, |_| false).await;
        server.pass(Duration::from_secs(1)).await;
    }
    let status = server.status().await;
    assert_eq!((status.degraded_until, status.failure_share, status.usual_failure_share), (None, 0.0, 0.0));
    server.add(60).await;
    server.run(60, |number| number % 2 == 0).await;
    let status = server.status().await;
    assert_eq!(status.state(), pb::BreakerState::Closed);
    let now = server.service.queues().now().millis() as i64;
    assert_eq!(at(status.degraded_until) - now, 15 * 60 * 1_000);
    // Thirty of the last sixty, and those of a bucket before.
    assert!((0.3..=0.5).contains(&status.failure_share), "{}", status.failure_share);
    server.add(1).await;
    let lease = server.take("q").await.lease;
    assert!(!server.nack(nack(&lease, "Broken")).await.unwrap().attempt_counted);
    for _ in 0..12 {
        server.pass(Duration::from_secs(1)).await;
        server.add(20).await;
        server.run(20, |_| false).await;
    }
    let status = server.status().await;
    assert_eq!((status.degraded_until, status.failure_share), (None, 0.0));
}
