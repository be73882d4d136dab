//! Chance drives the store and the model side by side, and every answer and every state is compared.
//!
//! `PROPTEST_CASES` raises the number of stories that are tried.

use crate::builders::{self, claim_shares, jobs_of, no_queue, of_type, requeue_of, search};
use crate::engines::{Engine, Site};
use crate::harness::{Harness, runtime};
use crate::model::{Answer, Id, Job, JobRefused, Model, Place};
use crate::steps::{New, Op, Pick, Story, name, settings};
use bytes::Bytes;
use proptest::prelude::*;
use proptest_state_machine::{StateMachineTest, prop_state_machine};
use redrive::domain::{Attempt, Body, Breaker, BreakerSettings, JobId, Lease, NewJob, State, When};
use redrive::queue::EnqueueOutcome;
use redrive::queue::Refusal;
use redrive::queue::hosts::memory::MemoryStore;
use redrive::queue::hosts::redis::RedisStore;
use redrive::queue::hosts::sqlite::SqliteStore;
use redrive::queue::{BreakerOrder, Claim, Deaths, JobQuery, Purge, Requeue, SkipReason, Which};
use std::{marker::PhantomData, sync::Arc};

/// A store, and what its names are in the model.
struct Real<S: Engine> {
    /// Away while a step runs on it.
    runtime: Option<tokio::runtime::Runtime>,
    h: Harness<S>,
    /// By the model's number of the job.
    ids: Vec<JobId>,
    leases: Vec<Lease>,
}

/// Where it is `CLUSTER`, each queue may be on another server.
struct Machine<S: Engine, const CLUSTER: bool>(PhantomData<S>);

fn own(id: u8) -> JobId {
    JobId::parse(&format!("own-{id}"))
}

/// Most acks carry nothing.
fn result_of(lease: usize) -> Bytes {
    if lease.is_multiple_of(3) { vec![lease as u8; lease].into() } else { Bytes::new() }
}

/// The order in which the queues of an ambiguous id are named is not promised.
fn in_order(refusal: Refusal) -> JobRefused {
    match refusal {
        Refusal::JobNotFound { .. } | Refusal::QueueNotFound { .. } => JobRefused::NoSuchJob,
        Refusal::WrongState { state, .. } => JobRefused::WrongState { state },
        Refusal::AmbiguousJobId { mut queues, .. } => {
            queues.sort();
            JobRefused::Ambiguous { queues }
        }
        other => panic!("{other:?} is no refusal of a call about one job"),
    }
}

impl<S: Engine> Real<S> {
    fn id(&self, id: Id) -> JobId {
        match id {
            Id::Own(id) => own(id),
            // A step may name a job that was never made, or has an id of its own: no job has this one.
            Id::Made(number) => match self.ids.get(number) {
                Some(id) if id.number().is_some() => id.clone(),
                _ => JobId::parse("missing"),
            },
        }
    }

    fn new_job(&self, new: &New) -> NewJob {
        let mut job = builders::job(name(new.queue).as_str());
        job.id = new.id.map(own);
        job.key = new.key.map(|key| format!("key-{key}"));
        job.body = Body::Data(vec![new.body].into());
        job.priority = new.priority;
        job.start = Some(When::After(new.delay));
        job.expiry = new.expires.map(When::After);
        job.on_conflict = new.on_conflict;
        job
    }

    /// The dead letters that the store published since the step began.
    fn died(&self) -> Vec<JobId> {
        self.h.recorded.take_died().into_iter().map(|notice| notice.id).collect()
    }

