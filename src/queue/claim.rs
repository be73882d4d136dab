//! Claim: the first jobs of the queues become leases.

mod again;

use super::{
    claim_requests as requests,
    context::{CallContext, Event, after_some, overtaken},
    facts::{DeadFacts, JobFacts, QueueFacts, range},
    records::{self, LeaseTail},
    settle,
    state_changes::{Changes, DeadLetters},
};
use crate::{
    domain::{
        breaker::Gate,
        ids::{JobId, QueueName},
        job::{DeadReason, Delivery, Spec},
        lease::Lease,
        settings::QueueSettings,
        time::{Timestamp, millis_ceil},
    },
    store::{
        Claim, Claimed, Delivered, Idle, IdleReason, Share, StoreError,
        storage::{
            Applied, Batch, Fence, Found, Index, LeaseTemplate, Len, Probes, Read, RecordKey, Rule,
            Storage, Table, Take, Taken, TakenJob, Write, flag,
        },
    },
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};

/// Due jobs that one claim promotes, of each kind.
pub(crate) const PROMOTIONS_MAX: usize = 1_000;
/// Jobs that one claim dead-letters on its way; the next one goes on.
const DEAD_LETTERED_MAX: usize = 100;
/// Jobs that one take hands out.
const TAKE_MAX: usize = 250;
const ROUNDS_MAX: usize = 50;

/// What a claim came to.
pub(crate) enum ClaimAnswer {
    Claimed(Claimed),
    /// Another server works on the same request: ask again in a moment.
    InProgress,
}

/// Settles, then leases what is there. Never waits for work.
pub(crate) async fn claim<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    mut claim: Claim,
) -> Result<ClaimAnswer, StoreError> {
    let settlements = std::mem::take(&mut claim.settle);
    let begun = !settlements.is_empty();
    let settled =
        if begun { settle::settle(store, cx, settlements).await? } else { Default::default() };
    let mut gathering = Gathering::new(&claim, cx.rng.roll(), store.now());
    let request = match requests::begin_claim(store, cx, &claim).await {
        Ok(requests::ClaimBegun::InProgress) => return Ok(ClaimAnswer::InProgress),
        Ok(requests::ClaimBegun::Fresh(request)) => request,
        Ok(requests::ClaimBegun::Answered(leases)) => {
            again::hand_out_again(store, &leases, &mut gathering).await?;
            gathering.out.settled = settled;
            return Ok(ClaimAnswer::Claimed(gathering.out));
        }
        Err(error) => return Err(after_some(error, begun)),
    };
    let gathered = gather(store, cx, &mut gathering).await;
    let taken_before = begun || !gathering.out.jobs.is_empty();
    gathered.map_err(|error| after_some(error, taken_before))?;
    if let Some(request) = request {
        requests::finish_claim(store, request, &gathering.out.jobs)
            .await
            .map_err(|error| after_some(error, taken_before))?;
    }
    let mut out = gathering.out;
    out.settled = settled;
    Ok(ClaimAnswer::Claimed(out))
}

/// What a claim has gathered so far.
struct Gathering<'a> {
    claim: &'a Claim,
    bytes: usize,
    dead_lettered: usize,
    /// The reply is full, or enough was dead-lettered on the way.
    full: bool,
    shares: Vec<ShareState>,
    out: Claimed,
}

/// One queue that is asked.
#[derive(Default)]
struct ShareState {
    /// There is nothing more to take.
    exhausted: bool,
    /// What was due when it was first asked is ready.
    promoted: bool,
    idle: Option<(IdleReason, Option<Timestamp>)>,
    /// Ready jobs that are left, where it was looked at.
    ready: Option<u64>,
}

impl<'a> Gathering<'a> {
    fn new(claim: &'a Claim, answer: u64, now: Timestamp) -> Self {
        let shares = claim.shares.iter().map(|_| ShareState::default()).collect();
        let out = Claimed { now, answer, ..Claimed::default() };
        Self { claim, bytes: 0, dead_lettered: 0, full: false, shares, out }
    }

    fn room(&self) -> usize {
        if self.full { 0 } else { self.claim.max_jobs - self.out.jobs.len() }
    }
}

