//! A call that does something to many dead letters: chunk by chunk, each chunk one batch, which also says how far the call is.

mod chunk;

use super::{
    context::{CallContext, after_some, overtaken},
    cross_queue,
    facts::QueueFacts,
    purge, records,
    requests::{BulkProgress, Earlier, Journal},
    requeue,
    select::{self, DeadEntry},
    state_changes::Changes,
};
use crate::{
    domain::{
        breaker::Guarded as BreakerKind,
        ids::{DeadPart, JobId, QueueName},
    },
    store::{
        RequestId, SkipReason, StoreError, Which,
        storage::{Applied, Index, Len, Read, RecordKey, Storage, Table},
    },
};
use chunk::Chunk;
use std::collections::HashSet;

/// Dead letters of one batch.
const CHUNK_MAX: usize = 500;
/// Bodies that one call reads, about: other calls have their turn in between.
const BYTES_MAX: u64 = 16 << 20;
/// So often as one batch; from then on one batch for each dead letter.
const JOINT_ROUNDS: usize = 3;
/// How often others may overtake a batch before the call gives up.
const ROUNDS_MAX: usize = 50;
/// How often another call with the same request id may go on before this one.
const RESTARTS_MAX: usize = 1_000;

/// What is asked for.
pub(super) struct Bulk<'a> {
    /// Whose request ids they are.
    pub(super) call: &'static str,
    pub(super) part: &'a DeadPart,
    pub(super) which: &'a Which,
    pub(super) action: Action<'a>,
    pub(super) dry_run: bool,
    pub(super) request: Option<&'a RequestId>,
}

/// What is done to each of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action<'a> {
    Purge,
    Requeue { keep_attempts: bool },
    Move { to: &'a QueueName, keep_attempts: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BulkRefused {
    NoSuchQueue,
    TooManyQueues { limit: usize },
    RequestIdTaken,
}

/// One that was chosen.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// As the caller named it.
    pub(super) named: Option<JobId>,
    /// None: it is not among the dead letters.
    pub(super) letter: Option<DeadEntry>,
    /// Dead letters that the call has looked at by then.
    looked_at: u64,
}

/// Those that are decided about in one round.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) queue: &'a QueueName,
    pub(super) items: &'a [Item],
    pub(super) dry_run: bool,
    pub(super) budget: Budget,
}

/// What becomes of one that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) number: u64,
    pub(super) id: JobId,
    pub(super) fate: Fate,
    /// Of its body, which was read.
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    Skipped(SkipReason),
    /// It is no longer there, and was not named.
    Passed,
}

impl Item {
    /// It is not there, or no longer.
    pub(super) fn missing(&self) -> Decision {
        let (fate, id) = match &self.named {
            Some(id) => (Fate::Skipped(SkipReason::JobNotFound), id.clone()),
            None => (Fate::Passed, JobId::Text("".into())),
        };
        let number = self.letter.map_or(0, |letter| letter.number);
        Decision { number, id, fate, bytes: 0 }
    }
}

/// What the call has done so far that the store does not tell: all of it in a dry run, else that of the batch in the making.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) gone: HashSet<u64>,
    pub(super) keys: HashSet<String>,
}

/// How far bodies may be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Read by the call before; with more than `most` it stops.
    read: u64,
    most: u64,
    /// By this batch.
    batch: u64,
}

impl Budget {
    /// About what one batch reads.
    const BATCH: u64 = 1 << 20;

    fn new(read: u64, named: bool) -> Self {
        Self { read, most: if named { u64::MAX } else { BYTES_MAX }, batch: 0 }
    }

    fn is_used_up(&self) -> bool {
        self.read > self.most
    }

    /// Whether the next body, of this length, is of this batch.
    pub(super) fn takes(&mut self, length: usize) -> bool {
        let length = length as u64;
        let first = self.batch == 0;
        if self.is_used_up() || (!first && self.batch + length > Self::BATCH) {
            return false;
        }
        self.batch += length.max(1);
        self.read += length;
        true
    }
}

/// Another call with the same request id has gone on.
struct Overtaken;

/// The answer of the first time, where the call was made before.
pub(super) async fn run<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    bulk: &Bulk<'_>,
) -> Result<Result<BulkProgress, BulkRefused>, StoreError> {
    let queue = &bulk.part.queue;
    let mut begun = false;
    for _ in 0..RESTARTS_MAX {
        let (journal, progress) = match Journal::find(store, queue, bulk.call, bulk.request).await?
        {
            None => return Ok(Err(BulkRefused::NoSuchQueue)),
            Some(Earlier::Answered(progress)) => return Ok(Ok(progress)),
            Some(Earlier::Another) => return Ok(Err(BulkRefused::RequestIdTaken)),
            Some(Earlier::Open(journal, progress)) => (journal, progress),
        };
        let progress = match progress {
            Some(progress) => progress,
            None => {
                let Some(all) = select::all_deaths(store, queue).await? else {
                    return Ok(Err(BulkRefused::NoSuchQueue));
                };
                BulkProgress { left: bulk.among().unwrap_or(all), ..BulkProgress::default() }
            }
        };
        if let Action::Move { to, .. } = bulk.action
            && !bulk.dry_run
            && !store.register(to, cx.limits.queues).await?
        {
            return Ok(Err(BulkRefused::TooManyQueues { limit: cx.limits.queues }));
        }
        let mut call = Call { bulk, journal, progress, known: Known::default(), begun: false };
        let went = call.go(store, cx).await;
        begun |= call.begun;
        if begun && !bulk.dry_run && went.is_ok() {
            // The work is done: where this fails, the breaker's own probe closes it.
            drop(make_room(store, cx, queue).await);
        }
        match went {
            Ok(Ok(())) => return Ok(Ok(call.progress)),
            Ok(Err(Overtaken)) => {}
            Err(error) => return Err(after_some(error, begun)),
        }
    }
    Err(after_some(overtaken(), begun))
}

