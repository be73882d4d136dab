//! Which dead letters a call means, decided in one place for all calls that do something to them.
//!
//! `Dead` and `Overflow` are disjoint and share one sequence of deaths, so the order of death is both of them, merged.

use super::answers::{Answers, ask, ask_known, last_of, numbered};
use super::facts::{failure_reads, last_failure};
use super::find::{found_id, id_reads};
use super::records::{self, DeadRecord, read_if};
use super::refusal;
use crate::domain::{DeadFilter, DeadPart, JobId, QueueName, Timestamp};
use crate::queue::Deaths;
use crate::store::Result;
use crate::store::storage::{Entry, Found, Index, Member, Read, Reads, Table};
use bytes::Bytes;

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

/// None: it is not there, or damaged.
pub(crate) fn read_dead(record: Option<&Bytes>) -> Result<Option<DeadRecord>> {
    Ok(read_if(record, records::read_dead)?.map(|(_, dead)| dead))
}

/// The indexes that a call means.
fn indexes(overflow_only: bool) -> &'static [Index] {
    if overflow_only { &[Index::Overflow] } else { &[Index::Dead, Index::Overflow] }
}

/// What was found in these indexes, in the order of death.
fn merge(indexes: &[Index], found: &mut Answers) -> Vec<DeadEntry> {
    let mut all = Vec::new();
    for index in indexes {
        all.extend(found.entries().into_iter().filter_map(|Entry { score: death, member }| {
            Some(DeadEntry { index: *index, death, number: member.job()? })
        }));
    }
    all.sort_unstable_by_key(|letter| letter.death);
    all
}

/// The next so many in the order of death, and whether there are more.
pub(crate) async fn page<S: Reads>(
    store: &mut S, part: &DeadPart, among: Deaths, limit: usize,
) -> Result<(Vec<DeadEntry>, bool)> {
    // Beyond every job of that death.
    let after = (among.after > 0).then(|| Entry::number(among.after, JobId::NUMBER_MAX));
    let (up_to, one_more) = (Some(among.up_to), limit.saturating_add(1));
    let indexes = indexes(part.overflow_only);
    let read =
        |index: &Index| Read::Range { index: *index, after: after.clone(), up_to, limit: one_more, reverse: false };
    let reads: Vec<_> = indexes.iter().map(read).collect();
    let mut letters = merge(indexes, &mut ask(store, &part.queue, &reads).await?);
    let more = letters.len() > limit;
    letters.truncate(limit);
    Ok((letters, more))
}

/// Reads of [`latest`].
pub(crate) fn latest_reads(limit: usize) -> [Read; 2] {
    [Index::Dead, Index::Overflow].map(|index| last_of(index, limit))
}

/// Those that died last, the last one first.
pub(crate) fn latest(found: &mut Answers, limit: usize) -> Vec<DeadEntry> {
    let letters = merge(indexes(false), found);
    letters.into_iter().rev().take(limit).collect()
}

/// All deaths up to now. None: there is no such queue.
pub(crate) async fn all_deaths<S: Reads>(store: &mut S, queue: &QueueName) -> refusal::Result<Deaths> {
    let found = ask_known(store, queue, &latest_reads(1)).await?;
    let newest = found.flat_map(Found::entries).map(|entry| entry.score).max();
    Ok(Deaths { after: 0, up_to: newest.unwrap_or_default() })
}

/// The dead letters of these ids; none where there is no such one.
pub(crate) async fn by_ids<S: Reads>(store: &mut S, part: &DeadPart, ids: &[JobId]) -> Result<Vec<Option<DeadEntry>>> {
    let reads: Vec<_> = ids.iter().flat_map(id_reads).collect();
    let mut found = ask(store, &part.queue, &reads).await?;
    let mut numbers = Vec::with_capacity(ids.len());
    for id in ids {
        let (named, own) = found_id(id, &mut found)?;
        numbers.push(read_if(named.as_ref(), records::read_id)?.map(|record| record.number).or(own));
    }
    let indexes = indexes(part.overflow_only);
    let scores = |number: &u64| {
        let member = Member::Number(*number);
        indexes.iter().map(move |index| Read::Score(*index, member.clone()))
    };
    let reads: Vec<_> = numbers.iter().flatten().flat_map(scores).collect();
    let mut found = ask(store, &part.queue, &reads).await?;
    let letters = numbers.into_iter().map(|number| {
        let number = number?;
        // All of its answers are taken before the next one's.
        let deaths: Vec<_> = indexes.iter().map(|index| (*index, found.score())).collect();
        let (index, death) = deaths.into_iter().find_map(|(index, death)| Some((index, death?)))?;
        Some(DeadEntry { index, death, number })
    });
    Ok(letters.collect())
}

/// Which of these a search finds. Reads no more of them than it asks about.
pub(crate) async fn matching<S: Reads>(
    store: &mut S, queue: &QueueName, filter: &DeadFilter, letters: &[DeadEntry],
) -> Result<Vec<bool>> {
    let dead = |letter: &DeadEntry| {
        [numbered(Table::Dead, letter.number), Read::Score(letter.index, Member::Number(letter.number))]
    };
    let reads: Vec<_> = letters.iter().flat_map(dead).collect();
    let mut found = ask(store, queue, &reads).await?;
    let mut matching = Vec::with_capacity(letters.len());
    for letter in letters {
        let (record, place) = (found.record(), found.score());
        let dead = read_dead(record.as_ref())?.unwrap_or_else(|| DeadRecord::damaged(Timestamp::default()));
        let is_there = record.is_some() && place == Some(letter.death);
        matching.push(is_there && filter.fits_death(dead.reason, dead.died_at));
    }
    let (of_job, of_failure) = (filter.asks_about_type(), filter.asks_about_failure());
    let mut reads = Vec::new();
    for (letter, _) in letters.iter().zip(&matching).filter(|(_, fits)| **fits) {
        reads.extend(of_job.then(|| numbered(Table::Job, letter.number)));
        reads.extend(of_failure.then(|| failure_reads(letter.number)).into_iter().flatten());
    }
    if reads.is_empty() {
        return Ok(matching);
    }
    let mut found = ask(store, queue, &reads).await?;
    for (letter, fits) in letters.iter().zip(&mut matching).filter(|(_, fits)| **fits) {
        let job = if of_job { found.record() } else { None };
        let job_type = records::job_or_stand_in(letter.number, job.as_ref())?.job_type;
        let failure = if of_failure { last_failure(&mut found)? } else { None };
        *fits = filter.fits_job(&job_type, failure.as_ref());
    }
    Ok(matching)
}
