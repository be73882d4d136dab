//! Extend: a lease goes on.

use super::Answers;
use crate::domain::{QueueSettings, Timestamp};
use crate::queue::context::CallContext;
use crate::queue::facts::LeaseFacts;
use crate::queue::records::{self, LeaseTail};
use crate::queue::refusal::Refusal;
use crate::queue::undelivered::put_lease;
use crate::queue::{Extend, Extended};
use crate::store::Result;
use crate::store::storage::{Applied, Batch, Fence, RecordKey, Storage, Table, Write};
use bytes::Bytes;
use std::{collections::HashSet, time::Duration};

pub(super) async fn extend_batch<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, mut extensions: Vec<(usize, &Extend)>,
    answers: &mut Answers<Result<Extended, Refusal>>,
) -> Result<()> {
    let queue = &extensions[0].1.lease.queue;
    let settings = cx.queue(queue);
    while !extensions.is_empty() {
        let now = store.now();
        let mut batch = Batch::default();
        for (_, extend) in &extensions {
            let number = extend.lease.number;
            let fence = Bytes::copy_from_slice(&extend.lease.fence());
            batch.fences.push(Fence::Tell(Table::Lease, RecordKey::Number(number), fence));
            let expires_at = extended_to(extend, &settings, now);
            batch.writes.push(Write::Extend { number, expires_at });
        }
        match store.apply(queue, &batch).await? {
            Applied::Done(done) => {
                cx.applied();
                let raised = done.told.into_iter().zip(done.raised);
                for ((at, extend), (record, expires_at)) in extensions.iter().zip(raised) {
                    let number = extend.lease.number;
                    let lease = records::readable(records::read_lease(queue, number, &record))?;
                    let answer = match lease {
                        Some(lease) if !extend.checkpoint.is_empty() || lease.tail.undelivered.is_some() => {
                            write_lease(store, extend, &settings).await?
                        }
                        lease => Ok(Extended {
                            run_until: run_until(extend, &settings),
                            expires_at,
                            cancel_requested: lease.is_some_and(|it| it.tail.cancel_requested.is_some()),
                        }),
                    };
                    answers[*at] = Some(answer);
                }
                return Ok(());
            }
            Applied::Changed(failed) => {
                let failed: HashSet<usize> = failed.into_iter().map(|(fence, _)| fence).collect();
                let mut fences = 0..;
                extensions.retain(|(at, _)| {
                    let lost = fences.next().is_some_and(|fence| failed.contains(&fence));
                    if lost {
                        answers[*at] = Some(Err(Refusal::LeaseLost));
                    }
                    !lost
                });
            }
            Applied::NoQueue => {
                extensions.iter().for_each(|(at, _)| answers[*at] = Some(Err(Refusal::LeaseLost)));
                return Ok(());
            }
        }
    }
    Ok(())
}

fn run_until(extend: &Extend, settings: &QueueSettings) -> Timestamp {
    extend.lease.started_at.after(settings.max_run_time)
}

fn extended_to(extend: &Extend, settings: &QueueSettings, now: Timestamp) -> Timestamp {
    let lease = &extend.lease;
    let own = Duration::from_millis(u64::from(lease.duration_ms));
    now.after(extend.duration.unwrap_or(own)).min(run_until(extend, settings))
}

/// With a checkpoint to save, or a return that is no longer wanted: its worker is there.
async fn write_lease<S: Storage>(
    store: &mut S, extend: &Extend, settings: &QueueSettings,
) -> Result<Result<Extended, Refusal>> {
    loop {
        let Some(facts) = LeaseFacts::read(store, &extend.lease).await? else { return Ok(Err(Refusal::LeaseLost)) };
        let mut tail = LeaseTail { undelivered: None, ..facts.lease.tail.clone() };
        if !extend.checkpoint.is_empty() {
            tail.checkpoint.clone_from(&extend.checkpoint);
        }
        let cancel_requested = tail.cancel_requested.is_some();
        let before = facts.lease.expires_at(facts.score);
        let expires_at = extended_to(extend, settings, store.now()).max(before);
        // Another Extend may have raised the end since.
        if put_lease(store, &extend.lease.queue, &facts, tail, expires_at).await? {
            return Ok(Ok(Extended { run_until: run_until(extend, settings), expires_at, cancel_requested }));
        }
    }
}
