//! Sweep: what time makes due in one queue, a bounded part at a time.

mod expired_records;

use super::{
    claim::PROMOTIONS_MAX,
    context::{CallContext, overtaken},
    facts::{DeadFacts, LeaseFacts, QueueFacts, range},
    find::{self, Located},
    outcome::{self, End},
    pause, retention,
    state_changes::{Changes, DeadLetters},
    undelivered,
};
use crate::{
    domain::{
        breaker::{BreakerState, Gate, Guarded as BreakerKind},
        ids::QueueName,
        job::DeadReason,
        settings::QueueSettings,
        time::Timestamp,
        verdict::Ending,
    },
    store::{
        ExpiredLease, StoreError, Sweep, Swept,
        storage::{
            Applied, Batch, Entry, Fence, Found, Index, Len, Publish, Read, Reads, Storage, Write,
        },
    },
};
use std::time::Duration;

/// So much of each kind at a time; the rest is due at once.
const EXPIRIES_MAX: usize = 500;
const DEADLINES_MAX: usize = 500;
const RECORDS_MAX: usize = 500;
const REMOVALS_MAX: usize = 500;
/// Leases that are looked at for those that are not spared.
const SPARED_MAX: usize = 10_000;
/// Keys and records whose time is over are in no hurry.
const TIDY_EVERY: Duration = Duration::from_secs(10);
const ROUNDS_MAX: usize = 50;

/// Does what is due in one queue. Says when something is due next.
pub(crate) async fn sweep<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    sweep: Sweep,
    swept: &mut Swept,
) -> Result<Option<Timestamp>, StoreError> {
    let Some(due) = Due::read(store, queue).await? else {
        cx.memory.forget(queue);
        return Ok(None);
    };
    let now = store.now();
    let settings = cx.queue(queue);
    let mut next = Next::default();
    if due.job_due.is_some_and(|at| at <= now) {
        promote(store, cx, queue, &due.facts, swept).await?;
    }
    end_pause(store, cx, queue, &due.facts).await?;
    tell_half_open(store, cx, queue, &settings, &mut next).await?;
    expire_leases(store, cx, queue, &due.leased, sweep, swept, &mut next).await?;
    pass_deadlines(store, cx, queue, &due.deadlines, &settings, &mut next).await?;
    if due.expires.first().is_some_and(|entry| entry.score <= now.millis()) {
        expired_records::remove_expired(store, cx, queue, &due.expires).await?;
    }
    let left = REMOVALS_MAX.saturating_sub(swept.retention_expired);
    let dead = retention::end_dead_retention(store, cx, queue, &settings, left).await?;
    swept.retention_expired += dead.0;
    next.at(dead.1);
    let left = REMOVALS_MAX.saturating_sub(swept.completed_removed);
    let completed = retention::end_completed_retention(store, queue, &settings, left).await?;
    swept.completed_removed += completed.0;
    next.at(completed.1);
    expired_records::forget_keys(store, queue, &due).await?;
    // What was done may have made something else due.
    let after = Due::read(store, queue).await?;
    if let Some(after) = &after {
        next.after(after, &settings, cx, queue, now);
        if let Some(at) = after.job_due {
            cx.job_due(queue, at);
        }
    }
    Ok(next.0)
}

/// When a queue next has something due, without doing anything; what retention makes due depends on settings, and is found by
/// the first sweep.
pub(crate) async fn next_due<S: Reads>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
) -> Result<Option<Timestamp>, StoreError> {
    let Some(due) = Due::read(store, queue).await? else { return Ok(None) };
    let (now, settings) = (store.now(), cx.queue(queue));
    let mut next = Next::default();
    next.after(&due, &settings, cx, queue, now);
    next.at(due.leased.first().map(|entry| Timestamp::from_millis(entry.score)));
    next.at(due.deadlines.first().map(|entry| Timestamp::from_millis(entry.score)));
    if let Some(at) = due.job_due {
        cx.job_due(queue, at);
    }
    Ok(next.0)
}

