//! Ack, Nack and Extend: only the lease that is out opens anything.

use crate::builders::*;
use redrive::domain::{AttemptStatus, JobEventKind, Next, Outcome, State};
use redrive::queue::Refusal;
use redrive::queue::{Acked, Claim};

store_test! {
    async fn an_ack_removes_the_job(h) {
        let id = h.enqueue(job("q").id("mine").key("k").expires(HOUR)).await;
        let lease = h.claim("q").await.delivery.lease;
        assert_eq!(h.ack(lease).await, Ok(Acked { already_gone: false }));
        assert!(h.views(&id).await.is_empty());
        let queue = h.queue("q").await.unwrap();
        assert_eq!((queue.depths.held(), queue.totals.completed), (0, 1));
        h.advance(2 * HOUR);
        h.sweep().await;
        assert!(h.recorded.take_died().is_empty());
    }
}

store_test! {
    async fn an_ack_removes_the_history_too(h) {
        h.set(without_jitter);
        let id = h.enqueue(job("q").id("mine")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, failed("Timeout")).await.unwrap();
        h.advance(SECOND);
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        let totals = h.queue("q").await.unwrap().totals;
        assert_eq!((totals.retries, totals.successful_retries, totals.retried_finished), (1, 1, 1));
        h.advance(seconds(600));
        h.enqueue(job("q").id("mine")).await;
        let fresh = h.view(&id).await;
        assert!(fresh.attempts.is_empty() && fresh.last_failure.is_none());
        assert_eq!(fresh.progress, Default::default());
    }
}

store_test! {
    async fn an_ack_again_says_that_the_job_is_gone(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease.clone()).await.unwrap();
        assert_eq!(h.ack(lease.clone()).await, Ok(Acked { already_gone: true }));
        assert_eq!(h.nack(lease.clone(), failed("Timeout")).await, Err(Refusal::LeaseLost));
        assert_eq!(h.extend(lease, None, "").await, Err(Refusal::LeaseLost));
        assert_eq!(h.queue("q").await.unwrap().totals.completed, 1);
    }
}

store_test! {
    async fn a_lease_that_has_expired_neither_nacks_nor_extends(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.advance(seconds(30));
        assert_eq!(h.sweep().await.expired.len(), 1);
        assert_eq!(h.nack(lease.clone(), failed("Timeout")).await, Err(Refusal::LeaseLost));
        assert_eq!(h.extend(lease, None, "").await, Err(Refusal::LeaseLost));
        assert_eq!(h.depths("q").await.retrying, 1);
    }
}

/// Its lease expires; it waits, is ready again, or is dead.
const AFTER: [(&str, u32, bool); 3] = [("retrying", 3, false), ("ready", 3, true), ("dead", 0, false)];

store_test! {
    async fn an_ack_counts_after_its_lease_until_the_job_is_delivered_again(h) {
        h.set(without_jitter);
        for (id, retries, promoted) in AFTER {
            h.enqueue(job("q").id(id).key(id).retries(retries).expires(HOUR)).await;
            let lease = h.claim("q").await.delivery.lease;
            h.advance(seconds(30));
            assert_eq!(h.sweep().await.expired.len(), 1);
            if promoted {
                h.run_now(id).await.unwrap();
            }
            assert_eq!(h.ack(lease.clone()).await, Ok(Acked { already_gone: false }), "{id}");
            assert_eq!(h.ack(lease.clone()).await, Ok(Acked { already_gone: true }), "{id}");
            assert!(h.views(&redrive::domain::JobId::parse(id)).await.is_empty(), "{id}");
        }
        let queue = h.queue("q").await.unwrap();
        assert_eq!((queue.depths.held(), queue.totals.completed, queue.totals.dead_lettered), (0, 3, 1));
        assert_eq!((queue.totals.retried_finished, queue.totals.successful_retries), (2, 2));
        h.reopen().await;
        h.verify().await;
        // Superseded by the next delivery, it settles nothing.
        h.enqueue(job("q").id("again")).await;
        let first = h.claim("q").await.delivery.lease;
        h.advance(seconds(30));
        h.sweep().await;
        h.run_now("again").await.unwrap();
        let second = h.claim("q").await.delivery.lease;
        assert_eq!(h.ack(first).await, Err(Refusal::LeaseLost));
        assert_eq!(h.ack(second).await, Ok(Acked { already_gone: false }));
    }
}

