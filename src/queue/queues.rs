//! Queues as operators see them, and their counters: of one queue, and of all that there are. Looks at queues, never at jobs.

use super::answers::{Answers, ask, ask_if_there, first_of, range};
use super::breaker_keys;
use super::facts::{depth_reads, depths};
use super::records;
use super::refusal::{self, Refusal};
use crate::domain::{JobId, QueueName, Timestamp};
use crate::queue::{QueueView, Stats, Totals};
use crate::store::Result;
use crate::store::storage::{
    Counter, CounterGroup, Entry, Index, Mark, Member, NO_GROUP, Position, Read, Reads, RecordKey, Table,
};

/// The largest time that stands in a position.
const TIME_MAX: Timestamp = Timestamp::from_millis((1 << 48) - 1);

/// Queues by name, those after `after`.
pub(crate) async fn queues<S: Reads>(store: &mut S, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueView>> {
    let names = store.queues(after, limit).await?;
    let mut views = Vec::with_capacity(names.len());
    for name in names {
        views.extend(queue(store, name).await?);
    }
    Ok(views)
}

/// None: there is no such queue.
async fn queue<S: Reads>(store: &mut S, name: QueueName) -> Result<Option<QueueView>> {
    let default_rank = records::rank(0);
    let more = [
        Read::Counters(CounterGroup::Totals),
        Read::Mark(Mark::LastClaim),
        Read::Record(Table::Queue, RecordKey::Only),
        Read::Record(Table::Breaker, RecordKey::Group(NO_GROUP)),
        first_ready(None),
        first_ready(Some(default_rank)),
        first_of(Index::Keyed, 1),
    ];
    let reads: Vec<_> = depth_reads().chain(more).collect();
    let Some(mut found) = ask_if_there(store, &name, &reads).await? else { return Ok(None) };
    let depths = depths(&mut found);
    let totals = totals(found.counters());
    let last_claim_at = found.score().map(Timestamp::from_millis);
    let queue = found.parse(records::read_queue)?.unwrap_or_default();
    let breaker = found.parse(records::read_breaker)?.unwrap_or_default();
    let (mut first, beyond_default) = (position(&mut found), position(&mut found));
    let has_keyed = position(&mut found).is_some();
    // The oldest of all priorities: one look for each priority in use, and most queues use the usual one alone.
    let mut oldest = None;
    while let Some(Position { rank, ready_at, .. }) = first {
        oldest = Some(oldest.map_or(ready_at, |oldest: Timestamp| oldest.min(ready_at)));
        first = if rank == default_rank {
            beyond_default
        } else {
            position(&mut ask(store, &name, &[first_ready(Some(rank))]).await?)
        };
    }
    if has_keyed {
        let keyed = first_of_keys(store, &name).await?;
        oldest = oldest.into_iter().chain(keyed).min();
    }
    Ok(Some(QueueView { name, depths, totals, oldest_ready_at: oldest, last_claim_at, pause: queue.pause, breaker }))
}

/// When the first job of each breaker key became ready, the oldest of them.
async fn first_of_keys<S: Reads>(store: &mut S, queue: &QueueName) -> Result<Option<Timestamp>> {
    let groups = breaker_keys::groups(store, queue).await?;
    let reads: Vec<_> = groups.iter().map(|(_, group)| breaker_keys::first_ready_in(*group)).collect();
    let mut found = ask(store, queue, &reads).await?;
    let mut oldest = None;
    for (_, group) in groups {
        let first = position(&mut found).filter(|position| position.group == group);
        oldest = oldest.into_iter().chain(first.map(|position| position.ready_at)).min();
    }
    Ok(oldest)
}

/// The first of `Ready` whose rank is beyond this one.
fn first_ready(beyond: Option<u8>) -> Read {
    let last = |rank| Position { group: NO_GROUP, rank, ready_at: TIME_MAX, number: JobId::NUMBER_MAX, tag: u8::MAX };
    range(Index::Ready, beyond.map(|rank| Entry::ready(last(rank))), 1)
}

fn position(found: &mut Answers) -> Option<Position> {
    match found.entries().pop()?.member {
        Member::Position(position) => Some(position),
        _ => None,
    }
}

// ---- counters ----

/// Names of queues that one read returns.
const QUEUES_PAGE: usize = 1_000;

/// The counters of one queue, or of all queues together.
pub(crate) async fn stats<S: Reads>(store: &mut S, queue: Option<&QueueName>) -> refusal::Result<Stats> {
    if let Some(queue) = queue {
        return Ok(of_queue(store, queue).await?.ok_or_else(|| Refusal::no_queue(queue))?);
    }
    let mut sum = Stats::default();
    for queue in all_queues(store).await? {
        if let Some(stats) = of_queue(store, &queue).await? {
            sum.totals += stats.totals;
            sum.held += stats.held;
        }
    }
    Ok(sum)
}

async fn of_queue<S: Reads>(store: &mut S, queue: &QueueName) -> Result<Option<Stats>> {
    let reads: Vec<_> = depth_reads().chain([Read::Counters(CounterGroup::Totals)]).collect();
    let Some(mut found) = ask_if_there(store, queue, &reads).await? else { return Ok(None) };
    let held = depths(&mut found).held();
    Ok(Some(Stats { totals: totals(found.counters()), held }))
}

/// By name.
pub(crate) async fn all_queues<S: Reads>(store: &mut S) -> Result<Vec<QueueName>> {
    let mut all: Vec<QueueName> = Vec::new();
    loop {
        let page = store.queues(all.last(), QUEUES_PAGE).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// From the counters that are not zero.
pub(crate) fn totals(counters: Vec<(Counter, i64)>) -> Totals {
    let mut values = [0; Totals::COUNT];
    for (counter, value) in counters {
        if let Counter::Total(at) = counter
            && let Some(total) = values.get_mut(usize::from(at))
        {
            *total = value.max(0).cast_unsigned();
        }
    }
    Totals::of(values)
}
