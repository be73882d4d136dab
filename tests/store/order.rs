//! Who goes first: priority, then the time of becoming ready, then the id.

use crate::builders::*;

store_test! {
    async fn priority_is_strict(h) {
        for (id, priority) in [("low", -128), ("mid", 0), ("high", 127), ("mid2", 0), ("up", 1)] {
            h.enqueue(job("q").id(id).priority(priority)).await;
            h.advance(MILLISECOND);
        }
        assert_eq!(h.drain("q").await, ["high", "up", "mid", "mid2", "low"]);
    }
}

store_test! {
    async fn within_a_priority_the_first_to_be_ready_goes_first(h) {
        h.enqueue(job("q").id("c")).await;
        h.advance(MILLISECOND);
        h.enqueue(job("q").id("b").delay(seconds(2))).await;
        h.enqueue(job("q").id("a").delay(SECOND)).await;
        h.advance(seconds(3));
        h.enqueue(job("q").id("0")).await;
        assert_eq!(h.drain("q").await, ["c", "a", "b", "0"]);
    }
}

store_test! {
    async fn arrival_decides_between_jobs_of_one_moment(h) {
        for id in ["b", "a", "c"] {
            h.enqueue(job("q").id(id)).await;
        }
        assert_eq!(h.drain("q").await, ["b", "a", "c"]);
    }
}

store_test! {
    async fn a_batch_comes_out_as_it_went_in(h) {
        let batch = (0..500).map(|n| job("q").body(&n.to_string())).collect();
        h.enqueue_all(batch).await;
        let mut next = 0;
        while next < 500 {
            for delivered in h.claim_many("q", 7).await {
                assert_eq!(delivered.spec.body.bytes(), next.to_string().as_bytes());
                next += 1;
            }
        }
    }
}

store_test! {
    /// A late sweep does not change which job was due first.
    async fn delayed_jobs_come_in_the_order_of_their_due_times(h) {
        for (id, due) in [("third", 30), ("first", 10), ("second", 20)] {
            h.enqueue(job("q").id(id).delay(seconds(due))).await;
        }
        h.advance(HOUR);
        h.enqueue(job("q").id("now")).await;
        assert_eq!(h.sweep().await.promoted, 3);
        assert_eq!(h.drain("q").await, ["first", "second", "third", "now"]);
    }
}

store_test! {
    async fn a_claim_finds_what_is_due_before_any_sweep(h) {
        h.enqueue(job("q").id("due").priority(1).delay(SECOND)).await;
        h.enqueue(job("q").id("ready")).await;
        h.advance(SECOND);
        assert_eq!(h.drain("q").await, ["due", "ready"]);
    }
}

store_test! {
    async fn a_retry_keeps_its_priority(h) {
        h.set(without_jitter);
        h.enqueue(job("q").id("high").priority(5)).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, failed("Timeout")).await.unwrap();
        h.enqueue(job("q").id("low")).await;
        h.advance(SECOND);
        h.enqueue(job("q").id("late").priority(5)).await;
        h.advance(MILLISECOND);
        h.enqueue(job("q").id("later").priority(5)).await;
        assert_eq!(h.drain("q").await, ["high", "late", "later", "low"]);
    }
}

store_test! {
    async fn a_released_job_goes_behind_its_priority_level(h) {
        h.enqueue(job("q").id("a").priority(1)).await;
        h.enqueue(job("q").id("b").priority(1)).await;
        h.enqueue(job("q").id("low")).await;
        h.advance(MILLISECOND);
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, released()).await.unwrap();
        assert_eq!(h.drain("q").await, ["b", "a", "low"]);
    }
}

store_test! {
    async fn a_requeued_job_goes_behind_what_is_ready(h) {
        h.dead_letter(job("q").id("a")).await;
        h.enqueue(job("q").id("b")).await;
        h.advance(MILLISECOND);
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(h.drain("q").await, ["b", "a"]);
    }
}

store_test! {
    async fn a_job_knows_how_many_go_before_it(h) {
        h.enqueue(job("q")).await;
        h.enqueue(job("q").priority(3)).await;
        let last = h.enqueue(job("q").priority(-1)).await;
        assert_eq!(h.view(&last).await.ahead.unwrap().jobs, 2);
        h.claim("q").await;
        assert_eq!(h.view(&last).await.ahead.unwrap().jobs, 1);
    }
}

store_test! {
    async fn the_oldest_ready_job_counts_whatever_its_priority(h) {
        let since = h.now();
        h.enqueue(job("q").priority(-7)).await;
        h.advance(SECOND);
        h.enqueue(job("q").priority(7)).await;
        assert_eq!(h.queue("q").await.unwrap().oldest_ready_at, Some(since));
    }
}
