//! After an outage a queue comes back with a load that grows: RECOVERING.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{BreakerState, DeadFilter, DeadReason, Recovery};
use redrive::queue::{DeadCountQuery, Delivered, IdleReason};
use std::time::Duration;

/// What a job takes here.
const TAKES: Duration = Duration::from_millis(100);

impl<S: Engine> Harness<S> {
    /// A probe has succeeded, and so many jobs beside those of `trip` wait. A load of one job, as nothing is known.
    async fn recovering(&mut self, jobs: usize) {
        self.half_open().await;
        self.set(|queue| queue.breaker.ramp = true);
        self.enqueue_all((0..jobs).map(|_| job("q")).collect()).await;
        let probe = self.claim("q").await.delivery.lease;
        self.advance(TAKES);
        self.recorded.take_available();
        self.recorded.take_breakers();
        self.ack(probe).await.unwrap();
        assert_eq!(self.breaker_state().await, BreakerState::Recovering);
    }

    async fn recovery(&self) -> Recovery {
        self.breakers("q").await.work.breaker.outage.expect("an outage").recovery
    }

    /// So long nothing but the ramp holds the queue back: workers take what they get, and each job takes its time.
    async fn work_for(&self, time: Duration) {
        let end = self.now().after(time);
        let mut out: Vec<Delivered> = Vec::new();
        while self.now() < end || !out.is_empty() {
            if self.now() < end {
                out.extend(self.claim_many("q", 100).await);
            }
            assert!(out.len() as f64 <= self.recovery().await.load.ceil(), "{}", out.len());
            self.advance(Duration::from_millis(20));
            let now = self.now();
            for job in out.extract_if(.., |job| now.since(job.delivery.started_at) >= TAKES).collect::<Vec<_>>() {
                self.ack(job.delivery.lease).await.unwrap();
            }
        }
    }
}

store_test! {
    async fn a_successful_probe_releases_no_backlog(h) {
        h.recovering(20).await;
        assert_eq!(h.recorded.take_available(), [("q".to_owned(), 1)]);
        let states: Vec<_> = h.recorded.take_breakers().iter().map(|notice| notice.state).collect();
        assert_eq!(states, [BreakerState::Recovering]);
        let jobs = h.claim_many("q", 100).await;
        assert_eq!((jobs.len(), jobs[0].delivery.probe), (1, false));
        let idle = h.idle("q").await;
        assert_eq!(idle.reason, IdleReason::Limited, "as many as its load are leased");
        assert_eq!(h.depths("q").await.leased, 1);
    }
}

store_test! {
    async fn hand_outs_are_paced_and_a_claim_says_when_the_next_one_is(h) {
        h.recovering(20).await;
        let lease = h.claim("q").await.delivery.lease;
        let handed_out = h.now();
        h.advance(MILLISECOND);
        h.ack(lease).await.unwrap();
        let idle = h.idle("q").await;
        assert_eq!(idle.reason, IdleReason::Limited);
        let until = idle.until.expect("a token comes by the clock");
        // Of one job each 100 ms, and a sixteenth of the way to what the last one took.
        assert!((Duration::from_millis(90)..=TAKES).contains(&until.since(handed_out)), "{until:?}");
        h.advance(until.since(h.now()) - MILLISECOND);
        assert_eq!(h.idle("q").await.until, Some(until));
        h.advance(MILLISECOND);
        assert_eq!(h.claim_many("q", 100).await.len(), 1);
    }
}

store_test! {
    async fn steps_that_go_well_let_the_load_grow(h) {
        h.recovering(200).await;
        assert_eq!(h.recovery().await.load, 1.0);
        let mut load = 1.0;
        for _ in 0..3 {
            // Jobs must have had to wait for it.
            h.work_for(seconds(3)).await;
            h.sweep().await;
            let next = h.recovery().await.load;
            assert_eq!(next, load * 1.5);
            load = next;
        }
        assert_eq!(h.breaker_state().await, BreakerState::Recovering, "there is a backlog");
        h.reopen().await;
        assert_eq!(h.recovery().await.load, load, "a restart changes nothing");
        assert_eq!(h.claim_many("q", 1).await.len(), 1);
    }
}

