//! Dead letters that go for good.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::JobId;
use redrive::queue::Refusal;
use redrive::queue::{Acked, Purge, Purged, SkipReason, Which};

async fn dead_letter_all<S: Engine>(h: &Harness<S>, ids: &[&str]) {
    for id in ids {
        h.dead_letter(job("q").id(id)).await;
    }
}

fn ids(texts: &[&str]) -> Vec<JobId> {
    texts.iter().map(|text| JobId::parse(text)).collect()
}

async fn left<S: Engine>(h: &Harness<S>) -> String {
    let dead = h.dead("q").await;
    dead.iter().map(|job| job.spec.id.to_string()).collect::<Vec<_>>().join(" ")
}

store_test! {
    async fn named_letters_go_and_unknown_ones_are_skipped(h) {
        dead_letter_all(&h, &["a", "b", "c"]).await;
        h.enqueue(job("q").id("alive")).await;
        let which = Which::Ids(ids(&["c", "unknown", "a", "alive", "a"]));
        let done = h.purge(purge_of("q", which)).await.unwrap();
        assert_eq!(done.count, 2);
        let missing = |text| (JobId::parse(text), SkipReason::JobNotFound);
        assert_eq!(done.skipped, [missing("unknown"), missing("alive"), missing("a")]);
        assert_eq!(left(&h).await, "b");
        let queue = h.queue("q").await.unwrap();
        assert_eq!((queue.depths.dead, queue.depths.ready), (1, 1));
        assert_eq!((queue.totals.purged, queue.totals.requeued), (2, 0));
    }
}

store_test! {
    async fn a_purged_job_leaves_nothing_behind(h) {
        h.set(|queue| queue.dead_jobs_hold_keys = true);
        let made = h.dead_letter(job("q").key("made").expires(HOUR)).await;
        h.dead_letter(job("q").id("own").key("k").expires(HOUR)).await;
        h.enqueue(job("q").id("x")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease.clone(), permanent()).await.unwrap();
        assert_eq!(h.purge(purge_of("q", oldest(10))).await.unwrap().count, 3);
        assert!(h.views(&made).await.is_empty());
        assert!(h.views(&JobId::parse("own")).await.is_empty());
        assert_eq!(h.depths("q").await.held(), 0);
        assert_eq!(h.ack(lease.clone()).await, Ok(Acked { already_gone: true }));
        assert_eq!(h.nack(lease, permanent()).await, Err(Refusal::LeaseLost));
        // Ids are free after a while, keys at once, and the new jobs have no history.
        h.advance(seconds(600));
        h.enqueue(job("q").id("own").key("made").body("other")).await;
        h.enqueue(job("q").id("x").key("k").body("other")).await;
        let view = h.view(&JobId::parse("x")).await;
        assert_eq!((view.attempts.len(), view.progress.deliveries), (0, 0));
        h.reopen().await;
        assert_eq!(h.depths("q").await.ready, 2);
        h.advance(HOUR);
        h.sweep().await;
        assert_eq!(h.depths("q").await.dead, 0, "no deadline was left");
    }
}

store_test! {
    async fn the_oldest_go_first_and_a_cutoff_leaves_the_new_alone(h) {
        dead_letter_all(&h, &["c", "a", "b"]).await;
        let first = h.purge(purge_of("q", oldest(2))).await.unwrap();
        assert_eq!((first.count, first.has_more), (2, true));
        dead_letter_all(&h, &["new"]).await;
        let go_on = Which::Oldest { limit: 10, among: Some(first.left) };
        let second = h.purge(purge_of("q", go_on)).await.unwrap();
        assert_eq!((second.count, second.has_more), (1, false));
        assert_eq!(left(&h).await, "new");
    }
}

store_test! {
    async fn only_what_was_found_goes(h) {
        dead_letter_all(&h, &["a"]).await;
        h.enqueue(job("q").id("b").retries(0)).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, failed("Timeout")).await.unwrap();
        dead_letter_all(&h, &["c"]).await;
        let done = h.purge(purge_of("q", found(of_type("Time*"), 10))).await.unwrap();
        assert_eq!((done.count, done.has_more), (1, false));
        assert_eq!(left(&h).await, "a c");
    }
}

store_test! {
    async fn the_overflow_alone_can_go(h) {
        h.set(|queue| queue.dead_letters.max_entries = 1);
        dead_letter_all(&h, &["a", "b", "c"]).await;
        let by_id = h.purge(purge_of("dlq:overflow:q", Which::Ids(ids(&["a"])))).await.unwrap();
        assert_eq!((by_id.count, by_id.skipped.len()), (0, 1));
        assert_eq!(h.purge(purge_of("dlq:overflow:q", oldest(10))).await.unwrap().count, 2);
        let depths = h.depths("q").await;
        assert_eq!((depths.dead, depths.overflow), (1, 0));
    }
}

store_test! {
    async fn a_dry_run_counts_and_removes_nothing(h) {
        dead_letter_all(&h, &["a", "b"]).await;
        let before = h.queue("q").await.unwrap();
        let dry = Purge { dry_run: true, ..purge_of("q", oldest(1)) };
        let done = h.purge(dry).await.unwrap();
        assert_eq!((done.count, done.has_more), (1, true));
        let after = h.queue("q").await.unwrap();
        assert_eq!((after.depths, after.totals), (before.depths, before.totals));
    }
}

store_test! {
    async fn an_unknown_queue_is_refused_and_an_empty_one_is_not(h) {
        assert_eq!(h.purge(purge_of("q", oldest(1))).await, Err(no_queue("q")));
        h.enqueue(job("q")).await;
        assert_eq!(h.purge(purge_of("q", oldest(1))).await, Ok(Purged::default()));
    }
}
