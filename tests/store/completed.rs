//! Jobs that are done, where their queue keeps them.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{AttemptStatus, JobId, Lease, NewJob, State};
use redrive::queue::EnqueueOutcome;
use redrive::queue::Refusal;
use redrive::queue::{Acked, Cancelled, Delivered, JobQuery, Which};
use std::sync::Arc;

const AGAIN: Result<Acked, Refusal> = Ok(Acked { already_gone: true });

fn keep<S: Engine>(h: &mut Harness<S>, retention: std::time::Duration) {
    h.set(|queue| queue.completed_retention = Some(retention));
}

/// Takes the next job of queue `q` and completes it.
async fn complete<S: Engine>(h: &Harness<S>) -> Delivered {
    let delivered = h.claim("q").await;
    let acked = h.ack(delivered.delivery.lease.clone()).await;
    assert_eq!(acked, Ok(Acked { already_gone: false }));
    delivered
}

/// Enqueues a job, and completes it.
async fn done<S: Engine>(h: &Harness<S>, job: NewJob) -> Lease {
    let id = h.enqueue(job).await;
    let delivered = complete(h).await;
    assert_eq!(delivered.spec.id, id, "nothing else may be in line");
    delivered.delivery.lease
}

store_test! {
    async fn a_job_that_is_done_is_kept_with_its_history_its_note_and_its_result(h) {
        keep(&mut h, HOUR);
        let id = h.enqueue(job("q").id("welcome").retries(5)).await;
        for error_type in ["Timeout", "Refused"] {
            let lease = h.claim("q").await.delivery.lease;
            h.nack(lease, failed(error_type)).await.unwrap();
            h.advance(HOUR);
            h.sweep().await;
        }
        let delivered = h.claim("q").await;
        let lease = delivered.delivery.lease;
        h.extend(lease.clone(), None, "page 3").await.unwrap();
        h.advance(SECOND);
        h.ack_with(lease.clone(), "delivered", "message 17".into()).await.unwrap();
        let completed_at = h.now();
        h.advance(SECOND);
        for _ in 0..2 {
            let view = h.view(&id).await;
            assert_eq!((view.state, view.completed_at), (State::Completed, Some(completed_at)));
            assert_eq!((&*view.result, view.corrupt), (&b"message 17"[..], false));
            assert_eq!((view.spec, view.ready_at), (delivered.spec.clone(), None));
            assert_eq!((view.progress.tries, view.progress.deliveries), (3, 3));
            assert_eq!(view.progress.checkpoint, "page 3");
            assert_eq!(view.last_failure.unwrap().error_type, "Refused");
            assert!(view.delivery.is_none() && view.death.is_none());
            let statuses: Vec<_> = view.attempts.iter().map(|attempt| attempt.status).collect();
            let (failed, succeeded) = (AttemptStatus::Failed, AttemptStatus::Succeeded);
            assert_eq!(statuses, [failed, failed, succeeded]);
            let last = &view.attempts[2];
            assert_eq!((last.number, last.counted), (3, true));
            assert_eq!((last.delivery, last.nonce), (lease.delivery, lease.nonce));
            assert_eq!((last.note.as_str(), last.worker_id.as_str()), ("delivered", "worker"));
            assert_eq!((last.started_at, last.ended_at), (delivered.delivery.started_at, completed_at));
            assert!(last.failure.is_none() && last.delay.is_none());
            h.reopen().await;
        }
    }
}

store_test! {
    async fn a_job_that_is_done_at_once_is_kept_too_and_needs_no_result(h) {
        keep(&mut h, HOUR);
        let id = h.enqueue(job("q")).await;
        complete(&h).await;
        let view = h.view(&id).await;
        assert_eq!((view.state, view.attempts.len()), (State::Completed, 1));
        assert!(view.result.is_empty());
        let queue = h.queue("q").await.unwrap();
        assert_eq!((queue.depths.completed, queue.depths.leased), (1, 0));
        assert_eq!((queue.totals.completed, queue.depths.held()), (1, 0));
    }
}

