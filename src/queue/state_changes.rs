//! A job moves from one state to another: the only code that writes indexes.
//!
//! ```text
//!                  Scheduled ──┐
//!                              ├─(promotion, by the engine)─► Ready ──take──► Lease
//!   Nack ────────► Retrying  ──┘                                                │
//!                                    dead_letter ► Dead, Overflow      complete ► Completed
//! ```

mod dead_letters;

pub(crate) use dead_letters::DeadLetters;

use super::{
    context::CallContext,
    facts::{JobFacts, LeaseFacts},
    records::{self, DeadRecord, History, KeyRecord, Whereabouts},
    select::DeadEntry,
};
use crate::{
    domain::{
        failure::Failure,
        ids::{JobId, QueueName},
        job::{Attempt, DeadReason},
        time::Timestamp,
    },
    store::{
        DeadNotice, StoreError, Totals,
        storage::{
            Batch, Counter, Entry, Fence, Index, Member, Position, Publish, RecordKey, Table,
            Write, flag,
        },
    },
};
use bytes::Bytes;

/// The parts of the history that are kept.
const FIRST_ATTEMPTS: u32 = 10;
const LAST_ATTEMPTS: u32 = 40;
/// Types of error that a queue counts one by one; the rest is counted together.
const ERROR_TYPES_MAX: usize = 1_000;
const OTHER_ERROR_TYPES: &str = "(other)";
/// Keys of finished jobs that a queue remembers; the sweep removes the oldest beyond it.
pub(crate) const FINISHED_KEYS_MAX: u64 = 1_000_000;

/// [`Table::Failure`]: the parts.
pub(crate) const FIRST_FAILURE: u8 = 0;
pub(crate) const LAST_FAILURE: u8 = 1;

/// Where the n-th attempt stands: the first ten stay, the last forty take turns.
pub(crate) fn attempt_part(n: u32) -> u8 {
    let part = if n <= FIRST_ATTEMPTS {
        n
    } else {
        FIRST_ATTEMPTS + 1 + (n - FIRST_ATTEMPTS - 1) % LAST_ATTEMPTS
    };
    part as u8
}

