//! Lengths, totals and counts by type of error, against each other and against what they count.

use super::{PAGE, Pages, Verification, job::readable};
use crate::queue::Depths;
use crate::queue::VerifiedQueue;
use crate::queue::answers::{Answers, ask_if_there, first_of};
use crate::queue::facts::{depth_reads, depths};
use crate::queue::{queues, records};
use crate::store::storage::{Counter, CounterGroup, Index, Len, Read, Reads, Table};
use crate::store::{Check, Result};
use std::collections::BTreeMap;

/// Entries of one read that are counted at one moment.
const COUNTED_AT_ONCE: usize = 2_000;
/// More are counted in pages, so often that nothing changed meanwhile and the counts are still off.
const QUIET_ROUNDS: usize = 3;
const ROUNDS_MAX: usize = 10;

/// The sums of a queue at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sums {
    depths: Depths,
    jobs: u64,
    leases: u64,
    dead: u64,
    totals: Vec<(Counter, i64)>,
    error_types: BTreeMap<Box<str>, i64>,
}

impl Sums {
    fn reads() -> Vec<Read> {
        let tables = [Table::Job, Table::Lease, Table::Dead];
        let tables = tables.map(|table| Read::Len(Len::Table(table)));
        let counters = [CounterGroup::Totals, CounterGroup::ErrorTypes].map(Read::Counters);
        depth_reads().chain(tables).chain(counters).collect()
    }

    fn found(mut found: Answers) -> Self {
        // Fields are read in the order in which they stand here.
        Self {
            depths: depths(&mut found),
            jobs: found.number(),
            leases: found.number(),
            dead: found.number(),
            totals: found.counters(),
            error_types: found.error_types().collect(),
        }
    }

    /// What is wrong with them by themselves.
    fn findings(&self) -> Vec<String> {
        let Depths { ready, scheduled, retrying, leased, completed, cancelled, dead, .. } = self.depths;
        let places = ready + scheduled + retrying + leased + completed + cancelled + dead;
        let pairs = [
            ("jobs and places for", self.jobs, places),
            ("leases and ends for", self.leases, leased),
            ("dead-letter records and positions for", self.dead, dead),
        ];
        let pairs = pairs.into_iter().filter(|(_, has, other)| has != other);
        let mut off: Vec<_> = pairs.map(|(what, has, other)| format!("it has {has} {what} {other}")).collect();
        let types: i64 = self.error_types.values().sum();
        if u64::try_from(types) != Ok(self.dead) {
            let dead = self.dead;
            off.push(format!("{types} dead letters are counted by type of error, and there are {dead}"));
        }
        let negative = self.totals.iter().filter(|(_, value)| *value < 0);
        off.extend(negative.map(|(counter, value)| format!("{counter:?} is {value}")));
        off
    }
}

/// How the counters of dead letters are not what their records say. `unknown`: those whose records are damaged.
fn type_findings(counted: &BTreeMap<Box<str>, i64>, are: &BTreeMap<Box<str>, i64>, mut unknown: i64) -> Vec<String> {
    let mut off = Vec::new();
    for (name, says) in counted {
        let has = are.get(name).copied().unwrap_or_default();
        let more = says - has;
        if more > 0 && more <= unknown {
            unknown -= more;
        } else if more != 0 {
            off.push(format!("{says} dead letters are counted under {name:?}, and there are {has}"));
        }
    }
    for (name, has) in are.iter().filter(|(name, _)| !counted.contains_key(*name)) {
        off.push(format!("{has} dead letters died of {name:?}, which is not counted"));
    }
    off
}

impl<S: Reads> Verification<'_, S> {
    pub(super) async fn sums(&mut self) -> Result<()> {
        self.report_progress("counts", 0, None);
        let Some(found) = ask_if_there(self.store, self.queue, &Sums::reads()).await? else { return Ok(()) };
        let sums = Sums::found(found);
        for what in sums.findings() {
            self.found(Check::Counts, what);
        }
        let (name, depths) = (self.queue.clone(), sums.depths);
        let queue = VerifiedQueue { name, totals: queues::totals(sums.totals), depths };
        self.report.check_law(&queue);
        self.report.queues.push(queue);
        self.count_again(None).await?;
        for index in std::mem::take(&mut self.recount) {
            self.count_again(Some(index)).await?;
        }
        Ok(())
    }

    async fn read_sums(&mut self) -> Result<Sums> {
        self.read(&Sums::reads()).await.map(Sums::found)
    }

    /// Counts the entries of an index, or the dead letters by type of error. What is off is reported if it was counted at one
    /// moment or nothing changed meanwhile.
    async fn count_again(&mut self, index: Option<Index>) -> Result<()> {
        let mut quiet = 0;
        for _ in 0..ROUNDS_MAX {
            let before = self.read_sums().await?;
            let (off, at_once) = match index {
                Some(index) => self.count_entries(index).await?,
                None => (self.count_types(&before.error_types).await?, false),
            };
            if off.is_empty() {
                return Ok(());
            }
            quiet = if self.read_sums().await? == before { quiet + 1 } else { 0 };
            if at_once || quiet == QUIET_ROUNDS {
                off.into_iter().for_each(|what| self.found(Check::Counts, what));
                return Ok(());
            }
        }
        Ok(())
    }

    async fn count_types(&mut self, counted: &BTreeMap<Box<str>, i64>) -> Result<Vec<String>> {
        let (mut are, mut unknown) = (BTreeMap::new(), 0);
        let mut pages = Pages::new(PAGE, self.len(Len::Table(Table::Dead)).await?);
        while let Some(page) = self.records(Table::Dead, &mut pages).await? {
            for (_, record) in page {
                match readable(self.queue, "a dead-letter record", records::read_dead(&record))? {
                    Some((_, dead)) => *are.entry(dead.counted_as.into()).or_default() += 1,
                    None => unknown += 1,
                }
            }
        }
        Ok(type_findings(counted, &are, unknown))
    }

    /// And whether that was at one moment.
    async fn count_entries(&mut self, index: Index) -> Result<(Vec<String>, bool)> {
        let reads = [Read::Len(Len::Index(index)), first_of(index, COUNTED_AT_ONCE)];
        let mut found = self.read(&reads).await?;
        let (len, first) = (found.number(), found.entries());
        let at_once = first.len() < COUNTED_AT_ONCE;
        let mut pages = Pages::new(COUNTED_AT_ONCE, len);
        pages.turn(first.len(), first.last().cloned());
        while !at_once && self.entries(index, &mut pages).await?.is_some() {}
        let (name, count) = (index.name(), pages.count);
        let off = (count != len).then(|| format!("the index {name} counts {len} entries and has {count}"));
        Ok((off.into_iter().collect(), at_once))
    }
}
