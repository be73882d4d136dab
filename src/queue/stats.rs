//! Counters: of one queue, and of all that there are. Looks at queues, never at jobs.

use super::facts::{depth_reads, depths};
use crate::{
    domain::ids::QueueName,
    store::{
        Stats, StoreError, Totals,
        storage::{Counter, CounterGroup, Found, Read, Reads},
    },
};

/// Names of queues that one read returns.
const QUEUES_PAGE: usize = 1_000;

/// The counters of one queue, or of all queues together. None: there is no such queue.
pub(crate) async fn stats<S: Reads>(
    store: &mut S,
    queue: Option<&QueueName>,
) -> Result<Option<Stats>, StoreError> {
    if let Some(queue) = queue {
        return of_queue(store, queue).await;
    }
    let mut sum = Stats::default();
    for queue in all_queues(store).await? {
        if let Some(stats) = of_queue(store, &queue).await? {
            sum.totals += stats.totals;
            sum.held += stats.held;
        }
    }
    Ok(Some(sum))
}

async fn of_queue<S: Reads>(store: &mut S, queue: &QueueName) -> Result<Option<Stats>, StoreError> {
    let mut reads: Vec<_> = depth_reads().collect();
    reads.push(Read::Counters(CounterGroup::Totals));
    let Some(found) = store.read(queue, &reads).await? else { return Ok(None) };
    let mut found = found.into_iter();
    let held = depths(&mut found).held();
    let totals = totals(found.next().map(Found::counters).unwrap_or_default());
    Ok(Some(Stats { totals, held }))
}

/// By name.
pub(crate) async fn all_queues<S: Reads>(store: &mut S) -> Result<Vec<QueueName>, StoreError> {
    let mut all: Vec<QueueName> = Vec::new();
    loop {
        let page = store.queues(all.last(), QUEUES_PAGE).await?;
        let full = page.len() == QUEUES_PAGE;
        all.extend(page);
        if !full {
            return Ok(all);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_counted_by_their_place() {
        let counters = vec![
            (Counter::Total(0), 5),
            (Counter::Total(13), 2),
            (Counter::Total(99), 1),
            (Counter::ErrorType("x".into()), 7),
        ];
        let expected = Totals { enqueued: 5, moved_out: 2, ..Totals::default() };
        assert_eq!(totals(counters), expected);
    }
}
