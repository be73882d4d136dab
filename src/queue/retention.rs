//! Dead letters, and completed and cancelled jobs, whose retention is over are removed, oldest first, a bounded part at a time.

use super::answers::{ask, first_of, numbered};
use super::bulk;
use super::context::CallContext;
use super::facts::{JobFacts, Rounds};
use super::removal::{IdsAfter, LetterFacts, Removal, remove_jobs, remove_letters};
use super::select::{self, DeadEntry, read_dead};
use super::state_changes::{Changes, Total};
use crate::domain::{DeadPart, QueueName, QueueSettings, Timestamp};
use crate::queue::Deaths;
use crate::store::Result;
use crate::store::storage::{Applied, Entry, Fence, Index, RecordKey, Storage, Table};
use std::time::Duration;

/// What is over within so long after a removal waits for the next: jobs that came one by one need not go one by one.
const REMOVALS_APART: Duration = Duration::from_secs(1);

/// Of those that are kept until then, oldest first: how many are over, and when the first of the others is.
fn over(until: impl Iterator<Item = Timestamp>, now: Timestamp, most: usize) -> (usize, Option<Timestamp>) {
    let mut over = 0;
    for until in until {
        if until > now || over == most {
            return (over, Some(until));
        }
        over += 1;
    }
    (over, None)
}

/// What is to be removed: how many, the batch, and when the first of the others is over.
type Removing = (usize, Changes, Option<Timestamp>);

/// Of the jobs in `Dead` and `Overflow`, or of those in `Completed` or `Cancelled`: how many were removed, and when the next call has something
/// to do: now or earlier, if this one stopped at its bound.
pub(crate) async fn end_retention<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, settings: &QueueSettings, index: Index, most: usize,
) -> Result<(usize, Option<Timestamp>)> {
    let mut rounds = Rounds::default();
    loop {
        rounds.next()?;
        let now = store.now();
        let (count, changes, next) = match index {
            Index::Completed | Index::Cancelled => remove_over(store, queue, settings, index, now, most).await?,
            _ => remove_dead(store, queue, settings, now, most).await?,
        };
        if count == 0 {
            return Ok((0, next));
        }
        match store.apply(queue, &changes.batch()).await? {
            Applied::Done(_) => {
                if index == Index::Dead {
                    bulk::make_room(store, cx, queue).await?;
                }
                let later = now.after(REMOVALS_APART);
                return Ok((count, next.map(|next| if next > now { next.max(later) } else { next })));
            }
            Applied::NoQueue => return Ok((0, None)),
            Applied::Changed(_) => {}
        }
    }
}

/// DEAD → gone, after as long as the queue keeps them.
async fn remove_dead<S: Storage>(
    store: &mut S, queue: &QueueName, settings: &QueueSettings, now: Timestamp, most: usize,
) -> Result<Removing> {
    let mut changes = Changes::default();
    let Some(retention) = settings.dead_letters.retention else { return Ok((0, changes, None)) };
    let part = DeadPart { queue: queue.clone(), overflow_only: false };
    let all = Deaths { after: 0, up_to: u64::MAX };
    let (letters, _) = select::page(store, &part, all, most + 1).await?;
    let (mut some, mut next) = (0, None);
    // Mostly nothing is over: then no more than the first is read.
    for letters in [&letters[..letters.len().min(1)], &letters] {
        let died = died_at(store, queue, letters).await?;
        (some, next) = over(died.iter().map(|at| at.after(retention)), now, most);
        if some == 0 {
            return Ok((0, changes, next));
        }
    }
    let facts = LetterFacts::read(store, queue, &letters[..some]).await?;
    // One that is on its way to another queue is that move's, which is over soon.
    let gone: Vec<_> = facts.iter().filter(|facts| facts.is_free()).collect();
    if gone.len() < some {
        next = Some(next.unwrap_or(Timestamp::MAX).min(now.after(REMOVALS_APART)));
    }
    remove_letters(store, queue, &gone, IdsAfter::Held(now), &mut changes).await?;
    changes.add(Total::RetentionExpired, gone.len() as u64);
    Ok((gone.len(), changes, next))
}

/// When they died; a damaged record does not tell, and has been kept for long enough.
async fn died_at<S: Storage>(store: &mut S, queue: &QueueName, letters: &[DeadEntry]) -> Result<Vec<Timestamp>> {
    let reads: Vec<_> = letters.iter().map(|letter| numbered(Table::Dead, letter.number)).collect();
    let mut found = ask(store, queue, &reads).await?;
    let died = |_| Ok(read_dead(found.record().as_ref())?.map(|dead| dead.died_at).unwrap_or_default());
    letters.iter().map(died).collect()
}

/// COMPLETED or CANCELLED → gone. They have been counted already; their keys are held for as long as the keys' own retention says.
async fn remove_over<S: Storage>(
    store: &mut S, queue: &QueueName, settings: &QueueSettings, index: Index, now: Timestamp, most: usize,
) -> Result<Removing> {
    // Those of a queue that no longer keeps any have been kept for long enough.
    let retention = settings.completed_retention.unwrap_or_default();
    let entries = ask(store, queue, &[first_of(index, most + 1)]).await?.entries();
    let until = |entry: &Entry| Timestamp::from_millis(entry.score).after(retention);
    let (some, next) = over(entries.iter().map(until), now, most);
    let numbers: Vec<_> = entries[..some].iter().filter_map(|entry| entry.member.job()).collect();
    let reads: Vec<_> = numbers.iter().flat_map(|number| JobFacts::reads(*number)).collect();
    let mut found = ask(store, queue, &reads).await?;
    let (mut changes, mut jobs) = (Changes::default(), Vec::with_capacity(some));
    for (number, entry) in numbers.into_iter().zip(entries) {
        changes.fence(Fence::At(index, entry.clone()));
        changes.remove(index, entry);
        changes.delete(Table::Result, RecordKey::Number(number));
        let (job, history) = (found.record(), found.record());
        let facts = JobFacts::of(number, job.as_ref(), history.as_ref())?;
        jobs.push(Removal::new(&facts, job.as_ref(), false));
    }
    remove_jobs(store, queue, jobs, IdsAfter::Held(now), &mut changes).await?;
    Ok((some, changes, next))
}