struct Call<'a> {
    bulk: &'a Bulk<'a>,
    journal: Journal,
    progress: BulkProgress,
    known: Known,
    /// A batch of the call was applied.
    begun: bool,
}

impl Call<'_> {
    /// The rest of the call.
    async fn go<S: Storage>(
        &mut self,
        store: &mut S,
        cx: &mut CallContext<'_>,
    ) -> Result<Result<(), Overtaken>, StoreError> {
        if !self.progress.moving.is_empty() && self.complete_moves(store, cx, false).await?.is_err()
        {
            return Ok(Err(Overtaken));
        }
        while !self.progress.finished {
            let chunk = self.bulk.next(store, &self.progress).await?;
            if self.work_off(store, cx, chunk).await?.is_err() {
                return Ok(Err(Overtaken));
            }
        }
        Ok(Ok(()))
    }

    async fn work_off<S: Storage>(
        &mut self,
        store: &mut S,
        cx: &mut CallContext<'_>,
        chunk: Chunk,
    ) -> Result<Result<(), Overtaken>, StoreError> {
        let mut items = &chunk.items[..];
        let (mut width, mut rounds, mut passed) = (usize::MAX, 0, false);
        loop {
            let budget = Budget::new(self.progress.bytes, self.bulk.is_named());
            let stopped = match items.first() {
                // The caller can go on where this call stops.
                Some(Item { letter: Some(letter), .. }) if budget.is_used_up() => {
                    Some(letter.death)
                }
                _ => None,
            };
            let part = match stopped {
                Some(_) => &[],
                None => &items[..items.len().min(width)],
            };
            let mark = cx.events.len();
            let mut changes = Changes::default();
            self.journal.fence(&mut changes);
            let decisions = self.decide(store, cx, part, budget, &mut changes).await?;
            let rest = &items[decisions.len()..];
            let passes = passed || decisions.iter().any(|it| it.fate == Fate::Passed);
            let mut next = self.progress.clone();
            if let Some(Item { letter: Some(letter), looked_at, .. }) =
                items[..decisions.len()].last()
                && !self.bulk.is_named()
            {
                (next.left.after, next.looked_at) = (letter.death, *looked_at);
            }
            let moves = matches!(self.bulk.action, Action::Move { .. }) && !self.bulk.dry_run;
            self.count(&mut next, decisions, moves);
            let mut last = false;
            if let Some(death) = stopped {
                next.left.after = death - 1;
                (next.has_more, last) = (true, true);
            } else if rest.is_empty() {
                (next.left, next.looked_at) = (chunk.left, chunk.looked_at);
                (next.has_more, last) = (chunk.has_more, chunk.last);
                if passes && chunk.is_full {
                    // Others take the places of those that are not there.
                    (next.has_more, last) = (false, false);
                }
            }
            // What is on its way is not finished.
            next.finished = last && next.moving.is_empty();
            match self.apply(store, cx, changes, next).await? {
                Went::On => {
                    rounds = 0;
                    passed = passes;
                    items = rest;
                    if !self.progress.moving.is_empty()
                        && self.complete_moves(store, cx, last).await?.is_err()
                    {
                        return Ok(Err(Overtaken));
                    }
                    if items.is_empty() || last {
                        return Ok(Ok(()));
                    }
                }
                Went::Overtaken => {
                    cx.events.truncate(mark);
                    return Ok(Err(Overtaken));
                }
                Went::Again => {
                    cx.events.truncate(mark);
                    rounds += 1;
                    if rounds >= JOINT_ROUNDS {
                        width = 1;
                    }
                    if rounds == ROUNDS_MAX {
                        return Err(overtaken());
                    }
                }
            }
        }
    }

    /// About the first of them: as many as one batch takes.
    async fn decide<S: Storage>(
        &mut self,
        store: &mut S,
        cx: &mut CallContext<'_>,
        items: &[Item],
        budget: Budget,
        changes: &mut Changes,
    ) -> Result<Vec<Decision>, StoreError> {
        let Bulk { action, dry_run, part, .. } = *self.bulk;
        let mut of_batch = Known::default();
        let known = if dry_run { &mut self.known } else { &mut of_batch };
        let part = Part { queue: &part.queue, items, dry_run, budget };
        match action {
            Action::Purge => purge::decide(store, part, known, changes).await,
            Action::Requeue { keep_attempts } => {
                requeue::decide(store, cx, part, keep_attempts, known, changes).await
            }
            Action::Move { to, keep_attempts } => {
                cross_queue::decide(store, cx, part, to, keep_attempts, known, changes).await
            }
        }
    }

    fn count(&self, progress: &mut BulkProgress, decisions: Vec<Decision>, moves: bool) {
        for Decision { number, id, fate, bytes } in decisions {
            progress.bytes += bytes;
            match fate {
                Fate::Done if moves => progress.moving.push((number, id)),
                Fate::Done => {
                    progress.count += 1;
                    if !matches!(self.bulk.action, Action::Purge) {
                        progress.ids.push(id);
                    }
                }
                Fate::Skipped(reason) => progress.skipped.push((id, reason)),
                Fate::Passed => {}
            }
        }
    }

    async fn apply<S: Storage>(
        &mut self,
        store: &mut S,
        cx: &mut CallContext<'_>,
        mut changes: Changes,
        next: BulkProgress,
    ) -> Result<Went, StoreError> {
        let (queue, now) = (&self.bulk.part.queue, store.now());
        // A call that may be repeated says how far it is; of a dry run the answer is enough.
        let journal = if changes.is_empty() && !next.finished {
            None
        } else {
            Some(self.journal.put(&mut changes, &next, now))
        };
        if changes.is_empty() {
            self.progress = next;
            return Ok(Went::On);
        }
        let made_ready = changes.made_ready;
        match store.apply(queue, &changes.batch()).await? {
            Applied::Done(done) => {
                self.begun = true;
                self.progress = next;
                self.journal = journal.unwrap_or_default();
                if made_ready && let Some(facts) = QueueFacts::remembered(store, queue, cx).await? {
                    cx.available(queue, &facts, done.ready, now);
                }
                Ok(Went::On)
            }
            Applied::Changed(failed) if self.journal.is_overtaken(&failed) => Ok(Went::Overtaken),
            // The queue was forgotten, so none of its dead letters is there: so it was decided, or will be.
            Applied::NoQueue if next.count == self.progress.count && next.moving.is_empty() => {
                self.progress = next;
                Ok(Went::On)
            }
            Applied::Changed(_) | Applied::NoQueue => Ok(Went::Again),
        }
    }

    /// What is on its way to another queue arrives there.
    async fn complete_moves<S: Storage>(
        &mut self,
        store: &mut S,
        cx: &mut CallContext<'_>,
        last: bool,
    ) -> Result<Result<(), Overtaken>, StoreError> {
        let queue = &self.bulk.part.queue;
        let numbers: Vec<_> = self.progress.moving.iter().map(|(number, _)| *number).collect();
        let arrivals = cross_queue::arrive_all(store, cx, queue, &numbers).await?;
        for _ in 0..ROUNDS_MAX {
            let mut changes = Changes::default();
            self.journal.fence(&mut changes);
            let left = cross_queue::leave(store, cx, queue, &arrivals, &mut changes).await?;
            let mut next = self.progress.clone();
            for ((_, id), left) in std::mem::take(&mut next.moving).into_iter().zip(left) {
                match left {
                    Ok(()) => {
                        next.count += 1;
                        next.ids.push(id);
                    }
                    Err(reason) => next.skipped.push((id, reason)),
                }
            }
            next.finished = last;
            match self.apply(store, cx, changes, next).await? {
                Went::On => return Ok(Ok(())),
                Went::Overtaken => return Ok(Err(Overtaken)),
                Went::Again => {}
            }
        }
        Err(overtaken())
    }
}

