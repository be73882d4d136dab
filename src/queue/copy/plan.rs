//! What an import writes for each job.

use crate::{
    domain::{
        failure::Failure,
        ids::{JobId, QueueName},
        job::{Attempt, Next, Progress, Sameness},
        settings::QueueSettings,
        time::Timestamp,
    },
    queue::{
        context::CallContext,
        encoding::Unknown,
        facts::JobFacts,
        records::{self, DeadRecord, History, IdRecord, JobRecord, KeyRecord, Whereabouts},
        state_changes::{
            Changes, FIRST_FAILURE, FoundKey, LAST_FAILURE, Total, attempt_part, counted_as,
            kept_attempts,
        },
    },
    store::{
        Death, JobView, StoreError, TakenIn, sizes,
        storage::{
            Counter, CounterGroup, Entry, Fence, Found, Index, Member, Read, RecordKey, Storage,
            Table, Write, flag,
        },
    },
};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};

/// What the decisions about a batch depend on.
#[derive(Debug, Default)]
pub(super) struct ImportFacts {
    /// Ids that the queue has already.
    ids: HashSet<JobId>,
    keys: HashMap<String, FoundKey>,
    /// Types of error that are counted one by one.
    error_types: Vec<Box<str>>,
}

impl ImportFacts {
    /// None: there is no such queue.
    pub(super) async fn read<S: Storage>(
        store: &mut S,
        queue: &QueueName,
        jobs: &[JobView],
    ) -> Result<Option<Self>, StoreError> {
        let mut reads = vec![Read::Counters(CounterGroup::ErrorTypes)];
        for JobView { spec, .. } in jobs {
            let text = |text: &str| RecordKey::Text(text.into());
            reads.push(Read::Record(Table::Id, text(&spec.id.to_string())));
            // An id that a server made has no record of its own.
            let number = spec.id.number().map(RecordKey::Number);
            reads.extend(number.map(|number| Read::Record(Table::Job, number)));
            reads.extend(spec.key.as_deref().map(|key| Read::Record(Table::Key, text(key))));
        }
        let Some(found) = store.read(queue, &reads).await? else { return Ok(None) };
        let mut found = found.into_iter();
        let counters = found.next().map(Found::counters).unwrap_or_default();
        let error_types = counters.into_iter().filter_map(|(counter, _)| match counter {
            Counter::ErrorType(name) => Some(name),
            _ => None,
        });
        let mut facts = Self { error_types: error_types.collect(), ..Self::default() };
        let mut next = || found.next().and_then(Found::record);
        for JobView { spec, .. } in jobs {
            let own = next();
            let job = spec.id.number().and_then(|_| next());
            let job = job.map(|job| records::readable(records::read_job_head(&job)));
            let job = job.transpose()?.flatten();
            if own.is_some() || job.is_some_and(|job| job.id == spec.id) {
                facts.ids.insert(spec.id.clone());
            }
            if let Some(name) = &spec.key {
                let key = FoundKey::read(next())?;
                facts.keys.extend(key.map(|key| (name.clone(), key)));
            }
        }
        Ok(Some(facts))
    }
}

