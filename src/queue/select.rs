//! Which dead letters a call means, decided in one place for all calls that do something to them.
//!
//! `Dead` and `Overflow` are disjoint and share one sequence of deaths, so the order of death is both of them, merged.

use super::{
    facts::{failure_reads, last_failure},
    find::has_id,
    records,
};
use crate::{
    domain::{
        dead_filter::DeadFilter,
        ids::{JobId, QueueName},
        job::DeadReason,
    },
    store::{
        Deaths, StoreError,
        storage::{Entry, Found, Index, Member, Read, Reads, RecordKey, Table},
    },
};

/// A dead letter in the order of death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeadEntry {
    /// `Dead` or `Overflow`.
    pub(crate) index: Index,
    pub(crate) death: u64,
    pub(crate) number: u64,
}

impl DeadEntry {
    pub(crate) fn entry(&self) -> Entry {
        Entry::number(self.death, self.number)
    }
}

/// The indexes that a call means.
fn parts(overflow_only: bool) -> &'static [Index] {
    if overflow_only { &[Index::Overflow] } else { &[Index::Dead, Index::Overflow] }
}

/// The first `limit` of several indexes in the order of death, or the last where `reverse`.
fn merge(found: Vec<(Index, Vec<Entry>)>, limit: usize, reverse: bool) -> Vec<DeadEntry> {
    let entries = found.into_iter().flat_map(|(index, entries)| {
        entries.into_iter().filter_map(move |entry| {
            let number = entry.member.job()?;
            Some(DeadEntry { index, death: entry.score, number })
        })
    });
    let mut all: Vec<_> = entries.collect();
    all.sort_unstable_by_key(|letter| letter.death);
    if reverse {
        all.reverse();
    }
    all.truncate(limit);
    all
}

/// The next so many in the order of death. None: there is no such queue.
pub(crate) async fn page<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    overflow_only: bool,
    among: Deaths,
    limit: usize,
) -> Result<Option<Vec<DeadEntry>>, StoreError> {
    // Beyond every job of that death.
    let after = Entry::number(among.after, JobId::NUMBER_MAX);
    let read = |index: &Index| Read::Range {
        index: *index,
        after: (among.after > 0).then(|| after.clone()),
        up_to: Some(among.up_to),
        limit,
        reverse: false,
    };
    let parts = parts(overflow_only);
    let reads: Vec<_> = parts.iter().map(read).collect();
    let Some(found) = store.read(queue, &reads).await? else { return Ok(None) };
    let found = found.into_iter().map(Found::entries);
    Ok(Some(merge(parts.iter().copied().zip(found).collect(), limit, false)))
}

/// Reads of [`latest`].
pub(crate) fn latest_reads(limit: usize) -> [Read; 2] {
    let last = |index| Read::Range { index, after: None, up_to: None, limit, reverse: true };
    [last(Index::Dead), last(Index::Overflow)]
}

/// Those that died last, the last one first.
pub(crate) fn latest(found: &mut impl Iterator<Item = Found>, limit: usize) -> Vec<DeadEntry> {
    let mut next = |index| (index, found.next().map(Found::entries).unwrap_or_default());
    let both = vec![next(Index::Dead), next(Index::Overflow)];
    merge(both, limit, true)
}

/// All deaths up to now. None: there is no such queue.
pub(crate) async fn all_deaths<S: Reads>(
    store: &mut S,
    queue: &QueueName,
) -> Result<Option<Deaths>, StoreError> {
    let Some(found) = store.read(queue, &latest_reads(1)).await? else { return Ok(None) };
    let newest = latest(&mut found.into_iter(), 1);
    Ok(Some(Deaths { after: 0, up_to: newest.first().map_or(0, |letter| letter.death) }))
}

/// The dead letters of these ids; none where there is no such one.
pub(crate) async fn by_ids<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    overflow_only: bool,
    ids: &[JobId],
) -> Result<Vec<Option<DeadEntry>>, StoreError> {
    let numbers = numbers_of(store, queue, ids).await?;
    let parts = parts(overflow_only);
    let reads: Vec<_> = numbers
        .iter()
        .flatten()
        .flat_map(|number| parts.iter().map(|index| Read::Score(*index, Member::Number(*number))))
        .collect();
    if reads.is_empty() {
        return Ok(vec![None; ids.len()]);
    }
    let mut found = store.read(queue, &reads).await?.unwrap_or_default().into_iter();
    let letters = numbers.into_iter().map(|number| {
        let number = number?;
        // All of its answers are taken before the next one's.
        let scores: Vec<_> =
            parts.iter().map(|_| found.next().and_then(|found| found.score())).collect();
        let (index, death) =
            parts.iter().zip(scores).find_map(|(index, death)| Some((*index, death?)))?;
        Some(DeadEntry { index, death, number })
    });
    Ok(letters.collect())
}

