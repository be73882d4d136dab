//! What is in memory alone: `Outcomes`, sums under an epoch, marks and meters.

use super::lock;
use crate::domain::Timestamp;
use crate::store::memory::QueueData;
use crate::store::storage::{Done, Found, Len, Meter, Read, RecordKey, Table, Write, group_of};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Of each group. Only the last ones are asked for again.
const EPOCHS_MAX: usize = 64;

/// By queue. Shared with the readers.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedVolatile(Arc<Mutex<HashMap<i64, QueueData>>>);

impl SharedVolatile {
    pub(super) fn outcomes(&self, queue: i64, key: &RecordKey) -> Option<Bytes> {
        lock(&self.0).get(&queue)?.record(Table::Outcomes, key).cloned()
    }

    pub(super) fn meter(&self, queue: i64, group: u16) -> Option<Meter> {
        lock(&self.0).get(&queue)?.meter(group)
    }

    pub(super) fn put_meter(&self, queue: i64, group: u16, meter: Meter, now: Timestamp) {
        lock(&self.0).entry(queue).or_insert_with(|| QueueData::new(now)).put_meter(group, meter);
    }

    /// None: it is not in memory alone.
    pub(super) fn read(&self, queue: i64, read: &Read) -> Option<Found> {
        let is_here = match read {
            Read::Record(table, _) | Read::Len(Len::Table(table)) | Read::Scan(table, ..) => *table == Table::Outcomes,
            Read::Sums(_) | Read::Meter(_) | Read::Mark(_) => true,
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
            Write::Count { .. } | Write::ForgetSums(_) | Write::Raise(..) => true,
            _ => false,
        };
        if is_here {
            let mut queues = lock(&self.0);
            let queue = queues.entry(queue).or_insert_with(|| QueueData::new(now));
            queue.write(write, now, &mut Done::default());
            if let Write::Count { epoch, .. } = write {
                queue.forget_sums(group_of(*epoch), EPOCHS_MAX);
            }
        }
        is_here
    }

    pub(super) fn remove(&self, queue: i64) {
        lock(&self.0).remove(&queue);
    }
}
