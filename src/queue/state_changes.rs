//! A job moves from one state to another: the only code that writes indexes.
//!
//! ```text
//!                  Scheduled ──┐
//!                              ├─(promotion, by the engine)─► Ready ──take──► Lease
//!   Nack ────────► Retrying  ──┘                                                │
//!                                    dead_letter ► Dead, Overflow      complete ► Completed
//! ```

mod dead_letters;

pub(crate) use dead_letters::{DeadLetters, dead_letter_all};

use super::context::CallContext;
use super::encoding::Unknown;
use super::events::{DeadLetterEvent, Event, EventKind};
use super::facts::{JobFacts, LeaseFacts};
use super::records::{self, DeadRecord, History, KeyRecord, Whereabouts};
use super::requests::expiry;
use super::select::DeadEntry;
pub(crate) use super::views::Total;
use crate::domain::{Attempt, DeadReason, Failure, JobEvent, JobId, Progress, QueueName, Timestamp};
use crate::queue::Totals;
use crate::store::Result;
use crate::store::storage::{
    Batch, Counter, Entry, Fence, Index, Member, NO_GROUP, Position, Publish, Read, RecordKey, Table, Write, flag,
    group_of,
};
use bytes::Bytes;
use std::time::Duration;

/// The parts of the history that are kept.
const FIRST_ATTEMPTS: u32 = 10;
const LAST_ATTEMPTS: u32 = 40;
/// Types of error that a queue counts one by one; the rest is counted together.
const ERROR_TYPES_MAX: usize = 1_000;
const OTHER_ERROR_TYPES: &str = "(other)";
/// A caller's own id is held for so long after its job has ended.
pub(crate) const ID_HELD: Duration = Duration::from_secs(600);

/// [`Table::Failure`]: the parts.
pub(crate) const FIRST_FAILURE: u8 = 0;
pub(crate) const LAST_FAILURE: u8 = 1;

/// Where the n-th attempt or event stands: the first ten stay, the last forty take turns.
pub(crate) fn attempt_part(n: u32) -> u8 {
    let part = if n <= FIRST_ATTEMPTS { n } else { FIRST_ATTEMPTS + 1 + (n - FIRST_ATTEMPTS - 1) % LAST_ATTEMPTS };
    part as u8
}

/// The attempts or events that are kept of so many, in order.
pub(crate) fn kept_attempts(recorded: u32) -> impl Iterator<Item = u32> {
    let last = recorded.saturating_sub(LAST_ATTEMPTS) + 1;
    (1..=recorded.min(FIRST_ATTEMPTS)).chain(last.max(FIRST_ATTEMPTS + 1)..=recorded)
}

/// Where those of so many events stand that stay when the next one is written.
pub(crate) fn kept_before_next(events: u32) -> impl Iterator<Item = u8> {
    kept_attempts(events + 1).filter(move |n| *n <= events).map(attempt_part)
}

/// A batch in the making: removals stand first, counters last.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    fences: Vec<Fence>,
    removals: Vec<Write>,
    writes: Vec<Write>,
    totals: [i64; Totals::COUNT],
    publish: Publish,
    /// Jobs became ready.
    pub(crate) made_ready: bool,
}

