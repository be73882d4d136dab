//! Cancel: a waiting job goes for good, a running one too unless it is acked.

use crate::builders::*;
use redrive::domain::{AttemptStatus, JobId, Next, State};
use redrive::queue::Refusal;
use redrive::queue::{Cancelled, Claim, Totals};

const GONE: Result<Cancelled, Refusal> = Ok(Cancelled::Cancelled);
const ASKED: Result<Cancelled, Refusal> = Ok(Cancelled::Requested);

store_test! {
    async fn a_waiting_job_is_gone_for_good(h) {
        h.enqueue(job("q").id("ready").key("k").expires(HOUR)).await;
        h.enqueue(job("q").id("later").delay(SECOND)).await;
        let made = h.enqueue(job("q").delay(HOUR)).await;
        assert_eq!(h.cancel("ready").await, GONE);
        assert_eq!(h.cancel("later").await, GONE);
        assert_eq!(h.cancel(&made.to_string()).await, GONE);
        assert_eq!(h.cancel("ready").await, Err(no_job("ready")));
        assert!(h.views(&JobId::parse("ready")).await.is_empty());
        assert_eq!(h.depths("q").await, Default::default());
        assert_eq!(h.queue("q").await.unwrap().totals.cancelled, 3);
        h.advance(2 * HOUR);
        assert_eq!(h.sweep().await.promoted, 0);
        assert!(h.dead("q").await.is_empty(), "its deadline went with it");
        // Id and key are free again, for another job too.
        h.enqueue(job("q").id("ready").key("k").body("another")).await;
    }
}

store_test! {
    /// It looks into the database.
    sqlite only: async fn nothing_of_a_cancelled_job_stays_on_disk(h) {
        h.set(without_jitter);
        h.enqueue(job("q").id("x").key("k").expires(HOUR)).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease.clone(), failed("E")).await.unwrap();
        assert_eq!(h.cancel("x").await, GONE);
        let totals = h.queue("q").await.unwrap().totals;
        assert_eq!((totals.cancelled, totals.retried_finished, totals.retries), (1, 1, 1));
        assert!(h.ack(lease.clone()).await.unwrap().already_gone);
        assert!(h.nack(lease, failed("E")).await.is_err());
        // As long as its id is held.
        h.advance(seconds(600));
        h.sweep().await;
        h.close().await;
        let database = rusqlite::Connection::open(h.database()).unwrap();
        let tables: Vec<String> = database
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('store', 'queue')")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert!(tables.len() > 10, "{tables:?}");
        for table in tables {
            let rows: i64 = database
                .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
                .unwrap();
            assert_eq!(rows, 0, "{table}");
        }
        drop(database);
        h.open().await;
    }
}

store_test! {
    async fn the_worker_of_a_cancelled_job_is_told(h) {
        h.enqueue(job("q").id("x")).await;
        let lease = h.claim("q").await.delivery.lease;
        assert!(!h.extend(lease.clone(), None, "").await.unwrap().cancel_requested);
        assert!(!h.view(&JobId::parse("x")).await.progress.cancel_requested);
        assert_eq!(h.cancel("x").await, ASKED);
        assert_eq!(h.cancel("x").await, ASKED, "asking again changes nothing");
        h.reopen().await;
        assert!(h.extend(lease, None, "").await.unwrap().cancel_requested, "also after a restart");
        let view = h.view(&JobId::parse("x")).await;
        assert_eq!((view.state, view.progress.cancel_requested), (State::Leased, true));
        assert_eq!(h.queue("q").await.unwrap().totals.cancelled, 0);
    }
}

