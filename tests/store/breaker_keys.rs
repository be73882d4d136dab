//! Breaker keys: jobs of one queue that depend on different things, each with a breaker and limits of its own.

use crate::servers::{One, run};
use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{BreakerState, Failure, NewJob, Outcome, State};
use redrive::queue::{Ack, BreakerOrder, BreakerView, Delivered, IdleReason, Refusal, Settlements, Which};
use std::time::Duration;

/// So many failures open a breaker, however short ago the last success was.
const ENOUGH: usize = 20;

pub(crate) fn job_of(key: &str, id: &str) -> NewJob {
    NewJob { breaker_key: Some(key.into()), ..job("q").id(id) }
}

fn failed_at(key: &str) -> Outcome {
    failed_with(Failure { breaker_key: key.into(), ..Failure::new("Timeout", "no answer") })
}

fn ids(jobs: &[Delivered]) -> Vec<String> {
    jobs.iter().map(|job| job.spec.id.to_string()).collect()
}

impl<S: Engine> Harness<S> {
    async fn key(&self, key: &str) -> BreakerView {
        let views = self.breakers("q").await.keys;
        views.into_iter().find(|view| view.breaker.key == key).expect("the key has a breaker")
    }

    async fn state_of_key(&self, key: &str) -> BreakerState {
        let breaker = self.key(key).await.breaker;
        breaker.state(&self.settings.defaults.breaker, self.now())
    }

    /// So many jobs of a key fail, and its breaker opens. They wait for their retries.
    async fn trip_key(&mut self, key: &str) {
        self.set(without_jitter);
        let jobs = (0..ENOUGH).map(|n| job_of(key, &format!("{key}-{n}")));
        self.enqueue_all(jobs.collect()).await;
        for delivered in self.claim_many("q", ENOUGH).await {
            self.nack(delivered.delivery.lease, failed("Timeout")).await.unwrap();
        }
        assert_eq!(self.state_of_key(key).await, BreakerState::Open);
        self.sweep().await;
    }

    /// The same, and its probes begin.
    async fn half_open_key(&mut self, key: &str) {
        self.trip_key(key).await;
        let probe_at = self.key(key).await.breaker.outage.unwrap().probe_at;
        self.advance(probe_at.since(self.now()));
        self.sweep().await;
        assert_eq!(self.state_of_key(key).await, BreakerState::HalfOpen);
    }
}

store_test! {
    async fn jobs_of_several_keys_leave_in_one_order(h) {
        for (key, id) in [("a", "a1"), ("b", "b1"), ("a", "a2")] {
            h.enqueue(job_of(key, id)).await;
            h.enqueue(job("q").id(&format!("after-{id}"))).await;
        }
        h.enqueue(job_of("b", "first").priority(1)).await;
        assert_eq!(h.depths("q").await.ready, 7);
        assert_eq!(h.drain("q").await, ["first", "a1", "after-a1", "b1", "after-b1", "a2", "after-a2"]);
        assert_eq!(h.depths("q").await.leased, 7);
    }
}

store_test! {
    async fn a_held_key_holds_its_own_jobs_alone_and_keeps_their_order(h) {
        h.trip_key("down").await;
        h.enqueue(job_of("down", "held-1")).await;
        h.enqueue(job_of("well", "well-1")).await;
        h.enqueue(job_of("down", "held-2")).await;
        h.enqueue(job("q").id("none")).await;
        h.enqueue(job_of("well", "well-2")).await;
        assert_eq!(h.drain("q").await, ["well-1", "none", "well-2"]);
        assert_eq!(h.state_of_key("well").await, BreakerState::Closed);
        assert_eq!(h.breaker_state().await, BreakerState::Closed, "the queue's own hears nothing of it");
        let idle = h.idle("q").await;
        assert_eq!((idle.reason, idle.breaker_key.as_str()), (IdleReason::BreakerOpen, "down"));
        assert_eq!(idle.until, Some(h.key("down").await.breaker.outage.unwrap().probe_at));
        h.reopen().await;
        assert_eq!(h.drain("q").await, Vec::<String>::new(), "after a restart too");
        let order = BreakerOrder::Reset;
        h.set_breaker("queue:q/down", order).await.unwrap();
        assert_eq!(h.drain("q").await, ["held-1", "held-2"]);
    }
}