impl Changes {
    /// For so many fences and writes that remove nothing.
    pub(crate) fn with_capacity(fences: usize, writes: usize) -> Self {
        let (fences, writes) = (Vec::with_capacity(fences), Vec::with_capacity(writes));
        Self { fences, writes, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.removals.is_empty() && self.writes.is_empty()
    }

    pub(crate) fn fence(&mut self, fence: Fence) {
        self.fences.push(fence);
    }

    pub(crate) fn fences(&self) -> usize {
        self.fences.len()
    }
    pub(crate) fn put(&mut self, table: Table, key: RecordKey, record: Bytes) {
        self.writes.push(Write::Put(table, key, record));
    }

    pub(crate) fn write(&mut self, write: Write) {
        self.writes.push(write);
    }

    pub(crate) fn delete(&mut self, table: Table, key: RecordKey) {
        self.removals.push(Write::Delete(table, key));
    }

    pub(crate) fn remove(&mut self, index: Index, entry: Entry) {
        self.removals.push(Write::Remove(index, entry));
    }

    /// No outcome under this epoch is asked for again.
    pub(crate) fn forget_sums(&mut self, epoch: u32) {
        self.removals.push(Write::ForgetSums(epoch));
    }

    pub(crate) fn insert(&mut self, index: Index, entry: Entry) {
        self.writes.push(Write::Insert(index, entry));
    }

    pub(crate) fn add(&mut self, total: Total, count: u64) {
        self.totals[total as usize] += count.cast_signed();
    }

    pub(crate) fn publish(&mut self, publish: Publish) {
        if publish == Publish::Always || self.publish == Publish::Never {
            self.publish = publish;
        }
    }

    pub(crate) fn batch(self) -> Batch {
        let Self { fences, mut removals, mut writes, totals, publish, .. } = self;
        if !removals.is_empty() {
            removals.append(&mut writes);
            writes = removals;
        }
        let counted = totals.into_iter().enumerate().filter(|(_, count)| *count != 0);
        writes.extend(counted.map(|(at, count)| Write::Add(Counter::Total(at as u8), count)));
        Batch { fences, writes, publish }
    }

    /// A job is in this index no longer; it must still be there.
    pub(crate) fn leave(&mut self, index: Index, entry: Entry) {
        self.fence(Fence::At(index, entry.clone()));
        self.remove(index, entry);
    }

    // ---- waiting ----

    /// READY if its time has come; otherwise `later` says where it waits. Its place before has been given up.
    fn wait(&mut self, position: Position, later: Index, now: Timestamp) {
        if position.ready_at <= now {
            self.insert(position.ready_index(), Entry::ready(position));
            self.made_ready = true;
            self.publish(Publish::IfFirst);
        } else {
            self.insert(later, Entry::waiting(position));
        }
    }

    /// A new job: nothing but its record says where it is.
    pub(crate) fn enter(&mut self, position: Position, deadline: Option<Timestamp>, now: Timestamp) {
        self.wait(position, Index::Scheduled, now);
        self.watch_deadline(position.number, deadline);
    }

    /// A job waits, from any other state. `later`: where it waits for its time.
    #[expect(clippy::too_many_arguments, reason = "the facts of one decision")]
    pub(crate) fn enter_waiting(
        &mut self, job: &JobFacts, mut history: History, at: Timestamp, later: Whereabouts, now: Timestamp,
        cx: &mut CallContext<'_>, queue: &QueueName,
    ) {
        let index = if later == Whereabouts::Retrying { Index::Retrying } else { Index::Scheduled };
        (history.whereabouts, history.at) = (if at <= now { Whereabouts::Ready } else { later }, at);
        let position = records::position(history.group, job.number, history.rank, at, true);
        self.wait(position, index, now);
        if at > now {
            cx.job_due(queue, at);
        }
        let deadline = history.progress.deadline(job.spec.expires_at);
        self.watch_deadline(job.number, deadline);
        if let Some(at) = deadline {
            cx.due(queue, at);
        }
        self.put(Table::History, RecordKey::Number(job.number), records::history(&history));
    }

    fn watch_deadline(&mut self, number: u64, deadline: Option<Timestamp>) {
        self.writes.extend(deadline.map(|at| Write::Insert(Index::Deadline, Entry::number(at.millis(), number))));
    }

    pub(crate) fn unwatch_deadline(&mut self, job: &JobFacts) {
        if let Some(at) = job.spec.expires_at {
            self.remove(Index::Deadline, Entry::number(at.millis(), job.number));
        }
    }

    // ---- the end of a delivery ----

    /// The lease is over. Its fence is the caller's.
    pub(crate) fn end_lease(&mut self, lease: &crate::domain::Lease) {
        self.delete(Table::Lease, RecordKey::Number(lease.number));
        let group = group_of(lease.epoch);
        if group != NO_GROUP {
            self.remove(Index::LeasedByGroup, Entry::number(u64::from(group), lease.number));
        }
        if lease.flags & flag::PROBE != 0 {
            let member = Member::Probe { epoch: lease.epoch, number: lease.number };
            self.remove(Index::Probe, Entry { score: lease.started_at.millis(), member });
            // Its slot is free.
            self.publish(Publish::Always);
        }
    }

    /// Writes an ended attempt, and its failure whole: the first, or else the last.
    pub(crate) fn record_attempt(&mut self, job: &JobFacts, recorded: u32, attempt: &Attempt) {
        let summary = attempt.failure.as_ref().map(Failure::summary);
        let part = RecordKey::Part(job.number, attempt_part(recorded));
        self.put(Table::Attempt, part, records::attempt_with(attempt, summary.as_ref(), &Unknown::default()));
        if let Some(failure) = &attempt.failure {
            let first = job.past().is_none_or(|past| past.first_failed_at.is_none());
            let part = if first { FIRST_FAILURE } else { LAST_FAILURE };
            let key = RecordKey::Part(job.number, part);
            self.put(Table::Failure, key, records::failure(failure));
        }
    }

    /// Writes what was done to a job; its history, with what is counted here, is the caller's.
    pub(crate) fn record_event(&mut self, number: u64, progress: &mut Progress, event: &JobEvent) {
        progress.events += 1;
        self.put(Table::Event, RecordKey::Part(number, attempt_part(progress.events)), records::event(event));
    }

    /// The same where a worker was asked to end the job. [`LeaseFacts::progress`] has counted it.
    pub(crate) fn record_cancel_request(&mut self, facts: &LeaseFacts) {
        if let Some(event) = &facts.lease.tail.cancel_requested {
            self.record_event(facts.job.number, &mut facts.job.progress(), event);
        }
    }

    // ---- dead letters ----

    /// DEAD, from any state; its place before has been given up. `failure`: of the delivery that ended with this.
    pub(crate) fn dead_letter(
        &mut self, job: &JobFacts, mut history: History, reason: DeadReason, failure: Option<&Failure>,
        dead_letters: &mut DeadLetters<'_>, cx: &mut CallContext<'_>,
    ) {
        let now = dead_letters.now;
        let error_type = match failure {
            Some(failure) => failure.error_type.clone(),
            None => dead_letters.facts.error_type(job.number),
        };
        let overflow = dead_letters.goes_to_overflow();
        let counted_as = counted_as(&mut dead_letters.facts.error_types, &error_type);
        let dead = DeadRecord { reason, died_at: now, counted_as, context: dead_letters.context() };
        dead_letters.added(overflow);
        let (index, whereabouts) = match overflow {
            true => (Index::Overflow, Whereabouts::Overflow),
            false => (Index::Dead, Whereabouts::Dead),
        };
        self.write(Write::AppendDead { index, number: job.number, record: records::dead(&dead) });
        self.write(Write::Add(Counter::ErrorType(dead.counted_as.into()), 1));
        // Its group may be another key's by the time that it is put back.
        (history.whereabouts, history.at, history.group) = (whereabouts, now, NO_GROUP);
        self.put(Table::History, RecordKey::Number(job.number), records::history(&history));
        self.unwatch_deadline(job);
        if let Some(key) = &job.spec.key
            && !dead_letters.settings.dead_jobs_hold_keys
        {
            self.free_key(key, dead_letters.facts.key(key), job.number);
        }
        self.add(Total::DeadLettered, 1);
        self.add(Total::RetriedFinished, u64::from(history.progress.retries > 0));
        if let Some(retention) = dead_letters.settings.dead_letters.retention {
            cx.due(dead_letters.queue, now.after(retention));
        }
        if cx.wanted.has(EventKind::DeadLettered) {
            cx.events.push(Event::DeadLettered(DeadLetterEvent {
                queue: dead_letters.queue.clone(),
                id: job.spec.id.clone(),
                job_type: job.spec.job_type.clone(),
                reason,
                attempts: history.progress.tries,
                error_type,
                overflow,
            }));
        }
    }

    /// No longer among the dead letters. `record`: its own, where it could be read.
    pub(crate) fn leave_dead(&mut self, letter: &DeadEntry, record: Option<&DeadRecord>) {
        self.leave(letter.index, letter.entry());
        self.delete(Table::Dead, RecordKey::Number(letter.number));
        if let Some(record) = record {
            let counter = Counter::ErrorType(record.counted_as.as_str().into());
            self.write(Write::Add(counter, -1));
        }
    }

    // ---- the end of a job ----

    /// The job is gone, with all that belongs to it but its key; its place before has been given up.
    pub(crate) fn remove_job(&mut self, number: u64, traits: u8) {
        let key = || RecordKey::Number(number);
        self.delete(Table::Job, key());
        if traits & flag::BODY != 0 {
            self.delete(Table::Body, key());
        }
        if traits & flag::HISTORY != 0 {
            self.delete(Table::History, key());
            self.removals.push(Write::DeleteParts(Table::Attempt, number));
            self.removals.push(Write::DeleteParts(Table::Failure, number));
            if traits & flag::LOOK != 0 {
                self.removals.push(Write::DeleteParts(Table::Event, number));
            }
        }
    }

    /// The job of a caller's own id has ended. The id is held for a while, so that a repeated Enqueue does not add the job again.
    pub(crate) fn hold_id(&mut self, id: RecordKey, number: u64, now: Timestamp) {
        self.fence(Fence::Begins(Table::Id, id.clone(), records::owner(number)));
        self.insert(Index::Expires, expiry(Table::Id, id, now.after(ID_HELD)));
    }

    /// A job has this own id from now on. `ended`: what stands there. `record`: none where the id holds the number of its job.
    pub(crate) fn take_id(&mut self, id: RecordKey, ended: Option<&EndedId>, record: Option<Bytes>) {
        match ended {
            None => self.fence(Fence::Absent(Table::Id, id.clone())),
            Some(EndedId { bytes, over }) => {
                self.fence(Fence::Is(Table::Id, id.clone(), bytes.clone()));
                self.write(Write::Remove(Index::Expires, expiry(Table::Id, id.clone(), *over)));
            }
        }
        match record {
            Some(record) => self.put(Table::Id, id, record),
            None if ended.is_some() => self.write(Write::Delete(Table::Id, id)),
            None => {}
        }
    }

    /// The job has its key no longer. `found`: who has it now.
    pub(crate) fn free_key(&mut self, key: &str, found: Option<&KeyRecord>, number: u64) {
        if let Some(found) = found.filter(|found| found.number == number) {
            let name = RecordKey::Text(key.into());
            self.fence(Fence::Begins(Table::Key, name.clone(), records::owner(number)));
            self.delete(Table::Key, name);
            self.remove(Index::FinishedKey, found.entry(key));
        }
    }

    /// A job has this key from now on. `found`: what stands there, its own or that of a job that is done. Where it adds the job,
    /// removals stand among the writes: a batch that adds jobs begins with one that a full Redis refuses.
    pub(crate) fn take_key(&mut self, key: &str, found: Option<&FoundKey>, record: &KeyRecord) {
        let name = RecordKey::Text(key.into());
        match found {
            None => self.fence(Fence::Absent(Table::Key, name.clone())),
            Some(found) if found.record.number == record.number => {
                return self.fence(Fence::Begins(Table::Key, name, records::owner(record.number)));
            }
            Some(found) => {
                self.fence(Fence::Is(Table::Key, name.clone(), found.bytes.clone()));
                self.write(Write::Remove(Index::FinishedKey, found.record.entry(key)));
            }
        }
        self.put(Table::Key, name, records::key(record));
        self.insert(Index::FinishedKey, record.entry(key));
    }

    /// The job is cancelled: gone with all that belongs to it, or kept like a completed one. Its place before has been given up.
    /// `key`: who has its key now.
    pub(crate) fn cancel(
        &mut self, job: &JobFacts, mut history: History, key: Option<&KeyRecord>, queue: &QueueName, now: Timestamp,
        cx: &mut CallContext<'_>,
    ) {
        if let Some(name) = &job.spec.key {
            self.free_key(name, key, job.number);
        }
        self.unwatch_deadline(job);
        self.add(Total::Cancelled, 1);
        self.add(Total::RetriedFinished, u64::from(history.progress.retries > 0));
        if let Some(retention) = cx.queue(queue).completed_retention {
            (history.whereabouts, history.at, history.group) = (Whereabouts::Cancelled, now, NO_GROUP);
            self.put(Table::History, RecordKey::Number(job.number), records::history(&history));
            self.insert(Index::Cancelled, Entry::number(now.millis(), job.number));
            return cx.due(queue, now.after(retention));
        }
        if job.traits & flag::OWN_ID != 0 {
            self.hold_id(RecordKey::Text(job.spec.id.to_string().into()), job.number, now);
            cx.due(queue, now.after(ID_HELD));
        }
        self.remove_job(job.number, job.traits);
    }

    /// LEASED → COMPLETED, where the queue keeps it.
    pub(crate) fn complete(&mut self, facts: &LeaseFacts, note: &str, result: &[u8], now: Timestamp) {
        let job = &facts.job;
        let mut progress = facts.progress();
        let delivery = facts.lease.delivery(facts.lease.expires_at(facts.score));
        let attempt = progress.complete(&delivery, note, now);
        if !facts.lease.tail.checkpoint.is_empty() {
            progress.checkpoint.clone_from(&facts.lease.tail.checkpoint);
        }
        self.record_attempt(job, progress.recorded, &attempt);
        self.record_cancel_request(facts);
        let mut history = job.next_history(progress);
        (history.whereabouts, history.at, history.group) = (Whereabouts::Completed, now, NO_GROUP);
        history.nonce = facts.lease.lease.nonce;
        self.put(Table::History, RecordKey::Number(job.number), records::history(&history));
        self.insert(Index::Completed, Entry::number(now.millis(), job.number));
        if !result.is_empty() {
            self.put(Table::Result, RecordKey::Number(job.number), records::result(result));
        }
        self.unwatch_deadline(job);
    }
}

/// The type of error that counts a dead letter. `types`: those that are counted one by one.
pub(crate) fn counted_as(types: &mut Vec<Box<str>>, error_type: &str) -> String {
    if !types.iter().any(|known| **known == *error_type) {
        if types.len() >= ERROR_TYPES_MAX {
            return OTHER_ERROR_TYPES.to_owned();
        }
        types.push(error_type.into());
    }
    error_type.to_owned()
}

/// The own id of a job that has ended, and that was held for long enough.
#[derive(Clone, Debug)]
pub(crate) struct EndedId {
    bytes: Bytes,
    /// When its time was over.
    over: Timestamp,
}

impl EndedId {
    /// Read beside the record of an id: until when it is held, if its job has ended.
    pub(crate) fn end(id: &JobId) -> Read {
        Read::Score(Index::Expires, Member::Record(Table::Id, RecordKey::Text(id.to_string().into())))
    }

    /// None: the id is still held.
    pub(crate) fn of(record: &Bytes, end: Option<u64>, now: Timestamp) -> Option<Self> {
        let over = end.map(Timestamp::from_millis).filter(|over| *over <= now)?;
        Some(Self { bytes: record.clone(), over })
    }
}

/// A record of `Key` as it was read.
#[derive(Clone, Debug)]
pub(crate) struct FoundKey {
    pub(crate) bytes: Bytes,
    pub(crate) record: KeyRecord,
}

impl FoundKey {
    /// None: it is not there. A damaged one is free.
    pub(crate) fn read(record: Option<Bytes>) -> Result<Option<Self>> {
        let Some(bytes) = record else { return Ok(None) };
        let record = records::readable(records::read_key(&bytes))?.unwrap_or_else(|| KeyRecord {
            number: 0,
            until: Timestamp::default(),
            at: Timestamp::default(),
            sameness: Default::default(),
            id: JobId::Text("".into()),
        });
        Ok(Some(Self { bytes, record }))
    }
}
