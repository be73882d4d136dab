//! Verify: every job is in exactly one place, all that belongs to it is there and leads to it, and the sums are right.
//!
//! Reads only, a page at a time; of all jobs it keeps nothing but their numbers. Other calls may change the store meanwhile: what
//! looks wrong is a suspicion, and is looked at again with all that belongs to it at one moment before it is reported.

mod indexes;
mod job;
mod moment;
mod sums;
mod tables;

use crate::{
    domain::ids::QueueName,
    store::{
        AuditProgress, AuditReport, Check, StoreError,
        storage::{Found, Index, Len, Member, Read, Reads, RecordKey, Table},
    },
};
use moment::{Moment, Suspicion};
use std::collections::{BTreeMap, BTreeSet};

/// Queues, records and entries of one read.
const QUEUES_PAGE: usize = 1_000;
const PAGE: usize = 200;
/// Reads of one call: one moment in every engine.
const READS_MAX: usize = 1_000;
/// Bytes of one call, about.
const BYTES_MAX: usize = 4 << 20;
/// How often a job that changes is looked at.
const ROUNDS_MAX: usize = 10;
/// A pass looks at this many more than twice what there was: a store may grow faster than it is read.
const GROWTH_MAX: u64 = 10_000_000;

/// Looks at everything and changes nothing. `progress` is told how far it is. A record of a newer format is an error that names it.
pub async fn verify<S: Reads>(
    store: &mut S,
    progress: &mut (dyn FnMut(AuditProgress) + Send),
) -> Result<AuditReport, StoreError> {
    let mut report = AuditReport::default();
    let mut after: Option<QueueName> = None;
    loop {
        let queues = store.queues(after.as_ref(), QUEUES_PAGE).await?;
        let Some(last) = queues.last() else { return Ok(report) };
        after = Some(last.clone());
        for queue in &queues {
            Verification::new(store, queue, &mut report, progress).run().await?;
        }
    }
}

/// One queue.
struct Verification<'a, S> {
    store: &'a mut S,
    queue: &'a QueueName,
    report: &'a mut AuditReport,
    progress: &'a mut (dyn FnMut(AuditProgress) + Send),
    /// Of its jobs, in order.
    numbers: Vec<u64>,
    /// Jobs that something is wrong with, or was while they changed.
    jobs: BTreeMap<u64, Suspicion>,
    /// The same of records that have no job or whose job is not known, and of their entries.
    others: BTreeSet<(Table, RecordKey)>,
    /// Indexes whose entries are more or fewer than their length.
    recount: Vec<Index>,
}

impl<'a, S: Reads> Verification<'a, S> {
    fn new(
        store: &'a mut S,
        queue: &'a QueueName,
        report: &'a mut AuditReport,
        progress: &'a mut (dyn FnMut(AuditProgress) + Send),
    ) -> Self {
        let (numbers, jobs) = (Vec::new(), BTreeMap::new());
        let (others, recount) = (BTreeSet::new(), Vec::new());
        Self { store, queue, report, progress, numbers, jobs, others, recount }
    }

    async fn run(mut self) -> Result<(), StoreError> {
        self.queue_records().await?;
        self.all_jobs().await?;
        for index in Index::ALL {
            self.all_entries(index).await?;
        }
        for table in tables::TABLES {
            self.all_records(table).await?;
        }
        self.suspected_jobs().await?;
        self.suspected_others().await?;
        self.sums().await
    }

    fn found(&mut self, check: Check, what: impl Into<String>) {
        self.report.add(check, self.queue.as_str(), what);
    }

    fn tell(&mut self, step: &'static str, done: u64, of: Option<u64>) {
        (self.progress)(AuditProgress { step, done, of });
    }

    /// Of a queue that is gone by now: nothing.
    async fn read(&mut self, reads: &[Read]) -> Result<Vec<Found>, StoreError> {
        Ok(self.store.read(self.queue, reads).await?.unwrap_or_default())
    }

    async fn read_one(&mut self, read: Read) -> Result<Option<Found>, StoreError> {
        Ok(self.read(&[read]).await?.pop())
    }

    async fn len(&mut self, of: Len) -> Result<u64, StoreError> {
        Ok(self.read_one(Read::Len(of)).await?.map_or(0, |found| found.number()))
    }

    /// The next records of a table.
    async fn scan(
        &mut self,
        table: Table,
        after: Option<RecordKey>,
    ) -> Result<Vec<(RecordKey, bytes::Bytes)>, StoreError> {
        let limit = tables::page(table);
        let found = self.read_one(Read::Scan(table, after, limit)).await?;
        Ok(found.map(Found::scanned).unwrap_or_default())
    }

    fn is_job(&self, number: u64) -> bool {
        self.numbers.binary_search(&number).is_ok()
    }

