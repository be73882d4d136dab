//! What the store tells while it works.

use crate::builders::*;
use redrive::queue::BreakerOrder;
use redrive::queue::EnqueueOutcome;

fn pairs(entries: &[(&str, usize)]) -> Vec<(String, usize)> {
    let entry = |(name, jobs): &(&str, usize)| ((*name).to_owned(), *jobs);
    entries.iter().map(entry).collect()
}

store_test! {
    async fn jobs_that_become_available_are_told_per_queue(h) {
        h.enqueue_all(vec![job("a"), job("b"), job("a"), job("a").delay(HOUR)]).await;
        let mut available = h.recorded.take_available();
        available.sort();
        assert_eq!(available, pairs(&[("a", 2), ("b", 1)]));
    }
}

store_test! {
    async fn whatever_makes_a_job_available_is_told(h) {
        h.enqueue(job("q").delay(SECOND)).await;
        assert_eq!(h.recorded.take_available(), []);
        h.advance(SECOND);
        h.sweep().await;
        assert_eq!(h.recorded.take_available(), pairs(&[("q", 1)]), "promotion");
        let lease = h.claim("q").await.delivery.lease;
        assert_eq!(h.recorded.take_available(), []);
        h.nack(lease, released()).await.unwrap();
        assert_eq!(h.recorded.take_available(), pairs(&[("q", 1)]), "release");
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, permanent()).await.unwrap();
        assert_eq!(h.recorded.take_available(), []);
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(h.recorded.take_available(), pairs(&[("q", 1)]), "requeue");
        let lease = h.claim("q").await.delivery.lease;
        h.unclaim(lease).await;
        assert_eq!(h.recorded.take_available(), pairs(&[("q", 1)]), "hand-back");
    }
}

store_test! {
    async fn what_a_claim_promotes_and_takes_is_not_told(h) {
        h.enqueue(job("q").delay(SECOND)).await;
        h.advance(SECOND);
        h.claim("q").await;
        assert_eq!(h.recorded.take_available(), []);
    }
}

store_test! {
    async fn a_queue_tells_of_all_that_it_could_hand_out(h) {
        h.enqueue(job("q")).await;
        h.enqueue(job("q").id("x")).await;
        assert_eq!(h.recorded.take_available(), pairs(&[("q", 1), ("q", 2)]));
        assert_eq!(h.try_enqueue(job("q").id("x")).await.unwrap().outcome, EnqueueOutcome::Existing);
        let lease = h.claim("q").await.delivery.lease;
        assert_eq!(h.recorded.take_available(), pairs(&[("q", 1)]), "what the claim left");
        h.ack(lease).await.unwrap();
        assert_eq!(h.recorded.take_available(), [], "nothing has become available");
    }
}

store_test! {
    async fn what_a_claim_leaves_is_told_whatever_becomes_of_its_caller(h) {
        h.enqueue(job("x")).await;
        h.enqueue(job("y")).await;
        h.recorded.take_available();
        h.try_claim(crate::builders::claim_of(&["x", "y"], 1)).await;
        assert_eq!(h.recorded.take_available(), pairs(&[("y", 1)]));
    }
}

store_test! {
    async fn the_earliest_that_is_due_is_announced(h) {
        let at = |seconds| h.now().after(std::time::Duration::from_secs(seconds));
        h.enqueue(job("q").delay(seconds(50))).await;
        assert_eq!(h.due().await, [at(50)]);
        h.enqueue(job("q").delay(seconds(60))).await;
        assert_eq!(h.due().await, []);
        h.enqueue(job("r").expires(seconds(40))).await;
        assert_eq!(h.due().await, [at(40)]);
        h.claim("r").await;
        assert_eq!(h.due().await, [at(30)], "the lease");
    }
}

store_test! {
    async fn the_sweep_itself_says_what_comes_next(h) {
        h.enqueue(job("q").delay(seconds(10))).await;
        h.enqueue(job("q").delay(seconds(20))).await;
        h.due().await;
        let second = h.now().after(seconds(20));
        h.advance(seconds(10));
        assert_eq!(h.sweep().await.next, Some(second));
        assert_eq!(h.due().await, []);
        h.enqueue(job("q").delay(seconds(5))).await;
        assert_eq!(h.due().await, [h.now().after(seconds(5))]);
    }
}

store_test! {
    async fn a_store_that_opens_announces_what_is_due(h) {
        h.enqueue(job("q").delay(seconds(10))).await;
        let due = h.now().after(seconds(10));
        h.due().await;
        h.reopen().await;
        assert_eq!(h.due().await, [due]);
    }
}

store_test! {
    sqlite only: async fn a_job_that_comes_due_is_told_and_needs_no_sweep(h) {
        h.enqueue(job("q").delay(seconds(1) / 100)).await;
        h.advance(SECOND);
        assert_eq!(h.recorded.next_come_due(), "q");
        assert_eq!(h.claim("q").await.progress.deliveries, 1);
        assert_eq!(h.recorded.take_available(), []);
    }
}

store_test! {
    sqlite only: async fn what_comes_due_in_a_queue_that_is_held_back_is_not_told(h) {
        for name in ["paused", "broken"] {
            h.enqueue(job(name).delay(seconds(1) / 100)).await;
        }
        h.pause("paused", None).await.unwrap();
        let order = BreakerOrder::Force { open: true, reason: String::new() };
        h.set_breaker("queue:broken", order).await.unwrap();
        h.enqueue(job("q").delay(seconds(1) / 50)).await;
        h.advance(SECOND);
        assert_eq!(h.recorded.next_come_due(), "q");
    }
}
