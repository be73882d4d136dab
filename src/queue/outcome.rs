//! A delivery ends without success: Nack, release, interruption and expiry all come here. The only code that turns a retry
//! decision into writes.

use super::{
    context::{CallContext, epoch, overtaken},
    facts::{DeadFacts, JobFacts, LeaseFacts, OutcomeFacts, QueueFacts},
    records::{self, Whereabouts},
    state_changes::{Changes, DeadLetters, Total, attempt_part},
};
use crate::{
    domain::{
        breaker::{Guarded as BreakerKind, Sent, Signal},
        ids::{JobId, QueueName},
        job::{Attempt, Next},
        lease::Lease,
        settings::QueueSettings,
        time::Timestamp,
        verdict::{self as retry, Ending, Leased, Standing},
    },
    store::{
        StoreError,
        storage::{
            Applied, Done, Found, Index, NO_GROUP, Publish, Read, RecordKey, Storage, Table, flag,
        },
    },
};
use std::sync::Arc;

/// How often others may overtake a batch before the call gives up.
const ROUNDS_MAX: usize = 50;
/// So often as one batch; from then on one batch for each delivery.
const JOINT_ROUNDS: usize = 2;

/// A delivery that ends.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) number: u64,
    /// Of the breaker, when the job was handed out.
    pub(crate) epoch: u32,
    /// None: whichever lease is out, if its time is over.
    pub(crate) token: Option<Lease>,
    pub(crate) ending: Ending,
    /// Empty: keeps the earlier one.
    pub(crate) checkpoint: String,
}

/// What it led to.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) id: JobId,
    pub(crate) attempt: Attempt,
}

/// Ends deliveries of one queue, no job twice. `None`: its lease is not out.
pub(crate) async fn end_all<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    ends: &[End],
) -> Result<Vec<Option<Ended>>, StoreError> {
    for _ in 0..JOINT_ROUNDS {
        if let Some(ended) = try_end(store, cx, queue, ends).await? {
            return Ok(ended);
        }
    }
    // Another call ends the same deliveries, or counts failures at the same time: one by one they cannot fail together.
    let mut all = Vec::with_capacity(ends.len());
    for end in ends {
        let mut rounds = 0;
        loop {
            if let Some(mut ended) = try_end(store, cx, queue, std::slice::from_ref(end)).await? {
                all.append(&mut ended);
                break;
            }
            rounds += 1;
            if rounds == ROUNDS_MAX {
                return Err(super::context::after_some(overtaken(), !all.is_empty()));
            }
        }
    }
    Ok(all)
}

/// None: the facts were old.
async fn try_end<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    ends: &[End],
) -> Result<Option<Vec<Option<Ended>>>, StoreError> {
    let mark = cx.events.len();
    let Some(facts) = Facts::read(store, queue, ends).await? else {
        return Ok(Some(ends.iter().map(|_| None).collect()));
    };
    let now = store.now();
    let settings = cx.queue(queue);
    let mut plan = Plan::decide(&facts, ends, &settings, now, cx);
    let dying: Vec<&JobFacts> = plan.dying(&facts).collect();
    let dead_facts = if dying.is_empty() {
        DeadFacts::default()
    } else {
        DeadFacts::read(store, queue, &dying).await?
    };
    let changes = plan.write(&facts, ends, dead_facts, &settings, queue, now, cx);
    if changes.is_empty() {
        return Ok(Some(plan.ended));
    }
    let made_ready = changes.made_ready || plan.frees_a_slot;
    match store.apply(queue, &changes.batch()).await? {
        Applied::Done(Done { ready, .. }) => {
            cx.memory.remember(queue, Arc::new(plan.queue));
            if made_ready && let Some(facts) = cx.memory.facts(queue) {
                cx.available(queue, &facts, ready, now);
            }
            cx.lease_ended();
            Ok(Some(plan.ended))
        }
        Applied::Changed(_) => {
            cx.events.truncate(mark);
            Ok(None)
        }
        Applied::NoQueue => Ok(Some(ends.iter().map(|_| None).collect())),
    }
}

struct Facts {
    queue: QueueFacts,
    outcomes: OutcomeFacts,
    leases: Vec<Option<LeaseFacts>>,
}

impl Facts {
    async fn read<S: Storage>(
        store: &mut S,
        queue: &QueueName,
        ends: &[End],
    ) -> Result<Option<Self>, StoreError> {
        // Epochs grow, and outcomes of an earlier one count nowhere.
        let epoch = ends.iter().map(|end| end.epoch).max().unwrap_or_default();
        let mut reads: Vec<Read> = QueueFacts::reads().into();
        reads.extend(OutcomeFacts::reads(epoch));
        reads.extend(ends.iter().flat_map(|end| LeaseFacts::reads(end.number)));
        let Some(found) = store.read(queue, &reads).await? else { return Ok(None) };
        let mut found = found.into_iter();
        let facts = QueueFacts::found(&mut found)?;
        let outcomes = OutcomeFacts::found(epoch, &mut found)?;
        let now = store.now();
        let mut leases = Vec::with_capacity(ends.len());
        for end in ends {
            let (lease, _) = LeaseFacts::found(queue, end.number, &mut found)?;
            leases.push(lease.filter(|facts| match &end.token {
                Some(token) => token.fence() == facts.lease.lease.fence(),
                None => facts.score <= now.millis() && facts.lease.tail.undelivered.is_none(),
            }));
        }
        Ok(Some(Self { queue: facts, outcomes, leases }))
    }
}

