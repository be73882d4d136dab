//! Dead letters that have been kept for long enough.

use crate::builders::*;
use redrive::domain::JobId;
use std::sync::Arc;

store_test! {
    async fn letters_are_kept_for_ever_unless_told_otherwise(h) {
        h.dead_letter(job("q")).await;
        h.advance(HOUR * 24 * 365);
        let swept = h.sweep().await;
        assert_eq!((swept.retention_expired, swept.next), (0, None));
        assert_eq!(h.depths("q").await.dead, 1);
    }
}

store_test! {
    async fn letters_go_when_their_time_since_death_is_over(h) {
        h.set(|queue| queue.dead_letters.retention = Some(HOUR));
        h.advance(HOUR);
        h.dead_letter(job("q").id("a").key("k")).await;
        let first = h.now();
        assert_eq!(h.sweep().await.next, Some(first.after(HOUR)));
        h.advance(SECOND);
        h.dead_letter(job("q").id("b")).await;
        h.advance(HOUR - SECOND - MILLISECOND);
        assert_eq!(h.sweep().await.next, Some(first.after(HOUR)));
        assert_eq!(h.depths("q").await.dead, 2);
        h.advance(MILLISECOND);
        let swept = h.sweep().await;
        assert_eq!(swept.retention_expired, 1);
        assert_eq!(swept.next, Some(first.after(HOUR + SECOND)));
        assert!(h.views(&JobId::parse("a")).await.is_empty());
        let queue = h.queue("q").await.unwrap();
        assert_eq!((queue.depths.dead, queue.totals.retention_expired), (1, 1));
        assert_eq!(queue.totals.purged, 0);
        h.reopen().await;
        h.advance(SECOND);
        assert_eq!(h.sweep().await.next, Some(first.after(HOUR + seconds(600))), "an id is held for longer");
        assert_eq!(h.depths("q").await.held(), 0);
        h.advance(seconds(600));
        h.enqueue(job("q").id("a").key("k").body("other")).await;
    }
}

store_test! {
    async fn the_sweeper_hears_of_a_letter_that_is_not_kept_for_long(h) {
        h.set(|queue| queue.dead_letters.retention = Some(SECOND));
        h.dead_letter(job("q")).await;
        assert_eq!(h.due().await.last(), Some(&h.now().after(SECOND)));
    }
}

store_test! {
    async fn a_second_death_counts_anew(h) {
        h.set(|queue| queue.dead_letters.retention = Some(HOUR));
        h.dead_letter(job("q")).await;
        h.advance(HOUR - SECOND);
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, permanent()).await.unwrap();
        h.advance(HOUR - SECOND);
        assert_eq!(h.sweep().await.retention_expired, 0);
        h.advance(SECOND);
        assert_eq!(h.sweep().await.retention_expired, 1);
    }
}

store_test! {
    async fn each_queue_has_its_own_retention_and_overflow_goes_too(h) {
        let mut short = (*h.settings.defaults).clone();
        short.dead_letters.retention = Some(SECOND);
        short.dead_letters.max_entries = 1;
        Arc::make_mut(&mut h.settings).queues.insert(queue("short"), Arc::new(short));
        for name in ["short", "short", "long"] {
            h.dead_letter(job(name)).await;
        }
        h.advance(SECOND);
        assert_eq!(h.sweep().await.retention_expired, 2);
        let depths = h.depths("short").await;
        assert_eq!((depths.dead, depths.overflow), (0, 0));
        assert_eq!(h.depths("long").await.dead, 1);
    }
}

store_test! {
    async fn a_retention_that_is_set_later_holds_for_those_that_are_there(h) {
        h.dead_letter(job("q")).await;
        h.advance(HOUR);
        h.sweep().await;
        h.set(|queue| queue.dead_letters.retention = Some(HOUR));
        assert_eq!(h.sweep().await.retention_expired, 1);
    }
}

store_test! {
    async fn one_sweep_removes_a_bounded_part_and_says_that_there_is_more(h) {
        h.set(|queue| queue.dead_letters.retention = Some(SECOND));
        for _ in 0..2 {
            h.enqueue_all((0..400).map(|_| job("q").retries(0)).collect()).await;
            for delivered in h.claim_many("q", 400).await {
                h.nack(delivered.delivery.lease, permanent()).await.unwrap();
            }
        }
        h.advance(SECOND);
        let first = h.store().sweep(sweep_all()).await.unwrap();
        assert_eq!(first.retention_expired, 500);
        assert!(first.next.unwrap() <= h.now());
        // Under the same settings, as a server sweeps.
        let second = h.store().sweep(sweep_all()).await.unwrap();
        assert_eq!((second.retention_expired, second.next), (300, None));
        assert_eq!(h.queue("q").await.unwrap().totals.retention_expired, 800);
    }
}
