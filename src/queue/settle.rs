//! Settle: leases end or go on. The fence is the lease itself: only the one that is out can be settled.

mod extend;
mod late_ack;
mod named_once;

pub(super) use named_once::named_once;

use super::answers::ask;
use super::breaker_keys::KeyGroups;
use super::breakers;
use super::context::{CallContext, epoch, inconsistent};
use super::facts::{DeliveryFacts, LeaseFacts, QueueFacts};
use super::outcome::{self, End};
use super::records;
use super::refusal::Refusal;
use super::state_changes::{Changes, ID_HELD, Total};
use crate::domain::{Attempt, Breaker, Lease, OutcomeStats, QueueName, QueueSettings, Successes, Timestamp};
use crate::queue::{Ack, Acked, Nack, Settled, Settlements};
use crate::store::Result;
use crate::store::storage::{
    Applied, Fence, NO_GROUP, OutcomeSums, Publish, Read, RecordKey, Storage, Table, Write, flag, group_of,
};
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::Arc;

/// Items of one batch.
const BATCH_MAX: usize = 500;

/// Ends or prolongs leases, in the order acks, nacks, extensions.
pub(crate) async fn settle<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, items: Settlements) -> Result<Settled> {
    let Settlements { acks, nacks, extensions } = &items;
    let (mut acked, mut nacked, mut extended) = (unanswered(acks), unanswered(nacks), unanswered(extensions));
    for batch in batches(acks, |ack| &ack.lease, guarding_group) {
        ack_batch(store, cx, batch, &mut acked).await?;
    }
    for batch in batches(nacks, |nack| &nack.lease, |_| NO_GROUP) {
        nack_batch(store, cx, batch, &mut nacked).await?;
    }
    for batch in batches(extensions, |extend| &extend.lease, |_| NO_GROUP) {
        extend::extend_batch(store, cx, batch, &mut extended).await?;
    }
    Ok(Settled { acks: all(acked)?, nacks: all(nacked)?, extensions: all(extended)? })
}

/// Items in batches of one queue and group, each with its place in the call. A job that comes twice is in a later batch: fences
/// look before anything is written.
fn batches<T>(items: &[T], lease: impl Fn(&T) -> &Lease, group: impl Fn(&Lease) -> u16) -> Vec<Vec<(usize, &T)>> {
    if let [item] = items {
        return vec![vec![(0, item)]];
    }
    type OfQueue<'i, T> = ((&'i QueueName, u16), HashSet<u64>, Vec<(usize, &'i T)>);
    let mut batches: Vec<OfQueue<'_, T>> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let lease = lease(item);
        let of = (&lease.queue, group(lease));
        let open = batches.iter_mut().rev().find(|(known, ..)| *known == of);
        if let Some((_, numbers, batch)) = open
            && batch.len() < BATCH_MAX
            && numbers.insert(lease.number)
        {
            batch.push((at, item));
        } else {
            batches.push((of, HashSet::from([lease.number]), vec![(at, item)]));
        }
    }
    batches.into_iter().map(|(_, _, batch)| batch).collect()
}

/// The group whose breaker is told of an Ack; the others are counted in sums.
fn guarding_group(lease: &Lease) -> u16 {
    if lease.flags & (flag::PROBE | flag::RAMP) != 0 { group_of(lease.epoch) } else { NO_GROUP }
}

/// Answers of batches, in the order of the call.
type Answers<T> = [Option<T>];

fn unanswered<T, A>(items: &[T]) -> Vec<Option<A>> {
    items.iter().map(|_| None).collect()
}

fn all<T>(answers: Vec<Option<T>>) -> Result<Vec<T>> {
    let all: Option<Vec<T>> = answers.into_iter().collect();
    all.ok_or_else(|| inconsistent("a settlement has no answer"))
}

// ---- ack ----

type AckAnswer = Result<Acked, Refusal>;

