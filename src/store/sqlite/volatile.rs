//! What is in memory alone: `Outcomes`, and counts and times under an epoch.

use super::lock;
use crate::domain::Timestamp;
use crate::store::memory::QueueData;
use crate::store::storage::{Counter, CounterGroup, Done, Found, Len, Read, RecordKey, Table, Write};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Only the last ones are asked for again.
const EPOCHS_MAX: usize = 64;

/// By queue. Shared with the readers.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedVolatile(Arc<Mutex<HashMap<i64, QueueData>>>);

impl SharedVolatile {
    pub(super) fn outcomes(&self, queue: i64) -> Option<Bytes> {
        lock(&self.0).get(&queue)?.record(Table::Outcomes, &RecordKey::Only).cloned()
    }

    /// None: it is not in memory alone.
    pub(super) fn read(&self, queue: i64, read: &Read) -> Option<Found> {
        let is_here = match read {
            Read::Record(table, _) | Read::Len(Len::Table(table)) | Read::Scan(table, ..) => *table == Table::Outcomes,
            Read::Counters(CounterGroup::Succeeded(_)) | Read::Mark(_) => true,
            _ => false,
        };
        is_here.then(|| match lock(&self.0).get(&queue) {
            Some(queue) => queue.read(read),
            None => QueueData::new(Timestamp::default()).read(read),
        })
    }

    /// False: it is not in memory alone.
    pub(super) fn write(&self, queue: i64, write: &Write, now: Timestamp) -> bool {
        let is_here = match write {
            Write::Put(table, ..) | Write::Delete(table, _) => *table == Table::Outcomes,
            Write::Add(Counter::Succeeded(_), _) | Write::Raise(..) => true,
            _ => false,
        };
        if is_here {
            let mut queues = lock(&self.0);
            let queue = queues.entry(queue).or_insert_with(|| QueueData::new(now));
            queue.write(write, now, &mut Done::default());
            queue.forget_epochs(EPOCHS_MAX);
        }
        is_here
    }

    pub(super) fn remove(&self, queue: i64) {
        lock(&self.0).remove(&queue);
    }
}
