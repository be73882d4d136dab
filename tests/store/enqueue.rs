//! What Enqueue takes and what it refuses. Keys have a file of their own.

use crate::builders::*;
use redrive::domain::{Body, JobId, State, Timestamp, When};
use redrive::queue::EnqueueOutcome;
use redrive::queue::Refusal;
use std::sync::Arc;

store_test! {
    async fn a_job_comes_out_as_it_went_in(h) {
        let mut job = job("q").id("mine").key("k").priority(-5).delay(SECOND).expires(HOUR).retries(7);
        job.headers = vec![("trace".into(), "1".into()), ("trace".into(), "2".into())];
        job.body = Body::Data(vec![0, 159, 146, 150].into());
        job.content_type = "image/x-odd".into();
        let enqueued_at = h.now();
        h.enqueue(job.clone()).await;
        h.advance(SECOND);
        let spec = h.claim("q").await.spec;
        assert_eq!((spec.id, spec.key, spec.policy), (job.id.unwrap(), job.key, job.policy));
        assert_eq!((spec.headers, spec.body, spec.priority), (job.headers, job.body, -5));
        assert_eq!((spec.job_type, spec.content_type), (job.job_type, job.content_type));
        assert_eq!((spec.enqueued_at, spec.run_at), (enqueued_at, enqueued_at.after(SECOND)));
        assert_eq!(spec.expires_at, Some(enqueued_at.after(HOUR)));
    }
}

store_test! {
    async fn ids_that_the_store_makes_differ_and_grow(h) {
        let mut ids = Vec::new();
        for result in h.enqueue_all(vec![job("q"), job("q"), job("r")]).await {
            ids.push(result.unwrap().id);
        }
        ids.push(h.enqueue(job("q")).await);
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
        assert!(ids.iter().all(|id| id.number().is_some()));
    }
}

store_test! {
    async fn a_job_says_when_it_runs(h) {
        let now = h.now();
        let at_once = h.try_enqueue(job("q")).await.unwrap();
        assert_eq!((at_once.state, at_once.run_at), (State::Ready, Some(now)));
        let later = h.try_enqueue(job("q").delay(SECOND)).await.unwrap();
        assert_eq!((later.state, later.run_at), (State::Scheduled, Some(now.after(SECOND))));
    }
}

store_test! {
    async fn a_start_that_has_passed_means_now(h) {
        let mut late = job("q");
        late.start = Some(When::At(Timestamp::from_millis(1)));
        let added = h.try_enqueue(late).await.unwrap();
        assert_eq!((added.state, added.run_at), (State::Ready, Some(h.now())));
    }
}

store_test! {
    async fn a_job_past_its_deadline_is_never_handed_out(h) {
        let mut late = job("q");
        late.expiry = Some(When::At(Timestamp::from_millis(1)));
        h.enqueue(late).await;
        h.idle("q").await;
        assert_eq!(h.depths("q").await.dead, 1);
    }
}

store_test! {
    async fn the_same_id_and_body_again_is_the_same_job(h) {
        let id = h.enqueue(job("q").id("mine")).await;
        let again = h.try_enqueue(job("q").id("mine")).await.unwrap();
        assert_eq!(again.outcome, EnqueueOutcome::Existing);
        assert_eq!((again.id, again.state), (id, State::Ready));
        assert_eq!(h.depths("q").await.ready, 1);
    }
}

store_test! {
    async fn the_same_id_with_another_body_or_type_is_refused(h) {
        h.enqueue(job("q").id("mine")).await;
        let other_body = h.try_enqueue(job("q").id("mine").body("other")).await;
        assert_eq!(other_body, Err(Refusal::IdTaken));
        let mut other_type = job("q").id("mine");
        other_type.job_type = "sms".into();
        assert_eq!(h.try_enqueue(other_type).await, Err(Refusal::IdTaken));
        let mut data = job("q").id("mine");
        data.body = Body::Data("body".into());
        assert_eq!(h.try_enqueue(data).await, Err(Refusal::IdTaken));
    }
}

store_test! {
    async fn an_id_that_the_store_made_is_known_again(h) {
        let id = h.enqueue(job("q")).await.to_string();
        let again = h.try_enqueue(job("q").id(&id)).await.unwrap();
        assert_eq!(again.outcome, EnqueueOutcome::Existing);
        let other = h.try_enqueue(job("q").id(&id).body("other")).await;
        assert_eq!(other, Err(Refusal::IdTaken));
    }
}

