//! Claims whose caller goes away: the jobs return, and nothing counts but the delivery.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::Progress;
use redrive::queue::Claim;
use redrive::queue::{ABANDONED_CLAIM_KEPT, UndeliveredClaim};
use std::task::{Context, Waker};

/// Lets a claim wait behind a gate, and its caller go away before or after it is answered.
async fn claim_behind_a_gate<S: Engine>(h: &Harness<S>, claim: Claim, answered: bool) {
    let mut wake = Context::from_waker(Waker::noop());
    let gate = h.recorded.gate.lock().unwrap();
    // The store tells of this job, and has to wait for the gate.
    let mut enqueue = Box::pin(h.store().enqueue(vec![job("gate")]));
    assert!(enqueue.as_mut().poll(&mut wake).is_pending());
    let mut claim = Some(Box::pin(h.store().claim(claim)));
    let polled = claim.as_mut().map(|claim| claim.as_mut().poll(&mut wake).is_pending());
    assert_eq!(polled, Some(true));
    if !answered {
        claim = None;
    }
    drop(gate);
    enqueue.await.unwrap();
    h.catch_up().await;
    drop(claim);
    h.catch_up().await;
}

/// The caller has gone before the store comes to its claim.
async fn gone_before_the_answer<S: Engine>(h: &Harness<S>, claim: Claim) {
    claim_behind_a_gate(h, claim, false).await;
}

/// The answer is there, but the caller is gone.
async fn gone_with_the_answer<S: Engine>(h: &Harness<S>, claim: Claim) {
    claim_behind_a_gate(h, claim, true).await;
}

fn counts_nowhere(progress: &Progress) {
    let expected = Progress { deliveries: progress.deliveries, ..Progress::default() };
    assert_eq!(*progress, expected);
}

store_test! {
    async fn a_job_whose_claimer_has_gone_is_back_at_its_old_place(h) {
        h.enqueue(job("q").id("a").priority(1)).await;
        h.advance(MILLISECOND);
        h.enqueue(job("q").id("b").priority(1)).await;
        h.advance(SECOND);
        gone_before_the_answer(&h, claim_of(&["q"], 1)).await;
        h.sweep().await;
        assert_eq!(h.depths("q").await.ready, 2);
        let jobs = h.claim_many("q", 2).await;
        let ids: Vec<_> = jobs.iter().map(|job| job.spec.id.to_string()).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(jobs[0].delivery.attempt, 1);
        counts_nowhere(&jobs[0].progress);
    }
}

store_test! {
    async fn a_job_whose_answer_did_not_arrive_is_back_at_its_old_place(h) {
        h.enqueue(job("q").id("a")).await;
        h.advance(MILLISECOND);
        h.enqueue(job("q").id("b")).await;
        h.advance(SECOND);
        gone_with_the_answer(&h, claim_of(&["q"], 1)).await;
        h.sweep().await;
        assert_eq!(h.depths("q").await.ready, 2);
        let jobs = h.claim_many("q", 2).await;
        assert_eq!(jobs[0].spec.id.to_string(), "a");
        counts_nowhere(&jobs[0].progress);
        assert_eq!(jobs[0].progress.deliveries, 2);
    }
}

store_test! {
    async fn an_abandoned_request_stays_leased_for_a_while(h) {
        h.enqueue(job("q")).await;
        let claim = Claim { request_id: "r".into(), ..claim_of(&["q"], 1) };
        gone_before_the_answer(&h, claim).await;
        h.advance(ABANDONED_CLAIM_KEPT - MILLISECOND);
        h.sweep().await;
        assert_eq!(h.depths("q").await.leased, 1);
        h.advance(MILLISECOND);
        h.sweep().await;
        let back = h.claim("q").await;
        counts_nowhere(&back.progress);
        assert_eq!(back.delivery.attempt, 1);
    }
}

store_test! {
    async fn an_abandoned_answer_to_a_request_stays_leased_for_a_while(h) {
        h.enqueue(job("q")).await;
        let claim = Claim { request_id: "r".into(), ..claim_of(&["q"], 1) };
        gone_with_the_answer(&h, claim).await;
        h.advance(ABANDONED_CLAIM_KEPT - MILLISECOND);
        h.sweep().await;
        assert_eq!(h.depths("q").await.leased, 1);
        h.advance(MILLISECOND);
        h.sweep().await;
        assert_eq!(h.depths("q").await.ready, 1);
    }
}

store_test! {
    async fn a_repeated_undelivered_claim_keeps_its_jobs(h) {
        h.enqueue(job("q")).await;
        let claim = Claim { request_id: "r".into(), ..claim_of(&["q"], 1) };
        gone_before_the_answer(&h, claim.clone()).await;
        let again = h.try_claim(claim).await.jobs[0].clone();
        assert_eq!(again.delivery.attempt, 1);
        h.advance(ABANDONED_CLAIM_KEPT * 2);
        h.sweep().await;
        assert!(!h.ack(again.delivery.lease).await.unwrap().already_gone);
    }
}

store_test! {
    /// The Redis store gives the jobs back by itself.
    sqlite only: async fn the_store_asks_to_be_swept_when_a_claim_is_abandoned(h) {
        h.enqueue(job("q")).await;
        h.due().await;
        gone_before_the_answer(&h, claim_of(&["q"], 1)).await;
        assert!(h.due().await.contains(&h.now()));
    }
}

store_test! {
    async fn jobs_can_be_handed_back_by_hand(h) {
        h.enqueue(job("q").id("a").expires(HOUR)).await;
        h.advance(MILLISECOND);
        h.enqueue(job("q").id("b")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.unclaim(lease.clone()).await;
        h.unclaim(lease.clone()).await;
        assert!(h.ack(lease.clone()).await.is_err());
        assert!(h.nack(lease.clone(), failed("Timeout")).await.is_err());
        let jobs = h.claim_many("q", 2).await;
        assert_eq!(jobs[0].spec.id.to_string(), "a");
        assert_ne!(jobs[0].delivery.lease, lease);
        counts_nowhere(&jobs[0].progress);
    }
}

store_test! {
    async fn a_job_that_was_handed_back_still_has_its_deadline(h) {
        h.enqueue(job("q").expires(HOUR)).await;
        let lease = h.claim("q").await.delivery.lease;
        h.advance(seconds(5));
        h.unclaim(lease).await;
        h.advance(HOUR);
        h.sweep().await;
        assert_eq!(h.depths("q").await.dead, 1);
    }
}

store_test! {
    async fn giving_up_an_answer_takes_nothing_from_a_later_one(h) {
        h.enqueue(job("q")).await;
        let claim = Claim { request_id: "r".into(), ..claim_of(&["q"], 1) };
        let first = h.try_claim(claim.clone()).await;
        let again = h.try_claim(claim).await;
        let leases = first.jobs.iter().map(|job| job.delivery.lease.clone()).collect();
        let unanswered = UndeliveredClaim { leases, answer: first.answer, after: ABANDONED_CLAIM_KEPT };
        h.store().unclaim(unanswered).await.unwrap();
        h.advance(ABANDONED_CLAIM_KEPT);
        h.sweep().await;
        let lease = again.jobs[0].delivery.lease.clone();
        assert!(h.ack(lease).await.is_ok_and(|ack| !ack.already_gone));
    }
}
