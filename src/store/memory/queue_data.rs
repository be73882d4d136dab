//! The records, entries and counters of one queue; how they are read, compared and written.

use super::ordered_index::OrderedIndex;
use crate::domain::Timestamp;
use crate::store::storage::{
    Applied, Batch, Counter, CounterGroup, Done, Entry, Fence, Found, Heads, Index, Len, Mark, Member, Meter, NO_GROUP,
    OutcomeSums, Position, Read, RecordKey, Table, Version, Was, Write, epoch_of, lease_group,
};
use bytes::Bytes;
use std::array;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

#[derive(Clone, Debug, PartialEq)]
pub(in crate::store) struct QueueData {
    /// By [`Table`].
    tables: [BTreeMap<RecordKey, Bytes>; Table::ALL.len()],
    /// By [`Index`]. Expiries of leases stand in `Leased` alone.
    indexes: [OrderedIndex; Index::ALL.len()],
    counters: BTreeMap<Counter, i64>,
    marks: BTreeMap<Mark, Timestamp>,
    /// By epoch, with the last success.
    sums: BTreeMap<u32, (OutcomeSums, Timestamp)>,
    /// By group.
    meters: BTreeMap<u16, Meter>,
    /// Follow from `Keyed` and the versions.
    pub(super) heads: Heads,
    last_death: u64,
    /// When it was made or last written to.
    used: Timestamp,
}

impl QueueData {
    pub(in crate::store) fn new(now: Timestamp) -> Self {
        Self {
            tables: array::from_fn(|_| BTreeMap::new()),
            indexes: Index::ALL.map(OrderedIndex::new),
            counters: BTreeMap::new(),
            marks: BTreeMap::new(),
            sums: BTreeMap::new(),
            meters: BTreeMap::new(),
            heads: Heads::default(),
            last_death: 0,
            used: now,
        }
    }

    pub(in crate::store) fn record(&self, table: Table, key: &RecordKey) -> Option<&Bytes> {
        self.table(table).get(key)
    }

    pub(super) fn index(&self, index: Index) -> &OrderedIndex {
        &self.indexes[index as usize]
    }

    pub(super) fn index_mut(&mut self, index: Index) -> &mut OrderedIndex {
        &mut self.indexes[index as usize]
    }

    pub(super) fn leases(&self) -> usize {
        self.table(Table::Lease).len()
    }

    pub(super) fn mark_used(&mut self, now: Timestamp) {
        self.used = self.used.max(now);
    }

    /// No job and no promise to a caller is left, and it was not written to at `since` or later.
    pub(super) fn is_unused(&self, since: Timestamp) -> bool {
        // What describes the queue itself and not its jobs. `Outcomes` is a part of the breaker's state.
        let of_queue = [Table::Queue, Table::Version, Table::Breaker, Table::Group, Table::Outcomes];
        let of_jobs = Table::ALL.into_iter().filter(|table| !of_queue.contains(table)).map(Len::Table);
        self.used < since && of_jobs.chain(Index::ALL.map(Len::Index)).all(|of| self.len(of) == 0)
    }

    fn table(&self, table: Table) -> &BTreeMap<RecordKey, Bytes> {
        &self.tables[table as usize]
    }

    fn table_mut(&mut self, table: Table) -> &mut BTreeMap<RecordKey, Bytes> {
        &mut self.tables[table as usize]
    }

    fn len(&self, of: Len) -> u64 {
        match of {
            Len::Table(table) => self.table(table).len() as u64,
            Len::Index(index) => self.index(index).len() as u64,
        }
    }

    pub(super) fn version(&self, group: u16) -> Version {
        Version::read(self.record(Table::Version, &RecordKey::Group(group)).map(AsRef::as_ref))
    }

    /// Entries of `Ready`, and those of `Keyed` if a group that is not held has one.
    pub(super) fn ready(&self) -> u64 {
        let keyed = if self.heads.is_empty() { 0 } else { self.index(Index::Keyed).len() };
        (self.index(Index::Ready).len() + keyed) as u64
    }

