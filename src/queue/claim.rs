//! Claim: the first jobs of the queues become leases.

mod again;
mod rules;

use super::answers::ask;
use super::context::CallContext;
use super::events::Event;
use super::facts::{JobFacts, QueueFacts, Rounds};
use super::handover::UndeliveredClaim;
use super::records::{self, LeaseTail, read_if};
use super::state_changes::{Changes, dead_letter_all};
use super::{claim_requests as requests, settle, undelivered};
use crate::domain::{DeadReason, Delivery, Lease, QueueName, QueueSettings, Spec, Timestamp, millis_ceil};
use crate::queue::{Claim, Claimed, Delivered, Idle, IdleReason, Settled, Share};
use crate::store::storage::{
    Applied, Fence, Index, LeaseTemplate, Len, NO_GROUP, Read, RecordKey, Rule, Storage, Table, Take, Taken, TakenJob,
    WHOLE_QUEUE, flag,
};
use crate::store::{Result, StoreError};
use bytes::Bytes;
use rules::Why;
use std::{collections::HashSet, sync::Arc, time::Duration};

/// Due jobs that one claim promotes, of each kind.
pub(crate) const PROMOTIONS_MAX: usize = 1_000;
/// Jobs that one claim dead-letters on its way; the next one goes on.
const DEAD_LETTERED_MAX: usize = 100;
/// Jobs that one take hands out.
const TAKE_MAX: usize = 250;
/// Rules of one take beside that of the jobs without a breaker key.
const RULES_MAX: usize = 128;

/// Settles, then leases what is there. Never waits for work. None: another server works on the same request; ask again in a
/// moment.
pub(crate) async fn claim<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, mut claim: Claim,
) -> Result<Option<Claimed>> {
    let settled = settle::settle(store, cx, std::mem::take(&mut claim.settle)).await?;
    let in_hand = cx.memory.claimed.reserve(claim.max_bytes);
    claim.max_bytes = in_hand.bytes();
    let mut gathering = Gathering::new(&claim, cx.rng.next_u64(), store.now());
    gathering.out.in_hand = in_hand;
    let request = match requests::begin_claim(store, cx, &claim).await? {
        requests::ClaimBegun::InProgress => return Ok(None),
        requests::ClaimBegun::Fresh(request) => request,
        requests::ClaimBegun::Answered(leases) => {
            again::hand_out_again(store, &leases, &mut gathering).await?;
            return Ok(Some(gathering.done(settled)));
        }
    };
    if let Err(error) = gather(store, cx, &mut gathering).await {
        // What may have been taken stays under its request, where the claim that is said again finds it.
        let in_doubt = matches!(error, StoreError::OutcomeUnknown(_) | StoreError::DurabilityNotConfirmed(_));
        cx.begun |= in_doubt || return_all(store, cx, &gathering.out, request).await.is_err();
        return Err(error);
    }
    if let Some(request) = request {
        cx.begun |= !gathering.out.jobs.is_empty();
        requests::finish_claim(store, request, &gathering.out.jobs).await?;
    }
    Ok(Some(gathering.done(settled)))
}

/// The claim fails, and its caller gets none of the jobs.
async fn return_all<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, out: &Claimed, request: Option<requests::OpenRequest>,
) -> Result<()> {
    let leases = out.jobs.iter().map(|job| job.delivery.lease.clone()).collect();
    let claim = UndeliveredClaim { leases, answer: out.answer, after: Duration::ZERO };
    undelivered::undelivered(store, cx, &claim).await?;
    match request {
        Some(request) => requests::finish_claim(store, request, &[]).await,
        None => Ok(()),
    }
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
    idle: Option<Why>,
    /// Ready jobs that are left, where it was looked at.
    ready: Option<u64>,
}

impl<'a> Gathering<'a> {
    fn new(claim: &'a Claim, answer: u64, now: Timestamp) -> Self {
        let shares = claim.shares.iter().map(|_| ShareState::default()).collect();
        let out = Claimed { now, answer, ..Claimed::default() };
        Self { claim, bytes: 0, dead_lettered: 0, full: false, shares, out }
    }

