//! What holds a queue back. Breakers: their records, what operators say of them, and what is shown. Pauses: a queue hands out
//! nothing for a while, and everything else goes on.

use super::answers::ask;
use super::breaker_keys::{self, KeyGroups};
use super::context::{CallContext, epoch};
use super::events::{DegradedEvent, Event, EventKind};
use super::facts::{OutcomeFacts, QueueFacts, Rounds};
use super::records;
use super::refusal::{self, Error, Refusal};
use super::state_changes::Changes;
use crate::domain::{
    Breaker, BreakerKind, BreakerName, BreakerSettings, OutcomeStats, Pause, QueueName, QueueSettings, Timestamp,
    probes_out,
};
use crate::queue::{BreakerOrder, BreakerView, BreakerViews, NewPause};
use crate::store::Result;
use crate::store::storage::{
    Applied, GroupState, NO_GROUP, Publish, Reads, RecordKey, Storage, Table, Version, WHOLE_QUEUE, epoch_of,
};
use bytes::Bytes;
use std::sync::Arc;

/// A transition forgets what was counted under so many epochs before it: an Ack may come long after the transition that ended its
/// epoch, to a server that has not heard of it.
const FORGOTTEN_EPOCHS: u64 = 16;

/// The breaker has changed: its record, and a version that no server has yet. `facts` are those after the batch.
pub(crate) fn put_breaker(changes: &mut Changes, facts: &mut QueueFacts, queue: &QueueName, cx: &mut CallContext<'_>) {
    if epoch(facts.group, &facts.breaker) != facts.version.epoch {
        facts.probes.clear();
        let transitions = facts.breaker.transitions;
        let over = transitions.saturating_sub(FORGOTTEN_EPOCHS)..transitions;
        over.for_each(|transitions| changes.forget_sums(epoch_of(facts.group, transitions)));
    }
    facts.version = cx.new_version(queue, facts.group, &facts.breaker);
    facts.put_breaker_record(changes);
    changes.put(Table::Version, RecordKey::Group(facts.group), Bytes::copy_from_slice(&facts.version.bytes()));
}

/// The facts of a queue that an operator means: one that is configured is made if need be.
pub(crate) async fn meant<S: Storage>(
    store: &mut S, cx: &CallContext<'_>, queue: &QueueName,
) -> refusal::Result<QueueFacts> {
    let mut rounds = Rounds::default();
    loop {
        if let Some(facts) = QueueFacts::read(store, queue).await? {
            return Ok(facts);
        }
        rounds.next()?;
        if !cx.settings.queues.contains_key(queue) {
            return Err(Refusal::no_queue(queue).into());
        }
        register(store, cx, queue).await?;
    }
}

/// Makes the queue, where it is not there.
pub(crate) async fn register<S: Storage>(
    store: &mut S, cx: &CallContext<'_>, queue: &QueueName,
) -> refusal::Result<()> {
    let limit = cx.limits.queues;
    if store.register(queue, limit).await? { Ok(()) } else { Err(Refusal::TooManyQueues { limit }.into()) }
}

/// The same for a queue that is named by a call.
pub(crate) async fn make<S: Storage>(store: &mut S, cx: &CallContext<'_>, queue: &QueueName) -> refusal::Result<()> {
    if QueueFacts::read(store, queue).await?.is_none() {
        cx.make_queue(queue, store.now()).map_err(refusal::Error::Refused)?;
        register(store, cx, queue).await?;
    }
    Ok(())
}

