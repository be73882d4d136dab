//! What becomes of dead letters that were chosen.

use super::super::answers::{ask, by_name, numbered};
use super::super::breaker_keys::KeyGroups;
use super::super::cross_queue::{self, Step, read_move};
use super::super::find::{self, found_id, id_reads};
use super::super::records;
use super::super::removal::{IdsAfter, LetterFacts, remove_letters};
use super::super::requests::BulkProgress;
use super::super::requeue::ToReady;
use super::super::state_changes::{Changes, EndedId, FoundKey, ID_HELD, Total};
use super::chunk::Item;
use super::{Action, Bulk, Call};
use crate::domain::{QueueName, Spec};
use crate::queue::SkipReason;
use crate::store::Result;
use crate::store::storage::{Reads, Storage, Table};
use std::collections::HashSet;

/// Bodies that one call reads, about: other calls have their turn in between.
const BYTES_MAX: u64 = 16 << 20;
/// About what one batch reads.
const BATCH_BYTES: u64 = 1 << 20;

/// What the call has done so far that the store does not tell: all of it in a dry run, else that of the batch in the making.
#[derive(Debug, Default)]
pub(super) struct Known {
    gone: HashSet<u64>,
    keys: HashSet<String>,
}

/// How far bodies may be read.
pub(super) struct Budget {
    /// Read by the call before; with more than `most` it stops.
    read: u64,
    most: u64,
    /// By this batch.
    batch: u64,
}

impl Budget {
    pub(super) fn new(read: u64, named: bool) -> Self {
        Self { read, most: if named { u64::MAX } else { BYTES_MAX }, batch: 0 }
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.read > self.most
    }

    /// Whether the next body, of this length, is of this batch.
    fn takes(&mut self, length: u64) -> bool {
        if self.is_used_up() || (self.batch > 0 && self.batch + length > BATCH_BYTES) {
            return false;
        }
        self.batch += length.max(1);
        self.read += length;
        true
    }
}

/// A dead letter that is there, as it is before it is known whether it can go.
struct Candidate {
    facts: LetterFacts,
    /// Of its body, as its record says.
    bytes: u64,
    /// The job whole, where it is to work again. None: it is damaged.
    spec: Option<Spec>,
}

/// For each item: whether there is such a dead letter. As many as one batch takes, at least one. `budget`: of their bodies, where
/// those are needed.
async fn candidates<S: Reads>(
    store: &mut S, queue: &QueueName, items: &[Item], mut budget: Option<Budget>,
) -> Result<Vec<Option<Candidate>>> {
    let letters: Vec<_> = items.iter().filter_map(|item| item.letter).collect();
    let mut of_letters = LetterFacts::read(store, queue, &letters).await?.into_iter();
    let mut candidates = Vec::with_capacity(items.len());
    let mut reads = Vec::new();
    for item in items {
        let facts = item.letter.and_then(|_| of_letters.next()).filter(|facts| facts.is_free());
        let Some(facts) = facts else {
            candidates.push(None);
            continue;
        };
        let mut bytes = 0;
        if let Some(budget) = &mut budget {
            bytes = facts.job_record.as_deref().map_or(0, records::body_length) as u64;
            if !budget.takes(bytes) {
                break;
            }
            reads.extend(facts.has_body().then(|| numbered(Table::Body, facts.letter.number)));
        }
        candidates.push(Some(Candidate { facts, bytes, spec: None }));
    }
    if budget.is_none() {
        return Ok(candidates);
    }
    let mut bodies = ask(store, queue, &reads).await?;
    for Candidate { facts, spec, .. } in candidates.iter_mut().flatten() {
        let body = if facts.has_body() { bodies.record() } else { None };
        // One that was found to be damaged when it died stays so.
        if let Some(record) = facts.job_record.as_ref().filter(|_| !facts.is_corrupt()) {
            *spec = records::readable(records::read_job(record, body.as_ref()))?;
        }
    }
    Ok(candidates)
}

/// What stands in the way of a job in the queue that it is to work in.
#[derive(Default)]
pub(in crate::queue) struct Obstacle {
    /// Of a move from another queue.
    pub(in crate::queue) mark: Option<Step>,
    id_is_taken: bool,
    pub(in crate::queue) ended_id: Option<EndedId>,
    /// What stands under its key.
    pub(in crate::queue) key: Option<FoundKey>,
    /// Another job has its key, and is not done.
    key_is_taken: bool,
}

impl Obstacle {
    /// Of these jobs, by their numbers where they are dead. A queue that is not there has nothing in it. `moved`: they come from
    /// another queue.
    pub(in crate::queue) async fn read<S: Reads>(
        store: &mut S, queue: &QueueName, jobs: &[Option<(u64, &Spec)>], moved: bool,
    ) -> Result<Vec<Self>> {
        let mut reads = Vec::new();
        for (number, spec) in jobs.iter().flatten() {
            if moved {
                reads.push(numbered(Table::Move, *number));
                reads.extend(id_reads(&spec.id));
                reads.push(EndedId::end(&spec.id));
            }
            reads.extend(spec.key.as_deref().map(|key| by_name(Table::Key, key)));
        }
        let (now, mut found) = (store.now(), ask(store, queue, &reads).await?);
        let mut obstacles = Vec::with_capacity(jobs.len());
        for job in jobs {
            let mut obstacle = Self::default();
            if let Some((_, spec)) = job {
                if moved {
                    obstacle.mark = read_move(found.record())?.map(|(mark, _)| mark.step);
                    let (named, own) = found_id(&spec.id, &mut found)?;
                    let end = found.score();
                    obstacle.ended_id = named.as_ref().and_then(|record| EndedId::of(record, end, now));
                    obstacle.id_is_taken = named.is_some() && obstacle.ended_id.is_none() || own.is_some();
                }
                if spec.key.is_some() {
                    obstacle.key = FoundKey::read(found.record())?;
                }
            }
            obstacles.push(obstacle);
        }
        let own = |job: &Option<(u64, &Spec)>| job.map(|(number, _)| number);
        let holder = |(job, obstacle): (_, &Self)| {
            let number = obstacle.key.as_ref()?.record.number;
            (own(job) != Some(number)).then_some(number)
        };
        let holders: Vec<_> = jobs.iter().zip(&obstacles).filter_map(holder).collect();
        let not_done = find::not_done(store, queue, &holders).await?;
        for (job, obstacle) in jobs.iter().zip(&mut obstacles) {
            obstacle.key_is_taken = holder((job, obstacle)).is_some_and(|holder| not_done.contains(&holder));
        }
        Ok(obstacles)
    }

