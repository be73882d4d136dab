//! Facts: what a decision is made from, as it was read.

use super::answers::{Answers, ask, ask_if_there, by_name, first_of, numbered};
use super::context::{CallContext, epoch, overtaken};
use super::encoding::Unknown;
use super::records::{self, History, KeyRecord, LeaseRecord, OutcomesRecord, QueueRecord, Whereabouts, read_if};
use super::state_changes::{Changes, FIRST_FAILURE, LAST_FAILURE};
use crate::domain::{
    Admission, Breaker, Failure, Gate, Guard, Lease, OutcomeStats, Progress, QueueName, QueueSettings, Sameness, Spec,
    Successes, Timestamp,
};
use crate::queue::Depths;
use crate::store::Result;
use crate::store::storage::{
    CounterGroup, Entry, Fence, Index, Len, Member, NO_GROUP, OutcomeSums, Read, Reads, RecordKey, Table, Version,
    WHOLE_QUEUE, epoch_of, flag, group_of, transitions_of,
};
use bytes::Bytes;
use std::{collections::HashMap, sync::Arc};

/// How often others may overtake a call before it gives up.
const ROUNDS_MAX: usize = 50;
/// So often as one batch; from then on one batch for each job.
const JOINT_ROUNDS: usize = 3;

/// Rounds of a call that reads again because its facts were old.
#[derive(Debug, Default)]
pub(crate) struct Rounds(usize);

impl Rounds {
    /// One more round.
    pub(crate) fn next(&mut self) -> Result<()> {
        self.0 += 1;
        if self.0 > ROUNDS_MAX { Err(overtaken()) } else { Ok(()) }
    }

    /// Jobs of the next batch, where every round was lost.
    pub(crate) fn width(&self) -> usize {
        if self.0 < JOINT_ROUNDS { usize::MAX } else { 1 }
    }

    /// A batch was applied; the next one begins as it did.
    pub(crate) fn won(&mut self) {
        self.0 = if self.0 < JOINT_ROUNDS { 0 } else { JOINT_ROUNDS };
    }
}

// ---- the queue ----

/// What holds a queue back: the whole of it, and the jobs of one group.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueFacts {
    pub(crate) whole: Version,
    pub(crate) queue: QueueRecord,
    pub(crate) queue_record: Option<Bytes>,
    /// Groups of breaker keys. Not fenced.
    pub(crate) keys: u64,
    /// The one that the rest is of.
    pub(crate) group: u16,
    pub(crate) version: Version,
    pub(crate) breaker: Breaker,
    pub(crate) breaker_record: Option<Bytes>,
    /// Beside it in its record.
    pub(crate) breaker_unknown: Unknown,
    /// When each probe of this epoch started. Not fenced.
    pub(crate) probes: Vec<Timestamp>,
    pub(crate) outcomes_record: Option<Bytes>,
    /// What a success takes, of late. Not fenced.
    pub(crate) took_ms: f64,
}

/// Probes that are looked at: more are out only after settings were changed.
const PROBES_MAX: usize = 1_000;

impl QueueFacts {
    pub(crate) fn reads(group: u16) -> [Read; 7] {
        let record = |table, group| Read::Record(table, RecordKey::Group(group));
        [
            record(Table::Version, WHOLE_QUEUE),
            Read::Record(Table::Queue, RecordKey::Only),
            Read::Len(Len::Table(Table::Group)),
            record(Table::Version, group),
            record(Table::Breaker, group),
            first_of(Index::Probe, PROBES_MAX),
            record(Table::Outcomes, group),
        ]
    }

    pub(crate) fn found(group: u16, found: &mut Answers) -> Result<Self> {
        let whole = Version::read(found.record().as_deref());
        let queue_record = found.record();
        let queue = read_if(queue_record.as_ref(), records::read_queue)?.unwrap_or_default();
        let keys = found.number();
        let version = Version::read(found.record().as_deref());
        let breaker_record = found.record();
        let (breaker, breaker_unknown) =
            read_if(breaker_record.as_ref(), records::read_breaker_whole)?.unwrap_or_default();
        let current = epoch(group, &breaker);
        let started = |entry: Entry| match entry.member {
            Member::Probe { epoch, .. } if epoch == current => Some(Timestamp::from_millis(entry.score)),
            _ => None,
        };
        let probes = found.entries().into_iter().filter_map(started).collect();
        let outcomes_record = found.record();
        let outcomes = read_if(outcomes_record.as_ref(), records::read_outcomes)?.filter(|it| it.epoch == current);
        let took_ms = match outcomes {
            Some(outcomes) => outcomes.outcome_stats.took_ms,
            None => OutcomeStats::new(breaker.usual.clone(), Timestamp::default()).took_ms,
        };
        Ok(Self {
            whole,
            queue,
            queue_record,
            keys,
            group,
            version,
            breaker,
            breaker_record,
            breaker_unknown,
            probes,
            outcomes_record,
            took_ms,
        })
    }

