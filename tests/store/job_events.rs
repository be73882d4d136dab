//! What was done to a job beside its deliveries is kept with it.

use crate::harness::REASON;
use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{JobEvent, JobEventKind as Kind, JobId, NewJob, OnConflict, State};
use redrive::queue::{DeadLetterQuery, JobQuery, Requeue};

async fn kinds<S: Engine>(h: &Harness<S>, id: &str) -> Vec<Kind> {
    events(h, id).await.iter().map(|event| event.kind).collect()
}

async fn events<S: Engine>(h: &Harness<S>, id: &str) -> Vec<JobEvent> {
    h.view(&JobId::parse(id)).await.events
}

store_test! {
    async fn each_event_says_when_what_and_why(h) {
        h.set(without_jitter);
        let id = h.dead_letter(job("q").id("x")).await;
        assert_eq!(h.view(&id).await.events, [], "a delivery is none");
        let died_at = h.view(&id).await.death.unwrap().died_at;
        h.advance(SECOND);
        let why = Requeue { reason: "the API is back".into(), ..requeue_of("q", oldest(1)) };
        h.requeue(why).await.unwrap();
        let requeued = JobEvent {
            at: h.now(),
            kind: Kind::Requeued,
            by: String::new(),
            reason: "the API is back".into(),
            detail: format!("it died at {died_at}: NON_RETRYABLE"),
        };
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, failed("E")).await.unwrap();
        let due_at = h.view(&id).await.ready_at.unwrap();
        h.run_now("x").await.unwrap();
        let run_now = JobEvent {
            kind: Kind::RunNow,
            reason: REASON.into(),
            detail: format!("it was due at {due_at}"),
            ..requeued.clone()
        };
        assert_eq!(h.view(&id).await.events, [requeued.clone(), run_now.clone()]);
        h.run_now("x").await.unwrap();
        h.reopen().await;
        assert_eq!(h.view(&id).await.events, [requeued, run_now], "a ready job is left as it is");
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
    }
}

store_test! {
    async fn a_job_takes_its_events_along_to_another_queue(h) {
        h.dead_letter(job("from").id("x")).await;
        for (from, to) in [("from", "from"), ("from", "to"), ("to", "from")] {
            let target = Some(queue(to));
            let moved = Requeue { target, reason: to.into(), ..requeue_of(from, oldest(1)) };
            assert_eq!(h.requeue(moved).await.unwrap().ids.len(), 1);
            let lease = h.claim(to).await.delivery.lease;
            h.nack(lease, permanent()).await.unwrap();
        }
        let events = events(&h, "x").await;
        let found: Vec<_> = events.iter().map(|it| (it.kind, it.reason.as_str(), it.detail.as_str())).collect();
        assert_eq!(found[0].0, Kind::Requeued);
        assert_eq!(found[1..], [(Kind::Moved, "to", "from from"), (Kind::Moved, "from", "from to")]);
    }
}

store_test! {
    async fn the_first_ten_and_the_last_forty_are_kept_and_moved(h) {
        h.dead_letter(job("a").id("x")).await;
        for n in 1..=60 {
            let (from, to) = if n % 2 == 1 || n > 55 { ("a", "a") } else { ("a", "b") };
            for (from, to) in [(from, to), ("b", "a")].into_iter().take(1 + usize::from(to == "b")) {
                let again = Requeue { target: Some(queue(to)), reason: n.to_string(), ..requeue_of(from, oldest(1)) };
                h.requeue(again).await.unwrap();
                let lease = h.claim(to).await.delivery.lease;
                h.nack(lease, permanent()).await.unwrap();
            }
        }
        let view = h.view(&JobId::parse("x")).await;
        let reasons: Vec<u32> = view.events.iter().map(|event| event.reason.parse().unwrap()).collect();
        // Every even one up to 54 moves twice.
        let all: Vec<u32> = (1..=60).flat_map(|n| vec![n; if n % 2 == 0 && n <= 55 { 2 } else { 1 }]).collect();
        assert_eq!((view.progress.events as usize, view.events.len()), (all.len(), 50));
        assert_eq!((&reasons[..10], &reasons[10..]), (&all[..10], &all[all.len() - 40..]));
    }
}

store_test! {
    async fn a_job_that_replaces_another_has_its_events(h) {
        h.enqueue(job("q").id("x").delay(HOUR)).await;
        h.run_now("x").await.unwrap();
        for body in ["second", "third"] {
            h.advance(SECOND);
            let new = NewJob { on_conflict: OnConflict::ReplaceWaiting, ..job("q").id("x").body(body) };
            h.try_enqueue(new).await.unwrap();
        }
        let events = events(&h, "x").await;
        let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [Kind::RunNow, Kind::Replaced, Kind::Replaced]);
        assert_eq!(events[2].at, h.now());
        let second = format!("it stands for the job that was enqueued at {}", events[1].at);
        assert_eq!(events[2].detail, second);
        h.reopen().await;
        let again = h.claim("q").await;
        assert_eq!((again.delivery.attempt, again.progress.events), (1, 3));
        h.ack(again.delivery.lease).await.unwrap();
    }
}

