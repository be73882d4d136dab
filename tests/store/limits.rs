//! What a queue hands out at most: so many at once, and so many per second.

use crate::redis_server::Server;
use crate::servers::{One, run};
use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{MaxRate, QueueSettings};
use redrive::queue::{Delivered, IdleReason};
use std::{future::Future, time::Duration};

fn at_most_three(queue: &mut QueueSettings) {
    without_jitter(queue);
    queue.max_in_flight = Some(3);
}

impl<S: Engine> Harness<S> {
    async fn waiting(&self, jobs: usize) {
        self.enqueue_all((0..jobs).map(|_| job("q")).collect()).await;
    }

    /// One slot is free, and waiters are told.
    async fn assert_one_more(&self, how: &str) {
        self.catch_up().await;
        let told = self.recorded.take_available();
        assert!(told.iter().any(|(queue, jobs)| queue == "q" && *jobs > 0), "{how}: {told:?}");
        assert_eq!(self.claim_many("q", 100).await.len(), 1, "{how}");
        assert_eq!(self.depths("q").await.leased, 3, "{how}");
    }
}

store_test! {
    async fn no_more_than_max_in_flight_are_leased(h) {
        h.set(at_most_three);
        h.waiting(20).await;
        let mut out = h.claim_many("q", 2).await;
        out.extend(h.claim_many("q", 100).await);
        assert_eq!(out.len(), 3);
        let idle = h.idle("q").await;
        assert_eq!((idle.reason, idle.until), (IdleReason::Limited, None), "until a lease ends");
        let mut leases = out.into_iter().map(|job| job.delivery.lease);
        h.recorded.take_available();
        h.ack(leases.next().unwrap()).await.unwrap();
        h.assert_one_more("ack").await;
        h.nack(leases.next().unwrap(), failed("Timeout")).await.unwrap();
        h.assert_one_more("nack").await;
        h.nack(leases.next().unwrap(), permanent()).await.unwrap();
        h.assert_one_more("permanent").await;
        h.reopen().await;
        assert_eq!(h.idle("q").await.reason, IdleReason::Limited, "after a restart too");
    }
}

store_test! {
    async fn a_lease_that_runs_out_frees_its_slot(h) {
        h.set(at_most_three);
        h.waiting(20).await;
        h.claim_many("q", 1).await;
        h.advance(SECOND);
        h.claim_many("q", 100).await;
        h.recorded.take_available();
        h.advance(seconds(29));
        assert_eq!(h.sweep().await.expired.len(), 1);
        h.assert_one_more("expiry").await;
    }
}

store_test! {
    async fn a_limit_that_is_raised_or_taken_away_holds_at_once(h) {
        h.set(at_most_three);
        h.waiting(20).await;
        assert_eq!(h.claim_many("q", 100).await.len(), 3);
        h.set(|queue| queue.max_in_flight = Some(5));
        assert_eq!(h.claim_many("q", 100).await.len(), 2);
        h.set(|queue| queue.max_in_flight = None);
        assert_eq!(h.claim_many("q", 100).await.len(), 15);
    }
}

store_test! {
    async fn max_rate_lets_out_a_burst_and_then_one_for_each_token(h) {
        h.set(|queue| queue.max_rate = Some(MaxRate::parse("100/s").unwrap()));
        h.waiting(200).await;
        assert_eq!(h.claim_many("q", 100).await.len(), 5, "50 ms' worth");
        let token = h.now().after(Duration::from_millis(10));
        let idle = h.idle("q").await;
        assert_eq!((idle.reason, idle.until), (IdleReason::Limited, Some(token)));
        h.advance(Duration::from_millis(9));
        assert_eq!(h.idle("q").await.until, Some(token));
        h.advance(MILLISECOND);
        assert_eq!(h.claim_many("q", 100).await.len(), 1);
        assert_eq!(h.idle("q").await.reason, IdleReason::Limited);
        let mut handed_out = 0;
        for _ in 0..100 {
            h.advance(Duration::from_millis(10));
            handed_out += h.claim_many("q", 100).await.len();
        }
        assert_eq!(handed_out, 100, "in a second");
        // What was not used is not made up for.
        h.advance(HOUR);
        h.sweep().await;
        assert_eq!(h.claim_many("q", 100).await.len(), 5);
    }
}

store_test! {
    async fn a_slow_rate_lets_one_out_at_a_time(h) {
        h.set(|queue| queue.max_rate = Some(MaxRate::parse("6/m").unwrap()));
        h.waiting(10).await;
        assert_eq!(h.claim_many("q", 100).await.len(), 1);
        assert_eq!(h.idle("q").await.until, Some(h.now().after(seconds(10))));
        h.advance(seconds(10));
        assert_eq!(h.claim_many("q", 100).await.len(), 1);
    }
}

