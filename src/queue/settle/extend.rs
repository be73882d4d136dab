//! Extend: a lease goes on.

use super::{Answers, batches};
use crate::{
    domain::{lease::Lease, settings::QueueSettings, time::Timestamp},
    queue::{
        context::{CallContext, after_some},
        facts::LeaseFacts,
        records,
    },
    store::{
        Extend, Extended, LeaseLost, StoreError,
        storage::{Applied, Batch, Fence, RecordKey, Storage, Table, Write},
    },
};
use bytes::Bytes;
use std::{collections::HashSet, time::Duration};

pub(super) async fn extend_all<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    extends: &[Extend],
) -> Result<Vec<Result<Extended, LeaseLost>>, StoreError> {
    let mut answers = Answers::new(extends.len());
    let mut begun = false;
    for batch in batches(extends, |extend| &extend.lease) {
        let done = extend_batch(store, cx, batch, &mut answers).await;
        done.map_err(|error| after_some(error, begun))?;
        begun = true;
    }
    answers.all()
}

async fn extend_batch<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    mut extends: Vec<(usize, &Extend)>,
    answers: &mut Answers<Result<Extended, LeaseLost>>,
) -> Result<(), StoreError> {
    let queue = extends[0].1.lease.queue.clone();
    let settings = cx.queue(&queue);
    while !extends.is_empty() {
        let now = store.now();
        let mut batch = Batch::default();
        for (_, extend) in &extends {
            let number = extend.lease.number;
            let fence = Bytes::copy_from_slice(&extend.lease.fence());
            batch.fences.push(Fence::Tell(Table::Lease, RecordKey::Number(number), fence));
            let expires_at = extended_to(extend, &settings, now);
            batch.writes.push(Write::Extend { number, expires_at });
        }
        match store.apply(&queue, &batch).await? {
            Applied::Done(done) => {
                let raised = done.told.into_iter().zip(done.raised);
                for ((at, extend), (record, expires_at)) in extends.iter().zip(raised) {
                    let number = extend.lease.number;
                    let lease = records::readable(records::read_lease(&queue, number, &record))?;
                    let answer = match lease {
                        Some(lease)
                            if !extend.checkpoint.is_empty()
                                || lease.tail.undelivered.is_some() =>
                        {
                            write_lease(store, extend, &settings).await?
                        }
                        lease => Ok(Extended {
                            expires_at,
                            cancel_requested: lease.is_some_and(|it| it.tail.cancel_requested),
                        }),
                    };
                    answers.set(*at, answer);
                }
                return Ok(());
            }
            Applied::Changed(failed) => {
                let failed: HashSet<usize> = failed.into_iter().map(|(fence, _)| fence).collect();
                let mut fence = 0;
                extends.retain(|(at, _)| {
                    let lost = failed.contains(&fence);
                    fence += 1;
                    if lost {
                        answers.set(*at, Err(LeaseLost));
                    }
                    !lost
                });
            }
            Applied::NoQueue => {
                extends.iter().for_each(|(at, _)| answers.set(*at, Err(LeaseLost)));
                return Ok(());
            }
        }
    }
    Ok(())
}

fn extended_to(extend: &Extend, settings: &QueueSettings, now: Timestamp) -> Timestamp {
    let lease = &extend.lease;
    let longest = lease.started_at.after(settings.max_run_time);
    let own = Duration::from_millis(u64::from(lease.duration_ms));
    now.after(extend.duration.unwrap_or(own)).min(longest)
}

/// With a checkpoint to save, or a return that is no longer wanted: its worker is there.
async fn write_lease<S: Storage>(
    store: &mut S,
    extend: &Extend,
    settings: &QueueSettings,
) -> Result<Result<Extended, LeaseLost>, StoreError> {
    let Lease { queue, number, .. } = &extend.lease;
    loop {
        let Some(found) = store.read(queue, &LeaseFacts::reads(*number)).await? else {
            return Ok(Err(LeaseLost));
        };
        let (facts, _) = LeaseFacts::found(queue, *number, &mut found.into_iter())?;
        let Some(facts) = facts.filter(|facts| facts.lease.lease.fence() == extend.lease.fence())
        else {
            return Ok(Err(LeaseLost));
        };
        let mut lease = facts.lease.clone();
        if !extend.checkpoint.is_empty() {
            lease.tail.checkpoint.clone_from(&extend.checkpoint);
        }
        let before = lease.expires_at(facts.score);
        lease.tail.undelivered = None;
        let expires_at = extended_to(extend, settings, store.now()).max(before);
        // Another Extend may have raised the end since.
        let fences = vec![facts.fence(), facts.expiry_fence()];
        let mut batch = Batch { fences, ..Batch::default() };
        let cancel_requested = lease.tail.cancel_requested;
        let record = records::lease(&lease);
        batch.writes.push(Write::PutLease { number: *number, expires_at, record });
        if let Applied::Done(_) = store.apply(queue, &batch).await? {
            return Ok(Ok(Extended { expires_at, cancel_requested }));
        }
    }
}