store_test! {
    async fn one_that_is_replaced_for_later_waits_for_its_time(h) {
        h.enqueue(job("q").id("x")).await;
        let new = NewJob { on_conflict: OnConflict::ReplaceWaiting, ..job("q").id("x").body("later").delay(HOUR) };
        h.try_enqueue(new).await.unwrap();
        assert_eq!(h.view(&JobId::parse("x")).await.state, State::Scheduled);
        assert_eq!(h.drain("q").await, [""; 0]);
        h.advance(HOUR);
        assert_eq!(h.drain("q").await, ["x"]);
    }
}

store_test! {
    async fn a_cancellation_is_seen_while_the_job_runs_and_goes_with_its_ack(h) {
        h.enqueue(job("q").id("x")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.cancel("x").await.unwrap();
        h.advance(SECOND);
        h.cancel("x").await.unwrap();
        let seen = events(&h, "x").await;
        assert_eq!((seen.len(), seen[0].kind, seen[0].reason.as_str()), (1, Kind::CancelRequested, REASON));
        assert!(seen[0].detail.ends_with("had it") && seen[0].at < h.now(), "{seen:?}");
        h.reopen().await;
        assert_eq!(events(&h, "x").await, seen);
        h.ack(lease).await.unwrap();
    }
}

store_test! {
    async fn a_cancelled_job_that_is_kept_says_why(h) {
        h.set(|queue| {
            without_jitter(queue);
            queue.completed_retention = Some(HOUR);
        });
        for id in ["waits", "acked", "nacked", "expired", "returned"] {
            h.enqueue(job("q").id(id)).await;
            let lease = if id == "waits" { None } else { Some(h.claim("q").await.delivery.lease) };
            h.cancel(id).await.unwrap();
            if let Some(lease) = lease {
                match id {
                    "acked" => drop(h.ack(lease).await.unwrap()),
                    "nacked" => drop(h.nack(lease, failed("E")).await.unwrap()),
                    "expired" => {
                        h.advance(seconds(30));
                        h.sweep().await;
                    }
                    _ => h.unclaim(lease).await,
                }
            }
            let view = h.view(&JobId::parse(id)).await;
            let state = if id == "acked" { State::Completed } else { State::Cancelled };
            let events: Vec<_> = view.events.iter().map(|event| (event.kind, event.reason.as_str())).collect();
            assert_eq!((view.state, events), (state, vec![(Kind::CancelRequested, REASON)]), "{id}");
            h.verify().await;
        }
        h.advance(2 * HOUR);
        assert_eq!(h.sweep().await.completed_removed, 5);
    }
}

store_test! {
    async fn an_ack_after_its_lease_is_an_event_of_a_job_that_is_kept(h) {
        h.set(|queue| {
            without_jitter(queue);
            queue.completed_retention = Some(HOUR);
        });
        h.enqueue(job("q").id("x")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.advance(seconds(30));
        h.sweep().await;
        h.ack(lease).await.unwrap();
        let events = events(&h, "x").await;
        assert_eq!((events.len(), events[0].kind, events[0].at), (1, Kind::AckedAfterLease, h.now()));
        assert!(events[0].detail.contains("its lease expired at"), "{events:?}");
    }
}

store_test! {
    async fn whatever_removes_a_job_removes_its_events(h) {
        h.set(without_jitter);
        for end in ["acked", "purged", "cancelled", "retained", "late"] {
            h.enqueue(job("q").id(end).delay(HOUR)).await;
            h.run_now(end).await.unwrap();
            if end == "cancelled" {
                h.cancel(end).await.unwrap();
                continue;
            }
            let lease = h.claim("q").await.delivery.lease;
            match end {
                "acked" => drop(h.ack(lease).await.unwrap()),
                "late" => {
                    h.advance(seconds(30));
                    h.sweep().await;
                    h.ack(lease).await.unwrap();
                }
                _ => {
                    h.nack(lease, permanent()).await.unwrap();
                    if end == "purged" {
                        h.purge(purge_of("q", oldest(1))).await.unwrap();
                    }
                }
            }
            h.verify().await;
        }
        h.set(|queue| queue.dead_letters.retention = Some(SECOND));
        h.advance(HOUR);
        assert_eq!(h.sweep().await.retention_expired, 1);
    }
}

store_test! {
    async fn a_queue_says_when_a_worker_last_asked_for_it(h) {
        h.enqueue(job("q")).await;
        h.enqueue(job("other")).await;
        let last = async |name| h.queue(name).await.unwrap().last_claim_at;
        assert_eq!(last("q").await, None);
        h.claim("q").await;
        let first = h.now();
        h.advance(SECOND);
        h.try_claim(claim_of(&["q", "not-there"], 1)).await;
        assert_eq!(last("q").await, Some(h.now()), "whatever it got");
        h.advance(SECOND);
        h.pause("q", None).await.unwrap();
        h.idle("q").await;
        assert_eq!(last("q").await, Some(first.after(2 * SECOND)), "whatever holds it back");
        assert_eq!(last("other").await, None);
    }
}

store_test! {
    async fn lists_show_events_with_attempts_and_never_without(h) {
        h.dead_letter(job("q").id("x")).await;
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(kinds(&h, "x").await, [Kind::Requeued]);
        for full in [false, true] {
            let query = JobQuery { full, ..jobs_of("q") };
            let page = h.page(query).await;
            assert_eq!(page.jobs[0].1.events.len(), usize::from(full));
        }
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, permanent()).await.unwrap();
        let page = h.dead_page(DeadLetterQuery { full: true, ..dead_query("q") }).await;
        assert_eq!(page.jobs[0].events.len(), 1);
    }
}