store_test! {
    async fn an_outage_of_a_key_counts_no_attempt_of_its_jobs_and_costs_the_others_nothing(h) {
        h.trip_key("down").await;
        let dead = h.depths("q").await.dead;
        assert_eq!(dead, 0);
        let view = h.key("down").await;
        assert_eq!((view.held, view.breaker.trips), (0, 1), "their retries are not due yet");
        for n in 0..ENOUGH {
            let job = h.view(&redrive::domain::JobId::parse(&format!("down-{n}"))).await;
            assert_eq!((job.state, job.progress.tries), (State::Retrying, 0), "{n}");
            assert_eq!(job.breaker.key, "down");
        }
        h.advance(seconds(1));
        h.sweep().await;
        assert_eq!(h.key("down").await.held, ENOUGH as u64);
    }
}

store_test! {
    async fn a_probe_of_a_key_is_one_of_its_jobs_and_lets_it_recover(h) {
        h.half_open_key("down").await;
        h.enqueue(job("q").id("none")).await;
        let out = h.claim_many("q", 100).await;
        let (probes, others): (Vec<_>, Vec<_>) = out.into_iter().partition(|job| job.delivery.probe);
        assert_eq!((probes.len(), ids(&others)), (1, vec!["none".to_owned()]));
        let idle = h.idle("q").await;
        assert_eq!((idle.reason, idle.breaker_key.as_str()), (IdleReason::Limited, "down"), "its probe is out");
        h.advance(Duration::from_millis(100));
        h.ack(probes[0].delivery.lease.clone()).await.unwrap();
        assert_eq!(h.state_of_key("down").await, BreakerState::Recovering);
        let next = h.claim_many("q", 100).await;
        assert_eq!(next.len(), 1, "its backlog comes with a load that grows");
        h.enqueue_all((0..5).map(|n| job("q").id(&format!("more-{n}"))).collect()).await;
        assert_eq!(h.claim_many("q", 100).await.len(), 5, "the others are not held by that");
    }
}

store_test! {
    async fn a_failure_that_names_a_key_makes_the_job_one_of_it(h) {
        h.set(without_jitter);
        for n in 0..ENOUGH {
            h.enqueue(job("q").id(&format!("j{n}"))).await;
        }
        h.enqueue(job("q").id("well")).await;
        let mut out = h.claim_many("q", 100).await;
        let well = out.pop().unwrap();
        for delivered in out {
            h.advance(MILLISECOND);
            h.nack(delivered.delivery.lease, failed_at("smtp.example.com")).await.unwrap();
        }
        h.ack(well.delivery.lease).await.unwrap();
        assert_eq!(h.state_of_key("smtp.example.com").await, BreakerState::Open);
        assert_eq!(h.breaker_state().await, BreakerState::Closed);
        h.sweep().await;
        let job = h.view(&redrive::domain::JobId::parse("j0")).await;
        assert_eq!(job.breaker_key(), Some("smtp.example.com"));
        assert_eq!(job.progress.tries, 0, "the failures that opened it are returned");
        h.advance(seconds(2));
        h.enqueue(job_of("other", "next")).await;
        let out = h.claim_many("q", 100).await;
        assert!(out.iter().all(|job| job.delivery.probe || job.spec.id.to_string() == "next"), "{:?}", ids(&out));
    }
}