/// Whether a job's key can be its own here.
enum KeyDecision {
    /// It has none, or does not hold it any more, or has to do without.
    Without,
    Own {
        free_at: Option<Timestamp>,
    },
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
    pub(super) changes: Changes,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        facts: ImportFacts,
        queue: &'a QueueName,
        settings: &'a QueueSettings,
        now: Timestamp,
    ) -> Self {
        Self { facts, queue, settings, now, keys: HashSet::new(), changes: Changes::default() }
    }

    pub(super) fn add(&mut self, job: &JobView, number: u64, cx: &mut CallContext<'_>) -> TakenIn {
        let spec = &job.spec;
        if self.facts.ids.contains(&spec.id) {
            return TakenIn::AlreadyThere;
        }
        let key = self.decide_key(job);
        if matches!(key, KeyDecision::Taken) {
            return TakenIn::KeyTaken;
        }
        self.facts.ids.insert(spec.id.clone());
        let named = spec.key.is_some() || records::own_id(spec, number).is_some();
        let sameness = named.then(|| spec.sameness());
        let record = self.put_job(job, number, sameness.as_ref());
        if let KeyDecision::Own { free_at } = key {
            self.put_key(job, number, free_at, sameness.unwrap_or_default());
        }
        self.put_attempts(job, number);
        match (&job.death, job.completed_at) {
            (Some(death), _) => self.dead(job, number, death, cx),
            (None, Some(at)) => self.completed(job, number, at, cx),
            (None, None) => self.waiting(job, number, &record.record, cx),
        }
        self.changes.add(Total::MovedIn, 1);
        TakenIn::Added
    }

    fn decide_key(&self, job: &JobView) -> KeyDecision {
        let Some(key) = &job.spec.key else { return KeyDecision::Without };
        let held = self.facts.keys.get(key);
        let is_free =
            !self.keys.contains(key) && held.is_none_or(|held| held.record.free_at.is_some());
        match (&job.death, job.completed_at) {
            (None, None) if !is_free => KeyDecision::Taken,
            (None, None) => KeyDecision::Own { free_at: None },
            _ if !is_free => KeyDecision::Without,
            (Some(_), _) if !self.settings.dead_jobs_hold_keys => KeyDecision::Without,
            (Some(_), _) => KeyDecision::Own { free_at: None },
            (None, Some(_)) => {
                let free_at = job.spec.enqueued_at.after(self.settings.key_retention);
                if free_at > self.now {
                    KeyDecision::Own { free_at: Some(free_at) }
                } else {
                    KeyDecision::Without
                }
            }
        }
    }

    fn put_job(&mut self, job: &JobView, number: u64, sameness: Option<&Sameness>) -> JobRecord {
        let spec = &job.spec;
        let key = || RecordKey::Number(number);
        let id = RecordKey::Text(spec.id.to_string().into());
        let record = records::job(spec, number, sameness, &Unknown::default());
        self.changes.fence(Fence::Absent(Table::Job, key()));
        self.changes.fence(Fence::Absent(Table::Id, id.clone()));
        self.changes.put(Table::Job, key(), record.record.clone());
        if let Some(body) = &record.body {
            self.changes.put(Table::Body, key(), body.clone());
        }
        // An id that another store made holds a number of that store, and is like one that a caller chose.
        if let (true, Some(sameness)) = (record.traits & flag::OWN_ID != 0, sameness) {
            let own = records::id(&IdRecord { number, sameness: *sameness });
            self.changes.put(Table::Id, id, own);
        }
        record
    }

    fn put_key(
        &mut self,
        job: &JobView,
        number: u64,
        free_at: Option<Timestamp>,
        sameness: Sameness,
    ) {
        let Some(key) = &job.spec.key else { return };
        let name = RecordKey::Text(key.as_str().into());
        match self.facts.keys.get(key) {
            None => self.changes.fence(Fence::Absent(Table::Key, name.clone())),
            Some(found) => {
                let free_at = found.record.free_at.unwrap_or_default();
                self.changes.take_finished_key(key, &found.bytes, free_at);
            }
        }
        let record = KeyRecord { number, free_at, sameness, id: job.spec.id.clone() };
        self.changes.put(Table::Key, name, records::key(&record));
        if let Some(at) = free_at {
            let member = Member::Text(key.as_str().into());
            self.changes.insert(Index::FinishedKey, Entry { score: at.millis(), member });
        }
        self.keys.insert(key.clone());
    }

    fn put_attempts(&mut self, job: &JobView, number: u64) {
        for (n, attempt) in kept_attempts(job.progress.recorded).zip(&job.attempts) {
            let failure = attempt.failure.as_ref().map(Failure::summary);
            let record = records::attempt(&Attempt { failure, ..attempt.clone() });
            let part = RecordKey::Part(number, attempt_part(n));
            self.changes.put(Table::Attempt, part, record);
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
    fn waiting(&mut self, job: &JobView, number: u64, record: &Bytes, cx: &mut CallContext<'_>) {
        let (spec, at, now) = (&job.spec, job.waits_at(), self.now);
        // Its own record says where it is, unless it has been delivered or moved.
        let found_by_record = at == spec.run_at && (at <= now || at > spec.enqueued_at);
        if job.progress == Progress::default() && found_by_record {
            let position = records::position(number, records::rank(spec.priority), at, false);
            self.changes.enter(position, spec.expires_at, now);
            if at > now {
                cx.job_due(self.queue, at);
            }
            if let Some(deadline) = spec.expires_at {
                cx.due(self.queue, deadline);
            }
            return;
        }
        let facts = JobFacts {
            number,
            spec: spec.clone(),
            traits: records::traits(record),
            history: None,
            has_history: true,
            exists: true,
            sameness: None,
        };
        let history = history(job, Whereabouts::Ready, at);
        let later = if is_retry(job, at) { Whereabouts::Retrying } else { Whereabouts::Scheduled };
        self.changes.enter_waiting(&facts, history, at, later, now, cx, self.queue);
    }

    /// DEAD, the last of those that are here.
    fn dead(&mut self, job: &JobView, number: u64, death: &Death, cx: &mut CallContext<'_>) {
        let counted_as = counted_as(&mut self.facts.error_types, job.error_type());
        let record = records::dead(&DeadRecord {
            reason: death.reason,
            died_at: death.died_at,
            counted_as: counted_as.clone(),
            context: death.context.clone(),
        });
        let (index, whereabouts) = if death.overflow {
            (Index::Overflow, Whereabouts::Overflow)
        } else {
            (Index::Dead, Whereabouts::Dead)
        };
        self.changes.write(Write::AppendDead { index, number, record });
        self.changes.write(Write::Add(Counter::ErrorType(counted_as.into()), 1));
        self.put_history(number, &history(job, whereabouts, death.died_at));
        if let Some(retention) = self.settings.dead_letters.retention {
            cx.due(self.queue, death.died_at.after(retention));
        }
    }

    fn completed(&mut self, job: &JobView, number: u64, at: Timestamp, cx: &mut CallContext<'_>) {
        self.changes.insert(Index::Completed, Entry::number(at.millis(), number));
        if !job.result.is_empty() {
            let record = records::result(&job.result);
            self.changes.put(Table::Result, RecordKey::Number(number), record);
        }
        self.put_history(number, &history(job, Whereabouts::Completed, at));
        self.changes.add(Total::Completed, 1);
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
        progress: job.progress.clone(),
        whereabouts,
        rank: records::rank(job.spec.priority),
        at,
        nonce: last.map_or(0, |attempt| attempt.nonce),
        failure_bytes: job.last_failure.as_ref().map_or(0, sizes::of_failure) as u32,
        unknown: Unknown::default(),
    }
}

/// Whether it waits for this time because it failed.
fn is_retry(job: &JobView, at: Timestamp) -> bool {
    let last = job.attempts.last().filter(|attempt| attempt.failure.is_some());
    last.is_some_and(|attempt| matches!(attempt.next, Next::Later { at: then } if then == at))
}

/// The first failure whole, and the last one where it is another.
fn failures(job: &JobView) -> (Option<&Failure>, Option<&Failure>) {
    let mut failed = job.attempts.iter().filter_map(|attempt| attempt.failure.as_ref());
    let last = job.last_failure.as_ref();
    let first = failed.next().or(last);
    let several = failed.next().is_some();
    (first, last.filter(|last| several || Some(*last) != first))
}