async fn ack_batch<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, mut acks: Vec<(usize, &Ack)>, answers: &mut Answers<AckAnswer>,
) -> Result<()> {
    let (queue, group) = (&acks[0].1.lease.queue, guarding_group(&acks[0].1.lease));
    let settings = cx.queue(queue);
    let Some(named) = NamedEpochs::of(store, cx, queue, &acks).await? else {
        acks.iter().for_each(|(at, _)| answers[*at] = Some(Ok(Acked { already_gone: true })));
        return Ok(());
    };
    let kept = settings.completed_retention.is_some();
    // Most need nothing but their token.
    let looks = |lease: &Lease| kept || lease.flags & (flag::LOOK | flag::PROBE | flag::RAMP) != 0;
    // Ids that other jobs have, which only damage explains: they are left alone.
    let mut foreign_ids = HashSet::new();
    while !acks.is_empty() {
        let looked_at = acks.iter().map(|(_, ack)| &ack.lease).filter(|lease| looks(lease));
        let facts = match looked_at.clone().next() {
            Some(_) => {
                let leases = looked_at.map(|lease| (lease.number, lease.epoch));
                DeliveryFacts::read(store, queue, group, leases).await?
            }
            None => None,
        };
        let (mark, now) = (cx.events.len(), store.now());
        let mut plan = AckPlan {
            changes: Changes::default(),
            owners: Vec::with_capacity(acks.len()),
            foreign_ids: &foreign_ids,
            settings: &settings,
            now,
        };
        let mut leases = facts.iter().flat_map(|facts| &facts.leases);
        for (_, ack) in &acks {
            let facts = if looks(&ack.lease) { leases.next() } else { None };
            plan.end(ack, facts.and_then(Option::as_ref));
        }
        // As far as this process knows.
        let known = cx.memory.facts(queue);
        let counted = plan.count(&acks, &named, |epoch| known.as_ref().is_some_and(|facts| facts.is_over(epoch)));
        let guarded = flag::PROBE | flag::RAMP;
        let told = acks.iter().map(|(_, ack)| *ack).filter(|ack| named.epoch(ack).is_none());
        let probes = told.map(|ack| &ack.lease).filter(|lease| lease.flags & guarded != 0);
        let after = match facts {
            Some(facts) if probes.clone().next().is_some() => Some(plan.looked_at(probes, facts, queue, cx)),
            _ => None,
        };
        let limits = settings.max_in_flight.is_some() || !settings.breaker_keys.is_empty();
        let frees_a_slot = after.is_some() || limits;
        if frees_a_slot {
            plan.changes.publish(Publish::Always);
        }
        let AckPlan { changes, owners, .. } = plan;
        match store.apply(queue, &changes.batch()).await? {
            Applied::Done(done) => {
                cx.applied();
                for (at, _) in &acks {
                    answers[*at] = Some(Ok(Acked { already_gone: false }));
                }
                if let Some((after, moved)) = after {
                    if let Some(stats) = moved {
                        breakers::tell(store, cx, queue, &after, &stats).await;
                    }
                    cx.available(queue, &after, done.ready, now);
                    cx.memory.remember(queue, Arc::new(after));
                } else if frees_a_slot {
                    QueueFacts::tell_ready(store, queue, cx, done.ready, now).await?;
                }
                for epoch in counted {
                    if cx.memory.bucket_is_due(queue, group_of(epoch), now) {
                        cx.due(queue, now);
                    }
                }
                match settings.completed_retention {
                    Some(retention) => cx.due(queue, now.after(retention)),
                    None if acks.iter().any(|(_, ack)| ack.lease.flags & flag::OWN_ID != 0) => {
                        cx.due(queue, now.after(ID_HELD));
                    }
                    None => {}
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
                        Some(Owner::Id(number)) => drop(foreign_ids.insert(*number)),
                        // The breaker is another: read it again.
                        Some(Owner::Breaker) | None => {}
                    }
                }
                let is_gone = |ack: &Ack| gone.contains(&ack.lease.number);
                for (at, ack) in acks.iter().filter(|(_, ack)| is_gone(ack)) {
                    answers[*at] = Some(late_ack::ack_without_lease(store, cx, ack, &settings).await?);
                }
                acks.retain(|(_, ack)| !is_gone(ack));
            }
            Applied::NoQueue => {
                for (at, _) in &acks {
                    answers[*at] = Some(Ok(Acked { already_gone: true }));
                }
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Whose a fence is.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Lease(u64),
    Id(u64),
    Breaker,
}

struct AckPlan<'p> {
    changes: Changes,
    /// Of each fence.
    owners: Vec<Owner>,
    foreign_ids: &'p HashSet<u64>,
    settings: &'p QueueSettings,
    now: Timestamp,
}

impl AckPlan<'_> {
    /// `facts`: where the lease was looked at, and is out.
    fn end(&mut self, ack: &Ack, facts: Option<&LeaseFacts>) {
        let Lease { number, flags, .. } = ack.lease;
        let kept = self.settings.completed_retention.is_some();
        let fence = ack.lease.fence();
        let facts = facts.filter(|facts| facts.lease.lease.fence() == fence);
        self.changes.fence(match facts {
            // A job that is kept is written again from what the lease says.
            Some(facts) if kept => facts.fence(),
            _ => Fence::Begins(Table::Lease, RecordKey::Number(number), Bytes::copy_from_slice(&fence)),
        });
        self.owners.push(Owner::Lease(number));
        self.changes.end_lease(&ack.lease);
        let Some(LeaseFacts { job, .. }) = facts else {
            if let Some(id) = ack.lease.own_id.as_deref() {
                self.changes.hold_id(RecordKey::Text(id.into()), number, self.now);
                self.owners.push(Owner::Lease(number));
            }
            return self.changes.remove_job(number, flags);
        };
        if let Some(facts) = facts.filter(|_| kept) {
            return self.changes.complete(facts, &ack.note, &ack.result, self.now);
        }
        self.changes.unwatch_deadline(job);
        if flags & flag::OWN_ID != 0 && !self.foreign_ids.contains(&number) {
            self.changes.hold_id(RecordKey::Text(job.spec.id.to_string().into()), number, self.now);
            self.owners.push(Owner::Id(number));
        }
        self.changes.remove_job(number, flags | job.traits);
    }

    /// The epochs under which they were counted: none that is known to be over.
    fn count(&mut self, acks: &[(usize, &Ack)], named: &NamedEpochs, is_over: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut epochs: Vec<(u32, Successes)> = Vec::with_capacity(1);
        let mut retried = 0;
        for (_, ack) in acks {
            let lease = &ack.lease;
            retried += u64::from(lease.flags & flag::RETRIED != 0);
            // The breaker of a probe, or of one under the ramp, is told of each.
            let told = lease.flags & (flag::PROBE | flag::RAMP) != 0;
            let epoch = match named.epoch(ack) {
                Some(epoch) => epoch,
                None => (!told).then_some(lease.epoch),
            };
            let Some(of) = epoch.filter(|epoch| !is_over(*epoch)) else { continue };
            let success = Successes::of(lease.started_at, self.now, lease.flags & flag::FAILED != 0);
            match epochs.iter_mut().find(|(epoch, _)| *epoch == of) {
                Some((_, sums)) => sums.add(success),
                None => epochs.push((of, success)),
            }
        }
        self.changes.add(Total::Completed, acks.len() as u64);
        self.changes.add(Total::SuccessfulRetries, retried);
        self.changes.add(Total::RetriedFinished, retried);
        let counted = epochs.iter().map(|(epoch, _)| *epoch).collect();
        for (epoch, Successes { count: succeeded, retried, took_ms, ln_took }) in epochs {
            let sums = OutcomeSums { succeeded, retried, took_ms, ln_took };
            self.changes.write(Write::Count { epoch, sums, at: self.now });
        }
        counted
    }

    /// Probes and jobs under the ramp have succeeded: the breaker is told of each. The queue after them comes back, and what is
    /// known of outcomes where that was a transition.
    fn looked_at<'l>(
        &mut self, leases: impl Iterator<Item = &'l Lease>, facts: DeliveryFacts, queue: &QueueName,
        cx: &mut CallContext<'_>,
    ) -> (QueueFacts, Option<OutcomeStats>) {
        let DeliveryFacts { queue: mut after, outcomes, .. } = facts;
        let mut stats = outcomes.outcome_stats.clone();
        let (transitions, version) = (after.breaker.transitions, after.version);
        let mut changed = false;
        for lease in leases {
            let epoch = outcome::epoch_of(lease, &after.breaker);
            changed |= after.breaker.succeed(&mut stats, epoch, lease.started_at, &self.settings.breaker, self.now);
            after.probes.retain(|started| *started != lease.started_at);
        }
        let recovers = after.breaker.outage.as_ref().filter(|outage| outage.recovering);
        if recovers.is_some_and(|it| it.recovery.step_is_over(&stats.step, &stats.usual, self.now)) {
            cx.due(queue, self.now);
        }
        if changed {
            self.changes.fence(version.fence(after.group));
            self.owners.extend([Owner::Breaker; 2]);
            breakers::put_breaker(&mut self.changes, &mut after, queue, cx);
        }
        if stats != outcomes.outcome_stats {
            self.changes.fence(outcomes.fence());
            self.owners.push(Owner::Breaker);
            outcomes.put(stats.clone(), &mut after, &mut self.changes);
        }
        let moved = after.breaker.transitions != transitions;
        if moved && let Some(at) = breakers::next_look(&after.breaker, &self.settings.breaker, self.now) {
            cx.due(queue, at);
        }
        (after, moved.then_some(stats))
    }
}