store_test! {
    async fn an_id_is_taken_in_every_state_and_free_some_time_after_the_job_is_gone(h) {
        h.enqueue(job("q").id("mine").delay(SECOND)).await;
        let state = async || h.try_enqueue(job("q").id("mine")).await.unwrap().state;
        assert_eq!(state().await, State::Scheduled);
        h.advance(SECOND);
        let lease = h.claim("q").await.delivery.lease;
        assert_eq!(state().await, State::Leased);
        h.nack(lease, permanent()).await.unwrap();
        assert_eq!(state().await, State::Dead);
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(state().await, State::Ready);
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        assert_eq!(state().await, State::Completed);
        h.advance(seconds(600));
        h.enqueue(job("q").id("mine").body("other")).await;
    }
}

store_test! {
    async fn ids_are_a_queues_own(h) {
        let id = h.enqueue(job("q").id("mine")).await;
        h.enqueue(job("r").id("mine").body("other")).await;
        assert_eq!(h.views(&id).await.len(), 2);
    }
}

store_test! {
    /// Ids move between stores: one may carry the very number that the store is about to give.
    async fn an_id_with_the_number_of_its_job_is_free_again_once_the_job_is_done(h) {
        let next = h.enqueue(job("q")).await.number().unwrap() + 1;
        let id = JobId::make(h.now(), next, 1).to_string();
        h.enqueue(job("q").id(&id)).await;
        for delivered in h.claim_many("q", 2).await {
            h.ack(delivered.delivery.lease).await.unwrap();
        }
        h.enqueue(job("q").id(&id)).await;
        assert_eq!(h.drain("q").await, [id]);
    }
}

store_test! {
    async fn jobs_of_one_batch_stand_for_themselves(h) {
        let batch = vec![
            job("q").id("a"),
            job("q").id("a").body("other"),
            job("q").id("a"),
            job("q"),
        ];
        let results = h.enqueue_all(batch).await;
        assert!(results[0].is_ok());
        assert_eq!(results[1], Err(Refusal::IdTaken));
        assert_eq!(results[2].as_ref().unwrap().outcome, EnqueueOutcome::Existing);
        assert!(results[3].is_ok());
        assert_eq!(h.depths("q").await.ready, 2);
    }
}

store_test! {
    async fn a_full_queue_refuses_and_takes_again_when_there_is_room(h) {
        h.set(|queue| queue.max_depth = Some(2));
        h.enqueue(job("q")).await;
        h.enqueue(job("q").id("mine").delay(HOUR)).await;
        let full = Err(Refusal::QueueFull { limit: 2 });
        assert_eq!(h.try_enqueue(job("q")).await, full);
        assert_eq!(h.try_enqueue(job("q").id("mine").delay(HOUR)).await.unwrap().outcome, EnqueueOutcome::Existing);
        h.enqueue(job("r")).await;
        let lease = h.claim("q").await.delivery.lease;
        assert_eq!(h.try_enqueue(job("q")).await, full);
        h.ack(lease).await.unwrap();
        h.enqueue(job("q")).await;
    }
}

store_test! {
    async fn dead_jobs_take_no_room(h) {
        h.set(|queue| queue.max_depth = Some(1));
        h.dead_letter(job("q")).await;
        h.enqueue(job("q")).await;
    }
}

store_test! {
    async fn there_are_only_so_many_queues(h) {
        h.place.max_queues = 2;
        h.reopen().await;
        h.enqueue(job("a")).await;
        h.enqueue(job("b")).await;
        let refused = h.try_enqueue(job("c")).await;
        assert_eq!(refused, Err(Refusal::TooManyQueues { limit: 2 }));
        h.enqueue(job("a")).await;
        assert!(h.queue("c").await.is_none());
    }
}

store_test! {
    async fn a_queue_is_forgotten_after_a_day_of_emptiness(h) {
        h.enqueue(job("q")).await;
        h.advance(23 * HOUR);
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.advance(23 * HOUR);
        h.sweep().await;
        assert!(h.queue("q").await.is_some(), "it was in use a day less an hour ago");
        h.advance(HOUR);
        h.sweep().await;
        assert!(h.queue("q").await.is_none());
        h.enqueue(job("q")).await;
    }
}

store_test! {
    async fn a_queue_that_is_configured_or_holds_anything_is_not_forgotten(h) {
        let settings = h.settings.defaults.clone();
        Arc::make_mut(&mut h.settings).queues.insert(queue("configured"), settings);
        let id = h.enqueue(job("configured")).await;
        let lease = h.claim("configured").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.dead_letter(job("dead")).await;
        h.enqueue(job("waiting").delay(1_000 * HOUR)).await;
        h.advance(100 * HOUR);
        h.sweep().await;
        assert_eq!(h.queues().await.len(), 3);
        assert!(h.views(&id).await.is_empty());
    }
}
