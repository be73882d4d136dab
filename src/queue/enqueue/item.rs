//! A job as it is to be written, and the jobs of one batch.

use super::{Answer, BATCH_BYTES, BATCH_JOBS, Incoming};
use crate::domain::{JobId, OnConflict, Sameness, Spec, State, Timestamp};
use crate::queue::context::CallContext;
use crate::queue::encoding::Unknown;
use crate::queue::records::{self, IdRecord, JobRecord, KeyRecord};
use crate::queue::state_changes::{Changes, EndedId, FoundKey};
use crate::queue::{EnqueueOutcome, Enqueued};
use crate::store::storage::{Fence, NO_GROUP, RecordKey, Table, flag};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A job as it is to be written.
pub(super) struct Item {
    /// Its place in the call.
    pub(super) at: usize,
    pub(super) number: u64,
    pub(super) spec: Spec,
    pub(super) state: State,
    bytes: usize,
    /// The id is the caller's own.
    pub(super) own_id: bool,
    pub(super) sameness: Option<Sameness>,
    pub(super) on_conflict: OnConflict,
    pub(super) record: JobRecord,
    /// How long its key is held at least.
    pub(super) key_until: Timestamp,
    /// Its key belonged to a job that is done and whose time is over.
    pub(super) finished_key: Option<FoundKey>,
    /// Its own id belonged to a job that has ended.
    pub(super) ended_id: Option<EndedId>,
    /// Its own id holds the number of another job, which has another id.
    pub(super) number_in_id_is_another: bool,
    /// Of its breaker key.
    pub(super) group: u16,
}

impl Item {
    pub(super) fn new(at: usize, number: u64, incoming: Incoming, now: Timestamp, cx: &mut CallContext<'_>) -> Self {
        let bytes = incoming.bytes();
        let Incoming { mut job, sameness } = incoming;
        let own_id = job.id.take();
        let is_own = own_id.is_some();
        let id = own_id.unwrap_or_else(|| JobId::make(now, number, cx.rng.next_u64()));
        let on_conflict = job.on_conflict;
        let retention = job.key.as_ref().map(|_| cx.settings.queue(&job.queue).key_retention);
        let (spec, state) = job.admit(now, id);
        let key_until = retention.map_or(now, |retention| spec.key_until(retention));
        let record = records::job(&spec, number, NO_GROUP, sameness.as_ref(), &Unknown::default());
        Self {
            at,
            number,
            spec,
            state,
            bytes,
            own_id: is_own,
            sameness,
            on_conflict,
            record,
            key_until,
            finished_key: None,
            ended_id: None,
            number_in_id_is_another: false,
            group: NO_GROUP,
        }
    }

    /// Where the jobs of its breaker key wait.
    pub(super) fn set_group(&mut self, group: u16) {
        if self.group != group {
            self.group = group;
            self.write_record();
        }
    }

    fn write_record(&mut self) {
        self.record = records::job(&self.spec, self.number, self.group, self.sameness.as_ref(), &Unknown::default());
    }

    /// Another job has its number.
    pub(super) fn renumber(&mut self, number: u64, now: Timestamp, cx: &mut CallContext<'_>) {
        self.number = number;
        if !self.own_id {
            self.spec.id = JobId::make(now, number, cx.rng.next_u64());
        }
        self.write_record();
    }

    /// The job that its own id would name if a server had made it.
    fn number_in_id(&self) -> Option<u64> {
        let number = self.spec.id.number().filter(|_| self.own_id && !self.number_in_id_is_another)?;
        (number != self.number).then_some(number)
    }

    pub(super) fn added(&self) -> Answer {
        let (id, run_at) = (self.spec.id.clone(), Some(self.spec.run_at));
        Ok(Enqueued { id, outcome: EnqueueOutcome::Added, state: self.state, run_at })
    }

