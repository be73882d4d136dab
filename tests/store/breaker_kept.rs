//! The breaker of a queue's work: operators step in, and nothing is forgotten over a restart.

use crate::{breaker::steady, builders::*};
use redrive::domain::{BreakerState, State};
use redrive::queue::Refusal;
use redrive::queue::{BreakerOrder, IdleReason};
use std::{sync::Arc, time::Duration};

// ---- operators ----

store_test! {
    async fn forced_open_lets_nothing_out_until_it_is_reset(h) {
        h.enqueue(job("q")).await;
        let order = BreakerOrder::Force { open: true, reason: "maintenance".into() };
        let view = h.set_breaker("queue:q", order).await.unwrap();
        assert_eq!(view.breaker.forced.as_ref().map(|forced| forced.reason.as_str()), Some("maintenance"));
        h.advance(HOUR);
        h.sweep().await;
        let idle = h.idle("q").await;
        assert_eq!((idle.reason, idle.until), (IdleReason::BreakerOpen, None));
        h.recorded.take_available();
        h.set_breaker("queue:q", BreakerOrder::Reset).await.unwrap();
        h.settle(Default::default()).await;
        assert_eq!(h.recorded.take_available(), [("q".to_owned(), 1)]);
        assert!(!h.claim("q").await.delivery.probe);
    }
}

store_test! {
    async fn forced_closed_nothing_opens_it(h) {
        let order = BreakerOrder::Force { open: false, reason: String::new() };
        let leases = h.out(20).await;
        h.set_breaker("queue:q", order).await.unwrap();
        for lease in leases {
            let attempt = h.nack(lease, failed("Timeout")).await.unwrap();
            assert_eq!((attempt.counted, attempt.breaker), (true, BreakerState::Closed));
        }
    }
}

store_test! {
    async fn a_reset_closes_an_open_breaker_and_counts_from_zero(h) {
        h.trip().await;
        let view = h.set_breaker("queue:q", BreakerOrder::Reset).await.unwrap();
        assert_eq!((view.failures, view.breaker.trips, view.breaker.outage), (0, 0, None));
        assert_eq!(view.breaker.last_error, "");
        assert!(h.drain("q").await.contains(&"spare".to_owned()));
    }
}

store_test! {
    async fn the_breaker_of_a_queue_that_is_only_configured_can_be_set(h) {
        assert_eq!(h.set_breaker("queue:q", BreakerOrder::Reset).await, Err(Refusal::BreakerNotFound { name: "queue:q".into() }));
        Arc::make_mut(&mut h.settings).queues.insert(queue("q"), Arc::default());
        let order = BreakerOrder::Force { open: true, reason: String::new() };
        h.set_breaker("queue:q", order).await.unwrap();
        h.enqueue(job("q")).await;
        assert_eq!(h.idle("q").await.reason, IdleReason::BreakerOpen);
        assert_eq!(h.breakers("nowhere").await, Default::default());
    }
}

// ---- over a restart ----

store_test! {
    async fn an_open_breaker_is_open_after_a_restart_for_as_long_as_before(h) {
        h.trip().await;
        let (until, before) = (h.idle("q").await.until, h.breakers("q").await.work);
        h.advance(seconds(20));
        h.reopen().await;
        let idle = h.idle("q").await;
        assert_eq!((idle.reason, idle.until), (IdleReason::BreakerOpen, until));
        assert_eq!(h.breakers("q").await.work, before);
        h.reach_probe().await;
        h.sweep().await;
        assert!(h.claim("q").await.delivery.probe);
    }
}

store_test! {
    async fn a_probe_that_is_out_is_a_probe_after_a_restart(h) {
        h.half_open().await;
        let probe = h.claim("q").await.delivery.lease;
        h.reopen().await;
        assert_eq!(h.idle("q").await.reason, IdleReason::Limited);
        assert_eq!(h.breakers("q").await.work.probes, 1);
        h.ack(probe).await.unwrap();
        assert_eq!(h.breaker_state().await, BreakerState::Closed);
        assert_eq!(h.drain("q").await.len(), 5);
    }
}

