//! Cancel: a waiting job goes for good, a running one dies unless it is acked.

use crate::builders::*;
use redrive::domain::{AttemptStatus, DeadReason, JobId, Next, State};
use redrive::queue::Refusal;
use redrive::queue::{Cancelled, Claim, Totals};

const GONE: Result<Cancelled, Refusal> = Ok(Cancelled::Removed);
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

store_test! {
    async fn a_cancelled_job_dies_of_whatever_ends_it(h) {
        h.set(without_jitter);
        for (id, outcome) in [
            ("failed", Some(failed("E"))),
            ("released", Some(released())),
            ("hopeless", Some(permanent())),
            ("lost", None),
        ] {
            h.enqueue(job("q").id(id)).await;
            let lease = h.claim("q").await.delivery.lease;
            assert_eq!(h.cancel(id).await, ASKED);
            h.reopen().await;
            match outcome {
                Some(outcome) => {
                    let attempt = h.nack(lease, outcome).await.unwrap();
                    assert_eq!(attempt.next, Next::DeadLetter(DeadReason::Cancelled), "{id}");
                }
                None => {
                    h.advance(seconds(30));
                    assert_eq!(h.sweep().await.expired.len(), 1);
                }
            }
            let view = h.view(&JobId::parse(id)).await;
            assert_eq!(view.death.unwrap().reason, DeadReason::Cancelled, "{id}");
            assert_eq!(view.attempts[0].status, AttemptStatus::Cancelled, "{id}");
            assert_eq!(h.cancel(id).await, Err(wrong_state(id, State::Dead)));
        }
        let totals = h.queue("q").await.unwrap().totals;
        assert_eq!((totals.dead_lettered, totals.cancelled), (4, 0));
        // A requeue means it.
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        let again = h.claim("q").await;
        assert!(!again.progress.cancel_requested);
        assert!(!h.extend(again.delivery.lease, None, "").await.unwrap().cancel_requested);
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
        h.enqueue(job("q").id("x").key("k").body("another")).await;
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
