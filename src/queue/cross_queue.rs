//! Requeue to another queue: three batches, each of which any server may repeat.
//!
//! 1. *begin*, at the source: the dead letter is bound for the target, and nothing else may be done to it.
//! 2. *arrive*, at the target: the job is ready there, under a new number, and a mark says so.
//! 3. *leave*, at the source: the dead letter is gone, and a record says where to, so that a late Ack is refused.
//!
//! Until it has arrived the job is at the source, from then on at the target. Where the target has its id or its key already, a
//! mark says that, so that no server that comes later lets it arrive, and the source keeps it. A mark stays longer than any server
//! takes between two steps, and is not removed before the source is done.

mod arrive;
mod move_record;

pub(super) use arrive::{Arrival, arrive_all};
pub(crate) use move_record::is_moved_away;

use super::{
    bulk::{self, Decision, Fate, Known, Part},
    context::{CallContext, overtaken},
    facts::JobFacts,
    records::{self, DeadRecord},
    removal::{Belongings, LetterFacts, Owner},
    requeue::candidates,
    state_changes::{Changes, Total},
};
use crate::{
    domain::{ids::QueueName, job::DeadReason},
    store::{
        REPLY_KEPT, SkipReason, StoreError,
        storage::{Applied, Entry, Fence, Found, Index, Read, Reads, RecordKey, Storage, Table},
    },
};
use arrive::TargetFacts;
use bytes::Bytes;
use move_record::{Begun, MoveRecord, moves};
use std::time::Duration;

/// A move that was begun so long ago is completed by the sweep.
const COMPLETED_AFTER: Duration = Duration::from_secs(10);
/// Jobs of one batch: each may have 52 records of its history.
const JOBS_MAX: usize = 50;
/// How often others may overtake a batch before the call gives up.
const ROUNDS_MAX: usize = 50;

// ---- begin ----

/// Begins the moves of as many as one batch takes.
pub(super) async fn decide<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    part: Part<'_>,
    to: &QueueName,
    keep_attempts: bool,
    known: &mut Known,
    changes: &mut Changes,
) -> Result<Vec<Decision>, StoreError> {
    let Part { queue, items, dry_run, budget } = part;
    let items = &items[..items.len().min(JOBS_MAX)];
    let letters: Vec<_> = items.iter().filter_map(|item| item.letter).collect();
    let facts = LetterFacts::read(store, queue, &letters).await?;
    let candidates = candidates(store, queue, items, &facts, budget).await?;
    let jobs: Vec<_> = candidates
        .iter()
        .map(|it| it.as_ref().map_or((0, None), |it| (it.facts.letter.number, it.spec.as_ref())))
        .collect();
    let target = TargetFacts::read(store, to, &jobs).await?;
    let due = store.now().after(COMPLETED_AFTER);
    let mut begun = false;
    let mut decisions = Vec::with_capacity(candidates.len());
    for (at, (item, candidate)) in items.iter().zip(&candidates).enumerate() {
        let Some(candidate) = candidate else {
            decisions.push(item.missing());
            continue;
        };
        let letter = &candidate.facts.letter;
        let refusal = match (&candidate.spec, &target.marks[at]) {
            _ if known.gone.contains(&letter.number) => Some(SkipReason::JobNotFound),
            (None, _) => Some(SkipReason::DataCorrupt),
            (_, Some((MoveRecord::Refused { reason, .. }, _))) => Some(*reason),
            (Some(spec), _) => target.refusal(at, spec, &known.keys),
        };
        if let Some(reason) = refusal {
            decisions.push(candidate.skipped(reason));
            continue;
        }
        known.gone.insert(letter.number);
        known.keys.extend(candidate.spec.as_ref().and_then(|spec| spec.key.clone()));
        decisions.push(candidate.decision(Fate::Done));
        if dry_run {
            continue;
        }
        begun = true;
        changes.fence(Fence::At(letter.index, letter.entry()));
        changes.fence(Fence::Absent(Table::Move, RecordKey::Number(letter.number)));
        let begun = Begun {
            to: to.clone(),
            keep_attempts,
            overflow: letter.index == Index::Overflow,
            death: letter.death,
            due,
        };
        MoveRecord::Begun(begun).put(letter.number, None, changes);
    }
    if begun {
        cx.due(queue, due);
    }
    Ok(decisions)
}

// ---- leave ----