    async fn step(&mut self, model: &Model, op: Op) {
        self.h.recorded.take_died();
        match (op, &model.answer) {
            (Op::Enqueue(jobs), Answer::Enqueued(expected)) => {
                let jobs = jobs.iter().map(|job| self.new_job(job)).collect();
                let answers = self.h.enqueue_all(jobs).await;
                assert_eq!(answers.len(), expected.len());
                for (answer, expected) in answers.iter().zip(expected) {
                    match (answer, expected) {
                        (Ok(added), Ok(expected)) => {
                            if expected.outcome == EnqueueOutcome::Added {
                                self.ids.push(added.id.clone());
                            }
                            assert_eq!(added.id, self.id(expected.id));
                            assert_eq!(
                                (added.outcome, added.state, added.run_at),
                                (expected.outcome, expected.state, expected.run_at)
                            );
                        }
                        (answer, expected) => {
                            assert_eq!(answer.as_ref().err(), expected.as_ref().err())
                        }
                    }
                }
            }
            (Op::Claim { shares, max_jobs, request }, Answer::Claimed { .. }) => {
                let names: Vec<_> = shares.iter().map(|(queue, first)| (name(*queue), *first)).collect();
                let names: Vec<_> = names.iter().map(|(queue, first)| (queue.as_str(), *first)).collect();
                let request_id = request.map(|request| format!("request-{request}")).unwrap_or_default();
                self.claim(model, Claim { request_id, ..claim_shares(&names, max_jobs) }).await;
            }
            (Op::Ack(lease), Answer::Acked(expected)) => {
                let (note, result) = (format!("note {lease}"), result_of(lease));
                let done = self.h.ack_with(self.leases[lease].clone(), &note, result).await;
                assert_eq!(done, *expected);
            }
            (Op::Nack { lease, outcome, checkpoint }, Answer::Nacked(expected)) => {
                let lease = self.leases[lease].clone();
                let nonce = lease.nonce;
                let expected = (**expected).clone().map(|attempt| Attempt { nonce, ..attempt });
                assert_eq!(self.h.nack_saving(lease, outcome, &checkpoint).await, expected);
            }
            (Op::Extend { lease, duration, checkpoint }, Answer::Extended(expected)) => {
                assert_eq!(self.h.extend(self.leases[lease].clone(), duration, &checkpoint).await, *expected);
            }
            (Op::Unclaim(lease), _) => {
                self.h.unclaim(self.leases[lease].clone()).await;
            }
            (Op::Requeue { queue, pick, overflow, target, keep_attempts, dry_run }, expected) => {
                let requeue = Requeue {
                    target: target.map(name),
                    keep_attempts,
                    dry_run,
                    ..self.requeue_of(model, queue, &pick, overflow)
                };
                self.requeue(requeue, expected).await;
            }
            (Op::Pause { queue, duration }, _) => {
                self.h.pause(name(queue).as_str(), duration).await.expect("it is configured");
            }
            (Op::Resume(queue), _) => {
                self.h.resume(name(queue).as_str()).await.expect("it is configured");
            }
            (Op::Cancel { id, queue }, Answer::Cancelled(expected)) => {
                let done = self.h.cancel_in(self.id(id), queue.map(name)).await;
                assert_eq!(done.map_err(in_order), *expected);
            }
            (Op::RunNow { id, queue }, Answer::Ran(expected)) => {
                let done = self.h.run_now_in(self.id(id), queue.map(name)).await;
                assert_eq!(done.map_err(in_order), *expected);
            }
            (Op::Purge { queue, pick, overflow, dry_run }, expected) => {
                let Requeue { part, which, .. } = self.requeue_of(model, queue, &pick, overflow);
                let purge = Purge { part, which, dry_run, request: None };
                let done = self.h.purge(purge).await;
                let Answer::Purged { count, skipped, has_more, cutoff } = expected else {
                    assert_eq!(done, Err(no_queue(name(queue).as_str())));
                    return;
                };
                let done = done.expect("the queue is there");
                let skipped = skipped.iter().map(|id| (self.id(*id), SkipReason::JobNotFound));
                assert_eq!((done.count, done.skipped), (*count, skipped.collect()));
                assert_eq!(done.has_more, *has_more);
                if *has_more {
                    assert_eq!(done.left.up_to, *cutoff);
                }
            }
            (Op::Sweep, Answer::Swept { promoted, expired, dead, removed }) => {
                let swept = self.h.sweep().await;
                assert_eq!((swept.promoted, swept.completed_removed), (*promoted, *removed));
                let ids = |ids: &[Id]| ids.iter().map(|id| self.id(*id)).collect::<Vec<_>>();
                // Queues are swept one after the other: between them there is no order.
                let sorted = |mut ids: Vec<JobId>| {
                    ids.sort();
                    ids
                };
                let ended = swept.expired.iter().map(|e| e.id.clone()).collect();
                assert_eq!(sorted(ended), sorted(ids(expired)));
                assert_eq!(sorted(self.died()), sorted(ids(dead)));
            }
            (Op::Advance(by), _) => {
                self.h.advance(by);
                // Time is kept with the next commit; here at once, so that a restart finds it.
                self.h.settle(Default::default()).await;
            }
            (Op::SetBreaker { queue, dead_letters, forced }, _) => {
                let kind = if dead_letters { "dlq" } else { "queue" };
                let order =
                    forced.map_or(BreakerOrder::Reset, |open| BreakerOrder::Force { open, reason: String::new() });
                let name = format!("{kind}:{}", name(queue));
                self.h.set_breaker(&name, order).await.expect("the queue is configured");
            }
            (Op::JumpWall(seconds), _) => self.h.clock.jump_wall(seconds),
            (Op::Reopen { reboot }, _) => {
                self.h.close().await;
                if reboot {
                    self.h.clock.reboot();
                }
                self.h.open().await;
            }
            (op, answer) => unreachable!("{op:?} has no answer {answer:?}"),
        }
    }

