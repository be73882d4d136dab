//! Records and keys whose time is over.

use super::Due;
use crate::domain::QueueName;
use crate::queue::REPLY_KEPT;
use crate::queue::answers::ask;
use crate::queue::context::CallContext;
use crate::queue::find;
use crate::queue::records;
use crate::queue::state_changes::{Changes, FoundKey};
use crate::queue::{claim_requests, cross_queue};
use crate::store::Result;
use crate::store::storage::{Entry, Fence, Index, Member, Read, RecordKey, Storage, Table};
use std::time::Duration;

/// The key of a job that lives on is looked at again after this, at the earliest.
const KEY_LOOKED_AT_AGAIN: Duration = Duration::from_secs(600);

/// Records whose time is over: requests, own ids of jobs that have ended, and moves between queues that are to be completed or
/// forgotten.
pub(super) async fn remove_expired<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, entries: &[Entry],
) -> Result<()> {
    let now = store.now();
    let mut changes = Changes::default();
    let mut moves = Vec::new();
    for entry in entries.iter().take_while(|entry| entry.score <= now.millis()) {
        match &entry.member {
            Member::Record(Table::Move, RecordKey::Number(number)) => {
                moves.push((*number, entry.clone()));
            }
            Member::Record(table, key) => {
                changes.leave(Index::Expires, entry.clone());
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

/// Keys of jobs that are done: those whose time is over, and the oldest beyond what a queue remembers. Where a job lives on, its
/// key is looked at again when it is twice as old.
pub(super) async fn forget_keys<S: Storage>(
    store: &mut S, cx: &CallContext<'_>, queue: &QueueName, due: &Due,
) -> Result<()> {
    let now = store.now();
    // At least so many of them are of jobs that are done.
    let done = due.keys.saturating_sub(due.not_done);
    let beyond = usize::try_from(done.saturating_sub(cx.limits.finished_keys)).unwrap_or(usize::MAX);
    let over = |(at, entry): &(usize, &Entry)| entry.score <= now.millis() || *at < beyond;
    let entries: Vec<_> = due.finished_keys.iter().enumerate().take_while(over).map(|(_, entry)| entry).collect();
    let name = |entry: &Entry| match &entry.member {
        Member::Text(key) => RecordKey::Text(key.clone()),
        _ => RecordKey::Only,
    };
    let reads: Vec<_> = entries.iter().map(|entry| Read::Record(Table::Key, name(entry))).collect();
    let mut found = ask(store, queue, &reads).await?;
    let keys = entries.iter().map(|_| FoundKey::read(found.record())).collect::<Result<Vec<_>>>()?;
    let numbers: Vec<_> = keys.iter().flatten().map(|key| key.record.number).collect();
    let not_done = find::not_done(store, queue, &numbers).await?;
    let mut changes = Changes::default();
    for (entry, key) in entries.into_iter().zip(keys) {
        let (name, is_due) = (name(entry), entry.score <= now.millis());
        // An entry that is not its key's is left over from damage.
        let key = key.filter(|key| key.record.at.millis() == entry.score);
        let lives = key.as_ref().is_some_and(|key| not_done.contains(&key.record.number));
        if lives && !is_due {
            continue;
        }
        changes.leave(Index::FinishedKey, entry.clone());
        let Some(FoundKey { bytes, mut record }) = key else { continue };
        changes.fence(Fence::Is(Table::Key, name.clone(), bytes));
        if lives {
            let age = now.since(record.until).max(KEY_LOOKED_AT_AGAIN);
            record.at = now.after(age);
            changes.insert(Index::FinishedKey, Entry { score: record.at.millis(), ..entry.clone() });
            changes.put(Table::Key, name, records::key(&record));
        } else {
            changes.delete(Table::Key, name);
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    // Where an entry is another by now, the next sweep sees it.
    store.apply(queue, &changes.batch()).await.map(drop)
}