store_test! {
    async fn probes_that_succeeded_are_remembered_over_a_restart(h) {
        h.set(|queue| queue.breaker.success_threshold = 2);
        h.half_open().await;
        let probe = h.claim("q").await.delivery.lease;
        h.ack(probe).await.unwrap();
        h.reopen().await;
        let probe = h.claim("q").await.delivery.lease;
        h.ack(probe).await.unwrap();
        assert_eq!(h.breaker_state().await, BreakerState::Closed);
    }
}

store_test! {
    async fn an_outcome_of_a_delivery_from_before_a_transition_and_a_restart_changes_nothing(h) {
        h.set(steady);
        let leases = h.out(20).await;
        h.advance(SECOND);
        for lease in &leases[..5] {
            h.nack(lease.clone(), failed("Timeout")).await.unwrap();
        }
        assert_eq!(h.breaker_state().await, BreakerState::Open);
        h.set_breaker("queue:q", BreakerOrder::Reset).await.unwrap();
        h.reopen().await;
        for lease in &leases[5..] {
            h.nack(lease.clone(), failed("Timeout")).await.unwrap();
        }
        assert_eq!(h.breaker_state().await, BreakerState::Closed);
        assert_eq!(h.breakers("q").await.work.failures, 0);
    }
}

store_test! {
    async fn a_forced_breaker_is_forced_after_a_restart(h) {
        h.enqueue(job("q")).await;
        let order = BreakerOrder::Force { open: true, reason: "maintenance".into() };
        let before = h.set_breaker("queue:q", order).await.unwrap();
        h.reopen().await;
        assert_eq!(h.breakers("q").await.work, before);
        assert_eq!(h.idle("q").await.reason, IdleReason::BreakerOpen);
    }
}

store_test! {
    async fn a_queue_whose_breaker_is_forced_is_not_forgotten(h) {
        h.dead_letter(job("q").id("x")).await;
        h.purge(purge_of("q", oldest(1))).await.unwrap();
        let order = BreakerOrder::Force { open: true, reason: String::new() };
        h.set_breaker("queue:q", order).await.unwrap();
        for _ in 0..4 {
            h.advance(Duration::from_secs(24 * 3600));
            h.sweep().await;
        }
        assert!(h.queue("q").await.is_some());
        h.set_breaker("queue:q", BreakerOrder::Reset).await.unwrap();
        for _ in 0..4 {
            h.advance(Duration::from_secs(24 * 3600));
            h.sweep().await;
        }
        assert!(h.queue("q").await.is_none());
    }
}

store_test! {
    async fn settings_that_change_take_effect_at_once(h) {
        h.trip().await;
        assert_eq!(h.idle("q").await.reason, IdleReason::BreakerOpen);
        h.recorded.take_available();
        h.set(|queue| queue.breaker.disabled = true);
        h.settle(Default::default()).await;
        assert_eq!(h.recorded.take_available(), [("q".to_owned(), 1)], "the waiter for `spare` is notified");
        assert!(!h.claim("q").await.delivery.probe);
    }
}

store_test! {
    async fn a_dead_letter_says_how_the_breakers_stood(h) {
        h.trip().await;
        h.reach_probe().await;
        h.sweep().await;
        let probe = h.claim("q").await.delivery.lease;
        h.nack(probe, permanent()).await.unwrap();
        let death = h.dead("q").await.remove(0).death.unwrap();
        let context = (death.context.queue_breaker, death.context.dlq_breaker);
        assert_eq!(context, (BreakerState::HalfOpen, BreakerState::Closed));
    }
}

store_test! {
    async fn a_job_shows_the_breaker_that_holds_it_back(h) {
        h.trip().await;
        let view = h.view(&redrive::domain::JobId::parse("spare")).await;
        assert_eq!((view.state, view.breaker.outage.is_some()), (State::Ready, true));
    }
}