/// The numbers of the jobs that have these ids in this queue.
async fn numbers_of<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    ids: &[JobId],
) -> Result<Vec<Option<u64>>, StoreError> {
    let mut reads = Vec::with_capacity(ids.len());
    for id in ids {
        reads.push(Read::Record(Table::Id, RecordKey::Text(id.to_string().into())));
        reads.extend(id.number().map(|number| Read::Record(Table::Job, RecordKey::Number(number))));
    }
    let mut found = store.read(queue, &reads).await?.unwrap_or_default().into_iter();
    let mut next = || found.next().and_then(Found::record);
    let mut numbers = Vec::with_capacity(ids.len());
    for id in ids {
        let named = next().map(|it| records::readable(records::read_id(&it))).transpose()?;
        let own = id.number().and_then(|number| Some((number, next()?)));
        let own = match own {
            Some((number, job)) if has_id(&job, id)? => Some(number),
            _ => None,
        };
        numbers.push(named.flatten().map(|record| record.number).or(own));
    }
    Ok(numbers)
}

/// Which of these a search finds. Reads no more of them than it asks about.
pub(crate) async fn matching<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    filter: &DeadFilter,
    letters: &[DeadEntry],
) -> Result<Vec<bool>, StoreError> {
    let dead = |letter: &DeadEntry| {
        let record = Read::Record(Table::Dead, RecordKey::Number(letter.number));
        [record, Read::Score(letter.index, Member::Number(letter.number))]
    };
    let reads: Vec<_> = letters.iter().flat_map(dead).collect();
    let mut found = store.read(queue, &reads).await?.unwrap_or_default().into_iter();
    let mut matching = Vec::with_capacity(letters.len());
    for letter in letters {
        let record = found.next().and_then(Found::record);
        let place = found.next().and_then(|found| found.score());
        matching.push(match record.filter(|_| place == Some(letter.death)) {
            Some(record) => {
                let dead = records::readable(records::read_dead(&record))?.map(|(_, dead)| dead);
                let reason = dead.as_ref().map_or(DeadReason::Corrupt, |dead| dead.reason);
                filter.fits_death(reason, dead.map(|dead| dead.died_at).unwrap_or_default())
            }
            None => false,
        });
    }
    let (of_job, of_failure) = (filter.asks_about_type(), filter.asks_about_failure());
    if !of_job && !of_failure {
        return Ok(matching);
    }
    let mut reads = Vec::new();
    for (letter, _) in letters.iter().zip(&matching).filter(|(_, fits)| **fits) {
        if of_job {
            reads.push(Read::Record(Table::Job, RecordKey::Number(letter.number)));
        }
        if of_failure {
            reads.extend(failure_reads(letter.number));
        }
    }
    if reads.is_empty() {
        return Ok(matching);
    }
    let mut found = store.read(queue, &reads).await?.unwrap_or_default().into_iter();
    for (letter, fits) in letters.iter().zip(&mut matching).filter(|(_, fits)| **fits) {
        let job_type = if of_job {
            let job = found.next().and_then(Found::record);
            records::job_or_stand_in(letter.number, job.as_ref())?.job_type
        } else {
            String::new()
        };
        let failure = if of_failure { last_failure(&mut found)? } else { None };
        *fits = filter.fits_job(&job_type, failure.as_ref());
    }
    Ok(matching)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_death_merges_both_indexes() {
        let of = |deaths: &[u64]| -> Vec<_> {
            deaths.iter().map(|death| Entry::number(*death, death + 100)).collect()
        };
        let found = || vec![(Index::Dead, of(&[1, 2, 5])), (Index::Overflow, of(&[3, 4, 6]))];
        let deaths = |limit, reverse| -> Vec<_> {
            merge(found(), limit, reverse).iter().map(|letter| letter.death).collect()
        };
        assert_eq!(deaths(4, false), [1, 2, 3, 4]);
        assert_eq!(deaths(2, true), [6, 5]);
        let third = merge(found(), 3, false)[2];
        assert_eq!(third, DeadEntry { index: Index::Overflow, death: 3, number: 103 });
    }
}
