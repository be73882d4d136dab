//! Sending dead letters back to work.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{DeadReason, JobId, State};
use redrive::queue::EnqueueOutcome;
use redrive::queue::Refusal;
use redrive::queue::{Requeue, Requeued, SkipReason, Which};

async fn dead_letter_all<S: Engine>(h: &Harness<S>, ids: &[&str]) {
    for id in ids {
        h.dead_letter(job("q").id(id)).await;
    }
}

fn id(text: &str) -> JobId {
    JobId::parse(text)
}

fn ids(texts: &[&str]) -> Vec<JobId> {
    texts.iter().map(|text| id(text)).collect()
}

store_test! {
    async fn named_letters_go_back_and_unknown_ones_are_skipped(h) {
        dead_letter_all(&h, &["a", "b", "c"]).await;
        h.enqueue(job("q").id("alive")).await;
        let which = Which::Ids(ids(&["c", "unknown", "a", "alive", "a"]));
        let done = h.requeue(requeue_of("q", which)).await.unwrap();
        assert_eq!(done.ids, ids(&["c", "a"]));
        let missing = |text| (id(text), SkipReason::JobNotFound);
        assert_eq!(done.skipped, [missing("unknown"), missing("alive"), missing("a")]);
        let depths = h.depths("q").await;
        assert_eq!((depths.dead, depths.ready), (1, 3));
        assert_eq!(h.queue("q").await.unwrap().totals.requeued, 2);
    }
}

store_test! {
    async fn a_letter_of_an_id_that_the_store_made_goes_back(h) {
        let made = h.dead_letter(job("q")).await;
        let done = h.requeue(requeue_of("q", Which::Ids(vec![made.clone()]))).await.unwrap();
        assert_eq!(done.ids, [made]);
    }
}

store_test! {
    async fn the_oldest_go_first_up_to_the_limit(h) {
        dead_letter_all(&h, &["c", "a", "b"]).await;
        let done = h.requeue(requeue_of("q", oldest(2))).await.unwrap();
        assert_eq!((done.ids, done.has_more), (ids(&["c", "a"]), true));
        let done = h.requeue(requeue_of("q", oldest(2))).await.unwrap();
        assert_eq!((done.ids, done.has_more), (ids(&["b"]), false));
        let done = h.requeue(requeue_of("q", oldest(2))).await.unwrap();
        assert!(done.ids.is_empty() && !done.has_more);
    }
}

store_test! {
    async fn no_limit_means_all(h) {
        dead_letter_all(&h, &["a", "b"]).await;
        let done = h.requeue(requeue_of("q", oldest(usize::MAX))).await.unwrap();
        assert_eq!((done.ids, done.has_more), (ids(&["a", "b"]), false));
    }
}

store_test! {
    /// Jobs fail again as fast as they are sent round.
    async fn going_on_with_the_cutoff_meets_no_job_twice(h) {
        dead_letter_all(&h, &["a", "b", "c"]).await;
        let first = h.requeue(requeue_of("q", oldest(2))).await.unwrap();
        assert!(first.has_more);
        for delivered in h.claim_many("q", 2).await {
            h.nack(delivered.delivery.lease, permanent()).await.unwrap();
        }
        let go_on = |limit| Which::Oldest { limit, among: Some(first.left) };
        let second = h.requeue(requeue_of("q", go_on(2))).await.unwrap();
        assert_eq!((second.ids, second.has_more), (ids(&["c"]), false));
        assert_eq!(second.left.up_to, first.left.up_to);
        assert_eq!(h.depths("q").await.dead, 2);
    }
}

store_test! {
    async fn letters_that_cannot_go_back_do_not_hold_up_the_others(h) {
        h.dead_letter(job("q").id("a").key("k")).await;
        dead_letter_all(&h, &["b"]).await;
        h.enqueue(job("q").id("live").key("k")).await;
        let first = h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(first.skipped, [(id("a"), SkipReason::KeyTaken)]);
        assert!(first.has_more);
        let go_on = Which::Oldest { limit: 1, among: Some(first.left) };
        let second = h.requeue(requeue_of("q", go_on)).await.unwrap();
        assert_eq!((second.ids, second.has_more), (ids(&["b"]), false));
    }
}

