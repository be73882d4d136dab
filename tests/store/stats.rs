//! What is counted, and that nothing is forgotten of it.

use crate::builders::*;
use redrive::queue::{Stats, Totals};

fn balanced(stats: &Stats) -> bool {
    let t = &stats.totals;
    let out = t.completed + t.purged + t.cancelled + t.retention_expired + t.moved_out;
    t.enqueued + t.moved_in == out + stats.held
}

store_test! {
    async fn a_new_store_has_counted_nothing(h) {
        assert_eq!(h.stats(None).await, Some(Stats::default()));
        assert_eq!(h.stats(Some("q")).await, None);
    }
}

store_test! {
    async fn everything_that_happens_is_counted_once(h) {
        h.set(without_jitter);
        h.enqueue_all(vec![job("a"), job("a"), job("a").delay(HOUR), job("b")]).await;
        let lease = h.claim("a").await.delivery.lease;
        h.nack(lease, failed("E")).await.unwrap();
        h.advance(SECOND);
        h.sweep().await;
        for _ in 0..2 {
            let lease = h.claim("a").await.delivery.lease;
            h.ack(lease).await.unwrap();
        }
        h.dead_letter(job("b2")).await;
        h.requeue(redrive::queue::Requeue { target: Some(queue("a")), ..requeue_of("b2", oldest(1)) })
            .await
            .unwrap();
        h.claim("b").await;
        h.advance(HOUR / 2);
        h.sweep().await;
        let a = h.stats(Some("a")).await.unwrap();
        let expected = Totals {
            enqueued: 3,
            completed: 2,
            failed_attempts: 1,
            retries: 1,
            successful_retries: 1,
            retried_finished: 1,
            moved_in: 1,
            ..Totals::default()
        };
        assert_eq!(a, Stats { totals: expected, held: 2 });
        let b = h.stats(Some("b")).await.unwrap().totals;
        assert_eq!((b.lease_expired, b.failed_attempts, b.retries), (1, 1, 1));
        let moved = h.stats(Some("b2")).await.unwrap();
        let t = moved.totals;
        assert_eq!((t.dead_lettered, t.requeued, t.moved_out, moved.held), (1, 1, 1, 0));
        let mut sum = Totals::default();
        for view in h.queues().await {
            let queue = h.stats(Some(view.name.as_str())).await.unwrap();
            assert!(balanced(&queue), "{queue:?}");
            sum += queue.totals;
        }
        let all = h.stats(None).await.unwrap();
        assert_eq!((all.totals, all.held), (sum, 3));
        h.reopen().await;
        assert_eq!(h.stats(None).await, Some(all), "a restart changes no total");
    }
}

store_test! {
    async fn the_totals_of_all_are_the_sum_of_the_queues_that_there_are(h) {
        h.enqueue(job("stays")).await;
        h.enqueue(job("short-lived")).await;
        let lease = h.claim("short-lived").await.delivery.lease;
        h.ack(lease).await.unwrap();
        assert_eq!(h.stats(None).await.unwrap().totals.enqueued, 2);
        h.advance(25 * HOUR);
        h.sweep().await;
        assert_eq!(h.stats(Some("short-lived")).await, None, "it is forgotten");
        assert_eq!(h.stats(None).await.unwrap().totals.enqueued, 1);
        h.reopen().await;
        h.enqueue(job("short-lived")).await;
        assert_eq!(h.stats(Some("short-lived")).await.unwrap().totals.enqueued, 1);
        assert_eq!(h.stats(None).await.unwrap().totals.enqueued, 2);
    }
}
