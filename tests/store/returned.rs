//! Failures that were counted before a breaker opened are returned to their jobs.

use crate::{breaker::steady, builders::*, engines::Engine, harness::Harness};
use redrive::domain::{BreakerState, JobEventKind, JobId, State};
use redrive::queue::BreakerOrder;

impl<S: Engine> Harness<S> {
    /// Five jobs `j0`, `j1`, … that have so many retries have failed, and the breaker is open.
    async fn fail_with_retries(&mut self, retries: u32) {
        self.set(steady);
        for number in 0..5 {
            self.enqueue(job("q").id(&format!("j{number}")).key(&format!("k{number}")).retries(retries)).await;
        }
        let jobs = self.claim_many("q", 5).await;
        self.advance(SECOND);
        for job in jobs {
            let attempt = self.nack(job.delivery.lease, failed("Timeout")).await.unwrap();
            assert!(attempt.counted);
        }
        assert_eq!(self.breaker_state().await, BreakerState::Open);
    }

    async fn assert_returned(&self) {
        for number in 0..5 {
            let view = self.view(&JobId::parse(&format!("j{number}"))).await;
            assert_eq!((view.progress.tries, view.progress.uncounted), (0, 1), "{number}");
            let returned = view.events.iter().filter(|event| event.kind == JobEventKind::ReturnedByBreaker);
            assert_eq!(returned.count(), 1, "{number}");
            assert_eq!(view.attempts.len(), 1, "{number}: it stays in the history");
        }
        assert_eq!(self.breakers("q").await.work.breaker.returned, []);
    }

    /// Jobs that had died are as if they had not failed.
    async fn assert_is_back(&self) {
        self.assert_returned().await;
        assert_eq!(self.depths("q").await.dead, 0);
        assert_eq!(self.dead("q").await.len(), 0);
        for number in 0..5 {
            assert_eq!(self.view(&JobId::parse(&format!("j{number}"))).await.state, State::Ready);
        }
        self.reach_probe().await;
        let probe = self.claim("q").await;
        assert_eq!(probe.delivery.attempt, 1);
        self.ack(probe.delivery.lease).await.unwrap();
        assert_eq!(self.drain("q").await.len(), 4);
    }
}

store_test! {
    async fn the_sweep_after_an_opening_returns_what_was_counted(h) {
        h.fail_with_retries(3).await;
        let due = h.due().await;
        assert!(due.contains(&h.now()), "{due:?}");
        h.sweep().await;
        h.assert_returned().await;
        h.sweep().await;
        h.assert_returned().await;
    }
}

store_test! {
    async fn jobs_that_died_of_an_outage_that_began_come_back(h) {
        h.fail_with_retries(0).await;
        assert_eq!(h.depths("q").await.dead, 5);
        h.sweep().await;
        h.assert_is_back().await;
    }
}

store_test! {
    async fn a_restart_between_the_opening_and_the_sweep_loses_nothing(h) {
        h.fail_with_retries(0).await;
        let listed = h.breakers("q").await.work.breaker.returned;
        assert_eq!(listed.len(), 5);
        h.reopen().await;
        assert_eq!(h.breakers("q").await.work.breaker.returned, listed);
        h.sweep().await;
        h.assert_is_back().await;
    }
}

store_test! {
    async fn a_reset_does_not_forget_what_is_to_be_returned(h) {
        h.fail_with_retries(3).await;
        h.set_breaker("queue:q", BreakerOrder::Reset).await.unwrap();
        h.sweep().await;
        h.assert_returned().await;
    }
}

store_test! {
    async fn a_job_whose_key_another_has_by_now_stays_dead(h) {
        h.fail_with_retries(0).await;
        h.enqueue(job("q").id("other").key("k2")).await;
        h.sweep().await;
        assert_eq!(h.depths("q").await.dead, 1);
        assert_eq!(h.dead("q").await[0].spec.id, JobId::parse("j2"));
        assert_eq!(h.breakers("q").await.work.breaker.returned, []);
    }
}

store_test! {
    async fn the_next_decision_of_a_job_that_is_out_again_does_not_count_what_was_returned(h) {
        h.fail_with_retries(1).await;
        // A failure of the second delivery counts.
        h.set_breaker("queue:q", BreakerOrder::Reset).await.unwrap();
        h.advance(seconds(2));
        let jobs = h.claim_many("q", 5).await;
        assert_eq!(jobs.iter().map(|job| job.delivery.attempt).collect::<Vec<_>>(), [2; 5]);
        h.sweep().await;
        assert_eq!(h.breakers("q").await.work.breaker.returned, []);
        let attempt = h.nack(jobs[0].delivery.lease.clone(), failed("Timeout")).await.unwrap();
        assert_eq!((attempt.counted, attempt.retries_left), (true, 1), "{attempt:?}");
        let view = h.view(&jobs[0].spec.id).await;
        assert_eq!((view.state, view.progress.tries, view.progress.uncounted), (State::Retrying, 1, 1));
    }
}

store_test! {
    async fn only_the_streak_and_the_second_before_it_are_returned(h) {
        h.set(steady);
        let leases = h.out(8).await;
        h.nack(leases[0].clone(), failed("Timeout")).await.unwrap();
        h.advance(seconds(5));
        h.nack(leases[1].clone(), failed("Timeout")).await.unwrap();
        h.ack(leases[2].clone()).await.unwrap();
        h.advance(SECOND);
        for lease in &leases[3..] {
            h.nack(lease.clone(), failed("Timeout")).await.unwrap();
        }
        assert_eq!(h.breaker_state().await, BreakerState::Open);
        let listed: Vec<_> = h.breakers("q").await.work.breaker.returned.iter().map(|it| it.job.to_string()).collect();
        assert_eq!(listed, ["j1", "j3", "j4", "j5", "j6", "j7"]);
        h.sweep().await;
        assert_eq!(h.view(&JobId::parse("j0")).await.progress.tries, 1);
        assert_eq!(h.view(&JobId::parse("j1")).await.progress.tries, 0);
    }
}
