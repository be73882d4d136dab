//! Run now: a job does not wait for its time.

use crate::builders::*;
use redrive::domain::{JobId, State};

store_test! {
    async fn a_scheduled_job_is_ready_at_once(h) {
        let made = h.enqueue(job("q").delay(HOUR)).await.to_string();
        h.enqueue(job("q").id("own").delay(HOUR)).await;
        h.advance(SECOND);
        for id in [made.as_str(), "own"] {
            assert_eq!(h.run_now(id).await, Ok(()));
            let view = h.view(&JobId::parse(id)).await;
            assert_eq!((view.state, view.ready_at), (State::Ready, Some(h.now())), "{id}");
        }
        assert_eq!(h.recorded.take_available(), [("q".to_owned(), 1), ("q".to_owned(), 2)]);
        assert_eq!(h.sweep().await.next, None, "nothing is due any more");
        h.reopen().await;
        assert_eq!(h.view(&JobId::parse("own")).await.state, State::Ready);
        assert_eq!(h.drain("q").await, [made, "own".into()]);
    }
}

store_test! {
    async fn a_retry_can_be_had_at_once_and_counts_as_one(h) {
        h.enqueue(job("q").id("x")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, failed("E")).await.unwrap();
        assert_eq!(h.run_now("x").await, Ok(()));
        let again = h.claim("q").await;
        assert_eq!((again.delivery.attempt, again.progress.retries), (2, 1));
        assert_eq!(again.last_failure.unwrap().error_type, "E");
    }
}

store_test! {
    async fn a_ready_job_keeps_its_place(h) {
        h.enqueue(job("q").id("first")).await;
        h.enqueue(job("q").id("due").delay(SECOND)).await;
        h.advance(seconds(2));
        h.enqueue(job("q").id("last")).await;
        assert_eq!(h.run_now("first").await, Ok(()));
        assert_eq!(h.run_now("due").await, Ok(()), "due, and not yet promoted");
        h.advance(SECOND);
        assert_eq!(h.run_now("first").await, Ok(()));
        assert_eq!(h.drain("q").await, ["first", "due", "last"]);
    }
}

store_test! {
    async fn it_keeps_its_deadline_and_its_priority(h) {
        h.enqueue(job("q").id("low").priority(-1).delay(HOUR).expires(2 * HOUR)).await;
        h.enqueue(job("q").id("high").priority(1).delay(HOUR)).await;
        h.run_now("low").await.unwrap();
        h.run_now("high").await.unwrap();
        assert_eq!(h.claim("q").await.spec.id.to_string(), "high");
        h.advance(2 * HOUR);
        h.sweep().await;
        assert_eq!(h.view(&JobId::parse("low")).await.state, State::Dead);
    }
}

store_test! {
    async fn a_job_that_does_not_wait_cannot_be_run(h) {
        assert_eq!(h.run_now("missing").await, Err(no_job("missing")));
        h.enqueue(job("q").id("x")).await;
        let lease = h.claim("q").await.delivery.lease;
        assert_eq!(h.run_now("x").await, Err(wrong_state("x", State::Leased)));
        h.nack(lease, permanent()).await.unwrap();
        assert_eq!(h.run_now("x").await, Err(wrong_state("x", State::Dead)));
        assert_eq!(h.depths("q").await.dead, 1);
    }
}