store_test! {
    async fn the_history_of_a_kept_job_says_that_it_was_acked_after_its_lease(h) {
        h.set(|queue| {
            without_jitter(queue);
            queue.completed_retention = Some(HOUR);
        });
        for (id, retries, promoted) in AFTER {
            let name = h.enqueue(job("q").id(id).retries(retries)).await;
            let lease = h.claim("q").await.delivery.lease;
            h.advance(seconds(30));
            h.sweep().await;
            if promoted {
                h.run_now(id).await.unwrap();
            }
            h.ack_with(lease.clone(), "a note", "a result".into()).await.unwrap();
            let view = h.view(&name).await;
            assert_eq!((view.state, view.death.is_none()), (State::Completed, true), "{id}");
            assert_eq!((&view.result[..], view.attempts.len()), (&b"a result"[..], 1));
            let attempt = &view.attempts[0];
            assert_eq!((attempt.status, attempt.note.as_str()), (AttemptStatus::Succeeded, "a note"));
            assert!(attempt.explanation.contains("acked after that"), "{}", attempt.explanation);
            assert_eq!(attempt.failure.as_ref().unwrap().error_type, "LeaseExpired");
            assert_eq!(h.ack(lease).await, Ok(Acked { already_gone: true }));
        }
        h.verify().await;
    }
}

store_test! {
    async fn an_ack_counts_after_an_interruption_until_the_job_is_delivered_again(h) {
        h.enqueue(job("q").id("x")).await;
        let lease = h.claim("q").await.delivery.lease;
        let interrupted = h.nack(lease.clone(), Outcome::Interrupted).await.unwrap();
        assert_eq!((interrupted.status, interrupted.next), (AttemptStatus::Interrupted, Next::OldPlace));
        assert_eq!(h.nack(lease.clone(), failed("Timeout")).await, Err(Refusal::LeaseLost));
        assert_eq!(h.extend(lease.clone(), None, "").await, Err(Refusal::LeaseLost));
        assert_eq!(h.ack(lease.clone()).await, Ok(Acked { already_gone: false }));
        assert_eq!(h.ack(lease).await, Ok(Acked { already_gone: true }));
        let queue = h.queue("q").await.unwrap();
        assert_eq!((queue.depths.held(), queue.totals.completed, queue.totals.lease_expired), (0, 1, 0));
        // Delivered again, it settles nothing.
        h.enqueue(job("q").id("again")).await;
        let first = h.claim("q").await.delivery.lease;
        h.nack(first.clone(), Outcome::Interrupted).await.unwrap();
        let second = h.claim("q").await.delivery.lease;
        assert_eq!(h.ack(first).await, Err(Refusal::LeaseLost));
        assert_eq!(h.ack(second).await, Ok(Acked { already_gone: false }));
        h.verify().await;
    }
}

store_test! {
    async fn a_kept_job_says_that_it_was_interrupted_and_acked_after_that(h) {
        h.set(|queue| queue.completed_retention = Some(HOUR));
        let id = h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease.clone(), Outcome::Interrupted).await.unwrap();
        h.advance(SECOND);
        h.ack_with(lease.clone(), "a note", "a result".into()).await.unwrap();
        let view = h.view(&id).await;
        assert_eq!((view.state, &view.result[..], view.attempts.len()), (State::Completed, &b"a result"[..], 1));
        let attempt = &view.attempts[0];
        assert_eq!((attempt.status, attempt.counted), (AttemptStatus::Succeeded, true));
        assert_eq!((attempt.note.as_str(), attempt.failure.as_ref()), ("a note", None));
        assert_eq!(attempt.explanation, "interrupted, and acked after that");
        let event = view.events.last().unwrap();
        assert_eq!((event.kind, event.detail.as_str()), (JobEventKind::AckedAfterLease, attempt.explanation.as_str()));
        assert_eq!(h.ack(lease).await, Ok(Acked { already_gone: true }));
        h.verify().await;
    }
}

store_test! {
    async fn after_a_requeue_or_a_cancel_a_late_ack_is_lost(h) {
        h.set(|queue| {
            without_jitter(queue);
            queue.completed_retention = Some(HOUR);
        });
        let mut leases = Vec::new();
        for (id, retries) in [("requeued", 0), ("cancelled", 3)] {
            h.enqueue(job("q").id(id).retries(retries)).await;
            leases.push(h.claim("q").await.delivery.lease);
            h.advance(seconds(30));
            h.sweep().await;
        }
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        h.cancel("cancelled").await.unwrap();
        for lease in leases {
            assert_eq!(h.ack(lease).await, Err(Refusal::LeaseLost));
        }
    }
}