store_test! {
    async fn large_letters_go_back_a_part_at_a_time(h) {
        let large = "x".repeat(1 << 20);
        for number in 0..20 {
            h.dead_letter(job("q").id(&format!("{number:02}")).body(&large)).await;
        }
        let first = h.requeue(requeue_of("q", oldest(100))).await.unwrap();
        assert!(first.has_more);
        let go_on = Which::Oldest { limit: 100, among: Some(first.left) };
        let second = h.requeue(requeue_of("q", go_on)).await.unwrap();
        assert_eq!((first.ids.len(), second.ids.len(), second.has_more), (17, 3, false));
    }
}

store_test! {
    async fn the_overflow_alone_can_go_back(h) {
        h.set(|queue| queue.dead_letters.max_entries = 1);
        dead_letter_all(&h, &["a", "b", "c"]).await;
        let by_id = h.requeue(requeue_of("dlq:overflow:q", Which::Ids(ids(&["a"])))).await.unwrap();
        assert_eq!(by_id.skipped, [(id("a"), SkipReason::JobNotFound)]);
        let done = h.requeue(requeue_of("dlq:overflow:q", oldest(10))).await.unwrap();
        assert_eq!(done.ids, ids(&["b", "c"]));
        let depths = h.depths("q").await;
        assert_eq!((depths.dead, depths.overflow), (1, 0));
    }
}

store_test! {
    async fn a_new_life_starts_the_count_again(h) {
        h.set(without_jitter);
        let id = h.enqueue(job("q").retries(1)).await;
        for _ in 0..2 {
            let lease = h.claim("q").await.delivery.lease;
            h.nack(lease, failed("Timeout")).await.unwrap();
            h.advance(SECOND);
        }
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        let delivered = h.claim("q").await;
        assert_eq!((delivered.delivery.attempt, delivered.progress.deliveries), (1, 3));
        assert_eq!((delivered.progress.redrives, delivered.progress.releases), (1, 0));
        let ended = h.nack(delivered.delivery.lease, failed("Timeout")).await.unwrap();
        assert_eq!(ended.retries_left, 1);
        assert_eq!(h.view(&id).await.attempts.len(), 3);
    }
}

store_test! {
    async fn keeping_the_attempts_leaves_one_more_try(h) {
        h.enqueue(job("q").retries(0)).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, failed("Timeout")).await.unwrap();
        let requeue = Requeue { keep_attempts: true, ..requeue_of("q", oldest(1)) };
        h.requeue(requeue).await.unwrap();
        let delivered = h.claim("q").await;
        assert_eq!(delivered.delivery.attempt, 2);
        h.nack(delivered.delivery.lease, failed("Timeout")).await.unwrap();
        assert_eq!(h.depths("q").await.dead, 1);
    }
}

store_test! {
    async fn a_deadline_that_has_passed_is_cleared(h) {
        h.enqueue(job("q").expires(SECOND)).await;
        h.advance(SECOND);
        h.sweep().await;
        assert_eq!(h.dead("q").await[0].death.as_ref().unwrap().reason, DeadReason::Expired);
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        h.recorded.take_died();
        h.advance(HOUR);
        h.sweep().await;
        assert!(h.recorded.take_died().is_empty());
        assert!(h.claim("q").await.progress.deadline_cleared);
    }
}

store_test! {
    async fn a_deadline_that_is_still_to_come_holds(h) {
        h.dead_letter(job("q").expires(HOUR)).await;
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        h.recorded.take_died();
        h.advance(HOUR);
        h.sweep().await;
        assert_eq!(h.recorded.take_died().len(), 1);
    }
}

store_test! {
    async fn a_dry_run_says_what_would_happen_and_changes_nothing(h) {
        dead_letter_all(&h, &["a", "b"]).await;
        let before = h.queue("q").await.unwrap();
        let requeue = Requeue {
            dry_run: true,
            target: Some(queue("new")),
            ..requeue_of("q", oldest(1))
        };
        let done = h.requeue(requeue).await.unwrap();
        assert_eq!((done.ids, done.has_more), (ids(&["a"]), true));
        let after = h.queue("q").await.unwrap();
        assert_eq!((after.depths, after.totals), (before.depths, before.totals));
        assert!(h.queue("new").await.is_none());
        assert_eq!(h.view(&id("a")).await.progress.redrives, 0);
    }
}