    fn done(mut self, settled: Settled) -> Claimed {
        self.out.in_hand.took(self.bytes);
        let crowded = self.out.in_hand.tight && self.full && self.out.jobs.is_empty();
        Claimed { settled, crowded, ..self.out }
    }

    fn room(&self) -> usize {
        if self.full { 0 } else { self.claim.max_jobs - self.out.jobs.len() }
    }
}

async fn gather<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, gathering: &mut Gathering<'_>) -> Result<()> {
    let claim = gathering.claim;
    // Each queue has its share first, then those that have more.
    for (at, share) in claim.shares.iter().enumerate() {
        Taking::new(store, cx, at, gathering).take(share.first).await?;
    }
    for at in 0..claim.shares.len() {
        if !gathering.shares[at].exhausted {
            Taking::new(store, cx, at, gathering).take(usize::MAX).await?;
        }
    }
    if gathering.out.jobs.is_empty() {
        let states = claim.shares.iter().zip(&gathering.shares);
        let idle = |(share, state): (&Share, &ShareState)| {
            let why = state.idle.clone().unwrap_or_else(|| Why::new(IdleReason::Empty, None));
            Idle { queue: share.queue.clone(), reason: why.reason, until: why.until, breaker_key: why.key }
        };
        gathering.out.idle = states.map(idle).collect();
        return Ok(());
    }
    // A waiter that was notified of several jobs may take few of them: the others are for other waiters.
    for (share, state) in claim.shares.iter().zip(&gathering.shares) {
        let ready = match state.ready {
            Some(ready) => ready,
            None => ready(store, &share.queue).await?,
        };
        if ready > 0 {
            QueueFacts::tell_ready(store, &share.queue, cx, ready, gathering.out.now).await?;
        }
    }
    Ok(())
}

/// Jobs of one queue become leases.
struct Taking<'t, 'a, 'g, S> {
    store: &'t mut S,
    cx: &'t mut CallContext<'a>,
    gathering: &'t mut Gathering<'g>,
    /// Which share it is.
    at: usize,
    queue: &'g QueueName,
    settings: Arc<QueueSettings>,
    /// Of its leases.
    duration: Duration,
}

impl<'t, 'a, 'g, S: Storage> Taking<'t, 'a, 'g, S> {
    fn new(store: &'t mut S, cx: &'t mut CallContext<'a>, at: usize, gathering: &'t mut Gathering<'g>) -> Self {
        let claim = gathering.claim;
        let queue = &claim.shares[at].queue;
        let settings = cx.queue(queue);
        let duration = claim.lease_duration.unwrap_or(settings.lease_duration).min(settings.max_run_time);
        Self { store, cx, gathering, at, queue, settings, duration }
    }

    fn share(&mut self) -> &mut ShareState {
        &mut self.gathering.shares[self.at]
    }

    fn nothing(&mut self, why: Why) -> Result<()> {
        let promoted = self.share().promoted;
        *self.share() = ShareState { exhausted: true, promoted, idle: Some(why), ready: Some(0) };
        Ok(())
    }

