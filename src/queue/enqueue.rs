//! Enqueue: one batch for the jobs of a queue, without a read. Ids and keys that are taken are found by its fences.

mod earlier;
mod item;
mod replace;

use super::breaker_keys::KeyGroups;
use super::context::{CallContext, overtaken};
use super::facts::QueueFacts;
use super::refusal::Refusal;
use super::state_changes::{Changes, Total};
use crate::domain::{NewJob, QueueName, Sameness, State, Timestamp};
use crate::queue::{EnqueueOutcome, Enqueued};
use crate::store::Result;
use crate::store::storage::{Applied, Done, Fence, Index, Len, NO_GROUP, Storage, Table};
use item::{Chunk, Item};
use std::collections::HashMap;

/// Jobs and bytes of one batch: while an engine applies it, it does nothing else.
const BATCH_JOBS: usize = 100;
const BATCH_BYTES: usize = 1 << 20;
/// So often as one batch; from then on one batch for each job.
const JOINT_ROUNDS: usize = 2;
/// How often others may overtake one job before the call gives up.
const ROUNDS_MAX: usize = 50;

/// What does not count against the depth limit.
const NOT_IN_DEPTH: [Len; 4] =
    [Len::Index(Index::Dead), Len::Index(Index::Overflow), Len::Index(Index::Completed), Len::Index(Index::Cancelled)];

type Answer = Result<Enqueued, Refusal>;

/// A job on its way in. Made before a call is handed to the writer, which has other things to do than hashing bodies.
#[derive(Clone, Debug)]
pub struct Incoming {
    job: NewJob,
    /// Where it has an own id or a key.
    sameness: Option<Sameness>,
}

impl Incoming {
    pub fn new(job: NewJob) -> Self {
        let named = job.id.is_some() || job.key.is_some();
        let sameness = named.then(|| job.sameness());
        Self { job, sameness }
    }

    /// About what it takes of memory and disk.
    pub fn bytes(&self) -> usize {
        self.job.bytes()
    }
}

/// Adds jobs; each is added or refused by itself. Answers are in the order of the jobs.
pub(crate) async fn enqueue<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, jobs: Vec<Incoming>,
) -> Result<Vec<Answer>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    // Numbers follow the order of the call, whatever the queue: so do the ids that are made of them.
    let numbers = store.numbers(jobs.len() as u64).await?;
    let now = store.now();
    let groups = by_queue(&jobs);
    let mut answers: Vec<Option<Answer>> = Vec::new();
    answers.resize_with(jobs.len(), || None);
    let mut jobs: Vec<Option<Incoming>> = jobs.into_iter().map(Some).collect();
    for (queue, places) in groups {
        let limit = cx.settings.queue(&queue).max_depth;
        let mut adding = Adding { store, cx, queue, limit, now, answers: &mut answers };
        let mut chunk = Chunk::default();
        for at in places {
            let Some(incoming) = jobs[at].take() else { continue };
            if chunk.is_full(&incoming) {
                adding.add_chunk(std::mem::take(&mut chunk)).await?;
            }
            let number = numbers.start + at as u64;
            chunk.push(Item::new(at, number, incoming, now, adding.cx), &numbers);
        }
        adding.add_chunk(chunk).await?;
    }
    answers.into_iter().map(|answer| answer.ok_or_else(overtaken)).collect()
}

/// The places of each queue's jobs, in the order in which the queues first come up.
fn by_queue(jobs: &[Incoming]) -> Vec<(QueueName, Vec<usize>)> {
    let mut groups: Vec<(QueueName, Vec<usize>)> = Vec::new();
    let mut known: HashMap<QueueName, usize> = HashMap::new();
    let mut last = 0;
    for (at, Incoming { job, .. }) in jobs.iter().enumerate() {
        if groups.get(last).is_none_or(|(queue, _)| *queue != job.queue) {
            last = *known.entry(job.queue.clone()).or_insert(groups.len());
            if last == groups.len() {
                groups.push((job.queue.clone(), Vec::with_capacity(jobs.len() - at)));
            }
        }
        groups[last].1.push(at);
    }
    groups
}

// ---- the jobs of one queue ----

struct Adding<'c, 'a, S> {
    store: &'c mut S,
    cx: &'c mut CallContext<'a>,
    queue: QueueName,
    limit: Option<u64>,
    now: Timestamp,
    answers: &'c mut [Option<Answer>],
}