store_test! {
    async fn completed_jobs_go_when_their_time_since_then_is_over(h) {
        keep(&mut h, HOUR);
        h.advance(HOUR);
        let lease = done(&h, job("q").id("a")).await;
        let first = h.now();
        assert_eq!(h.sweep().await.next, Some(first.after(HOUR)));
        h.advance(SECOND);
        done(&h, job("q")).await;
        h.advance(HOUR - SECOND - MILLISECOND);
        assert_eq!(h.sweep().await.next, Some(first.after(HOUR)));
        assert_eq!(h.depths("q").await.completed, 2);
        h.advance(MILLISECOND);
        let swept = h.sweep().await;
        assert_eq!((swept.completed_removed, swept.retention_expired), (1, 0));
        assert_eq!(swept.next, Some(first.after(HOUR + SECOND)));
        assert!(h.views(&JobId::parse("a")).await.is_empty());
        assert_eq!(h.ack(lease).await, AGAIN);
        let queue = h.queue("q").await.unwrap();
        assert_eq!((queue.depths.completed, queue.totals.completed), (1, 2));
        h.reopen().await;
        h.advance(SECOND);
        let id_held_until = first.after(HOUR + seconds(600));
        assert_eq!(h.sweep().await.next, Some(id_held_until));
        assert!(h.depths("q").await.is_empty());
        h.advance(seconds(600));
        assert_eq!(h.sweep().await.next, None);
        h.enqueue(job("q").id("a").body("other")).await;
    }
}

store_test! {
    async fn the_sweeper_hears_of_a_job_that_is_not_kept_for_long(h) {
        keep(&mut h, SECOND);
        done(&h, job("q")).await;
        assert_eq!(h.due().await.last(), Some(&h.now().after(SECOND)));
    }
}

store_test! {
    async fn one_sweep_removes_a_bounded_part_and_says_that_there_is_more(h) {
        keep(&mut h, SECOND);
        for name in ["q", "r"] {
            h.enqueue_all((0..400).map(|_| job(name)).collect()).await;
            for delivered in h.claim_many(name, 400).await {
                h.ack_with(delivered.delivery.lease, "", "r".into()).await.unwrap();
            }
        }
        h.advance(SECOND);
        let first = h.store().sweep(sweep_all()).await.unwrap();
        assert_eq!(first.completed_removed, 500);
        assert!(first.next.unwrap() <= h.now());
        // Under the same settings, as a server sweeps.
        let second = h.store().sweep(sweep_all()).await.unwrap();
        assert_eq!((second.completed_removed, second.next), (300, None));
    }
}

store_test! {
    async fn jobs_that_were_done_one_after_another_go_together(h) {
        keep(&mut h, HOUR);
        for _ in 0..3 {
            done(&h, job("q")).await;
            h.advance(MILLISECOND);
        }
        h.advance(HOUR - 3 * MILLISECOND);
        let first = h.store().sweep(sweep_all()).await.unwrap();
        assert_eq!((first.completed_removed, first.next), (1, Some(h.now().after(SECOND))));
        h.advance(SECOND);
        let second = h.store().sweep(sweep_all()).await.unwrap();
        assert_eq!((second.completed_removed, second.next), (2, None));
    }
}

store_test! {
    async fn a_retention_that_changes_holds_for_those_that_are_there(h) {
        keep(&mut h, HOUR);
        done(&h, job("q")).await;
        h.advance(SECOND);
        h.sweep().await;
        keep(&mut h, 2 * HOUR);
        h.advance(HOUR);
        assert_eq!(h.sweep().await.completed_removed, 0);
        keep(&mut h, HOUR);
        assert_eq!(h.sweep().await.completed_removed, 1);
    }
}

store_test! {
    async fn a_queue_that_keeps_none_any_more_lets_go_of_those_it_has(h) {
        keep(&mut h, HOUR);
        done(&h, job("q")).await;
        assert_eq!(h.sweep().await.completed_removed, 0);
        h.set(|queue| queue.completed_retention = None);
        assert_eq!(h.sweep().await.completed_removed, 1);
        done(&h, job("q")).await;
        assert!(h.depths("q").await.is_empty());
    }
}

store_test! {
    async fn each_queue_says_for_itself_whether_it_keeps_any(h) {
        let mut keeps = (*h.settings.defaults).clone();
        keeps.completed_retention = Some(HOUR);
        Arc::make_mut(&mut h.settings).queues.insert(queue("keeps"), Arc::new(keeps));
        for name in ["keeps", "q"] {
            let id = h.enqueue(job(name)).await;
            let lease = h.claim(name).await.delivery.lease;
            h.ack(lease).await.unwrap();
            assert_eq!(h.views(&id).await.len(), usize::from(name == "keeps"));
        }
    }
}

