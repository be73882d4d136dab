//! A delivery ends without success: Nack, release, interruption and expiry all come here. The only code that turns a retry
//! decision into writes.

use super::answers::{ask, ask_record};
use super::breaker_keys::{KeyGroups, ready_in};
use super::breakers::{self, put_breaker};
use super::context::CallContext;
use super::facts::{DeadFacts, DeliveryFacts, JobFacts, LeaseFacts, OutcomeFacts, QueueFacts, Rounds};
use super::records::{self, Whereabouts, read_if};
use super::state_changes::{Changes, DeadLetters, Total, attempt_part};
use crate::domain::{
    Attempt, Breaker, BreakerEpoch, BreakerFacts, EndedDelivery, JobId, Lease, Leased, Next, Outcome, OutcomeStats,
    QueueName, QueueSettings, RetryDecision, Rng, Signal, Timestamp, decide,
};
use crate::store::Result;
use crate::store::storage::{
    Applied, Done, Index, NO_GROUP, Publish, RecordKey, Storage, Table, flag, group_of, transitions_of,
};
use std::sync::Arc;

/// So often as one batch; from then on one batch for each delivery.
const JOINT_ROUNDS: usize = 2;

/// A delivery that ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'e> {
    pub(crate) number: u64,
    /// Of the breaker, when the job was handed out.
    pub(crate) epoch: u32,
    /// None: the lease that is out, if its time is over.
    pub(crate) token: Option<&'e Lease>,
    pub(crate) outcome: &'e Outcome,
    /// Empty: keeps the earlier one.
    pub(crate) checkpoint: &'e str,
}

impl End<'_> {
    /// The breaker key that its failure names.
    fn named_key(&self) -> Option<&str> {
        match self.outcome {
            Outcome::Failed { failure, .. } if !failure.breaker_key.is_empty() => Some(&failure.breaker_key),
            _ => None,
        }
    }

    fn is_of(&self, facts: &LeaseFacts, now: Timestamp) -> bool {
        match self.token {
            Some(token) => token.fence() == facts.lease.lease.fence(),
            None => facts.score <= now.millis() && facts.lease.tail.undelivered.is_none(),
        }
    }
}

/// What it led to.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) id: JobId,
    pub(crate) attempt: Attempt,
}

/// Ends deliveries of one queue, no job twice. `None`: its lease is not out.
pub(crate) async fn end_all<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, ends: &[End<'_>],
) -> Result<Vec<Option<Ended>>> {
    let mut all: Vec<_> = ends.iter().map(|_| None).collect();
    let mut left: Vec<usize> = (0..ends.len()).collect();
    for _ in 0..JOINT_ROUNDS {
        left = end_some(store, cx, queue, ends, left, &mut all).await?;
        if left.is_empty() {
            return Ok(all);
        }
    }
    // Another call ends the same deliveries, or counts failures at the same time: one by one they cannot fail together.
    for at in left {
        let (mut rounds, mut left) = (Rounds::default(), vec![at]);
        while !left.is_empty() {
            rounds.next()?;
            left = end_some(store, cx, queue, ends, left, &mut all).await?;
        }
    }
    Ok(all)
}

/// Those at these places, by the breakers that hear of them. Where the facts were old they come back.
async fn end_some<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, ends: &[End<'_>], places: Vec<usize>,
    all: &mut [Option<Ended>],
) -> Result<Vec<usize>> {
    let named = places.iter().filter_map(|at| ends[*at].named_key());
    let Some(keys) = KeyGroups::of(store, cx, queue, named).await? else { return Ok(Vec::new()) };
    let mut groups: Vec<(u16, Vec<usize>)> = Vec::with_capacity(1);
    for at in places {
        // Of the key that failed, or else that of the delivery.
        let group = match ends[at].named_key() {
            Some(key) => keys.group(Some(key)),
            None => group_of(ends[at].epoch),
        };
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, places)) => places.push(at),
            None => groups.push((group, vec![at])),
        }
    }
    let mut left = Vec::new();
    for (group, places) in groups {
        let some: Vec<_> = places.iter().map(|at| ends[*at]).collect();
        match try_end(store, cx, queue, (group, &keys), &some).await? {
            Some(ended) => places.into_iter().zip(ended).for_each(|(at, ended)| all[at] = ended),
            None => left.extend(places),
        }
    }
    Ok(left)
}

