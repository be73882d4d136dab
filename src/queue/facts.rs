//! Facts: what a decision is made from, as it was read.

use super::{
    context::{CallContext, epoch, record},
    records::{self, History, KeyRecord, LeaseRecord, OutcomesRecord, QueueRecord, Whereabouts},
    state_changes::{FIRST_FAILURE, LAST_FAILURE},
};
use crate::{
    domain::{
        breaker::{Breaker, Gate, Tally},
        failure::Failure,
        ids::QueueName,
        job::{Progress, Sameness, Spec},
        settings::QueueSettings,
        time::Timestamp,
    },
    store::{
        Depths, StoreError,
        storage::{
            Counter, CounterGroup, Entry, Fence, Found, Index, Len, Mark, Member, NO_GROUP, Read,
            Reads, RecordKey, Table, Version, WHOLE_QUEUE, flag,
        },
    },
};
use bytes::Bytes;
use std::{collections::HashMap, sync::Arc};

// ---- the queue ----

/// What holds a queue back.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueFacts {
    pub(crate) whole: Version,
    pub(crate) version: Version,
    pub(crate) queue: QueueRecord,
    pub(crate) queue_record: Option<Bytes>,
    pub(crate) breaker: Breaker,
    /// When each probe of this epoch started. Not fenced.
    pub(crate) probes: Vec<Timestamp>,
}

/// Probes that are looked at: more are out only after settings were changed.
const PROBES_MAX: usize = 1_000;

impl QueueFacts {
    pub(crate) const READS: usize = 5;

    pub(crate) fn reads() -> [Read; Self::READS] {
        let record = |table, group| Read::Record(table, RecordKey::Group(group));
        [
            record(Table::Version, WHOLE_QUEUE),
            record(Table::Version, NO_GROUP),
            Read::Record(Table::Queue, RecordKey::Only),
            record(Table::Breaker, NO_GROUP),
            range(Index::Probe, None, PROBES_MAX),
        ]
    }

    pub(crate) fn found(found: &mut impl Iterator<Item = Found>) -> Result<Self, StoreError> {
        let mut next = || found.next().unwrap_or(Found::Record(None));
        let whole = Version::read(next().record().as_deref());
        let version = Version::read(next().record().as_deref());
        let queue_record = next().record();
        let queue =
            queue_record.as_deref().map(|it| record(records::read_queue(it))).transpose()?;
        let breaker = next().record();
        let breaker = breaker.as_deref().map(|it| record(records::read_breaker(it))).transpose()?;
        let breaker = breaker.unwrap_or_default();
        let current = epoch(&breaker);
        let started = |entry: Entry| match entry.member {
            Member::Probe { epoch, .. } if epoch == current => {
                Some(Timestamp::from_millis(entry.score))
            }
            _ => None,
        };
        let probes = next().entries().into_iter().filter_map(started).collect();
        let queue = queue.unwrap_or_default();
        Ok(Self { whole, version, queue, queue_record, breaker, probes })
    }

    /// As the store has them now. None: there is no such queue.
    pub(crate) async fn read<S: Reads>(
        store: &mut S,
        queue: &QueueName,
    ) -> Result<Option<Self>, StoreError> {
        let Some(found) = store.read(queue, &Self::reads()).await? else { return Ok(None) };
        Self::found(&mut found.into_iter()).map(Some)
    }

    /// The same, remembered.
    pub(crate) async fn read_anew<S: Reads>(
        store: &mut S,
        queue: &QueueName,
        cx: &CallContext<'_>,
    ) -> Result<Option<Arc<Self>>, StoreError> {
        let facts = Self::read(store, queue).await?.map(Arc::new);
        match &facts {
            Some(facts) => cx.memory.remember(queue, facts.clone()),
            None => cx.memory.forget(queue),
        }
        Ok(facts)
    }

    /// As they are remembered, or else as the store has them: for what is fenced by versions, or only told.
    pub(crate) async fn remembered<S: Reads>(
        store: &mut S,
        queue: &QueueName,
        cx: &CallContext<'_>,
    ) -> Result<Option<Arc<Self>>, StoreError> {
        match cx.memory.facts(queue) {
            Some(facts) => Ok(Some(facts)),
            None => Self::read_anew(store, queue, cx).await,
        }
    }