    async fn claim(&mut self, model: &Model, claim: Claim) {
        let Answer::Claimed { jobs, again, idle, dead } = &model.answer else {
            return;
        };
        let mut claimed = self.h.try_claim(claim).await;
        if *again {
            // The order in which they are handed out again is not promised. One id may be out in several queues.
            let mut again = claimed.jobs.delivered();
            again.sort_by_key(|delivered| {
                jobs.iter().position(|number| {
                    let queue = name(model.jobs[number].queue);
                    (&self.ids[*number], queue) == (&delivered.spec.id, delivered.queue.clone())
                })
            });
            claimed.jobs = again.into();
        }
        let got: Vec<_> = claimed.jobs.iter().map(|delivered| delivered.spec.id.clone()).collect();
        let expected: Vec<_> = jobs.iter().map(|number| self.ids[*number].clone()).collect();
        assert_eq!(got, expected);
        for (delivered, number) in claimed.jobs.iter().zip(jobs) {
            let job = &model.jobs[number];
            let Place::Leased(out) = &job.place else { unreachable!("it was claimed") };
            let lease = delivered.delivery.lease.clone();
            let mut expected = out.delivery.clone();
            assert_eq!(lease.delivery, expected.lease.delivery);
            expected.lease = lease.clone();
            assert_eq!(delivered.delivery, expected);
            assert_eq!(delivered.queue, name(job.queue));
            assert_eq!(delivered.progress, job.progress);
            assert_eq!(delivered.last_failure, job.last_failure);
            if !again {
                assert!(!self.leases.contains(&lease), "a token came twice");
                self.leases.push(lease);
            }
        }
        let reasons: Vec<_> = claimed.idle.iter().map(|idle| (idle.reason, idle.until)).collect();
        assert_eq!(reasons, *idle);
        assert_eq!(self.died(), dead.iter().map(|id| self.id(*id)).collect::<Vec<_>>());
    }

    fn requeue_of(&self, model: &Model, queue: usize, pick: &Pick, overflow: bool) -> Requeue {
        let among = match &model.answer {
            Answer::Requeued { cutoff, .. } | Answer::Purged { cutoff, .. } => {
                Some(Deaths { after: 0, up_to: *cutoff })
            }
            _ => None,
        };
        let which = match pick {
            Pick::Ids(ids) => Which::Ids(ids.iter().map(|id| self.id(*id)).collect()),
            Pick::Oldest { limit, .. } => Which::Oldest { limit: *limit, among },
            Pick::Found { error_type, limit, .. } => {
                Which::Found { search: search(of_type(error_type)), limit: *limit, among }
            }
        };
        let part = format!("dlq:{}{}", if overflow { "overflow:" } else { "" }, name(queue));
        requeue_of(&part, which)
    }