/// Breakers of a queue that are others in `after`, with how the queue is then and its ready jobs. None: the facts were old.
pub(crate) async fn put_breakers<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, before: &QueueFacts, mut after: QueueFacts,
) -> Result<Option<(Arc<QueueFacts>, u64)>> {
    let now = store.now();
    let mut changes = Changes::default();
    let work = after.breaker != before.breaker;
    if work {
        changes.fence(before.version.fence(before.group));
        put_breaker(&mut changes, &mut after, queue, cx);
        if after.breaker.transitions != before.breaker.transitions {
            let stats = OutcomeStats::new(after.breaker.usual.clone(), now);
            OutcomeFacts::default().put(stats, &mut after, &mut changes);
            if forced_open(&before.breaker) || forced_open(&after.breaker) {
                hold_all(&mut changes, before, &mut after, cx);
            }
        }
        changes.publish(Publish::Always);
    }
    let dead_letters = after.queue != before.queue;
    if dead_letters {
        let record = records::queue(&after.queue);
        changes.fence(before.queue_fence());
        changes.put(Table::Queue, RecordKey::Only, record.clone());
        after.queue_record = Some(record);
    }
    if changes.is_empty() {
        let ready = ask(store, queue, &[breaker_keys::ready_in(after.group)]).await?.number();
        return Ok(Some((Arc::new(after), ready)));
    }
    let Applied::Done(done) = store.apply(queue, &changes.batch()).await? else { return Ok(None) };
    if work {
        let stats = OutcomeStats::new(after.breaker.usual.clone(), now);
        tell(store, cx, queue, &after, &stats).await;
        cx.available(queue, &after, done.ready, now);
        if let Some(at) = next_look(&after.breaker, &cx.queue(queue).breaker, now) {
            cx.due(queue, at);
        }
    }
    if dead_letters {
        cx.breaker_moved(queue, BreakerKind::DeadLetters, view_of_dead_letters(&after), now);
    }
    let after = Arc::new(after);
    cx.memory.remember(queue, after.clone());
    let group = if work { after.group } else { NO_GROUP };
    // Where there are keys, the engine counts the jobs of all of them.
    let ready = match after.keys {
        0 => done.ready,
        _ => ask(store, queue, &[breaker_keys::ready_in(group)]).await?.number(),
    };
    Ok(Some((after, ready)))
}

fn forced_open(breaker: &Breaker) -> bool {
    breaker.forced.as_ref().is_some_and(|forced| forced.open)
}

/// The queue's own breaker, forced open, holds jobs with a breaker key too: no server takes any before it has heard of it.
fn hold_all(changes: &mut Changes, before: &QueueFacts, after: &mut QueueFacts, cx: &mut CallContext<'_>) {
    if before.group == NO_GROUP {
        after.whole = Version { random: (cx.rng.next_u64() | 1).to_be_bytes(), ..before.whole };
        changes.fence(before.whole.fence(WHOLE_QUEUE));
        changes.put(Table::Version, RecordKey::Group(WHOLE_QUEUE), Bytes::copy_from_slice(&after.whole.bytes()));
    }
}

/// The breakers of each queue; those of a queue that is not there are as new.
pub(crate) async fn breakers<S: Reads>(
    store: &mut S, cx: &CallContext<'_>, queues: &[QueueName],
) -> Result<Vec<BreakerViews>> {
    let mut views = Vec::with_capacity(queues.len());
    for queue in queues {
        let Some((facts, work)) = view_of(store, cx, queue, NO_GROUP).await? else {
            views.push(BreakerViews::default());
            continue;
        };
        let mut keys = Vec::new();
        if facts.keys > 0 {
            for (_, group) in breaker_keys::groups(store, queue).await? {
                keys.extend(view_of(store, cx, queue, group).await?.map(|(_, view)| view));
            }
            keys.sort_by(|a, b| a.breaker.key.cmp(&b.breaker.key));
        }
        views.push(BreakerViews { work, keys, dead_letters: view_of_dead_letters(&facts) });
    }
    Ok(views)
}

/// The breaker of a group, and the facts that it was read with. None: there is no such queue.
pub(crate) async fn view_of<S: Reads>(
    store: &mut S, cx: &CallContext<'_>, queue: &QueueName, group: u16,
) -> Result<Option<(QueueFacts, BreakerView)>> {
    let Some(facts) = QueueFacts::read_group(store, queue, group).await? else { return Ok(None) };
    let (now, epoch) = (store.now(), epoch(group, &facts.breaker));
    let [sums] = OutcomeFacts::reads(epoch);
    let mut found = ask(store, queue, &[sums, breaker_keys::ready_in(group)]).await?;
    let outcomes = OutcomeFacts::found(&facts, epoch, &mut found, now)?;
    let view = view(&facts, &outcomes.outcome_stats, found.number(), cx.settings.queue(queue), now);
    Ok(Some((facts, view)))
}

