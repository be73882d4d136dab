//! A claim that is said again: the leases of the first time.

use super::{Gathering, token};
use crate::{
    domain::ids::QueueName,
    queue::{
        facts::{LeaseFacts, failure_reads, last_failure},
        records,
        state_changes::Changes,
    },
    store::{
        Delivered, StoreError,
        storage::{Applied, Found, Read, RecordKey, Storage, Table, Write},
    },
};

/// What the request got the first time, as far as it is still leased.
pub(super) async fn hand_out_again<S: Storage>(
    store: &mut S,
    leases: &[(QueueName, u64)],
    gathering: &mut Gathering<'_>,
) -> Result<(), StoreError> {
    for (queue, number) in leases {
        while let Some(again) = lease_again(store, queue, *number, gathering).await? {
            if let Some(delivered) = again {
                gathering.out.jobs.push(delivered);
                break;
            }
        }
    }
    Ok(())
}

/// None: the lease is not out any more, or its job is damaged. `Some(None)`: the facts were old.
async fn lease_again<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    number: u64,
    gathering: &Gathering<'_>,
) -> Result<Option<Option<Delivered>>, StoreError> {
    let mut reads: Vec<Read> = LeaseFacts::reads(number).into();
    reads.push(Read::Record(Table::Job, RecordKey::Number(number)));
    reads.push(Read::Record(Table::Body, RecordKey::Number(number)));
    reads.extend(failure_reads(number));
    let Some(found) = store.read(queue, &reads).await? else { return Ok(None) };
    let mut found = found.into_iter();
    let (facts, _) = LeaseFacts::found(queue, number, &mut found)?;
    let (job, body) = (found.next().and_then(Found::record), found.next().and_then(Found::record));
    let failure = last_failure(&mut found)?;
    let claim = gathering.claim;
    let own = |facts: &LeaseFacts| {
        let tail = &facts.lease.tail;
        tail.request_id == claim.request_id && tail.worker_id == claim.worker_id
    };
    let (Some(facts), Some(job)) = (facts.filter(own), job) else { return Ok(None) };
    let Some(spec) = records::readable(records::read_job(&job, body.as_ref()))? else {
        return Ok(None);
    };
    let mut lease = facts.lease.clone();
    let expires_at = lease.expires_at(facts.score);
    lease.tail.answer = gathering.out.answer;
    lease.tail.undelivered = None;
    let mut changes = Changes::default();
    changes.fence(facts.fence());
    changes.fence(facts.expiry_fence());
    changes.write(Write::PutLease { number, expires_at, record: records::lease(&lease) });
    if let Applied::Changed(_) = store.apply(queue, &changes.batch()).await? {
        return Ok(Some(None));
    }
    let progress = facts.progress();
    let last_failure = failure.filter(|_| progress.last_failed_at.is_some());
    let mut delivery = facts.lease.delivery(expires_at);
    delivery.lease = token(queue, number, &facts.lease.lease.fence(), &spec);
    Ok(Some(Some(Delivered { queue: queue.clone(), spec, progress, delivery, last_failure })))
}