/// None: the facts were old.
async fn try_end<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, (group, keys): (u16, &KeyGroups), ends: &[End<'_>],
) -> Result<Option<Vec<Option<Ended>>>> {
    let none = || Ok(Some(ends.iter().map(|_| None).collect()));
    let leases = ends.iter().map(|end| (end.number, end.epoch));
    let Some(facts) = DeliveryFacts::read(store, queue, group, leases).await? else { return none() };
    let DeliveryFacts { queue: before, outcomes, mut leases } = facts;
    let now = store.now();
    for (end, lease) in ends.iter().zip(&mut leases) {
        lease.take_if(|facts| !end.is_of(facts, now));
    }
    if leases.iter().all(Option::is_none) {
        return none();
    }
    let mark = cx.events.len();
    let settings = cx.queue(queue);
    let (version, mut outcome_stats) = (before.version, outcomes.outcome_stats.clone());
    let queue_record = before.queue_record.clone();
    if before.breaker.outage.is_none() {
        outcome_stats.roll(now);
    }
    let mut plan =
        Plan { name: queue, settings: &settings, now, queue: before, outcome_stats, changed: false, moved: false };
    let mut decisions = Vec::with_capacity(ends.len());
    for (end, facts) in ends.iter().zip(&leases) {
        decisions.push(facts.as_ref().map(|facts| plan.decide(end, facts, cx)));
    }
    let dying = decisions.iter().zip(&leases).filter_map(|(decision, facts)| {
        let ends = matches!(decision.as_ref()?.next, Next::DeadLetter(_) | Next::Cancelled);
        facts.as_ref().filter(|_| ends).map(|facts| &facts.job)
    });
    let dying: Vec<&JobFacts> = dying.collect();
    let dead_facts =
        if dying.is_empty() { DeadFacts::default() } else { DeadFacts::read(store, queue, &dying).await? };
    let mut changes = Changes::default();
    // Every decision was made from how the breaker stands.
    changes.fence(version.fence(group));
    keys.enter(ends.iter().filter_map(End::named_key), &mut changes);
    plan.write_deliveries(&mut changes, (ends, keys), &leases, &decisions, dead_facts, cx);
    plan.write_breaker(&mut changes, &outcomes, cx);
    // A slot is free.
    let limited = |facts: &LeaseFacts| facts.lease.lease.flags & (flag::PROBE | flag::RAMP) != 0;
    let limits = settings.max_in_flight.is_some() || !settings.breaker_keys.is_empty();
    let slots = limits || leases.iter().flatten().any(limited);
    let made_ready = changes.made_ready || plan.moved || slots;
    if slots {
        changes.publish(Publish::Always);
    }
    match store.apply(queue, &changes.batch()).await? {
        Applied::Done(Done { ready, .. }) => {
            cx.applied();
            if plan.moved {
                breakers::tell(store, cx, queue, &plan.queue, &plan.outcome_stats).await;
            }
            let stats = [&outcomes.outcome_stats, &plan.outcome_stats];
            breakers::tell_degraded(cx, queue, &plan.queue.breaker, stats, now);
            if made_ready {
                // Of a group that is held the engine counts nothing, and the next probe may be among its jobs.
                let gate = plan.queue.gate(&settings);
                let probes = gate.admission(plan.queue.probes.iter().copied(), now).limit() > 0;
                let ready = match group != NO_GROUP && ready == 0 && probes {
                    true => ask(store, queue, &[ready_in(group)]).await?.number(),
                    false => ready,
                };
                cx.available(queue, &plan.queue, ready, now);
            }
            if group != NO_GROUP && plan.queue.queue_record != queue_record {
                cx.memory.forget_facts(queue);
            }
            cx.memory.remember(queue, Arc::new(plan.queue));
            cx.lease_ended();
            let ended = decisions.into_iter().zip(leases).map(|(decision, facts)| {
                let (attempt, id) = (decision?.attempt, facts?.job.spec.id);
                Some(Ended { id, attempt })
            });
            Ok(Some(ended.collect()))
        }
        Applied::Changed(_) => {
            cx.events.truncate(mark);
            Ok(None)
        }
        Applied::NoQueue => none(),
    }
}

