//! Facts: what a decision is made from, as it was read.

mod deaths;
mod jobs;

pub(crate) use deaths::*;
pub(crate) use jobs::*;

use super::answers::{Answers, ask_if_there, first_of};
use super::context::{CallContext, epoch, overtaken};
use super::encoding::Unknown;
use super::records::{self, OutcomesRecord, QueueRecord, read_if};
use super::state_changes::Changes;
use crate::domain::{Admission, Breaker, Gate, Guard, OutcomeStats, QueueName, QueueSettings, Successes, Timestamp};
use crate::store::Result;
use crate::store::storage::{
    Entry, Fence, Index, Len, Member, NO_GROUP, OutcomeSums, Read, Reads, RecordKey, Table, Version, WHOLE_QUEUE,
    group_of, transitions_of,
};
use bytes::Bytes;
use std::sync::Arc;

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
            None => {
                // Where one process has a store to itself, a restart forgets the rest.
                let uncounted = queue.breaker.outage.as_ref().map_or(0, |outage| outage.uncounted);
                OutcomeStats { uncounted, ..OutcomeStats::new(queue.breaker.usual.clone(), now) }
            }
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
