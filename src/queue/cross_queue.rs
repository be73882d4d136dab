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
pub(super) use move_record::{Step, read_move};

use super::answers::scan;
use super::bulk;
use super::context::CallContext;
use super::encoding::Unknown;
use super::facts::Rounds;
use super::queues::all_queues;
use super::records::read_if;
use super::removal::{IdsAfter, LetterFacts, remove_letters};
use super::select::DeadEntry;
use super::state_changes::{Changes, Total};
use crate::domain::{QueueName, Timestamp};
use crate::queue::{REPLY_KEPT, SkipReason};
use crate::store::Result;
use crate::store::storage::{Applied, Entry, Fence, Index, Reads, RecordKey, Storage, Table};
use move_record::{MoveRecord, moves};
use std::time::Duration;

/// A move that was begun so long ago is completed by the sweep.
const COMPLETED_AFTER: Duration = Duration::from_secs(10);
/// Jobs of one batch: each may have 102 records of its history.
pub(super) const JOBS_MAX: usize = 50;

/// Begins the moves of these.
pub(super) fn begin(
    cx: &mut CallContext<'_>, source: &QueueName, letters: &[DeadEntry],
    (to, keep_attempts, reason): (&QueueName, bool, &str), now: Timestamp, changes: &mut Changes,
) {
    let due = now.after(COMPLETED_AFTER);
    for letter in letters {
        changes.fence(Fence::At(letter.index, letter.entry()));
        changes.fence(Fence::Absent(Table::Move, RecordKey::Number(letter.number)));
        let step = Step::Begun { keep_attempts, index: letter.index, death: letter.death };
        let (other, reason, unknown) = (to.clone(), reason.to_owned(), Unknown::default());
        MoveRecord { other, due, step, reason, unknown }.put(letter.number, None, changes);
    }
    if !letters.is_empty() {
        cx.due(source, due);
    }
}

/// What the source does about arrivals, for a batch: what has arrived is removed, what could not is a dead letter again.
/// For each whether it has left, or why not.
pub(super) async fn leave<S: Reads>(
    store: &mut S, cx: &mut CallContext<'_>, source: &QueueName, arrivals: &[Arrival], changes: &mut Changes,
) -> Result<Vec<Result<(), SkipReason>>> {
    let numbers: Vec<_> = arrivals.iter().map(|it| it.number).collect();
    let records = moves(store, source, &numbers).await?;
    let (mut letters, mut leaving) = (Vec::new(), Vec::new());
    let mut left = Vec::with_capacity(arrivals.len());
    for (arrival, record) in arrivals.iter().zip(records) {
        // A move that another call has begun since is that call's.
        let record = record.filter(|(record, bytes)| {
            !matches!(record.step, Step::Begun { .. }) || arrival.begun.as_ref() == Some(bytes)
        });
        let number = arrival.number;
        left.push(match (record.map(|(record, bytes)| (record.step, record, bytes)), arrival.refused) {
            (Some((Step::Left, ..)), _) => Ok(()),
            (Some((Step::Begun { .. }, before, bytes)), Some(reason)) => {
                changes.fence(Fence::Is(Table::Move, RecordKey::Number(number), bytes));
                before.delete(number, changes);
                Err(reason)
            }
            (Some((Step::Begun { index, death, .. }, before, bytes)), None) => {
                letters.push(DeadEntry { index, death, number });
                leaving.push((before, bytes));
                Ok(())
            }
            // Another server has given it up.
            (_, refused) => Err(refused.unwrap_or(SkipReason::JobNotFound)),
        });
    }
    let due = store.now().after(cx.queue(source).max_run_time.max(REPLY_KEPT));
    let mut facts = LetterFacts::read(store, source, &letters).await?;
    for (facts, (before, bytes)) in facts.iter_mut().zip(leaving) {
        facts.moving = Some(bytes);
        let gone = MoveRecord { due, step: Step::Left, reason: String::new(), ..before.clone() };
        gone.put(facts.letter.number, Some(&before), changes);
        changes.add(Total::Requeued, 1);
        changes.add(Total::MovedOut, 1);
    }
    let letters: Vec<_> = facts.iter().collect();
    remove_letters(store, source, &letters, IdsAfter::Free, changes).await?;
    Ok(left)
}

/// Moves of this queue whose records are due in `Expires`, with their entries: those that were interrupted are completed, and the
/// records of those that are long over are removed.
pub(crate) async fn finish_moves<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, due: &[(u64, Entry)],
) -> Result<()> {
    let numbers: Vec<_> = due.iter().map(|(number, _)| *number).collect();
    let records = moves(store, queue, &numbers).await?;
    for ((number, entry), record) in due.iter().zip(records) {
        let (number, key) = (*number, RecordKey::Number(*number));
        let mut changes = Changes::default();
        if let Some((record, bytes)) = record {
            match record.step {
                // Not yet: its entry was written again after it was read.
                _ if record.entry(number) != *entry => continue,
                Step::Begun { .. } => {
                    complete(store, cx, queue, number).await?;
                    continue;
                }
                // As long as the source has not noticed, the mark keeps the job from arriving twice.
                Step::Arrived => {
                    if let [Some((MoveRecord { step: Step::Begun { .. }, .. }, _))] =
                        moves(store, &record.other, &[number]).await?[..]
                    {
                        complete(store, cx, &record.other, number).await?;
                    }
                }
                Step::Left | Step::Refused(_) => {}
            }
            changes.fence(Fence::Is(Table::Move, key.clone(), bytes));
        }
        changes.fence(Fence::At(Index::Expires, entry.clone()));
        changes.remove(Index::Expires, entry.clone());
        // A damaged one goes as well.
        changes.delete(Table::Move, key);
        // Where a fence fails, the record is another one by now, with a time of its own.
        store.apply(queue, &changes.batch()).await?;
    }
    Ok(())
}

/// One move that was interrupted.
async fn complete<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, source: &QueueName, number: u64) -> Result<()> {
    let arrivals = arrive_all(store, cx, source, &[number]).await?;
    let mut rounds = Rounds::default();
    loop {
        rounds.next()?;
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
}

/// How many jobs are on their way from one queue to another.
pub(crate) async fn moving<S: Reads>(store: &mut S) -> Result<u64> {
    let mut count = 0;
    for queue in all_queues(store).await? {
        let each = |_, record| {
            let moved = read_if(Some(&record), MoveRecord::read)?;
            count += u64::from(matches!(moved, Some(MoveRecord { step: Step::Begun { .. }, .. })));
            Ok(())
        };
        scan(store, &queue, Table::Move, each).await?;
    }
    Ok(count)
}