    /// Its fences and writes. The first of each are those of the job.
    pub(super) fn write(&self, changes: &mut Changes, now: Timestamp) {
        let key = || RecordKey::Number(self.number);
        changes.fence(Fence::Absent(Table::Job, key()));
        changes.put(Table::Job, key(), self.record.record.clone());
        if let Some(body) = &self.record.body {
            changes.put(Table::Body, key(), body.clone());
        }
        let rank = records::rank(self.spec.priority);
        let position = records::position(self.group, self.number, rank, self.spec.run_at, false);
        changes.enter(position, self.spec.expires_at, now);
        if let Some(sameness) = self.sameness {
            self.write_names(changes, sameness);
        }
    }

    fn write_names(&self, changes: &mut Changes, sameness: Sameness) {
        let number = self.number;
        if self.own_id {
            let id = RecordKey::Text(self.spec.id.to_string().into());
            // An id that holds the number of its own job needs no record: it is found by that.
            let has_record = self.record.traits & flag::OWN_ID != 0;
            let record = has_record.then(|| records::id(&IdRecord { number, sameness }));
            changes.take_id(id, self.ended_id.as_ref(), record);
        }
        if let Some(number) = self.number_in_id() {
            changes.fence(Fence::Absent(Table::Job, RecordKey::Number(number)));
        }
        if let Some(key) = &self.spec.key {
            let (until, id) = (self.key_until, self.spec.id.clone());
            let record = KeyRecord { number, until, at: until, sameness, id };
            changes.take_key(key, self.finished_key.as_ref(), &record);
        }
    }
}

/// Fences look before any write: no id, key or number is fenced twice in a batch.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) items: Vec<Item>,
    bytes: usize,
    /// Own ids and keys, and the items that have them.
    ids: HashMap<JobId, usize>,
    keys: HashMap<Box<str>, usize>,
    /// Numbers in own ids.
    numbers: HashSet<u64>,
    /// The same job as another one of the batch: its place in the call, and that of the other.
    pub(super) again: Vec<(usize, usize)>,
    /// Those that share an id or key with another one of the batch and are not the same job: each is a batch of its own.
    pub(super) apart: Vec<Item>,
}

impl Chunk {
    pub(super) fn is_full(&self, next: &Incoming) -> bool {
        let bytes = self.bytes + next.bytes();
        self.items.len() >= BATCH_JOBS || !self.items.is_empty() && bytes > BATCH_BYTES
    }

    /// `call`: the numbers of all jobs of the call.
    pub(super) fn push(&mut self, item: Item, call: &Range<u64>) {
        if item.sameness.is_some() {
            // One that replaces may differ in more than what makes a job the same.
            let replaces = item.on_conflict == OnConflict::ReplaceWaiting;
            if let Some(other) = self.same_as(&item).filter(|_| !replaces) {
                return self.again.push((item.at, other));
            }
            // What comes after one of those may share something with it, and is added after it.
            if !self.apart.is_empty() || !self.is_alone(&item, call) {
                return self.apart.push(item);
            }
            let at = self.items.len();
            if item.own_id {
                self.ids.insert(item.spec.id.clone(), at);
            }
            self.keys.extend(item.spec.key.as_deref().map(|key| (key.into(), at)));
            self.numbers.extend(item.number_in_id());
        }
        self.bytes += item.bytes;
        self.items.push(item);
    }

    /// The items that have its id, and its key.
    fn named_as(&self, item: &Item) -> [Option<usize>; 2] {
        let id = item.own_id.then(|| self.ids.get(&item.spec.id)).flatten();
        let key = item.spec.key.as_deref().and_then(|key| self.keys.get(key));
        [id.copied(), key.copied()]
    }

    /// The place of the item that is the same job under the same id and key.
    fn same_as(&self, item: &Item) -> Option<usize> {
        let [by_id, by_key] = self.named_as(item);
        let other = &self.items[by_id.or(by_key)?];
        let ids = other.own_id == item.own_id && (!item.own_id || other.spec.id == item.spec.id);
        let same = ids && other.spec.key == item.spec.key && other.sameness == item.sameness;
        same.then_some(other.at)
    }

    /// Shares nothing with another item that a fence looks at.
    fn is_alone(&self, item: &Item, call: &Range<u64>) -> bool {
        let is_fenced = |number| call.contains(&number) || self.numbers.contains(&number);
        self.named_as(item) == [None, None] && !item.number_in_id().is_some_and(is_fenced)
    }
}
