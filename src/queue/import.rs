//! Import: jobs of another store arrive with all that they have been through, under their own ids and new numbers.

mod plan;

use super::answers::together;
use super::breaker_keys::KeyGroups;
use super::breakers::{put_breakers, register, set_pause};
use super::context::CallContext;
use super::facts::{QueueFacts, Rounds};
use super::refusal;
use crate::domain::{Breaker, QueueName};
use crate::queue::{Import, Imported, JobView, QueueHolds, sizes};
use crate::store::Result;
use crate::store::storage::{Applied, NO_GROUP, Storage};
use plan::{ImportFacts, Plan};

/// Jobs and bytes of one batch, about: while an engine applies it, it does nothing else.
const BATCH_JOBS: usize = 100;
const BATCH_BYTES: usize = 1 << 20;

/// Takes over what holds the queue back, then adds the jobs, each by itself; makes the queue if need be. A job that was leased
/// arrives READY at its old position, with nothing counted but the delivery.
pub(crate) async fn import<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, import: Import,
) -> refusal::Result<Vec<Imported>> {
    let Import { queue, holds, jobs } = import;
    register(store, cx, &queue).await?;
    import_holds(store, cx, &queue, &holds).await?;
    let mut taken = Vec::with_capacity(jobs.len());
    let mut left = &jobs[..];
    while !left.is_empty() {
        let (chunk, rest) = left.split_at(together(left, BATCH_JOBS, BATCH_BYTES, sizes::of_view));
        taken.extend(add_chunk(store, cx, &queue, chunk).await?);
        left = rest;
    }
    Ok(taken)
}

// ---- what holds the queue back ----

/// The queue is held back as it was there. Where nothing held it back there, it stays as it is here.
async fn import_holds<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, holds: &QueueHolds,
) -> Result<()> {
    if *holds == QueueHolds::default() {
        return Ok(());
    }
    let mut rounds = Rounds::default();
    loop {
        rounds.next()?;
        let Some(before) = QueueFacts::read(store, queue).await? else {
            // It was forgotten in this moment; where there is no room for it, adding the jobs says so.
            store.register(queue, cx.limits.queues).await?;
            continue;
        };
        if holds.pause.is_some() && holds.pause != before.queue.pause {
            set_pause(store, cx, queue, &before, holds.pause.clone()).await?;
            continue;
        }
        let mut after = before.clone();
        take_over(&mut after.breaker, &holds.work);
        take_over(&mut after.queue.dead_letters, &holds.dead_letters);
        if put_breakers(store, cx, queue, &before, after).await?.is_some() {
            break;
        }
    }
    for there in &holds.keys {
        let mut rounds = Rounds::default();
        loop {
            rounds.next()?;
            let keys = KeyGroups::of(store, cx, queue, [there.key.as_str()].into_iter()).await?.unwrap_or_default();
            let group = keys.group(Some(&there.key));
            let Some(before) = QueueFacts::read_group(store, queue, group).await? else { return Ok(()) };
            let mut after = before.clone();
            take_over(&mut after.breaker, there);
            // Where there is no room for the key, its jobs are in no group either.
            if group == NO_GROUP || put_breakers(store, cx, queue, &before, after).await?.is_some() {
                break;
            }
        }
    }
    Ok(())
}

/// A breaker that comes from elsewhere, in the place of this one. Transitions never go back: deliveries remember them.
fn take_over(here: &mut Breaker, from_there: &Breaker) {
    if *from_there != Breaker::default() {
        let transitions = here.transitions.max(from_there.transitions);
        *here = Breaker { transitions, ..from_there.clone() };
    }
}

// ---- jobs ----

/// Jobs of one batch.
async fn add_chunk<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, jobs: &[JobView],
) -> refusal::Result<Vec<Imported>> {
    let settings = cx.queue(queue);
    let mut rounds = Rounds::default();
    loop {
        rounds.next()?;
        let Some(facts) = ImportFacts::read(store, queue, jobs).await? else {
            register(store, cx, queue).await?;
            continue;
        };
        // Those of an earlier round are not given again.
        let numbers = store.numbers(jobs.len() as u64).await?;
        // Of those that wait.
        let waiting = jobs.iter().filter(|job| job.death.is_none() && job.completed_at.is_none());
        let keys = || waiting.clone().filter_map(JobView::breaker_key);
        let groups = KeyGroups::of(store, cx, queue, keys()).await?.unwrap_or_default();
        let (now, mark) = (store.now(), cx.events.len());
        let mut plan = Plan::new(facts, queue, &settings, &groups, now);
        let taken = jobs.iter().zip(numbers).map(|(job, number)| plan.add(job, number, cx));
        let taken = taken.collect::<Result<Vec<_>>>()?;
        if plan.changes.is_empty() {
            return Ok(taken);
        }
        groups.enter(keys(), &mut plan.changes);
        let made_ready = plan.changes.made_ready;
        match store.apply(queue, &plan.changes.batch()).await? {
            Applied::Done(done) => {
                cx.applied();
                if made_ready {
                    QueueFacts::tell_ready(store, queue, cx, done.ready, now).await?;
                }
                return Ok(taken);
            }
            // An id, a key or a number was taken meanwhile, or the queue was forgotten.
            Applied::Changed(_) | Applied::NoQueue => cx.events.truncate(mark),
        }
    }
}