store_test! {
    async fn a_learnt_key_stays_until_a_failure_names_another(h) {
        h.set(without_jitter);
        h.enqueue(job_of("given", "j").retries(10)).await;
        for (outcome, key) in [
            (failed("Timeout"), "given"),
            (failed_at("learnt"), "learnt"),
            (failed("Timeout"), "learnt"),
            (released(), "learnt"),
            (failed_at("given"), "given"),
        ] {
            let lease = h.claim("q").await.delivery.lease;
            h.nack(lease, outcome).await.unwrap();
            let view = h.view(&redrive::domain::JobId::parse("j")).await;
            assert_eq!(view.breaker_key(), Some(key));
            assert_eq!(view.learnt_key.as_deref(), Some(key).filter(|key| *key != "given"));
            h.advance(HOUR);
        }
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, permanent()).await.unwrap();
        assert_eq!(h.dead("q").await[0].breaker_key(), Some("given"));
    }
}

store_test! {
    async fn an_ack_may_name_the_key_that_counts_the_success(h) {
        h.set(without_jitter);
        for n in 0..10 {
            h.enqueue(job("q").id(&format!("j{n}"))).await;
        }
        let mut out = h.claim_many("q", 100).await.into_iter();
        for delivered in out.by_ref().take(4) {
            h.nack(delivered.delivery.lease, failed_at("api")).await.unwrap();
        }
        assert_eq!(h.key("api").await.failures, 4);
        let lease = out.next().unwrap().delivery.lease;
        let ack = Ack { lease, note: String::new(), result: Default::default(), breaker_key: "api".into() };
        h.settle(Settlements { acks: vec![ack], ..Settlements::default() }).await.acks.remove(0).unwrap();
        assert_eq!(h.key("api").await.failures, 0, "a success ends the streak");
        let lease = out.next().unwrap().delivery.lease;
        h.nack(lease, failed_at("api")).await.unwrap();
        h.ack(out.next().unwrap().delivery.lease).await.unwrap();
        assert_eq!(h.key("api").await.failures, 1, "a success that names nothing is the queue's own");
    }
}

store_test! {
    async fn an_outcome_of_a_delivery_from_before_the_last_transition_of_the_named_key_changes_nothing(h) {
        h.set(without_jitter);
        h.enqueue(job("q").id("old")).await;
        let old = h.claim("q").await;
        h.advance(SECOND);
        h.half_open_key("api").await;
        let before = h.key("api").await.breaker;
        h.nack(old.delivery.lease, failed_at("api")).await.unwrap();
        let after = h.key("api").await.breaker;
        assert_eq!((after.transitions, after.outage), (before.transitions, before.outage));
    }
}

store_test! {
    async fn one_429_holds_the_jobs_of_its_key(h) {
        h.set(without_jitter);
        h.enqueue(job_of("api", "a1")).await;
        h.enqueue(job_of("api", "a2")).await;
        h.enqueue(job("q").id("none")).await;
        let lease = h.claim("q").await.delivery.lease;
        let failure = Failure { http_status: 429, ..Failure::new("TooMany", "slow down") };
        let outcome = Outcome::Failed { failure, permanent: false, retry_after: Some(seconds(30)) };
        h.nack(lease, outcome).await.unwrap();
        assert_eq!(h.drain("q").await, ["none"]);
        let idle = h.idle("q").await;
        assert_eq!((idle.breaker_key.as_str(), idle.until), ("api", Some(h.now().after(seconds(30)))));
        h.advance(seconds(30));
        h.sweep().await;
        assert_eq!(h.claim_many("q", 100).await.len(), 1, "a probe");
    }
}

store_test! {
    async fn an_open_breaker_of_the_queue_holds_the_jobs_without_a_key_alone_but_a_forced_one_holds_all(h) {
        h.trip().await;
        h.enqueue(job("q").id("none")).await;
        h.enqueue(job_of("a", "a1")).await;
        assert_eq!(h.drain("q").await, ["a1"]);
        assert_eq!(h.idle("q").await.reason, IdleReason::BreakerOpen);
        h.enqueue(job_of("a", "a2")).await;
        let order = |open| BreakerOrder::Force { open, reason: "maintenance".into() };
        h.set_breaker("queue:q", order(true)).await.unwrap();
        assert_eq!(h.idle("q").await.reason, IdleReason::BreakerOpen);
        h.set_breaker("queue:q", BreakerOrder::Reset).await.unwrap();
        assert!(h.drain("q").await.contains(&"a2".to_owned()));
    }
}

