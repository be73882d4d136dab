//! What a claim gets, from which queues, and what it says when it gets nothing.

use crate::builders::*;
use redrive::queue::{Claim, IdleReason, Settlements};

fn asked_as(request_id: &str, claim: Claim) -> Claim {
    Claim { request_id: request_id.into(), ..claim }
}

store_test! {
    async fn a_delivery_says_what_it_is(h) {
        h.set(without_jitter);
        h.enqueue(job("q")).await;
        let now = h.now();
        let first = h.claim("q").await;
        assert_eq!((first.delivery.attempt, first.progress.deliveries), (1, 1));
        assert_eq!((first.delivery.started_at, first.delivery.expires_at), (now, now.after(seconds(30))));
        assert_eq!(first.delivery.worker_id, "worker");
        assert!(first.last_failure.is_none());
        h.nack(first.delivery.lease.clone(), failed("Timeout")).await.unwrap();
        h.advance(SECOND);
        let second = h.claim("q").await;
        assert_eq!((second.delivery.attempt, second.progress.deliveries), (2, 2));
        assert_eq!(second.last_failure.unwrap().error_type, "Timeout");
        assert_ne!(second.delivery.lease, first.delivery.lease);
    }
}

store_test! {
    async fn a_leased_job_is_not_delivered_again(h) {
        h.enqueue(job("q")).await;
        h.claim("q").await;
        assert_eq!(h.idle("q").await.reason, IdleReason::Empty);
        assert_eq!(h.depths("q").await.leased, 1);
    }
}

store_test! {
    async fn a_lease_is_no_longer_than_a_delivery_may_take(h) {
        h.set(|queue| queue.max_run_time = seconds(20));
        h.enqueue(job("q")).await;
        h.enqueue(job("q")).await;
        let asked = Claim { lease_duration: Some(seconds(5)), ..claim_of(&["q"], 1) };
        let delivery = h.try_claim(asked).await.jobs[0].delivery.clone();
        assert_eq!(delivery.expires_at.since(h.now()), seconds(5));
        let delivery = h.claim("q").await.delivery;
        assert_eq!(delivery.expires_at.since(h.now()), seconds(20));
    }
}

store_test! {
    async fn every_queue_gives_its_share_before_any_gives_more(h) {
        for name in ["a", "b", "c"] {
            h.enqueue_all(vec![job(name); 5]).await;
        }
        let claimed = h.try_claim(claim_shares(&[("b", 2), ("a", 1), ("c", 1)], 4)).await;
        let queues: Vec<_> = claimed.jobs.iter().map(|job| job.queue.to_string()).collect();
        assert_eq!(queues, ["b", "b", "a", "c"]);
    }
}

store_test! {
    async fn what_one_queue_lacks_others_give(h) {
        h.enqueue(job("a")).await;
        h.enqueue_all(vec![job("c"); 5]).await;
        let claimed = h.try_claim(claim_shares(&[("a", 2), ("none", 2), ("c", 2)], 5)).await;
        let queues: Vec<_> = claimed.jobs.iter().map(|job| job.queue.to_string()).collect();
        assert_eq!(queues, ["a", "c", "c", "c", "c"]);
        assert!(claimed.idle.is_empty());
    }
}

store_test! {
    async fn strict_order_empties_the_first_queue_first(h) {
        h.enqueue_all(vec![job("a"); 2]).await;
        h.enqueue_all(vec![job("b").priority(9); 2]).await;
        let claimed = h.try_claim(claim_of(&["a", "b"], 3)).await;
        let queues: Vec<_> = claimed.jobs.iter().map(|job| job.queue.to_string()).collect();
        assert_eq!(queues, ["a", "a", "b"]);
    }
}

store_test! {
    async fn a_reply_is_bounded_in_bytes_and_holds_at_least_one_job(h) {
        let big = "x".repeat(1_000);
        h.enqueue_all(vec![job("q").body(&big); 5]).await;
        let bounded = |max_bytes| Claim { max_bytes, ..claim_of(&["q"], 5) };
        assert_eq!(h.try_claim(bounded(3_000)).await.jobs.len(), 2);
        assert_eq!(h.try_claim(bounded(1)).await.jobs.len(), 1);
        assert_eq!(h.depths("q").await.ready, 2);
        assert_eq!(h.try_claim(bounded(100_000)).await.jobs.len(), 2);
    }
}