    /// The first ready positions of a group, or those behind this one.
    pub(super) fn positions(&self, group: u16, after: Option<&Position>, limit: usize) -> Vec<Position> {
        let index = if group == NO_GROUP { Index::Ready } else { Index::Keyed };
        let before_all = Position { group, rank: 0, ready_at: Timestamp::default(), number: 0, tag: 0 };
        let after = Entry::ready(*after.unwrap_or(&before_all));
        let positions = self.index(index).range(Some(&after), None, limit, false).into_iter();
        let positions = positions.filter_map(|entry| match entry.member {
            Member::Position(position) => Some(position),
            _ => None,
        });
        positions.take_while(|position| position.group == group).collect()
    }

    /// To be done whenever `Keyed` or the version of a group has changed.
    pub(super) fn derive_head(&mut self, group: u16) {
        let (version, first) = (self.version(group), self.positions(group, None, 1));
        self.heads.set(group, &version, first.first().filter(|_| group != NO_GROUP));
    }

    pub(in crate::store) fn meter(&self, group: u16) -> Option<Meter> {
        self.meters.get(&group).copied()
    }

    pub(in crate::store) fn put_meter(&mut self, group: u16, meter: Meter) {
        self.meters.insert(group, meter);
    }

    /// Of the sums of this group the first go that are more than so many.
    pub(in crate::store) fn forget_sums(&mut self, group: u16, most: usize) {
        if self.sums.len() <= most {
            return;
        }
        let of_group = epoch_of(group, 0)..=epoch_of(group, u64::MAX);
        let epochs: Vec<_> = self.sums.range(of_group).map(|(epoch, _)| *epoch).collect();
        let over = epochs.len().saturating_sub(most);
        for epoch in &epochs[..over] {
            self.sums.remove(epoch);
        }
    }

    // ---- read ----

    pub(in crate::store) fn read(&self, read: &Read) -> Found {
        match read {
            Read::Record(table, key) => Found::Record(self.record(*table, key).cloned()),
            Read::Score(index, member) => Found::Score(self.index(*index).score(member)),
            Read::Range { index, after, up_to, limit, reverse } => {
                Found::Entries(self.index(*index).range(after.as_ref(), *up_to, *limit, *reverse))
            }
            Read::Ahead(position, limit) => Found::Number(self.ahead(position, *limit)),
            Read::Len(of) => Found::Number(self.len(*of)),
            Read::Counters(group) => Found::Counters(self.counters_of(*group)),
            Read::Mark(mark) => Found::Score(self.marks.get(mark).map(|at| at.millis())),
            Read::Sums(epoch) => match self.sums.get(epoch) {
                Some((sums, last)) => Found::Sums(*sums, Some(*last)),
                None => Found::Sums(OutcomeSums::default(), None),
            },
            Read::Meter(group) => Found::Meter(self.meter(*group)),
            Read::Scan(table, after, limit) => {
                let beyond = after.as_ref().map_or(Unbounded, Excluded);
                let records = self.table(*table).range((beyond, Unbounded)).take(*limit);
                Found::Scanned(records.map(|(key, record)| (key.clone(), record.clone())).collect())
            }
        }
    }

    fn ahead(&self, position: &Position, limit: usize) -> u64 {
        let start = Position { rank: 0, ready_at: Timestamp::default(), number: 0, tag: 0, ..*position };
        let between = Entry::ready(start)..Entry::ready(*position);
        self.index(position.ready_index()).count(between, limit)
    }

    fn counters_of(&self, group: CounterGroup) -> Vec<(Counter, i64)> {
        let is_in_group = |counter: &Counter| {
            let is_total = matches!(counter, Counter::Total(_));
            is_total == (group == CounterGroup::Totals)
        };
        let counters = self.counters.iter().filter(|(counter, _)| is_in_group(counter));
        counters.map(|(counter, value)| (counter.clone(), *value)).collect()
    }

    // ---- apply ----