/// The attempts that are kept of so many, in order.
pub(crate) fn kept_attempts(recorded: u32) -> impl Iterator<Item = u32> {
    let last = recorded.saturating_sub(LAST_ATTEMPTS) + 1;
    (1..=recorded.min(FIRST_ATTEMPTS)).chain(last.max(FIRST_ATTEMPTS + 1)..=recorded)
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

/// Which of the totals.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Total {
    Enqueued = 0,
    Completed = 1,
    FailedAttempts = 2,
    Retries = 3,
    SuccessfulRetries = 4,
    RetriedFinished = 5,
    DeadLettered = 6,
    Requeued = 7,
    LeaseExpired = 8,
    Purged = 9,
    Cancelled = 10,
    RetentionExpired = 11,
    MovedIn = 12,
    MovedOut = 13,
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

    pub(crate) fn insert(&mut self, index: Index, entry: Entry) {
        self.writes.push(Write::Insert(index, entry));
    }

    pub(crate) fn add(&mut self, total: Total, count: u64) {
        self.totals[total as usize] += count.cast_signed();
    }

    pub(crate) fn publish(&mut self, publish: Publish) {
        let rank = |publish| match publish {
            Publish::Never => 0,
            Publish::IfFirst => 1,
            Publish::Always => 2,
        };
        if rank(publish) > rank(self.publish) {
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

    // ---- waiting ----

    /// READY if its time has come; otherwise `later` says where it waits. Its place before has been given up.
    fn wait(&mut self, position: Position, later: Index, now: Timestamp) {
        if position.ready_at <= now {
            self.insert(Index::Ready, Entry::ready(position));
            self.made_ready = true;
            self.publish(Publish::IfFirst);
        } else {
            self.insert(later, Entry::waiting(position));
        }
    }

    /// A new job: nothing but its record says where it is.
    pub(crate) fn enter(
        &mut self,
        position: Position,
        deadline: Option<Timestamp>,
        now: Timestamp,
    ) {
        self.wait(position, Index::Scheduled, now);
        self.watch_deadline(position.number, deadline);
    }

    /// A job waits, from any other state. `later`: where it waits for its time.
    #[expect(clippy::too_many_arguments, reason = "the facts of one decision")]
    pub(crate) fn enter_waiting(
        &mut self,
        job: &JobFacts,
        mut history: History,
        at: Timestamp,
        later: Whereabouts,
        now: Timestamp,
        cx: &mut CallContext<'_>,
        queue: &QueueName,
    ) {
        let index = match later {
            Whereabouts::Retrying => Index::Retrying,
            _ => Index::Scheduled,
        };
        history.whereabouts = if at <= now { Whereabouts::Ready } else { later };
        history.at = at;
        let position = records::position(job.number, history.rank, at, true);
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
        let entry =
            deadline.map(|at| Write::Insert(Index::Deadline, Entry::number(at.millis(), number)));
        self.writes.extend(entry);
    }

    pub(crate) fn unwatch_deadline(&mut self, job: &JobFacts) {
        if let Some(at) = job.spec.expires_at {
            self.remove(Index::Deadline, Entry::number(at.millis(), job.number));
        }
    }

    // ---- the end of a delivery ----

    /// The lease is over. Its fence is the caller's.
    pub(crate) fn end_lease(&mut self, lease: &crate::domain::lease::Lease) {
        self.delete(Table::Lease, RecordKey::Number(lease.number));
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
        let entry = Attempt { failure: summary, ..attempt.clone() };
        let part = RecordKey::Part(job.number, attempt_part(recorded));
        self.put(Table::Attempt, part, records::attempt(&entry));
        if let Some(failure) = &attempt.failure {
            let first = job.progress().first_failed_at.is_none();
            let part = if first { FIRST_FAILURE } else { LAST_FAILURE };
            let key = RecordKey::Part(job.number, part);
            self.put(Table::Failure, key, records::failure(failure));
        }
    }

    // ---- dead letters ----

    /// DEAD, from any state; its place before has been given up. `failure`: of the delivery that ended with this.
    pub(crate) fn dead_letter(
        &mut self,
        job: &JobFacts,
        mut history: History,
        reason: DeadReason,
        failure: Option<&Failure>,
        dead_letters: &mut DeadLetters<'_>,
        cx: &mut CallContext<'_>,
    ) {
        let now = dead_letters.now;
        let error_type = match failure {
            Some(failure) => failure.error_type.clone(),
            None => dead_letters.facts.error_type(job.number),
        };
        let overflow = dead_letters.admit();
        let counted_as = dead_letters.count(&error_type);
        let record = records::dead(&DeadRecord {
            reason,
            died_at: now,
            counted_as: counted_as.clone(),
            context: dead_letters.context(),
        });
        dead_letters.added(overflow);
        let index = if overflow { Index::Overflow } else { Index::Dead };
        self.write(Write::AppendDead { index, number: job.number, record });
        self.write(Write::Add(Counter::ErrorType(counted_as.into()), 1));
        history.whereabouts = if overflow { Whereabouts::Overflow } else { Whereabouts::Dead };
        history.at = now;
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
        cx.events.push(super::context::Event::DeadLettered(DeadNotice {
            queue: dead_letters.queue.clone(),
            id: job.spec.id.clone(),
            job_type: job.spec.job_type.clone(),
            reason,
            attempts: history.progress.tries,
            error_type,
            overflow,
        }));
    }

    /// No longer among the dead letters. `record`: its own, where it could be read.
    pub(crate) fn leave_dead(&mut self, letter: &DeadEntry, record: Option<&DeadRecord>) {
        self.fence(Fence::At(letter.index, letter.entry()));
        self.remove(letter.index, letter.entry());
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
        }
    }

    /// The caller's own id names it no longer.
    pub(crate) fn free_id(&mut self, id: &str, number: u64) {
        let key = RecordKey::Text(id.into());
        self.fence(Fence::Begins(Table::Id, key.clone(), records::owner(number)));
        self.delete(Table::Id, key);
    }

    /// The job is done: its key is held until its retention is over. The key is its own while it lives.
    pub(crate) fn finish_key(&mut self, job: &JobFacts, free_at: Timestamp, now: Timestamp) {
        let Some(key) = &job.spec.key else { return };
        let name = RecordKey::Text(key.as_str().into());
        self.fence(Fence::Begins(Table::Key, name.clone(), records::owner(job.number)));
        let Some(sameness) = job.sameness.filter(|_| free_at > now) else {
            return self.delete(Table::Key, name);
        };
        let (number, id) = (job.number, job.spec.id.clone());
        let record = KeyRecord { number, free_at: Some(free_at), sameness, id };
        self.put(Table::Key, name, records::key(&record));
        let entry = Entry { score: free_at.millis(), member: Member::Text(key.as_str().into()) };
        self.insert(Index::FinishedKey, entry);
    }

    /// A new job takes the key of one that is done, whose time was over at `free_at`. `found`: its record. The removal stands
    /// among the writes: a batch that adds jobs begins with one that a full Redis refuses.
    pub(crate) fn take_finished_key(&mut self, key: &str, found: &Bytes, free_at: Timestamp) {
        self.fence(Fence::Is(Table::Key, RecordKey::Text(key.into()), found.clone()));
        let entry = Entry { score: free_at.millis(), member: Member::Text(key.into()) };
        self.write(Write::Remove(Index::FinishedKey, entry));
    }

    /// The job, which was not done, has its key no longer. `found`: who has it now.
    pub(crate) fn free_key(&mut self, key: &str, found: Option<&KeyRecord>, number: u64) {
        if found.is_some_and(|found| found.number == number) {
            let name = RecordKey::Text(key.into());
            self.fence(Fence::Begins(Table::Key, name.clone(), records::owner(number)));
            self.delete(Table::Key, name);
        }
    }

    /// A job that is to work has this key from now on; no other job that is not done has it. `found`: what stands there.
    pub(crate) fn take_key(&mut self, key: &str, found: Option<&FoundKey>, record: &KeyRecord) {
        let name = RecordKey::Text(key.into());
        match found {
            None => self.fence(Fence::Absent(Table::Key, name.clone())),
            Some(found) if found.is_live_of(record.number) => {
                return self.fence(Fence::Begins(Table::Key, name, records::owner(record.number)));
            }
            Some(found) => {
                self.fence(Fence::Is(Table::Key, name.clone(), found.bytes.clone()));
                if let Some(at) = found.record.free_at {
                    let entry = Entry { score: at.millis(), member: Member::Text(key.into()) };
                    self.remove(Index::FinishedKey, entry);
                }
            }
        }
        self.put(Table::Key, name, records::key(record));
    }

    /// The job, which waits or was not delivered, is cancelled: gone with all that belongs to it. Its place before has been
    /// given up. `key`: who has its key now.
    pub(crate) fn cancel_job(&mut self, job: &JobFacts, key: Option<&KeyRecord>) {
        if let Some(name) = &job.spec.key {
            self.free_key(name, key, job.number);
        }
        if job.traits & flag::OWN_ID != 0 {
            self.free_id(&job.spec.id.to_string(), job.number);
        }
        self.unwatch_deadline(job);
        self.remove_job(job.number, job.traits);
        self.add(Total::Cancelled, 1);
        self.add(Total::RetriedFinished, u64::from(job.progress().retries > 0));
    }

    /// LEASED → COMPLETED, where the queue keeps it.
    pub(crate) fn complete(
        &mut self,
        facts: &LeaseFacts,
        note: &str,
        result: &[u8],
        now: Timestamp,
    ) {
        let job = &facts.job;
        let mut progress = facts.progress();
        let delivery = facts.lease.delivery(facts.lease.expires_at(facts.score));
        let attempt = progress.complete(&delivery, note, now);
        if !facts.lease.tail.checkpoint.is_empty() {
            progress.checkpoint.clone_from(&facts.lease.tail.checkpoint);
        }
        self.record_attempt(job, progress.recorded, &attempt);
        let mut history = job.next_history(progress);
        history.whereabouts = Whereabouts::Completed;
        history.at = now;
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
    if types.iter().any(|known| **known == *error_type) {
        return error_type.to_owned();
    }
    if types.len() >= ERROR_TYPES_MAX {
        return OTHER_ERROR_TYPES.to_owned();
    }
    types.push(error_type.into());
    error_type.to_owned()
}

/// A record of `Key` as it was read.
#[derive(Clone, Debug)]
pub(crate) struct FoundKey {
    pub(crate) bytes: Bytes,
    pub(crate) record: KeyRecord,
}

impl FoundKey {
    /// None: it is not there. A damaged one is free.
    pub(crate) fn read(record: Option<Bytes>) -> Result<Option<Self>, StoreError> {
        let Some(bytes) = record else { return Ok(None) };
        let record = records::readable(records::read_key(&bytes))?.unwrap_or_else(|| KeyRecord {
            number: 0,
            free_at: Some(Timestamp::default()),
            sameness: Default::default(),
            id: JobId::Text("".into()),
        });
        Ok(Some(Self { bytes, record }))
    }

    /// The job of this number has it and is not done.
    pub(crate) fn is_live_of(&self, number: u64) -> bool {
        self.record.free_at.is_none() && self.record.number == number
    }

    /// Another job, which is not done, has it.
    pub(crate) fn is_taken_from(&self, number: u64) -> bool {
        self.record.free_at.is_none() && self.record.number != number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ten_and_the_last_forty_attempts_are_kept() {
        let all = |recorded| kept_attempts(recorded).collect::<Vec<_>>();
        assert!(all(0).is_empty());
        assert_eq!(all(3), [1, 2, 3]);
        assert_eq!(all(53), (1..=10).chain(14..=53).collect::<Vec<_>>());
        // No two that are kept stand in the same place.
        for recorded in [1, 10, 11, 50, 51, 90, 1_000] {
            let parts: std::collections::HashSet<_> =
                kept_attempts(recorded).map(attempt_part).collect();
            assert_eq!(parts.len(), all(recorded).len());
            assert!(parts.iter().all(|part| (1..=50).contains(part)));
        }
    }
}