/// Decisions, one for each delivery that is out.
struct Plan {
    /// The breaker after them.
    queue: QueueFacts,
    tally: crate::domain::breaker::Tally,
    decisions: Vec<Option<retry::Verdict>>,
    ended: Vec<Option<Ended>>,
    breaker_changed: bool,
    moved: bool,
    frees_a_slot: bool,
}

impl Plan {
    /// Pure: what follows from the facts.
    fn decide(
        facts: &Facts,
        ends: &[End],
        settings: &QueueSettings,
        now: Timestamp,
        cx: &mut CallContext<'_>,
    ) -> Self {
        let mut plan = Self {
            queue: facts.queue.clone(),
            tally: facts.outcomes.tally.clone(),
            decisions: Vec::with_capacity(ends.len()),
            ended: Vec::with_capacity(ends.len()),
            breaker_changed: false,
            moved: false,
            frees_a_slot: false,
        };
        for (end, facts) in ends.iter().zip(&facts.leases) {
            let Some(facts) = facts else {
                plan.decisions.push(None);
                plan.ended.push(None);
                continue;
            };
            let decision = plan.decide_one(end, facts, settings, now, cx);
            let (id, attempt) = (facts.job.spec.id.clone(), decision.attempt.clone());
            plan.ended.push(Some(Ended { id, attempt }));
            plan.decisions.push(Some(decision));
        }
        plan
    }

    fn decide_one(
        &mut self,
        end: &End,
        facts: &LeaseFacts,
        settings: &QueueSettings,
        now: Timestamp,
        cx: &mut CallContext<'_>,
    ) -> retry::Verdict {
        let lease = &facts.lease.lease;
        let breaker = &mut self.queue.breaker;
        let sent = sent(lease, breaker);
        let standing = Standing {
            state: breaker.state(&settings.breaker, now),
            heeds_hold: breaker.heeds_hold(sent, &settings.breaker, now),
        };
        let leased = Leased {
            delivery: &facts.lease.delivery(facts.lease.expires_at(facts.score)),
            progress: &facts.progress(),
            policy: facts.job.spec.policy.as_deref(),
            expires_at: facts.job.spec.expires_at,
            breaker: standing,
        };
        let mut decision = retry::judge(leased, end.ending.clone(), settings, now, cx.rng.chance());
        for newer in [&facts.lease.tail.checkpoint, &end.checkpoint] {
            if !newer.is_empty() {
                decision.progress.checkpoint.clone_from(newer);
            }
        }
        let transitions = breaker.transitions;
        let signal = std::mem::replace(&mut decision.signal, Signal::None);
        let id = &facts.job.spec.id;
        let changed = breaker.heed(&mut self.tally, sent, id, signal, &settings.breaker, now);
        self.breaker_changed |= changed;
        self.moved |= breaker.transitions != transitions;
        if sent.probe {
            self.frees_a_slot = true;
            let slot = self.queue.probes.iter().position(|started| *started == lease.started_at);
            slot.map(|slot| self.queue.probes.remove(slot));
        }
        decision.attempt.breaker = breaker.state(&settings.breaker, now);
        decision
    }