/// Whether a sweep would end a lease or dead-letter a job, rather than only make jobs ready: nobody may see that before it is
/// on disk.
pub(crate) async fn ends_anything<S: Reads>(
    store: &mut S,
    queue: &QueueName,
) -> Result<bool, StoreError> {
    let up_to = Some(store.now().millis());
    let reads = [range(Index::Leased, up_to, 1), range(Index::Deadline, up_to, 1)];
    let found = store.read(queue, &reads).await?.unwrap_or_default();
    Ok(found.into_iter().any(|found| !found.entries().is_empty()))
}

/// The earliest of several times.
#[derive(Default)]
struct Next(Option<Timestamp>);

impl Next {
    fn at(&mut self, at: Option<Timestamp>) {
        self.0 = self.0.into_iter().chain(at).min();
    }

    /// All but leases, deadlines and retention, which know better.
    fn after(
        &mut self,
        due: &Due,
        settings: &QueueSettings,
        cx: &CallContext<'_>,
        queue: &QueueName,
        now: Timestamp,
    ) {
        self.at(due.job_due);
        self.at(due.facts.queue.pause.as_ref().and_then(|pause| pause.until));
        self.at(next_gate(&due.facts, settings, cx, queue, now));
        let first = |entries: &[Entry]| entries.first().map(|it| Timestamp::from_millis(it.score));
        let tidied = now.after(TIDY_EVERY);
        self.at(first(&due.expires).map(|at| at.max(tidied)));
        self.at(first(&due.finished_keys).map(|at| at.max(tidied)));
    }
}

/// When a breaker that holds the queue back changes by the clock.
fn next_gate(
    facts: &QueueFacts,
    settings: &QueueSettings,
    cx: &CallContext<'_>,
    queue: &QueueName,
    now: Timestamp,
) -> Option<Timestamp> {
    let open = facts.breaker.open.as_ref().filter(|_| facts.breaker.forced.is_none())?;
    if cx.memory.half_open_told(queue) != facts.breaker.transitions {
        return Some(open.probe_at);
    }
    match facts.breaker.gate(&settings.breaker, facts.probes.iter().copied(), now) {
        Gate::Limited { until } => Some(until),
        Gate::Held { until } => until,
        Gate::All | Gate::Probes { .. } => None,
    }
}

/// What is due in a queue, and what comes next.
struct Due {
    facts: QueueFacts,
    leased: Vec<Entry>,
    deadlines: Vec<Entry>,
    expires: Vec<Entry>,
    finished_keys: Vec<Entry>,
    finished: u64,
    /// Of `Scheduled` and `Retrying`.
    job_due: Option<Timestamp>,
}

impl Due {
    async fn read<S: Reads>(store: &mut S, queue: &QueueName) -> Result<Option<Self>, StoreError> {
        let mut reads: Vec<Read> = QueueFacts::reads().into();
        reads.extend([
            range(Index::Leased, None, EXPIRIES_MAX),
            range(Index::Deadline, None, DEADLINES_MAX),
            range(Index::Expires, None, RECORDS_MAX),
            range(Index::FinishedKey, None, RECORDS_MAX),
            Read::Len(Len::Index(Index::FinishedKey)),
            range(Index::Scheduled, None, 1),
            range(Index::Retrying, None, 1),
        ]);
        let Some(found) = store.read(queue, &reads).await? else { return Ok(None) };
        let mut found = found.into_iter();
        let facts = QueueFacts::found(&mut found)?;
        let mut next = || found.next().unwrap_or(Found::Record(None));
        let (leased, deadlines) = (next().entries(), next().entries());
        let (expires, finished_keys) = (next().entries(), next().entries());
        let finished = next().number();
        let (scheduled, retrying) = (next().entries(), next().entries());
        let first = scheduled.into_iter().chain(retrying).map(|entry| entry.score).min();
        let job_due = first.map(Timestamp::from_millis);
        Ok(Some(Self { facts, leased, deadlines, expires, finished_keys, finished, job_due }))
    }
}

