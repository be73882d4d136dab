//! The breaker of a queue's work: what opens it, what it lets through, and what closes it again.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{
    AttemptStatus, BreakerKind, BreakerState, DeadReason, Lease, Next, Outcome, QueueSettings, Timestamp,
};
use redrive::queue::{BreakerOrder, IdleReason};
use std::time::Duration;

/// Between probes of [`steady`], and a tenth more or less.
pub(crate) const RECOVERY: Duration = Duration::from_secs(60);

/// Delays without jitter; a probe about each [`RECOVERY`], and one that succeeds is the end of it.
pub(crate) fn steady(queue: &mut QueueSettings) {
    without_jitter(queue);
    queue.breaker.first_probe = RECOVERY;
    queue.breaker.recovery_timeout = RECOVERY;
    queue.breaker.ramp = false;
}

/// A probe that is due about [`RECOVERY`] after this.
fn is_due_after(from: Timestamp, probe_at: Timestamp) -> bool {
    (RECOVERY.mul_f64(0.9)..=RECOVERY.mul_f64(1.1)).contains(&probe_at.since(from))
}

impl<S: Engine> Harness<S> {
    /// So many jobs `j0`, `j1`, …, all of them out.
    pub(crate) async fn out(&self, count: usize) -> Vec<Lease> {
        for number in 0..count {
            self.enqueue(job("q").id(&format!("j{number}"))).await;
        }
        let jobs = self.claim_many("q", count).await;
        jobs.iter().map(|job| job.delivery.lease.clone()).collect()
    }

    pub(crate) async fn breaker_state(&self) -> BreakerState {
        let breaker = self.breakers("q").await.work.breaker;
        breaker.state(&self.settings.defaults.breaker, self.now())
    }

    /// When the next probe may go out.
    pub(crate) async fn probe_at(&self) -> Timestamp {
        self.breakers("q").await.work.breaker.outage.expect("it is open").probe_at
    }

    /// The breaker is half open from now on.
    pub(crate) async fn reach_probe(&self) {
        self.advance(self.probe_at().await.since(self.now()));
    }

    /// Five jobs fail, and nothing has succeeded for a second. They wait, and so does `spare`.
    pub(crate) async fn trip(&mut self) {
        self.set(steady);
        let leases = self.out(5).await;
        self.advance(SECOND);
        for lease in leases {
            self.nack(lease, failed("Timeout")).await.unwrap();
        }
        self.enqueue(job("q").id("spare")).await;
        assert_eq!(self.breaker_state().await, BreakerState::Open);
    }

    /// As `trip`, and a probe may go out now.
    pub(crate) async fn half_open(&mut self) {
        self.trip().await;
        self.reach_probe().await;
        self.sweep().await;
        assert_eq!(self.breaker_state().await, BreakerState::HalfOpen);
    }
}

// ---- CLOSED → OPEN ----

store_test! {
    async fn five_different_jobs_that_fail_hold_the_queue_back(h) {
        h.set(steady);
        let leases = h.out(6).await;
        h.advance(SECOND);
        for (number, lease) in leases[..4].iter().enumerate() {
            let attempt = h.nack(lease.clone(), failed("Timeout")).await.unwrap();
            assert_eq!(attempt.breaker, BreakerState::Closed);
            assert_eq!(h.breakers("q").await.work.failures as usize, number + 1);
        }
        let fifth = h.nack(leases[4].clone(), failed("Timeout")).await.unwrap();
        assert!(fifth.counted, "it opened the breaker, and counts");
        assert_eq!(fifth.breaker, BreakerState::Open);
        let again = h.nack(leases[4].clone(), failed("Timeout")).await.unwrap();
        assert_eq!(again, fifth, "said again");
        h.enqueue(job("q")).await;
        let idle = h.idle("q").await;
        assert_eq!(idle.reason, IdleReason::BreakerOpen);
        assert!(is_due_after(h.now(), idle.until.unwrap()), "{idle:?}");
        let view = h.breakers("q").await.work;
        assert_eq!((view.breaker.trips, view.failures), (1, 0));
        assert_eq!(view.breaker.last_error, "Timeout: it did not work");
        let notices = h.recorded.take_breakers();
        let told: Vec<_> = notices.iter().map(|notice| (notice.name.kind, notice.state)).collect();
        assert_eq!(told, [(BreakerKind::Work, BreakerState::Open)]);
        assert_eq!(notices[0].probe_at, idle.until);
        assert_eq!(h.queue("q").await.unwrap().breaker, view.breaker);
    }
}