    async fn requeue(&self, requeue: Requeue, expected: &Answer) {
        let queue = requeue.part.queue.to_string();
        let done = self.h.requeue(requeue).await;
        let Answer::Requeued { ids, skipped, has_more, cutoff } = expected else {
            assert_eq!(done, Err(no_queue(&queue)));
            return;
        };
        let done = done.expect("the queue is there");
        assert_eq!(done.ids, ids.iter().map(|id| self.id(*id)).collect::<Vec<_>>());
        let expected: Vec<_> = skipped.iter().map(|(id, reason)| (self.id(*id), *reason)).collect();
        assert_eq!(done.skipped, expected);
        assert_eq!(done.has_more, *has_more);
        if *has_more {
            assert_eq!(done.left.up_to, *cutoff);
        }
    }

    /// Every job is where the model has it and nowhere else, and the counters count what is there.
    async fn compare(&self, model: &Model) {
        assert_eq!(self.h.now(), model.now);
        self.h.verify().await;
        let queues = self.h.queues().await;
        assert_eq!(queues.len(), model.queues.len());
        for (view, (number, queue)) in queues.iter().zip(&model.queues) {
            assert_eq!((&view.name, view.totals), (&name(*number), queue.totals));
            let count =
                |state| model.jobs.values().filter(|job| job.queue == *number && job.state() == state).count() as u64;
            self.compare_breakers(model, *number).await;
            assert_eq!(view.pause.as_ref().map(|pause| pause.until), queue.paused);
            let d = view.depths;
            assert_eq!(
                [d.ready, d.scheduled, d.retrying],
                [count(State::Ready), count(State::Scheduled), count(State::Retrying)]
            );
            assert_eq!(
                [d.leased, d.dead, d.completed, d.cancelled],
                [State::Leased, State::Dead, State::Completed, State::Cancelled].map(count)
            );
            assert_eq!(d.overflow, model.overflow(*number));
            let ready = model.jobs.values().filter(|job| job.queue == *number && job.state() == State::Ready);
            assert_eq!(view.oldest_ready_at, ready.filter_map(|job| job.waits_since()).min());
            let dead = self.h.dead(view.name.as_str()).await;
            let dead: Vec<_> = dead.iter().map(|view| view.spec.id.clone()).collect();
            assert_eq!(dead, model.dead(*number).iter().map(|(_, job)| self.ids[*job].clone()).collect::<Vec<_>>());
        }
        for queue in model.queues.keys() {
            let listed = self.h.pages(JobQuery { limit: 3, ..jobs_of(name(*queue).as_str()) }).await;
            let expected = model.listed(*queue).into_iter().map(|number| self.ids[number].to_string());
            assert_eq!(listed.concat(), expected.collect::<Vec<_>>());
        }
        for (number, job) in &model.jobs {
            self.compare_job(*number, job).await;
        }
        for (number, id) in self.ids.iter().enumerate().rev().take(5) {
            if id.number().is_some() && !model.jobs.contains_key(&number) {
                assert!(self.h.views(id).await.is_empty(), "{id} is done");
            }
        }
    }

    async fn compare_breakers(&self, model: &Model, queue: usize) {
        let views = self.h.breakers(name(queue).as_str()).await;
        let settings = model.settings(queue);
        let settings = [&settings.breaker, &settings.dead_letters.breaker];
        let (work, dead_letters) = (&model.queues[&queue].work, &model.queues[&queue].dead_letters);
        let shape = |breaker: &Breaker, settings: &BreakerSettings| {
            let outage =
                breaker.outage.as_ref().map(|it| (it.since, it.opened_at, it.probe_at, it.successes, it.falls));
            let forced = breaker.forced.as_ref().map(|forced| forced.open);
            (breaker.transitions, breaker.trips, forced, outage, breaker.state(settings, model.now))
        };
        let found = &views.work.breaker;
        assert_eq!(shape(found, settings[0]), shape(&work.breaker, settings[0]));
        let probe = |breaker: &Breaker| breaker.outage.as_ref().and_then(|outage| outage.failed_probe.clone());
        let expected = probe(&work.breaker).and_then(|id| work.ids.iter().find(|(known, _)| *known == id).cloned());
        assert_eq!(probe(found), expected.map(|(_, id)| self.id(id)));
        assert_eq!(found.returned.len(), work.breaker.returned.len());
        assert_eq!(views.work.failures, work.streak(model.now));
        assert_eq!(views.work.probes, model.probes(queue).len() as u64);
        let found = &views.dead_letters.breaker;
        assert_eq!(
            (found.transitions, found.trips, found.forced.as_ref().map(|forced| forced.open)),
            (dead_letters.transitions, dead_letters.trips, dead_letters.forced)
        );
        let open = found.outage.as_ref().map(|outage| (outage.probe_at, outage.successes));
        assert_eq!(open, dead_letters.open.map(|open| (open.probe_at, open.successes)));
        assert_eq!(found.state(settings[1], model.now), dead_letters.state(settings[1], model.now));
        assert_eq!(views.dead_letters.failures, dead_letters.full);
    }