    fn suspect_entry(&mut self, number: u64, index: Index, member: Member) {
        self.jobs.entry(number).or_default().entries.insert((index, member));
    }

    fn suspect_record(&mut self, number: u64, table: Table, key: RecordKey) {
        self.jobs.entry(number).or_default().records.insert((table, key));
    }

    // ---- jobs ----

    async fn all_jobs(&mut self) -> Result<(), StoreError> {
        let of = self.len(Len::Table(Table::Job)).await?;
        let mut pass = Pass::new(of);
        let mut after = None;
        while !pass.is_over {
            let page = self.scan(Table::Job, after).await?;
            let Some((last, _)) = page.last() else { break };
            pass.page(page.len(), tables::page(Table::Job));
            after = Some(last.clone());
            self.report.jobs += page.len() as u64;
            self.report.records += page.len() as u64;
            let mut wanted = Vec::with_capacity(page.len());
            for (key, record) in page {
                let RecordKey::Number(number) = key else { continue };
                self.numbers.push(number);
                let first = Moment::first(self.queue, number, Some(record));
                wanted.push((first, Suspicion::default()));
            }
            for moment in self.moments(wanted).await? {
                if !job::findings(self.queue, &moment)?.is_empty() {
                    self.jobs.entry(moment.number).or_default();
                }
            }
            self.tell("jobs", self.numbers.len() as u64, Some(of));
        }
        self.numbers.sort_unstable();
        Ok(())
    }

    /// What is wrong with each of them once all that leads to it is known.
    async fn suspected_jobs(&mut self) -> Result<(), StoreError> {
        let (mut done, of) = (0, self.jobs.len() as u64);
        let mut suspected = std::mem::take(&mut self.jobs).into_iter().peekable();
        while suspected.peek().is_some() {
            let wanted: Vec<_> = suspected
                .by_ref()
                .take(PAGE)
                .map(|(number, it)| (Moment::first(self.queue, number, None), it))
                .collect();
            done += wanted.len() as u64;
            let mut moments = self.moments(wanted).await?;
            moments.sort_unstable_by_key(|moment| moment.number);
            for moment in moments {
                for (check, what) in job::findings(self.queue, &moment)? {
                    self.found(check, what);
                }
            }
            self.tell("suspected jobs", done, Some(of));
        }
        Ok(())
    }

    /// These jobs, each at one moment. One that never stands still is left out.
    async fn moments(
        &mut self,
        first: Vec<(Moment, Suspicion)>,
    ) -> Result<Vec<Moment>, StoreError> {
        let mut whole = Vec::with_capacity(first.len());
        let mut left: Vec<_> = first.into_iter().map(Look::new).collect();
        for _ in 0..ROUNDS_MAX {
            let mut again = Vec::new();
            while !left.is_empty() {
                let rest = left.split_off(together(&left));
                let reads: Vec<_> = left.iter().flat_map(|look| look.reads.clone()).collect();
                let mut found = self.read(&reads).await?.into_iter();
                for look in left {
                    let found = found.by_ref().take(look.reads.len());
                    let moment = Moment::of(self.queue, look.moment.number, &look.reads, found);
                    let next = Look::new((moment, look.suspicion));
                    if next.reads == look.reads {
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
}

/// How far the pages of a table or an index have come.
struct Pass {
    count: u64,
    most: u64,
    /// The last page was not full. An engine leaves out what it cannot read, so one such page is not the end.
    was_short: bool,
    is_over: bool,
}

impl Pass {
    /// `len`: what there is at its beginning.
    fn new(len: u64) -> Self {
        let most = len.saturating_mul(2).saturating_add(GROWTH_MAX);
        Self { count: 0, most, was_short: false, is_over: false }
    }

    /// What comes after a page that is not full was added meanwhile.
    fn page(&mut self, length: usize, limit: usize) {
        self.count += length as u64;
        let is_short = length < limit;
        self.is_over = is_short && self.was_short || self.count >= self.most;
        self.was_short = is_short;
    }
}

/// A job that is looked at.
struct Look {
    moment: Moment,
    suspicion: Suspicion,
    reads: Vec<Read>,
}

impl Look {
    fn new((moment, suspicion): (Moment, Suspicion)) -> Self {
        let reads = moment.reads(&suspicion);
        Self { moment, suspicion, reads }
    }
}

/// How many of them one read looks at: at least one.
fn together(looks: &[Look]) -> usize {
    let (mut reads, mut bytes) = (0, 0);
    let fits = |look: &&Look| {
        reads += look.reads.len();
        bytes += look.moment.bytes();
        reads <= READS_MAX && bytes <= BYTES_MAX
    };
    looks.iter().take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests;
