//! What an import writes for each job.

use crate::domain::{Attempt, Failure, JobId, Next, Progress, QueueName, QueueSettings, Sameness, State, Timestamp};
use crate::queue::answers::{ask_if_there, by_name};
use crate::queue::breaker_keys::KeyGroups;
use crate::queue::context::CallContext;
use crate::queue::facts::JobFacts;
use crate::queue::find::{self, found_id, id_reads};
use crate::queue::records::{self, DeadRecord, History, IdRecord, JobRecord, KeyRecord, Whereabouts};
use crate::queue::state_changes::{
    Changes, FIRST_FAILURE, FoundKey, LAST_FAILURE, Total, attempt_part, counted_as, kept_attempts,
};
use crate::queue::{Death, Imported, JobView, sizes};
use crate::store::Result;
use crate::store::storage::{
    Counter, CounterGroup, Entry, Fence, Index, NO_GROUP, Read, RecordKey, Storage, Table, Write, flag,
};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};

/// What the decisions about a batch depend on.
#[derive(Debug, Default)]
pub(super) struct ImportFacts {
    /// Ids that the queue has already.
    ids: HashSet<JobId>,
    keys: HashMap<String, FoundKey>,
    /// Jobs that have one of these keys and are not done.
    not_done: HashSet<u64>,
    /// Types of error that are counted one by one.
    error_types: Vec<Box<str>>,
}

impl ImportFacts {
    /// None: there is no such queue.
    pub(super) async fn read<S: Storage>(store: &mut S, queue: &QueueName, jobs: &[JobView]) -> Result<Option<Self>> {
        let mut reads = vec![Read::Counters(CounterGroup::ErrorTypes)];
        for JobView { spec, .. } in jobs {
            reads.extend(id_reads(&spec.id));
            reads.extend(spec.key.as_deref().map(|key| by_name(Table::Key, key)));
        }
        let Some(mut found) = ask_if_there(store, queue, &reads).await? else { return Ok(None) };
        let error_types = found.error_types().map(|(name, _)| name).collect();
        let mut facts = Self { error_types, ..Self::default() };
        for JobView { spec, .. } in jobs {
            let (named, own) = found_id(&spec.id, &mut found)?;
            if named.is_some() || own.is_some() {
                facts.ids.insert(spec.id.clone());
            }
            if let Some(name) = &spec.key {
                let key = FoundKey::read(found.record())?;
                facts.keys.extend(key.map(|key| (name.clone(), key)));
            }
        }
        let holders: Vec<_> = facts.keys.values().map(|key| key.record.number).collect();
        facts.not_done = find::not_done(store, queue, &holders).await?;
        Ok(Some(facts))
    }
}

/// Whether a job's key can be its own here.
enum KeyDecision {
    /// It has none, or does not hold it any more, or has to do without.
    Without,
    Own,
    /// It waits, and another job that is not done has the key.
    Taken,
}