    /// Of the jobs without a breaker key, as the store has them now. None: there is no such queue.
    pub(crate) async fn read<S: Reads>(store: &mut S, queue: &QueueName) -> Result<Option<Self>> {
        Self::read_group(store, queue, NO_GROUP).await
    }

    /// The same of a group.
    pub(crate) async fn read_group<S: Reads>(store: &mut S, queue: &QueueName, group: u16) -> Result<Option<Self>> {
        let found = ask_if_there(store, queue, &Self::reads(group)).await?;
        found.map(|mut found| Self::found(group, &mut found)).transpose()
    }

    /// The same, remembered.
    pub(crate) async fn read_anew<S: Reads>(
        store: &mut S, queue: &QueueName, group: u16, cx: &CallContext<'_>,
    ) -> Result<Option<Arc<Self>>> {
        let facts = Self::read_group(store, queue, group).await?.map(Arc::new);
        match &facts {
            Some(facts) => cx.memory.remember(queue, facts.clone()),
            None => cx.memory.forget(queue),
        }
        Ok(facts)
    }

    /// As they are remembered, or else as the store has them: for what is fenced by versions, or only published.
    pub(crate) async fn remembered<S: Reads>(
        store: &mut S, queue: &QueueName, cx: &CallContext<'_>,
    ) -> Result<Option<Arc<Self>>> {
        match cx.memory.facts(queue) {
            Some(facts) => Ok(Some(facts)),
            None => Self::read_anew(store, queue, NO_GROUP, cx).await,
        }
    }

    /// So many jobs of a queue are ready: those that may leave it are published.
    pub(crate) async fn tell_ready<S: Reads>(
        store: &mut S, queue: &QueueName, cx: &mut CallContext<'_>, ready: u64, now: Timestamp,
    ) -> Result<()> {
        if let Some(facts) = Self::remembered(store, queue, cx).await? {
            cx.available(queue, &facts, ready, now);
        }
        Ok(())
    }

    /// The breaker has made a transition since this epoch began: its outcomes count nowhere.
    pub(crate) fn is_over(&self, epoch: u32) -> bool {
        let now = self.breaker.transitions;
        group_of(epoch) == group_of(self.version.epoch) && transitions_of(epoch, now) < now
    }

    /// When its pause ends by the clock.
    pub(crate) fn paused_until(&self) -> Option<Timestamp> {
        self.queue.pause.as_ref()?.until
    }

    /// An operator holds all jobs of the queue, those with a breaker key too.
    pub(crate) fn holds_all(&self, now: Timestamp) -> bool {
        let paused = self.queue.pause.as_ref().is_some_and(|pause| pause.holds(now));
        let forced = self.breaker.forced.as_ref().is_some_and(|forced| forced.open);
        paused || forced && self.group == NO_GROUP
    }

    /// What all jobs of the queue pass together.
    pub(crate) fn whole_gate<'f>(&'f self, settings: &'f QueueSettings) -> Gate<'f> {
        let QueueSettings { max_in_flight, max_rate, .. } = *settings;
        Gate { pause: self.queue.pause.as_ref(), max_in_flight, max_rate, ..Gate::default() }
    }

    /// What those of its group pass.
    pub(crate) fn gate<'f>(&'f self, settings: &'f QueueSettings) -> Gate<'f> {
        let guard = Some(Guard { breaker: &self.breaker, settings: &settings.breaker, took_ms: self.took_ms });
        let limits = if self.group == NO_GROUP { None } else { settings.limits_of_key(&self.breaker.key) };
        let (max_in_flight, max_rate) =
            limits.map(|limits| (limits.max_in_flight, limits.max_rate)).unwrap_or_default();
        Gate { guard, max_in_flight, max_rate, ..Gate::default() }
    }