async fn promote<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    facts: &QueueFacts,
    swept: &mut Swept,
) -> Result<(), StoreError> {
    let batch = Batch {
        writes: vec![Write::Promote(PROMOTIONS_MAX)],
        publish: Publish::IfFirst,
        ..Batch::default()
    };
    if let Applied::Done(done) = store.apply(queue, &batch).await? {
        swept.promoted += done.promoted;
        if done.promoted > 0 {
            cx.available(queue, facts, done.ready, store.now());
        }
    }
    Ok(())
}

/// A pause whose time has come is over.
async fn end_pause<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    facts: &QueueFacts,
) -> Result<(), StoreError> {
    let until = facts.queue.pause.as_ref().and_then(|pause| pause.until);
    if until.is_some_and(|until| until <= store.now()) {
        // Where another call changed it meanwhile, the next sweep looks again.
        pause::set(store, cx, queue, facts, None).await?;
    }
    Ok(())
}

/// An open breaker whose time has come is half open, and slots of probes that did not come back are free.
async fn tell_half_open<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    settings: &QueueSettings,
    next: &mut Next,
) -> Result<(), StoreError> {
    let Some(facts) = QueueFacts::read_anew(store, queue, cx).await? else { return Ok(()) };
    let now = store.now();
    let half_open = facts.breaker.state(&settings.breaker, now) == BreakerState::HalfOpen;
    match next_gate(&facts, settings, cx, queue, now) {
        Some(at) if at > now => {
            next.at(Some(at));
            return Ok(());
        }
        None if !half_open => return Ok(()),
        _ => {}
    }
    let transitions = facts.breaker.transitions;
    let told = cx.memory.half_open_told(queue) == transitions;
    cx.memory.tell_half_open(queue, transitions);
    if !told && half_open {
        cx.breaker_moved(queue, BreakerKind::Work, &facts.breaker, now);
    }
    tell_ready(store, cx, queue).await
}

/// Tells what is ready in a queue, as far as it may leave it.
pub(crate) async fn tell_ready<S: Reads>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
) -> Result<(), StoreError> {
    let Some(facts) = QueueFacts::read_anew(store, queue, cx).await? else { return Ok(()) };
    let found = store.read(queue, &[Read::Len(Len::Index(Index::Ready))]).await?;
    let ready = found.and_then(|found| found.first().map(Found::number)).unwrap_or_default();
    cx.available(queue, &facts, ready, store.now());
    Ok(())
}

async fn expire_leases<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    first: &[Entry],
    sweep: Sweep,
    swept: &mut Swept,
    next: &mut Next,
) -> Result<(), StoreError> {
    let now = store.now();
    let mut entries = first.to_vec();
    let (mut looked_at, mut expired) = (0, Vec::new());
    while let Some(last) = entries.last().cloned() {
        let page = entries.len();
        looked_at += page;
        for entry in entries {
            if entry.score > now.millis() {
                next.at(Some(Timestamp::from_millis(entry.score)));
                break;
            }
            expired.extend(entry.member.job());
        }
        let spares = now < sweep.spare_until;
        let enough = last.score > now.millis() || page < EXPIRIES_MAX || looked_at >= SPARED_MAX;
        if enough || !spares && expired.len() >= EXPIRIES_MAX {
            break;
        }
        let read = Read::Range {
            index: Index::Leased,
            after: Some(last),
            up_to: None,
            limit: EXPIRIES_MAX,
            reverse: false,
        };
        let found = store.read(queue, &[read]).await?.unwrap_or_default();
        entries = found.into_iter().next().map(Found::entries).unwrap_or_default();
    }
    if expired.len() >= EXPIRIES_MAX {
        // There may be more.
        next.at(Some(now));
    }
    for numbers in expired.chunks(EXPIRIES_MAX) {
        expire(store, cx, queue, numbers, sweep, swept, next).await?;
    }
    Ok(())
}