    fn dying<'f>(&self, facts: &'f Facts) -> impl Iterator<Item = &'f JobFacts> {
        let pairs = self.decisions.iter().zip(&facts.leases);
        pairs
            .filter_map(|(decision, facts)| {
                let dies = matches!(decision.as_ref()?.next, Next::Bury(_));
                facts.as_ref().filter(|_| dies).map(|facts| &facts.job)
            })
            .collect::<Vec<_>>()
            .into_iter()
    }

    #[expect(clippy::too_many_arguments, reason = "the facts of one decision")]
    fn write(
        &mut self,
        facts: &Facts,
        ends: &[End],
        dead_facts: DeadFacts,
        settings: &QueueSettings,
        queue: &QueueName,
        now: Timestamp,
        cx: &mut CallContext<'_>,
    ) -> Changes {
        let mut changes = Changes::default();
        if self.decisions.iter().all(Option::is_none) {
            return changes;
        }
        // Every decision was made from how the breaker stands.
        changes.fence(facts.queue.version.fence(NO_GROUP));
        let after = self.queue.clone();
        let mut dead_letters = DeadLetters::new(queue, dead_facts, &after, settings, now);
        let ended = ends.iter().zip(&self.decisions).zip(&facts.leases);
        for ((end, decision), facts) in ended {
            if let (Some(decision), Some(facts)) = (decision, facts) {
                if end.ending == Ending::Expired {
                    // An Extend changes nothing but the end.
                    changes.fence(facts.expiry_fence());
                    changes.add(Total::LeaseExpired, 1);
                }
                write_one(&mut changes, decision, facts, &mut dead_letters, queue, now, cx);
            }
        }
        dead_letters.finish(&mut changes, cx);
        let record = dead_letters.into_record();
        if record != self.queue.queue {
            self.queue.queue_record = Some(records::queue(&record));
            self.queue.queue = record;
        }
        // With another epoch, successes since the last failure are no longer counted apart.
        if self.tally != facts.outcomes.tally || self.moved {
            changes.fence(facts.outcomes.fence());
            let record = facts.outcomes.record(self.tally.clone(), epoch(&self.queue.breaker));
            changes.put(Table::Outcomes, RecordKey::Only, record);
        }
        if self.breaker_changed {
            super::breakers::put_breaker(&mut changes, &mut self.queue, cx);
            if let Some(at) = self.queue.breaker.probe_at(&settings.breaker, now) {
                cx.due(queue, at);
            }
        }
        if self.moved {
            cx.breaker_moved(queue, BreakerKind::Work, &self.queue.breaker, now);
            self.frees_a_slot = true;
            changes.publish(Publish::Always);
        }
        changes
    }
}

fn write_one(
    changes: &mut Changes,
    decision: &retry::Verdict,
    facts: &LeaseFacts,
    dead_letters: &mut DeadLetters<'_>,
    queue: &QueueName,
    now: Timestamp,
    cx: &mut CallContext<'_>,
) {
    let job = &facts.job;
    let (attempt, progress) = (&decision.attempt, &decision.progress);
    changes.fence(facts.fence());
    changes.end_lease(&facts.lease.lease);
    dead_letters.leaves(Index::Leased);
    changes.record_attempt(job, progress.recorded, attempt);
    let mut history = job.next_history(progress.clone());
    history.nonce = facts.lease.lease.nonce;
    if let Some(failure) = &attempt.failure {
        history.failure_bytes = crate::store::sizes::of_failure(failure) as u32;
    }
    changes.add(Total::FailedAttempts, u64::from(attempt.failure.is_some()));
    let retried = progress.retries > facts.progress().retries;
    changes.add(Total::Retries, u64::from(retried));
    let at = match decision.next {
        Next::Bury(reason) => {
            let failure = attempt.failure.as_ref();
            return changes.dead_letter(job, history, reason, failure, dead_letters, cx);
        }
        Next::Later { at } | Next::Behind { at } => at,
        Next::OldPlace => facts.lease.position.ready_at,
    };
    let later =
        if attempt.failure.is_some() { Whereabouts::Retrying } else { Whereabouts::Scheduled };
    dead_letters.enters(if at <= now { Index::Ready } else { Index::Retrying });
    changes.enter_waiting(job, history, at, later, now, cx, queue);
}

/// What a breaker knows of a delivery.
pub(crate) fn sent(lease: &Lease, breaker: &crate::domain::breaker::Breaker) -> Sent {
    // The upper bits of the transition count are those of now: nobody holds a lease over 2^32 transitions.
    let transitions = (breaker.transitions & !u64::from(u32::MAX)) | u64::from(lease.epoch);
    Sent { transitions, probe: lease.flags & flag::PROBE != 0 }
}

/// How the delivery of this lease ended, until the job is delivered again.
pub(crate) async fn ended_under<S: Storage>(
    store: &mut S,
    lease: &Lease,
) -> Result<Option<Attempt>, StoreError> {
    let reads = LeaseFacts::reads(lease.number);
    let Some(found) = store.read(&lease.queue, &reads).await? else { return Ok(None) };
    let (out, job) = LeaseFacts::found(&lease.queue, lease.number, &mut found.into_iter())?;
    let Some(history) = job.history.filter(|_| out.is_none()) else { return Ok(None) };
    let same = history.progress.deliveries == lease.delivery && history.nonce == lease.nonce;
    if !same || history.progress.recorded == 0 {
        return Ok(None);
    }
    let part = RecordKey::Part(lease.number, attempt_part(history.progress.recorded));
    let reads = [Read::Record(Table::Attempt, part)];
    let Some(found) = store.read(&lease.queue, &reads).await? else { return Ok(None) };
    let record = found.into_iter().next().and_then(Found::record);
    let attempt = record.map(|it| records::readable(records::read_attempt(&it))).transpose()?;
    let own =
        |attempt: &Attempt| attempt.delivery == lease.delivery && attempt.nonce == lease.nonce;
    Ok(attempt.flatten().filter(own))
}
