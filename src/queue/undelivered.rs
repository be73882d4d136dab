//! Claims whose answer did not arrive: their jobs return to where they were, at once or after a while.

use super::answers::{ask, by_name, numbered};
use super::context::CallContext;
use super::facts::{LeaseFacts, QueueFacts, Rounds};
use super::handover::UndeliveredClaim;
use super::records::{self, LeaseRecord, LeaseTail, Undelivered, Whereabouts};
use super::state_changes::Changes;
use crate::domain::{QueueName, Timestamp};
use crate::store::Result;
use crate::store::storage::{Applied, Entry, Fence, Publish, RecordKey, Storage, Table, TakenJob, Write, flag};

/// A lease that has ended, or that a later answer handed out again, is passed over; a job that was cancelled while it was out
/// ends.
pub(crate) async fn undelivered<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, claim: &UndeliveredClaim,
) -> Result<()> {
    for lease in &claim.leases {
        let queue = &lease.queue;
        loop {
            let facts = LeaseFacts::read(store, lease).await?;
            let Some(facts) = facts.filter(|it| it.lease.tail.answer == claim.answer) else { break };
            let done = if claim.after.is_zero() {
                return_job(store, cx, queue, &facts).await?
            } else {
                let expires_at = facts.lease.expires_at(facts.score);
                let return_at = store.now().after(claim.after).min(expires_at);
                let undelivered = Some(Undelivered { return_at, expires_at });
                let tail = LeaseTail { undelivered, ..facts.lease.tail.clone() };
                let done = put_lease(store, queue, &facts, tail, return_at).await?;
                cx.due(queue, return_at);
                done
            };
            if done {
                break;
            }
        }
    }
    Ok(())
}

/// The lease has another tail and end. False: the facts were old.
pub(crate) async fn put_lease<S: Storage>(
    store: &mut S, queue: &QueueName, facts: &LeaseFacts, tail: LeaseTail, expires_at: Timestamp,
) -> Result<bool> {
    let LeaseRecord { lease, attempt, position, .. } = &facts.lease;
    let record = LeaseRecord { lease: lease.clone(), attempt: *attempt, position: *position, tail };
    let record = records::lease(&record);
    let mut changes = Changes::default();
    changes.fence(facts.fence());
    changes.fence(facts.expiry_fence());
    changes.write(Write::PutLease { number: facts.job.number, expires_at, record });
    let applied = store.apply(queue, &changes.batch()).await?;
    Ok(matches!(applied, Applied::Done(_)))
}

/// Jobs that were taken in this call and cannot be read: each is where it was, and nothing else of it is written.
pub(crate) async fn put_back<S: Storage>(store: &mut S, queue: &QueueName, taken: &[&TakenJob]) -> Result<()> {
    let mut rounds = Rounds::default();
    loop {
        rounds.next()?;
        let reads: Vec<_> = taken.iter().map(|job| numbered(Table::Lease, job.number)).collect();
        let mut found = ask(store, queue, &reads).await?;
        let mut changes = Changes::default();
        for job in taken {
            // One that an operator has cancelled meanwhile ends with its lease.
            let Some(record) = found.record() else { continue };
            let lease = records::readable(records::read_lease(queue, job.number, &record))?;
            let own = lease.filter(|lease| lease.lease.fence() == job.lease && lease.tail.cancel_requested.is_none());
            let Some(LeaseRecord { lease, position, .. }) = own else { continue };
            changes.fence(Fence::Is(Table::Lease, RecordKey::Number(job.number), record));
            changes.end_lease(&lease);
            changes.insert(position.ready_index(), Entry::ready(position));
        }
        if changes.is_empty() || !matches!(store.apply(queue, &changes.batch()).await?, Applied::Changed(_)) {
            return Ok(());
        }
    }
}

/// The job returns to its old position; nothing counts but the delivery, whose token must not come again. False: the facts
/// were old.
pub(crate) async fn return_job<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, facts: &LeaseFacts,
) -> Result<bool> {
    let now = store.now();
    let mark = cx.events.len();
    let mut changes = Changes::default();
    changes.fence(facts.fence());
    changes.fence(facts.expiry_fence());
    changes.end_lease(&facts.lease.lease);
    let settings = cx.queue(queue);
    let limits = settings.max_in_flight.is_some() || !settings.breaker_keys.is_empty();
    if limits || facts.lease.lease.flags & flag::RAMP != 0 {
        // A slot is free: the job may be one of many that wait for it, at any server.
        changes.publish(Publish::Always);
    }
    let progress = facts.progress();
    if progress.cancel_requested {
        // No worker ever had it, so it was waiting when it was cancelled.
        let name = facts.job.spec.key.as_deref().map(|key| by_name(Table::Key, key));
        let key = ask(store, queue, name.as_slice()).await?.parse(records::read_key)?;
        let history = facts.next_history(progress);
        if cx.queue(queue).completed_retention.is_some() {
            changes.record_cancel_request(facts);
        }
        changes.cancel(&facts.job, history, key.as_ref(), queue, now, cx);
    } else {
        let history = facts.next_history(progress);
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
    QueueFacts::tell_ready(store, queue, cx, done.ready, now).await?;
    cx.lease_ended();
    Ok(true)
}