fn view(facts: &QueueFacts, stats: &OutcomeStats, ready: u64, settings: &QueueSettings, now: Timestamp) -> BreakerView {
    let probes = probes_out(&settings.breaker, facts.probes.iter().copied(), now).0;
    let outage = facts.breaker.outage.as_ref();
    let per_second = outage.filter(|_| facts.took_ms > 0.0).map(|outage| outage.recovery.per_second(facts.took_ms));
    let gates = [facts.whole_gate(settings), facts.gate(settings)];
    let max_in_flight = gates.iter().filter_map(|gate| gate.max_in_flight).min();
    let rates = gates.iter().filter_map(|gate| gate.max_rate).map(|rate| rate.per_second());
    let limits = (max_in_flight, rates.reduce(f64::min));
    let recovery = facts.breaker.recovery();
    BreakerView {
        breaker: facts.breaker.clone(),
        failures: stats.streak,
        probes,
        held: ready,
        uncounted: if outage.is_some() { stats.uncounted } else { 0 },
        per_second: per_second.unwrap_or_default(),
        drain: recovery.and_then(|recovery| recovery.drain(ready, facts.took_ms, &stats.usual, limits)),
        degraded: stats.degraded(now),
        usual_share: stats.usual.share,
    }
}

/// Tells that the breaker of a group has made a transition, with what there is to say of it.
pub(crate) async fn tell<S: Reads>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, facts: &QueueFacts, stats: &OutcomeStats,
) {
    // It has happened, whether or not it is known how many jobs wait.
    let ready = ask(store, queue, &[breaker_keys::ready_in(facts.group)]).await;
    let ready = ready.map_or(0, |mut found| found.number());
    let now = store.now();
    let view = view(facts, stats, ready, &cx.queue(queue), now);
    cx.breaker_moved(queue, BreakerKind::Work, view, now);
}

/// Tells that a queue is degraded from now on, or no longer.
pub(crate) fn tell_degraded(
    cx: &mut CallContext<'_>, queue: &QueueName, breaker: &Breaker, stats: [&OutcomeStats; 2], now: Timestamp,
) {
    let [before, after] = stats;
    let degraded = after.degraded(now);
    let begins = before.degraded_since.is_none() && after.degraded_since.is_some() && degraded.is_some();
    let ends = before.degraded_since.is_some() && after.degraded_since.is_none();
    if (begins || ends) && cx.wanted.has(EventKind::Breaker) {
        let name = BreakerName { queue: queue.clone(), kind: BreakerKind::Work, key: breaker.key.clone() };
        let usual_share = after.usual.share;
        cx.events.push(Event::Degraded(DegradedEvent { name, degraded, usual_share }));
    }
}

fn view_of_dead_letters(facts: &QueueFacts) -> BreakerView {
    let queue = &facts.queue;
    BreakerView { breaker: queue.dead_letters.clone(), failures: queue.full_in_a_row, ..BreakerView::default() }
}

/// When a breaker changes by the clock: probes begin, or a step of its ramp ends.
pub(crate) fn next_look(breaker: &Breaker, settings: &BreakerSettings, now: Timestamp) -> Option<Timestamp> {
    let outage = breaker.outage.as_ref().filter(|_| breaker.forced.is_none())?;
    Some(if outage.recovering { outage.recovery.next_look(settings, now) } else { outage.probe_at })
}

