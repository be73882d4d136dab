//! One answer that asks for a pause holds the queue.

use crate::breaker::{RECOVERY, steady};
use crate::builders::*;
use redrive::domain::{AttemptStatus, BreakerState, ErrorRule, Matcher, Next, Outcome, StatusPattern, Then};
use redrive::queue::BreakerOrder;
use std::time::Duration;

fn holding(status: &str) -> ErrorRule {
    let http_status = Some(StatusPattern::parse(status).unwrap());
    ErrorRule::at(0, Matcher { http_status, ..Matcher::default() }, Then::Hold)
}

fn too_many_requests(retry_after: Option<Duration>) -> Outcome {
    let mut failure = redrive::domain::Failure::new("Http", "slow down");
    failure.http_status = 429;
    Outcome::Failed { failure, permanent: false, retry_after }
}

store_test! {
    async fn a_hold_stops_the_queue_for_exactly_the_time_asked(h) {
        h.set(|queue| {
            steady(queue);
            queue.rules = vec![holding("429")];
        });
        let lease = h.out(1).await[0].clone();
        h.enqueue_all(vec![job("q"), job("q")]).await;
        let attempt = h.nack(lease, too_many_requests(Some(seconds(17)))).await.unwrap();
        assert_eq!((attempt.status, attempt.counted), (AttemptStatus::Released, false));
        assert_eq!(attempt.next, Next::Behind { at: h.now() }, "it waits with the others");
        assert_eq!((attempt.breaker, attempt.rule.as_str()), (BreakerState::Open, "rules[0]: http_status=429"));
        h.advance(seconds(17) - MILLISECOND);
        assert_eq!(h.idle("q").await.until, Some(h.now().after(MILLISECOND)));
        h.advance(MILLISECOND);
        let probe = h.claim("q").await;
        assert!(probe.delivery.probe);
        h.ack(probe.delivery.lease).await.unwrap();
        assert_eq!(h.drain("q").await.len(), 2);
    }
}

store_test! {
    async fn a_hold_moves_the_probe_to_the_latest_time_asked_and_not_beyond_max_retry_after(h) {
        h.set(|queue| {
            steady(queue);
            queue.rules = vec![holding("429")];
        });
        let leases = h.out(5).await;
        let now = h.now();
        for (lease, asked, until) in [
            (leases[0].clone(), Some(30), 30),
            (leases[1].clone(), Some(10), 30),
            (leases[2].clone(), Some(45), 45),
            (leases[3].clone(), None, 60),
            (leases[4].clone(), Some(100_000), 3_600),
        ] {
            let outcome = too_many_requests(asked.map(seconds));
            let attempt = h.nack(lease, outcome).await.unwrap();
            assert!(matches!(attempt.next, Next::Behind { .. }), "{asked:?}");
            assert_eq!(h.idle("q").await.until, Some(now.after(seconds(until))), "{asked:?}");
        }
        assert_eq!(h.breakers("q").await.work.breaker.trips, 1);
    }
}

store_test! {
    async fn where_no_breaker_can_open_a_hold_is_a_release_for_that_time(h) {
        h.set(|queue| {
            steady(queue);
            queue.rules = vec![holding("429")];
        });
        let leases = h.out(3).await;
        let force = |open| BreakerOrder::Force { open, reason: String::new() };
        h.set_breaker("queue:q", force(false)).await.unwrap();
        let outcome = too_many_requests(Some(seconds(17)));
        let attempt = h.nack(leases[0].clone(), outcome).await.unwrap();
        assert_eq!(attempt.next, Next::Later { at: h.now().after(seconds(17)) });
        h.set_breaker("queue:q", force(true)).await.unwrap();
        let attempt = h.nack(leases[1].clone(), too_many_requests(None)).await.unwrap();
        assert_eq!(attempt.next, Next::Later { at: h.now().after(RECOVERY) });
        h.set_breaker("queue:q", BreakerOrder::Reset).await.unwrap();
        // From before the reset: it waits alone.
        let attempt = h.nack(leases[2].clone(), too_many_requests(Some(SECOND))).await.unwrap();
        assert_eq!(attempt.next, Next::Later { at: h.now().after(SECOND) });
        assert_eq!(h.breaker_state().await, BreakerState::Closed);
    }
}
