//! Import: what comes from another store is as it was there.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{DeadReason, Failure, JobId, State};
use redrive::migrate::{self, Report};
use redrive::queue::EnqueueOutcome;
use redrive::queue::hosts::sqlite::SqliteStore;
use redrive::queue::{BreakerOrder, Import, Imported, JobQuery, JobView, QueueHolds};

/// One of everything: in line, scheduled, out, dead and in the overflow, completed; with ids, keys, deadlines,
/// checkpoints, results and histories of every length; and queues that are held back.
async fn busy<S: Engine>(h: &mut Harness<S>) {
    h.set(without_jitter);
    h.set(|queue| {
        queue.dead_letters.max_entries = 2;
        queue.completed_retention = Some(HOUR);
        queue.breaker.disabled = true;
    });
    h.enqueue(job("q").id("later").delay(HOUR)).await;
    h.enqueue(job("q").id("retried").key("k-retried").body(&"large ".repeat(1_000))).await;
    let lease = h.claim("q").await.delivery.lease;
    let failure = Failure { stack_trace: "at line 7 ".repeat(100), ..Failure::new("Hiccup", "no ".repeat(300)) };
    h.nack_saving(lease, failed_with(failure), "half way").await.unwrap();
    h.enqueue(job("q").id("out").priority(9)).await;
    h.advance(MILLISECOND);
    h.claim("q").await;
    h.cancel("out").await.unwrap();
    for priority in [0, 5, 0, 5] {
        h.enqueue(job("q").priority(priority)).await;
    }
    h.enqueue(job("q").id("own").key("k-own").expires(HOUR)).await;
    tried_often(h).await;
    for id in ["dead-1", "dead-2", "dead-3"] {
        h.dead_letter(job("dying").id(id).key(id)).await;
        h.advance(MILLISECOND);
    }
    h.dead_letter(job("dying")).await;
    for (key, result) in [("k-1", ""), ("k-2", "well done")] {
        h.enqueue(job("done").key(key)).await;
        let lease = h.claim("done").await.delivery.lease;
        h.ack_with(lease, "note", result.into()).await.unwrap();
        h.advance(MILLISECOND);
    }
    h.pause("q", Some(HOUR)).await.unwrap();
    h.enqueue(job("empty").id("gone")).await;
    h.cancel("gone").await.unwrap();
    h.pause("empty", None).await.unwrap();
    let force = BreakerOrder::Force { open: true, reason: "maintenance".into() };
    h.set_breaker("queue:dying", force.clone()).await.unwrap();
    h.set_breaker("dlq:done", force).await.unwrap();
}

/// More attempts than are kept.
async fn tried_often<S: Engine>(h: &Harness<S>) {
    h.enqueue(job("often").id("often").retries(100)).await;
    for at in 0..53 {
        let lease = h.claim("often").await.delivery.lease;
        h.nack(lease, failed(&format!("Failure{at}"))).await.unwrap();
        h.run_now("often").await.unwrap();
    }
}

async fn moved<S: Engine, T: Engine>(from: &Harness<S>, to: &Harness<T>) -> Report {
    let copied = migrate::copy(from.store(), to.store(), &mut |_, _, _| {}).await;
    copied.expect("both are well")
}

/// Every job of a queue in the order of a listing, whole.
async fn listed<S: Engine>(h: &Harness<S>, name: &str) -> Vec<JobView> {
    let query = JobQuery { full: true, ..jobs_of(name) };
    let page = h.store().jobs(query).await.expect("the queue exists");
    page.jobs.into_iter().map(|(_, job)| job).collect()
}

/// All that must be the same there: not the numbers of leases, nor of deaths, which are the store's own.
fn told(job: &JobView) -> String {
    let state = if job.state == State::Leased { State::Ready } else { job.state };
    let death = job.death.as_ref();
    let death = death.map(|death| (death.reason, death.died_at, death.overflow, &death.context));
    let waits = job.ready_at.or(job.old_place);
    format!(
        "{:?} {state:?} {waits:?} {:?} {death:?} {:?} {:?} {:?} {:?} {:?}",
        job.spec, job.progress, job.completed_at, job.result, job.attempts, job.events, job.last_failure
    )
}

async fn assert_same<S: Engine, T: Engine>(from: &Harness<S>, to: &Harness<T>) {
    for queue in from.queues().await {
        let name = queue.name.as_str();
        let (mut there, mut here) = (listed(from, name).await, listed(to, name).await);
        // One that was out is listed among the others now.
        let in_line = |job: &JobView| matches!(job.state, State::Ready | State::Leased);
        let line = |jobs: &mut Vec<JobView>| jobs.retain(in_line);
        let order = |jobs: &[JobView]| jobs.iter().map(told).collect::<Vec<_>>();
        let (mut all_there, mut all_here) = (order(&there), order(&here));
        all_there.sort();
        all_here.sort();
        assert_eq!(all_here, all_there, "{name}");
        let dead = |jobs: &[JobView]| -> Vec<_> {
            let dead = jobs.iter().filter(|job| job.death.is_some());
            dead.map(|job| job.spec.id.clone()).collect()
        };
        assert_eq!(dead(&here), dead(&there), "{name}: the order of death");
        there.retain(|job| job.state == State::Ready);
        line(&mut here);
        let ids = |jobs: &[JobView]| jobs.iter().map(|job| job.spec.id.clone()).collect::<Vec<_>>();
        let mut still = ids(&here);
        still.retain(|id| ids(&there).contains(id));
        assert_eq!(still, ids(&there), "{name}: the order of handing out");
        let queue_here = to.queue(name).await.expect("it came along");
        assert_eq!(queue_here.pause, queue.pause, "{name}");
        let (ours, theirs) = (to.breakers(name).await, from.breakers(name).await);
        assert_eq!(ours.work.breaker, theirs.work.breaker, "{name}");
        assert_eq!(ours.dead_letters.breaker, theirs.dead_letters.breaker, "{name}");
    }
}