    pub(super) fn apply(&mut self, batch: &Batch, now: Timestamp) -> Applied {
        debug_assert_eq!(self.broken_rule(batch), None, "{batch:?}");
        let fences = batch.fences.iter().enumerate();
        let failed: Vec<_> = fences.filter_map(|(at, fence)| Some((at, self.failed(fence)?))).collect();
        if !failed.is_empty() {
            return Applied::Changed(failed);
        }
        let told = batch.fences.iter().filter_map(|fence| match fence {
            Fence::Tell(table, key, _) => self.record(*table, key).cloned(),
            _ => None,
        });
        let mut done = Done { told: told.collect(), ..Done::default() };
        for write in &batch.writes {
            self.write(write, now, &mut done);
        }
        // A sweep that finds nothing due must not keep an empty queue alive, nor must a worker that asks for it.
        let wrote = batch.writes.iter().any(|write| !matches!(write, Write::Promote(_) | Write::Raise(..)));
        if wrote || done.promoted > 0 {
            self.mark_used(now);
        }
        done.ready = self.ready();
        Applied::Done(done)
    }

    /// What a fence found that does not hold.
    fn failed(&self, fence: &Fence) -> Option<Was> {
        if let Some((table, key)) = fence.record() {
            let record = self.record(table, key);
            return (!fence.holds(record.map(AsRef::as_ref))).then(|| Was::Record(record.cloned()));
        }
        match fence {
            Fence::At(index, entry) => {
                let score = self.index(*index).score(&entry.member);
                (score != Some(entry.score)).then_some(Was::Score(score))
            }
            Fence::Room { of, minus, add, limit } => {
                let less = minus.iter().map(|of| self.len(*of)).sum();
                let len = self.len(*of).saturating_sub(less);
                (len.saturating_add(*add) > *limit).then_some(Was::Len(len))
            }
            _ => None,
        }
    }

    pub(in crate::store) fn write(&mut self, write: &Write, now: Timestamp, done: &mut Done) {
        match write {
            Write::Put(table, key, record) => {
                self.table_mut(*table).insert(key.clone(), record.clone());
                self.follow_version(*table, key);
            }
            Write::PutLease { number, expires_at, record } => self.put_lease(*number, *expires_at, record.clone()),
            Write::Delete(table, key) => {
                self.table_mut(*table).remove(key);
                self.follow_version(*table, key);
                if let (Table::Lease, RecordKey::Number(number)) = (table, key) {
                    self.index_mut(Index::Leased).remove(&Member::Number(*number));
                }
            }
            Write::DeleteParts(table, number) => {
                let parts = RecordKey::Part(*number, 0)..=RecordKey::Part(*number, u8::MAX);
                let table = self.table_mut(*table);
                let parts: Vec<_> = table.range(parts).map(|(part, _)| part.clone()).collect();
                parts.iter().for_each(|part| drop(table.remove(part)));
            }
            Write::Insert(index, entry) => {
                self.index_mut(*index).insert(entry);
                self.follow_keyed(*index, &entry.member);
            }
            Write::Remove(index, entry) => {
                self.index_mut(*index).remove(&entry.member);
                self.follow_keyed(*index, &entry.member);
            }
            Write::Extend { number, expires_at } => {
                let leased = self.index_mut(Index::Leased);
                let mut end = expires_at.millis();
                // Without a lease there is nothing to extend: a fence on the lease comes with it.
                if let Some(old) = leased.score(&Member::Number(*number)) {
                    end = end.max(old);
                    leased.insert(&Entry::number(end, *number));
                }
                done.raised.push(Timestamp::from_millis(end));
            }
            Write::AppendDead { index, number, record } => {
                self.last_death += 1;
                let death = self.last_death;
                self.index_mut(*index).insert(&Entry::number(death, *number));
                let numbered = [&death.to_be_bytes(), &record[..]].concat();
                self.table_mut(Table::Dead).insert(RecordKey::Number(*number), numbered.into());
                done.deaths.push(death);
            }
            Write::Add(counter, delta) => {
                let sum = self.counters.get(counter).copied().unwrap_or_default();
                match sum.saturating_add(*delta) {
                    0 => self.counters.remove(counter),
                    sum => self.counters.insert(counter.clone(), sum),
                };
            }
            Write::Raise(mark, at) => {
                let last = self.marks.entry(*mark).or_insert(*at);
                *last = (*last).max(*at);
            }
            Write::Count { epoch, sums, at } => {
                let (all, last) = self.sums.entry(*epoch).or_default();
                all.add(sums);
                *last = (*last).max(*at);
            }
            Write::ForgetSums(epoch) => {
                self.sums.remove(epoch);
            }
            Write::Promote(limit) => done.promoted += self.promote(*limit, now),
        }
    }