impl<S: Storage> Adding<'_, '_, S> {
    async fn add_chunk(&mut self, chunk: Chunk) -> Result<()> {
        let Chunk { items, again, apart, .. } = chunk;
        self.add_all(items, apart).await?;
        for (at, other) in again {
            let answer = self.answers[other].clone();
            self.answers[at] = answer.map(|it| it.map(|first| Enqueued { outcome: EnqueueOutcome::Existing, ..first }));
        }
        Ok(())
    }

    async fn add_all(&mut self, items: Vec<Item>, apart: Vec<Item>) -> Result<()> {
        let left = self.add(items, JOINT_ROUNDS).await?;
        for item in left.into_iter().chain(apart) {
            let left = self.add(vec![item], ROUNDS_MAX).await?;
            if !left.is_empty() {
                return Err(overtaken());
            }
        }
        Ok(())
    }

    /// Adds them in one batch. Those that are not answered after so many rounds come back.
    async fn add(&mut self, mut items: Vec<Item>, rounds: usize) -> Result<Vec<Item>> {
        for _ in 0..rounds {
            if items.is_empty() {
                break;
            }
            let keys = items.iter().filter_map(|item| item.spec.breaker_key.as_deref());
            let Some(keys) = KeyGroups::of(self.store, self.cx, &self.queue, keys).await? else {
                if let Some(refused) = self.register().await? {
                    return Ok(self.refuse(items, &refused));
                }
                continue;
            };
            items.iter_mut().for_each(|item| item.set_group(keys.group(item.spec.breaker_key.as_deref())));
            let (changes, fences) = self.changes(&items, &keys);
            let made_ready = changes.made_ready;
            let batch = changes.batch();
            match self.store.apply(&self.queue, &batch).await? {
                Applied::Done(done) => {
                    self.cx.applied();
                    self.announce(&items, &done, made_ready).await?;
                    for item in items {
                        self.answers[item.at] = Some(item.added());
                    }
                    return Ok(Vec::new());
                }
                Applied::Changed(failed) => {
                    items = self.resolve(items, &batch, &fences, failed).await?;
                }
                Applied::NoQueue => {
                    if let Some(refused) = self.register().await? {
                        return Ok(self.refuse(items, &refused));
                    }
                }
            }
        }
        Ok(items)
    }

    /// Makes the queue, or says why not.
    async fn register(&mut self) -> Result<Option<Refusal>> {
        self.cx.memory.forget(&self.queue);
        let limit = self.cx.limits.queues;
        Ok(match self.cx.make_queue(&self.queue, self.now) {
            Ok(()) if self.store.register(&self.queue, limit).await? => None,
            Ok(()) => Some(Refusal::TooManyQueues { limit }),
            Err(refused) => Some(refused),
        })
    }

    /// None of them is left.
    fn refuse(&mut self, items: Vec<Item>, refused: &Refusal) -> Vec<Item> {
        for item in items {
            self.answers[item.at] = Some(Err(refused.clone()));
        }
        Vec::new()
    }

    /// And where the fences of each item begin; those of all together stand behind them.
    fn changes(&self, items: &[Item], keys: &KeyGroups) -> (Changes, Vec<usize>) {
        let mut changes = Changes::with_capacity(items.len() + 1, 2 * items.len() + 1);
        let mut fences = Vec::with_capacity(items.len());
        for item in items {
            fences.push(changes.fences());
            item.write(&mut changes, self.now);
        }
        if let Some(limit) = self.limit {
            let (of, minus) = (Len::Table(Table::Job), &NOT_IN_DEPTH[..]);
            changes.fence(Fence::Room { of, minus, add: items.len() as u64, limit });
        }
        keys.enter(items.iter().filter_map(|item| item.spec.breaker_key.as_deref()), &mut changes);
        changes.add(Total::Enqueued, items.len() as u64);
        (changes, fences)
    }

    async fn announce(&mut self, items: &[Item], done: &Done, made_ready: bool) -> Result<()> {
        if made_ready {
            // Where jobs of other keys are held, they are not news; and jobs of a held key may be wanted as probes.
            let keyed = items.iter().any(|item| item.group != NO_GROUP);
            let ready = if keyed { items.len() as u64 } else { done.ready };
            QueueFacts::tell_ready(self.store, &self.queue, self.cx, ready, self.now).await?;
        }
        let scheduled = items.iter().filter(|item| item.state == State::Scheduled);
        if let Some(at) = scheduled.map(|item| item.spec.run_at).min() {
            self.cx.job_due(&self.queue, at);
        }
        if let Some(at) = items.iter().filter_map(|item| item.spec.expires_at).min() {
            self.cx.due(&self.queue, at);
        }
        Ok(())
    }
}