store_test! {
    async fn a_release_that_keeps_its_position_reorders_nothing(h) {
        for id in ["a", "b"] {
            h.enqueue(job("q").id(id)).await;
            h.advance(MILLISECOND);
        }
        let lease = h.claim("q").await.delivery.lease;
        let keep = redrive::domain::Outcome::Released { retry_after: None, keep_position: true };
        let attempt = h.nack(lease, keep).await.unwrap();
        assert_eq!((attempt.status, attempt.next), (AttemptStatus::Released, Next::OldPlace));
        let again = h.claim("q").await;
        assert_eq!((again.spec.id.to_string().as_str(), again.progress.releases), ("a", 1));
    }
}

store_test! {
    async fn until_its_expiry_is_applied_a_lease_can_settle(h) {
        h.enqueue_all(vec![job("q"); 3]).await;
        let jobs = h.claim_many("q", 3).await;
        h.advance(HOUR);
        assert!(h.ack(jobs[0].delivery.lease.clone()).await.is_ok());
        assert!(h.nack(jobs[1].delivery.lease.clone(), failed("Timeout")).await.is_ok());
        assert!(h.extend(jobs[2].delivery.lease.clone(), None, "").await.is_ok());
        assert!(h.sweep().await.expired.is_empty());
    }
}

store_test! {
    async fn a_lease_that_was_superseded_opens_nothing(h) {
        h.enqueue(job("q")).await;
        let old = h.claim("q").await.delivery.lease;
        h.nack(old.clone(), released()).await.unwrap();
        let new = h.claim("q").await.delivery.lease;
        assert_eq!(h.ack(old.clone()).await, Err(Refusal::LeaseLost));
        assert_eq!(h.nack(old.clone(), released()).await, Err(Refusal::LeaseLost));
        assert_eq!(h.extend(old, None, "").await, Err(Refusal::LeaseLost));
        assert!(h.ack(new).await.is_ok());
    }
}

store_test! {
    async fn a_lease_of_a_dead_or_requeued_job_opens_nothing(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease.clone(), permanent()).await.unwrap();
        assert_eq!(h.ack(lease.clone()).await, Err(Refusal::LeaseLost));
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(h.ack(lease.clone()).await, Err(Refusal::LeaseLost));
        assert_eq!(h.extend(lease, None, "").await, Err(Refusal::LeaseLost));
        assert_eq!(h.depths("q").await.ready, 1);
    }
}

store_test! {
    async fn a_lease_with_a_guessed_number_opens_nothing(h) {
        h.enqueue(job("q")).await;
        let mut lease = h.claim("q").await.delivery.lease;
        lease.nonce ^= 1;
        assert_eq!(h.ack(lease.clone()).await, Err(Refusal::LeaseLost));
        assert_eq!(h.extend(lease.clone(), None, "").await, Err(Refusal::LeaseLost));
        assert_eq!(h.nack(lease, permanent()).await, Err(Refusal::LeaseLost));
    }
}

store_test! {
    /// With the usual jitter: the answer is rebuilt from the record, to the last digit.
    async fn a_nack_again_gets_the_same_answer_until_the_job_is_delivered_again(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        let first = h.nack(lease.clone(), failed("Timeout")).await.unwrap();
        h.advance(SECOND);
        assert_eq!(h.nack(lease.clone(), permanent()).await, Ok(first.clone()));
        h.reopen().await;
        assert_eq!(h.nack(lease.clone(), failed("Timeout")).await, Ok(first));
        assert_eq!(h.queue("q").await.unwrap().totals.failed_attempts, 1);
        h.advance(HOUR);
        let next = h.claim("q").await.delivery.lease;
        assert_eq!(h.nack(lease.clone(), failed("Timeout")).await, Err(Refusal::LeaseLost));
        h.ack(next).await.unwrap();
        assert_eq!(h.nack(lease, failed("Timeout")).await, Err(Refusal::LeaseLost));
    }
}

store_test! {
    async fn a_nack_that_killed_gets_the_same_answer_again(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        let first = h.nack(lease.clone(), permanent()).await.unwrap();
        assert_eq!(h.nack(lease.clone(), permanent()).await, Ok(first.clone()));
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(h.nack(lease.clone(), permanent()).await, Ok(first));
        h.claim("q").await;
        assert_eq!(h.nack(lease, permanent()).await, Err(Refusal::LeaseLost));
        assert_eq!(h.queue("q").await.unwrap().totals.dead_lettered, 1);
    }
}