/// The breakers of the keys that Acks name.
#[derive(Default)]
struct NamedEpochs {
    groups: KeyGroups,
    breakers: Vec<(u16, Breaker)>,
}

impl NamedEpochs {
    /// None: there is no such queue.
    async fn of<S: Storage>(
        store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, acks: &[(usize, &Ack)],
    ) -> Result<Option<Self>> {
        let keys: HashSet<_> =
            acks.iter().map(|(_, ack)| ack.breaker_key.as_str()).filter(|it| !it.is_empty()).collect();
        if keys.is_empty() {
            return Ok(Some(Self::default()));
        }
        let Some(groups) = KeyGroups::of(store, cx, queue, keys.iter().copied()).await? else { return Ok(None) };
        let numbers: Vec<_> = keys.iter().map(|key| groups.group(Some(key))).collect();
        let read = |group: &u16| Read::Record(Table::Breaker, RecordKey::Group(*group));
        let mut found = ask(store, queue, &numbers.iter().map(read).collect::<Vec<_>>()).await?;
        let mut breakers = Vec::with_capacity(numbers.len());
        for group in numbers {
            breakers.push((group, found.parse(records::read_breaker)?.unwrap_or_default()));
        }
        Ok(Some(Self { groups, breakers }))
    }

    /// Where an Ack counts that names another key than its delivery had. None: under its own epoch. None inside: nowhere, as the
    /// delivery began before the last transition.
    fn epoch(&self, ack: &Ack) -> Option<Option<u32>> {
        let named = Some(ack.breaker_key.as_str()).filter(|key| !key.is_empty())?;
        let group = self.groups.group(Some(named));
        if group == group_of(ack.lease.epoch) {
            return None;
        }
        let (_, breaker) = self.breakers.iter().find(|(known, _)| *known == group)?;
        let current = breaker.epoch_at(ack.lease.started_at).transitions == breaker.transitions;
        Some(current.then(|| epoch(group, breaker)))
    }
}

// ---- nack ----

async fn nack_batch<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, nacks: Vec<(usize, &Nack)>,
    answers: &mut Answers<Result<Attempt, Refusal>>,
) -> Result<()> {
    let ends = nacks.iter().map(|(_, nack)| End {
        number: nack.lease.number,
        epoch: nack.lease.epoch,
        token: Some(&nack.lease),
        outcome: &nack.outcome,
        checkpoint: &nack.checkpoint,
    });
    let ends: Vec<_> = ends.collect();
    let ended = outcome::end_all(store, cx, &nacks[0].1.lease.queue, &ends).await?;
    for ((at, nack), ended) in nacks.into_iter().zip(ended) {
        let answer = match ended {
            Some(ended) => Ok(ended.attempt),
            // The answer to a Nack that was given before, until the job is delivered again.
            None => {
                let said = outcome::ended_under(store, &nack.lease).await?;
                said.filter(|attempt| attempt.nacked).ok_or(Refusal::LeaseLost)
            }
        };
        answers[at] = Some(answer);
    }
    Ok(())
}
