//! Dead letters as operators see them: pages in the order of death, and counts.

use super::answers::{ask, ask_if_there, ask_known, first_of, numbered};
use super::get_job::{self, Detail};
use super::queues::all_queues;
use super::records::{self, DeadRecord};
use super::refusal::{self, Refusal};
use super::select::{self, DeadEntry, read_dead};
use crate::domain::{QueueName, Timestamp};
use crate::queue::{
    DeadCount, DeadCountQuery, DeadCounts, DeadLetterPage, DeadLetterQuery, Deaths, LatestDeath, sizes,
};
use crate::store::Result;
use crate::store::storage::{CounterGroup, Index, Len, Read, Reads, Table};
use bytes::Bytes;

/// Dead letters that one read looks at.
const PAGE_MAX: usize = 500;
/// Those that are shown by one read: a page may end early.
const VIEWS_MAX: usize = 50;

const LENS: [Read; 2] = [Read::Len(Len::Index(Index::Dead)), Read::Len(Len::Index(Index::Overflow))];

/// A page in the order of death.
pub(crate) async fn dead_letters<S: Reads>(store: &mut S, query: &DeadLetterQuery) -> refusal::Result<DeadLetterPage> {
    let found = ask_known(store, &query.part.queue, &LENS).await?;
    let skipped = usize::from(query.part.overflow_only);
    let total = found.skip(skipped).map(|found| found.number()).sum();
    let mut page = DeadLetterPage { jobs: Vec::new(), next: None, total };
    let look_at = query.search.as_ref().map_or(usize::MAX, |search| search.look_at);
    let (mut after, mut looked_at, mut bytes) = (query.after, 0, 0);
    let mut more = query.limit > 0;
    while more {
        let most = if query.search.is_some() { look_at - looked_at } else { query.limit - page.jobs.len() };
        let left = Deaths { after, up_to: u64::MAX };
        let mut letters;
        (letters, more) = select::page(store, &query.part, left, most.min(PAGE_MAX)).await?;
        looked_at += letters.len();
        let last = letters.last().map_or(after, |letter| letter.death);
        if let Some(search) = &query.search {
            let fits = select::matching(store, &query.part.queue, &search.filter, &letters).await?;
            let mut fits = fits.into_iter();
            letters.retain(|_| fits.next().unwrap_or(false));
        }
        if show(store, query, &letters, &mut page, &mut bytes, &mut after).await? {
            page.next = Some(after);
            break;
        }
        after = last;
        if more && (page.jobs.len() == query.limit || looked_at == look_at) {
            page.next = Some(after);
            break;
        }
    }
    Ok(page)
}

/// True: the page ends before the next one of these. `last`: the last that was looked at.
async fn show<S: Reads>(
    store: &mut S, query: &DeadLetterQuery, letters: &[DeadEntry], page: &mut DeadLetterPage, bytes: &mut usize,
    last: &mut u64,
) -> Result<bool> {
    let detail = if query.full { Detail::Whole } else { Detail::Attempts };
    for letters in letters.chunks(VIEWS_MAX) {
        let seen: Vec<_> = letters.iter().map(|letter| (letter.index, letter.entry())).collect();
        let views = get_job::views(store, &query.part.queue, &seen, detail).await?;
        for (letter, view) in letters.iter().zip(views) {
            if let Some(view) = view {
                *bytes += sizes::of_view(&view);
                let full = !page.jobs.is_empty() && *bytes > query.max_bytes;
                if full || page.jobs.len() == query.limit {
                    return Ok(true);
                }
                page.jobs.push(view);
            }
            *last = letter.death;
        }
    }
    Ok(false)
}

pub(crate) async fn dead_letter_counts<S: Reads>(store: &mut S, query: &DeadCountQuery) -> refusal::Result<DeadCounts> {
    if let Some(queue) = &query.queue {
        let count = count(store, queue, query).await?.ok_or_else(|| Refusal::no_queue(queue))?;
        return Ok(DeadCounts { total: count.count, queues: vec![count] });
    }
    let mut counts = DeadCounts::default();
    for queue in all_queues(store).await? {
        let dead: u64 = ask(store, &queue, &LENS).await?.map(|found| found.number()).sum();
        counts.total += dead;
        let wanted = query.after.as_ref().is_none_or(|after| queue > *after);
        if dead > 0 && wanted && counts.queues.len() < query.limit {
            counts.queues.extend(count(store, &queue, query).await?);
        }
    }
    Ok(counts)
}

async fn count<S: Reads>(store: &mut S, queue: &QueueName, query: &DeadCountQuery) -> Result<Option<DeadCount>> {
    let mut reads = LENS.to_vec();
    reads.push(Read::Counters(CounterGroup::ErrorTypes));
    reads.extend([first_of(Index::Dead, 1), first_of(Index::Overflow, 1)]);
    reads.extend(select::latest_reads(query.latest));
    let Some(mut found) = ask_if_there(store, queue, &reads).await? else { return Ok(None) };
    let (dead, overflow) = (found.number(), found.number());
    let by_error_type = by_error_type(found.error_types(), query.types);
    let oldest = found.entries().into_iter().chain(found.entries()).min_by_key(|entry| entry.score);
    let oldest = oldest.and_then(|entry| entry.member.job());
    let latest = select::latest(&mut found, query.latest);
    // One read for all records that are asked about.
    let mut reads: Vec<_> = oldest.iter().map(|number| numbered(Table::Dead, *number)).collect();
    reads.extend(latest.iter().flat_map(|it| [Table::Dead, Table::Job].map(|table| numbered(table, it.number))));
    let mut found = ask(store, queue, &reads).await?;
    // Of a damaged one nothing is known but that it is there.
    let read = |record: Bytes| {
        let dead = read_dead(Some(&record))?;
        Ok(dead.unwrap_or_else(|| DeadRecord::damaged(Timestamp::default())))
    };
    let oldest = oldest.and_then(|_| found.record()).map(read).transpose()?.map(|dead: DeadRecord| dead.died_at);
    let mut deaths = Vec::with_capacity(latest.len());
    for letter in latest {
        let (record, job) = (found.record(), found.record());
        // It has left meanwhile.
        let Some(record) = record else { continue };
        let DeadRecord { died_at, counted_as: error_type, .. } = read(record)?;
        let id = records::job_or_stand_in(letter.number, job.as_ref())?.id;
        deaths.push(LatestDeath { id, died_at, error_type });
    }
    Ok(Some(DeadCount {
        queue: queue.clone(),
        count: dead + overflow,
        overflow,
        oldest,
        by_error_type,
        latest: deaths,
    }))
}

/// The most frequent first.
fn by_error_type(types: impl Iterator<Item = (Box<str>, i64)>, limit: usize) -> Vec<(String, u64)> {
    let counted = types.filter(|(_, count)| *count > 0);
    let mut types: Vec<_> = counted.map(|(name, count)| (name.into_string(), count.cast_unsigned())).collect();
    types.sort_unstable_by(|(a, many), (b, more)| more.cmp(many).then_with(|| a.cmp(b)));
    types.truncate(limit);
    types
}