store_test! {
    async fn permanent_failures_releases_and_expired_leases_do_not_open_it(h) {
        let leases = h.out(15).await;
        for (number, lease) in leases[..10].iter().enumerate() {
            let outcome = if number % 2 == 0 { permanent() } else { Outcome::Released { retry_after: None, keep_position: false } };
            h.nack(lease.clone(), outcome).await.unwrap();
        }
        h.advance(seconds(31));
        assert_eq!(h.sweep().await.expired.len(), 5);
        assert_eq!(h.breaker_state().await, BreakerState::Closed);
        assert_eq!(h.breakers("q").await.work.failures, 0);
    }
}

store_test! {
    async fn a_success_of_less_than_a_second_ago_keeps_it_closed_but_not_against_twenty_failures(h) {
        h.set(steady);
        let leases = h.out(41).await;
        h.advance(seconds(2));
        h.ack(leases[0].clone()).await.unwrap();
        h.advance(SECOND - MILLISECOND);
        for lease in &leases[1..20] {
            assert_eq!(h.nack(lease.clone(), failed("Timeout")).await.unwrap().breaker, BreakerState::Closed);
        }
        let twentieth = h.nack(leases[20].clone(), failed("Timeout")).await.unwrap();
        assert_eq!(twentieth.breaker, BreakerState::Open);
        h.set_breaker("queue:q", BreakerOrder::Reset).await.unwrap();
    }
}

store_test! {
    async fn a_disabled_breaker_never_opens(h) {
        h.set(|queue| queue.breaker.disabled = true);
        for lease in h.out(20).await {
            assert_eq!(h.nack(lease, failed("Timeout")).await.unwrap().breaker, BreakerState::Closed);
        }
        h.enqueue(job("q")).await;
        h.claim("q").await;
    }
}

// ---- OPEN ----

store_test! {
    async fn an_outage_burns_no_attempts(h) {
        h.set(steady);
        let leases = h.out(20).await;
        h.advance(SECOND);
        for lease in &leases[..5] {
            h.nack(lease.clone(), failed("Timeout")).await.unwrap();
        }
        for lease in &leases[5..] {
            let attempt = h.nack(lease.clone(), failed("Timeout")).await.unwrap();
            assert!(!attempt.counted);
            assert_eq!((attempt.number, attempt.retries_left), (1, 3));
            assert_eq!(attempt.next, Next::Later { at: h.now().after(SECOND) }, "as for retry 1");
            assert!(attempt.explanation.contains("not counted"), "{}", attempt.explanation);
        }
        let view = h.view(&redrive::domain::JobId::parse("j19")).await;
        assert_eq!((view.progress.tries, view.progress.uncounted), (0, 1));
        assert_eq!(view.attempts.len(), 1, "it is recorded all the same");
    }
}

store_test! {
    async fn an_expired_lease_counts_even_then(h) {
        h.set(steady);
        let leases = h.out(6).await;
        h.advance(SECOND);
        for lease in &leases[..5] {
            h.nack(lease.clone(), failed("Timeout")).await.unwrap();
        }
        h.advance(seconds(30));
        let swept = h.sweep().await;
        assert_eq!(swept.expired.len(), 1);
        assert!(swept.expired[0].attempt.counted);
        assert_eq!(h.breaker_state().await, BreakerState::Open);
    }
}

store_test! {
    async fn a_last_attempt_that_meets_an_outage_is_not_the_end(h) {
        h.set(steady);
        h.enqueue(job("q").id("last").retries(0)).await;
        let last = h.claim("q").await.delivery.lease;
        let leases = h.out(5).await;
        h.advance(SECOND);
        for lease in leases {
            h.nack(lease, failed("Timeout")).await.unwrap();
        }
        let attempt = h.nack(last, failed("Timeout")).await.unwrap();
        assert_eq!((attempt.counted, attempt.retries_left), (false, 0));
        assert!(matches!(attempt.next, Next::Later { .. }));
        // A rule or a worker that says never is another matter.
    }
}

store_test! {
    async fn failures_of_an_outage_go_uncounted_for_outage_grace_however_many_they_are(h) {
        const GRACE: Duration = Duration::from_secs(200);
        h.trip().await;
        h.set(|queue| {
            queue.policy.base_delay = Duration::ZERO;
            queue.breaker.first_probe = SECOND;
            queue.breaker.recovery_timeout = SECOND;
            queue.breaker.outage_grace = GRACE;
        });
        // The failures of before the outage are returned, and the grace begins with them.
        h.sweep().await;
        let since = h.now();
        // The other jobs must not be delivered.
        h.cancel("spare").await.unwrap();
        for number in 1..5 {
            h.cancel(&format!("j{number}")).await.unwrap();
        }
        let (mut uncounted, mut counted) = (0, 0);
        loop {
            h.reach_probe().await;
            let probe = h.claim("q").await;
            assert!(probe.delivery.probe);
            let attempt = h.nack(probe.delivery.lease, failed("Timeout")).await.unwrap();
            assert!(attempt.probe);
            assert_eq!(attempt.counted, h.now().since(since) >= GRACE, "{attempt:?}");
            uncounted += u32::from(!attempt.counted);
            counted += u32::from(attempt.counted);
            if attempt.next == Next::DeadLetter(DeadReason::Exhausted) {
                break;
            }
        }
        assert!(uncounted > 60, "{uncounted}");
        assert_eq!(counted, 4, "as many as there are without an outage");
    }
}

