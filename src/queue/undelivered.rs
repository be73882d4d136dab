//! Claims whose answer did not arrive: their jobs return to where they were, at once or after a while.

use super::{
    context::CallContext,
    facts::{LeaseFacts, QueueFacts},
    records::{self, KeyRecord, Undelivered, Whereabouts},
    state_changes::Changes,
};
use crate::{
    domain::{ids::QueueName, lease::Lease},
    store::{
        StoreError, Unanswered,
        storage::{Applied, Found, Read, RecordKey, Storage, Table, Write, flag},
    },
};

/// A lease that has ended, or that a later answer handed out again, is passed over; a job that was cancelled while it was out
/// is removed.
pub(crate) async fn undelivered<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    claim: &Unanswered,
) -> Result<(), StoreError> {
    for lease in &claim.leases {
        loop {
            let Some(facts) = read(store, lease).await? else { break };
            if facts.lease.tail.answer != claim.answer {
                break;
            }
            let done = if claim.after.is_zero() {
                return_job(store, cx, &lease.queue, &facts).await?
            } else {
                return_later(store, cx, &lease.queue, facts, claim.after).await?
            };
            if done {
                break;
            }
        }
    }
    Ok(())
}

async fn read<S: Storage>(store: &mut S, lease: &Lease) -> Result<Option<LeaseFacts>, StoreError> {
    let reads = LeaseFacts::reads(lease.number);
    let Some(found) = store.read(&lease.queue, &reads).await? else { return Ok(None) };
    let (facts, _) = LeaseFacts::found(&lease.queue, lease.number, &mut found.into_iter())?;
    Ok(facts.filter(|facts| facts.lease.lease.fence() == lease.fence()))
}

/// False: the facts were old.
async fn return_later<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    facts: LeaseFacts,
    after: std::time::Duration,
) -> Result<bool, StoreError> {
    let expires_at = facts.lease.expires_at(facts.score);
    let return_at = store.now().after(after).min(expires_at);
    let mut lease = facts.lease.clone();
    lease.tail.undelivered = Some(Undelivered { return_at, expires_at });
    let mut changes = Changes::default();
    changes.fence(facts.fence());
    changes.fence(facts.expiry_fence());
    let record = records::lease(&lease);
    changes.write(Write::PutLease { number: facts.job.number, expires_at: return_at, record });
    let applied = store.apply(queue, &changes.batch()).await?;
    cx.due(queue, return_at);
    Ok(!matches!(applied, Applied::Changed(_)))
}

/// The job returns to its old position; nothing counts but the delivery, whose token must not come again. False: the facts
/// were old.
pub(crate) async fn return_job<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    facts: &LeaseFacts,
) -> Result<bool, StoreError> {
    let now = store.now();
    let mark = cx.events.len();
    let mut changes = Changes::default();
    changes.fence(facts.fence());
    changes.fence(facts.expiry_fence());
    changes.end_lease(&facts.lease.lease);
    let progress = facts.progress();
    if progress.cancel_requested {
        // No worker ever had it, so it was waiting when it was cancelled.
        let key = owner_of_key(store, queue, facts.job.spec.key.as_deref()).await?;
        changes.cancel_job(&facts.job, key.as_ref());
    } else {
        let mut history = facts.job.next_history(progress);
        history.nonce = facts.lease.lease.nonce;
        let at = facts.lease.position.ready_at;
        changes.enter_waiting(&facts.job, history, at, Whereabouts::Scheduled, now, cx, queue);
    }
    let Applied::Done(done) = store.apply(queue, &changes.batch()).await? else {
        cx.events.truncate(mark);
        return Ok(false);
    };
    if facts.lease.lease.flags & flag::PROBE != 0 {
        // Its slot is free.
        cx.memory.forget_facts(queue);
    }
    if let Some(queue_facts) = QueueFacts::remembered(store, queue, cx).await? {
        cx.available(queue, &queue_facts, done.ready, now);
    }
    cx.lease_ended();
    Ok(true)
}

/// Who has a key.
pub(crate) async fn owner_of_key<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    key: Option<&str>,
) -> Result<Option<KeyRecord>, StoreError> {
    let Some(key) = key else { return Ok(None) };
    let reads = [Read::Record(Table::Key, RecordKey::Text(key.into()))];
    let found = store.read(queue, &reads).await?.unwrap_or_default();
    let record = found.into_iter().next().and_then(Found::record);
    let record = record.map(|it| records::readable(records::read_key(&it))).transpose()?;
    Ok(record.flatten())
}