async fn gather<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    gathering: &mut Gathering<'_>,
) -> Result<(), StoreError> {
    let claim = gathering.claim;
    // Each queue has its share first, then those that have more.
    for (at, share) in claim.shares.iter().enumerate() {
        take(store, cx, at, share.first, gathering).await?;
    }
    for at in 0..claim.shares.len() {
        if !gathering.shares[at].exhausted {
            take(store, cx, at, usize::MAX, gathering).await?;
        }
    }
    if gathering.out.jobs.is_empty() {
        let states = claim.shares.iter().zip(&gathering.shares);
        let idle = |(share, state): (&Share, &ShareState)| {
            let (reason, until) = state.idle.unwrap_or((IdleReason::Empty, None));
            Idle { queue: share.queue.clone(), reason, until }
        };
        gathering.out.idle = states.map(idle).collect();
        return Ok(());
    }
    // A waiter that was notified of several jobs may take few of them: the others are for other waiters.
    for (share, state) in claim.shares.iter().zip(&gathering.shares) {
        let ready = match state.ready {
            Some(ready) => ready,
            None => ready_jobs(store, &share.queue).await?,
        };
        if ready > 0
            && let Some(facts) = QueueFacts::remembered(store, &share.queue, cx).await?
        {
            cx.available(&share.queue, &facts, ready, gathering.out.now);
        }
    }
    Ok(())
}

async fn ready_jobs<S: Storage>(store: &mut S, queue: &QueueName) -> Result<u64, StoreError> {
    let found = store.read(queue, &[Read::Len(Len::Index(Index::Ready))]).await?;
    Ok(found.and_then(|found| found.first().map(Found::number)).unwrap_or_default())
}

/// Leases up to `most` jobs of one queue.
async fn take<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    at: usize,
    most: usize,
    gathering: &mut Gathering<'_>,
) -> Result<(), StoreError> {
    let queue = &gathering.claim.shares[at].queue;
    let settings = cx.queue(queue);
    let mut most = most.min(gathering.room());
    let mut rounds = 0;
    if gathering.claim.max_jobs == 0 {
        gathering.shares[at].idle = Some(why_idle(store, cx, queue, &settings).await?);
        return Ok(());
    }
    while most > 0 {
        let Some(facts) = QueueFacts::remembered(store, queue, cx).await? else {
            let state = &mut gathering.shares[at];
            state.idle = Some((IdleReason::NoSuchQueue, None));
            (state.exhausted, state.ready) = (true, Some(0));
            return Ok(());
        };
        let now = store.now();
        let rule = match admit(store, queue, &facts, &settings, now).await? {
            Ok(rule) => rule,
            Err(idle) => {
                let state = &mut gathering.shares[at];
                state.idle = Some(idle);
                (state.exhausted, state.ready) = (true, Some(0));
                return Ok(());
            }
        };
        let duration = gathering.claim.lease_duration.unwrap_or(settings.lease_duration);
        let duration = duration.min(settings.max_run_time);
        let tail = records::lease_tail(&LeaseTail {
            answer: gathering.out.answer,
            worker_id: gathering.claim.worker_id.clone(),
            request_id: gathering.claim.request_id.clone(),
            ..LeaseTail::default()
        });
        let probes = rule.probes;
        let asked = most.min(TAKE_MAX);
        let wanted = Take {
            whole: facts.whole,
            rule,
            jobs: asked,
            bytes: gathering.claim.max_bytes.saturating_sub(gathering.bytes),
            first_fits: gathering.out.jobs.is_empty(),
            promote: if gathering.shares[at].promoted { 0 } else { PROMOTIONS_MAX },
            lease: LeaseTemplate {
                started_at: now,
                expires_at: now.after(duration),
                duration_ms: millis_ceil(duration).min(u64::from(u32::MAX)) as u32,
                seed: cx.rng.roll(),
                tail: &tail,
            },
            max_leases: cx.limits.leases,
        };
        let Some(taken) = store.take(queue, &wanted).await? else {
            cx.memory.forget(queue);
            continue;
        };
        if taken.changed {
            rounds += 1;
            if rounds == ROUNDS_MAX {
                return Err(overtaken());
            }
            cx.memory.forget_facts(queue);
            continue;
        }
        gathering.shares[at].promoted = true;
        if let Some(due) = taken.next_due {
            cx.job_due(queue, due);
        }
        let count = taken.jobs.len();
        if count > 0 {
            cx.due(queue, now.after(duration));
        }
        if probes.is_some() && count > 0 {
            // The probes that are out are among the facts.
            cx.memory.forget_facts(queue);
        }
        let state = &mut gathering.shares[at];
        state.ready = Some(taken.ready);
        state.idle = Some(idle(&taken, probes, now));
        if taken.leases_full {
            cx.memory.leases_are_full(queue);
        }
        gathering.full |= taken.bytes_full;
        state.exhausted = count < asked;
        let delivered =
            deliver(store, cx, queue, taken.jobs, &settings, duration, gathering).await?;
        if gathering.full || count < asked {
            return Ok(());
        }
        // Jobs that were dead-lettered made room for others.
        most -= delivered;
    }
    Ok(())
}

