//! A call that does something to many dead letters: chunk by chunk, each chunk one batch, which also says how far the call is.

mod chunk;
mod decide;

pub(super) use decide::Obstacle;

use super::answers::ask;
use super::context::{CallContext, overtaken};
use super::facts::{QueueFacts, Rounds, record_fence};
use super::records::{self, read_if};
use super::refusal::{self, Error};
use super::requests::{BulkProgress, Journal};
use super::state_changes::Changes;
use super::{breakers, cross_queue, select};
use crate::domain::{BreakerKind, DeadPart, QueueName};
use crate::queue::{BreakerView, RequestId, Which};
use crate::store::Result;
use crate::store::storage::{Applied, Index, Len, Read, RecordKey, Storage, Table};
use chunk::{Chunk, Item};
use decide::{Budget, Known};

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
    Requeue { keep_attempts: bool, reason: &'a str },
    Move { to: &'a QueueName, keep_attempts: bool, reason: &'a str },
}

/// Why a call does not go on.
enum Stop {
    /// Another call with the same request id has gone on.
    Overtaken,
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The answer of the first time, where the call was made before.
pub(super) async fn run<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, bulk: &Bulk<'_>,
) -> refusal::Result<BulkProgress> {
    for _ in 0..RESTARTS_MAX {
        match go_on(store, cx, bulk).await {
            Ok(progress) => return Ok(progress),
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Overtaken) => {}
        }
    }
    Err(overtaken().into())
}

/// From where the call stands.
async fn go_on<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, bulk: &Bulk<'_>) -> Result<BulkProgress, Stop> {
    let queue = &bulk.part.queue;
    let (journal, progress) = Journal::find(store, queue, bulk.call, bulk.request).await?;
    let progress = match progress {
        Some(progress) if progress.finished => return Ok(progress),
        Some(progress) => progress,
        None => {
            let all = select::all_deaths(store, queue).await?;
            BulkProgress { left: bulk.among().unwrap_or(all), ..BulkProgress::default() }
        }
    };
    if let Action::Move { to, .. } = bulk.action
        && !bulk.dry_run
    {
        breakers::make(store, cx, to).await?;
    }
    let mut call = Call { store, cx, bulk, journal, progress, known: Known::default() };
    let went = call.go().await;
    let Call { store, cx, progress, .. } = call;
    if cx.begun && !bulk.dry_run && !matches!(went, Err(Stop::Failed(_))) {
        // The work is done: where this fails, the breaker's own probe closes it.
        drop(make_room(store, cx, queue).await);
    }
    went.map(|()| progress)
}

struct Call<'c, 'a, S> {
    store: &'c mut S,
    cx: &'c mut CallContext<'a>,
    bulk: &'c Bulk<'c>,
    journal: Journal,
    progress: BulkProgress,
    known: Known,
}

impl<S: Storage> Call<'_, '_, S> {
    /// The rest of the call.
    async fn go(&mut self) -> Result<(), Stop> {
        self.complete_moves(false).await?;
        while !self.progress.finished {
            let chunk = self.bulk.next(self.store, &self.progress).await?;
            self.work_off(&chunk).await?;
        }
        Ok(())
    }

    async fn work_off(&mut self, chunk: &Chunk) -> Result<(), Stop> {
        let mut items = &chunk.items[..];
        let (mut rounds, mut passed) = (Rounds::default(), false);
        loop {
            let budget = Budget::new(self.progress.bytes, self.bulk.is_named());
            // The caller can go on where this call stops.
            let stopped = items.first().and_then(|item| item.letter).filter(|_| budget.is_used_up());
            let most = if stopped.is_some() { 0 } else { rounds.width() };
            let events = self.cx.events.len();
            let mut changes = Changes::default();
            self.journal.fence(&mut changes);
            let mut next = self.progress.clone();
            let some = &items[..items.len().min(most)];
            let (decided, passes) = self.decide(some, budget, &mut next, &mut changes).await?;
            let (done, rest) = items.split_at(decided);
            let passes = passed || passes;
            if let Some(Item { letter: Some(letter), looked_at, named: None }) = done.last() {
                (next.left.after, next.looked_at) = (letter.death, *looked_at);
            }
            let mut last = false;
            if let Some(letter) = stopped {
                next.left.after = letter.death - 1;
                (next.has_more, last) = (true, true);
            } else if rest.is_empty() {
                (next.left, next.looked_at) = (chunk.left, chunk.looked_at);
                // Others take the places of those that are not there.
                if !(passes && chunk.is_full) {
                    (next.has_more, last) = (chunk.has_more, chunk.last);
                }
            }
            // What is on its way is not finished.
            next.finished = last && next.moving.is_empty();
            if !self.apply(changes, next, events).await? {
                rounds.next()?;
                continue;
            }
            rounds.won();
            (passed, items) = (passes, rest);
            self.complete_moves(last).await?;
            if items.is_empty() || last {
                return Ok(());
            }
        }
    }