store_test! {
    /// A big job must not be passed over for the small ones behind it.
    async fn a_job_that_does_not_fit_keeps_its_place(h) {
        h.enqueue(job("q").id("a")).await;
        h.enqueue(job("q").id("b").body(&"x".repeat(5_000))).await;
        h.enqueue(job("q").id("c")).await;
        let claim = Claim { max_bytes: 2_000, ..claim_of(&["q"], 3) };
        assert_eq!(h.try_claim(claim).await.jobs.len(), 1);
        assert_eq!(h.drain("q").await, ["b", "c"]);
    }
}

store_test! {
    async fn the_same_request_again_gets_the_same_leases(h) {
        h.enqueue_all(vec![job("q"); 3]).await;
        let claim = asked_as("r", claim_of(&["q"], 2));
        let first = h.try_claim(claim.clone()).await;
        h.advance(SECOND);
        let again = h.try_claim(claim).await;
        assert_eq!(again.jobs.len(), 2);
        for (first, again) in first.jobs.iter().zip(&again.jobs) {
            assert_eq!(first.delivery, again.delivery);
            assert_eq!(first.progress, again.progress);
            assert_eq!(first.spec, again.spec);
        }
        assert_eq!(h.depths("q").await.ready, 1);
    }
}

store_test! {
    async fn the_same_request_gets_those_that_are_still_leased_and_then_new_ones(h) {
        h.enqueue_all(vec![job("q"); 3]).await;
        let claim = asked_as("r", claim_of(&["q"], 2));
        let first = h.try_claim(claim.clone()).await;
        h.ack(first.jobs[0].delivery.lease.clone()).await.unwrap();
        let again = h.try_claim(claim.clone()).await;
        assert_eq!(again.jobs.len(), 1);
        assert_eq!(again.jobs[0].delivery, first.jobs[1].delivery);
        h.ack(first.jobs[1].delivery.lease.clone()).await.unwrap();
        let anew = h.try_claim(claim).await;
        assert_eq!(anew.jobs.len(), 1);
        assert!(first.jobs.iter().all(|old| old.spec.id != anew.jobs[0].spec.id));
    }
}

store_test! {
    async fn requests_are_told_apart(h) {
        h.enqueue_all(vec![job("q"); 2]).await;
        let one = h.try_claim(asked_as("one", claim_of(&["q"], 1))).await;
        let two = h.try_claim(asked_as("two", claim_of(&["q"], 1))).await;
        assert_ne!(one.jobs[0].spec.id, two.jobs[0].spec.id);
    }
}

store_test! {
    async fn workers_whose_names_hold_colons_have_requests_of_their_own(h) {
        h.enqueue_all(vec![job("q"); 3]).await;
        let of = |worker: &str, request| Claim { worker_id: worker.into(), ..asked_as(request, claim_of(&["q"], 1)) };
        let asked = [of("a:b", "c"), of("a", "b:c"), of("a%3Ab", "c")];
        let mut first = Vec::new();
        for claim in &asked {
            first.push(h.try_claim(claim.clone()).await.jobs.delivered().remove(0).delivery);
        }
        for (claim, first) in asked.into_iter().zip(first) {
            let again = h.try_claim(claim).await.jobs.delivered();
            assert_eq!(again.first().map(|job| &job.delivery), Some(&first));
        }
    }
}

store_test! {
    async fn a_request_for_other_queues_is_another_request(h) {
        h.enqueue(job("a")).await;
        h.enqueue(job("b")).await;
        let first = h.try_claim(asked_as("r", claim_of(&["a"], 1))).await;
        let second = h.try_claim(asked_as("r", claim_of(&["b"], 1))).await;
        assert_eq!(first.jobs[0].queue.as_str(), "a");
        assert_eq!(second.jobs[0].queue.as_str(), "b");
    }
}