/// An operator forces or resets a breaker.
pub(crate) async fn set_breaker<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, name: &BreakerName, order: &BreakerOrder,
) -> refusal::Result<BreakerView> {
    let queue = &name.queue;
    let mut rounds = Rounds::default();
    loop {
        rounds.next()?;
        let unknown = || Refusal::BreakerNotFound { name: name.to_string() };
        let mut before = meant(store, cx, queue).await.map_err(|error| match error {
            Error::Refused(Refusal::QueueNotFound { .. }) => unknown().into(),
            other => other,
        })?;
        if !name.key.is_empty() {
            // One that is forced may be that of jobs to come.
            let group = match order {
                BreakerOrder::Force { .. } => {
                    let keys = KeyGroups::of(store, cx, queue, [name.key.as_str()].into_iter()).await?;
                    Some(keys.unwrap_or_default().group(Some(&name.key))).filter(|group| *group != NO_GROUP)
                }
                BreakerOrder::Reset => breaker_keys::find(store, queue, &name.key).await?,
            };
            let Some(group) = group else { return Err(unknown().into()) };
            let Some(facts) = QueueFacts::read_group(store, queue, group).await? else { continue };
            before = facts;
        }
        let now = store.now();
        let mut after = before.clone();
        let breaker = match name.kind {
            BreakerKind::Work => &mut after.breaker,
            BreakerKind::DeadLetters => {
                after.queue.full_in_a_row = 0;
                &mut after.queue.dead_letters
            }
        };
        match order {
            BreakerOrder::Force { open, reason } => breaker.force(*open, reason.clone(), now),
            BreakerOrder::Reset => breaker.reset(now),
        }
        if let Some((after, ready)) = put_breakers(store, cx, queue, &before, after).await? {
            let stats = OutcomeStats::new(after.breaker.usual.clone(), now);
            return Ok(match name.kind {
                BreakerKind::Work => view(&after, &stats, ready, &cx.queue(queue), now),
                BreakerKind::DeadLetters => view_of_dead_letters(&after),
            });
        }
    }
}

// ---- pauses ----

/// Pauses a queue, in place of an earlier pause, or with `None` resumes it. A pause makes the queue if need be: its jobs may come
/// later.
pub(crate) async fn pause<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, pause: Option<&NewPause>,
) -> refusal::Result<()> {
    let resumes_configured = pause.is_none() && cx.settings.queues.contains_key(queue);
    if resumes_configured && QueueFacts::read(store, queue).await?.is_none() {
        // What has not been made is not paused either.
        return Ok(());
    }
    let mut rounds = Rounds::default();
    loop {
        rounds.next()?;
        if pause.is_some() {
            make(store, cx, queue).await?;
        }
        let before = meant(store, cx, queue).await?;
        let now = store.now();
        let next = pause.map(|pause| Pause {
            until: pause.duration.map(|duration| now.after(duration)),
            reason: pause.reason.clone(),
        });
        if set_pause(store, cx, queue, &before, next).await? {
            return Ok(());
        }
    }
}

/// False: the facts were old.
pub(crate) async fn set_pause<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, before: &QueueFacts, pause: Option<Pause>,
) -> Result<bool> {
    let mut after = before.clone();
    let resumes = pause.is_none();
    after.queue.pause = pause;
    let record = records::queue(&after.queue);
    let state = if resumes { GroupState::Free } else { GroupState::Held };
    after.whole = Version { state, random: (cx.rng.next_u64() | 1).to_be_bytes(), ..before.whole };
    let mut changes = Changes::default();
    changes.fence(before.queue_fence());
    changes.fence(before.whole.fence(WHOLE_QUEUE));
    changes.put(Table::Queue, RecordKey::Only, record.clone());
    changes.put(Table::Version, RecordKey::Group(WHOLE_QUEUE), Bytes::copy_from_slice(&after.whole.bytes()));
    if resumes {
        changes.publish(Publish::Always);
    }
    let Applied::Done(done) = store.apply(queue, &changes.batch()).await? else {
        return Ok(false);
    };
    after.queue_record = Some(record);
    let now = store.now();
    if let Some(until) = after.paused_until() {
        cx.due(queue, until);
    }
    if resumes {
        // What has been waiting can be claimed from now on.
        cx.available(queue, &after, done.ready, now);
    }
    cx.memory.remember(queue, Arc::new(after));
    Ok(true)
}