#[test]
fn limits_are_those_of_all_servers() {
    run(async |server, namespace| {
        let (a, mut b) = (One::open(server, &namespace).await, One::open(server, &namespace).await);
        for one in [&a, &b] {
            one.set(|queue| queue.max_in_flight = Some(3));
        }
        for _ in 0..10 {
            a.enqueue(job("q")).await;
        }
        let out = a.claim("q", 2).await;
        assert_eq!((out.len(), b.claim("q", 10).await.len()), (2, 1));
        assert_eq!((a.idle("q").await, b.idle("q").await), (IdleReason::Limited, IdleReason::Limited));
        while b.available.try_recv().is_ok() {}
        a.ack(&out[..1]).await;
        b.hears_of("q").await;
        assert_eq!((b.claim("q", 10).await.len(), a.claim("q", 10).await.len()), (1, 0));
    });
}

/// Other servers are told that jobs of `q` may leave. They would find it out by themselves too, within a second.
async fn assert_tells(server: &Server, namespace: &str, action: impl Future<Output = ()>) {
    let mut connection = redis::Client::open(server.address()).unwrap().get_connection().unwrap();
    let mut hints = connection.as_pubsub();
    hints.subscribe(format!("{namespace}:{{q}}:s")).unwrap();
    hints.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    action.await;
    let ready: u64 = hints.get_message().expect("a hint").get_payload().unwrap();
    assert!(ready > 0);
}

/// Some of ten jobs are leased at `a`, and no more may be.
async fn full(server: &Server, namespace: &str, most: u64) -> (One, One, Vec<Delivered>) {
    let (a, b) = (One::open(server, namespace).await, One::open(server, namespace).await);
    for one in [&a, &b] {
        one.set(|queue| queue.max_in_flight = Some(most));
    }
    for _ in 0..10 {
        a.enqueue(job("q")).await;
    }
    let mut claim = claim_of(&["q"], 10);
    claim.lease_duration = Some(Duration::from_millis(200));
    let out = a.store.claim(claim).await.unwrap().jobs.delivered();
    assert_eq!((out.len() as u64, b.idle("q").await), (most, IdleReason::Limited));
    (a, b, out)
}

#[test]
fn a_slot_that_a_failure_frees_wakes_waiters_at_other_servers() {
    run(async |server, namespace| {
        let (a, b, out) = full(server, &namespace, 3).await;
        assert_tells(server, &namespace, a.nack(&out[..1], "Timeout")).await;
        assert_eq!(b.claim("q", 10).await.len(), 1);
    });
}

#[test]
fn a_slot_that_an_expiry_frees_wakes_waiters_at_other_servers() {
    run(async |server, namespace| {
        let (mut a, b, _) = full(server, &namespace, 3).await;
        assert_tells(server, &namespace, Box::pin(a.comes_to_expire(3))).await;
        assert_eq!(b.claim("q", 10).await.len(), 3);
    });
}

#[test]
fn a_slot_of_a_claim_that_was_not_delivered_wakes_waiters_at_other_servers() {
    run(async |server, namespace| {
        let (a, b, out) = full(server, &namespace, 1).await;
        a.ack(&out).await;
        let claimed = a.store.claim(claim_of(&["q"], 10)).await.unwrap();
        assert_eq!((claimed.jobs.len(), b.idle("q").await), (1, IdleReason::Limited));
        assert_tells(server, &namespace, async {
            // Its caller has gone: the next call returns the job.
            drop(claimed);
            a.claim("other", 1).await;
        })
        .await;
        assert_eq!(b.claim("q", 10).await.len(), 1);
    });
}

#[test]
fn a_slot_of_the_ramp_that_comes_free_wakes_waiters_at_other_servers() {
    run(async |server, namespace| {
        let (mut a, mut b) = (One::open(server, &namespace).await, One::open(server, &namespace).await);
        for one in [&a, &b] {
            one.set(|queue| queue.breaker.first_probe = Duration::ZERO);
        }
        for _ in 0..30 {
            a.enqueue(job("q")).await;
        }
        let out = a.claim("q", 20).await;
        a.nack(&out, "ConnectionRefused").await;
        let probe = a.claim("q", 10).await;
        assert_eq!((probe.len(), probe[0].delivery.probe), (1, true));
        assert_tells(server, &namespace, a.ack(&probe)).await;
        // One job at a time, as nothing is known of its load.
        let out = a.gets("q").await;
        assert_eq!(b.idle("q").await, IdleReason::Limited);
        assert_tells(server, &namespace, a.ack(std::slice::from_ref(&out))).await;
        b.gets("q").await;
    });
}