/// A batch in the making. Pure: what follows from the facts.
pub(super) struct Plan<'a> {
    facts: ImportFacts,
    queue: &'a QueueName,
    settings: &'a QueueSettings,
    now: Timestamp,
    /// Keys of jobs of the batch.
    keys: HashSet<String>,
    groups: &'a KeyGroups,
    pub(super) changes: Changes,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        facts: ImportFacts, queue: &'a QueueName, settings: &'a QueueSettings, groups: &'a KeyGroups, now: Timestamp,
    ) -> Self {
        Self { facts, queue, settings, now, keys: HashSet::new(), groups, changes: Changes::default() }
    }

    pub(super) fn add(&mut self, job: &JobView, number: u64, cx: &mut CallContext<'_>) -> Result<Imported> {
        let spec = &job.spec;
        if self.facts.ids.contains(&spec.id) {
            return Ok(Imported::AlreadyThere);
        }
        let key = self.decide_key(job);
        if matches!(key, KeyDecision::Taken) {
            return Ok(Imported::KeyTaken);
        }
        self.facts.ids.insert(spec.id.clone());
        let named = spec.key.is_some() || records::own_id(spec, number).is_some();
        let sameness = named.then(|| spec.sameness());
        let record = self.put_job(job, number, self.groups.group(job.breaker_key()), sameness.as_ref());
        if let (Some(key), KeyDecision::Own) = (&spec.key, key) {
            let sameness = sameness.unwrap_or_default();
            let until = spec.key_until(self.settings.key_retention);
            let (at, id) = (until.max(self.now), spec.id.clone());
            let found = self.facts.keys.get(key);
            self.changes.take_key(key, found, &KeyRecord { number, until, at, sameness, id });
            self.keys.insert(key.clone());
        }
        self.put_attempts(job, number);
        match (&job.death, job.completed_at) {
            (Some(death), _) => self.dead(job, number, death, cx),
            (None, Some(at)) => self.over(job, number, at, cx),
            (None, None) => self.waiting(job, number, &record, cx)?,
        }
        self.changes.add(Total::MovedIn, 1);
        Ok(Imported::Added)
    }

    fn decide_key(&self, job: &JobView) -> KeyDecision {
        let Some(key) = &job.spec.key else { return KeyDecision::Without };
        let held = self.facts.keys.get(key);
        let is_free =
            !self.keys.contains(key) && held.is_none_or(|held| !self.facts.not_done.contains(&held.record.number));
        let until = job.spec.key_until(self.settings.key_retention);
        match (&job.death, job.completed_at) {
            (None, None) if !is_free => KeyDecision::Taken,
            (None, None) => KeyDecision::Own,
            (Some(_), _) if is_free && self.settings.dead_jobs_hold_keys => KeyDecision::Own,
            (None, Some(_)) if is_free && until > self.now => KeyDecision::Own,
            _ => KeyDecision::Without,
        }
    }

    /// Its record.
    fn put_job(&mut self, job: &JobView, number: u64, group: u16, sameness: Option<&Sameness>) -> Bytes {
        let JobView { spec, unknown, .. } = job;
        let key = || RecordKey::Number(number);
        let id = RecordKey::Text(spec.id.to_string().into());
        let JobRecord { record, body, traits } = records::job(spec, number, group, sameness, &unknown.job);
        self.changes.fence(Fence::Absent(Table::Job, key()));
        self.changes.fence(Fence::Absent(Table::Id, id.clone()));
        self.changes.put(Table::Job, key(), record.clone());
        if let Some(body) = body {
            self.changes.put(Table::Body, key(), body);
        }
        // An id that another store made holds a number of that store, and is like one that a caller chose.
        if let (true, Some(sameness)) = (traits & flag::OWN_ID != 0, sameness) {
            let own = records::id(&IdRecord { number, sameness: *sameness });
            self.changes.put(Table::Id, id, own);
        }
        record
    }

    fn put_attempts(&mut self, job: &JobView, number: u64) {
        for (n, attempt) in kept_attempts(job.progress.recorded).zip(&job.attempts) {
            let failure = attempt.failure.as_ref().map(Failure::summary);
            let record = records::attempt(&Attempt { failure, ..attempt.clone() });
            let part = RecordKey::Part(number, attempt_part(n));
            self.changes.put(Table::Attempt, part, record);
        }
        for (n, event) in kept_attempts(events_of(job)).zip(&job.events) {
            self.changes.put(Table::Event, RecordKey::Part(number, attempt_part(n)), records::event(event));
        }
        let (first, last) = failures(job);
        for (part, failure) in [(FIRST_FAILURE, first), (LAST_FAILURE, last)] {
            if let Some(failure) = failure {
                let key = RecordKey::Part(number, part);
                self.changes.put(Table::Failure, key, records::failure(failure));
            }
        }
    }

    /// READY, SCHEDULED, or leased there.
    fn waiting(&mut self, job: &JobView, number: u64, record: &Bytes, cx: &mut CallContext<'_>) -> Result<()> {
        let (spec, now) = (&job.spec, self.now);
        // When it became, becomes or had become ready.
        let at = job.ready_at.or(job.old_place).unwrap_or(spec.run_at);
        // Its own record says where it is, unless it has been delivered or moved.
        let found_by_record = at == spec.run_at && (at <= now || at > spec.enqueued_at);
        let group = self.groups.group(job.breaker_key());
        let needs_history = job.learnt_key.is_some() || !job.unknown.history.is_empty();
        if job.progress == Progress::default() && found_by_record && !needs_history {
            let position = records::position(group, number, records::rank(spec.priority), at, false);
            self.changes.enter(position, spec.expires_at, now);
            if at > now {
                cx.job_due(self.queue, at);
            }
            if let Some(deadline) = spec.expires_at {
                cx.due(self.queue, deadline);
            }
            return Ok(());
        }
        let facts = JobFacts::of(number, Some(record), None)?;
        let history = History { group, ..history(job, Whereabouts::Ready, at) };
        let later = if is_retry(job, at) { Whereabouts::Retrying } else { Whereabouts::Scheduled };
        self.changes.enter_waiting(&facts, history, at, later, now, cx, self.queue);
        Ok(())
    }

    /// DEAD, the last of those that are here.
    fn dead(&mut self, job: &JobView, number: u64, death: &Death, cx: &mut CallContext<'_>) {
        let error_type = job.last_failure.as_ref().map_or("", |failure| failure.error_type.as_str());
        let counted_as = counted_as(&mut self.facts.error_types, error_type);
        let record = records::dead(&DeadRecord {
            reason: death.reason,
            died_at: death.died_at,
            counted_as: counted_as.clone(),
            context: death.context,
        });
        let (index, whereabouts) =
            if death.overflow { (Index::Overflow, Whereabouts::Overflow) } else { (Index::Dead, Whereabouts::Dead) };
        self.changes.write(Write::AppendDead { index, number, record });
        self.changes.write(Write::Add(Counter::ErrorType(counted_as.into()), 1));
        self.put_history(number, &history(job, whereabouts, death.died_at));
        if let Some(retention) = self.settings.dead_letters.retention {
            cx.due(self.queue, death.died_at.after(retention));
        }
    }

    /// COMPLETED or CANCELLED.
    fn over(&mut self, job: &JobView, number: u64, at: Timestamp, cx: &mut CallContext<'_>) {
        let (index, whereabouts, total) = match job.state {
            State::Cancelled => (Index::Cancelled, Whereabouts::Cancelled, Total::Cancelled),
            _ => (Index::Completed, Whereabouts::Completed, Total::Completed),
        };
        self.changes.insert(index, Entry::number(at.millis(), number));
        if !job.result.is_empty() {
            let record = records::result(&job.result);
            self.changes.put(Table::Result, RecordKey::Number(number), record);
        }
        self.put_history(number, &history(job, whereabouts, at));
        self.changes.add(total, 1);
        cx.due(self.queue, at.after(self.settings.completed_retention.unwrap_or_default()));
    }

    fn put_history(&mut self, number: u64, history: &History) {
        self.changes.put(Table::History, RecordKey::Number(number), records::history(history));
    }
}

