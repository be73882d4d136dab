//! Breakers: their records, what operators say of them, and what is shown.

use super::{
    context::{CallContext, epoch, overtaken},
    facts::{OutcomeFacts, QueueFacts},
    records,
    state_changes::Changes,
};
use crate::{
    domain::{
        breaker::{Breaker, BreakerName, Guarded as BreakerKind, Tally, probes_out},
        ids::QueueName,
        settings::QueueSettings,
        time::Timestamp,
    },
    store::{
        BreakerOrder, BreakerView, BreakerViews, QueueRefused, Refused, StoreError,
        storage::{Applied, NO_GROUP, Publish, Reads, RecordKey, Storage, Table},
    },
};
use bytes::Bytes;
use std::sync::Arc;

const ROUNDS_MAX: usize = 50;

/// The breaker has changed: its record, and a version that no server has yet. `facts` are those after the batch.
pub(crate) fn put_breaker(changes: &mut Changes, facts: &mut QueueFacts, cx: &mut CallContext<'_>) {
    if epoch(&facts.breaker) != facts.version.epoch {
        facts.probes.clear();
    }
    facts.version = cx.new_version(&facts.breaker);
    changes.put(Table::Breaker, RecordKey::Group(NO_GROUP), records::breaker(&facts.breaker));
    changes.put(
        Table::Version,
        RecordKey::Group(NO_GROUP),
        Bytes::copy_from_slice(&facts.version.bytes()),
    );
}

/// A queue that an operator means: one that is configured is made if need be.
pub(crate) async fn make_if_configured<S: Storage>(
    store: &mut S,
    cx: &CallContext<'_>,
    queue: &QueueName,
) -> Result<Result<(), QueueRefused>, StoreError> {
    if !cx.settings.queues.contains_key(queue) {
        return Ok(Err(QueueRefused::NoSuchQueue));
    }
    let limit = cx.limits.queues;
    Ok(if store.register(queue, limit).await? {
        Ok(())
    } else {
        Err(QueueRefused::NotMade(Refused::TooManyQueues { limit }))
    })
}

/// The breakers of each queue; those of a queue that is not there are as new.
pub(crate) async fn breakers<S: Reads>(
    store: &mut S,
    cx: &CallContext<'_>,
    queues: &[QueueName],
) -> Result<Vec<BreakerViews>, StoreError> {
    let mut views = Vec::with_capacity(queues.len());
    for queue in queues {
        let settings = cx.settings.queue(queue);
        views.push(match QueueFacts::read(store, queue).await? {
            None => BreakerViews::default(),
            Some(facts) => {
                let now = store.now();
                let outcomes = outcomes(store, queue, &facts.breaker).await?;
                view(&facts, &outcomes.tally, settings, now)
            }
        });
    }
    Ok(views)
}

async fn outcomes<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    breaker: &Breaker,
) -> Result<OutcomeFacts, StoreError> {
    let epoch = epoch(breaker);
    let found = store.read(queue, &OutcomeFacts::reads(epoch)).await?;
    OutcomeFacts::found(epoch, &mut found.unwrap_or_default().into_iter())
}

fn view(
    facts: &QueueFacts,
    tally: &Tally,
    settings: &QueueSettings,
    now: Timestamp,
) -> BreakerViews {
    let probes = probes_out(&settings.breaker, facts.probes.iter().copied(), now).0;
    let queue = &facts.queue;
    BreakerViews {
        work: BreakerView { breaker: facts.breaker.clone(), failures: tally.failed(), probes },
        dead_letters: BreakerView {
            breaker: queue.dead_letters.clone(),
            failures: queue.full_in_a_row,
            probes: 0,
        },
    }
}

/// An operator forces or resets a breaker.
pub(crate) async fn set_breaker<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    name: &BreakerName,
    order: &BreakerOrder,
) -> Result<Result<BreakerView, QueueRefused>, StoreError> {
    let queue = &name.queue;
    for _ in 0..ROUNDS_MAX {
        let Some(before) = QueueFacts::read(store, queue).await? else {
            match make_if_configured(store, cx, queue).await? {
                Ok(()) => continue,
                Err(refused) => return Ok(Err(refused)),
            }
        };
        let now = store.now();
        let settings = cx.queue(queue);
        let mut changes = Changes::default();
        let mut after = before.clone();
        let change = |breaker: &mut Breaker| match order {
            BreakerOrder::Force { open, reason } => breaker.force(*open, reason.clone(), now),
            BreakerOrder::Reset => breaker.reset(),
        };
        match name.guarded {
            BreakerKind::Work => {
                change(&mut after.breaker);
                after.probes.clear();
                changes.fence(before.version.fence(NO_GROUP));
                put_breaker(&mut changes, &mut after, cx);
                let record = records::OutcomesRecord {
                    epoch: epoch(&after.breaker),
                    ..records::OutcomesRecord::default()
                };
                changes.put(Table::Outcomes, RecordKey::Only, records::outcomes(&record));
                changes.publish(Publish::Always);
            }
            BreakerKind::DeadLetters => {
                change(&mut after.queue.dead_letters);
                after.queue.full_in_a_row = 0;
                changes.fence(before.queue_fence());
                let record = records::queue(&after.queue);
                changes.put(Table::Queue, RecordKey::Only, record.clone());
                after.queue_record = Some(record);
            }
        }
        if let Applied::Done(done) = store.apply(queue, &changes.batch()).await? {
            let breaker = match name.guarded {
                BreakerKind::Work => &after.breaker,
                BreakerKind::DeadLetters => &after.queue.dead_letters,
            };
            cx.breaker_moved(queue, name.guarded, breaker, now);
            let views = view(&after, &Tally::default(), &settings, now);
            if name.guarded == BreakerKind::Work {
                cx.available(queue, &after, done.ready, now);
            }
            cx.memory.remember(queue, Arc::new(after));
            return Ok(Ok(match name.guarded {
                BreakerKind::Work => views.work,
                BreakerKind::DeadLetters => views.dead_letters,
            }));
        }
    }
    Err(overtaken())
}