store_test! {
    async fn a_store_moves_with_everything_and_back(h) {
        let mut first: Harness<SqliteStore> = Harness::new().await;
        busy(&mut first).await;
        h.advance(first.now().since(h.now()));
        let report = moved(&first, &h).await;
        assert!(report.is_whole(), "{report:#?}");
        let jobs: u64 = report.queues.iter().map(|queue| queue.added.jobs()).sum();
        assert_eq!(jobs, 16);
        assert_same(&first, &h).await;
        h.verify().await;
        let mut back: Harness<SqliteStore> = Harness::new().await;
        back.advance(h.now().since(back.now()));
        let report = moved(&h, &back).await;
        assert!(report.is_whole(), "{report:#?}");
        assert_same(&first, &back).await;
        back.verify().await;
        first.verify().await;
        back.reopen().await;
        assert_same(&first, &back).await;
    }
}

store_test! {
    async fn what_is_there_already_is_passed_over(h) {
        let mut first: Harness<SqliteStore> = Harness::new().await;
        busy(&mut first).await;
        h.advance(first.now().since(h.now()));
        // A move that was cut off somewhere in the middle.
        let some = listed(&first, "dying").await[..2].to_vec();
        let import = Import { queue: queue("dying"), holds: QueueHolds::default(), jobs: some };
        let taken = h.store().import(import).await.unwrap();
        assert_eq!(taken, [Imported::Added; 2]);
        for added in [2, 0] {
            let report = moved(&first, &h).await;
            assert!(report.is_whole(), "{report:#?}");
            let dying = report.queues.iter().find(|queue| queue.name.as_str() == "dying").unwrap();
            assert_eq!((dying.added.0[1], dying.there.0[1]), (added, 4 - added));
            assert_same(&first, &h).await;
        }
        let totals = h.queue("dying").await.unwrap().totals;
        assert_eq!((totals.moved_in, totals.enqueued), (4, 0));
        let all = h.stats(None).await.unwrap();
        // They were enqueued elsewhere.
        assert_eq!((all.totals.moved_in, all.totals.enqueued), (16, 0));
    }
}

store_test! {
    async fn another_job_of_the_same_id_or_key_is_no_job_that_came_along(h) {
        let first: Harness<SqliteStore> = Harness::new().await;
        first.enqueue(job("q").id("a").body("one")).await;
        first.enqueue(job("q").id("b").key("k")).await;
        h.enqueue(job("q").id("a").body("another")).await;
        h.enqueue(job("q").id("c").key("k")).await;
        let report = moved(&first, &h).await;
        assert_eq!(
            report.problems[..2],
            [
                "queue q: a was not copied: the target has another job of this id",
                "queue q: b was not copied: another job in the target has its key",
            ]
        );
        assert_eq!(report.problems[2], "queue q: the source has 2 waiting, and 0 are copied");
    }
}

store_test! {
    async fn a_job_that_was_out_is_delivered_again_with_nothing_counted(h) {
        let mut first: Harness<SqliteStore> = Harness::new().await;
        first.set(|queue| queue.breaker.disabled = true);
        first.enqueue(job("q").id("out")).await;
        let out = first.claim("q").await.delivery;
        first.advance(MILLISECOND);
        h.advance(MILLISECOND);
        first.enqueue(job("q").id("behind")).await;
        assert!(moved(&first, &h).await.is_whole());
        let again = h.claim("q").await;
        assert_eq!(again.spec.id, JobId::parse("out"), "it has its old place");
        assert_eq!((again.delivery.attempt, again.delivery.lease.delivery), (1, 2));
        assert_ne!(again.delivery.lease, out.lease);
        assert!(h.nack(out.lease, failed("Late")).await.is_err(), "its lease stayed behind");
        h.ack(again.delivery.lease).await.unwrap();
    }
}

store_test! {
    async fn an_imported_job_is_found_works_and_dies_like_any_other(h) {
        let mut first: Harness<SqliteStore> = Harness::new().await;
        busy(&mut first).await;
        h.set(|queue| queue.completed_retention = Some(HOUR));
        h.advance(first.now().since(h.now()));
        assert!(moved(&first, &h).await.is_whole());
        // The keys of live jobs and of those that are done are held.
        let again = h.try_enqueue(job("q").id("own").key("k-own").expires(HOUR)).await.unwrap();
        assert_eq!(again.outcome, EnqueueOutcome::Existing);
        assert_eq!(h.try_enqueue(job("done").key("k-1")).await.unwrap().outcome, EnqueueOutcome::Existing);
        h.resume("q").await.unwrap();
        for left in (0..6).rev() {
            let lease = h.claim("q").await.delivery.lease;
            h.ack(lease).await.unwrap();
            assert_eq!(h.depths("q").await.ready, left);
        }
        let letters = h.dead("dying").await;
        let requeued = h.requeue(requeue_of("dying", oldest(2))).await.unwrap();
        assert_eq!(requeued.ids, [letters[0].spec.id.clone(), letters[1].spec.id.clone()]);
        let purged = h.purge(purge_of("dying", oldest(10))).await.unwrap();
        assert_eq!(purged.count, 2);
        assert!(letters.iter().all(|job| job.death.as_ref().unwrap().reason == DeadReason::NonRetryable));
        // What time does to them goes on as well.
        h.advance(2 * HOUR);
        let swept = h.sweep().await;
        assert!(swept.promoted > 0 && swept.completed_removed > 0, "{swept:?}");
    }
}