fn history(job: &JobView, whereabouts: Whereabouts, at: Timestamp) -> History {
    let deliveries = job.progress.deliveries;
    let last = job.attempts.last().filter(|attempt| attempt.delivery == deliveries);
    History {
        progress: Progress { events: events_of(job), ..job.progress.clone() },
        whereabouts,
        rank: records::rank(job.spec.priority),
        at,
        nonce: last.map_or(0, |attempt| attempt.nonce),
        failure_bytes: job.last_failure.as_ref().map_or(0, sizes::of_failure) as u32,
        group: NO_GROUP,
        learnt_key: job.learnt_key.clone(),
        unknown: job.unknown.history.clone(),
    }
}

/// How many there were; where a damaged one was left out, those that are left.
fn events_of(job: &JobView) -> u32 {
    let is_whole = kept_attempts(job.progress.events).count() == job.events.len();
    if is_whole { job.progress.events } else { job.events.len() as u32 }
}

/// Whether it waits for this time because it failed.
fn is_retry(job: &JobView, at: Timestamp) -> bool {
    job.attempts.last().is_some_and(|attempt| matches!(attempt.next, Next::Later { at: then } if then == at))
}

/// The first failure whole, and the last one where it is another.
fn failures(job: &JobView) -> (Option<&Failure>, Option<&Failure>) {
    let mut failed = job.attempts.iter().filter_map(|attempt| attempt.failure.as_ref());
    let last = job.last_failure.as_ref();
    let first = failed.next().or(last);
    let several = failed.next().is_some();
    (first, last.filter(|last| several || Some(*last) != first))
}
