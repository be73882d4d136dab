//! Idempotency keys: who holds one, and for how long.

use crate::builders::*;
use redrive::domain::{Body, NewJob, OnConflict, State};
use redrive::queue::EnqueueOutcome;
use redrive::queue::Refusal;

store_test! {
    async fn the_same_key_and_body_again_adds_nothing(h) {
        let id = h.enqueue(job("q").key("k")).await;
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert_eq!(again.outcome, EnqueueOutcome::Existing);
        assert_eq!((again.id, again.state), (id, State::Ready));
        assert_eq!(h.queue("q").await.unwrap().totals.enqueued, 1);
    }
}

store_test! {
    async fn the_same_key_with_another_body_is_refused(h) {
        h.enqueue(job("q").key("k")).await;
        let other = h.try_enqueue(job("q").key("k").body("other")).await;
        assert_eq!(other, Err(Refusal::KeyTaken));
    }
}

store_test! {
    async fn two_spellings_of_one_json_body_are_one_job(h) {
        let json = |body| NewJob { content_type: "application/json".into(), ..job("q").key("k").body(body) };
        let id = h.enqueue(json(r#"{"to":"ada","cc":["b"]}"#)).await;
        let again = h.try_enqueue(json("{ \"cc\": [\"\\u0062\"],\n \"to\": \"ada\" }")).await.unwrap();
        assert_eq!((again.outcome, again.id), (EnqueueOutcome::Existing, id));
        assert_eq!(h.try_enqueue(json(r#"{"to":"ada","cc":["c"]}"#)).await, Err(Refusal::KeyTaken));
        // A text is what is written.
        h.enqueue(job("q").key("text").body("[1, 2]")).await;
        assert_eq!(h.try_enqueue(job("q").key("text").body("[1,2]")).await, Err(Refusal::KeyTaken));
    }
}

store_test! {
    async fn the_jobs_of_one_call_meet_what_those_before_them_have_replaced(h) {
        let replaces = |job| NewJob { on_conflict: OnConflict::ReplaceWaiting, ..job };
        h.enqueue(job("q").id("x").key("k")).await;
        // It is there when the first of them comes, and has the key until the third.
        let jobs = vec![job("q").id("x"), replaces(job("q").key("k").body("b")), replaces(job("q").id("x").body("b"))];
        let jobs = [jobs, vec![job("q").key("k").body("c")]].concat();
        let answers = h.enqueue_all(jobs).await.into_iter().map(|answer| answer.map(|it| (it.outcome, it.state)).unwrap());
        use EnqueueOutcome::{Added, Existing, Replaced};
        assert_eq!(answers.collect::<Vec<_>>(), [Existing, Replaced, Replaced, Added].map(|it| (it, State::Ready)));
        h.verify().await;
    }
}

store_test! {
    async fn keys_are_a_queues_own(h) {
        h.enqueue(job("q").key("k")).await;
        h.enqueue(job("r").key("k").body("other")).await;
    }
}

store_test! {
    async fn an_id_and_a_key_must_name_one_job(h) {
        h.enqueue(job("q").id("one").key("k")).await;
        h.enqueue(job("q").id("two").key("l")).await;
        let crossed = h.try_enqueue(job("q").id("one").key("l")).await;
        assert_eq!(crossed, Err(Refusal::IdAndKeyDiffer));
        let new_id = h.try_enqueue(job("q").id("three").key("k")).await;
        assert_eq!(new_id, Err(Refusal::IdAndKeyDiffer));
        assert_eq!(h.try_enqueue(job("q").id("one").key("k")).await.unwrap().outcome, EnqueueOutcome::Existing);
        assert_eq!(h.depths("q").await.ready, 2);
    }
}

store_test! {
    async fn a_key_is_held_for_its_retention_after_the_job_is_done(h) {
        let id = h.enqueue(job("q").key("k")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.advance(HOUR - MILLISECOND);
        h.sweep().await;
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert_eq!((again.outcome, again.state, again.id), (EnqueueOutcome::Existing, State::Completed, id));
        let other = h.try_enqueue(job("q").key("k").body("other")).await;
        assert_eq!(other, Err(Refusal::KeyTaken));
        h.advance(MILLISECOND);
        h.enqueue(job("q").key("k").body("other")).await;
    }
}

store_test! {
    /// The key is not used again: the sweep forgets it, and then the queue.
    async fn a_key_whose_retention_is_over_is_swept_away(h) {
        h.set(|queue| queue.key_retention = 48 * HOUR);
        h.enqueue(job("q").key("k")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.advance(47 * HOUR);
        h.sweep().await;
        assert!(h.queue("q").await.is_some(), "its key is still held");
        h.advance(HOUR);
        h.sweep().await;
        h.advance(24 * HOUR);
        h.sweep().await;
        assert!(h.queue("q").await.is_none());
    }
}

store_test! {
    async fn a_job_that_runs_longer_than_the_retention_holds_its_key_until_it_is_done(h) {
        h.enqueue(job("q").key("k")).await;
        let claim = redrive::queue::Claim {
            lease_duration: Some(3 * HOUR),
            ..claim_of(&["q"], 1)
        };
        let lease = h.try_claim(claim).await.jobs[0].delivery.lease.clone();
        h.advance(2 * HOUR);
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert_eq!((again.outcome, again.state), (EnqueueOutcome::Existing, State::Leased));
        h.ack(lease).await.unwrap();
        h.enqueue(job("q").key("k")).await;
    }
}

store_test! {
    async fn retention_counts_from_enqueue_and_survives_a_restart(h) {
        h.enqueue(job("q").key("k")).await;
        h.advance(HOUR / 2);
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.reopen().await;
        h.advance(HOUR / 2 - MILLISECOND);
        assert_eq!(h.try_enqueue(job("q").key("k")).await.unwrap().outcome, EnqueueOutcome::Existing);
        h.advance(MILLISECOND);
        h.enqueue(job("q").key("k")).await;
    }
}

store_test! {
    async fn a_dead_job_does_not_hold_its_key(h) {
        h.dead_letter(job("q").key("k")).await;
        h.enqueue(job("q").key("k").body("other")).await;
    }
}

store_test! {
    async fn a_dead_job_holds_its_key_where_the_queue_says_so(h) {
        h.set(|queue| queue.dead_jobs_hold_keys = true);
        let id = h.dead_letter(job("q").key("k")).await;
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert_eq!((again.outcome, again.state, again.id), (EnqueueOutcome::Existing, State::Dead, id));
        let other = h.try_enqueue(job("q").key("k").body("other")).await;
        assert_eq!(other, Err(Refusal::KeyTaken));
        h.advance(100 * HOUR);
        h.sweep().await;
        assert_eq!(h.try_enqueue(job("q").key("k")).await.unwrap().outcome, EnqueueOutcome::Existing);
    }
}

store_test! {
    async fn a_requeued_job_has_its_key_back(h) {
        let id = h.dead_letter(job("q").key("k")).await;
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        let again = h.try_enqueue(job("q").key("k")).await.unwrap();
        assert_eq!((again.outcome, again.id), (EnqueueOutcome::Existing, id));
    }
}

store_test! {
    async fn a_requeued_job_takes_its_key_from_one_that_is_done(h) {
        let id = h.dead_letter(job("q").key("k")).await;
        h.enqueue(job("q").key("k").body("other")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        let done = h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(done.ids, std::slice::from_ref(&id));
        assert_eq!(h.try_enqueue(job("q").key("k")).await.unwrap().id, id);
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        assert_eq!(h.try_enqueue(job("q").key("k")).await.unwrap().state, State::Completed);
    }
}

store_test! {
    async fn the_first_wins_where_the_caller_says_so(h) {
        let id = h.enqueue(job("q").key("k")).await;
        let other = || NewJob { on_conflict: OnConflict::ReturnExisting, ..job("q").key("k").body("other") };
        let again = h.try_enqueue(other()).await.unwrap();
        assert_eq!((again.outcome, &again.id), (EnqueueOutcome::Existing, &id));
        assert_eq!(h.view(&id).await.spec.body, Body::Text("body".into()));
        let lease = h.claim("q").await.delivery.lease;
        assert_eq!(h.try_enqueue(other()).await.unwrap().state, State::Leased);
        h.ack(lease).await.unwrap();
        assert_eq!(h.try_enqueue(other()).await.unwrap().state, State::Completed);
    }
}

fn replacing(job: NewJob) -> NewJob {
    NewJob { on_conflict: OnConflict::ReplaceWaiting, ..job }
}

store_test! {
    async fn the_last_wins_while_the_job_waits_and_was_never_delivered(h) {
        h.set(without_jitter);
        let made = h.enqueue(job("q").key("k").delay(HOUR).expires(2 * HOUR)).await;
        let own = h.enqueue(job("q").id("own").key("l")).await;
        for (id, new) in [(&made, job("q").key("k")), (&own, job("q").id("own"))] {
            let new = replacing(new.body("newer").priority(7));
            let replaced = h.try_enqueue(new.clone()).await.unwrap();
            assert_eq!((replaced.outcome, &replaced.id, replaced.state), (EnqueueOutcome::Replaced, id, State::Ready));
            let view = h.view(id).await;
            assert_eq!((view.spec.body, view.spec.priority), (Body::Text("newer".into()), 7));
            assert_eq!(view.spec.expires_at, None);
            // Said again it replaces itself.
            assert_eq!(h.try_enqueue(new).await.unwrap().outcome, EnqueueOutcome::Replaced);
        }
        // Replaced whole: it has no key any more.
        h.enqueue(job("q").key("l").body("another")).await;
        let queue = h.queue("q").await.unwrap();
        assert_eq!((queue.depths.ready, queue.totals.enqueued), (3, 3));
        h.reopen().await;
        h.verify().await;
        // One that was delivered is not replaced, whatever it waits for.
        let first = h.claim("q").await;
        assert_eq!(first.spec.id, made);
        let late = replacing(job("q").key("k").body("too late"));
        assert_eq!(h.try_enqueue(late.clone()).await.unwrap().outcome, EnqueueOutcome::Existing);
        h.nack(first.delivery.lease, failed("E")).await.unwrap();
        let again = h.try_enqueue(late).await.unwrap();
        assert_eq!((again.outcome, again.state), (EnqueueOutcome::Existing, State::Retrying));
        h.cancel("own").await.unwrap();
        assert!(h.views(&own).await.is_empty());
        h.verify().await;
    }
}

store_test! {
    async fn jobs_of_one_call_see_those_that_it_replaced_before_them(h) {
        h.enqueue(job("q").id("x").key("k")).await;
        let (same, newer) = (job("q").id("x"), replacing(job("q").key("k")));
        let (existing, replaced) = (EnqueueOutcome::Existing, EnqueueOutcome::Replaced);
        for (jobs, expected) in [
            (vec![same.clone(), newer.clone().delay(HOUR)], [(existing, State::Ready), (replaced, State::Scheduled)]),
            (vec![newer.delay(2 * HOUR), same], [(replaced, State::Scheduled), (existing, State::Scheduled)]),
        ] {
            let answers = h.enqueue_all(jobs).await.into_iter().map(|it| it.map(|it| (it.outcome, it.state)));
            assert_eq!(answers.collect::<Vec<_>>(), expected.map(Ok));
        }
    }
}

store_test! {
    async fn a_job_may_say_how_long_its_key_is_held(h) {
        let of = |ttl| NewJob { key_ttl: Some(ttl), ..job("q").key("k") };
        for (ttl, held) in [(seconds(10), false), (2 * HOUR, true)] {
            h.enqueue(of(ttl)).await;
            let lease = h.claim("q").await.delivery.lease;
            h.ack(lease).await.unwrap();
            h.advance(HOUR + SECOND);
            h.sweep().await;
            let again = h.try_enqueue(job("q").key("k")).await.unwrap();
            assert_eq!(again.outcome == EnqueueOutcome::Existing, held, "{ttl:?}");
            if !held {
                let lease = h.claim("q").await.delivery.lease;
                h.ack(lease).await.unwrap();
                h.advance(2 * HOUR);
                h.sweep().await;
            }
        }
    }
}