store_test! {
    async fn an_ack_that_comes_again_is_ok_and_a_worker_that_came_too_late_has_lost(h) {
        keep(&mut h, HOUR);
        h.enqueue(job("q")).await;
        let late = h.claim("q").await.delivery.lease;
        h.advance(HOUR);
        h.sweep().await;
        h.advance(HOUR);
        let lease = complete(&h).await.delivery.lease;
        for _ in 0..2 {
            assert_eq!(h.ack(lease.clone()).await, AGAIN);
            assert_eq!(h.ack(late.clone()).await, Err(Refusal::LeaseLost));
            let forged = Lease { nonce: !lease.nonce, ..lease.clone() };
            assert_eq!(h.ack(forged).await, Err(Refusal::LeaseLost));
            for lost in [lease.clone(), late.clone()] {
                assert_eq!(h.nack(lost.clone(), permanent()).await, Err(Refusal::LeaseLost));
                assert_eq!(h.extend(lost, None, "").await, Err(Refusal::LeaseLost));
            }
            h.reopen().await;
        }
        assert_eq!(h.queue("q").await.unwrap().totals.completed, 1);
    }
}

store_test! {
    async fn a_completed_job_cannot_be_cancelled_run_requeued_or_purged(h) {
        keep(&mut h, HOUR);
        done(&h, job("q").id("a")).await;
        let wrong = wrong_state("a", State::Completed);
        assert_eq!(h.cancel("a").await, Err(wrong.clone()));
        assert_eq!(h.run_now("a").await, Err(wrong));
        let ids = || Which::Ids(vec![JobId::parse("a")]);
        assert_eq!(h.requeue(requeue_of("q", ids())).await.unwrap().skipped.len(), 1);
        assert_eq!(h.purge(purge_of("q", ids())).await.unwrap().skipped.len(), 1);
        assert!(h.claim_many("q", 1).await.is_empty());
        assert_eq!(h.depths("q").await.completed, 1);
    }
}

store_test! {
    async fn an_ack_completes_a_cancelled_job(h) {
        keep(&mut h, HOUR);
        let id = h.enqueue(job("q").id("a")).await;
        let lease = h.claim("q").await.delivery.lease;
        assert_eq!(h.cancel("a").await, Ok(Cancelled::Requested));
        h.ack(lease).await.unwrap();
        let view = h.view(&id).await;
        assert_eq!((view.state, view.progress.cancel_requested), (State::Completed, true));
        assert_eq!(h.queue("q").await.unwrap().totals.cancelled, 0);
    }
}

store_test! {
    async fn its_id_is_taken_while_it_is_kept(h) {
        keep(&mut h, HOUR);
        done(&h, job("q").id("a")).await;
        let made = h.enqueue(job("q")).await;
        complete(&h).await;
        for id in ["a".to_owned(), made.to_string()] {
            let again = h.try_enqueue(job("q").id(&id)).await.unwrap();
            assert_eq!((again.outcome, again.state), (EnqueueOutcome::Existing, State::Completed));
            let other = h.try_enqueue(job("q").id(&id).body("other")).await;
            assert_eq!(other.unwrap_err(), Refusal::IdTaken);
        }
        h.enqueue(job("elsewhere").id("a")).await;
        assert_eq!(h.queue("q").await.unwrap().totals.enqueued, 2);
    }
}

store_test! {
    async fn its_key_has_a_retention_of_its_own(h) {
        h.set(|queue| queue.key_retention = 2 * HOUR);
        keep(&mut h, HOUR);
        done(&h, job("q").key("k")).await;
        for kept in [1, 0] {
            assert_eq!(h.depths("q").await.completed, kept);
            let again = h.try_enqueue(job("q").key("k")).await.unwrap();
            assert_eq!((again.outcome, again.state), (EnqueueOutcome::Existing, State::Completed));
            h.advance(HOUR);
            h.sweep().await;
        }
        keep(&mut h, 24 * HOUR);
        done(&h, job("q").key("k").id("kept")).await;
        h.advance(2 * HOUR);
        h.sweep().await;
        h.enqueue(job("q").key("k")).await;
        assert_eq!(h.view(&JobId::parse("kept")).await.state, State::Completed);
        // Nor does the end of the one that is kept free the key of the other.
        h.advance(22 * HOUR);
        h.sweep().await;
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert_eq!((again.outcome, again.state), (EnqueueOutcome::Existing, State::Ready));
    }
}

