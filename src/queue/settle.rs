//! Settle: leases end or go on. The fence is the lease itself: only the one that is out can be settled.

mod extend;

use super::{
    breakers,
    context::{CallContext, after_some, epoch, inconsistent},
    facts::{LeaseFacts, OutcomeFacts, QueueFacts},
    outcome::{self, End},
    records::Whereabouts,
    state_changes::{Changes, Total},
};
use crate::{
    domain::{
        breaker::Guarded as BreakerKind, ids::QueueName, lease::Lease, settings::QueueSettings,
        time::Timestamp,
    },
    store::{
        Ack, Acked, LeaseLost, Nack, Settled, Settlements, StoreError,
        storage::{
            Applied, Batch, Counter, Fence, Found, Mark, NO_GROUP, Publish, Read, RecordKey,
            Storage, Table, Write, flag,
        },
    },
};
use bytes::Bytes;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// Items of one batch.
const BATCH_MAX: usize = 500;

/// Ends or prolongs leases, in the order acks, nacks, extends.
pub(crate) async fn settle<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    items: Settlements,
) -> Result<Settled, StoreError> {
    let Settlements { acks, nacks, extends } = items;
    let mut settled = Settled::default();
    let mut begun = false;
    if !acks.is_empty() {
        settled.acks = ack_all(store, cx, &acks).await?;
        begun = true;
    }
    if !nacks.is_empty() {
        let nacked = nack_all(store, cx, &nacks).await;
        settled.nacks = nacked.map_err(|error| after_some(error, begun))?;
        begun = true;
    }
    if !extends.is_empty() {
        let extended = extend::extend_all(store, cx, &extends).await;
        settled.extends = extended.map_err(|error| after_some(error, begun))?;
    }
    Ok(settled)
}

/// Items in batches of one queue, each with its place in the call. A job that comes twice is in a later batch: fences look
/// before anything is written.
fn batches<T>(items: &[T], lease: impl Fn(&T) -> &Lease) -> Vec<Vec<(usize, &T)>> {
    if let [item] = items {
        return vec![vec![(0, item)]];
    }
    type OfQueue<'i, T> = (&'i QueueName, HashSet<u64>, Vec<(usize, &'i T)>);
    let mut batches: Vec<OfQueue<'_, T>> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let Lease { queue, number, .. } = lease(item);
        let open = batches.iter_mut().rev().find(|(name, ..)| *name == queue);
        if let Some((_, numbers, batch)) = open
            && batch.len() < BATCH_MAX
            && numbers.insert(*number)
        {
            batch.push((at, item));
        } else {
            batches.push((queue, HashSet::from([*number]), vec![(at, item)]));
        }
    }
    batches.into_iter().map(|(_, _, batch)| batch).collect()
}

/// Answers of batches, in the order of the call.
struct Answers<T>(Vec<Option<T>>);

impl<T> Answers<T> {
    fn new(count: usize) -> Self {
        Self(std::iter::repeat_with(|| None).take(count).collect())
    }

    fn set(&mut self, at: usize, answer: T) {
        self.0[at] = Some(answer);
    }

    fn all(self) -> Result<Vec<T>, StoreError> {
        let all: Option<Vec<T>> = self.0.into_iter().collect();
        all.ok_or_else(|| inconsistent("a settlement has no answer"))
    }
}

// ---- ack ----

type AckAnswer = Result<Acked, LeaseLost>;

async fn ack_all<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    acks: &[Ack],
) -> Result<Vec<AckAnswer>, StoreError> {
    let mut answers = Answers::new(acks.len());
    let mut begun = false;
    for batch in batches(acks, |ack| &ack.lease) {
        let queue = batch[0].1.lease.queue.clone();
        let done = ack_batch(store, cx, &queue, batch, &mut answers).await;
        done.map_err(|error| after_some(error, begun))?;
        begun = true;
    }
    answers.all()
}

/// What an Ack has to look at first; most need nothing.
struct AckFacts {
    queue: QueueFacts,
    outcomes: OutcomeFacts,
    leases: HashMap<u64, LeaseFacts>,
}