    /// False: the facts were old. `events`: those from before.
    async fn apply(&mut self, mut changes: Changes, next: BulkProgress, events: usize) -> Result<bool, Stop> {
        let (queue, now) = (&self.bulk.part.queue, self.store.now());
        let mut journal = self.journal.clone();
        // A call that may be repeated says how far it is; of a dry run the answer is enough.
        if next.finished || !changes.is_empty() {
            journal = self.journal.put(&mut changes, &next, now);
        }
        if changes.is_empty() {
            self.progress = next;
            return Ok(true);
        }
        let made_ready = changes.made_ready;
        match self.store.apply(queue, &changes.batch()).await? {
            Applied::Done(done) => {
                self.cx.applied();
                (self.progress, self.journal) = (next, journal);
                if made_ready {
                    QueueFacts::tell_ready(self.store, queue, self.cx, done.ready, now).await?;
                }
                return Ok(true);
            }
            // The queue was forgotten, so none of its dead letters is there: so it was decided, or will be.
            Applied::NoQueue if next.count == self.progress.count && next.moving.is_empty() => {
                self.progress = next;
                return Ok(true);
            }
            Applied::Changed(failed) if self.journal.is_overtaken(&failed) => {
                self.cx.events.truncate(events);
                return Err(Stop::Overtaken);
            }
            Applied::Changed(_) | Applied::NoQueue => {}
        }
        self.cx.events.truncate(events);
        Ok(false)
    }

    /// What is on its way to another queue arrives there.
    async fn complete_moves(&mut self, last: bool) -> Result<(), Stop> {
        if self.progress.moving.is_empty() {
            return Ok(());
        }
        let queue = &self.bulk.part.queue;
        let numbers: Vec<_> = self.progress.moving.iter().map(|(number, _)| *number).collect();
        let arrivals = cross_queue::arrive_all(self.store, self.cx, queue, &numbers).await?;
        let mut rounds = Rounds::default();
        loop {
            rounds.next()?;
            let events = self.cx.events.len();
            let mut changes = Changes::default();
            self.journal.fence(&mut changes);
            let left = cross_queue::leave(self.store, self.cx, queue, &arrivals, &mut changes).await?;
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
            if self.apply(changes, next, events).await? {
                return Ok(());
            }
        }
    }
}

/// Dead letters have left: where that made room, their breaker closes, and no death has to find out.
pub(super) async fn make_room<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName) -> Result<()> {
    let settings = cx.queue(queue);
    let mut rounds = Rounds::default();
    // Where others go first all the time, a later call, or its own probe, closes it.
    while rounds.next().is_ok() {
        let reads = [Read::Record(Table::Queue, RecordKey::Only), Read::Len(Len::Index(Index::Dead))];
        let mut found = ask(store, queue, &reads).await?;
        let (record, listed) = (found.record(), found.number());
        let Some(mut state) = read_if(record.as_ref(), records::read_queue)? else { return Ok(()) };
        let now = store.now();
        if listed >= settings.dead_letters.max_entries || !state.dead_letters.room_made(now) {
            return Ok(());
        }
        let mut changes = Changes::default();
        changes.fence(record_fence(Table::Queue, RecordKey::Only, record.as_ref()));
        changes.put(Table::Queue, RecordKey::Only, records::queue(&state));
        if let Applied::Done(_) = store.apply(queue, &changes.batch()).await? {
            cx.memory.forget_facts(queue);
            let view = BreakerView::of_dead_letters(&state.dead_letters);
            cx.breaker_moved(queue, BreakerKind::DeadLetters, view, now);
            return Ok(());
        }
    }
    Ok(())
}