store_test! {
    async fn its_deadline_means_nothing_any_more(h) {
        keep(&mut h, 2 * HOUR);
        done(&h, job("q").expires(HOUR)).await;
        h.advance(HOUR);
        let swept = h.sweep().await;
        assert_eq!(swept.next, Some(h.now().after(HOUR)));
        let depths = h.depths("q").await;
        assert_eq!((depths.completed, depths.dead), (1, 0));
    }
}

store_test! {
    async fn completed_jobs_take_no_room_in_their_queue(h) {
        keep(&mut h, HOUR);
        h.set(|queue| queue.max_depth = Some(1));
        for _ in 0..3 {
            done(&h, job("q")).await;
        }
        assert_eq!(h.depths("q").await.completed, 3);
    }
}

store_test! {
    async fn a_queue_is_not_forgotten_while_it_keeps_a_job(h) {
        keep(&mut h, 100 * HOUR);
        done(&h, job("q")).await;
        h.advance(99 * HOUR);
        h.sweep().await;
        assert!(h.queue("q").await.is_some());
        h.advance(HOUR);
        assert_eq!(h.sweep().await.completed_removed, 1);
        h.advance(25 * HOUR);
        h.sweep().await;
        assert!(h.queue("q").await.is_none());
    }
}

store_test! {
    async fn the_history_is_bounded_with_its_last_entry_in_it(h) {
        keep(&mut h, HOUR);
        let id = h.enqueue(job("q").retries(1_000)).await;
        for _ in 0..60 {
            h.advance(HOUR);
            let lease = h.claim("q").await.delivery.lease;
            h.nack(lease, failed("Timeout")).await.unwrap();
        }
        h.advance(HOUR);
        complete(&h).await;
        let view = h.view(&id).await;
        let kept: Vec<u32> = view.attempts.iter().map(|attempt| attempt.number).collect();
        let expected: Vec<u32> = (1..=10).chain(22..=61).collect();
        assert_eq!(kept, expected);
        assert_eq!(view.attempts[49].status, AttemptStatus::Succeeded);
    }
}

store_test! {
    async fn completed_jobs_are_listed_last_in_the_order_in_which_they_were_done(h) {
        keep(&mut h, HOUR);
        for id in ["a", "b", "c", "d"] {
            h.enqueue(job("q").id(id)).await;
        }
        let jobs = h.claim_many("q", 4).await;
        for at in [2, 0, 3, 1] {
            h.advance(MILLISECOND);
            h.ack_with(jobs[at].delivery.lease.clone(), "", "large".into()).await.unwrap();
        }
        h.dead_letter(job("q").id("dead")).await;
        h.enqueue(job("q").id("waits")).await;
        let by_two = JobQuery { limit: 2, ..jobs_of("q") };
        let walked = h.pages(by_two.clone()).await;
        assert_eq!(walked.concat(), ["waits", "dead", "c", "a", "d", "b"]);
        let completed = JobQuery { state: Some(State::Completed), ..by_two };
        assert_eq!(h.pages(completed.clone()).await, [["c", "a"], ["d", "b"]]);
        let page = h.page(JobQuery { full: true, ..completed.clone() }).await;
        for (_, view) in &page.jobs {
            assert_eq!((&*view.result, view.attempts.len()), (&b"large"[..], 1));
        }
        // The page goes on where it ended, whatever came and went meanwhile.
        let next = page.next;
        h.advance(HOUR - 3 * MILLISECOND);
        assert_eq!(h.sweep().await.completed_removed, 1);
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        let rest = h.page(JobQuery { after: next, limit: 9, ..completed }).await;
        let ids: Vec<_> = rest.jobs.iter().map(|(_, view)| view.spec.id.to_string()).collect();
        assert_eq!(ids, ["d", "b", "waits"]);
        assert!(rest.jobs.iter().all(|(_, view)| view.result.is_empty()), "a short view");
        assert!(rest.jobs.iter().all(|(_, view)| view.completed_at.is_some()));
    }
}