    async fn compare_job(&self, number: usize, job: &Job) {
        let view = self.h.store().job(self.ids[number].clone(), Some(name(job.queue))).await;
        let view = view.expect("it is there once");
        assert_eq!((view.state, view.ready_at), (job.state(), job.waits_since()));
        let mut progress = job.progress.clone();
        if let Place::Leased(out) = &job.place
            && !out.checkpoint.is_empty()
        {
            progress.checkpoint = out.checkpoint.clone();
        }
        assert_eq!(view.progress, progress);
        assert_eq!(view.attempts.len() as u32, job.progress.recorded.min(50));
        let events: Vec<_> = view.events.iter().map(|event| (event.kind, event.at)).collect();
        assert_eq!(events, job.kept_events());
        assert_eq!(view.last_failure, job.last_failure);
        let death = view.death.as_ref().map(|d| (d.number, d.reason, d.overflow, d.died_at));
        let expected = match job.place {
            Place::Dead(d) => Some((d.number, d.reason, d.overflow, d.died_at)),
            _ => None,
        };
        assert_eq!(death, expected);
        assert_eq!(view.delivery.is_some(), job.state() == State::Leased);
        let completed_at = match job.place {
            Place::Completed(at) | Place::Cancelled(at) => Some(at),
            _ => None,
        };
        assert_eq!(view.completed_at, completed_at);
        assert_eq!(view.result, job.result.map(result_of).unwrap_or_default());
        let last = view.attempts.last();
        let expected = job.last_attempt.as_ref().map(|last| (last.status, &last.note));
        assert_eq!(last.map(|last| (last.status, &last.note)), expected);
    }
}

impl<S: Engine, const CLUSTER: bool> StateMachineTest for Machine<S, CLUSTER> {
    type SystemUnderTest = Real<S>;
    type Reference = Story<S>;

    fn init_test(_: &Model) -> Real<S> {
        let runtime = runtime();
        let site = if CLUSTER { Site::Cluster } else { Site::One };
        let mut h = runtime.block_on(Harness::new_in(site));
        h.settings = Arc::new(settings());
        runtime.block_on(h.store().replace_settings(h.settings.clone())).expect("the store is well");
        Real { runtime: Some(runtime), h, ids: Vec::new(), leases: Vec::new() }
    }

    fn apply(mut real: Real<S>, model: &Model, op: Op) -> Real<S> {
        let runtime = real.runtime.take().expect("the runtime is taken once");
        runtime.block_on(async {
            real.step(model, op).await;
            real.compare(model).await;
        });
        real.runtime = Some(runtime);
        real
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_sqlite_store_and_the_model_agree(sequential 10..70 => SqliteMachine);
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_memory_store_and_the_model_agree(sequential 10..70 => MemoryMachine);
}

// Every look goes to another process: fewer stories take as long.
prop_state_machine! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 500,
        failure_persistence: None,
        cases: ProptestConfig::default().cases / 4,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_redis_store_and_the_model_agree(sequential 10..70 => RedisMachine);
}

// A Cluster differs by where the queues are: that shows early.
prop_state_machine! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 500,
        failure_persistence: None,
        cases: ProptestConfig::default().cases / 16,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_redis_store_on_a_cluster_and_the_model_agree(sequential 10..70 => ClusterMachine);
}

type SqliteMachine = Machine<SqliteStore, false>;
type MemoryMachine = Machine<MemoryStore, false>;
type RedisMachine = Machine<RedisStore, false>;
type ClusterMachine = Machine<RedisStore, true>;
