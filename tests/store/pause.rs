//! A paused queue hands out nothing; everything else goes on.

use crate::builders::*;
use redrive::domain::{Pause, State};
use redrive::queue::IdleReason;
use redrive::queue::Refusal;
use std::sync::Arc;

impl<S: crate::engines::Engine> crate::harness::Harness<S> {
    /// A queue without jobs, paused for ten seconds.
    async fn pause_configured(&mut self) {
        Arc::make_mut(&mut self.settings).queues.insert(queue("configured"), Arc::default());
        self.pause("configured", Some(seconds(10))).await.unwrap();
    }
}

store_test! {
    async fn a_paused_queue_hands_out_nothing_and_says_until_when(h) {
        h.enqueue_all(vec![job("q"), job("q").delay(HOUR)]).await;
        h.pause("q", None).await.unwrap();
        let idle = h.idle("q").await;
        assert_eq!((idle.reason, idle.until), (IdleReason::Paused, None));
        h.pause("q", Some(seconds(60))).await.unwrap();
        let until = Some(h.now().after(seconds(60)));
        let idle = h.idle("q").await;
        assert_eq!((idle.reason, idle.until), (IdleReason::Paused, until));
        let view = h.queue("q").await.unwrap();
        assert_eq!(view.pause, Some(Pause { until, reason: "why not".into() }));
        assert_eq!(h.queue("q").await.unwrap().depths.ready, 1);
        h.resume("q").await.unwrap();
        assert_eq!(h.queue("q").await.unwrap().pause, None);
        h.claim("q").await;
        h.resume("q").await.unwrap();
    }
}

store_test! {
    async fn settling_expiry_promotion_and_deadlines_go_on(h) {
        h.set(without_jitter);
        for id in ["acked", "failed", "lost"] {
            h.enqueue(job("q").id(id)).await;
        }
        let jobs = h.claim_many("q", 3).await;
        let leases: Vec<_> = jobs.into_iter().map(|job| job.delivery.lease).collect();
        h.enqueue(job("q").id("late").expires(SECOND)).await;
        h.enqueue(job("q").id("due").delay(SECOND)).await;
        h.pause("q", None).await.unwrap();
        h.ack(leases[0].clone()).await.unwrap();
        h.extend(leases[2].clone(), Some(seconds(20)), "").await.unwrap();
        h.nack(leases[1].clone(), failed("E")).await.unwrap();
        h.enqueue(job("q").id("new")).await;
        h.advance(seconds(40));
        let swept = h.sweep().await;
        assert_eq!((swept.promoted, swept.expired.len()), (2, 1));
        for (id, state) in [
            ("failed", State::Ready),
            ("lost", State::Retrying),
            ("late", State::Dead),
            ("due", State::Ready),
            ("new", State::Ready),
        ] {
            let id = redrive::domain::JobId::parse(id);
            assert_eq!(h.view(&id).await.state, state, "{id}");
        }
        assert_eq!(h.idle("q").await.reason, IdleReason::Paused);
        assert_eq!(h.dead("q").await.len(), 1);
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(h.idle("q").await.reason, IdleReason::Paused);
    }
}

store_test! {
    async fn a_pause_ends_by_itself_at_its_time(h) {
        h.enqueue_all(vec![job("q"), job("q")]).await;
        h.due().await;
        h.pause("q", Some(seconds(10))).await.unwrap();
        assert_eq!(h.due().await, [h.now().after(seconds(10))], "the sweep is told when");
        h.advance(seconds(10) - MILLISECOND);
        h.sweep().await;
        assert_eq!(h.idle("q").await.reason, IdleReason::Paused);
        h.recorded.take_available();
        h.advance(MILLISECOND);
        h.claim("q").await;
        h.recorded.take_available();
        h.sweep().await;
        assert_eq!(h.recorded.take_available(), [("q".to_owned(), 1)], "who waits is woken");
        assert_eq!(h.queue("q").await.unwrap().pause, None);
    }
}

store_test! {
    async fn a_pause_that_is_over_hides_nothing_before_the_sweep(h) {
        h.pause_configured().await;
        h.advance(seconds(10));
        h.recorded.take_available();
        h.enqueue(job("configured")).await;
        assert_eq!(h.recorded.take_available(), [("configured".to_owned(), 1)]);
        h.claim("configured").await;
    }
}