async fn ack_batch<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    mut acks: Vec<(usize, &Ack)>,
    answers: &mut Answers<AckAnswer>,
) -> Result<(), StoreError> {
    let settings = cx.queue(queue);
    let kept = settings.completed_retention.is_some();
    // Keys that other jobs have, which only damage explains: they are left alone.
    let mut foreign_keys = HashSet::new();
    while !acks.is_empty() {
        let looks = |lease: &Lease| kept || lease.flags & (flag::LOOK | flag::PROBE) != 0;
        let facts = if acks.iter().any(|(_, ack)| looks(&ack.lease)) {
            ack_facts(store, queue, acks.iter().map(|(_, ack)| &ack.lease).filter(|it| looks(it)))
                .await?
        } else {
            None
        };
        let mark = cx.events.len();
        let now = store.now();
        let plan = AckPlan::new(&acks, facts.as_ref(), &foreign_keys, &settings, queue, now, cx);
        let AckPlan { batch, owners, after, moved, frees_a_slot } = plan;
        match store.apply(queue, &batch).await? {
            Applied::Done(done) => {
                for (at, _) in &acks {
                    answers.set(*at, Ok(Acked { already_gone: false }));
                }
                if let Some(after) = after {
                    if moved || frees_a_slot {
                        cx.available(queue, &after, done.ready, now);
                    }
                    cx.memory.remember(queue, Arc::new(after));
                }
                if let Some(retention) = settings.completed_retention {
                    cx.due(queue, now.after(retention));
                }
                cx.lease_ended();
                return Ok(());
            }
            Applied::Changed(failed) => {
                cx.events.truncate(mark);
                let mut gone = HashSet::new();
                for (fence, _) in failed {
                    match owners.get(fence) {
                        Some(Owner::Lease(number)) => drop(gone.insert(*number)),
                        Some(Owner::Key(number)) => drop(foreign_keys.insert(*number)),
                        // The breaker is another: read it again.
                        Some(Owner::Breaker) | None => {}
                    }
                }
                let is_gone = |ack: &Ack| gone.contains(&ack.lease.number);
                for (at, ack) in acks.iter().filter(|(_, ack)| is_gone(ack)) {
                    answers.set(*at, ack_without_lease(store, &ack.lease).await?);
                }
                acks.retain(|(_, ack)| !is_gone(ack));
            }
            Applied::NoQueue => {
                for (at, _) in &acks {
                    answers.set(*at, Ok(Acked { already_gone: true }));
                }
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn ack_facts<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    leases: impl Iterator<Item = &Lease>,
) -> Result<Option<AckFacts>, StoreError> {
    let leases: Vec<&Lease> = leases.collect();
    let epoch = leases.iter().map(|lease| lease.epoch).max().unwrap_or_default();
    let mut reads: Vec<Read> = QueueFacts::reads().into();
    reads.extend(OutcomeFacts::reads(epoch));
    reads.extend(leases.iter().flat_map(|lease| LeaseFacts::reads(lease.number)));
    let Some(found) = store.read(queue, &reads).await? else { return Ok(None) };
    let mut found = found.into_iter();
    let facts = QueueFacts::found(&mut found)?;
    let outcomes = OutcomeFacts::found(epoch, &mut found)?;
    let mut by_number = HashMap::with_capacity(leases.len());
    for lease in leases {
        if let (Some(facts), _) = LeaseFacts::found(queue, lease.number, &mut found)? {
            by_number.insert(lease.number, facts);
        }
    }
    Ok(Some(AckFacts { queue: facts, outcomes, leases: by_number }))
}

/// Whose a fence is.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Lease(u64),
    Key(u64),
    Breaker,
}

struct AckPlan {
    batch: Batch,
    /// Of each fence.
    owners: Vec<Owner>,
    /// The queue after it, where it was looked at.
    after: Option<QueueFacts>,
    moved: bool,
    frees_a_slot: bool,
}

impl AckPlan {
    fn new(
        acks: &[(usize, &Ack)],
        facts: Option<&AckFacts>,
        foreign_keys: &HashSet<u64>,
        settings: &QueueSettings,
        queue: &QueueName,
        now: Timestamp,
        cx: &mut CallContext<'_>,
    ) -> Self {
        let mut changes = Changes::default();
        let mut owners = Vec::with_capacity(acks.len());
        let mut epochs: Vec<(u32, i64)> = Vec::with_capacity(1);
        let mut retried = 0;
        let mut probes = Vec::new();
        for (_, ack) in acks {
            let Lease { number, flags, .. } = ack.lease;
            let key = RecordKey::Number(number);
            let fence = Bytes::copy_from_slice(&ack.lease.fence());
            let lease = facts.and_then(|facts| facts.leases.get(&number));
            let lease = lease.filter(|facts| facts.lease.lease.fence()[..] == fence[..]);
            match lease {
                // A job that is kept is written again from what the lease says.
                Some(facts) if settings.completed_retention.is_some() => {
                    changes.fence(facts.fence());
                }
                _ => changes.fence(Fence::Begins(Table::Lease, key, fence)),
            }
            owners.push(Owner::Lease(number));
            changes.end_lease(&ack.lease);
            match lease {
                Some(facts) => {
                    if facts.job.spec.key.is_some() && !foreign_keys.contains(&number) {
                        let job = &facts.job;
                        let free_at = job.spec.enqueued_at.after(settings.key_retention);
                        changes.finish_key(job, free_at, now);
                        owners.push(Owner::Key(number));
                    }
                    if settings.completed_retention.is_some() {
                        changes.complete(facts, &ack.note, &ack.result, now);
                    } else {
                        changes.unwatch_deadline(&facts.job);
                        if flags & flag::OWN_ID != 0 {
                            changes.free_id(&facts.job.spec.id.to_string(), number);
                            owners.push(Owner::Key(number));
                        }
                        changes.remove_job(number, flags | facts.job.traits);
                    }
                }
                None => {
                    if let Some(id) = ack.lease.own_id.as_deref() {
                        changes.free_id(id, number);
                        owners.push(Owner::Lease(number));
                    }
                    changes.remove_job(number, flags);
                }
            }
            retried += u64::from(flags & flag::RETRIED != 0);
            if flags & flag::PROBE != 0 {
                probes.push(&ack.lease);
            }
            match epochs.iter_mut().find(|(epoch, _)| *epoch == ack.lease.epoch) {
                Some((_, count)) => *count += 1,
                None => epochs.push((ack.lease.epoch, 1)),
            }
        }
        changes.add(Total::Completed, acks.len() as u64);
        changes.add(Total::SuccessfulRetries, retried);
        changes.add(Total::RetriedFinished, retried);
        for (epoch, count) in epochs {
            changes.write(Write::Add(Counter::Succeeded(epoch), count));
            changes.write(Write::Raise(Mark::LastSuccess(epoch), now));
        }
        let mut plan = Self {
            batch: Batch::default(),
            owners,
            after: None,
            moved: false,
            frees_a_slot: !probes.is_empty(),
        };
        if let (false, Some(facts)) = (probes.is_empty(), facts) {
            plan.probes_succeeded(&mut changes, &probes, facts, settings, queue, now, cx);
        }
        plan.batch = changes.batch();
        plan
    }

    /// Enough successful probes close the breaker.
    #[expect(clippy::too_many_arguments, reason = "the facts of one decision")]
    fn probes_succeeded(
        &mut self,
        changes: &mut Changes,
        probes: &[&Lease],
        facts: &AckFacts,
        settings: &QueueSettings,
        queue: &QueueName,
        now: Timestamp,
        cx: &mut CallContext<'_>,
    ) {
        let mut after = facts.queue.clone();
        let mut tally = facts.outcomes.tally.clone();
        let transitions = after.breaker.transitions;
        let mut changed = false;
        for lease in probes {
            let sent = outcome::sent(lease, &after.breaker);
            changed |= after.breaker.succeed(&mut tally, sent, &settings.breaker, now);
            after.probes.retain(|started| *started != lease.started_at);
        }
        if changed {
            changes.fence(facts.queue.version.fence(NO_GROUP));
            self.owners.push(Owner::Breaker);
            breakers::put_breaker(changes, &mut after, cx);
        }
        self.moved = after.breaker.transitions != transitions;
        if self.moved {
            changes.fence(facts.outcomes.fence());
            self.owners.push(Owner::Breaker);
            let record = facts.outcomes.record(tally, epoch(&after.breaker));
            changes.put(Table::Outcomes, RecordKey::Only, record);
            cx.breaker_moved(queue, BreakerKind::Work, &after.breaker, now);
            changes.publish(Publish::Always);
        }
        self.after = Some(after);
    }
}

/// An Ack whose lease is not out: the job is gone, or was completed by this very lease, or the lease is lost.
async fn ack_without_lease<S: Storage>(
    store: &mut S,
    lease: &Lease,
) -> Result<AckAnswer, StoreError> {
    let key = || RecordKey::Number(lease.number);
    let mut reads = vec![Read::Record(Table::Move, key())];
    reads.extend(LeaseFacts::reads(lease.number));
    let Some(found) = store.read(&lease.queue, &reads).await? else {
        return Ok(Ok(Acked { already_gone: true }));
    };
    let mut found = found.into_iter();
    let moved = found.next().and_then(Found::record).is_some();
    let (out, job) = LeaseFacts::found(&lease.queue, lease.number, &mut found)?;
    if !job.exists {
        // A job that was moved runs elsewhere.
        return Ok(if moved { Err(LeaseLost) } else { Ok(Acked { already_gone: true }) });
    }
    let completed = job.history.as_ref().is_some_and(|history| {
        history.whereabouts == Whereabouts::Completed
            && history.progress.deliveries == lease.delivery
            && history.nonce == lease.nonce
    });
    Ok(if completed && out.is_none() { Ok(Acked { already_gone: true }) } else { Err(LeaseLost) })
}

// ---- nack ----

async fn nack_all<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    nacks: &[Nack],
) -> Result<Vec<Result<crate::domain::job::Attempt, LeaseLost>>, StoreError> {
    let mut answers = Answers::new(nacks.len());
    let mut begun = false;
    for batch in batches(nacks, |nack| &nack.lease) {
        let queue = batch[0].1.lease.queue.clone();
        let end = |(_, nack): &(usize, &Nack)| End {
            number: nack.lease.number,
            epoch: nack.lease.epoch,
            token: Some(nack.lease.clone()),
            ending: nack.ending.clone(),
            checkpoint: nack.checkpoint.clone(),
        };
        let ends: Vec<_> = batch.iter().map(end).collect();
        let ended = outcome::end_all(store, cx, &queue, &ends).await;
        let ended = ended.map_err(|error| after_some(error, begun))?;
        begun = true;
        for ((at, nack), ended) in batch.into_iter().zip(ended) {
            let answer = match ended {
                Some(ended) => Ok(ended.attempt),
                // The answer to a Nack that was given before, until the job is delivered again.
                None => {
                    let said = outcome::ended_under(store, &nack.lease).await?;
                    said.filter(|attempt| attempt.nacked).ok_or(LeaseLost)
                }
            };
            answers.set(at, answer);
        }
    }
    answers.all()
}
