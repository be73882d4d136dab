//! Dead letters as operators see them: pages in the order of death, and counts.

use super::{
    get_job::{self, Detail},
    records::{self, DeadRecord},
    select::{self, DeadEntry},
    stats::all_queues,
};
use crate::{
    domain::{ids::QueueName, job::DeadReason, time::Timestamp},
    store::{
        DeadCount, DeadCountQuery, DeadCounts, DeadLetterPage, DeadLetterQuery, Deaths,
        LatestDeath, StoreError, sizes,
        storage::{Counter, CounterGroup, Found, Index, Len, Read, Reads, RecordKey, Table},
    },
};

/// Dead letters that one read looks at.
const PAGE_MAX: usize = 500;
/// Those that are shown by one read: a page may end early.
const VIEWS_MAX: usize = 50;

/// A page in the order of death. None: there is no such queue.
pub(crate) async fn dead_letters<S: Reads>(
    store: &mut S,
    query: &DeadLetterQuery,
) -> Result<Option<DeadLetterPage>, StoreError> {
    let lens = [Index::Dead, Index::Overflow].map(|index| Read::Len(Len::Index(index)));
    let Some(found) = store.read(&query.part.queue, &lens).await? else { return Ok(None) };
    let skipped = usize::from(query.part.overflow_only);
    let total = found.iter().skip(skipped).map(Found::number).sum();
    let page = DeadLetterPage { jobs: Vec::new(), next: None, total };
    if query.limit == 0 {
        return Ok(Some(page));
    }
    let walk = Walk { query, page, bytes: 0, looked_at: 0, last: query.after };
    walk.go(store).await.map(Some)
}

struct Walk<'a> {
    query: &'a DeadLetterQuery,
    page: DeadLetterPage,
    bytes: usize,
    looked_at: usize,
    /// The last that was looked at.
    last: u64,
}

impl Walk<'_> {
    async fn go<S: Reads>(mut self, store: &mut S) -> Result<DeadLetterPage, StoreError> {
        let query = self.query;
        let look_at = query.search.as_ref().map_or(usize::MAX, |search| search.look_at);
        loop {
            // One more than the page takes, which says whether there is another page.
            let most = match &query.search {
                Some(_) => look_at - self.looked_at,
                None => query.limit - self.page.jobs.len(),
            };
            let most = most.min(PAGE_MAX);
            let part = &query.part;
            let left = Deaths { after: self.last, up_to: u64::MAX };
            let letters =
                select::page(store, &part.queue, part.overflow_only, left, most + 1).await?;
            let mut letters = letters.unwrap_or_default();
            let more = letters.len() > most;
            letters.truncate(most);
            self.looked_at += letters.len();
            let last = letters.last().map_or(self.last, |letter| letter.death);
            if let Some(search) = &query.search {
                let fits = select::matching(store, &part.queue, &search.filter, &letters).await?;
                let mut fits = fits.into_iter();
                letters.retain(|_| fits.next().unwrap_or(false));
            }
            if self.show(store, &letters).await? {
                self.page.next = Some(self.last);
                return Ok(self.page);
            }
            self.last = last;
            if !more {
                return Ok(self.page);
            }
            if self.page.jobs.len() == query.limit || self.looked_at == look_at {
                self.page.next = Some(self.last);
                return Ok(self.page);
            }
        }
    }

    /// True: the page ends before the next one of these.
    async fn show<S: Reads>(
        &mut self,
        store: &mut S,
        letters: &[DeadEntry],
    ) -> Result<bool, StoreError> {
        let detail = if self.query.full { Detail::Whole } else { Detail::Attempts };
        for letters in letters.chunks(VIEWS_MAX) {
            let seen: Vec<_> =
                letters.iter().map(|letter| (letter.index, letter.entry())).collect();
            let views = get_job::views(store, &self.query.part.queue, &seen, detail).await?;
            for (letter, view) in letters.iter().zip(views) {
                if let Some(view) = view {
                    self.bytes += sizes::of_view(&view);
                    let full = !self.page.jobs.is_empty() && self.bytes > self.query.max_bytes;
                    if full || self.page.jobs.len() == self.query.limit {
                        return Ok(true);
                    }
                    self.page.jobs.push(view);
                }
                self.last = letter.death;
            }
        }
        Ok(false)
    }
}