    pub(crate) fn is_paused(&self, now: Timestamp) -> bool {
        self.queue.pause.as_ref().is_some_and(|pause| pause.holds(now))
    }

    /// What may leave the queue now.
    pub(crate) fn admission(&self, settings: &QueueSettings, now: Timestamp) -> Gate<'_> {
        if self.is_paused(now) {
            let until = self.queue.pause.as_ref().and_then(|pause| pause.until);
            return Gate::Held { until };
        }
        self.breaker.gate(&settings.breaker, self.probes.iter().copied(), now)
    }

    /// Holds while the record of the queue is this one.
    pub(crate) fn queue_fence(&self) -> Fence {
        record_fence(Table::Queue, RecordKey::Only, self.queue_record.as_ref())
    }
}

/// Holds while a record is as it was read.
pub(crate) fn record_fence(table: Table, key: RecordKey, found: Option<&Bytes>) -> Fence {
    match found {
        Some(record) => Fence::Is(table, key, record.clone()),
        None => Fence::Absent(table, key),
    }
}

pub(crate) fn range(index: Index, up_to: Option<u64>, limit: usize) -> Read {
    Read::Range { index, after: None, up_to, limit, reverse: false }
}

// ---- what a closed breaker has counted ----

/// Counts of outcomes under one epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutcomeFacts {
    record: Option<Bytes>,
    pub(crate) tally: Tally,
    epoch: u32,
    succeeded: u64,
}

impl OutcomeFacts {
    pub(crate) const READS: usize = 3;

    /// `epoch`: of the deliveries that ended. Outcomes of another one count nowhere.
    pub(crate) fn reads(epoch: u32) -> [Read; Self::READS] {
        [
            Read::Record(Table::Outcomes, RecordKey::Only),
            Read::Counters(CounterGroup::Succeeded(epoch)),
            Read::Mark(Mark::LastSuccess(epoch)),
        ]
    }

    pub(crate) fn found(
        epoch: u32,
        found: &mut impl Iterator<Item = Found>,
    ) -> Result<Self, StoreError> {
        let mut next = || found.next().unwrap_or(Found::Record(None));
        let raw = next().record();
        let succeeded: i64 = next().counters().into_iter().map(|(_, count)| count).sum();
        let succeeded = succeeded.max(0).cast_unsigned();
        let last = next().score().map(Timestamp::from_millis);
        let kept = raw.as_deref().map(|it| record(records::read_outcomes(it))).transpose()?;
        let OutcomesRecord { epoch: of, mut tally, succeeded: seen } = kept.unwrap_or_default();
        let seen = if of == epoch { seen } else { 0 };
        if let Some(last) = last {
            tally.successes(succeeded.saturating_sub(seen), last);
        }
        Ok(Self { record: raw, tally, epoch, succeeded })
    }

    /// Holds while what was counted is what was read.
    pub(crate) fn fence(&self) -> Fence {
        record_fence(Table::Outcomes, RecordKey::Only, self.record.as_ref())
    }

    /// `epoch`: from now on.
    pub(crate) fn record(&self, tally: Tally, epoch: u32) -> Bytes {
        let succeeded = if epoch == self.epoch { self.succeeded } else { 0 };
        records::outcomes(&OutcomesRecord { epoch, tally, succeeded })
    }
}

// ---- a job ----

/// A job as its records are.
#[derive(Clone, Debug)]
pub(crate) struct JobFacts {
    pub(crate) number: u64,
    /// All of it but its body; a stand-in where it cannot be read.
    pub(crate) spec: Spec,
    /// Of Job and History.
    pub(crate) traits: u8,
    pub(crate) history: Option<History>,
    /// There is a record, readable or not.
    pub(crate) has_history: bool,
    /// The record of the job is there.
    pub(crate) exists: bool,
    /// Of a job with a key.
    pub(crate) sameness: Option<Sameness>,
}

