//! Limits of breaker keys, and how many there may be.

use crate::breaker_keys::job_of;
use crate::builders::*;
use redrive::domain::{Failure, Glob, JobId, KeyLimits, MaxRate, QueueSettings};
use redrive::queue::{BreakerOrder, IdleReason};
use std::time::Duration;

fn limited(queue: &mut QueueSettings, keys: &str, max_in_flight: Option<u64>, max_rate: Option<&str>) {
    let max_rate = max_rate.map(|rate| MaxRate::parse(rate).unwrap());
    queue.breaker_keys.push(KeyLimits { keys: Glob::new(keys), max_in_flight, max_rate });
}

store_test! {
    async fn limits_of_keys_are_of_each_key_by_itself(h) {
        h.set(|queue| limited(queue, "tenant-*", Some(2), None));
        for key in ["tenant-1", "tenant-2", "free"] {
            for n in 0..4 {
                h.enqueue(job_of(key, &format!("{key}-{n}"))).await;
            }
        }
        let out = h.claim_many("q", 100).await;
        let of = |key: &str| out.iter().filter(|job| job.spec.breaker_key.as_deref() == Some(key)).count();
        assert_eq!([of("tenant-1"), of("tenant-2"), of("free")], [2, 2, 4]);
        let idle = h.idle("q").await;
        assert_eq!(idle.reason, IdleReason::Limited);
        assert!(idle.breaker_key.starts_with("tenant-"), "{idle:?}");
        h.recorded.take_available();
        let first = out.iter().find(|job| job.spec.breaker_key.as_deref() == Some("tenant-2")).unwrap();
        h.ack(first.delivery.lease.clone()).await.unwrap();
        h.catch_up().await;
        assert!(h.recorded.take_available().iter().any(|(queue, jobs)| queue == "q" && *jobs > 0));
        assert_eq!(h.drain("q").await, ["tenant-2-2"]);
        h.set(|queue| queue.breaker_keys.clear());
        h.sweep().await;
        assert_eq!(h.claim_many("q", 100).await.len(), 3, "without limits all of them go");
    }
}

store_test! {
    async fn a_rate_of_a_key_paces_its_jobs_and_no_others(h) {
        h.set(|queue| {
            limited(queue, "slow", None, Some("10/s"));
            limited(queue, "*", None, Some("1000/s"));
        });
        for n in 0..3 {
            h.enqueue(job_of("slow", &format!("s{n}"))).await;
            h.enqueue(job_of("fast", &format!("f{n}"))).await;
        }
        assert_eq!(h.drain("q").await, ["s0", "f0", "f1", "f2"]);
        let idle = h.idle("q").await;
        assert_eq!((idle.reason, idle.until), (IdleReason::Limited, Some(h.now().after(Duration::from_millis(100)))));
        h.advance(Duration::from_millis(100));
        assert_eq!(h.drain("q").await, ["s1"]);
    }
}

store_test! {
    async fn new_limits_hold_for_keys_that_are_there(h) {
        for n in 0..5 {
            h.enqueue(job_of("a", &format!("a{n}"))).await;
        }
        assert_eq!(h.claim_many("q", 1).await.len(), 1);
        h.set(|queue| limited(queue, "a", Some(2), None));
        h.sweep().await;
        assert_eq!(h.claim_many("q", 100).await.len(), 1);
        h.set(|queue| queue.max_in_flight = Some(3));
        assert_eq!(h.idle("q").await.reason, IdleReason::Limited);
    }
}

store_test! {
    async fn beyond_a_thousand_keys_jobs_share_the_breaker_of_their_queue(h) {
        for page in 0..10 {
            let jobs = (0..100).map(|n| job_of(&format!("k{}", page * 100 + n), &format!("j{}", page * 100 + n)));
            h.enqueue_all(jobs.collect()).await;
        }
        h.enqueue(job_of("one-more", "last")).await;
        assert_eq!(h.breakers("q").await.keys.len(), 1_000);
        h.enqueue(job("q").priority(1)).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, failed_with(Failure { http_status: 429, ..Failure::new("TooMany", "") })).await.unwrap();
        let view = h.view(&JobId::parse("last")).await;
        assert_eq!((view.breaker_key(), view.breaker.key.as_str()), (Some("one-more"), ""));
        assert!(!h.drain("q").await.contains(&"last".to_owned()), "the queue's own breaker holds it");
    }
}

store_test! {
    async fn a_key_without_jobs_is_forgotten_after_an_hour_and_its_number_used_again(h) {
        h.enqueue(job_of("old", "j1")).await;
        h.enqueue(job_of("later", "j2").delay(HOUR * 10)).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        for _ in 0..14 {
            h.advance(seconds(600));
            h.sweep().await;
        }
        let keys: Vec<_> = h.breakers("q").await.keys.into_iter().map(|view| view.breaker.key).collect();
        assert_eq!(keys, ["later"], "one of a job for later stays");
        h.enqueue(job_of("new", "j3")).await;
        let order = BreakerOrder::Force { open: true, reason: String::new() };
        h.set_breaker("queue:q/new", order).await.unwrap();
        h.enqueue(job_of("old", "j4")).await;
        assert_eq!(h.drain("q").await, ["j4"]);
    }
}

store_test! {
    async fn a_key_that_is_used_again_while_it_is_idle_stays(h) {
        h.enqueue(job_of("a", "j1")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        for _ in 0..8 {
            h.advance(seconds(600));
            h.sweep().await;
        }
        h.enqueue(job_of("a", "j2").delay(HOUR * 3)).await;
        for _ in 0..12 {
            h.advance(seconds(600));
            h.sweep().await;
        }
        assert_eq!(h.breakers("q").await.keys.len(), 1);
        h.advance(HOUR * 2);
        assert_eq!(h.drain("q").await, ["j2"]);
    }
}

store_test! {
    async fn nacks_of_one_call_may_all_name_a_key_that_was_idle(h) {
        h.set(|queue| {
            without_jitter(queue);
            // A probe and a job of another key are settled apart from each other.
            queue.breaker.ramp = true;
        });
        h.enqueue(job_of("idle", "first")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.advance(seconds(600));
        h.sweep().await;
        for n in 0..3 {
            h.enqueue(job_of(&format!("own-{n}"), &format!("j{n}"))).await;
        }
        let failure = Failure { breaker_key: "idle".into(), ..Failure::new("Timeout", "no answer") };
        let nacks = h.claim_many("q", 3).await.into_iter().map(|job| redrive::queue::Nack {
            lease: job.delivery.lease,
            outcome: failed_with(failure.clone()),
            checkpoint: String::new(),
        });
        let nacks: Vec<_> = nacks.collect();
        let (first, rest) = nacks.split_at(1);
        let settle = |nacks: &[redrive::queue::Nack]| {
            h.settle(redrive::queue::Settlements { nacks: nacks.to_vec(), ..Default::default() })
        };
        let (one, others) = tokio::join!(settle(first), settle(rest));
        assert!(one.nacks.iter().chain(&others.nacks).all(Result::is_ok), "{one:?} {others:?}");
        assert_eq!(h.view(&JobId::parse("j2")).await.breaker_key(), Some("idle"));
    }
}
