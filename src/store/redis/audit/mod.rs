//! Looks at everything of a store in Redis and changes nothing. What belongs to one job is read in one step and a page at a
//! time, so nothing has to be remembered, and servers may go on meanwhile: each finding was true at some moment.

mod entries;
mod jobs;

use super::{
    Core, RedisStore,
    record::{self, Number},
    registry::Queue,
    reply::Reply,
    scripts::AUDIT_COUNTS,
    stats::State,
    tally::Counts,
};
use crate::store::{AuditProgress, AuditReport, AuditedQueue, Check, StoreError, Totals};
use std::{collections::BTreeMap, sync::Arc};

/// Entries that one command or script looks at, about.
const PAGE: usize = 100;
/// How often the queues are read before their sums are believed to differ: they are not read in one moment.
const READS_MAX: usize = 5;

/// Hears now and then how far it is.
pub(super) type Tell<'a> = &'a mut (dyn FnMut(AuditProgress) + Send);

impl RedisStore {
    /// Audits the store. `tell` hears now and then how far it is.
    pub async fn audit(&self, tell: Tell<'_>) -> Result<AuditReport, StoreError> {
        let mut audit = Audit { core: &self.core, report: AuditReport::default(), tell };
        let queues = self.core.all_queues().await?;
        let mut leaving = 0;
        for queue in &queues {
            leaving += audit.queue(queue).await?;
        }
        audit.law(leaving).await?;
        Ok(audit.report)
    }
}

pub(super) struct Audit<'a> {
    core: &'a Arc<Core>,
    report: AuditReport,
    tell: Tell<'a>,
}

/// How much there is in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counted {
    number: String,
    deaths: u64,
    last_death: u64,
    leaving: u64,
    jobs: u64,
    ready: u64,
    scheduled: u64,
    leased: u64,
    leases: u64,
    dead: u64,
    kept_deaths: u64,
    overflow: u64,
    completed: u64,
    /// What its breaker counts can be read.
    counts_whole: bool,
    types: BTreeMap<String, u64>,
}

impl Counted {
    fn read(reply: &mut Reply) -> Result<Self, StoreError> {
        let mut counted = Self {
            number: reply.text()?,
            deaths: reply.count()?,
            last_death: reply.count()?,
            leaving: reply.count()?,
            jobs: reply.count()?,
            ready: reply.count()?,
            scheduled: reply.count()?,
            leased: reply.count()?,
            leases: reply.count()?,
            dead: reply.count()?,
            kept_deaths: reply.count()?,
            overflow: reply.count()?,
            completed: reply.count()?,
            counts_whole: Counts::read(reply)?.is_whole(),
            types: BTreeMap::new(),
        };
        while reply.left() > 0 {
            let name = String::from_utf8_lossy(&reply.bytes()?).into_owned();
            counted.types.insert(name, reply.count()?);
        }
        Ok(counted)
    }
}

