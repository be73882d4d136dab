//! Jobs are added to the dead letters of a queue.

use super::Changes;
use crate::domain::{BreakerKind, DeadReason, QueueName, QueueSettings, Timestamp};
use crate::queue::context::CallContext;
use crate::queue::facts::{DeadFacts, JobFacts, QueueFacts};
use crate::queue::records::{self, QueueRecord};
use crate::queue::{BreakerView, DeathContext};
use crate::store::Result;
use crate::store::storage::{Fence, Index, Len, Reads, RecordKey, Table};
use bytes::Bytes;
use std::borrow::Cow;

/// Jobs die that no worker has, each out of an index: nothing else counts. Their places have been given up.
pub(crate) async fn dead_letter_all<S: Reads>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, queue_facts: &QueueFacts,
    jobs: &[(JobFacts, Index, DeadReason)], changes: &mut Changes,
) -> Result<()> {
    let facts = DeadFacts::read(store, queue, &jobs.iter().map(|(job, ..)| job).collect::<Vec<_>>()).await?;
    let settings = cx.queue(queue);
    let mut dead_letters = DeadLetters::new(queue, facts, queue_facts, &settings, store.now());
    for (job, index, reason) in jobs {
        dead_letters.leaves(*index);
        let history = job.next_history(job.progress());
        changes.dead_letter(job, history, *reason, None, &mut dead_letters, cx);
    }
    dead_letters.finish(changes, cx);
    Ok(())
}

/// The dead letters of a queue while jobs are added to them: room, counts by type of error, and their breaker.
pub(crate) struct DeadLetters<'a> {
    pub(crate) queue: &'a QueueName,
    pub(crate) facts: DeadFacts,
    queue_facts: &'a QueueFacts,
    /// After them.
    record: Cow<'a, QueueRecord>,
    pub(crate) settings: &'a QueueSettings,
    pub(crate) now: Timestamp,
    breaker_moved: bool,
    /// Dead letters that must still find room when the batch is applied.
    listed: u64,
}

impl<'a> DeadLetters<'a> {
    pub(crate) fn new(
        queue: &'a QueueName, facts: DeadFacts, queue_facts: &'a QueueFacts, settings: &'a QueueSettings,
        now: Timestamp,
    ) -> Self {
        let record = Cow::Borrowed(&queue_facts.queue);
        Self { queue, facts, queue_facts, record, settings, now, breaker_moved: false, listed: 0 }
    }

    /// The next one. Says whether it is overflow, what that does to the breaker is noted.
    pub(super) fn goes_to_overflow(&mut self) -> bool {
        let listed = self.facts.depths.dead - self.facts.depths.overflow;
        let full = listed >= self.settings.dead_letters.max_entries;
        let settings = &self.settings.dead_letters.breaker;
        let QueueRecord { dead_letters, full_in_a_row, .. } = self.record.to_mut();
        let transitions = dead_letters.transitions;
        let room = dead_letters.dead_letter(full, full_in_a_row, settings, self.now);
        self.breaker_moved |= dead_letters.transitions != transitions;
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
            Index::Ready | Index::Keyed => Some(&mut depths.ready),
            Index::Scheduled => Some(&mut depths.scheduled),
            Index::Retrying => Some(&mut depths.retrying),
            Index::Leased => Some(&mut depths.leased),
            _ => None,
        }
    }

    pub(super) fn added(&mut self, overflow: bool) {
        self.facts.depths.dead += 1;
        self.facts.depths.overflow += u64::from(overflow);
        self.listed += u64::from(!overflow);
    }

    pub(super) fn context(&self) -> DeathContext {
        let work = self.queue_facts.breaker.state(&self.settings.breaker, self.now);
        let breaker = &self.settings.dead_letters.breaker;
        let dead_letters = self.record.dead_letters.state(breaker, self.now);
        self.facts.depths.context([work, dead_letters])
    }

    /// Fences and writes that all deaths of a batch share. The record of the queue, where it is another now.
    pub(crate) fn finish(self, changes: &mut Changes, cx: &mut CallContext<'_>) -> Option<(QueueRecord, Bytes)> {
        if self.listed > 0 {
            changes.fence(Fence::Room {
                of: Len::Index(Index::Dead),
                minus: &[],
                add: self.listed,
                limit: self.settings.dead_letters.max_entries,
            });
        }
        if self.breaker_moved {
            let view = BreakerView::of_dead_letters(&self.record.dead_letters);
            cx.breaker_moved(self.queue, BreakerKind::DeadLetters, view, self.now);
        }
        let Cow::Owned(record) = self.record else { return None };
        if record == self.queue_facts.queue {
            return None;
        }
        changes.fence(self.queue_facts.queue_fence());
        let bytes = records::queue(&record);
        changes.put(Table::Queue, RecordKey::Only, bytes.clone());
        Some((record, bytes))
    }
}
