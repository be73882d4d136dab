//! Calls that come together: the store may put them into one transaction, and callers must not notice.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::queue::{Claim, EnqueueOutcome, Purge, RequestId, Requeue};
use std::collections::HashSet;
use std::task::{Context, Poll, Waker};

/// Starts all calls before it waits for the first.
async fn all<F: Future>(calls: Vec<F>) -> Vec<F::Output> {
    let mut wake = Context::from_waker(Waker::noop());
    let mut started = Vec::new();
    for call in calls {
        let mut call = Box::pin(call);
        let answer = match call.as_mut().poll(&mut wake) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        };
        started.push((call, answer));
    }
    let mut answers = Vec::new();
    for (call, answer) in started {
        answers.push(match answer {
            Some(answer) => answer,
            None => call.await,
        });
    }
    answers
}

/// Holds the store back, so that whatever is started meanwhile waits together.
async fn behind_a_gate<S: Engine, T>(h: &Harness<S>, start: impl AsyncFnOnce() -> T) -> T {
    let mut wake = Context::from_waker(Waker::noop());
    let gate = h.recorded.gate.lock().unwrap();
    let mut first = Box::pin(h.try_enqueue(job("gate")));
    assert!(first.as_mut().poll(&mut wake).is_pending());
    let mut rest = Box::pin(start());
    assert!(rest.as_mut().poll(&mut wake).is_pending());
    drop(gate);
    first.await.unwrap();
    rest.await
}

store_test! {
    async fn claims_share_no_job(h) {
        h.enqueue_all(vec![job("q"); 100]).await;
        let claims = || (0..30).map(|_| h.claim_many("q", 4)).collect();
        let claimed = behind_a_gate(&h, async || all(claims()).await).await;
        let mut seen = HashSet::new();
        for delivered in claimed.iter().flatten() {
            assert!(seen.insert(delivered.spec.id.clone()), "{} came twice", delivered.spec.id);
        }
        assert_eq!(seen.len(), 100);
        assert_eq!(h.depths("q").await.leased, 100);
    }
}

store_test! {
    async fn one_key_adds_one_job(h) {
        let enqueues = || (0..20).map(|_| h.try_enqueue(job("q").key("k"))).collect();
        let added = behind_a_gate(&h, async || all(enqueues()).await).await;
        let first = added[0].as_ref().unwrap();
        assert!(added.iter().all(|added| added.as_ref().unwrap().id == first.id));
        assert_eq!(added.iter().filter(|added| added.as_ref().unwrap().outcome == EnqueueOutcome::Added).count(), 1);
        assert_eq!(h.depths("q").await.ready, 1);
    }
}

store_test! {
    async fn one_lease_is_settled_once(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        let acks = || (0..10).map(|_| h.ack(lease.clone())).collect();
        let acked = behind_a_gate(&h, async || all(acks()).await).await;
        assert_eq!(acked.iter().filter(|acked| !acked.as_ref().unwrap().already_gone).count(), 1);
        assert_eq!(h.queue("q").await.unwrap().totals.completed, 1);
    }
}

store_test! {
    async fn the_last_place_in_a_queue_is_given_once(h) {
        h.set(|queue| queue.max_depth = Some(3));
        let enqueues = || (0..10).map(|_| h.try_enqueue(job("q"))).collect();
        let added = behind_a_gate(&h, async || all(enqueues()).await).await;
        assert_eq!(added.iter().filter(|added| added.is_ok()).count(), 3);
        assert_eq!(h.depths("q").await.ready, 3);
    }
}

/// Calls that are the same one, said so often at once.
const SAID: usize = 30;

fn one_request() -> Option<RequestId> {
    Some(RequestId { id: "r".into(), asked: [1; 32] })
}

store_test! {
    async fn claims_of_one_request_get_the_one_answer(h) {
        h.enqueue_all(vec![job("q"); 10]).await;
        let claim = Claim { request_id: "r".into(), ..claim_of(&["q"], 4) };
        let claims = || (0..SAID).map(|_| h.try_claim(claim.clone())).collect();
        let claimed = behind_a_gate(&h, async || all(claims()).await).await;
        let first: Vec<_> = claimed[0].jobs.iter().map(|job| job.delivery.clone()).collect();
        assert_eq!(first.len(), 4);
        for (at, claimed) in claimed.iter().enumerate() {
            assert!(claimed.jobs.iter().map(|job| &job.delivery).eq(&first), "claim {at}: {:?}", claimed.jobs);
        }
        let depths = h.depths("q").await;
        assert_eq!((depths.leased, depths.ready), (4, 6));
    }
}

store_test! {
    async fn requeues_of_one_request_get_the_one_answer(h) {
        for number in 0..10 {
            h.dead_letter(job("q").id(&number.to_string())).await;
        }
        let requeue = Requeue { request: one_request(), ..requeue_of("q", oldest(4)) };
        let requeues = || (0..SAID).map(|_| h.requeue(requeue.clone())).collect();
        let requeued = behind_a_gate(&h, async || all(requeues()).await).await;
        let first = requeued[0].as_ref().unwrap();
        assert_eq!((first.ids.len(), first.has_more), (4, true));
        assert!(requeued.iter().all(|it| it.as_ref() == Ok(first)), "{requeued:?}");
        let queue = h.queue("q").await.unwrap();
        assert_eq!((queue.depths.ready, queue.depths.dead, queue.totals.requeued), (4, 6, 4));
    }
}

store_test! {
    async fn purges_of_one_request_get_the_one_answer(h) {
        for number in 0..10 {
            h.dead_letter(job("q").id(&number.to_string())).await;
        }
        let purge = Purge { request: one_request(), ..purge_of("q", oldest(4)) };
        let purges = || (0..SAID).map(|_| h.purge(purge.clone())).collect();
        let purged = behind_a_gate(&h, async || all(purges()).await).await;
        let first = purged[0].as_ref().unwrap();
        assert_eq!((first.count, first.has_more), (4, true));
        assert!(purged.iter().all(|it| it.as_ref() == Ok(first)), "{purged:?}");
        let queue = h.queue("q").await.unwrap();
        assert_eq!((queue.depths.dead, queue.totals.purged), (6, 4));
    }
}
