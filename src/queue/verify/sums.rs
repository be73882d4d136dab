//! Lengths, totals and counts by type of error, against each other and against what they count.

use super::{Pass, Verification, indexes::range, job::readable, tables};
use crate::{
    queue::{
        facts::{depth_reads, depths},
        records,
    },
    store::{
        AuditedQueue, Check, Depths, StoreError, Totals,
        storage::{Counter, CounterGroup, Found, Index, Len, Read, Reads, Table},
    },
};
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

    fn found(found: Vec<Found>) -> Self {
        let mut found = found.into_iter();
        let depths = depths(&mut found);
        let mut number = || found.next().map_or(0, |found| found.number());
        let (jobs, leases, dead) = (number(), number(), number());
        let mut counters = || found.next().map(Found::counters).unwrap_or_default();
        let totals = counters();
        let error_types = counters().into_iter().filter_map(|(counter, count)| match counter {
            Counter::ErrorType(name) => Some((name, count)),
            _ => None,
        });
        let error_types = error_types.collect();
        Self { depths, jobs, leases, dead, totals, error_types }
    }

    fn totals(&self) -> Totals {
        let mut values = [0; Totals::COUNT];
        for (counter, value) in &self.totals {
            if let Counter::Total(at) = counter
                && let Some(place) = values.get_mut(usize::from(*at))
            {
                *place = u64::try_from(*value).unwrap_or_default();
            }
        }
        Totals::of(values)
    }

    /// What is wrong with them by themselves.
    fn findings(&self) -> Vec<String> {
        let Depths { ready, scheduled, leased, completed, dead, .. } = self.depths;
        let places = ready + scheduled + leased + completed + dead;
        let mut off = Vec::new();
        let pairs = [
            ("jobs and places for", self.jobs, places),
            ("leases and ends for", self.leases, leased),
            ("dead-letter records and positions for", self.dead, dead),
        ];
        for (what, has, other) in pairs.into_iter().filter(|(_, has, other)| has != other) {
            off.push(format!("it has {has} {what} {other}"));
        }
        let types: i64 = self.error_types.values().sum();
        if u64::try_from(types) != Ok(self.dead) {
            let dead = self.dead;
            off.push(format!(
                "{types} dead letters are counted by type of error, and there are {dead}"
            ));
        }
        for (counter, value) in self.totals.iter().filter(|(_, value)| *value < 0) {
            off.push(format!("{counter:?} is {value}"));
        }
        off
    }
}

/// Dead letters as their records say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ByType {
    counts: BTreeMap<Box<str>, i64>,
    /// Their type is not known.
    damaged: i64,
}

impl ByType {
    /// How the counters are not what the records say.
    fn findings(&self, says: &BTreeMap<Box<str>, i64>) -> Vec<String> {
        let mut unknown = self.damaged;
        let mut off = Vec::new();
        for (name, says) in says {
            let has = self.counts.get(name).copied().unwrap_or_default();
            let more = says - has;
            if more > 0 && more <= unknown {
                unknown -= more;
            } else if more != 0 {
                off.push(format!(
                    "{says} dead letters are counted under {name:?}, and there are {has}"
                ));
            }
        }
        for (name, has) in self.counts.iter().filter(|(name, _)| !says.contains_key(*name)) {
            off.push(format!("{has} dead letters died of {name:?}, which is not counted"));
        }
        off
    }
}

impl<S: Reads> Verification<'_, S> {
    pub(super) async fn sums(&mut self) -> Result<(), StoreError> {
        self.tell("counts", 0, None);
        let Some(found) = self.store.read(self.queue, &Sums::reads()).await? else {
            return Ok(());
        };
        let sums = Sums::found(found);
        for what in sums.findings() {
            self.found(Check::Counts, what);
        }
        let (name, totals) = (self.queue.clone(), sums.totals());
        let queue = AuditedQueue { name, totals, depths: sums.depths };
        self.report.check_queue_law(&queue);
        self.report.queues.push(queue);
        self.error_types().await?;
        for index in std::mem::take(&mut self.recount) {
            self.recount(index).await?;
        }
        Ok(())
    }

    async fn read_sums(&mut self) -> Result<Sums, StoreError> {
        self.read(&Sums::reads()).await.map(Sums::found)
    }

    async fn error_types(&mut self) -> Result<(), StoreError> {
        let mut off = Vec::new();
        let mut quiet = 0;
        for _ in 0..ROUNDS_MAX {
            let before = self.read_sums().await?;
            let by_type = self.dead_by_type().await?;
            off = by_type.findings(&before.error_types);
            if off.is_empty() {
                return Ok(());
            }
            quiet = if self.read_sums().await? == before { quiet + 1 } else { 0 };
            if quiet == QUIET_ROUNDS {
                break;
            }
        }
        if quiet == QUIET_ROUNDS {
            for what in off {
                self.found(Check::Counts, what);
            }
        }
        Ok(())
    }

    async fn dead_by_type(&mut self) -> Result<ByType, StoreError> {
        let mut by_type = ByType::default();
        let mut pass = Pass::new(self.len(Len::Table(Table::Dead)).await?);
        let mut after = None;
        while !pass.is_over {
            let page = self.scan(Table::Dead, after).await?;
            let Some((last, _)) = page.last() else { break };
            pass.page(page.len(), tables::page(Table::Dead));
            after = Some(last.clone());
            for (_, record) in page {
                let read = records::read_dead(&record);
                match readable(self.queue, "a dead-letter record", read)? {
                    Some((_, dead)) => {
                        *by_type.counts.entry(dead.counted_as.into()).or_default() += 1;
                    }
                    None => by_type.damaged += 1,
                }
            }
        }
        Ok(by_type)
    }

    /// An index whose entries were more or fewer than its length, which may have been because they changed.
    async fn recount(&mut self, index: Index) -> Result<(), StoreError> {
        let mut quiet = 0;
        for _ in 0..ROUNDS_MAX {
            let before = self.read_sums().await?;
            let reads = [Read::Len(Len::Index(index)), range(index, None, COUNTED_AT_ONCE)];
            let mut found = self.read(&reads).await?.into_iter();
            let len = found.next().map_or(0, |found| found.number());
            let first = found.next().map(Found::entries).unwrap_or_default();
            let at_once = first.len() < COUNTED_AT_ONCE;
            let mut pass = Pass::new(len);
            pass.page(first.len(), COUNTED_AT_ONCE);
            let mut after = first.last().cloned().filter(|_| !at_once);
            while after.is_some() && !pass.is_over {
                let found = self.read_one(range(index, after, COUNTED_AT_ONCE)).await?;
                let page = found.map(Found::entries).unwrap_or_default();
                pass.page(page.len(), COUNTED_AT_ONCE);
                after = page.last().cloned();
            }
            let count = pass.count;
            if count == len {
                return Ok(());
            }
            quiet = if self.read_sums().await? == before { quiet + 1 } else { 0 };
            if at_once || quiet == QUIET_ROUNDS {
                let name = index.name();
                let what = format!("the index {name} counts {len} entries and has {count}");
                self.found(Check::Counts, what);
                return Ok(());
            }
        }
        Ok(())
    }
}