    /// Why the job cannot work there. `keys`: those that others take in the same batch.
    pub(in crate::queue) fn refusal(&self, spec: &Spec, keys: &HashSet<String>) -> Option<SkipReason> {
        if let Some(Step::Refused(reason)) = self.mark {
            return Some(reason);
        }
        if self.id_is_taken {
            return Some(SkipReason::IdTaken);
        }
        let given = spec.key.as_ref().is_some_and(|key| keys.contains(key));
        (self.key_is_taken || given).then_some(SkipReason::KeyTaken)
    }
}

impl<S: Storage> Call<'_, '_, S> {
    /// About the first of them, as many as one batch takes: how many, and whether one is no longer there that was not named. What
    /// becomes of them is added to `next`.
    pub(super) async fn decide(
        &mut self, items: &[Item], budget: Budget, next: &mut BulkProgress, changes: &mut Changes,
    ) -> Result<(usize, bool)> {
        let Bulk { part, action, dry_run, .. } = *self.bulk;
        let (queue, purges) = (&part.queue, matches!(action, Action::Purge));
        let (target, moved) = match action {
            Action::Move { to, .. } => (to, true),
            Action::Requeue { .. } | Action::Purge => (queue, false),
        };
        let items = &items[..items.len().min(if moved { cross_queue::JOBS_MAX } else { usize::MAX })];
        let candidates = candidates(self.store, queue, items, (!purges).then_some(budget)).await?;
        let whole = candidates.iter().map(|it| {
            let Candidate { facts, spec, .. } = it.as_ref()?;
            Some((facts.letter.number, spec.as_ref()?))
        });
        let jobs: Vec<_> = whole.collect();
        let obstacles = Obstacle::read(self.store, target, &jobs, moved).await?;
        if !dry_run {
            self.known = Known::default();
        }
        let (known, mut passed, mut chosen) = (&mut self.known, false, Vec::new());
        for ((item, candidate), obstacle) in items.iter().zip(&candidates).zip(&obstacles) {
            // One that was named before is gone, in a dry run too.
            let candidate = candidate.as_ref().filter(|it| !known.gone.contains(&it.facts.letter.number));
            let Some(candidate) = candidate else {
                passed |= item.named.is_none();
                next.skipped.extend(item.named.clone().map(|id| (id, SkipReason::JobNotFound)));
                continue;
            };
            let (number, id) = (candidate.facts.letter.number, candidate.facts.job.spec.id.clone());
            let refusal = match &candidate.spec {
                _ if purges => None,
                None => Some(SkipReason::DataCorrupt),
                Some(spec) => {
                    next.bytes += candidate.bytes;
                    obstacle.refusal(spec, &known.keys)
                }
            };
            if let Some(reason) = refusal {
                next.skipped.push((id, reason));
                continue;
            }
            known.gone.insert(number);
            known.keys.extend(candidate.spec.as_ref().and_then(|spec| spec.key.clone()));
            chosen.push((candidate, obstacle));
            if moved && !dry_run {
                next.moving.push((number, id));
                continue;
            }
            next.count += 1;
            if !purges {
                next.ids.push(id);
            }
        }
        let decided = candidates.len();
        if dry_run {
            return Ok((decided, passed));
        }
        let now = self.store.now();
        match action {
            Action::Purge => {
                changes.add(Total::Purged, chosen.len() as u64);
                let letters: Vec<_> = chosen.iter().map(|(candidate, _)| &candidate.facts).collect();
                remove_letters(self.store, queue, &letters, IdsAfter::Held(now), changes).await?;
                self.cx.due(queue, now.after(ID_HELD));
            }
            Action::Requeue { keep_attempts, reason } => {
                let ready = ToReady { queue, keep_attempts, reason, now };
                let keys = || chosen.iter().filter_map(|(candidate, _)| candidate.facts.job.breaker_key());
                let groups = KeyGroups::of(self.store, self.cx, queue, keys()).await?.unwrap_or_default();
                groups.enter(keys(), changes);
                for (Candidate { facts, spec, .. }, obstacle) in &chosen {
                    let Some(spec) = spec else { continue };
                    let group = groups.group(facts.job.breaker_key());
                    ready.put_back(facts, spec, (obstacle.key.as_ref(), group), self.cx, changes);
                }
            }
            Action::Move { to, keep_attempts, reason } => {
                let letters: Vec<_> = chosen.iter().map(|(candidate, _)| candidate.facts.letter).collect();
                cross_queue::begin(self.cx, queue, &letters, (to, keep_attempts, reason), now, changes);
            }
        }
        Ok((decided, passed))
    }
}