    /// What of the jobs without a breaker key may leave the queue now, their probes that are out considered.
    pub(crate) fn admission<'f>(&'f self, settings: &'f QueueSettings, now: Timestamp) -> Admission<'f> {
        let all = Gate { guard: self.gate(settings).guard, ..self.whole_gate(settings) };
        all.admission(self.probes.iter().copied(), now)
    }

    /// The breaker is another: its record, which the sweep works at under the same version (`queue/returned.rs`).
    pub(crate) fn put_breaker_record(&mut self, changes: &mut Changes) {
        let (key, record) = (RecordKey::Group(self.group), records::breaker(&self.breaker, &self.breaker_unknown));
        changes.fence(record_fence(Table::Breaker, key.clone(), self.breaker_record.as_ref()));
        changes.put(Table::Breaker, key, record.clone());
        self.breaker_record = Some(record);
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

// ---- what a breaker knows of outcomes ----

/// Counts of outcomes under one epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutcomeFacts {
    group: u16,
    record: Option<Bytes>,
    pub(crate) outcome_stats: OutcomeStats,
}

impl OutcomeFacts {
    /// `epoch`: of the deliveries that ended. Outcomes of another one count nowhere.
    pub(crate) fn reads(epoch: u32) -> [Read; 1] {
        [Read::Sums(epoch)]
    }

    pub(crate) fn found(queue: &QueueFacts, of: u32, found: &mut Answers, now: Timestamp) -> Result<Self> {
        let (sums, last) = found.sums();
        let record = queue.outcomes_record.clone();
        let current = epoch(queue.group, &queue.breaker);
        let kept = read_if(record.as_ref(), records::read_outcomes)?.filter(|kept| kept.epoch == current);
        let mut outcome_stats = match kept {
            Some(kept) => kept.outcome_stats,
            None => OutcomeStats::new(queue.breaker.usual.clone(), now),
        };
        if of == current && queue.breaker.outage.is_none() {
            let OutcomeSums { succeeded: count, retried, took_ms, ln_took } = sums;
            outcome_stats.absorb(Successes { count, retried, took_ms, ln_took }, last);
        }
        Ok(Self { group: queue.group, record, outcome_stats })
    }

    /// Holds while what was counted is what was read.
    pub(crate) fn fence(&self) -> Fence {
        record_fence(Table::Outcomes, RecordKey::Group(self.group), self.record.as_ref())
    }

    /// What is known from now on, under the breaker's epoch.
    pub(crate) fn put(&self, outcome_stats: OutcomeStats, queue: &mut QueueFacts, changes: &mut Changes) {
        queue.took_ms = outcome_stats.took_ms;
        let epoch = epoch(queue.group, &queue.breaker);
        let record = records::outcomes(&OutcomesRecord { epoch, outcome_stats });
        changes.put(Table::Outcomes, RecordKey::Group(queue.group), record.clone());
        queue.outcomes_record = Some(record);
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
    /// Of its breaker key, as its record says: its history knows better.
    job_group: u16,
    /// The record of the job is there.
    pub(crate) exists: bool,
    /// Of a job with a key.
    pub(crate) sameness: Option<Sameness>,
}

impl JobFacts {
    pub(crate) fn of(number: u64, job: Option<&Bytes>, history: Option<&Bytes>) -> Result<Self> {
        let (spec, sameness, job_group) = records::job_with_rest(number, job)?;
        let bits = |record: Option<&Bytes>| record.map_or(0, |it| records::traits(it));
        let past = read_if(history, records::read_history)?;
        let history_bits = match (history, &past) {
            (None, _) => 0,
            (Some(_), Some(_)) => flag::HISTORY,
            // Of a damaged one it is not known whether there are events.
            (Some(_), None) => flag::HISTORY | flag::LOOK,
        };
        Ok(Self {
            number,
            spec,
            traits: bits(job) | bits(history) | history_bits,
            history: past,
            has_history: history.is_some(),
            job_group,
            exists: job.is_some(),
            sameness,
        })
    }

    pub(crate) fn reads(number: u64) -> [Read; 2] {
        [Table::Job, Table::History].map(|table| numbered(table, number))
    }