/// Why nothing leaves the queue, to a claim that wants no jobs.
async fn why_idle<S: Storage>(
    store: &mut S,
    cx: &CallContext<'_>,
    queue: &QueueName,
    settings: &QueueSettings,
) -> Result<(IdleReason, Option<Timestamp>), StoreError> {
    let Some(facts) = QueueFacts::read_anew(store, queue, cx).await? else {
        return Ok((IdleReason::NoSuchQueue, None));
    };
    let now = store.now();
    if facts.is_paused(now) {
        return Ok((IdleReason::Paused, facts.queue.pause.as_ref().and_then(|pause| pause.until)));
    }
    let gate = facts.breaker.gate(&settings.breaker, facts.probes.iter().copied(), now);
    if let Gate::Held { until } = gate {
        return Ok((IdleReason::BreakerOpen, until));
    }
    let writes = vec![Write::Promote(PROMOTIONS_MAX)];
    store.apply(queue, &Batch { writes, ..Batch::default() }).await?;
    if let Gate::Limited { until } = gate {
        return Ok((IdleReason::Limited, Some(until)));
    }
    let reads = [range(Index::Scheduled, None, 1), range(Index::Retrying, None, 1)];
    let found = store.read(queue, &reads).await?.unwrap_or_default();
    let due = found.into_iter().flat_map(Found::entries).map(|entry| entry.score).min();
    Ok(match due {
        Some(at) => (IdleReason::NotDue, Some(Timestamp::from_millis(at))),
        None => (IdleReason::Empty, None),
    })
}

/// What may leave the queue now, or why nothing may.
async fn admit<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    facts: &QueueFacts,
    settings: &QueueSettings,
    now: Timestamp,
) -> Result<Result<Rule, (IdleReason, Option<Timestamp>)>, StoreError> {
    if facts.is_paused(now) {
        let until = facts.queue.pause.as_ref().and_then(|pause| pause.until);
        return Ok(Err((IdleReason::Paused, until)));
    }
    let rule = Rule { version: facts.version, ..Rule::default() };
    Ok(match facts.breaker.gate(&settings.breaker, std::iter::empty(), now) {
        Gate::All => Ok(rule),
        Gate::Held { until } => Err((IdleReason::BreakerOpen, until)),
        Gate::Limited { until } => Err((IdleReason::Limited, Some(until))),
        Gate::Probes { most, not_first } => {
            let back = millis_ceil(settings.breaker.recovery_timeout);
            let started_after = Timestamp::from_millis(now.millis().saturating_sub(back));
            let pass_over = match not_first {
                Some(id) => number_of(store, queue, id).await?,
                None => None,
            };
            let probes = Some(Probes { most: most as u64, started_after });
            Ok(Rule { flags: flag::PROBE, pass_over, probes, ..rule })
        }
    })
}

/// The number of the job that has this id.
async fn number_of<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    id: &JobId,
) -> Result<Option<u64>, StoreError> {
    let reads = [Read::Record(Table::Id, RecordKey::Text(id.to_string().into()))];
    let found = store.read(queue, &reads).await?.unwrap_or_default();
    let record = found.into_iter().next().and_then(Found::record);
    let own = record.map(|it| records::readable(records::read_id(&it))).transpose()?.flatten();
    Ok(own.map(|own| own.number).or_else(|| id.number()))
}

/// Why there was nothing more.
fn idle(taken: &Taken, probes: Option<Probes>, now: Timestamp) -> (IdleReason, Option<Timestamp>) {
    match (taken.oldest_probe, probes) {
        (Some(oldest), Some(probes)) => {
            let back = now.since(probes.started_after);
            (IdleReason::Limited, Some(oldest.after(back)))
        }
        _ if taken.leases_full => (IdleReason::Limited, None),
        _ if taken.next_due.is_some() => (IdleReason::NotDue, taken.next_due),
        _ => (IdleReason::Empty, None),
    }
}

