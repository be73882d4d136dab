//! Random sequences of calls: an engine answers as the one in memory does, and holds the same after each of them.

mod dump;
mod reads;
mod takes;
mod values;
mod writes;

use crate::engines::TestEngine;
use crate::fixture::{self, manual_clock, name};
use dump::{Dump, dump};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redrive::domain::{QueueName, Timestamp};
use redrive::store::memory::MemoryStorage;
use redrive::store::storage::{Reads, Storage};
use std::time::Duration;
use values::Seed;

/// What is drawn. Which call it becomes depends on what the store holds then: a fence is to hold more often than not, and
/// an engine need not bear what no verb does.
#[derive(Clone, Debug)]
enum Step {
    Apply {
        queue: u8,
        fences: Vec<Seed>,
        writes: Vec<Seed>,
    },
    Take {
        queue: u8,
        seed: Seed,
    },
    Read {
        queue: u8,
        reads: Vec<Seed>,
    },
    /// So many ticks.
    Pass(u8),
    Register(u8),
    /// Where it was not used for so many ticks.
    Forget(u8, u8),
    Reopen,
}

fn seeds(most: usize) -> impl Strategy<Value = Vec<Seed>> {
    prop::collection::vec(any::<Seed>(), 0..=most)
}

fn step() -> impl Strategy<Value = Step> {
    // The last one is not there most of the time.
    let queue = prop_oneof![8 => Just(0), 3 => Just(1), 1 => Just(values::QUEUES - 1)];
    prop_oneof![
        14 => (queue.clone(), seeds(3), seeds(10))
            .prop_map(|(queue, fences, writes)| Step::Apply { queue, fences, writes }),
        6 => (queue.clone(), any::<Seed>()).prop_map(|(queue, seed)| Step::Take { queue, seed }),
        3 => (queue.clone(), seeds(6)).prop_map(|(queue, reads)| Step::Read { queue, reads }),
        3 => (1..5u8).prop_map(Step::Pass),
        1 => queue.clone().prop_map(Step::Register),
        1 => (queue, 0..4u8).prop_map(|(queue, ticks)| Step::Forget(queue, ticks)),
        1 => Just(Step::Reopen),
    ]
}

/// An engine and the one in memory, side by side.
struct Pair<E> {
    engine: E,
    memory: MemoryStorage,
    /// Positions and scores are counted from here.
    start: Timestamp,
    /// The calls so far, for a failure's message.
    calls: Vec<String>,
}

impl<E: TestEngine> Pair<E> {
    /// Both answered the same.
    fn same<T: std::fmt::Debug>(&self, engine: T, memory: T) -> Result<(), TestCaseError> {
        // Not everything that is answered can be compared otherwise.
        let (engine, memory) = (format!("{engine:#?}"), format!("{memory:#?}"));
        let calls = || self.calls.join("\n");
        prop_assert!(engine == memory, "{}\nengine: {engine}\nmemory: {memory}", calls());
        Ok(())
    }

    /// Both hold the same.
    async fn same_data(&mut self) -> Result<(), TestCaseError> {
        let engine = self.engine.storage();
        let (now, of_memory) = (engine.now(), self.memory.now());
        let queues = engine.queues(None, 100).await.unwrap();
        let (mut ours, mut theirs) = (vec![], vec![]);
        for queue in &queues {
            ours.push(dump(engine, queue).await);
            theirs.push(dump(&mut self.memory, queue).await);
        }
        let of_memory = (of_memory, self.memory.queues(None, 100).await.unwrap(), theirs);
        self.same((now, queues, ours), of_memory)
    }

    async fn known(&mut self, queue: &QueueName) -> Dump {
        dump(&mut self.memory, queue).await.unwrap_or_default()
    }