/// What the source does about arrivals, for a batch: what has arrived is removed, what could not is a dead letter again.
/// For each whether it has left, or why not.
pub(super) async fn leave<S: Reads>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    source: &QueueName,
    arrivals: &[Arrival],
    changes: &mut Changes,
) -> Result<Vec<Result<(), SkipReason>>, StoreError> {
    let records = moves(store, source, arrivals.iter().map(|it| it.number)).await?;
    let mut leaving = Vec::new();
    let mut left = Vec::with_capacity(arrivals.len());
    for (arrival, record) in arrivals.iter().zip(records) {
        // A move that another call has begun since is that call's.
        let record = record.filter(|(record, bytes)| {
            !matches!(record, MoveRecord::Begun(_)) || arrival.begun.as_ref() == Some(bytes)
        });
        left.push(match (record, arrival.refused) {
            (Some((MoveRecord::Left { .. }, _)), _) => Ok(()),
            (Some((before @ MoveRecord::Begun(_), bytes)), Some(reason)) => {
                let key = RecordKey::Number(arrival.number);
                changes.fence(Fence::Is(Table::Move, key, bytes));
                before.delete(arrival.number, changes);
                Err(reason)
            }
            (Some((MoveRecord::Begun(begun), bytes)), None) => {
                leaving.push((arrival.number, begun, bytes));
                Ok(())
            }
            // Another server has given it up.
            (_, refused) => Err(refused.unwrap_or(SkipReason::JobNotFound)),
        });
    }
    let settings = cx.queue(source);
    let until = store.now().after(settings.max_run_time.max(REPLY_KEPT));
    let tables = [Table::Job, Table::History, Table::Dead];
    let reads: Vec<_> = leaving
        .iter()
        .flat_map(|(number, ..)| {
            tables.map(|table| Read::Record(table, RecordKey::Number(*number)))
        })
        .collect();
    if reads.is_empty() {
        return Ok(left);
    }
    let mut found = store.read(source, &reads).await?.unwrap_or_default().into_iter();
    let mut next = || found.next().and_then(Found::record);
    let mut jobs: Vec<(JobFacts, Option<Bytes>, Option<DeadRecord>)> = Vec::new();
    for (number, ..) in &leaving {
        let (job, history, dead) = (next(), next(), next());
        let facts = JobFacts::of(*number, job.as_ref(), history.as_ref())?;
        let dead = dead.map(|it| records::readable(records::read_dead(&it))).transpose()?;
        jobs.push((facts, job, dead.flatten().map(|(_, record)| record)));
    }
    let owners: Vec<_> = jobs
        .iter()
        .map(|(job, record, dead)| {
            let damaged = dead.as_ref().is_none_or(|dead| dead.reason == DeadReason::Corrupt);
            Owner { job, record: record.as_ref(), damaged, has_key: true }
        })
        .collect();
    let belongings = Belongings::find(store, source, &owners).await?;
    for (((number, begun, bytes), (_, _, dead)), belongings) in
        leaving.into_iter().zip(&jobs).zip(belongings)
    {
        changes.fence(Fence::Is(Table::Move, RecordKey::Number(number), bytes));
        changes.leave_dead(&begun.letter(number), dead.as_ref());
        belongings.remove(changes);
        let gone = MoveRecord::Left { to: begun.to.clone(), until };
        gone.put(number, Some(&MoveRecord::Begun(begun)), changes);
        changes.add(Total::Requeued, 1);
        changes.add(Total::MovedOut, 1);
    }
    Ok(left)
}

// ---- the sweep ----

/// Moves of this queue whose records are due in `Expires`, with their entries: those that were interrupted are completed, and the
/// records of those that are long over are removed.
pub(crate) async fn finish_moves<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    due: &[(u64, Entry)],
) -> Result<(), StoreError> {
    if due.is_empty() {
        return Ok(());
    }
    let records = moves(store, queue, due.iter().map(|(number, _)| *number)).await?;
    let mut over = Vec::new();
    for ((number, entry), record) in due.iter().zip(records) {
        let number = *number;
        match &record {
            // Not yet: its entry was written again after it was read.
            Some((record, _)) if record.entry(number) != *entry => continue,
            Some((MoveRecord::Begun(_), _)) => {
                complete(store, cx, queue, number).await?;
                continue;
            }
            // As long as the source has not noticed, the mark keeps the job from arriving twice.
            Some((MoveRecord::Arrived { from, .. }, _)) => {
                let at_source = moves(store, from, std::iter::once(number)).await?;
                if let Some(Some((MoveRecord::Begun(_), _))) = at_source.first() {
                    complete(store, cx, from, number).await?;
                }
            }
            _ => {}
        }
        over.push((number, entry, record));
    }
    for (number, entry, record) in over {
        let key = RecordKey::Number(number);
        let mut changes = Changes::default();
        changes.fence(Fence::At(Index::Expires, entry.clone()));
        if let Some((_, bytes)) = record {
            changes.fence(Fence::Is(Table::Move, key.clone(), bytes));
        }
        changes.remove(Index::Expires, entry.clone());
        // A damaged one goes as well.
        changes.delete(Table::Move, key);
        // Where a fence fails, the record is another one by now, with a time of its own.
        store.apply(queue, &changes.batch()).await?;
    }
    Ok(())
}

/// One move that was interrupted.
async fn complete<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    source: &QueueName,
    number: u64,
) -> Result<(), StoreError> {
    let arrivals = arrive_all(store, cx, source, &[number]).await?;
    for _ in 0..ROUNDS_MAX {
        let mut changes = Changes::default();
        leave(store, cx, source, &arrivals, &mut changes).await?;
        if changes.is_empty() {
            return Ok(());
        }
        match store.apply(source, &changes.batch()).await? {
            Applied::Done(_) => return bulk::make_room(store, cx, source).await,
            Applied::NoQueue => return Ok(()),
            Applied::Changed(_) => {}
        }
    }
    Err(overtaken())
}