    pub(crate) fn found(number: u64, found: &mut Answers) -> Result<Self> {
        let (job, history) = (found.record(), found.record());
        Self::of(number, job.as_ref(), history.as_ref())
    }

    /// What it has been through, unless it is fresh.
    pub(crate) fn past(&self) -> Option<&Progress> {
        self.history.as_ref().map(|history| &history.progress)
    }

    /// The same; of a fresh job nothing.
    pub(crate) fn progress(&self) -> Progress {
        self.past().cloned().unwrap_or_default()
    }

    /// Its history to be written again.
    pub(crate) fn next_history(&self, progress: Progress) -> History {
        let rank = records::rank(self.spec.priority);
        match &self.history {
            Some(before) => {
                let (learnt_key, unknown) = (before.learnt_key.clone(), before.unknown.clone());
                History { progress, rank, learnt_key, unknown, ..*before }
            }
            None => History { progress, rank, group: self.job_group, ..History::default() },
        }
    }

    /// Where it waits or runs: of its breaker key.
    pub(crate) fn group(&self) -> u16 {
        self.history.as_ref().map_or(self.job_group, |history| history.group)
    }

    /// The breaker key that a failure named last, or else the one that it was enqueued with.
    pub(crate) fn breaker_key(&self) -> Option<&str> {
        let learnt = self.history.as_ref().and_then(|history| history.learnt_key.as_deref());
        learnt.or(self.spec.breaker_key.as_deref())
    }

    /// Where it is, unless it is leased. One that waits is there or, once it was promoted, in `Ready`.
    pub(crate) fn whereabouts(&self, now: Timestamp) -> (Whereabouts, Timestamp) {
        match &self.history {
            Some(history) => (history.whereabouts, history.at),
            None if self.spec.run_at > now => (Whereabouts::Scheduled, self.spec.run_at),
            // It may have been scheduled when it was enqueued.
            None if self.spec.run_at > self.spec.enqueued_at => (Whereabouts::Scheduled, self.spec.run_at),
            None => (Whereabouts::Ready, self.spec.run_at),
        }
    }

