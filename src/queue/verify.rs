//! Verify: every job is in exactly one place, all that belongs to it is there and leads to it, and the sums are right.
//!
//! Reads only, a page at a time; of all jobs it keeps nothing but their numbers. A first pass looks at every job with all that its
//! records name; further passes look for what leads to a job and is not among that. Other calls may change the store meanwhile:
//! what looks wrong is a suspicion, and is looked at again with all that belongs to it at one moment before it is reported.

mod job;
mod moment;
mod passes;
mod report;
mod sums;

pub use report::{FINDINGS_MAX, VerifiedQueue, VerifyProgress, VerifyReport};

use super::answers::{Answers, ask, range};
use super::queues::all_queues;
use crate::domain::QueueName;
use crate::store::storage::{Entry, Index, Len, Read, Reads, RecordKey, Table};

use crate::store::{Check, Result};
use bytes::Bytes;
use moment::{Item, Moment};
use std::collections::{BTreeMap, BTreeSet};

/// Records and entries of one read.
const PAGE: usize = 200;
/// Reads of one call: one moment in every engine.
const READS_MAX: usize = 1_000;
/// Bytes of one call, about.
const BYTES_MAX: usize = 4 << 20;
/// How often a job that changes is looked at.
const ROUNDS_MAX: usize = 10;
/// A pass looks at this many more than twice what there was: a store may grow faster than it is read.
const GROWTH_MAX: u64 = 10_000_000;

/// Looks at everything and changes nothing. `progress` is called now and then. A record of a newer format is an error that names it.
pub async fn verify<S: Reads>(
    store: &mut S, progress: &mut (dyn FnMut(VerifyProgress) + Send),
) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    for queue in &all_queues(store).await? {
        let (numbers, suspects, recount) = (Vec::new(), BTreeMap::new(), Vec::new());
        let report = &mut report;
        Verification { store, queue, report, progress, numbers, suspects, recount }.run().await?;
    }
    Ok(report)
}

/// One queue.
struct Verification<'a, S> {
    store: &'a mut S,
    queue: &'a QueueName,
    report: &'a mut VerifyReport,
    progress: &'a mut (dyn FnMut(VerifyProgress) + Send),
    /// Of its jobs, in order.
    numbers: Vec<u64>,
    /// Jobs that something is wrong with, or was while they changed; and what leads to them that should perhaps not do so.
    suspects: BTreeMap<u64, BTreeSet<Item>>,
    /// Indexes whose entries are more or fewer than their length.
    recount: Vec<Index>,
}