impl Audit<'_> {
    fn found(&mut self, check: Check, queue: &Queue, what: impl Into<String>) {
        self.report.add(check, queue.name.as_str(), what);
    }

    /// Says how many jobs have just come from other queues, which may not have let go of them.
    async fn queue(&mut self, queue: &Queue) -> Result<u64, StoreError> {
        let before = self.counted(queue).await?;
        self.counts(queue, &before);
        self.jobs(queue, before.jobs).await?;
        self.entries(queue).await?;
        let types = self.died_of(queue).await?;
        let after = self.counted(queue).await?;
        // Where nobody died or came back meanwhile, the counts must be those of the letters.
        if before == after && types != after.types {
            for (error_type, says) in &after.types {
                let has = types.get(error_type).copied().unwrap_or_default();
                if *says != has {
                    let what = format!(
                        "{says} dead letters are said to have died of {error_type:?}, and {has} did"
                    );
                    self.found(Check::Counts, queue, what);
                }
            }
            for (error_type, has) in
                types.iter().filter(|(name, _)| !after.types.contains_key(*name))
            {
                let what =
                    format!("{has} dead letters died of {error_type:?}, which is not counted");
                self.found(Check::Counts, queue, what);
            }
        }
        Ok(after.leaving)
    }

    async fn counted(&self, queue: &Queue) -> Result<Counted, StoreError> {
        let (_, mut reply) = self.core.run(&AUDIT_COUNTS, queue, Vec::new()).await?;
        Counted::read(&mut reply)
    }

    fn counts(&mut self, queue: &Queue, counted: &Counted) {
        self.report.jobs += counted.jobs;
        if counted.number != queue.number.to_string() {
            let what = format!(
                "it has the number {:?}, and is listed as {}",
                counted.number, queue.number
            );
            self.found(Check::Indexes, queue, what);
        }
        let places =
            counted.ready + counted.scheduled + counted.leased + counted.dead + counted.completed;
        let pairs = [
            ("jobs and places for", counted.jobs, places),
            ("leases and looks after", counted.leases, counted.leased),
            ("deaths and dead letters in order:", counted.kept_deaths, counted.dead),
        ];
        for (what, has, other) in pairs.into_iter().filter(|(_, has, other)| has != other) {
            self.found(Check::Counts, queue, format!("it has {has} {what} {other}"));
        }
        if !counted.counts_whole {
            self.found(Check::Checksums, queue, "what its breaker has counted is damaged");
        }
        let (deaths, last) = (counted.deaths, counted.last_death);
        if last > deaths {
            let what = format!("the next dead letter gets number {}, again", deaths + 1);
            self.found(Check::Counts, queue, what);
        }
        let (types, dead) = (counted.types.values().sum::<u64>(), counted.dead);
        if types != dead {
            let what = format!(
                "{types} dead letters are counted by what they died of, and there are {dead}"
            );
            self.found(Check::Counts, queue, what);
        }
    }

    /// How many died of what, from the letters themselves. By their rank: their places may be wrong.
    async fn died_of(&mut self, queue: &Queue) -> Result<BTreeMap<String, u64>, StoreError> {
        let key = queue.keys.of(b'd');
        let mut types = BTreeMap::new();
        for start in (0..).step_by(PAGE) {
            let mut command = redis::cmd("ZRANGE");
            command.arg(key).arg(start).arg(start + PAGE - 1);
            let mut reply = Reply::of(self.core.redis.command(key, command).await?)?;
            let mut numbers = Vec::new();
            while reply.left() > 0 {
                numbers.push(Number::read(&reply.bytes()?));
            }
            for (_, record) in self.core.deaths(queue, &numbers).await? {
                if let Some((_, counted_as)) = record::read_death(&record) {
                    *types.entry(counted_as).or_default() += 1;
                }
            }
            if numbers.len() < PAGE {
                break;
            }
        }
        Ok(types)
    }

    /// Each queue by itself, which is read in one moment; then all together, which are not.
    async fn law(&mut self, leaving: u64) -> Result<(), StoreError> {
        for read in 1..=READS_MAX {
            let states = self.core.states(self.core.all_queues().await?).await?;
            let mut forgotten = self.core.forgotten().await?;
            let mut report = AuditReport::default();
            for (queue, State { totals, depths, elsewhere, .. }) in states {
                forgotten += elsewhere;
                report.queues.push(AuditedQueue { name: queue.name.clone(), totals, depths });
            }
            forgotten += under_way(&report.queues, &forgotten, leaving);
            report.forgotten = forgotten;
            report.check_law();
            if report.is_clean() || read == READS_MAX {
                (self.report.queues, self.report.forgotten) = (report.queues, report.forgotten);
                self.report.findings.extend(report.findings);
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Jobs that have arrived in a queue and are still in the one that they come from, as if they had come from one that is no
/// more: so many that have left are missing.
fn under_way(queues: &[AuditedQueue], forgotten: &Totals, leaving: u64) -> Totals {
    let sum = |of: fn(&Totals) -> u64| {
        queues.iter().map(|queue| of(&queue.totals)).sum::<u64>() + of(forgotten)
    };
    let missing = sum(|totals| totals.moved_in).saturating_sub(sum(|totals| totals.moved_out));
    let count = missing.min(leaving);
    Totals { enqueued: count, moved_out: count, ..Totals::default() }
}