store_test! {
    async fn outcomes_from_before_it_opened_change_nothing(h) {
        h.set(steady);
        let leases = h.out(8).await;
        h.advance(SECOND);
        for lease in &leases[..5] {
            h.nack(lease.clone(), failed("Timeout")).await.unwrap();
        }
        let before = h.breakers("q").await.work.breaker;
        h.ack(leases[5].clone()).await.unwrap();
        h.advance(RECOVERY - seconds(40));
        h.nack(leases[6].clone(), failed("Timeout")).await.unwrap();
        assert_eq!(h.breakers("q").await.work.breaker, before);
        h.extend(leases[7].clone(), Some(HOUR), "").await.unwrap();
        h.reach_probe().await;
        h.nack(leases[7].clone(), failed("Timeout")).await.unwrap();
        assert_eq!(h.breaker_state().await, BreakerState::HalfOpen);
        let probe = h.claim("q").await;
        assert!(probe.delivery.probe);
    }
}

// ---- HALF_OPEN ----

store_test! {
    async fn half_open_begins_at_probe_at_and_the_waiters_are_told(h) {
        h.trip().await;
        h.recorded.take_breakers();
        let probe_at = h.probe_at().await;
        assert!(h.due().await.contains(&probe_at) || h.sweep().await.next <= Some(probe_at));
        h.advance(probe_at.since(h.now()) - MILLISECOND);
        h.sweep().await;
        h.recorded.take_available();
        assert_eq!(h.idle("q").await.reason, IdleReason::BreakerOpen);
        h.advance(MILLISECOND);
        h.sweep().await;
        assert_eq!(h.recorded.take_available(), [("q".to_owned(), 1)], "for one probe, whatever waits");
        let states: Vec<_> = h.recorded.take_breakers().iter().map(|notice| notice.state).collect();
        assert_eq!(states, [BreakerState::HalfOpen]);
        let probe = h.claim_many("q", 10).await;
        assert_eq!(probe.len(), 1);
        assert!(probe[0].delivery.probe);
        let idle = h.idle("q").await;
        assert_eq!(idle.reason, IdleReason::Limited);
        assert_eq!(idle.until, Some(h.now().after(RECOVERY)));
        assert_eq!(h.breakers("q").await.work.probes, 1);
    }
}

store_test! {
    async fn jobs_that_are_held_back_wake_no_waiter(h) {
        h.trip().await;
        h.recorded.take_available();
        h.enqueue(job("q")).await;
        h.advance(seconds(10));
        assert!(h.sweep().await.promoted > 0);
        h.settle(Default::default()).await;
        assert_eq!(h.recorded.take_available(), []);
    }
}

store_test! {
    async fn a_probe_that_is_acked_closes_it_and_everything_flows(h) {
        h.half_open().await;
        let probe = h.claim("q").await.delivery.lease;
        h.recorded.take_available();
        h.recorded.take_breakers();
        h.ack(probe).await.unwrap();
        assert_eq!(h.breaker_state().await, BreakerState::Closed);
        assert_eq!(h.recorded.take_available(), [("q".to_owned(), 5)]);
        let states: Vec<_> = h.recorded.take_breakers().iter().map(|notice| notice.state).collect();
        assert_eq!(states, [BreakerState::Closed]);
        assert_eq!(h.drain("q").await.len(), 5);
    }
}

store_test! {
    async fn a_failed_probe_opens_it_again_and_another_job_is_the_next_probe(h) {
        h.half_open().await;
        let first = h.claim("q").await;
        let attempt = h.nack(first.delivery.lease, failed("Timeout")).await.unwrap();
        assert_eq!((attempt.counted, attempt.probe), (false, true));
        assert_eq!(attempt.breaker, BreakerState::Open);
        assert_eq!(h.idle("q").await.until, Some(h.probe_at().await));
        assert!(is_due_after(h.now(), h.probe_at().await));
        h.reach_probe().await;
        h.sweep().await;
        // It is first in line again, by its time.
        let second = h.claim("q").await;
        assert_ne!(second.spec.id, first.spec.id);
        assert!(second.delivery.probe);
        assert_eq!(h.breakers("q").await.work.breaker.trips, 2);
    }
}