enum Went {
    On,
    /// The facts were old.
    Again,
    Overtaken,
}

/// Dead letters have left: where that made room, their breaker closes, and no death has to find out.
pub(super) async fn make_room<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
) -> Result<(), StoreError> {
    let settings = cx.queue(queue);
    for _ in 0..ROUNDS_MAX {
        let reads =
            [Read::Record(Table::Queue, RecordKey::Only), Read::Len(Len::Index(Index::Dead))];
        let Some(found) = store.read(queue, &reads).await? else { return Ok(()) };
        let mut found = found.into_iter();
        let Some(record) = found.next().and_then(|found| found.record()) else { return Ok(()) };
        let listed = found.next().map_or(0, |found| found.number());
        let Some(mut state) = records::readable(records::read_queue(&record))? else {
            return Ok(());
        };
        if listed >= settings.dead_letters.max_entries || !state.dead_letters.room_made() {
            return Ok(());
        }
        let mut changes = Changes::default();
        changes.fence(super::facts::record_fence(Table::Queue, RecordKey::Only, Some(&record)));
        changes.put(Table::Queue, RecordKey::Only, records::queue(&state));
        if let Applied::Done(_) = store.apply(queue, &changes.batch()).await? {
            cx.memory.forget_facts(queue);
            let now = store.now();
            cx.breaker_moved(queue, BreakerKind::DeadLetters, &state.dead_letters, now);
            return Ok(());
        }
    }
    // A later call, or its own probe, closes it.
    Ok(())
}

#[cfg(test)]
mod tests;
