//! One index of one queue.

use crate::store::storage::{Entry, Index, Member};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Range;

/// Entries by score, and then by the bytes of their member, as the other engines order them. A member has one score.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OrderedIndex {
    index: Index,
    order: BTreeSet<(u64, Vec<u8>)>,
    scores: BTreeMap<Vec<u8>, u64>,
}

impl OrderedIndex {
    pub(super) fn new(index: Index) -> Self {
        Self { index, order: BTreeSet::new(), scores: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn insert(&mut self, entry: &Entry) {
        self.remove(&entry.member);
        let member = entry.member.bytes(self.index);
        self.order.insert((entry.score, member.clone()));
        self.scores.insert(member, entry.score);
    }

    pub(super) fn remove(&mut self, member: &Member) {
        let member = member.bytes(self.index);
        if let Some(score) = self.scores.remove(&member) {
            self.order.remove(&(score, member));
        }
    }

    pub(super) fn score(&self, member: &Member) -> Option<u64> {
        self.scores.get(&member.bytes(self.index)).copied()
    }

    /// Entries in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.order.iter().filter_map(|key| self.entry(key))
    }

    /// See [`crate::store::storage::Read::Range`].
    pub(super) fn range(&self, after: Option<&Entry>, up_to: Option<u64>, limit: usize, reverse: bool) -> Vec<Entry> {
        let after = after.map(|entry| self.key(entry));
        // The first key that is no longer within `up_to`: no member is less than an empty one.
        let end = up_to.and_then(|score| score.checked_add(1)).map(|score| (score, Vec::new()));
        let (first, end) = if reverse { (None, [after, end].into_iter().flatten().min()) } else { (after, end) };
        if first.is_some() && end.as_ref().is_some_and(|end| Some(end) <= first.as_ref()) {
            return Vec::new();
        }
        let mut keys = self.order.range((first.map_or(Unbounded, Excluded), end.map_or(Unbounded, Excluded)));
        let next = || if reverse { keys.next_back() } else { keys.next() };
        std::iter::from_fn(next).take(limit).filter_map(|key| self.entry(key)).collect()
    }

    /// How many entries are between these, which need not be there; counted up to `limit`.
    pub(super) fn count(&self, between: Range<Entry>, limit: usize) -> u64 {
        self.order.range(self.key(&between.start)..self.key(&between.end)).take(limit).count() as u64
    }

    fn key(&self, entry: &Entry) -> (u64, Vec<u8>) {
        (entry.score, entry.member.bytes(self.index))
    }

    fn entry(&self, (score, member): &(u64, Vec<u8>)) -> Option<Entry> {
        Some(Entry { score: *score, member: Member::read(self.index, member)? })
    }
}