/// What follows from the facts.
struct Plan<'p> {
    name: &'p QueueName,
    settings: &'p QueueSettings,
    now: Timestamp,
    /// After the decisions that were made.
    queue: QueueFacts,
    outcome_stats: OutcomeStats,
    /// The breaker is another.
    changed: bool,
    /// It made a transition.
    moved: bool,
}

impl Plan<'_> {
    fn decide(&mut self, end: &End<'_>, facts: &LeaseFacts, cx: &mut CallContext<'_>) -> RetryDecision {
        let (now, settings) = (self.now, self.settings);
        let lease = &facts.lease.lease;
        let breaker = &mut self.queue.breaker;
        let epoch = match group_of(lease.epoch) == self.queue.group {
            true => epoch_of(lease, breaker),
            false => breaker.epoch_at(lease.started_at),
        };
        let breaker_facts = BreakerFacts {
            state: breaker.state(&settings.breaker, now),
            counts: breaker.counts_failure(&self.outcome_stats, epoch, &settings.breaker, now),
            counts_hold: breaker.counts_hold(epoch, &settings.breaker, now),
            probe_at: breaker.probe_at(&settings.breaker, now),
            of_key: !breaker.key.is_empty(),
        };
        let leased = Leased {
            delivery: &facts.lease.delivery(facts.lease.expires_at(facts.score)),
            progress: &facts.progress(),
            policy: facts.job.spec.policy.as_deref(),
            expires_at: facts.job.spec.expires_at,
            breaker: breaker_facts,
        };
        let mut decision = decide(leased, end.outcome.clone(), settings, now, cx.rng.fractions());
        for newer in [&facts.lease.tail.checkpoint, end.checkpoint] {
            if !newer.is_empty() {
                newer.clone_into(&mut decision.progress.checkpoint);
            }
        }
        let transitions = breaker.transitions;
        let signal = std::mem::replace(&mut decision.signal, Signal::None);
        let ended = EndedDelivery {
            epoch,
            job: &facts.job.spec.id,
            number: facts.job.number,
            delivery: lease.delivery,
            started_at: lease.started_at,
            first: facts.progress().tries == 0,
            counted: decision.attempt.counted,
        };
        // Breakers that open at different times do not probe together.
        let unit = Rng::new(now.millis() ^ breaker.transitions << 40).unit();
        self.changed |= breaker.fail(&mut self.outcome_stats, &ended, signal, &settings.breaker, now, unit);
        self.moved |= breaker.transitions != transitions;
        if epoch.probe
            && let Some(slot) = self.queue.probes.iter().position(|started| *started == lease.started_at)
        {
            self.queue.probes.remove(slot);
        }
        decision.attempt.breaker = breaker.state(&settings.breaker, now);
        decision
    }

    fn write_deliveries(
        &mut self, changes: &mut Changes, (ends, keys): (&[End<'_>], &KeyGroups), leases: &[Option<LeaseFacts>],
        decisions: &[Option<RetryDecision>], dead_facts: DeadFacts, cx: &mut CallContext<'_>,
    ) {
        let mut dead_letters = DeadLetters::new(self.name, dead_facts, &self.queue, self.settings, self.now);
        for ((end, decision), facts) in ends.iter().zip(decisions).zip(leases) {
            if let (Some(decision), Some(facts)) = (decision, facts) {
                if *end.outcome == Outcome::Expired {
                    // An Extend changes nothing but the end.
                    changes.fence(facts.expiry_fence());
                    changes.add(Total::LeaseExpired, 1);
                }
                write_one(changes, decision, (facts, keys), &mut dead_letters, cx);
            }
        }
        if let Some((record, bytes)) = dead_letters.finish(changes, cx) {
            (self.queue.queue, self.queue.queue_record) = (record, Some(bytes));
        }
    }

    fn write_breaker(&mut self, changes: &mut Changes, outcomes: &OutcomeFacts, cx: &mut CallContext<'_>) {
        let recovers = self.queue.breaker.outage.as_ref().filter(|outage| outage.recovering);
        let stats = &self.outcome_stats;
        let step_is_over = recovers.is_some_and(|it| it.recovery.step_is_over(&stats.step, &stats.usual, self.now));
        if step_is_over || !self.queue.breaker.returned.is_empty() {
            cx.due(self.name, self.now);
        }
        if self.outcome_stats != outcomes.outcome_stats || self.moved {
            changes.fence(outcomes.fence());
            outcomes.put(self.outcome_stats.clone(), &mut self.queue, changes);
        }
        if self.changed {
            put_breaker(changes, &mut self.queue, self.name, cx);
            if let Some(at) = self.queue.breaker.probe_at(&self.settings.breaker, self.now) {
                cx.due(self.name, at);
            }
        }
        if self.moved {
            changes.publish(Publish::Always);
        }
    }
}

fn write_one(
    changes: &mut Changes, decision: &RetryDecision, (facts, keys): (&LeaseFacts, &KeyGroups),
    dead_letters: &mut DeadLetters<'_>, cx: &mut CallContext<'_>,
) {
    let (job, now) = (&facts.job, dead_letters.now);
    let (attempt, progress) = (&decision.attempt, &decision.progress);
    changes.fence(facts.fence());
    changes.end_lease(&facts.lease.lease);
    dead_letters.leaves(Index::Leased);
    // Of a job that is removed nothing stays.
    let removed = decision.next == Next::Cancelled && dead_letters.settings.completed_retention.is_none();
    if !removed {
        changes.record_attempt(job, progress.recorded, attempt);
        changes.record_cancel_request(facts);
    }
    let mut history = facts.next_history(progress.clone());
    if let Some(failure) = &attempt.failure {
        history.failure_bytes = crate::queue::sizes::of_failure(failure) as u32;
        if !failure.breaker_key.is_empty() {
            let key = failure.breaker_key.as_str();
            history.group = keys.group(Some(key));
            history.learnt_key = (job.spec.breaker_key.as_deref() != Some(key)).then(|| key.to_owned());
        }
    }
    changes.add(Total::FailedAttempts, u64::from(attempt.failure.is_some()));
    let retried = progress.retries > job.past().map_or(0, |before| before.retries);
    changes.add(Total::Retries, u64::from(retried));
    let at = match decision.next {
        Next::DeadLetter(reason) => {
            let failure = attempt.failure.as_ref();
            return changes.dead_letter(job, history, reason, failure, dead_letters, cx);
        }
        Next::Cancelled => {
            let key = job.spec.key.as_deref().and_then(|key| dead_letters.facts.key(key));
            return changes.cancel(job, history, key, dead_letters.queue, now, cx);
        }
        Next::Later { at } | Next::Behind { at } => at,
        Next::OldPlace => facts.lease.position.ready_at,
    };
    dead_letters.enters(if at <= now { Index::Ready } else { Index::Retrying });
    changes.enter_waiting(job, history, at, Whereabouts::Retrying, now, cx, dead_letters.queue);
}

/// What a breaker knows of a delivery.
pub(crate) fn epoch_of(lease: &Lease, breaker: &Breaker) -> BreakerEpoch {
    let transitions = transitions_of(lease.epoch, breaker.transitions);
    BreakerEpoch { transitions, probe: lease.flags & flag::PROBE != 0 }
}

/// How the delivery of this lease ended, until the job is delivered again.
pub(crate) async fn ended_under<S: Storage>(store: &mut S, lease: &Lease) -> Result<Option<Attempt>> {
    let mut found = ask(store, &lease.queue, &LeaseFacts::reads(lease.number)).await?;
    let facts = LeaseFacts::found(&lease.queue, lease.number, &mut found)?;
    let Some(history) = facts.err().and_then(|job| job.history) else { return Ok(None) };
    if !history.ended(lease) || history.progress.recorded == 0 {
        return Ok(None);
    }
    let part = RecordKey::Part(lease.number, attempt_part(history.progress.recorded));
    let record = ask_record(store, &lease.queue, Table::Attempt, part).await?;
    let attempt = read_if(record.as_ref(), records::read_attempt)?;
    Ok(attempt.filter(|attempt| attempt.is_of(lease)))
}
