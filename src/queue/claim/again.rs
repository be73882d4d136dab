//! A claim that is said again: the leases of the first time.

use super::{Gathering, token};
use crate::domain::QueueName;
use crate::queue::Delivered;
use crate::queue::answers::{ask, numbered};
use crate::queue::claim_requests::is_of;
use crate::queue::facts::{LeaseFacts, failure_reads, last_failure};
use crate::queue::records::{self, LeaseTail};
use crate::queue::undelivered::put_lease;
use crate::store::Result;
use crate::store::storage::{Read, Storage, Table};

/// What the request got the first time, as far as it is still leased.
pub(super) async fn hand_out_again<S: Storage>(
    store: &mut S, leases: &[(QueueName, u64)], gathering: &mut Gathering<'_>,
) -> Result<()> {
    for (queue, number) in leases {
        while let Some(again) = lease_again(store, queue, *number, gathering).await? {
            if let Some(delivered) = again {
                gathering.bytes += delivered.spec.body.bytes().len();
                gathering.out.jobs.push(delivered);
                break;
            }
        }
    }
    Ok(())
}

/// None: the lease is not out any more, or its job is damaged. `Some(None)`: the facts were old.
async fn lease_again<S: Storage>(
    store: &mut S, queue: &QueueName, number: u64, gathering: &Gathering<'_>,
) -> Result<Option<Option<Delivered>>> {
    let mut reads: Vec<Read> = LeaseFacts::reads(number).into();
    reads.extend([Table::Job, Table::Body].map(|table| numbered(table, number)));
    reads.extend(failure_reads(number));
    let mut found = ask(store, queue, &reads).await?;
    let facts = LeaseFacts::found(queue, number, &mut found)?.ok();
    let (job, body) = (found.record(), found.record());
    let failure = last_failure(&mut found)?;
    let facts = facts.filter(|facts| is_of(gathering.claim, &facts.lease.tail));
    let (Some(facts), Some(job)) = (facts, job) else { return Ok(None) };
    let Some(spec) = records::readable(records::read_job(&job, body.as_ref()))? else {
        return Ok(None);
    };
    let expires_at = facts.lease.expires_at(facts.score);
    let tail = LeaseTail { answer: gathering.out.answer, undelivered: None, ..facts.lease.tail.clone() };
    if !put_lease(store, queue, &facts, tail, expires_at).await? {
        return Ok(Some(None));
    }
    let progress = facts.progress();
    let last_failure = failure.filter(|_| progress.last_failed_at.is_some());
    let mut delivery = facts.lease.delivery(expires_at);
    delivery.lease = token(queue, number, &facts.lease.lease.fence(), &spec);
    let learnt_key = facts.job.history.as_ref().and_then(|history| history.learnt_key.clone());
    Ok(Some(Some(Delivered { queue: queue.clone(), spec, progress, delivery, last_failure, learnt_key })))
}