store_test! {
    async fn the_last_failed_probe_goes_again_where_there_is_no_other(h) {
        h.set(|queue| queue.breaker.failure_threshold = 1);
        h.set(steady);
        h.enqueue(job("q").id("only")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.advance(SECOND);
        h.nack(lease, failed("Timeout")).await.unwrap();
        for _ in 0..3 {
            h.reach_probe().await;
            let probe = h.claim("q").await.delivery;
            assert!(probe.probe);
            h.nack(probe.lease, failed("Timeout")).await.unwrap();
        }
    }
}

store_test! {
    async fn a_probe_that_expires_opens_it_again(h) {
        h.half_open().await;
        let probe = h.claim("q").await;
        h.advance(seconds(30));
        let swept = h.sweep().await;
        assert_eq!(swept.expired[0].id, probe.spec.id);
        assert!(swept.expired[0].attempt.counted, "an expired lease always counts");
        assert_eq!(h.breaker_state().await, BreakerState::Open);
        assert!(is_due_after(probe.delivery.started_at, h.probe_at().await), "from the start of the probe");
    }
}

store_test! {
    async fn a_probe_that_says_nothing_for_recovery_timeout_frees_its_slot(h) {
        h.half_open().await;
        let silent = h.claim("q").await.delivery.lease;
        h.extend(silent.clone(), Some(HOUR), "").await.unwrap();
        h.advance(RECOVERY - MILLISECOND);
        h.sweep().await;
        assert_eq!(h.idle("q").await.reason, IdleReason::Limited);
        h.recorded.take_available();
        h.advance(MILLISECOND);
        h.sweep().await;
        assert_eq!(h.recorded.take_available(), [("q".to_owned(), 1)]);
        let other = h.claim("q").await;
        assert!(other.delivery.probe);
        // It still counts when it comes back at last.
        h.ack(silent).await.unwrap();
        assert_eq!(h.breaker_state().await, BreakerState::Closed);
        h.nack(other.delivery.lease, failed("Timeout")).await.unwrap();
        assert_eq!(h.breaker_state().await, BreakerState::Closed, "that one came too late");
    }
}

store_test! {
    async fn permanent_failure_release_cancellation_and_a_vanished_caller_free_the_slot(h) {
        h.half_open().await;
        for how in ["permanent", "release", "cancel", "unclaim"] {
            let probe = h.claim("q").await;
            let lease = probe.delivery.lease;
            assert_eq!(h.idle("q").await.reason, IdleReason::Limited, "{how}");
            h.recorded.take_available();
            match how {
                "permanent" => drop(h.nack(lease, permanent()).await.unwrap()),
                "release" => drop(h.nack(lease, Outcome::Released { retry_after: None, keep_position: false }).await.unwrap()),
                "unclaim" => h.unclaim(lease).await,
                _ => {
                    h.cancel_in(probe.spec.id, None).await.unwrap();
                    let attempt = h.nack(lease, failed("Timeout")).await.unwrap();
                    assert_eq!(attempt.status, AttemptStatus::Cancelled);
                }
            }
            assert_eq!(h.breaker_state().await, BreakerState::HalfOpen, "{how}");
            h.settle(Default::default()).await;
            assert_eq!(h.recorded.take_available(), [("q".to_owned(), 1)], "{how}");
        }
        assert!(h.claim("q").await.delivery.probe);
    }
}

store_test! {
    async fn so_many_probes_as_are_allowed_and_so_many_successes_as_are_wanted(h) {
        h.set(|queue| {
            queue.breaker.half_open_max_calls = 2;
            queue.breaker.success_threshold = 3;
        });
        h.half_open().await;
        let probes = h.claim_many("q", 10).await;
        assert_eq!(probes.len(), 2);
        for probe in probes {
            h.ack(probe.delivery.lease).await.unwrap();
        }
        let open = h.breakers("q").await.work.breaker.outage.unwrap();
        assert_eq!((open.successes, h.breaker_state().await), (2, BreakerState::HalfOpen));
        let probes = h.claim_many("q", 10).await;
        h.ack(probes[0].delivery.lease.clone()).await.unwrap();
        assert_eq!(h.breaker_state().await, BreakerState::Closed);
    }
}

store_test! {
    async fn a_job_past_its_deadline_takes_no_probe_from_another(h) {
        h.trip().await;
        h.reach_probe().await;
        let late = h.enqueue(job("q").id("late").priority(9).expires(MILLISECOND)).await;
        h.advance(MILLISECOND);
        let probes = h.claim_many("q", 3).await;
        assert_eq!(probes.len(), 1, "one probe goes out");
        assert!(h.view(&late).await.death.is_some());
    }
}

store_test! {
    async fn a_claim_that_brings_its_probe_home_gets_the_next_jobs(h) {
        h.half_open().await;
        let lease = h.claim("q").await.delivery.lease;
        let mut claim = claim_of(&["q"], 10);
        claim.settle.acks.push(redrive::queue::Ack {
            lease,
            note: String::new(),
            result: Default::default(),
            breaker_key: String::new(),
        });
        assert_eq!(h.try_claim(claim).await.jobs.len(), 5);
    }
}