/// A queue that does not exist is left out.
pub(crate) async fn dead_letter_counts<S: Reads>(
    store: &mut S,
    query: &DeadCountQuery,
) -> Result<DeadCounts, StoreError> {
    let mut counts = DeadCounts::default();
    if let Some(queue) = &query.queue {
        counts.queues.extend(count(store, queue, query).await?);
        counts.total = counts.queues.iter().map(|queue| queue.count).sum();
        return Ok(counts);
    }
    let lens = [Index::Dead, Index::Overflow].map(|index| Read::Len(Len::Index(index)));
    for queue in all_queues(store).await? {
        let Some(found) = store.read(&queue, &lens).await? else { continue };
        let dead: u64 = found.iter().map(Found::number).sum();
        counts.total += dead;
        let wanted = query.after.as_ref().is_none_or(|after| queue > *after);
        if dead > 0 && wanted && counts.queues.len() < query.limit {
            counts.queues.extend(count(store, &queue, query).await?);
        }
    }
    Ok(counts)
}

async fn count<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    query: &DeadCountQuery,
) -> Result<Option<DeadCount>, StoreError> {
    let first = |index| Read::Range { index, after: None, up_to: None, limit: 1, reverse: false };
    let mut reads = vec![
        Read::Len(Len::Index(Index::Dead)),
        Read::Len(Len::Index(Index::Overflow)),
        Read::Counters(CounterGroup::ErrorTypes),
        first(Index::Dead),
        first(Index::Overflow),
    ];
    reads.extend(select::latest_reads(query.latest));
    let Some(found) = store.read(queue, &reads).await? else { return Ok(None) };
    let mut found = found.into_iter();
    let mut next = || found.next().unwrap_or(Found::Record(None));
    let (dead, overflow) = (next().number(), next().number());
    let by_error_type = by_error_type(next().counters(), query.types);
    let oldest = [next().entries(), next().entries()].into_iter().flatten();
    let oldest = oldest.min_by_key(|entry| entry.score).and_then(|entry| entry.member.job());
    let latest = select::latest(&mut found, query.latest);
    // One read for all records that are asked about.
    let mut reads: Vec<_> =
        oldest.iter().map(|number| Read::Record(Table::Dead, RecordKey::Number(*number))).collect();
    for letter in &latest {
        let key = RecordKey::Number(letter.number);
        reads.extend([Read::Record(Table::Dead, key.clone()), Read::Record(Table::Job, key)]);
    }
    let mut found = if reads.is_empty() {
        Vec::new().into_iter()
    } else {
        store.read(queue, &reads).await?.unwrap_or_default().into_iter()
    };
    let oldest = match oldest {
        Some(_) => read_dead(found.next())?.map(|dead| dead.died_at),
        None => None,
    };
    let mut deaths = Vec::with_capacity(latest.len());
    for letter in latest {
        let dead = read_dead(found.next())?;
        let job = found.next().and_then(Found::record);
        // It has left meanwhile.
        let Some(dead) = dead else { continue };
        let id = records::job_or_stand_in(letter.number, job.as_ref())?.id;
        deaths.push(LatestDeath { id, error_type: dead.counted_as, died_at: dead.died_at });
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

/// None: it is not there. A damaged one tells nothing.
fn read_dead(found: Option<Found>) -> Result<Option<DeadRecord>, StoreError> {
    let Some(record) = found.and_then(Found::record) else { return Ok(None) };
    let dead = records::readable(records::read_dead(&record))?.map(|(_, dead)| dead);
    Ok(Some(dead.unwrap_or_else(|| DeadRecord {
        reason: DeadReason::Corrupt,
        died_at: Timestamp::default(),
        counted_as: String::new(),
        context: Vec::new(),
    })))
}

/// The most frequent first.
fn by_error_type(counters: Vec<(Counter, i64)>, limit: usize) -> Vec<(String, u64)> {
    let types = counters.into_iter().filter_map(|(counter, count)| match counter {
        Counter::ErrorType(name) if count > 0 => Some((name.into_string(), count.cast_unsigned())),
        _ => None,
    });
    let mut types: Vec<_> = types.collect();
    types.sort_unstable_by(|(a, many), (b, more)| more.cmp(many).then_with(|| a.cmp(b)));
    types.truncate(limit);
    types
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_errors_come_by_how_often_then_by_name() {
        let of = |name: &str, count| (Counter::ErrorType(name.into()), count);
        let counters = vec![of("A", 1), of("B", 3), of("", 1), of("C", 0), of("D", 3)];
        let expected = [("B", 3), ("D", 3), ("", 1)].map(|(name, n)| (name.to_owned(), n));
        assert_eq!(by_error_type(counters, 3), expected);
    }
}