    /// Leases up to `most` jobs.
    async fn take(&mut self, most: usize) -> Result<()> {
        let queue = self.queue;
        let mut most = most.min(self.gathering.room());
        let mut rounds = Rounds::default();
        if self.gathering.claim.max_jobs == 0 {
            self.share().idle = Some(self.why_idle().await?);
            return Ok(());
        }
        // Groups that the last take passed over, as they need a rule, and those that have got one.
        let (mut asked_for, mut ruled) = (Vec::new(), HashSet::new());
        while most > 0 {
            let Some(facts) = QueueFacts::remembered(self.store, queue, self.cx).await? else {
                return self.nothing(Why::new(IdleReason::NoSuchQueue, None));
            };
            let now = self.store.now();
            let (whole, rules, held) = match self.rules(&facts, &asked_for, now).await? {
                Ok(rules) => rules,
                Err(why) => return self.nothing(why),
            };
            let probes = rules.iter().any(|rule| rule.probes.is_some());
            let asked = most.min(TAKE_MAX);
            let Some(taken) = self.take_some(whole, &rules, asked, now).await? else {
                self.cx.memory.forget(queue);
                continue;
            };
            if taken.changed.iter().any(|group| matches!(*group, NO_GROUP | WHOLE_QUEUE)) {
                self.cx.memory.forget_facts(queue);
            }
            asked_for = self.look_at_groups(&taken.changed, &mut ruled).await?;
            let own_changed = |group: &u16| matches!(*group, NO_GROUP | WHOLE_QUEUE);
            let again = !asked_for.is_empty() || taken.changed.iter().any(own_changed);
            if again && taken.jobs.is_empty() {
                rounds.next()?;
                continue;
            }
            if let Some(due) = taken.next_due {
                self.cx.job_due(queue, due);
            }
            let count = taken.jobs.len();
            if count > 0 {
                self.cx.due(queue, now.after(self.duration));
            }
            if probes && count > 0 {
                // The probes that are out are among the facts.
                self.cx.memory.forget_facts(queue);
            }
            if taken.leases_full {
                self.cx.memory.leases_are_full(queue);
            }
            for until in taken.stops.iter().filter_map(|stop| stop.until) {
                // The next token or probe: waiters are notified then.
                self.cx.job_due(queue, until);
            }
            self.gathering.full |= taken.bytes_full;
            let idle = match held {
                // What holds the jobs without a key is said where nothing else was found.
                Some(why) if taken.stops.iter().all(|stop| stop.group == NO_GROUP) => Some(why),
                _ => Some(self.idle(&facts, &taken).await?),
            };
            let ready = Some(taken.ready);
            let delivered = self.deliver(taken.jobs).await?;
            // Jobs that were dead-lettered made room for others, among the probes and leases too.
            let exhausted = count < asked && delivered == count && !again;
            *self.share() = ShareState { exhausted, promoted: true, idle, ready };
            if self.gathering.full || exhausted {
                return Ok(());
            }
            most -= delivered;
        }
        Ok(())
    }

    /// None: there is no such queue.
    async fn take_some(&mut self, whole: Rule, rules: &[Rule], jobs: usize, now: Timestamp) -> Result<Option<Taken>> {
        let Gathering { claim, out, bytes, .. } = &*self.gathering;
        let tail = records::lease_tail(&LeaseTail {
            answer: out.answer,
            worker_id: claim.worker_id.clone(),
            request_id: claim.request_id.clone(),
            ..LeaseTail::default()
        });
        let wanted = Take {
            whole,
            groups: rules,
            jobs,
            bytes: claim.max_bytes.saturating_sub(*bytes),
            first_fits: out.jobs.is_empty() && !out.in_hand.tight,
            promote: if self.gathering.shares[self.at].promoted { 0 } else { PROMOTIONS_MAX },
            lease: LeaseTemplate {
                started_at: now,
                expires_at: now.after(self.duration),
                duration_ms: millis_ceil(self.duration).min(u64::from(u32::MAX)) as u32,
                seed: self.cx.rng.next_u64(),
                tail: &tail,
            },
            max_leases: self.cx.limits.leases,
        };
        self.store.take(self.queue, &wanted).await
    }

    /// Jobs that were taken go to the caller; those that are damaged or past their deadline become dead letters. Says how many
    /// were delivered.
    async fn deliver(&mut self, taken: Vec<TakenJob>) -> Result<usize> {
        let now = self.gathering.out.now;
        let count = taken.len();
        let read = |job| read(self.queue, job, self.gathering.claim, self.duration, now);
        let jobs = match taken.iter().map(read).collect::<Result<Vec<_>>>() {
            Ok(jobs) => jobs,
            Err(error) => return Err(self.put_back(taken.iter(), error).await),
        };
        let mut dying = Vec::new();
        for (taken, job) in taken.into_iter().zip(jobs) {
            match job {
                Ok(ready) => {
                    self.gathering.bytes += size(&taken);
                    self.gathering.out.jobs.push(ready);
                }
                Err(reason) => dying.push((taken, reason)),
            }
        }
        if !dying.is_empty() {
            self.gathering.dead_lettered += dying.len();
            if let Err(error) = self.dead_letter(&dying).await {
                return Err(self.put_back(dying.iter().map(|(taken, _)| taken), error).await);
            }
            if self.gathering.dead_lettered >= DEAD_LETTERED_MAX {
                self.gathering.full = true;
                // There may be more behind them.
                self.cx.events.push(Event::Available { queue: self.queue.clone(), jobs: 1 });
            }
        }
        Ok(count - dying.len())
    }

