//! Dead letters and completed jobs whose retention is over are removed, oldest first, a bounded part at a time.

use super::{
    bulk,
    context::{CallContext, overtaken},
    facts::{JobFacts, range},
    purge, records,
    removal::{Belongings, LetterFacts, Owner},
    select::{self, DeadEntry},
    state_changes::{Changes, Total},
};
use crate::{
    domain::{ids::QueueName, settings::QueueSettings, time::Timestamp},
    store::{
        Deaths, StoreError,
        storage::{Applied, Entry, Fence, Found, Index, Read, RecordKey, Storage, Table},
    },
};
use std::time::Duration;

/// What is over within so long after a removal waits for the next: jobs that came one by one need not go one by one.
const REMOVALS_APART: Duration = Duration::from_secs(1);
/// How often others may overtake a batch before the call gives up.
const ROUNDS_MAX: usize = 10;

/// How many were removed, and when the next call has something to do: now or earlier, if this one stopped at its bound.
pub(crate) type Removed = (usize, Option<Timestamp>);

fn removed(count: usize, next: Option<Timestamp>, now: Timestamp) -> Removed {
    let later = now.after(REMOVALS_APART);
    let spread = |next: Timestamp| if next > now { next.max(later) } else { next };
    (count, if count > 0 { next.map(spread) } else { next })
}

/// Of those that are kept until then, oldest first: how many are over, and when the first of the others is.
fn over(
    until: impl Iterator<Item = Timestamp>,
    now: Timestamp,
    most: usize,
) -> (usize, Option<Timestamp>) {
    let mut over = 0;
    for until in until {
        if until > now || over == most {
            return (over, Some(until));
        }
        over += 1;
    }
    (over, None)
}

/// Dead letters that were kept for as long as their queue keeps them.
pub(crate) async fn end_dead_retention<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    settings: &QueueSettings,
    most: usize,
) -> Result<Removed, StoreError> {
    let Some(retention) = settings.dead_letters.retention else { return Ok((0, None)) };
    for _ in 0..ROUNDS_MAX {
        let now = store.now();
        let all = Deaths { after: 0, up_to: u64::MAX };
        let page = select::page(store, queue, false, all, most + 1).await?;
        let letters = page.unwrap_or_default();
        let Some(oldest) = letters.first() else { return Ok((0, None)) };
        // Mostly nothing is over: then the others need not be read.
        let first = died_at(store, queue, std::slice::from_ref(oldest)).await?;
        let (some, next) = over(first.iter().map(|at| at.after(retention)), now, most);
        if some == 0 {
            return Ok(removed(0, next, now));
        }
        let died = died_at(store, queue, &letters).await?;
        let (some, next) = over(died.iter().map(|at| at.after(retention)), now, most);
        let facts = LetterFacts::read(store, queue, &letters[..some]).await?;
        // One that is on its way to another queue is that move's, which is over soon.
        let gone: Vec<_> = facts.iter().filter(|facts| facts.is_there).collect();
        let count = gone.len();
        let next = if count < some {
            Some(next.unwrap_or(Timestamp::MAX).min(now.after(REMOVALS_APART)))
        } else {
            next
        };
        if count == 0 {
            return Ok(removed(0, next, now));
        }
        let mut changes = Changes::default();
        purge::remove(store, queue, &gone, &mut changes).await?;
        changes.add(Total::RetentionExpired, count as u64);
        match store.apply(queue, &changes.batch()).await? {
            Applied::Done(_) => {
                bulk::make_room(store, cx, queue).await?;
                return Ok(removed(count, next, now));
            }
            Applied::NoQueue => return Ok((0, None)),
            Applied::Changed(_) => {}
        }
    }
    Err(overtaken())
}