    pub(crate) fn rank(&self) -> u8 {
        self.history.as_ref().map_or_else(|| records::rank(self.spec.priority), |history| history.rank)
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
    pub(crate) fn reads(number: u64) -> [Read; 4] {
        let [job, history] = JobFacts::reads(number);
        [numbered(Table::Lease, number), Read::Score(Index::Leased, Member::Number(number)), job, history]
    }

    /// The lease that is out and its job; an error is the job alone.
    pub(crate) fn found(queue: &QueueName, number: u64, found: &mut Answers) -> Result<Result<Self, JobFacts>> {
        let (record, score) = (found.record(), found.score().unwrap_or_default());
        let job = JobFacts::found(number, found)?;
        let lease = read_if(record.as_ref(), |it| records::read_lease(queue, number, it))?;
        Ok(match (lease, record) {
            (Some(lease), Some(record)) => Ok(Self { lease, record, score, job }),
            _ => Err(job),
        })
    }

    /// None: it is not out, or not under this token.
    pub(crate) async fn read<S: Reads>(store: &mut S, lease: &Lease) -> Result<Option<Self>> {
        let mut found = ask(store, &lease.queue, &Self::reads(lease.number)).await?;
        let facts = Self::found(&lease.queue, lease.number, &mut found)?;
        Ok(facts.ok().filter(|facts| facts.lease.lease.fence() == lease.fence()))
    }

    /// Progress while it is out: the delivery that runs is counted.
    pub(crate) fn progress(&self) -> Progress {
        let mut progress = self.job.progress();
        progress.deliveries = self.lease.lease.delivery;
        let returned = self.lease.tail.returned.min(progress.tries);
        progress.tries -= returned;
        progress.uncounted += returned;
        if returned > 0 {
            progress.uncounted_since.get_or_insert(self.lease.lease.started_at);
        }
        // What the lease says becomes an event as it ends.
        progress.events += u32::from(self.lease.tail.cancel_requested.is_some());
        progress.cancel_requested |= self.lease.tail.cancel_requested.is_some();
        progress
    }

    /// The history of its job, to be written as this delivery ends.
    pub(crate) fn next_history(&self, progress: Progress) -> History {
        History { nonce: self.lease.lease.nonce, ..self.job.next_history(progress) }
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

/// What the ends of deliveries depend on.
pub(crate) struct DeliveryFacts {
    pub(crate) queue: QueueFacts,
    pub(crate) outcomes: OutcomeFacts,
    /// In the order asked; none: it is not out.
    pub(crate) leases: Vec<Option<LeaseFacts>>,
}

impl DeliveryFacts {
    /// `group`: whose breaker hears of them. `leases`: the numbers of their jobs, and their epochs. None: there is no such queue.
    pub(crate) async fn read<S: Reads>(
        store: &mut S, queue: &QueueName, group: u16, leases: impl Iterator<Item = (u64, u32)> + Clone + Send,
    ) -> Result<Option<Self>> {
        // Epochs grow, and outcomes of an earlier one count nowhere.
        let of_group = leases.clone().map(|(_, epoch)| epoch).filter(|epoch| group_of(*epoch) == group);
        let epoch = of_group.max().unwrap_or_else(|| epoch_of(group, 0));
        let own = QueueFacts::reads(group).into_iter().chain(OutcomeFacts::reads(epoch));
        let reads: Vec<_> = own.chain(leases.clone().flat_map(|(number, _)| LeaseFacts::reads(number))).collect();
        let Some(mut found) = ask_if_there(store, queue, &reads).await? else { return Ok(None) };
        let facts = QueueFacts::found(group, &mut found)?;
        let outcomes = OutcomeFacts::found(&facts, epoch, &mut found, store.now())?;
        let leases = leases.map(|(number, _)| Ok(LeaseFacts::found(queue, number, &mut found)?.ok()));
        Ok(Some(Self { queue: facts, outcomes, leases: leases.collect::<Result<_>>()? }))
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

const DEPTHS: [Index; 9] = [
    Index::Ready,
    Index::Keyed,
    Index::Scheduled,
    Index::Retrying,
    Index::Leased,
    Index::Completed,
    Index::Cancelled,
    Index::Dead,
    Index::Overflow,
];

/// Reads of [`depths`].
pub(crate) fn depth_reads() -> impl Iterator<Item = Read> {
    DEPTHS.into_iter().map(|index| Read::Len(Len::Index(index)))
}

pub(crate) fn depths(found: &mut Answers) -> Depths {
    let [ready, keyed, scheduled, retrying, leased, completed, cancelled, dead, overflow] =
        DEPTHS.map(|_| found.number());
    let ready = ready + keyed;
    Depths { ready, scheduled, retrying, leased, completed, cancelled, dead: dead + overflow, overflow }
}

impl DeadFacts {
    /// For these jobs, which die.
    pub(crate) async fn read<S: Reads>(store: &mut S, queue: &QueueName, jobs: &[&JobFacts]) -> Result<Self> {
        let mut reads: Vec<_> = depth_reads().collect();
        reads.push(Read::Counters(CounterGroup::ErrorTypes));
        let failed = jobs.iter().filter(|job| job.past().is_some_and(|past| past.last_failed_at.is_some()));
        let keys = jobs.iter().filter_map(|job| job.spec.key.as_deref());
        reads.extend(failed.clone().flat_map(|job| failure_reads(job.number)));
        reads.extend(keys.clone().map(|key| by_name(Table::Key, key)));
        let mut found = ask(store, queue, &reads).await?;
        let mut facts = Self { depths: depths(&mut found), ..Self::default() };
        facts.error_types = found.error_types().map(|(name, _)| name).collect();
        for job in failed {
            let failure = last_failure(&mut found)?;
            facts.failures.extend(failure.map(|failure| (job.number, failure.error_type)));
        }
        for key in keys {
            let record = found.parse(records::read_key)?;
            facts.keys.extend(record.map(|record| (key.to_owned(), record)));
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
    [LAST_FAILURE, FIRST_FAILURE].map(|part| Read::Record(Table::Failure, RecordKey::Part(number, part)))
}

/// The last failure, which may be the first too.
pub(crate) fn last_failure(found: &mut Answers) -> Result<Option<Failure>> {
    let (last, first) = (found.record(), found.record());
    read_if(last.or(first).as_ref(), records::read_failure)
}
