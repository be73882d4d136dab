//! A caller's own id: how long it names a job.

use crate::builders::*;
use crate::engines::Engine;
use crate::harness::Harness;
use redrive::domain::{JobId, NewJob, OnConflict, State};
use redrive::queue::{Cancelled, EnqueueOutcome, Refusal, Requeue, SkipReason, Which};
use std::time::Duration;

const HELD: Duration = Duration::from_secs(600);

/// The same job again, and another one under the same id.
async fn is_held<E: Engine>(h: &Harness<E>, id: &str) {
    let again = h.try_enqueue(job("q").id(id)).await.unwrap();
    assert_eq!((again.outcome, again.state), (EnqueueOutcome::Existing, State::Completed), "{id}");
    assert_eq!((again.id, again.run_at), (JobId::parse(id), None));
    assert_eq!(h.try_enqueue(job("q").id(id).body("other")).await, Err(Refusal::IdTaken), "{id}");
    for on_conflict in [OnConflict::ReturnExisting, OnConflict::ReplaceWaiting] {
        let other = NewJob { on_conflict, ..job("q").id(id).body("other") };
        assert_eq!(h.try_enqueue(other).await.unwrap().outcome, EnqueueOutcome::Existing, "{id}");
    }
    assert!(h.views(&JobId::parse(id)).await.is_empty(), "{id}");
}

store_test! {
    async fn an_id_is_held_for_ten_minutes_after_its_job_has_ended(h) {
        h.set(without_jitter);
        // Too long for a lease token.
        let long = "l".repeat(200);
        let ids = ["acked", &long, "late", "cancelled", "purged"];
        for id in ["acked", &long] {
            h.enqueue(job("q").id(id)).await;
            let lease = h.claim("q").await.delivery.lease;
            h.ack(lease).await.unwrap();
        }
        h.enqueue(job("q").id("late")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.advance(seconds(30));
        assert_eq!(h.sweep().await.expired.len(), 1);
        assert!(!h.ack(lease).await.unwrap().already_gone);
        h.enqueue(job("q").id("cancelled")).await;
        assert_eq!(h.cancel("cancelled").await, Ok(Cancelled::Cancelled));
        h.dead_letter(job("q").id("purged")).await;
        h.purge(purge_of("q", oldest(1))).await.unwrap();
        h.verify().await;
        for id in ids {
            is_held(&h, id).await;
        }
        h.advance(HELD - seconds(31));
        h.reopen().await;
        h.sweep().await;
        for id in ids {
            is_held(&h, id).await;
        }
        h.advance(seconds(31));
        // Its time is over, whether a sweep has seen it or not.
        h.enqueue(job("q").id("acked").body("other")).await;
        h.sweep().await;
        h.verify().await;
        for id in &ids[1..] {
            h.enqueue(job("q").id(id).body("other")).await;
        }
        h.verify().await;
        assert_eq!(h.depths("q").await.ready, 5);
    }
}

store_test! {
    async fn an_id_is_held_from_when_a_kept_job_is_removed(h) {
        h.set(|queue| queue.completed_retention = Some(HOUR));
        h.enqueue(job("q").id("a")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.advance(HOUR);
        assert_eq!(h.sweep().await.completed_removed, 1);
        h.advance(HELD - MILLISECOND);
        h.sweep().await;
        is_held(&h, "a").await;
        h.advance(MILLISECOND);
        h.enqueue(job("q").id("a").body("other")).await;
    }
}

store_test! {
    async fn an_id_that_is_held_names_no_job(h) {
        h.enqueue(job("a").id("x")).await;
        let lease = h.claim("a").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.enqueue(job("b").id("x")).await;
        h.enqueue(job("c").id("x")).await;
        assert_eq!(h.cancel_in(JobId::parse("x"), Some(queue("c"))).await, Ok(Cancelled::Cancelled));
        assert_eq!(h.view(&JobId::parse("x")).await.queue, queue("b"));
        assert_eq!(h.cancel("x").await, Ok(Cancelled::Cancelled));
        assert!(h.views(&JobId::parse("x")).await.is_empty());
    }
}

store_test! {
    /// A move is not the end of a job: it may come back.
    async fn a_job_that_moves_takes_its_id_along_and_finds_it_taken_while_it_is_held(h) {
        h.set(without_jitter);
        h.dead_letter(job("q").id("x")).await;
        let there = Requeue { target: Some(queue("r")), ..requeue_of("q", Which::Ids(vec![JobId::parse("x")])) };
        assert_eq!(h.requeue(there.clone()).await.unwrap().ids.len(), 1);
        h.dead_letter(job("q").id("x")).await;
        let lease = h.claim("r").await.delivery.lease;
        h.ack(lease).await.unwrap();
        let held = h.requeue(there.clone()).await.unwrap();
        assert_eq!(held.skipped, [(JobId::parse("x"), SkipReason::IdTaken)]);
        h.advance(HELD);
        assert_eq!(h.requeue(there).await.unwrap().ids.len(), 1);
        h.verify().await;
    }
}

store_test! {
    /// They end as fast as jobs do, while other records are in no hurry.
    async fn the_sweep_goes_on_while_there_are_many_ids_whose_time_is_over(h) {
        for _ in 0..3 {
            let jobs = (0..400).map(|_| job("q")).enumerate();
            let now = h.now().millis();
            h.enqueue_all(jobs.map(|(at, job)| job.id(&format!("{now}-{at}"))).collect()).await;
            for claimed in h.claim_many("q", 400).await {
                h.ack(claimed.delivery.lease).await.unwrap();
            }
            h.advance(SECOND);
        }
        h.advance(HELD);
        assert_eq!(h.sweep().await.next, Some(h.now().after(seconds(10))), "for the rest");
        h.advance(seconds(10));
        assert_eq!(h.sweep().await.next, None);
        h.advance(24 * HOUR);
        h.sweep().await;
        assert!(h.queue("q").await.is_none(), "nothing is left of it");
    }
}