/// Jobs that were taken go to the caller; those that are damaged or past their deadline become dead letters. Says how many were
/// delivered.
async fn deliver<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    taken: Vec<TakenJob>,
    settings: &Arc<QueueSettings>,
    duration: Duration,
    gathering: &mut Gathering<'_>,
) -> Result<usize, StoreError> {
    let now = gathering.out.now;
    let mut dying = Vec::new();
    let mut delivered = 0;
    for job in taken {
        match read(queue, &job, gathering.claim, duration, now)? {
            Ok(ready) => {
                gathering.bytes += size(&job);
                gathering.out.jobs.push(ready);
                delivered += 1;
            }
            Err(reason) => dying.push((job, reason)),
        }
    }
    if !dying.is_empty() {
        gathering.dead_lettered += dying.len();
        dead_letter(store, cx, queue, &dying, settings).await?;
        if gathering.dead_lettered >= DEAD_LETTERED_MAX {
            gathering.full = true;
            // There may be more behind them.
            cx.events.push(Event::Available { queue: queue.clone(), jobs: 1 });
        }
    }
    Ok(delivered)
}

fn size(job: &TakenJob) -> usize {
    let of = |record: &Option<Bytes>| {
        let first = record.as_ref().and_then(|record| record.first_chunk::<4>());
        first.map_or(0, |bytes| u32::from_be_bytes(*bytes) as usize)
    };
    of(&job.job) + of(&job.history)
}

/// The job as its worker gets it, or why no worker should.
fn read(
    queue: &QueueName,
    taken: &TakenJob,
    claim: &Claim,
    duration: Duration,
    now: Timestamp,
) -> Result<Result<Delivered, DeadReason>, StoreError> {
    let history = match &taken.history {
        Some(record) => records::readable(records::read_history(record))?.unwrap_or_default(),
        None => Default::default(),
    };
    let mut progress = history.progress;
    let spec = match &taken.job {
        Some(record) => records::readable(records::read_job(record, taken.body.as_ref()))?,
        None => None,
    };
    let Some(spec) = spec else { return Ok(Err(DeadReason::Corrupt)) };
    if progress.deadline(spec.expires_at).is_some_and(|deadline| deadline <= now) {
        return Ok(Err(DeadReason::Expired));
    }
    let last_failure = match &taken.last_failure {
        Some(record) => records::readable(records::read_failure(record))?,
        None => None,
    };
    let lease = token(queue, taken.number, &taken.lease, &spec);
    progress.deliveries = lease.delivery;
    let delivery = Delivery {
        attempt: taken.attempt,
        worker_id: claim.worker_id.clone(),
        started_at: lease.started_at,
        expires_at: lease.started_at.after(duration),
        duration,
        probe: lease.flags & flag::PROBE != 0,
        lease,
    };
    Ok(Ok(Delivered { queue: queue.clone(), spec, progress, delivery, last_failure }))
}

/// The token of a lease: an own id travels in it, so that an Ack needs no look at the job.
fn token(queue: &QueueName, number: u64, fence: &[u8; Lease::FENCE], spec: &Spec) -> Lease {
    let own_id = records::own_id(spec, number).filter(|id| id.len() <= Lease::OWN_ID_MAX);
    Lease::of(queue.clone(), number, fence, own_id.map(Into::into))
}

/// From lease to dead letter: no worker had them, and nothing counts.
async fn dead_letter<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    dying: &[(TakenJob, DeadReason)],
    settings: &QueueSettings,
) -> Result<(), StoreError> {
    for _ in 0..ROUNDS_MAX {
        let Some(facts) = QueueFacts::read(store, queue).await? else { return Ok(()) };
        let mut jobs = Vec::with_capacity(dying.len());
        for (taken, _) in dying {
            jobs.push(JobFacts::of(taken.number, taken.job.as_ref(), taken.history.as_ref())?);
        }
        let dead_facts = DeadFacts::read(store, queue, &jobs.iter().collect::<Vec<_>>()).await?;
        let now = store.now();
        let mark = cx.events.len();
        let mut changes = Changes::default();
        let mut dead_letters = DeadLetters::new(queue, dead_facts, &facts, settings, now);
        for ((taken, reason), job) in dying.iter().zip(&jobs) {
            let lease = Lease::of(queue.clone(), taken.number, &taken.lease, None);
            let fence = Bytes::copy_from_slice(&taken.lease);
            let key = RecordKey::Number(taken.number);
            changes.fence(Fence::Begins(Table::Lease, key, fence));
            changes.end_lease(&lease);
            dead_letters.leaves(Index::Leased);
            let history = job.next_history(job.progress());
            changes.dead_letter(job, history, *reason, None, &mut dead_letters, cx);
        }
        dead_letters.finish(&mut changes, cx);
        if let Applied::Done(_) = store.apply(queue, &changes.batch()).await? {
            cx.memory.forget_facts(queue);
            cx.lease_ended();
            return Ok(());
        }
        cx.events.truncate(mark);
    }
    Err(overtaken())
}