/// What ends the delivery of a cancelled job; none: its lease expires.
fn ends() -> [(&'static str, Option<redrive::domain::Outcome>); 4] {
    [("failed", Some(failed("E"))), ("released", Some(released())), ("hopeless", Some(permanent())), ("lost", None)]
}

store_test! {
    async fn a_cancelled_job_ends_with_its_delivery_and_is_no_dead_letter(h) {
        h.set(without_jitter);
        for (id, outcome) in ends() {
            h.enqueue(job("q").id(id).key("k").expires(HOUR)).await;
            let lease = h.claim("q").await.delivery.lease;
            assert_eq!(h.cancel(id).await, ASKED);
            h.reopen().await;
            match outcome {
                Some(outcome) => {
                    let attempt = h.nack(lease.clone(), outcome).await.unwrap();
                    assert_eq!((attempt.next, attempt.status), (Next::Cancelled, AttemptStatus::Cancelled), "{id}");
                }
                None => {
                    h.advance(seconds(30));
                    assert_eq!(h.sweep().await.expired.len(), 1);
                }
            }
            assert!(h.views(&JobId::parse(id)).await.is_empty(), "{id}");
            assert_eq!(h.cancel(id).await, Err(no_job(id)));
            assert!(h.ack(lease).await.unwrap().already_gone);
            // The key is free again.
            h.enqueue(job("q").id("another").key("k").body("another")).await;
            assert_eq!(h.cancel("another").await, GONE);
            h.advance(seconds(600));
        }
        let totals = h.queue("q").await.unwrap().totals;
        assert_eq!((totals.dead_lettered, totals.cancelled), (0, 8));
        assert_eq!(h.depths("q").await, Default::default());
    }
}

store_test! {
    async fn a_cancelled_job_is_kept_where_completed_ones_are(h) {
        h.set(|queue| {
            without_jitter(queue);
            queue.completed_retention = Some(HOUR);
        });
        for (id, outcome) in ends() {
            h.enqueue(job("q").id(id).key("k")).await;
            let lease = h.claim("q").await.delivery.lease;
            assert_eq!(h.cancel(id).await, ASKED);
            match outcome {
                Some(outcome) => {
                    let attempt = h.nack(lease.clone(), outcome.clone()).await.unwrap();
                    assert_eq!(h.nack(lease.clone(), outcome).await.unwrap(), attempt, "said again");
                }
                None => {
                    h.advance(seconds(30));
                    h.sweep().await;
                }
            }
            let view = h.view(&JobId::parse(id)).await;
            assert_eq!((view.state, view.attempts[0].status), (State::Cancelled, AttemptStatus::Cancelled), "{id}");
            assert!(view.death.is_none() && view.completed_at.is_some(), "{id}");
            assert_eq!(h.cancel(id).await, Err(wrong_state(id, State::Cancelled)));
            assert_eq!(h.run_now(id).await, Err(wrong_state(id, State::Cancelled)));
        }
        h.enqueue(job("q").id("waits").key("k")).await;
        assert_eq!(h.cancel("waits").await, GONE);
        assert_eq!(h.view(&JobId::parse("waits")).await.state, State::Cancelled);
        let depths = h.depths("q").await;
        assert_eq!((depths.cancelled, depths.completed, depths.dead), (5, 0, 0));
        h.reopen().await;
        h.verify().await;
        h.advance(2 * HOUR);
        assert_eq!(h.sweep().await.completed_removed, 5);
        assert_eq!(h.depths("q").await, Default::default());
        assert_eq!(h.queue("q").await.unwrap().totals.cancelled, 5);
    }
}

store_test! {
    async fn an_ack_still_completes_a_cancelled_job(h) {
        h.enqueue(job("q").id("x")).await;
        let lease = h.claim("q").await.delivery.lease;
        assert_eq!(h.cancel("x").await, ASKED);
        assert!(!h.ack(lease).await.unwrap().already_gone);
        let expected = Totals { enqueued: 1, completed: 1, ..Totals::default() };
        assert_eq!(h.queue("q").await.unwrap().totals, expected);
    }
}

store_test! {
    async fn a_cancelled_job_that_reached_no_worker_is_removed(h) {
        h.enqueue(job("q").id("x").key("k")).await;
        let lease = h.claim("q").await.delivery.lease;
        assert_eq!(h.cancel("x").await, ASKED);
        h.unclaim(lease).await;
        assert!(h.views(&JobId::parse("x")).await.is_empty());
        assert_eq!(h.queue("q").await.unwrap().totals.cancelled, 1);
        h.enqueue(job("q").key("k").body("another")).await;
    }
}

store_test! {
    async fn one_of_several_jobs_of_an_id_must_be_named(h) {
        h.enqueue(job("a").id("x")).await;
        h.enqueue(job("b").id("x")).await;
        let queues = vec![queue("a"), queue("b")];
        let ambiguous = Refusal::AmbiguousJobId { id: "x".into(), queues };
        assert_eq!(h.cancel("x").await, Err(ambiguous.clone()));
        assert_eq!(h.run_now("x").await, Err(ambiguous));
        let x = || JobId::parse("x");
        assert_eq!(h.cancel_in(x(), Some(queue("c"))).await, Err(no_queue("c")));
        assert_eq!(h.cancel_in(x(), Some(queue("a"))).await, GONE);
        assert_eq!((h.depths("a").await.ready, h.depths("b").await.ready), (0, 1));
        assert_eq!(h.cancel("x").await, GONE);
    }
}

store_test! {
    async fn a_repeated_claim_gets_a_cancelled_job_again(h) {
        h.enqueue(job("q").id("x")).await;
        let claim = Claim { request_id: "r".into(), ..claim_of(&["q"], 1) };
        let lease = h.try_claim(claim.clone()).await.jobs[0].delivery.lease.clone();
        assert_eq!(h.cancel("x").await, ASKED);
        assert_eq!(h.try_claim(claim).await.jobs[0].delivery.lease, lease);
        assert!(h.extend(lease, None, "").await.unwrap().cancel_requested);
    }
}

store_test! {
    async fn a_worker_learns_that_its_job_was_cancelled(h) {
        h.enqueue_all(vec![job("q").id("out"), job("q").id("waits")]).await;
        let lease = h.claim("q").await.delivery.lease;
        h.cancel("waits").await.unwrap();
        h.cancel("out").await.unwrap();
        h.settle(Default::default()).await;
        assert_eq!(h.recorded.take_cancels(), [lease]);
    }
}