/// Ends these leases, or returns their jobs where their claims were not delivered.
async fn expire<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    numbers: &[u64],
    sweep: Sweep,
    swept: &mut Swept,
    next: &mut Next,
) -> Result<(), StoreError> {
    let now = store.now();
    let reads: Vec<_> = numbers.iter().flat_map(|number| LeaseFacts::reads(*number)).collect();
    let Some(found) = store.read(queue, &reads).await? else { return Ok(()) };
    let mut found = found.into_iter();
    let mut ends = Vec::new();
    for number in numbers {
        let (facts, _) = LeaseFacts::found(queue, *number, &mut found)?;
        let Some(facts) = facts.filter(|facts| facts.score <= now.millis()) else { continue };
        if facts.lease.tail.undelivered.is_some() {
            undelivered::return_job(store, cx, queue, &facts).await?;
            continue;
        }
        if facts.lease.lease.started_at < sweep.spare_made_before && now < sweep.spare_until {
            next.at(Some(sweep.spare_until));
            continue;
        }
        ends.push(End {
            number: *number,
            epoch: facts.lease.lease.epoch,
            token: None,
            ending: Ending::Expired,
            checkpoint: String::new(),
        });
    }
    if ends.is_empty() {
        return Ok(());
    }
    let ended = outcome::end_all(store, cx, queue, &ends).await?;
    for ended in ended.into_iter().flatten() {
        let (id, attempt) = (ended.id, ended.attempt);
        swept.expired.push(ExpiredLease { queue: queue.clone(), id, attempt });
    }
    Ok(())
}

/// Jobs that wait past their deadline die; for one that runs it is decided when its delivery ends.
async fn pass_deadlines<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    entries: &[Entry],
    settings: &QueueSettings,
    next: &mut Next,
) -> Result<(), StoreError> {
    let now = store.now();
    let (passed, later): (Vec<&Entry>, Vec<&Entry>) =
        entries.iter().partition(|entry| entry.score <= now.millis());
    next.at(later.first().map(|entry| Timestamp::from_millis(entry.score)));
    if passed.len() == DEADLINES_MAX {
        next.at(Some(now));
    }
    for entry in passed {
        let Some(number) = entry.member.job() else { continue };
        let mut rounds = 0;
        while !pass_deadline(store, cx, queue, entry, number, settings).await? {
            rounds += 1;
            if rounds == ROUNDS_MAX {
                return Err(overtaken());
            }
        }
    }
    Ok(())
}

/// False: the facts were old.
async fn pass_deadline<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    entry: &Entry,
    number: u64,
    settings: &QueueSettings,
) -> Result<bool, StoreError> {
    let Some(facts) = QueueFacts::read(store, queue).await? else { return Ok(true) };
    let located = find::locate(store, queue, number).await?;
    let now = store.now();
    let mark = cx.events.len();
    let mut changes = Changes::default();
    changes.fence(Fence::At(Index::Deadline, entry.clone()));
    match located {
        Some(Located { job, index, entry: at, lease: None }) if is_waiting(index) => {
            let dead_facts = DeadFacts::read(store, queue, &[&job]).await?;
            let mut dead_letters = DeadLetters::new(queue, dead_facts, &facts, settings, now);
            changes.fence(Fence::At(index, at.clone()));
            changes.remove(index, at);
            dead_letters.leaves(index);
            let history = job.next_history(job.progress());
            let reason = DeadReason::Expired;
            changes.dead_letter(&job, history, reason, None, &mut dead_letters, cx);
            dead_letters.finish(&mut changes, cx);
        }
        // It runs, or is done or dead: the entry is in the way.
        _ => changes.remove(Index::Deadline, entry.clone()),
    }
    match store.apply(queue, &changes.batch()).await? {
        Applied::Done(_) => {
            cx.memory.forget_facts(queue);
            Ok(true)
        }
        Applied::NoQueue => Ok(true),
        Applied::Changed(failed) => {
            cx.events.truncate(mark);
            // Without its entry there is nothing to do.
            Ok(failed.first().is_some_and(|(fence, _)| *fence == 0))
        }
    }
}

fn is_waiting(index: Index) -> bool {
    matches!(index, Index::Ready | Index::Scheduled | Index::Retrying)
}