    fn follow_version(&mut self, table: Table, key: &RecordKey) {
        if let (Table::Version, RecordKey::Group(group)) = (table, key) {
            self.derive_head(*group);
        }
    }

    fn follow_keyed(&mut self, index: Index, member: &Member) {
        if let (Index::Keyed, Member::Position(position)) = (index, member) {
            self.derive_head(position.group);
        }
    }

    pub(super) fn put_lease(&mut self, number: u64, expires_at: Timestamp, record: Bytes) {
        let group = lease_group(&record);
        if group != NO_GROUP {
            self.index_mut(Index::LeasedByGroup).insert(&Entry::number(group.into(), number));
        }
        self.table_mut(Table::Lease).insert(RecordKey::Number(number), record);
        self.index_mut(Index::Leased).insert(&Entry::number(expires_at.millis(), number));
    }

    /// Up to `limit` due entries of each index become ready, with the positions that they have.
    pub(super) fn promote(&mut self, limit: usize, now: Timestamp) -> usize {
        let mut promoted = 0;
        for index in [Index::Retrying, Index::Scheduled] {
            for entry in self.index(index).range(None, Some(now.millis()), limit, false) {
                let Member::Position(position) = entry.member else { continue };
                self.index_mut(index).remove(&entry.member);
                self.index_mut(position.ready_index()).insert(&Entry::ready(position));
                self.derive_head(position.group);
                promoted += 1;
            }
        }
        promoted
    }

    /// Which rule of [`Batch`] this one breaks. Engines rely on them, and a batch that breaks one may work here alone.
    fn broken_rule(&self, batch: &Batch) -> Option<&'static str> {
        let (mut fenced, mut written) = (BTreeSet::new(), BTreeSet::new());
        if !batch.fences.iter().filter_map(Fence::record).all(|record| fenced.insert(record)) {
            return Some("a record is fenced twice");
        }
        let leased_by_group = |number| self.index(Index::LeasedByGroup).score(&Member::Number(number));
        for write in &batch.writes {
            let record = match write {
                Write::Put(table, key, _) | Write::Delete(table, key) => (*table, key.clone()),
                Write::PutLease { number, .. } => (Table::Lease, RecordKey::Number(*number)),
                Write::AppendDead { number, .. } => (Table::Dead, RecordKey::Number(*number)),
                Write::Insert(Index::Leased | Index::LeasedByGroup, _) | Write::Remove(Index::Leased, _) => {
                    return Some("`Leased` is written with `Lease` alone");
                }
                _ => continue,
            };
            let group = match record {
                (Table::Lease, RecordKey::Number(number)) => leased_by_group(number).map(|group| (number, group)),
                _ => None,
            };
            if let Some((number, group)) = group {
                let removal = Write::Remove(Index::LeasedByGroup, Entry::number(group, number));
                let breaks = match write {
                    Write::Delete(..) => !batch.writes.contains(&removal),
                    Write::Put(.., record) | Write::PutLease { record, .. } => u64::from(lease_group(record)) != group,
                    _ => false,
                };
                if breaks {
                    return Some("a lease keeps its group to its end, and is removed from `LeasedByGroup` then");
                }
            }
            if !written.insert(record) {
                return Some("a record is written twice");
            }
        }
        None
    }
}