impl JobFacts {
    pub(crate) fn of(
        number: u64,
        job: Option<&Bytes>,
        history: Option<&Bytes>,
    ) -> Result<Self, StoreError> {
        let spec = records::job_or_stand_in(number, job)?;
        let kept = history.map(|it| records::readable(records::read_history(it))).transpose()?;
        let bits = |record: Option<&Bytes>| record.map_or(0, |it| records::traits(it));
        let history_bit = if history.is_some() { flag::HISTORY } else { 0 };
        Ok(Self {
            number,
            spec,
            traits: bits(job) | bits(history) | history_bit,
            history: kept.flatten(),
            has_history: history.is_some(),
            exists: job.is_some(),
            sameness: job
                .and_then(|it| records::read_job_rest(it).ok())
                .and_then(|(sameness, _)| sameness),
        })
    }

    pub(crate) fn reads(number: u64) -> [Read; 2] {
        let key = || RecordKey::Number(number);
        [Read::Record(Table::Job, key()), Read::Record(Table::History, key())]
    }

    pub(crate) fn found(
        number: u64,
        found: &mut impl Iterator<Item = Found>,
    ) -> Result<Self, StoreError> {
        let mut next = || found.next().and_then(Found::record);
        let (job, history) = (next(), next());
        Self::of(number, job.as_ref(), history.as_ref())
    }

    /// What it has been through; of a fresh job nothing.
    pub(crate) fn progress(&self) -> Progress {
        self.history.as_ref().map(|history| history.progress.clone()).unwrap_or_default()
    }

    /// Its history to be written again.
    pub(crate) fn next_history(&self, progress: Progress) -> History {
        let before = self.history.clone().unwrap_or_default();
        History { progress, rank: records::rank(self.spec.priority), ..before }
    }

    /// Where it is, unless it is leased. One that waits is there or, once it was promoted, in `Ready`.
    pub(crate) fn whereabouts(&self, now: Timestamp) -> (Whereabouts, Timestamp) {
        match &self.history {
            Some(history) => (history.whereabouts, history.at),
            None if self.spec.run_at > now => (Whereabouts::Scheduled, self.spec.run_at),
            // It may have been scheduled when it was enqueued.
            None if self.spec.run_at > self.spec.enqueued_at => {
                (Whereabouts::Scheduled, self.spec.run_at)
            }
            None => (Whereabouts::Ready, self.spec.run_at),
        }
    }

    pub(crate) fn rank(&self) -> u8 {
        match &self.history {
            Some(history) => history.rank,
            None => records::rank(self.spec.priority),
        }
    }
}

/// A delivery that ends, and its job.
#[derive(Clone, Debug)]
pub(crate) struct LeaseFacts {
    pub(crate) lease: LeaseRecord,
    pub(crate) record: Bytes,
    /// In `Leased`.
    pub(crate) score: u64,
    pub(crate) job: JobFacts,
}

impl LeaseFacts {
    pub(crate) const READS: usize = 4;

    pub(crate) fn reads(number: u64) -> [Read; Self::READS] {
        let [job, history] = JobFacts::reads(number);
        let lease = Read::Record(Table::Lease, RecordKey::Number(number));
        [lease, Read::Score(Index::Leased, Member::Number(number)), job, history]
    }

    /// The lease that is out, if any, and the job.
    pub(crate) fn found(
        queue: &QueueName,
        number: u64,
        found: &mut impl Iterator<Item = Found>,
    ) -> Result<(Option<Self>, JobFacts), StoreError> {
        let raw = found.next().and_then(Found::record);
        let score = found.next().and_then(|found| found.score()).unwrap_or_default();
        let job = JobFacts::found(number, found)?;
        let Some(raw) = raw else { return Ok((None, job)) };
        let lease = records::readable(records::read_lease(queue, number, &raw))?;
        let facts = lease.map(|lease| Self { lease, record: raw, score, job: job.clone() });
        Ok((facts, job))
    }

    /// Progress while it is out: the delivery that runs is counted.
    pub(crate) fn progress(&self) -> Progress {
        let mut progress = self.job.progress();
        progress.deliveries = self.lease.lease.delivery;
        progress.cancel_requested |= self.lease.tail.cancel_requested;
        progress
    }

    /// Holds while the lease is as it was read.
    pub(crate) fn fence(&self) -> Fence {
        let key = RecordKey::Number(self.job.number);
        Fence::Is(Table::Lease, key, self.record.clone())
    }

