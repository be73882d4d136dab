//! Purge: dead letters are removed for good, with all that belongs to them.

use super::{
    bulk::{self, Action, Bulk, BulkRefused, Decision, Fate, Known, Part},
    context::CallContext,
    removal::{Belongings, LetterFacts},
    requests::BulkProgress,
    state_changes::{Changes, Total},
};
use crate::store::{
    Purge, PurgeRefused, Purged, StoreError,
    storage::{Fence, RecordKey, Storage, Table},
};

pub(crate) async fn purge<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    purge: Purge,
) -> Result<Result<Purged, PurgeRefused>, StoreError> {
    let bulk = Bulk {
        call: "purge",
        part: &purge.part,
        which: &purge.which,
        action: Action::Purge,
        dry_run: purge.dry_run,
        request: purge.request.as_ref(),
    };
    Ok(match bulk::run(store, cx, &bulk).await? {
        Ok(BulkProgress { count, skipped, has_more, left, .. }) => {
            Ok(Purged { count, skipped, has_more, left })
        }
        Err(BulkRefused::RequestIdTaken) => Err(PurgeRefused::RequestIdTaken),
        Err(BulkRefused::NoSuchQueue | BulkRefused::TooManyQueues { .. }) => {
            Err(PurgeRefused::NoSuchQueue)
        }
    })
}

pub(super) async fn decide<S: Storage>(
    store: &mut S,
    part: Part<'_>,
    known: &mut Known,
    changes: &mut Changes,
) -> Result<Vec<Decision>, StoreError> {
    let Part { queue, items, dry_run, .. } = part;
    let letters: Vec<_> = items.iter().filter_map(|item| item.letter).collect();
    let facts = LetterFacts::read(store, queue, &letters).await?;
    let mut decisions = Vec::with_capacity(items.len());
    let mut of_letters = facts.iter();
    let mut removed = Vec::new();
    for item in items {
        let letter = item.letter.and_then(|_| of_letters.next()).filter(|facts| facts.is_there);
        // One that was named before is gone, in a dry run too.
        let letter = letter.filter(|facts| known.gone.insert(facts.letter.number));
        decisions.push(match letter {
            None => item.missing(),
            Some(facts) => {
                removed.push(facts);
                let (number, id) = (facts.letter.number, facts.job.spec.id.clone());
                Decision { number, id, fate: Fate::Done, bytes: 0 }
            }
        });
    }
    if !dry_run {
        changes.add(Total::Purged, removed.len() as u64);
        remove(store, queue, &removed, changes).await?;
    }
    Ok(decisions)
}

/// DEAD → gone.
pub(super) async fn remove<S: Storage>(
    store: &mut S,
    queue: &crate::domain::ids::QueueName,
    letters: &[&LetterFacts],
    changes: &mut Changes,
) -> Result<(), StoreError> {
    let owners: Vec<_> = letters.iter().map(|letter| letter.owner()).collect();
    let belongings = Belongings::find(store, queue, &owners).await?;
    for (facts, belongings) in letters.iter().zip(belongings) {
        // One that is on its way to another queue is that move's.
        let number = RecordKey::Number(facts.letter.number);
        changes.fence(Fence::Absent(Table::Move, number));
        changes.leave_dead(&facts.letter, facts.dead.as_ref());
        belongings.remove(changes);
    }
    Ok(())
}
