//! Idempotency keys: who holds one, and for how long.

use crate::builders::*;
use redrive::{domain::State, queue::Refusal};

store_test! {
    async fn the_same_key_and_body_again_adds_nothing(h) {
        let id = h.enqueue(job("q").key("k")).await;
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert!(again.deduplicated);
        assert_eq!((again.id, again.state), (id, State::Ready));
        assert_eq!(h.queue("q").await.unwrap().totals.enqueued, 1);
    }
}

store_test! {
    async fn the_same_key_with_another_body_is_refused(h) {
        h.enqueue(job("q").key("k")).await;
        let other = h.try_enqueue(job("q").key("k").body("other")).await;
        assert_eq!(other, Err(Refusal::KeyTaken));
    }
}

store_test! {
    async fn keys_are_a_queues_own(h) {
        h.enqueue(job("q").key("k")).await;
        h.enqueue(job("r").key("k").body("other")).await;
    }
}

store_test! {
    async fn an_id_and_a_key_must_name_one_job(h) {
        h.enqueue(job("q").id("one").key("k")).await;
        h.enqueue(job("q").id("two").key("l")).await;
        let crossed = h.try_enqueue(job("q").id("one").key("l")).await;
        assert_eq!(crossed, Err(Refusal::IdAndKeyDiffer));
        let new_id = h.try_enqueue(job("q").id("three").key("k")).await;
        assert_eq!(new_id, Err(Refusal::IdAndKeyDiffer));
        assert!(h.try_enqueue(job("q").id("one").key("k")).await.unwrap().deduplicated);
        assert_eq!(h.depths("q").await.ready, 2);
    }
}

store_test! {
    async fn a_key_is_held_for_its_retention_after_the_job_is_done(h) {
        let id = h.enqueue(job("q").key("k")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.advance(HOUR - MILLISECOND);
        h.sweep().await;
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert_eq!((again.deduplicated, again.state, again.id), (true, State::Completed, id));
        let other = h.try_enqueue(job("q").key("k").body("other")).await;
        assert_eq!(other, Err(Refusal::KeyTaken));
        h.advance(MILLISECOND);
        h.enqueue(job("q").key("k").body("other")).await;
    }
}

store_test! {
    /// The key is not used again: the sweep forgets it, and then the queue.
    async fn a_key_whose_retention_is_over_is_swept_away(h) {
        h.set(|queue| queue.key_retention = 48 * HOUR);
        h.enqueue(job("q").key("k")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.advance(47 * HOUR);
        h.sweep().await;
        assert!(h.queue("q").await.is_some(), "its key is still held");
        h.advance(HOUR);
        h.sweep().await;
        h.advance(24 * HOUR);
        h.sweep().await;
        assert!(h.queue("q").await.is_none());
    }
}

store_test! {
    async fn a_job_that_runs_longer_than_the_retention_holds_its_key_until_it_is_done(h) {
        h.enqueue(job("q").key("k")).await;
        let claim = redrive::queue::Claim {
            lease_duration: Some(3 * HOUR),
            ..claim_of(&["q"], 1)
        };
        let lease = h.try_claim(claim).await.jobs[0].delivery.lease.clone();
        h.advance(2 * HOUR);
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert_eq!((again.deduplicated, again.state), (true, State::Leased));
        h.ack(lease).await.unwrap();
        h.enqueue(job("q").key("k")).await;
    }
}

store_test! {
    async fn retention_counts_from_enqueue_and_survives_a_restart(h) {
        h.enqueue(job("q").key("k")).await;
        h.advance(HOUR / 2);
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.reopen().await;
        h.advance(HOUR / 2 - MILLISECOND);
        assert!(h.try_enqueue(job("q").key("k")).await.unwrap().deduplicated);
        h.advance(MILLISECOND);
        h.enqueue(job("q").key("k")).await;
    }
}

store_test! {
    async fn a_dead_job_does_not_hold_its_key(h) {
        h.dead_letter(job("q").key("k")).await;
        h.enqueue(job("q").key("k").body("other")).await;
    }
}

store_test! {
    async fn a_dead_job_holds_its_key_where_the_queue_says_so(h) {
        h.set(|queue| queue.dead_jobs_hold_keys = true);
        let id = h.dead_letter(job("q").key("k")).await;
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert_eq!((again.deduplicated, again.state, again.id), (true, State::Dead, id));
        let other = h.try_enqueue(job("q").key("k").body("other")).await;
        assert_eq!(other, Err(Refusal::KeyTaken));
        h.advance(100 * HOUR);
        h.sweep().await;
        assert!(h.try_enqueue(job("q").key("k")).await.unwrap().deduplicated);
    }
}

store_test! {
    async fn a_requeued_job_has_its_key_back(h) {
        let id = h.dead_letter(job("q").key("k")).await;
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert_eq!((again.deduplicated, again.id), (true, id));
    }
}

store_test! {
    async fn a_requeued_job_takes_its_key_from_one_that_is_done(h) {
        let id = h.dead_letter(job("q").key("k")).await;
        h.enqueue(job("q").key("k").body("other")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        let done = h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(done.ids, std::slice::from_ref(&id));
        assert_eq!(h.try_enqueue(job("q").key("k")).await.unwrap().id, id);
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        assert_eq!(h.try_enqueue(job("q").key("k")).await.unwrap().state, State::Completed);
    }
}