store_test! {
    async fn a_lease_named_twice_in_one_call_counts_once(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        let (note, result) = Default::default();
        let ack = redrive::queue::Ack { lease: lease.clone(), note, result, breaker_key: String::new() };
        let extend = redrive::queue::Extend { lease, duration: None, checkpoint: String::new() };
        let settled = h.settle(redrive::queue::Settlements {
            acks: vec![ack.clone(), ack],
            extensions: vec![extend],
            ..Default::default()
        }).await;
        assert!(settled.acks[0].as_ref().is_ok_and(|acked| !acked.already_gone));
        assert_eq!(settled.extensions[0], Err(Refusal::LeaseLost));
        assert_eq!(h.queue("q").await.unwrap().totals.completed, 1);
    }
}

store_test! {
    async fn extending_moves_the_end_of_a_lease(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.advance(seconds(20));
        let extended = h.extend(lease, None, "").await.unwrap();
        assert_eq!(extended.expires_at, h.now().after(seconds(30)));
        h.advance(seconds(29));
        assert!(h.sweep().await.expired.is_empty());
        h.advance(SECOND);
        assert_eq!(h.sweep().await.expired.len(), 1);
    }
}

store_test! {
    async fn extending_never_shortens_a_lease(h) {
        h.enqueue(job("q")).await;
        let delivery = h.claim("q").await.delivery;
        let extended = h.extend(delivery.lease, Some(SECOND), "").await.unwrap();
        assert_eq!(extended.expires_at, delivery.expires_at);
        h.advance(seconds(29));
        assert!(h.sweep().await.expired.is_empty());
    }
}

store_test! {
    async fn a_delivery_takes_no_longer_than_max_run_time(h) {
        h.set(|queue| queue.max_run_time = seconds(100));
        h.enqueue(job("q")).await;
        let delivery = h.claim("q").await.delivery;
        let extended = h.extend(delivery.lease.clone(), Some(HOUR), "").await.unwrap();
        let end = delivery.started_at.after(seconds(100));
        assert_eq!(extended.expires_at, end);
        h.advance(seconds(99));
        assert_eq!(h.extend(delivery.lease, Some(HOUR), "").await.unwrap().expires_at, end);
        h.advance(SECOND);
        assert_eq!(h.sweep().await.expired.len(), 1);
    }
}

store_test! {
    async fn an_extension_survives_a_restart(h) {
        let id = h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        let extended = h.extend(lease, Some(HOUR), "here").await.unwrap();
        h.reopen().await;
        let view = h.view(&id).await;
        assert_eq!(view.delivery.unwrap().expires_at, extended.expires_at);
        h.advance(HOUR - MILLISECOND);
        assert!(h.sweep().await.expired.is_empty());
    }
}

store_test! {
    async fn the_last_checkpoint_reaches_the_next_attempt(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.extend(lease.clone(), None, "page 1").await.unwrap();
        h.extend(lease.clone(), None, "").await.unwrap();
        h.nack(lease, released()).await.unwrap();
        let second = h.claim("q").await;
        assert_eq!(second.progress.checkpoint, "page 1");
        h.nack_saving(second.delivery.lease, released(), "page 2").await.unwrap();
        let third = h.claim("q").await;
        assert_eq!(third.progress.checkpoint, "page 2");
        h.extend(third.delivery.lease, None, "page 3").await.unwrap();
        h.advance(HOUR);
        h.sweep().await;
        h.advance(HOUR);
        assert_eq!(h.claim("q").await.progress.checkpoint, "page 3");
    }
}

store_test! {
    async fn a_running_job_shows_its_lease(h) {
        let id = h.enqueue(job("q")).await;
        let claim = Claim { worker_id: "ada".into(), ..claim_of(&["q"], 1) };
        let delivered = h.try_claim(claim).await.jobs[0].clone();
        let view = h.view(&id).await;
        assert_eq!((view.state, view.delivery), (State::Leased, Some(delivered.delivery)));
        assert_eq!(view.progress.deliveries, 1);
    }
}

store_test! {
    async fn a_release_is_no_failure(h) {
        let id = h.enqueue(job("q").retries(0)).await;
        let lease = h.claim("q").await.delivery.lease;
        let attempt = h.nack(lease, released()).await.unwrap();
        assert_eq!((attempt.status, attempt.counted), (AttemptStatus::Released, false));
        assert_eq!(attempt.next, Next::Behind { at: h.now() });
        assert_eq!(attempt.retries_left, 0);
        let again = h.claim("q").await;
        assert_eq!((again.delivery.attempt, again.progress.releases), (1, 1));
        assert_eq!(h.view(&id).await.progress.tries, 0);
        assert_eq!(h.queue("q").await.unwrap().totals.failed_attempts, 0);
    }
}
