//! Pauses: a queue hands out nothing for a while, and everything else goes on.

use super::{
    breakers::make_if_configured,
    context::{CallContext, overtaken},
    facts::QueueFacts,
    records,
    state_changes::Changes,
};
use crate::{
    domain::{ids::QueueName, pause::Pause},
    store::{
        NewPause, QueueRefused, StoreError,
        storage::{Applied, GroupState, Publish, RecordKey, Storage, Table, Version, WHOLE_QUEUE},
    },
};
use bytes::Bytes;
use std::sync::Arc;

const ROUNDS_MAX: usize = 50;

/// Pauses a queue, in place of an earlier pause, or with `None` resumes it. A configured queue is made if need be.
pub(crate) async fn pause<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    pause: Option<&NewPause>,
) -> Result<Result<(), QueueRefused>, StoreError> {
    for _ in 0..ROUNDS_MAX {
        let Some(before) = QueueFacts::read(store, queue).await? else {
            if pause.is_none() && cx.settings.queues.contains_key(queue) {
                // What has not been made is not paused either.
                return Ok(Ok(()));
            }
            match make_if_configured(store, cx, queue).await? {
                Ok(()) => continue,
                Err(refused) => return Ok(Err(refused)),
            }
        };
        let now = store.now();
        let next = pause.map(|pause| Pause {
            until: pause.duration.map(|duration| now.after(duration)),
            reason: pause.reason.clone(),
        });
        if set(store, cx, queue, &before, next).await? {
            return Ok(Ok(()));
        }
    }
    Err(overtaken())
}

/// False: the facts were old.
pub(crate) async fn set<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    before: &QueueFacts,
    pause: Option<Pause>,
) -> Result<bool, StoreError> {
    let mut after = before.clone();
    let resumes = pause.is_none();
    after.queue.pause = pause;
    let record = records::queue(&after.queue);
    let state = if resumes { GroupState::Free } else { GroupState::Held };
    after.whole = Version { state, random: (cx.rng.roll() | 1).to_be_bytes(), ..before.whole };
    let mut changes = Changes::default();
    changes.fence(before.queue_fence());
    changes.fence(before.whole.fence(WHOLE_QUEUE));
    changes.put(Table::Queue, RecordKey::Only, record.clone());
    changes.put(
        Table::Version,
        RecordKey::Group(WHOLE_QUEUE),
        Bytes::copy_from_slice(&after.whole.bytes()),
    );
    if resumes {
        changes.publish(Publish::Always);
    }
    let Applied::Done(done) = store.apply(queue, &changes.batch()).await? else {
        return Ok(false);
    };
    after.queue_record = Some(record);
    let now = store.now();
    if let Some(until) = after.queue.pause.as_ref().and_then(|pause| pause.until) {
        cx.due(queue, until);
    }
    if resumes {
        // What has been waiting can be claimed from now on.
        cx.available(queue, &after, done.ready, now);
    }
    cx.memory.remember(queue, Arc::new(after));
    Ok(true)
}