    async fn step(&mut self, step: &Step, keep_outcomes: bool) -> Result<(), TestCaseError> {
        match step {
            Step::Apply { queue, fences, writes } => {
                let (number, queue) = (*queue, queue_name(*queue));
                let known = self.known(&queue).await;
                let made = writes::Batches { queue: number, start: self.start, known: &known };
                let batch = made.batch(fences, writes, keep_outcomes);
                self.calls.push(format!("{queue}: {batch:?}"));
                let engine = self.engine.storage().apply(&queue, &batch).await.unwrap();
                let memory = self.memory.apply(&queue, &batch).await.unwrap();
                self.same(engine, memory)
            }
            Step::Take { queue, seed } => {
                let (number, queue) = (*queue, queue_name(*queue));
                let known = self.known(&queue).await;
                let now = self.memory.now();
                let take = takes::take(*seed, number, &known, now, keep_outcomes, E::BOUNDS_LEASES);
                self.calls.push(format!("{queue}: {take:?}"));
                let groups = take.groups();
                let engine = self.engine.storage().take(&queue, &take.with(&groups)).await.unwrap();
                let memory = self.memory.take(&queue, &take.with(&groups)).await.unwrap();
                self.same(engine, memory)
            }
            Step::Read { queue, reads } => {
                let (number, queue) = (*queue, queue_name(*queue));
                let reads: Vec<_> = reads.iter().map(|seed| reads::read(*seed, number, self.start)).collect();
                self.calls.push(format!("{queue}: {reads:?}"));
                let engine = self.engine.storage().read(&queue, &reads).await.unwrap();
                let memory = self.memory.read(&queue, &reads).await.unwrap();
                self.same(engine.map(dump::ordered), memory.map(dump::ordered))
            }
            Step::Register(queue) => {
                let queue = queue_name(*queue);
                self.calls.push(format!("register {queue}"));
                let engine = self.engine.storage().register(&queue, 10).await.unwrap();
                let memory = self.memory.register(&queue, 10).await.unwrap();
                self.same(engine, memory)
            }
            Step::Forget(queue, ticks) => {
                let queue = queue_name(*queue);
                // Between two ticks: whether that very millisecond counts is not promised.
                let since = self.memory.now().millis() + values::TICK / 2;
                let since = Timestamp::from_millis(since - u64::from(*ticks) * values::TICK);
                self.calls.push(format!("forget {queue} unused since {since}"));
                let engine = self.engine.storage().forget(&queue, since).await.unwrap();
                let memory = self.memory.forget(&queue, since).await.unwrap();
                self.same(engine, memory)
            }
            Step::Pass(_) | Step::Reopen => Ok(()),
        }
    }
}

fn queue_name(queue: u8) -> QueueName {
    name(&format!("queue-{queue}"))
}

async fn compare<E: TestEngine>(steps: &[Step]) -> Result<(), TestCaseError> {
    let clock = manual_clock();
    let memory = MemoryStorage::new(clock.clone());
    let start = memory.now();
    let mut pair = Pair { engine: E::open(clock.clone()).await, memory, start, calls: Vec::new() };
    let reopens = steps.iter().any(|step| matches!(step, Step::Reopen));
    let keep_outcomes = E::KEEPS_OUTCOMES || !reopens;
    // The last queue begins without a registration.
    for queue in 1..values::QUEUES {
        pair.step(&Step::Register(queue - 1), keep_outcomes).await?;
    }
    for step in steps {
        match step {
            Step::Pass(ticks) => {
                pair.calls.push(format!("{ticks} ticks pass"));
                clock.advance(Duration::from_millis(u64::from(*ticks) * values::TICK));
            }
            Step::Reopen => {
                pair.calls.push("reopen".into());
                pair.engine = pair.engine.reopen().await;
            }
            step => pair.step(step, keep_outcomes).await?,
        }
        pair.same_data().await?;
    }
    Ok(())
}

fn compare_many<E: TestEngine>() {
    let config = Config { cases: E::CASES, failure_persistence: None, ..Config::default() };
    let steps = prop::collection::vec(step(), 1..60);
    let run = TestRunner::new(config).run(&steps, |steps| fixture::runtime().block_on(compare::<E>(&steps)));
    if let Err(failure) = run {
        panic!("{failure}");
    }
}

#[test]
fn memory_answers_as_memory_does() {
    compare_many::<crate::engines::Memory>();
}

#[test]
fn sqlite_does_as_memory_does() {
    compare_many::<crate::sqlite::Sqlite>();
}

#[test]
fn redis_does_as_memory_does() {
    compare_many::<crate::on_redis::OnOne>();
}

#[test]
fn a_redis_cluster_does_as_memory_does() {
    compare_many::<crate::on_redis::OnCluster>();
}

#[test]
fn valkey_does_as_memory_does() {
    compare_many::<crate::on_redis::OnValkey>();
}
