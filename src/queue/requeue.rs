//! Requeue: dead letters go back to work, in their own queue or in another.

use super::{
    bulk::{self, Action, Budget, Bulk, BulkRefused, Decision, Fate, Item, Known, Part},
    context::CallContext,
    facts::record_fence,
    records::{self, KeyRecord, Whereabouts},
    removal::LetterFacts,
    requests::BulkProgress,
    state_changes::{Changes, FoundKey, Total},
};
use crate::{
    domain::{
        ids::QueueName,
        job::{DeadReason, Spec},
    },
    store::{
        Requeue, RequeueRefused, Requeued, SkipReason, StoreError,
        storage::{Fence, Found, Read, Reads, RecordKey, Storage, Table, flag},
    },
};
use bytes::Bytes;

pub(crate) async fn requeue<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    requeue: Requeue,
) -> Result<Result<Requeued, RequeueRefused>, StoreError> {
    let keep_attempts = requeue.keep_attempts;
    let action = match &requeue.target {
        Some(to) if *to != requeue.part.queue => Action::Move { to, keep_attempts },
        _ => Action::Requeue { keep_attempts },
    };
    let bulk = Bulk {
        call: "requeue",
        part: &requeue.part,
        which: &requeue.which,
        action,
        dry_run: requeue.dry_run,
        request: requeue.request.as_ref(),
    };
    Ok(match bulk::run(store, cx, &bulk).await? {
        Ok(BulkProgress { ids, skipped, has_more, left, .. }) => {
            Ok(Requeued { ids, skipped, has_more, left })
        }
        Err(BulkRefused::NoSuchQueue) => Err(RequeueRefused::NoSuchQueue),
        Err(BulkRefused::RequestIdTaken) => Err(RequeueRefused::RequestIdTaken),
        Err(BulkRefused::TooManyQueues { limit }) => Err(RequeueRefused::TooManyQueues { limit }),
    })
}

/// A dead letter that is to go back, as it is before it is known whether it can.
pub(super) struct Candidate<'a> {
    pub(super) facts: &'a LetterFacts,
    /// Of its body, as its record says.
    pub(super) bytes: u64,
    /// The job whole. None: it is damaged.
    pub(super) spec: Option<Spec>,
}

/// For each item: whether there is such a dead letter. As many as one batch takes, at least one.
pub(super) async fn candidates<'a, S: Reads>(
    store: &mut S,
    queue: &QueueName,
    items: &[Item],
    facts: &'a [LetterFacts],
    mut budget: Budget,
) -> Result<Vec<Option<Candidate<'a>>>, StoreError> {
    let mut of_letters = facts.iter();
    let mut candidates = Vec::with_capacity(items.len());
    let mut reads = Vec::new();
    for item in items {
        let facts = item.letter.and_then(|_| of_letters.next()).filter(|facts| facts.is_there);
        let Some(facts) = facts else {
            candidates.push(None);
            continue;
        };
        let bytes = facts.job_record.as_deref().map_or(0, records::body_length);
        if !budget.takes(bytes) {
            break;
        }
        if facts.job.traits & flag::BODY != 0 {
            reads.push(Read::Record(Table::Body, RecordKey::Number(facts.letter.number)));
        }
        candidates.push(Some(Candidate { facts, bytes: bytes as u64, spec: None }));
    }
    let mut bodies = if reads.is_empty() {
        Vec::new().into_iter()
    } else {
        store.read(queue, &reads).await?.unwrap_or_default().into_iter()
    };
    for candidate in candidates.iter_mut().flatten() {
        let apart = candidate.facts.job.traits & flag::BODY != 0;
        let body = if apart { bodies.next().and_then(Found::record) } else { None };
        candidate.spec = whole(candidate.facts, body.as_ref())?;
    }
    Ok(candidates)
}

/// None: it is damaged, or was found to be so when it died.
fn whole(facts: &LetterFacts, body: Option<&Bytes>) -> Result<Option<Spec>, StoreError> {
    let Some(record) = &facts.job_record else { return Ok(None) };
    let spec = records::readable(records::read_job(record, body))?;
    Ok(spec.filter(|_| facts.reason() != DeadReason::Corrupt))
}

