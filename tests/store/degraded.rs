//! A queue of which far more fails than usual, but not everything: DEGRADED.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{Jitter, Strategy};
use redrive::queue::Delivered;
use std::time::Duration;

impl<S: Engine> Harness<S> {
    /// Retries come after a second, and what is usual is that all succeeds.
    async fn usually_well(&mut self) {
        self.set(|queue| {
            without_jitter(queue);
            (queue.policy.strategy, queue.policy.jitter) = (Strategy::Fixed, Jitter::None);
        });
        for _ in 0..7 {
            self.succeed(5).await;
            self.sweep().await;
            self.advance(SECOND);
        }
    }

    async fn take_new(&self, jobs: usize) -> Vec<Delivered> {
        self.enqueue_all((0..jobs).map(|_| job("q")).collect()).await;
        self.take(jobs).await
    }

    async fn take(&self, jobs: usize) -> Vec<Delivered> {
        let taken = self.claim_many("q", 1_000).await;
        assert_eq!(taken.len(), jobs);
        taken
    }

    async fn succeed(&self, jobs: usize) {
        for job in self.take_new(jobs).await {
            self.ack(job.delivery.lease).await.unwrap();
        }
    }

    /// Every other of so many new jobs fails; says how many of these failures counted.
    async fn half_fail(&self, jobs: usize) -> usize {
        let mut counted = 0;
        for (number, job) in self.take_new(jobs).await.into_iter().enumerate() {
            if number % 2 == 0 {
                counted += usize::from(self.nack(job.delivery.lease, failed("Broken")).await.unwrap().counted);
            } else {
                self.ack(job.delivery.lease).await.unwrap();
            }
        }
        counted
    }

    async fn share(&self) -> f64 {
        self.breakers("q").await.work.degraded.expect("it is degraded").share
    }
}

store_test! {
    async fn while_a_queue_is_degraded_a_job_that_failed_uncounted_speaks_when_it_succeeds(h) {
        h.usually_well().await;
        let counted = h.half_fail(60).await;
        assert!((5..20).contains(&counted), "{counted} of 30 failures counted before it was degraded");
        // Those of the running bucket, and of the one before.
        let failures = 30.0;
        let outcomes = failures / h.share().await;
        h.advance(Duration::from_millis(1_500));
        for job in h.take(30).await {
            h.ack(job.delivery.lease).await.unwrap();
        }
        let more = (30 - counted) as f64;
        let share = h.share().await;
        assert!((share - failures / (outcomes + more)).abs() < 1e-9, "{share}, {counted} of 30 counted");
    }
}

store_test! {
    async fn that_a_queue_is_degraded_is_told_once_and_so_is_the_end_of_it(h) {
        h.usually_well().await;
        assert_eq!(h.recorded.take_degraded(), []);
        h.half_fail(60).await;
        let told = h.recorded.take_degraded();
        let [begins] = told.as_slice() else { panic!("{told:?}") };
        let it = begins.degraded.expect("it begins");
        assert!(it.share > 0.2 && it.outcomes >= 20, "{it:?}");
        assert_eq!((begins.name.to_string().as_str(), it.until), ("queue:q", h.now().after(seconds(15 * 60))));
        let shown = h.breakers("q").await.work.degraded.unwrap();
        h.advance(seconds(3));
        assert_eq!(h.breakers("q").await.work.degraded.unwrap().until, shown.until, "it stands");
        for _ in 0..12 {
            h.advance(SECOND);
            h.enqueue_all((0..20).map(|_| job("q")).collect()).await;
            for job in h.claim_many("q", 1_000).await {
                h.ack(job.delivery.lease).await.unwrap();
            }
            h.sweep().await;
        }
        let told = h.recorded.take_degraded();
        let ends: Vec<_> = told.iter().map(|told| told.degraded).collect();
        assert_eq!(ends, [None]);
        assert_eq!(h.breakers("q").await.work.degraded, None);
    }
}

store_test! {
    async fn a_dead_letter_that_is_requeued_speaks_like_a_new_job(h) {
        h.set(|queue| {
            without_jitter(queue);
            queue.breaker.disabled = true;
        });
        for job in h.take_new_with_retry(30).await {
            h.nack(job.delivery.lease, failed("Broken")).await.unwrap();
        }
        assert_eq!(h.depths("q").await.dead, 30);
        // Long enough that none of this is recent any more.
        h.advance(HOUR);
        h.succeed(30).await;
        h.advance(seconds(6));
        h.sweep().await;
        h.set(|queue| queue.breaker.disabled = false);
        let before = h.breakers("q").await.work.usual_share;
        h.requeue(requeue_of("q", oldest(100))).await.unwrap();
        for job in h.take(30).await {
            h.ack(job.delivery.lease).await.unwrap();
        }
        h.advance(seconds(6));
        h.sweep().await;
        let after = h.breakers("q").await.work.usual_share;
        assert!(after < before, "{after} after 30 successes, {before} before");
    }
}

impl<S: Engine> Harness<S> {
    /// So many jobs that have failed once, for the second time and last time.
    async fn take_new_with_retry(&self, jobs: usize) -> Vec<Delivered> {
        self.enqueue_all((0..jobs).map(|_| job("q").retries(1)).collect()).await;
        for job in self.take(jobs).await {
            self.nack(job.delivery.lease, failed("Broken")).await.unwrap();
        }
        self.advance(seconds(2));
        self.take(jobs).await
    }
}
