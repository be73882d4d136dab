//! Records and keys whose time is over.

use super::Due;
use crate::{
    domain::ids::QueueName,
    queue::{
        claim_requests,
        context::CallContext,
        cross_queue,
        state_changes::{Changes, FINISHED_KEYS_MAX},
    },
    store::{
        REPLY_KEPT, StoreError,
        storage::{Entry, Fence, Index, Member, RecordKey, Storage, Table},
    },
};

/// Records whose time is over: requests, and moves between queues that are to be completed or forgotten.
pub(super) async fn remove_expired<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    entries: &[Entry],
) -> Result<(), StoreError> {
    let now = store.now();
    let mut changes = Changes::default();
    let mut moves = Vec::new();
    for entry in entries.iter().take_while(|entry| entry.score <= now.millis()) {
        match &entry.member {
            Member::Record(Table::Move, RecordKey::Number(number)) => {
                moves.push((*number, entry.clone()));
            }
            Member::Record(table, key) => {
                changes.fence(Fence::At(Index::Expires, entry.clone()));
                changes.remove(Index::Expires, entry.clone());
                if *table == Table::Request && claim_requests::is_in_use(store, queue, key).await? {
                    let score = now.after(REPLY_KEPT).millis();
                    changes.insert(Index::Expires, Entry { score, ..entry.clone() });
                } else {
                    changes.delete(*table, key.clone());
                }
            }
            _ => changes.remove(Index::Expires, entry.clone()),
        }
    }
    if !changes.is_empty() {
        // Where an entry is another by now, the next sweep sees it.
        store.apply(queue, &changes.batch()).await?;
    }
    cross_queue::finish_moves(store, cx, queue, &moves).await
}

/// Keys of finished jobs that are free, and the oldest beyond what a queue remembers.
pub(super) async fn forget_keys<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    due: &Due,
) -> Result<(), StoreError> {
    let now = store.now();
    let beyond = due.finished.saturating_sub(FINISHED_KEYS_MAX);
    let mut changes = Changes::default();
    for (at, entry) in due.finished_keys.iter().enumerate() {
        if entry.score > now.millis() && at as u64 >= beyond {
            break;
        }
        if let Member::Text(key) = &entry.member {
            // The entry goes when another job takes the key.
            changes.fence(Fence::At(Index::FinishedKey, entry.clone()));
            changes.remove(Index::FinishedKey, entry.clone());
            changes.delete(Table::Key, RecordKey::Text(key.clone()));
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    // Where an entry is another by now, the next sweep sees it.
    store.apply(queue, &changes.batch()).await.map(drop)
}