store_test! {
    async fn an_operator_orders_the_breaker_of_a_key_by_its_name(h) {
        h.enqueue(job_of("smtp/eu", "j")).await;
        h.enqueue(job("other")).await;
        let order = BreakerOrder::Force { open: true, reason: "maintenance".into() };
        let view = h.set_breaker("queue:q/smtp/eu", order.clone()).await.unwrap();
        assert!(view.breaker.forced.is_some_and(|forced| forced.open));
        assert_eq!(view.held, 1, "those of the key");
        assert_eq!(h.idle("q").await.breaker_key, "smtp/eu");
        // Also that of jobs to come.
        h.set_breaker("queue:q/later", order).await.unwrap();
        h.enqueue(job_of("later", "j2")).await;
        assert_eq!(h.drain("q").await, Vec::<String>::new());
        for key in ["smtp/eu", "later"] {
            h.set_breaker(&format!("queue:q/{key}"), BreakerOrder::Reset).await.unwrap();
        }
        assert_eq!(h.drain("q").await, ["j", "j2"]);
        let unknown = h.set_breaker("queue:q/unknown", BreakerOrder::Reset).await;
        assert_eq!(unknown, Err(Refusal::BreakerNotFound { name: "queue:q/unknown".into() }));
        assert!(h.breakers("q").await.keys.iter().all(|view| view.breaker.key != "unknown"));
    }
}

store_test! {
    async fn retries_delays_returns_and_requeues_keep_the_key(h) {
        h.set(without_jitter);
        h.enqueue(job_of("a", "delayed").delay(SECOND)).await;
        h.enqueue(job_of("a", "retried")).await;
        let retried = h.claim("q").await;
        assert_eq!(h.depths("q").await.scheduled, 1);
        h.nack(retried.delivery.lease, failed("Timeout")).await.unwrap();
        h.advance(seconds(2));
        h.sweep().await;
        let order = BreakerOrder::Force { open: true, reason: String::new() };
        h.set_breaker("queue:q/a", order).await.unwrap();
        assert_eq!(h.drain("q").await, Vec::<String>::new(), "both are jobs of the key");
        h.set_breaker("queue:q/a", BreakerOrder::Reset).await.unwrap();
        let out = h.claim_many("q", 10).await;
        assert_eq!(out.len(), 2);
        h.unclaim(out[0].delivery.lease.clone()).await;
        h.nack(out[1].delivery.lease.clone(), permanent()).await.unwrap();
        let requeued = h.requeue(requeue_of("q", Which::Oldest { limit: 1, among: None })).await.unwrap();
        assert_eq!(requeued.ids.len(), 1);
        assert_eq!(h.depths("q").await.ready, 2);
        let order = BreakerOrder::Force { open: true, reason: String::new() };
        h.set_breaker("queue:q/a", order).await.unwrap();
        assert_eq!(h.drain("q").await, Vec::<String>::new());
    }
}

store_test! {
    async fn a_requeue_to_another_queue_takes_the_key_along(h) {
        h.dead_letter(job_of("a", "j")).await;
        let mut requeue = requeue_of("q", Which::Oldest { limit: 1, among: None });
        requeue.target = Some(queue("other"));
        h.requeue(requeue).await.unwrap();
        let order = BreakerOrder::Force { open: true, reason: String::new() };
        h.set_breaker("queue:other/a", order).await.unwrap();
        assert_eq!(h.drain("other").await, Vec::<String>::new());
        h.set_breaker("queue:other/a", BreakerOrder::Reset).await.unwrap();
        assert_eq!(h.claim("other").await.spec.breaker_key.as_deref(), Some("a"));
    }
}