store_test! {
    async fn a_request_gets_all_that_is_leased_under_it_whichever_claim_got_it(h) {
        h.enqueue(job("a")).await;
        h.enqueue(job("b")).await;
        h.try_claim(asked_as("r", claim_of(&["a"], 1))).await;
        h.try_claim(asked_as("r", claim_of(&["b"], 1))).await;
        let both = h.try_claim(asked_as("r", claim_of(&["a", "c", "b"], 4))).await;
        let queues: Vec<_> = both.jobs.iter().map(|job| job.queue.as_str()).collect();
        assert_eq!(queues, ["a", "b"]);
    }
}

store_test! {
    async fn jobs_past_their_deadline_do_not_keep_a_claim_busy_for_ever(h) {
        for _ in 0..150 {
            h.enqueue(job("q").expires(SECOND)).await;
        }
        let alive = h.enqueue(job("q")).await;
        h.advance(SECOND);
        let first = h.try_claim(claim_of(&["q"], 1)).await;
        assert_eq!((first.jobs.len(), h.depths("q").await.dead), (0, 100));
        assert_eq!(h.claim("q").await.spec.id, alive);
    }
}

store_test! {
    async fn a_request_is_remembered_over_a_restart(h) {
        h.enqueue_all(vec![job("q"); 2]).await;
        let claim = asked_as("r", claim_of(&["q"], 1));
        let first = h.try_claim(claim.clone()).await;
        h.reopen().await;
        assert_eq!(h.try_claim(claim).await.jobs[0].delivery, first.jobs[0].delivery);
    }
}

store_test! {
    async fn a_claim_settles_before_it_takes(h) {
        h.set(|queue| queue.max_depth = Some(10));
        h.enqueue(job("q").id("a")).await;
        h.advance(MILLISECOND);
        let lease = h.claim("q").await.delivery.lease;
        let nack = redrive::queue::Nack { lease, outcome: released(), checkpoint: "half".into() };
        let settle = Settlements { nacks: vec![nack], ..Settlements::default() };
        let claimed = h.try_claim(Claim { settle, ..claim_of(&["q"], 1) }).await;
        assert!(claimed.settled.nacks[0].is_ok());
        assert_eq!(claimed.jobs[0].spec.id.to_string(), "a");
        assert_eq!(claimed.jobs[0].progress.checkpoint, "half");
    }
}

store_test! {
    async fn a_claim_that_gets_nothing_has_settled_all_the_same(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        let ack = redrive::queue::Ack {
            lease,
            note: String::new(),
            result: Default::default(),
            breaker_key: String::new(),
        };
        let settle = Settlements { acks: vec![ack], ..Settlements::default() };
        let claimed = h.try_claim(Claim { settle, ..claim_of(&["q"], 1) }).await;
        assert!(claimed.settled.acks[0].is_ok());
        assert!(claimed.jobs.is_empty());
        assert_eq!(h.queue("q").await.unwrap().totals.completed, 1);
    }
}

store_test! {
    async fn each_queue_says_why_there_is_nothing(h) {
        h.enqueue(job("later").delay(HOUR)).await;
        h.enqueue(job("later").delay(SECOND)).await;
        h.enqueue(job("empty")).await;
        h.claim("empty").await;
        let idle = h.try_claim(claim_of(&["unknown", "later", "empty"], 1)).await.idle;
        let reasons: Vec<_> = idle.iter().map(|idle| (idle.reason, idle.until)).collect();
        assert_eq!(reasons, [
            (IdleReason::NoSuchQueue, None),
            (IdleReason::NotDue, Some(h.now().after(SECOND))),
            (IdleReason::Empty, None),
        ]);
        let names: Vec<_> = idle.iter().map(|idle| idle.queue.as_str()).collect();
        assert_eq!(names, ["unknown", "later", "empty"]);
        assert!(h.queue("unknown").await.is_none(), "a claim makes no queue");
    }
}

store_test! {
    async fn a_job_past_its_deadline_makes_room_for_the_next(h) {
        h.enqueue(job("q").id("late").priority(1).expires(SECOND)).await;
        h.enqueue(job("q").id("good")).await;
        h.advance(SECOND);
        let claimed = h.try_claim(claim_of(&["q"], 1)).await;
        assert_eq!(claimed.jobs[0].spec.id.to_string(), "good");
        let died = h.recorded.take_died();
        assert_eq!(died.len(), 1);
        assert_eq!(died[0].reason, redrive::domain::DeadReason::Expired);
    }
}