/// When they died; a damaged record does not tell, and has been kept for long enough.
async fn died_at<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    letters: &[DeadEntry],
) -> Result<Vec<Timestamp>, StoreError> {
    let read = |letter: &DeadEntry| Read::Record(Table::Dead, RecordKey::Number(letter.number));
    let reads: Vec<_> = letters.iter().map(read).collect();
    let found = store.read(queue, &reads).await?.unwrap_or_default();
    let mut died = Vec::with_capacity(letters.len());
    for found in found {
        let record = found.record();
        let dead = record.map(|it| records::readable(records::read_dead(&it))).transpose()?;
        died.push(dead.flatten().map(|(_, dead)| dead.died_at).unwrap_or_default());
    }
    Ok(died)
}

/// The same of completed jobs, which have been counted already. Their keys are held for as long as the keys' own retention says.
pub(crate) async fn end_completed_retention<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    settings: &QueueSettings,
    most: usize,
) -> Result<Removed, StoreError> {
    // Those of a queue that no longer keeps any have been kept for long enough.
    let retention = settings.completed_retention.unwrap_or_default();
    for _ in 0..ROUNDS_MAX {
        let now = store.now();
        let range = range(Index::Completed, None, most + 1);
        let mut found = store.read(queue, &[range]).await?.unwrap_or_default();
        let entries = found.pop().map(Found::entries).unwrap_or_default();
        let until = |entry: &Entry| Timestamp::from_millis(entry.score).after(retention);
        let (some, next) = over(entries.iter().map(until), now, most);
        if some == 0 {
            return Ok(removed(0, next, now));
        }
        let entries = &entries[..some];
        let changes = remove_completed(store, queue, entries).await?;
        match store.apply(queue, &changes.batch()).await? {
            Applied::Done(_) => return Ok(removed(some, next, now)),
            Applied::NoQueue => return Ok((0, None)),
            Applied::Changed(_) => {}
        }
    }
    Err(overtaken())
}

/// COMPLETED → gone.
async fn remove_completed<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    entries: &[Entry],
) -> Result<Changes, StoreError> {
    let numbers: Vec<_> = entries.iter().filter_map(|entry| entry.member.job()).collect();
    let reads: Vec<_> = numbers.iter().flat_map(|number| JobFacts::reads(*number)).collect();
    let mut found = store.read(queue, &reads).await?.unwrap_or_default().into_iter();
    let mut next = || found.next().and_then(Found::record);
    let mut jobs = Vec::with_capacity(numbers.len());
    for number in &numbers {
        let (job, history) = (next(), next());
        jobs.push((JobFacts::of(*number, job.as_ref(), history.as_ref())?, job));
    }
    let owners: Vec<_> = jobs
        .iter()
        .map(|(job, record)| Owner { job, record: record.as_ref(), damaged: false, has_key: false })
        .collect();
    let belongings = Belongings::find(store, queue, &owners).await?;
    let mut changes = Changes::default();
    for (entry, (belongings, number)) in entries.iter().zip(belongings.into_iter().zip(numbers)) {
        changes.fence(Fence::At(Index::Completed, entry.clone()));
        changes.remove(Index::Completed, entry.clone());
        changes.delete(Table::Result, RecordKey::Number(number));
        belongings.remove(&mut changes);
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn what_is_over_goes_and_the_next_says_when() {
        let times = |seconds: &[u64]| over(seconds.iter().map(|it| at(*it)), at(10), 500);
        assert_eq!(times(&[1, 10, 11, 12]), (2, Some(at(11))));
        assert_eq!(times(&[1]), (1, None));
        assert_eq!(over(std::iter::repeat_n(at(1), 501), at(10), 500), (500, Some(at(1))));
    }

    #[test]
    fn jobs_that_come_one_by_one_go_together() {
        let soon = at(10).after(Duration::from_millis(5));
        assert_eq!(removed(1, Some(soon), at(10)).1, Some(at(11)));
        assert_eq!(removed(0, Some(soon), at(10)).1, Some(soon));
        assert_eq!(removed(500, Some(at(9)), at(10)).1, Some(at(9)), "more is over");
        assert_eq!(removed(1, Some(at(70)), at(10)).1, Some(at(70)));
    }
}
