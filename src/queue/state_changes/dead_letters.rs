//! The dead letters of a queue: room, counts by type of error, and their breaker.

use super::{Changes, counted_as};
use crate::{
    domain::{
        breaker::Guarded as BreakerKind, ids::QueueName, settings::QueueSettings, time::Timestamp,
    },
    queue::{
        context::CallContext,
        facts::{DeadFacts, QueueFacts},
        records,
    },
    store::storage::{Fence, Index, Len, RecordKey, Table},
};

/// The dead letters of a queue while jobs are added to them: room, counts by type of error, and their breaker.
pub(crate) struct DeadLetters<'a> {
    pub(super) queue: &'a QueueName,
    pub(super) facts: DeadFacts,
    queue_facts: &'a QueueFacts,
    record: records::QueueRecord,
    pub(super) settings: &'a QueueSettings,
    pub(super) now: Timestamp,
    breaker_moved: bool,
    /// Dead letters that must still find room when the batch is applied.
    listed: u64,
}

impl<'a> DeadLetters<'a> {
    pub(crate) fn new(
        queue: &'a QueueName,
        facts: DeadFacts,
        queue_facts: &'a QueueFacts,
        settings: &'a QueueSettings,
        now: Timestamp,
    ) -> Self {
        Self {
            queue,
            facts,
            queue_facts,
            record: queue_facts.queue.clone(),
            settings,
            now,
            breaker_moved: false,
            listed: 0,
        }
    }

    /// Whether the next one is overflow, and what that does to the breaker.
    pub(super) fn admit(&mut self) -> bool {
        let listed = self.facts.depths.dead - self.facts.depths.overflow;
        let full = listed >= self.settings.dead_letters.max_entries;
        let breaker = &self.settings.dead_letters.breaker;
        let transitions = self.record.dead_letters.transitions;
        let room =
            self.record.dead_letters.bury(full, &mut self.record.full_in_a_row, breaker, self.now);
        self.breaker_moved |= self.record.dead_letters.transitions != transitions;
        room.overflow
    }

    /// A job left this index before, in the same batch.
    pub(crate) fn leaves(&mut self, index: Index) {
        if let Some(depth) = self.depth(index) {
            *depth = depth.saturating_sub(1);
        }
    }

    /// A job that does not die entered this index before, in the same batch.
    pub(crate) fn enters(&mut self, index: Index) {
        if let Some(depth) = self.depth(index) {
            *depth += 1;
        }
    }

    fn depth(&mut self, index: Index) -> Option<&mut u64> {
        let depths = &mut self.facts.depths;
        match index {
            Index::Ready => Some(&mut depths.ready),
            Index::Scheduled | Index::Retrying => Some(&mut depths.scheduled),
            Index::Leased => Some(&mut depths.leased),
            _ => None,
        }
    }

    pub(super) fn added(&mut self, overflow: bool) {
        self.facts.depths.dead += 1;
        self.facts.depths.overflow += u64::from(overflow);
        self.listed += u64::from(!overflow);
    }

    pub(super) fn count(&mut self, error_type: &str) -> String {
        counted_as(&mut self.facts.error_types, error_type)
    }

    pub(super) fn context(&self) -> Vec<(String, String)> {
        let work = self.queue_facts.breaker.state(&self.settings.breaker, self.now);
        let breaker = &self.settings.dead_letters.breaker;
        let dead_letters = self.record.dead_letters.state(breaker, self.now);
        self.facts.depths.context([work, dead_letters])
    }

    /// The record of the queue after them.
    pub(crate) fn into_record(self) -> records::QueueRecord {
        self.record
    }

    /// Fences and writes that all deaths of a batch share.
    pub(crate) fn finish(&self, changes: &mut Changes, cx: &mut CallContext<'_>) {
        if self.listed > 0 {
            changes.fence(Fence::Room {
                of: Len::Index(Index::Dead),
                minus: &[],
                add: self.listed,
                limit: self.settings.dead_letters.max_entries,
            });
        }
        if self.record != self.queue_facts.queue {
            changes.fence(self.queue_facts.queue_fence());
            changes.put(Table::Queue, RecordKey::Only, records::queue(&self.record));
        }
        if self.breaker_moved {
            cx.breaker_moved(
                self.queue,
                BreakerKind::DeadLetters,
                &self.record.dead_letters,
                self.now,
            );
        }
    }
}