store_test! {
    async fn ready_jobs_are_listed_and_counted_with_or_without_a_key(h) {
        for (key, id) in [("b", "b1"), ("a", "a1"), ("b", "b2")] {
            h.enqueue(job_of(key, id)).await;
        }
        h.enqueue(job("q").id("none")).await;
        let mut query = jobs_of("q");
        query.limit = 1;
        // Which key goes first is chance: its group's number is.
        let listed = h.pages(query).await.concat();
        let key_by_key = [["none", "b1", "b2", "a1"], ["none", "a1", "b1", "b2"]];
        assert!(key_by_key.iter().any(|order| listed == *order), "key by key, behind those without one: {listed:?}");
        let view = h.view(&redrive::domain::JobId::parse("b2")).await;
        assert_eq!((view.state, view.ahead.map(|ahead| ahead.jobs)), (State::Ready, Some(1)));
        h.cancel("b1").await.unwrap();
        assert_eq!(h.depths("q").await.ready, 3);
        assert!(h.queue("q").await.unwrap().oldest_ready_at.is_some());
    }
}

store_test! {
    async fn a_replaced_job_may_have_another_key(h) {
        let replacing = |key: &str| NewJob {
            on_conflict: redrive::domain::OnConflict::ReplaceWaiting,
            ..job_of(key, "j").key("k").body(key)
        };
        h.enqueue(replacing("a")).await;
        h.try_enqueue(replacing("b")).await.unwrap();
        let order = BreakerOrder::Force { open: true, reason: String::new() };
        h.set_breaker("queue:q/a", order).await.unwrap();
        assert_eq!(h.claim("q").await.spec.breaker_key.as_deref(), Some("b"));
    }
}

store_test! {
    async fn waiting_claims_hear_of_a_key_that_may_go_on(h) {
        h.trip_key("down").await;
        h.enqueue(job_of("down", "held")).await;
        h.recorded.take_available();
        let probe_at = h.key("down").await.breaker.outage.unwrap().probe_at;
        let due = h.due().await;
        assert!(due.iter().any(|at| *at <= probe_at), "{due:?}");
        h.advance(probe_at.since(h.now()));
        h.sweep().await;
        h.catch_up().await;
        assert!(h.recorded.take_available().iter().any(|(queue, jobs)| queue == "q" && *jobs > 0));
    }
}

store_test! {
    async fn waiting_claims_hear_that_a_probe_of_a_key_has_said_nothing(h) {
        h.half_open_key("down").await;
        h.advance(seconds(2));
        h.sweep().await;
        let probe = h.claim("q").await;
        assert!(probe.delivery.probe);
        h.catch_up().await;
        h.recorded.take_available();
        h.nack(probe.delivery.lease, permanent()).await.unwrap();
        h.catch_up().await;
        let told = h.recorded.take_available();
        assert!(told.iter().any(|(queue, jobs)| queue == "q" && *jobs > 0), "another job is the next probe: {told:?}");
        assert!(h.claim("q").await.delivery.probe);
    }
}

#[test]
fn a_key_that_one_server_opens_is_held_at_all_and_any_of_them_probes() {
    run(async |server, namespace| {
        let (a, b) = (One::open(server, &namespace).await, One::open(server, &namespace).await);
        for n in 0..ENOUGH {
            a.enqueue(job_of("down", &format!("j{n}"))).await;
        }
        let out = a.claim("q", 100).await;
        a.nack(&out, "Timeout").await;
        b.enqueue(job_of("down", "held")).await;
        b.enqueue(job("q").id("none")).await;
        assert_eq!(ids(&b.claim("q", 100).await), ["none"]);
        assert_eq!(b.idle("q").await, IdleReason::BreakerOpen);
        // Its own sweeps look at what others do.
        let probe = loop {
            b.store.sweep(sweep_all()).await.unwrap();
            if let Some(probe) = b.claim("q", 1).await.pop() {
                break probe;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(probe.delivery.probe);
        b.ack(&[probe]).await;
        let settings = a.store.settings();
        let view = a.store.breakers(vec![queue("q")]).await.unwrap().remove(0).keys.remove(0);
        assert_eq!(view.breaker.state(&settings.defaults.breaker, a.store.now()), BreakerState::Recovering);
    });
}
