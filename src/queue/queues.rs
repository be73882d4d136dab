//! Queues as operators see them.

use super::{
    context::record,
    facts::{depth_reads, depths},
    records,
    stats::totals,
};
use crate::{
    domain::{
        breaker::Breaker,
        ids::{JobId, QueueName},
        time::Timestamp,
    },
    store::{
        QueueView, StoreError,
        storage::{
            CounterGroup, Entry, Found, Index, Member, NO_GROUP, Position, Read, Reads, RecordKey,
            Table,
        },
    },
};

/// The largest time that stands in a position.
const TIME_MAX: Timestamp = Timestamp::from_millis((1 << 48) - 1);

/// Queues by name, those after `after`.
pub(crate) async fn queues<S: Reads>(
    store: &mut S,
    after: Option<&QueueName>,
    limit: usize,
) -> Result<Vec<QueueView>, StoreError> {
    let names = store.queues(after, limit).await?;
    let mut views = Vec::with_capacity(names.len());
    for name in names {
        views.extend(queue(store, name).await?);
    }
    Ok(views)
}

/// None: there is no such queue.
async fn queue<S: Reads>(store: &mut S, name: QueueName) -> Result<Option<QueueView>, StoreError> {
    let default_rank = records::rank(0);
    let mut reads: Vec<_> = depth_reads().collect();
    reads.extend([
        Read::Counters(CounterGroup::Totals),
        Read::Record(Table::Queue, RecordKey::Only),
        Read::Record(Table::Breaker, RecordKey::Group(NO_GROUP)),
        first_ready(None),
        first_ready(Some(default_rank)),
    ]);
    let Some(found) = store.read(&name, &reads).await? else { return Ok(None) };
    let mut found = found.into_iter();
    let depths = depths(&mut found);
    let mut next = || found.next().unwrap_or(Found::Record(None));
    let totals = totals(next().counters());
    let queue = next().record().map(|it| record(records::read_queue(&it))).transpose()?;
    let breaker = next().record().map(|it| record(records::read_breaker(&it))).transpose()?;
    let (mut first, beyond_default) = (position(next()), position(next()));
    // The oldest of all priorities: one look for each priority in use, and most queues use the usual one alone.
    let mut oldest = None;
    while let Some(Position { rank, ready_at, .. }) = first {
        oldest = Some(oldest.map_or(ready_at, |oldest: Timestamp| oldest.min(ready_at)));
        first = if rank == default_rank {
            beyond_default
        } else {
            let found = store.read(&name, &[first_ready(Some(rank))]).await?;
            found.and_then(|mut found| found.pop()).and_then(position)
        };
    }
    Ok(Some(QueueView {
        name,
        depths,
        totals,
        oldest_ready_at: oldest,
        pause: queue.unwrap_or_default().pause,
        breaker: breaker.unwrap_or_else(Breaker::default),
    }))
}

/// The first of `Ready` whose rank is beyond this one.
fn first_ready(beyond: Option<u8>) -> Read {
    let last = |rank| Position {
        group: NO_GROUP,
        rank,
        ready_at: TIME_MAX,
        number: JobId::NUMBER_MAX,
        tag: u8::MAX,
    };
    let after = beyond.map(|rank| Entry::ready(last(rank)));
    Read::Range { index: Index::Ready, after, up_to: None, limit: 1, reverse: false }
}

fn position(found: Found) -> Option<Position> {
    match found.entries().pop()?.member {
        Member::Position(position) => Some(position),
        _ => None,
    }
}
