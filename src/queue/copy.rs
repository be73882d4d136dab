//! Import: jobs of another store arrive with all that they have been through, under their own ids and new numbers.

#[cfg(test)]
pub(super) mod fixture;
mod plan;

use super::{
    breakers::put_breaker,
    context::{CallContext, after_some, epoch, overtaken},
    facts::QueueFacts,
    pause,
    records::{self, OutcomesRecord},
    state_changes::Changes,
};
use crate::{
    domain::{breaker::Guarded as BreakerKind, ids::QueueName},
    store::{
        JobView, Newcomers, Refused, Standing, StoreError, TakenIn, sizes,
        storage::{Applied, NO_GROUP, Publish, RecordKey, Storage, Table},
        take_over,
    },
};
use plan::{ImportFacts, Plan};
use std::sync::Arc;

/// Jobs and bytes of one batch, about: while an engine applies it, it does nothing else.
const BATCH_JOBS: usize = 100;
const BATCH_BYTES: usize = 1 << 20;
/// How often others may overtake a batch before the call gives up.
const ROUNDS_MAX: usize = 50;

/// Takes over what holds the queue back, then adds the jobs, each by itself; makes the queue if need be. A job that was leased
/// arrives READY at its old position, with nothing counted but the delivery.
pub(crate) async fn import<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    newcomers: Newcomers,
) -> Result<Result<Vec<TakenIn>, Refused>, StoreError> {
    let Newcomers { queue, standing, jobs } = newcomers;
    let limit = cx.limits.queues;
    if !store.register(&queue, limit).await? {
        return Ok(Err(Refused::TooManyQueues { limit }));
    }
    take_over_standing(store, cx, &queue, &standing).await?;
    let mut taken = Vec::with_capacity(jobs.len());
    let mut left = &jobs[..];
    while !left.is_empty() {
        let (chunk, rest) = left.split_at(chunk_length(left));
        let begun = !taken.is_empty();
        let added = add_chunk(store, cx, &queue, chunk).await;
        match added.map_err(|error| after_some(error, begun))? {
            Ok(added) => taken.extend(added),
            Err(refused) => return Ok(Err(refused)),
        }
        left = rest;
    }
    Ok(Ok(taken))
}

/// How many of the jobs are of one batch: at least one.
fn chunk_length(jobs: &[JobView]) -> usize {
    let mut bytes = 0;
    let fits = |job: &&JobView| {
        bytes += sizes::of_view(job);
        bytes <= BATCH_BYTES
    };
    jobs.iter().take(BATCH_JOBS).take_while(fits).count().max(1)
}

// ---- what holds the queue back ----

/// The queue is held back as it was there. Where nothing held it back there, it stays as it is here.
async fn take_over_standing<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    standing: &Standing,
) -> Result<(), StoreError> {
    if *standing == Standing::default() {
        return Ok(());
    }
    for _ in 0..ROUNDS_MAX {
        let Some(before) = QueueFacts::read(store, queue).await? else {
            // It was forgotten in this moment; where there is no room for it, adding the jobs says so.
            store.register(queue, cx.limits.queues).await?;
            continue;
        };
        if standing.pause.is_some() && standing.pause != before.queue.pause {
            pause::set(store, cx, queue, &before, standing.pause.clone()).await?;
            continue;
        }
        if take_over_breakers(store, cx, queue, &before, standing).await? {
            return Ok(());
        }
    }
    Err(overtaken())
}

/// False: the facts were old.
async fn take_over_breakers<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    before: &QueueFacts,
    standing: &Standing,
) -> Result<bool, StoreError> {
    let now = store.now();
    let mut after = before.clone();
    let mut changes = Changes::default();
    let work = take_over(&mut after.breaker, &standing.work);
    if work {
        changes.fence(before.version.fence(NO_GROUP));
        put_breaker(&mut changes, &mut after, cx);
        if after.breaker.transitions != before.breaker.transitions {
            let epoch = epoch(&after.breaker);
            let record = OutcomesRecord { epoch, ..OutcomesRecord::default() };
            changes.put(Table::Outcomes, RecordKey::Only, records::outcomes(&record));
        }
        changes.publish(Publish::Always);
    }
    let dead_letters = take_over(&mut after.queue.dead_letters, &standing.dead_letters);
    if dead_letters {
        changes.fence(before.queue_fence());
        let record = records::queue(&after.queue);
        changes.put(Table::Queue, RecordKey::Only, record.clone());
        after.queue_record = Some(record);
    }
    if changes.is_empty() {
        return Ok(true);
    }
    let Applied::Done(done) = store.apply(queue, &changes.batch()).await? else {
        return Ok(false);
    };
    if work {
        cx.breaker_moved(queue, BreakerKind::Work, &after.breaker, now);
        cx.available(queue, &after, done.ready, now);
        let settings = cx.queue(queue);
        if let Some(at) = after.breaker.probe_at(&settings.breaker, now) {
            cx.due(queue, at);
        }
    }
    if dead_letters {
        cx.breaker_moved(queue, BreakerKind::DeadLetters, &after.queue.dead_letters, now);
    }
    cx.memory.remember(queue, Arc::new(after));
    Ok(true)
}

// ---- jobs ----

/// Jobs of one batch.
async fn add_chunk<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    jobs: &[JobView],
) -> Result<Result<Vec<TakenIn>, Refused>, StoreError> {
    let settings = cx.queue(queue);
    for _ in 0..ROUNDS_MAX {
        let Some(facts) = ImportFacts::read(store, queue, jobs).await? else {
            let limit = cx.limits.queues;
            if !store.register(queue, limit).await? {
                return Ok(Err(Refused::TooManyQueues { limit }));
            }
            continue;
        };
        // Those of an earlier round are not given again.
        let numbers = store.numbers(jobs.len() as u64).await?;
        let (now, mark) = (store.now(), cx.events.len());
        let mut plan = Plan::new(facts, queue, &settings, now);
        let taken: Vec<_> =
            jobs.iter().zip(numbers).map(|(job, number)| plan.add(job, number, cx)).collect();
        if plan.changes.is_empty() {
            return Ok(Ok(taken));
        }
        let made_ready = plan.changes.made_ready;
        match store.apply(queue, &plan.changes.batch()).await? {
            Applied::Done(done) => {
                if made_ready && let Some(facts) = QueueFacts::remembered(store, queue, cx).await? {
                    cx.available(queue, &facts, done.ready, now);
                }
                return Ok(Ok(taken));
            }
            // An id, a key or a number was taken meanwhile, or the queue was forgotten.
            Applied::Changed(_) | Applied::NoQueue => cx.events.truncate(mark),
        }
    }
    Err(overtaken())
}

#[cfg(test)]
mod tests;