    /// Holds while its end is the one that was read: an Extend changes nothing else.
    pub(crate) fn expiry_fence(&self) -> Fence {
        Fence::At(Index::Leased, Entry::number(self.score, self.job.number))
    }
}

// ---- dead letters ----

/// What deaths depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeadFacts {
    pub(crate) depths: Depths,
    /// Types of error that are counted one by one.
    pub(crate) error_types: Vec<Box<str>>,
    /// Who has the keys of the jobs.
    keys: HashMap<String, KeyRecord>,
    /// The types of their last failures.
    failures: HashMap<u64, String>,
}

const DEPTHS: [Index; 7] = [
    Index::Ready,
    Index::Scheduled,
    Index::Retrying,
    Index::Leased,
    Index::Completed,
    Index::Dead,
    Index::Overflow,
];

/// Reads of [`depths`].
pub(crate) fn depth_reads() -> impl Iterator<Item = Read> {
    DEPTHS.into_iter().map(|index| Read::Len(Len::Index(index)))
}

pub(crate) fn depths(found: &mut impl Iterator<Item = Found>) -> Depths {
    let mut next = || found.next().map_or(0, |found| found.number());
    let (ready, scheduled, retrying) = (next(), next(), next());
    let (leased, completed, dead, overflow) = (next(), next(), next(), next());
    let scheduled = scheduled + retrying;
    Depths { ready, scheduled, leased, completed, dead: dead + overflow, overflow }
}

impl DeadFacts {
    /// For these jobs, which die.
    pub(crate) async fn read<S: Reads>(
        store: &mut S,
        queue: &QueueName,
        jobs: &[&JobFacts],
    ) -> Result<Self, StoreError> {
        let mut reads: Vec<_> = depth_reads().collect();
        reads.push(Read::Counters(CounterGroup::ErrorTypes));
        let failed = |job: &&&JobFacts| job.progress().last_failed_at.is_some();
        for job in jobs.iter().filter(failed) {
            reads.extend(failure_reads(job.number));
        }
        for key in jobs.iter().filter_map(|job| job.spec.key.as_deref()) {
            reads.push(Read::Record(Table::Key, RecordKey::Text(key.into())));
        }
        let found = store.read(queue, &reads).await?.unwrap_or_default();
        let mut found = found.into_iter();
        let mut facts = Self { depths: depths(&mut found), ..Self::default() };
        let counters = found.next().map(Found::counters).unwrap_or_default();
        let names = counters.into_iter().filter_map(|(counter, _)| match counter {
            Counter::ErrorType(name) => Some(name),
            _ => None,
        });
        facts.error_types = names.collect();
        for job in jobs.iter().filter(failed) {
            let failure = last_failure(&mut found)?;
            facts.failures.extend(failure.map(|failure| (job.number, failure.error_type)));
        }
        for key in jobs.iter().filter_map(|job| job.spec.key.as_deref()) {
            if let Some(record) = found.next().and_then(Found::record)
                && let Some(record) = records::readable(records::read_key(&record))?
            {
                facts.keys.insert(key.to_owned(), record);
            }
        }
        Ok(facts)
    }

    pub(crate) fn key(&self, key: &str) -> Option<&KeyRecord> {
        self.keys.get(key)
    }

    /// Of the job's last failure; empty where there was none.
    pub(crate) fn error_type(&self, number: u64) -> String {
        self.failures.get(&number).cloned().unwrap_or_default()
    }
}

/// Reads of [`last_failure`].
pub(crate) fn failure_reads(number: u64) -> [Read; 2] {
    [LAST_FAILURE, FIRST_FAILURE]
        .map(|part| Read::Record(Table::Failure, RecordKey::Part(number, part)))
}

/// The last failure, which may be the first too.
pub(crate) fn last_failure(
    found: &mut impl Iterator<Item = Found>,
) -> Result<Option<Failure>, StoreError> {
    let (last, first) =
        (found.next().and_then(Found::record), found.next().and_then(Found::record));
    let failure = last.or(first).map(|it| records::readable(records::read_failure(&it)));
    Ok(failure.transpose()?.flatten())
}