impl<S: Reads> Verification<'_, S> {
    async fn run(mut self) -> Result<()> {
        self.queue_records().await?;
        self.all_records(Table::Job, "jobs").await?;
        self.numbers.sort_unstable();
        for index in Index::ALL {
            self.all_entries(index).await?;
        }
        for (table, name) in passes::TABLES {
            self.all_records(table, name).await?;
        }
        self.all_suspects().await?;
        self.sums().await
    }

    fn found(&mut self, check: Check, what: impl Into<String>) {
        self.report.add(check, self.queue.as_str(), what);
    }

    fn report_progress(&mut self, step: &'static str, done: u64, of: Option<u64>) {
        (self.progress)(VerifyProgress { step, done, of });
    }

    // ---- reading ----

    /// Of a queue that is gone by now: nothing.
    async fn read(&mut self, reads: &[Read]) -> Result<Answers> {
        ask(self.store, self.queue, reads).await
    }

    async fn len(&mut self, of: Len) -> Result<u64> {
        Ok(self.read(&[Read::Len(of)]).await?.number())
    }

    /// The next records of a table.
    async fn records(&mut self, table: Table, pages: &mut Pages<RecordKey>) -> Result<Option<Vec<(RecordKey, Bytes)>>> {
        if pages.are_over {
            return Ok(None);
        }
        let scan = Read::Scan(table, pages.after.take(), pages.limit);
        let page = self.read(&[scan]).await?.scanned();
        pages.turn(page.len(), page.last().map(|(key, _)| key.clone()));
        Ok(pages.after.is_some().then_some(page))
    }

    /// The next entries of an index.
    async fn entries(&mut self, index: Index, pages: &mut Pages<Entry>) -> Result<Option<Vec<Entry>>> {
        if pages.are_over {
            return Ok(None);
        }
        let page = self.read(&[range(index, pages.after.take(), pages.limit)]).await?.entries();
        pages.turn(page.len(), page.last().cloned());
        Ok(pages.after.is_some().then_some(page))
    }

    /// These jobs, each at one moment. One that never stands still is left out.
    async fn moments(&mut self, mut left: Vec<Look>) -> Result<Vec<Moment>> {
        let mut whole = Vec::with_capacity(left.len());
        for _ in 0..ROUNDS_MAX {
            let mut again = Vec::new();
            while !left.is_empty() {
                let rest = left.split_off(together(&left));
                let reads: Vec<_> = left.iter().flat_map(|look| &look.items).map(Item::read).collect();
                let mut found = self.read(&reads).await?;
                for look in left {
                    let found = look.items.iter().cloned().zip(found.by_ref());
                    let moment = Moment::new(self.queue, look.moment.number, found);
                    let next = Look::new(moment, look.suspicion);
                    if next.items == look.items {
                        whole.push(next.moment);
                    } else {
                        again.push(next);
                    }
                }
                left = rest;
            }
            left = again;
        }
        Ok(whole)
    }

    /// What is wrong with each of them once all that leads to it is known.
    async fn all_suspects(&mut self) -> Result<()> {
        let (mut done, of) = (0, self.suspects.len() as u64);
        let mut suspects = std::mem::take(&mut self.suspects).into_iter().peekable();
        while suspects.peek().is_some() {
            let nothing = |number| Moment::new(self.queue, number, std::iter::empty());
            let looks = suspects.by_ref().take(PAGE).map(|(number, suspicion)| Look::new(nothing(number), suspicion));
            let looks: Vec<_> = looks.collect();
            done += looks.len() as u64;
            let mut moments = self.moments(looks).await?;
            moments.sort_unstable_by_key(|moment| moment.number);
            for moment in moments {
                for (check, what) in job::findings(self.queue, &moment)? {
                    self.found(check, what);
                }
            }
            self.report_progress("suspected jobs", done, Some(of));
        }
        Ok(())
    }
}

/// How far the pages of a table or an index have come.
struct Pages<K> {
    /// The last of the last page.
    after: Option<K>,
    limit: usize,
    count: u64,
    /// How many there were at the beginning, or more.
    len: u64,
    are_over: bool,
}

impl<K> Pages<K> {
    fn new(limit: usize, len: u64) -> Self {
        Self { after: None, limit, count: 0, len, are_over: false }
    }

    /// An engine leaves out what it cannot read, so a page that is not full is the end only once all that there was has come. What
    /// comes after that was added meanwhile.
    fn turn(&mut self, length: usize, last: Option<K>) {
        self.count += length as u64;
        let most = self.len.saturating_mul(2).saturating_add(GROWTH_MAX);
        self.are_over = length == 0 || self.count >= if length < self.limit { self.len } else { most };
        self.after = last;
    }
}

/// A job that is looked at.
struct Look {
    moment: Moment,
    suspicion: BTreeSet<Item>,
    /// What is to be looked at: what the moment knows of, and the suspicion.
    items: BTreeSet<Item>,
}

impl Look {
    fn new(moment: Moment, suspicion: BTreeSet<Item>) -> Self {
        let mut items = moment.items();
        items.extend(suspicion.iter().cloned());
        Self { moment, suspicion, items }
    }
}

/// How many of them one read looks at: at least one.
fn together(looks: &[Look]) -> usize {
    let (mut reads, mut bytes) = (0, 0);
    let fits = |look: &&Look| {
        reads += look.items.len();
        bytes += look.moment.bytes();
        reads <= READS_MAX && bytes <= BYTES_MAX
    };
    looks.iter().take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_end_when_the_store_grows_faster_than_it_is_read() {
        let mut pages = Pages::new(10, 5);
        pages.count = GROWTH_MAX - 10;
        for are_over in [false, true] {
            pages.turn(10, Some(()));
            assert_eq!(pages.are_over, are_over);
        }
    }
}