store_test! {
    async fn a_later_pause_replaces_the_earlier_one(h) {
        h.enqueue(job("q")).await;
        h.pause("q", Some(seconds(10))).await.unwrap();
        h.pause("q", Some(seconds(30))).await.unwrap();
        h.advance(seconds(10));
        h.sweep().await;
        assert_eq!(h.idle("q").await.reason, IdleReason::Paused);
        h.pause("q", None).await.unwrap();
        h.advance(25 * HOUR);
        h.sweep().await;
        assert_eq!(h.idle("q").await.reason, IdleReason::Paused);
        h.pause("q", Some(SECOND)).await.unwrap();
        h.advance(SECOND);
        h.claim("q").await;
    }
}

store_test! {
    async fn a_paused_queue_wakes_no_waiter(h) {
        h.pause_configured().await;
        h.recorded.take_available();
        h.enqueue_all(vec![job("configured"), job("configured").delay(SECOND)]).await;
        h.advance(SECOND);
        h.sweep().await;
        assert_eq!(h.recorded.take_available(), []);
        h.resume("configured").await.unwrap();
        assert_eq!(h.recorded.take_available(), [("configured".to_owned(), 2)]);
        h.pause("configured", None).await.unwrap();
        h.enqueue(job("other")).await;
        h.enqueue(job("other")).await;
        h.recorded.take_available();
        let claimed = h.try_claim(claim_of(&["configured", "other"], 1)).await;
        assert_eq!(claimed.jobs[0].queue, queue("other"));
        let told = h.recorded.take_available();
        assert_eq!(told, [("other".to_owned(), 1)], "no waiter of a paused queue is woken");
    }
}

store_test! {
    async fn a_pause_survives_restarts_and_so_does_its_end(h) {
        h.enqueue_all(vec![job("a"), job("b")]).await;
        h.pause("a", None).await.unwrap();
        h.pause("b", Some(seconds(60))).await.unwrap();
        let until = h.now().after(seconds(60));
        h.due().await;
        h.reopen().await;
        assert_eq!(h.due().await, [until]);
        assert_eq!(h.idle("a").await.reason, IdleReason::Paused);
        assert_eq!(h.idle("b").await.until, Some(until));
        h.advance(seconds(60));
        h.sweep().await;
        h.claim("b").await;
        h.reopen().await;
        assert_eq!(h.idle("a").await.reason, IdleReason::Paused);
        h.resume("a").await.unwrap();
        h.reopen().await;
        h.claim("a").await;
    }
}

store_test! {
    async fn a_pause_makes_the_queue_and_a_resume_does_not(h) {
        assert_eq!(h.resume("missing").await, Err(no_queue("missing")));
        assert!(h.queues().await.is_empty());
        h.pause("early", None).await.unwrap();
        assert_eq!(h.idle("early").await.reason, IdleReason::Paused);
        h.enqueue(job("early")).await;
        assert_eq!(h.idle("early").await.reason, IdleReason::Paused, "before its first job, and after it");
        h.resume("early").await.unwrap();
        h.claim("early").await;
    }
}

store_test! {
    async fn a_pause_makes_no_queue_beyond_the_limit(h) {
        let settings = Arc::default();
        Arc::make_mut(&mut h.settings).queues.insert(queue("configured"), settings);
        h.resume("configured").await.unwrap();
        assert_eq!(h.queues().await.len(), 1, "it is there since it was configured");
        h.pause("configured", None).await.unwrap();
        assert_eq!(h.idle("configured").await.reason, IdleReason::Paused);
        h.close().await;
        h.place.max_queues = 1;
        h.open().await;
        let refused = Refusal::TooManyQueues { limit: 1 };
        assert_eq!(h.pause("one-more", None).await, Err(refused.clone()));
        Arc::make_mut(&mut h.settings).queues.insert(queue("configured-too"), Arc::default());
        assert_eq!(h.pause("configured-too", None).await, Err(refused));
    }
}

store_test! {
    async fn a_paused_queue_is_not_forgotten(h) {
        h.pause("never-used", None).await.unwrap();
        h.pause_configured().await;
        h.pause("configured", None).await.unwrap();
        Arc::make_mut(&mut h.settings).queues.clear();
        h.advance(48 * HOUR);
        h.sweep().await;
        assert_eq!(h.idle("configured").await.reason, IdleReason::Paused);
        assert_eq!(h.idle("never-used").await.reason, IdleReason::Paused);
        h.resume("configured").await.unwrap();
        h.resume("never-used").await.unwrap();
        h.advance(48 * HOUR);
        h.sweep().await;
        assert_eq!(h.idle("configured").await.reason, IdleReason::NoSuchQueue);
        assert_eq!(h.idle("never-used").await.reason, IdleReason::NoSuchQueue);
    }
}