    /// What was taken cannot be delivered, for this reason.
    async fn put_back(&mut self, taken: impl Iterator<Item = &TakenJob>, error: StoreError) -> StoreError {
        let put_back = undelivered::put_back(self.store, self.queue, &taken.collect::<Vec<_>>()).await;
        self.cx.begun |= put_back.is_err();
        error
    }

    /// From lease to dead letter: no worker had them, and nothing counts.
    async fn dead_letter(&mut self, dying: &[(TakenJob, DeadReason)]) -> Result<()> {
        let queue = self.queue;
        let mut rounds = Rounds::default();
        loop {
            rounds.next()?;
            let Some(facts) = QueueFacts::read(self.store, queue).await? else { return Ok(()) };
            let (mut jobs, mut changes) = (Vec::with_capacity(dying.len()), Changes::default());
            for (taken, reason) in dying {
                let fence = Bytes::copy_from_slice(&taken.lease);
                changes.fence(Fence::Begins(Table::Lease, RecordKey::Number(taken.number), fence));
                changes.end_lease(&Lease::of(queue.clone(), taken.number, &taken.lease, None));
                let job = JobFacts::of(taken.number, taken.job.as_ref(), taken.history.as_ref())?;
                jobs.push((job, Index::Leased, *reason));
            }
            let mark = self.cx.events.len();
            dead_letter_all(self.store, self.cx, queue, &facts, &jobs, &mut changes).await?;
            if let Applied::Done(_) = self.store.apply(queue, &changes.batch()).await? {
                self.cx.memory.forget_facts(queue);
                self.cx.lease_ended();
                return Ok(());
            }
            self.cx.events.truncate(mark);
        }
    }
}

/// Jobs of a queue that are ready, whatever holds them.
async fn ready<S: Storage>(store: &mut S, queue: &QueueName) -> Result<u64> {
    let reads = [Index::Ready, Index::Keyed].map(|index| Read::Len(Len::Index(index)));
    Ok(ask(store, queue, &reads).await?.map(|found| found.number()).sum())
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
    queue: &QueueName, taken: &TakenJob, claim: &Claim, duration: Duration, now: Timestamp,
) -> Result<Result<Delivered, DeadReason>> {
    let history = read_if(taken.history.as_ref(), records::read_history)?.unwrap_or_default();
    let (mut progress, learnt_key) = (history.progress, history.learnt_key);
    let spec = match &taken.job {
        Some(record) => records::readable(records::read_job(record, taken.body.as_ref()))?,
        None => None,
    };
    let Some(spec) = spec else { return Ok(Err(DeadReason::Corrupt)) };
    if progress.deadline(spec.expires_at).is_some_and(|deadline| deadline <= now) {
        return Ok(Err(DeadReason::Expired));
    }
    let last_failure = read_if(taken.last_failure.as_ref(), records::read_failure)?;
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
    Ok(Ok(Delivered { queue: queue.clone(), spec, progress, delivery, last_failure, learnt_key }))
}

/// The token of a lease: an own id travels in it, so that an Ack needs no look at the job.
fn token(queue: &QueueName, number: u64, fence: &[u8; Lease::FENCE], spec: &Spec) -> Lease {
    let own_id = records::own_id(spec, number).filter(|id| id.len() <= Lease::OWN_ID_MAX);
    Lease::of(queue.clone(), number, fence, own_id.map(Into::into))
}
