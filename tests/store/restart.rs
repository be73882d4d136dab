//! What is there after the store was closed and opened again: everything.

use crate::builders::*;
use redrive::domain::State;
use std::collections::HashSet;

store_test! {
    async fn everything_is_there_after_a_restart(h) {
        h.set(without_jitter);
        h.set(|queue| queue.dead_letters.max_entries = 1);
        h.dead_letter(job("q").id("dead")).await;
        h.dead_letter(job("q").id("spilt")).await;
        h.enqueue(job("q").id("failing")).await;
        let failing = h.claim("q").await.delivery.lease;
        h.nack(failing, failed("Timeout")).await.unwrap();
        h.enqueue(job("q").id("leased").key("k")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.extend(lease.clone(), Some(HOUR), "half").await.unwrap();
        h.enqueue(job("q").id("ready").priority(3)).await;
        h.enqueue(job("q").id("scheduled").delay(HOUR).expires(2 * HOUR)).await;
        h.enqueue(job("other")).await;

        let before = h.queues().await;
        let mut views = Vec::new();
        for id in ["dead", "spilt", "failing", "leased", "ready", "scheduled"] {
            views.push(h.view(&redrive::domain::JobId::parse(id)).await);
        }
        h.reopen().await;
        let mut after = h.queues().await;
        for (now, then) in after.iter_mut().zip(&before) {
            // No worker has asked for anything since.
            assert_eq!(now.last_claim_at.take(), None);
            now.last_claim_at = then.last_claim_at;
        }
        assert_eq!(format!("{after:?}"), format!("{before:?}"));
        for view in views {
            assert_eq!(format!("{:?}", h.view(&view.spec.id).await), format!("{view:?}"));
        }

        let swept = h.sweep().await;
        assert_eq!(swept.next, Some(h.now().after(SECOND)), "the retry comes first");
        assert!(h.ack(lease).await.is_ok());
        h.advance(SECOND);
        assert_eq!(h.drain("q").await, ["ready", "failing"]);
        h.advance(2 * HOUR);
        h.sweep().await;
        let scheduled = h.view(&redrive::domain::JobId::parse("scheduled")).await;
        assert_eq!(scheduled.state, State::Dead);
    }
}

store_test! {
    async fn numbers_and_tokens_never_repeat(h) {
        let mut numbers = HashSet::new();
        let mut tokens = HashSet::new();
        for _ in 0..3 {
            for _ in 0..3 {
                h.enqueue(job("q")).await;
                let lease = h.claim("q").await.delivery.lease;
                assert!(tokens.insert(lease.clone()), "{lease:?}");
                assert!(numbers.insert(lease.number), "{lease:?}");
                h.ack(lease).await.unwrap();
            }
            h.reopen().await;
        }
    }
}

store_test! {
    async fn a_token_of_a_job_that_is_gone_settles_no_later_job(h) {
        h.enqueue(job("q")).await;
        let old = h.claim("q").await.delivery.lease;
        h.ack(old.clone()).await.unwrap();
        h.reopen().await;
        let id = h.enqueue(job("q")).await;
        h.claim("q").await;
        assert!(h.ack(old).await.unwrap().already_gone);
        assert_eq!(h.view(&id).await.state, State::Leased);
    }
}

store_test! {
    async fn deaths_go_on_counting_after_a_restart(h) {
        h.dead_letter(job("q").id("a")).await;
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        h.claim("q").await;
        h.reopen().await;
        h.dead_letter(job("q").id("b")).await;
        assert_eq!(h.dead("q").await[0].death.as_ref().unwrap().number, 2);
    }
}

store_test! {
    async fn a_retried_job_goes_on_counting_after_a_restart(h) {
        h.set(without_jitter);
        h.enqueue(job("q")).await;
        for attempt in 1..=4 {
            let delivered = h.claim("q").await;
            assert_eq!(delivered.delivery.attempt, attempt);
            h.nack(delivered.delivery.lease, failed("Timeout")).await.unwrap();
            h.reopen().await;
            h.advance(seconds(10));
        }
        assert_eq!(h.depths("q").await.dead, 1);
    }
}

store_test! {
    async fn a_closed_store_refuses_and_says_so(h) {
        h.enqueue(job("q")).await;
        h.store().close().await;
        let refused = h.store().enqueue(vec![job("q")]).await;
        assert!(refused.unwrap_err().to_string().contains("closed"));
        h.reopen().await;
        assert_eq!(h.depths("q").await.ready, 1);
    }
}

store_test! {
    async fn what_was_accepted_before_closing_is_there(h) {
        let calls: Vec<_> = (0..20)
            .map(|_| Box::pin(h.store().enqueue(vec![job("q"); 10])))
            .collect();
        let mut pending = Vec::new();
        for mut call in calls {
            let mut wake = std::task::Context::from_waker(std::task::Waker::noop());
            if let std::task::Poll::Ready(answer) = call.as_mut().poll(&mut wake) {
                assert!(answer.is_ok());
            } else {
                pending.push(call);
            }
        }
        h.store().close().await;
        for call in pending {
            assert!(call.await.is_ok());
        }
        h.reopen().await;
        assert_eq!(h.depths("q").await.ready, 200);
    }
}