store_test! {
    async fn a_load_whose_slots_are_free_by_now_grows_no_more(h) {
        h.recovering(400).await;
        while h.recovery().await.load < 4.0 {
            h.work_for(seconds(3)).await;
            h.sweep().await;
        }
        let load = h.recovery().await.load;
        let mut all = Vec::new();
        while all.len() < load.ceil() as usize {
            all.extend(h.claim_many("q", 100).await);
            h.advance(Duration::from_millis(20));
        }
        for job in all {
            h.ack(job.delivery.lease).await.unwrap();
        }
        // All workers but one have gone: what was out at once in earlier steps says nothing.
        for _ in 0..100 {
            let jobs = h.claim_many("q", 100).await;
            assert_eq!(jobs.len(), 1, "the others are held by the pace");
            h.advance(TAKES);
            for job in jobs {
                h.ack(job.delivery.lease).await.unwrap();
            }
            h.sweep().await;
        }
        assert_eq!(h.recovery().await.load, 1.5 * load, "by the step in which all were out");
    }
}

store_test! {
    async fn it_is_closed_once_nothing_has_waited_for_ten_seconds(h) {
        h.recovering(0).await;
        while h.depths("q").await.ready > 0 {
            h.work_for(TAKES).await;
        }
        h.advance(seconds(9));
        h.sweep().await;
        assert_eq!(h.breaker_state().await, BreakerState::Recovering);
        h.recorded.take_breakers();
        h.advance(seconds(2));
        h.sweep().await;
        assert_eq!(h.breaker_state().await, BreakerState::Closed);
        let states: Vec<_> = h.recorded.take_breakers().iter().map(|notice| notice.state).collect();
        assert_eq!(states, [BreakerState::Closed]);
        h.enqueue_all((0..50).map(|_| job("q")).collect()).await;
        assert_eq!(h.claim_many("q", 100).await.len(), 50);
    }
}

store_test! {
    async fn it_is_not_closed_while_jobs_wait_that_no_worker_asks_for(h) {
        h.recovering(200).await;
        while h.recovery().await.load < 3.0 {
            h.work_for(seconds(3)).await;
            h.sweep().await;
        }
        // A deploy of a minute.
        for _ in 0..60 {
            h.advance(SECOND);
            h.sweep().await;
        }
        assert_eq!(h.breaker_state().await, BreakerState::Recovering);
        assert_eq!(h.recovery().await.load, 1.0, "it begins anew");
        assert_eq!(h.claim_many("q", 100).await.len(), 1, "the backlog does not come at once");
    }
}

store_test! {
    async fn a_streak_of_failures_opens_it_again(h) {
        h.recovering(20).await;
        for number in 1..=5 {
            let job = h.claim("q").await;
            h.advance(2 * TAKES);
            let attempt = h.nack(job.delivery.lease, failed("Timeout")).await.unwrap();
            let state = if number < 5 { BreakerState::Recovering } else { BreakerState::Open };
            assert_eq!((attempt.breaker, attempt.counted), (state, number <= 3), "{number}");
        }
        let breaker = h.breakers("q").await.work.breaker;
        assert_eq!((breaker.trips, breaker.returned.len()), (2, 3));
        let outage = breaker.outage.unwrap();
        assert_eq!((outage.falls, outage.recovering), (1, false));
        assert!(outage.since < outage.opened_at, "it is one outage");
        assert_eq!(h.idle("q").await.reason, IdleReason::BreakerOpen);
    }
}

store_test! {
    async fn a_dead_letter_made_meanwhile_is_read_found_and_goes_back_to_work(h) {
        h.recovering(20).await;
        let job = h.claim("q").await;
        let id = job.spec.id;
        h.advance(TAKES);
        h.nack(job.delivery.lease, permanent()).await.unwrap();
        let death = h.view(&id).await.death.expect("it is dead");
        assert_eq!(death.reason, DeadReason::NonRetryable);
        assert_eq!(death.context.queue_breaker, BreakerState::Recovering);
        assert_eq!(h.dead("q").await[0].death, Some(death));
        let reason = Some(DeadReason::NonRetryable);
        let found = found(DeadFilter { reason, ..of_type("Hopeless") }, 10);
        let report = S::verify(h.store(), &h.place).await;
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(h.requeue(requeue_of("q", found)).await.unwrap().ids, [id]);
        let counts = DeadCountQuery { queue: Some(queue("q")), after: None, limit: 1, types: 9, latest: 0 };
        let counts = h.dead_counts(counts).await;
        assert!(counts.queues[0].by_error_type.is_empty(), "{counts:?}");
    }
}