store_test! {
    async fn letters_move_to_another_queue_which_is_made(h) {
        let made = h.dead_letter(job("q").key("k")).await;
        dead_letter_all(&h, &["mine"]).await;
        let requeue = Requeue { target: Some(queue("other")), ..requeue_of("q", oldest(10)) };
        h.requeue(requeue).await.unwrap();
        let (from, to) = (h.queue("q").await.unwrap(), h.queue("other").await.unwrap());
        assert_eq!((from.depths.held(), from.totals.moved_out), (0, 2));
        assert_eq!((to.depths.ready, to.totals.moved_in, to.totals.enqueued), (2, 2, 0));
        assert_eq!(h.try_enqueue(job("other").id("mine")).await.unwrap().outcome, EnqueueOutcome::Existing);
        assert_eq!(h.try_enqueue(job("other").id(&made.to_string())).await.unwrap().outcome, EnqueueOutcome::Existing);
        assert_eq!(h.try_enqueue(job("other").key("k")).await.unwrap().outcome, EnqueueOutcome::Existing);
        h.enqueue(job("q").id("mine").key("k")).await;
        for delivered in h.claim_many("other", 2).await {
            assert_eq!(delivered.queue.as_str(), "other");
            h.ack(delivered.delivery.lease).await.unwrap();
        }
        assert_eq!(h.view(&id("mine")).await.queue.as_str(), "q");
        h.advance(seconds(600));
        h.enqueue(job("other").id("mine")).await;
    }
}

store_test! {
    async fn a_key_or_id_that_another_job_has_is_in_the_way(h) {
        h.dead_letter(job("q").id("a").key("k")).await;
        h.enqueue(job("q").key("k").body("other")).await;
        let done = h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(done.skipped, [(id("a"), SkipReason::KeyTaken)]);
        h.enqueue(job("r").id("a").body("other")).await;
        let requeue = Requeue { target: Some(queue("r")), ..requeue_of("q", oldest(1)) };
        let done = h.requeue(requeue).await.unwrap();
        assert_eq!(done.skipped, [(id("a"), SkipReason::IdTaken)]);
        assert_eq!(h.depths("q").await.dead, 1);
    }
}

store_test! {
    async fn a_dead_jobs_own_key_is_not_in_its_way(h) {
        h.set(|queue| queue.dead_jobs_hold_keys = true);
        h.dead_letter(job("q").id("a").key("k")).await;
        let done = h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(done.ids, ids(&["a"]));
    }
}

store_test! {
    async fn unknown_queues_and_too_many_are_refused(h) {
        h.place.max_queues = 1;
        h.reopen().await;
        assert_eq!(h.requeue(requeue_of("q", oldest(1))).await, Err(no_queue("q")));
        h.dead_letter(job("q")).await;
        let requeue = Requeue { target: Some(queue("other")), ..requeue_of("q", oldest(1)) };
        assert_eq!(h.requeue(requeue).await, Err(Refusal::TooManyQueues { limit: 1 }));
        assert_eq!(h.depths("q").await.dead, 1);
    }
}

store_test! {
    async fn nothing_to_do_is_no_error(h) {
        h.enqueue(job("q")).await;
        let done = h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(done, Requeued::default());
    }
}

store_test! {
    async fn tokens_of_the_earlier_life_are_refused(h) {
        h.enqueue(job("q")).await;
        let expired = h.claim("q").await.delivery.lease;
        h.advance(HOUR);
        h.sweep().await;
        h.advance(HOUR);
        let killed = h.claim("q").await.delivery.lease;
        h.nack(killed.clone(), permanent()).await.unwrap();
        let requeue = Requeue { target: Some(queue("other")), ..requeue_of("q", oldest(1)) };
        h.requeue(requeue).await.unwrap();
        let new = h.claim("other").await.delivery.lease;
        for old in [expired, killed] {
            assert_eq!(h.ack(old.clone()).await, Err(Refusal::LeaseLost));
            assert_eq!(h.nack(old.clone(), permanent()).await, Err(Refusal::LeaseLost));
            assert_eq!(h.extend(old, None, "").await, Err(Refusal::LeaseLost));
        }
        assert!(h.ack(new).await.is_ok());
    }
}

store_test! {
    async fn a_letter_can_die_and_go_back_again_and_again(h) {
        h.enqueue(job("q").id("a").key("k").expires(HOUR)).await;
        for life in 1..=3 {
            let lease = h.claim("q").await.delivery.lease;
            h.nack(lease, permanent()).await.unwrap();
            assert_eq!(h.requeue(requeue_of("q", oldest(1))).await.unwrap().ids.len(), 1);
            let view = h.view(&id("a")).await;
            assert_eq!((view.state, view.progress.redrives), (State::Ready, life));
            assert!(view.death.is_none());
        }
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        assert_eq!(h.depths("q").await.held(), 0);
    }
}