impl Candidate<'_> {
    pub(super) fn decision(&self, fate: Fate) -> Decision {
        let (number, id) = (self.facts.letter.number, self.facts.job.spec.id.clone());
        let bytes = if self.spec.is_some() { self.bytes } else { 0 };
        Decision { number, id, fate, bytes }
    }

    pub(super) fn skipped(&self, reason: SkipReason) -> Decision {
        self.decision(Fate::Skipped(reason))
    }
}

/// Who has the keys of these jobs in a queue, in their order; none for jobs without one.
pub(super) async fn keys_of<'a, S: Reads>(
    store: &mut S,
    queue: &QueueName,
    specs: impl Iterator<Item = Option<&'a Spec>> + Clone + Send,
) -> Result<Vec<Option<FoundKey>>, StoreError> {
    let key = |spec: Option<&'a Spec>| spec.and_then(|spec| spec.key.as_deref());
    let reads: Vec<_> = specs
        .clone()
        .filter_map(key)
        .map(|key| Read::Record(Table::Key, RecordKey::Text(key.into())))
        .collect();
    let mut found = if reads.is_empty() {
        Vec::new().into_iter()
    } else {
        store.read(queue, &reads).await?.unwrap_or_default().into_iter()
    };
    let mut keys = Vec::new();
    for spec in specs {
        keys.push(match key(spec) {
            Some(_) => FoundKey::read(found.next().and_then(Found::record))?,
            None => None,
        });
    }
    Ok(keys)
}

/// DEAD → READY in the same queue.
pub(super) async fn decide<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    part: Part<'_>,
    keep_attempts: bool,
    known: &mut Known,
    changes: &mut Changes,
) -> Result<Vec<Decision>, StoreError> {
    let Part { queue, items, dry_run, budget } = part;
    let letters: Vec<_> = items.iter().filter_map(|item| item.letter).collect();
    let facts = LetterFacts::read(store, queue, &letters).await?;
    let candidates = candidates(store, queue, items, &facts, budget).await?;
    let specs = candidates.iter().map(|it| it.as_ref().and_then(|it| it.spec.as_ref()));
    let keys = keys_of(store, queue, specs).await?;
    let now = store.now();
    let mut decisions = Vec::with_capacity(candidates.len());
    for ((item, candidate), key) in items.iter().zip(&candidates).zip(&keys) {
        let Some(candidate) = candidate else {
            decisions.push(item.missing());
            continue;
        };
        let number = candidate.facts.letter.number;
        // One that was named before is gone, in a dry run too.
        if known.gone.contains(&number) {
            decisions.push(candidate.skipped(SkipReason::JobNotFound));
            continue;
        }
        let Some(spec) = &candidate.spec else {
            decisions.push(candidate.skipped(SkipReason::DataCorrupt));
            continue;
        };
        let taken = key.as_ref().is_some_and(|key| key.is_taken_from(number));
        if taken || spec.key.as_ref().is_some_and(|key| known.keys.contains(key)) {
            decisions.push(candidate.skipped(SkipReason::KeyTaken));
            continue;
        }
        known.gone.insert(number);
        known.keys.extend(spec.key.clone());
        decisions.push(candidate.decision(Fate::Done));
        if dry_run {
            continue;
        }
        let LetterFacts { letter, job, history_record, dead, .. } = candidate.facts;
        let name = RecordKey::Number(number);
        changes.fence(Fence::Absent(Table::Move, name.clone()));
        changes.fence(record_fence(Table::History, name, history_record.as_ref()));
        changes.leave_dead(letter, dead.as_ref());
        if let Some(name) = &spec.key {
            let sameness = job.sameness.unwrap_or_else(|| spec.sameness());
            let record = KeyRecord { number, free_at: None, sameness, id: spec.id.clone() };
            changes.take_key(name, key.as_ref(), &record);
        }
        let mut progress = job.progress();
        progress.requeue(now, spec.expires_at, keep_attempts);
        let history = job.next_history(progress);
        changes.enter_waiting(job, history, now, Whereabouts::Scheduled, now, cx, queue);
        changes.add(Total::Requeued, 1);
    }
    Ok(decisions)
}
