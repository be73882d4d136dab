//! Views of jobs: what reads answer about them.

use super::{
    context, cross_queue,
    facts::LeaseFacts,
    find::{self, Named},
    records::{self, DeadRecord},
    state_changes::{FIRST_FAILURE, LAST_FAILURE, attempt_part, kept_attempts},
};
use crate::{
    domain::{
        breaker::Breaker,
        failure::Failure,
        ids::{JobId, QueueName},
        job::{Attempt, Body, DeadReason, Spec, State},
        pause::Pause,
        time::Timestamp,
    },
    store::{
        Ahead, Death, JobView, StoreError,
        storage::{
            Entry, Found, Index, Member, NO_GROUP, Position, Read, Reads, RecordKey, Table, flag,
        },
    },
};
use bytes::Bytes;
use std::ops::Range;

/// READY jobs ahead are counted up to here.
pub(crate) const AHEAD_MAX: usize = 10_000;
/// Views that are completed by one read, and bytes of their bodies.
const GROUP_JOBS: usize = 25;
const GROUP_BYTES: usize = 1 << 20;
/// Parts that attempts stand in.
const ATTEMPT_PARTS: Range<u8> = 1..51;

/// How much of a job a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Detail {
    /// No more than a line of a list needs.
    Brief,
    /// And attempts and checkpoint.
    Attempts,
    /// And body, headers and result.
    Whole,
}

/// The jobs of this id, with their history: one in each queue that has it.
pub(crate) async fn job<S: Reads>(
    store: &mut S,
    id: &JobId,
    queue: Option<&QueueName>,
) -> Result<Vec<JobView>, StoreError> {
    let named = find::find_job(store, id, queue).await?;
    // A caller that finds several has to ask again, and needs no bodies for that.
    let detail = if named.len() == 1 { Detail::Whole } else { Detail::Attempts };
    let mut found = Vec::with_capacity(named.len());
    for Named { queue, number, .. } in named {
        found.extend(view(store, &queue, number, detail).await?);
    }
    Ok(found)
}

/// How often a job that moves meanwhile is looked at.
const ROUNDS_MAX: usize = 3;

async fn view<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    number: u64,
    detail: Detail,
) -> Result<Option<JobView>, StoreError> {
    for _ in 0..ROUNDS_MAX {
        let Some(located) = find::locate(store, queue, number).await? else { return Ok(None) };
        let seen = [(located.index, located.entry)];
        let Some(mut view) = views(store, queue, &seen, detail).await?.pop().flatten() else {
            continue;
        };
        if let (Index::Ready, Entry { member: Member::Position(position), .. }) = &seen[0] {
            view.ahead = Some(ahead(store, queue, *position).await?);
        }
        return Ok(Some(view));
    }
    Ok(None)
}

/// How many jobs are handed out before this one.
pub(crate) async fn ahead<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    position: Position,
) -> Result<Ahead, StoreError> {
    let found = store.read(queue, &[Read::Ahead(position, AHEAD_MAX + 1)]).await?;
    let jobs = found.into_iter().flatten().next().map_or(0, |found| found.number());
    Ok(counted(usize::try_from(jobs).unwrap_or(usize::MAX)))
}

pub(crate) fn counted(jobs: usize) -> Ahead {
    Ahead { jobs: jobs.min(AHEAD_MAX), more: jobs > AHEAD_MAX }
}

/// Jobs as views, without what is ahead of them. `seen`: the indexes that have them, and where. `None`: it is there no longer,
/// or has arrived in another queue.
pub(crate) async fn views<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    seen: &[(Index, Entry)],
    detail: Detail,
) -> Result<Vec<Option<JobView>>, StoreError> {
    let heads = heads(store, queue, seen).await?;
    let mut views = Vec::with_capacity(heads.len());
    let mut heads = heads.as_slice();
    while !heads.is_empty() {
        let (now, later) = heads.split_at(group(heads, detail));
        views.extend(complete(store, queue, now, detail).await?);
        heads = later;
    }
    Ok(views)
}

// ---- the first read: all but bodies, results, failures and attempts ----

/// A job as far as the first read shows it.
pub(crate) struct Head {
    number: u64,
    job: Option<Bytes>,
    /// It has a record in `History`, which may be damaged.
    has_history: bool,
    /// Attempts that were recorded, where its history can be read.
    recorded: Option<u32>,
    has_failed: bool,
    /// Without body and headers.
    view: JobView,
}

impl Head {
    pub(crate) fn job_type(&self) -> &str {
        &self.view.spec.job_type
    }

    /// About what its body takes.
    fn body_bytes(&self) -> usize {
        let size = self.job.as_ref().and_then(|job| job.first_chunk().copied());
        size.map_or(0, |size| u32::from_be_bytes(size) as usize)
    }
}

/// How many of them are completed by one read, one at least.
pub(crate) fn group(heads: &[Option<Head>], detail: Detail) -> usize {
    let most = match detail {
        Detail::Brief => heads.len(),
        _ => GROUP_JOBS.min(heads.len()),
    };
    let mut bytes = 0;
    let fits = |head: &&Option<Head>| {
        bytes += head.as_ref().filter(|_| detail == Detail::Whole).map_or(0, Head::body_bytes);
        bytes <= GROUP_BYTES
    };
    heads[..most].iter().take_while(fits).count().max(1)
}

fn is_dead(index: Index) -> bool {
    matches!(index, Index::Dead | Index::Overflow)
}

/// See [`views`].
pub(crate) async fn heads<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    seen: &[(Index, Entry)],
) -> Result<Vec<Option<Head>>, StoreError> {
    let mut reads = vec![
        Read::Record(Table::Queue, RecordKey::Only),
        Read::Record(Table::Breaker, RecordKey::Group(NO_GROUP)),
    ];
    for (index, entry) in seen {
        let number = entry.member.job().unwrap_or_default();
        reads.extend(LeaseFacts::reads(number));
        if is_dead(*index) {
            reads.push(Read::Record(Table::Dead, RecordKey::Number(number)));
            reads.push(Read::Record(Table::Move, RecordKey::Number(number)));
            reads.push(Read::Score(*index, Member::Number(number)));
        }
    }
    let Some(found) = store.read(queue, &reads).await? else {
        return Ok(seen.iter().map(|_| None).collect());
    };
    let mut found = found.into_iter();
    let state = queue_state(&mut found)?;
    let mut heads = Vec::with_capacity(seen.len());
    let mut marks = Vec::new();
    for (index, entry) in seen {
        let seen = Seen { queue, index: *index, entry };
        let (head, mark) = seen.head(&state, &mut found)?;
        marks.extend(mark.map(|mark| (heads.len(), mark)));
        heads.push(head);
    }
    for (at, mark) in marks {
        let Some(head) = &heads[at] else { continue };
        if cross_queue::is_moved_away(store, head.number, &mark).await? {
            heads[at] = None;
        }
    }
    Ok(heads)
}

fn queue_state(
    found: &mut impl Iterator<Item = Found>,
) -> Result<(Option<Pause>, Breaker), StoreError> {
    let mut next = || found.next().and_then(Found::record);
    let record = next().map(|it| context::record(records::read_queue(&it))).transpose()?;
    let breaker = next().map(|it| context::record(records::read_breaker(&it))).transpose()?;
    Ok((record.unwrap_or_default().pause, breaker.unwrap_or_default()))
}

/// Where an index has a job.
struct Seen<'a> {
    queue: &'a QueueName,
    index: Index,
    entry: &'a Entry,
}

impl Seen<'_> {
    /// The head, if the job is still there, and its record in `Move`.
    fn head(
        &self,
        (pause, breaker): &(Option<Pause>, Breaker),
        found: &mut impl Iterator<Item = Found>,
    ) -> Result<(Option<Head>, Option<Bytes>), StoreError> {
        let number = self.entry.member.job().unwrap_or_default();
        let records: Vec<_> = found.by_ref().take(LeaseFacts::READS).collect();
        let job = match records.get(2) {
            Some(Found::Record(record)) => record.clone(),
            _ => None,
        };
        let (lease, facts) = LeaseFacts::found(self.queue, number, &mut records.into_iter())?;
        let mut next = || found.next().and_then(Found::record);
        let (dead, mark) = if is_dead(self.index) { (next(), next()) } else { (None, None) };
        let place = match is_dead(self.index) {
            true => found.next().and_then(|found| found.score()),
            false => None,
        };
        let state = find::state_of(self.index);
        let is_leased = lease.is_some();
        let moved = match &facts.history {
            _ if is_leased != (state == State::Leased) || !facts.exists => true,
            _ if is_dead(self.index) => dead.is_none() || place != Some(self.entry.score),
            Some(history) if state != State::Leased => {
                history.whereabouts.state() == State::Dead
                    || (history.whereabouts.state() == State::Completed)
                        != (state == State::Completed)
                    || self.ready_at().is_some_and(|at| at != history.at)
            }
            _ => false,
        };
        if moved {
            return Ok((None, mark));
        }
        let mut progress = facts.progress();
        let mut delivery = None;
        if let Some(lease) = &lease {
            progress = lease.progress();
            if !lease.lease.tail.checkpoint.is_empty() {
                progress.checkpoint.clone_from(&lease.lease.tail.checkpoint);
            }
            let mut running = lease.lease.delivery(lease.lease.expires_at(lease.score));
            running.lease = find::with_own_id(running.lease, &facts.spec.id);
            delivery = Some(running);
        }
        let at = facts.history.as_ref().map_or(facts.spec.run_at, |history| history.at);
        let death = match dead {
            Some(dead) => Some(self.death(&dead, at)?),
            None => None,
        };
        let completed = state == State::Completed;
        let view = JobView {
            queue: self.queue.clone(),
            corrupt: false,
            state,
            ready_at: self.ready_at(),
            old_place: lease.as_ref().map(|lease| lease.lease.position.ready_at),
            delivery,
            death,
            completed_at: completed.then_some(Timestamp::from_millis(self.entry.score)),
            result: Bytes::new(),
            attempts: Vec::new(),
            last_failure: None,
            ahead: None,
            pause: pause.clone(),
            breaker: breaker.clone(),
            progress,
            spec: Spec { headers: Vec::new(), ..facts.spec },
        };
        let recorded = facts.history.as_ref().map(|history| history.progress.recorded);
        let failed_at = facts.history.as_ref().map(|history| history.progress.first_failed_at);
        let head = Head {
            number,
            job,
            has_history: facts.has_history,
            recorded,
            has_failed: facts.has_history && failed_at.is_none_or(|at| at.is_some()),
            view,
        };
        Ok((Some(head), mark))
    }

    /// While it waits.
    fn ready_at(&self) -> Option<Timestamp> {
        match self.entry.member {
            Member::Position(position) => Some(position.ready_at),
            _ => None,
        }
    }

    /// Of a damaged record no more than its number. `at`: when its history says that it died.
    fn death(&self, record: &Bytes, at: Timestamp) -> Result<Death, StoreError> {
        let read = records::readable(records::read_dead(record))?.map(|(_, dead)| dead);
        let DeadRecord { reason, died_at, context, .. } = read.unwrap_or(DeadRecord {
            reason: DeadReason::Corrupt,
            died_at: at,
            counted_as: String::new(),
            context: Vec::new(),
        });
        let (number, overflow) = (self.entry.score, self.index == Index::Overflow);
        Ok(Death { number, reason, died_at, overflow, context })
    }
}

// ---- the second read ----

/// The rest of these jobs; those that are gone meanwhile are left out.
pub(crate) async fn complete<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    heads: &[Option<Head>],
    detail: Detail,
) -> Result<Vec<Option<JobView>>, StoreError> {
    let mut reads = Vec::new();
    for head in heads.iter().flatten() {
        head.reads(detail, &mut reads);
    }
    let found = match reads.is_empty() {
        true => Vec::new(),
        false => store.read(queue, &reads).await?.unwrap_or_default(),
    };
    let mut found = found.into_iter();
    let view = |head: &Option<Head>| match head {
        Some(head) => head.view(detail, &mut found),
        None => Ok(None),
    };
    heads.iter().map(view).collect()
}

impl Head {
    fn is_apart(&self) -> bool {
        self.job.as_ref().is_some_and(|job| records::traits(job) & flag::BODY != 0)
    }

    fn parts(&self) -> Vec<u8> {
        match self.recorded {
            Some(recorded) => kept_attempts(recorded).map(attempt_part).collect(),
            None if self.has_history => ATTEMPT_PARTS.collect(),
            None => Vec::new(),
        }
    }

    fn reads(&self, detail: Detail, reads: &mut Vec<Read>) {
        let key = || RecordKey::Number(self.number);
        let part = |table, part| Read::Record(table, RecordKey::Part(self.number, part));
        if self.has_failed {
            reads.extend([FIRST_FAILURE, LAST_FAILURE].map(|it| part(Table::Failure, it)));
        }
        if detail >= Detail::Attempts {
            reads.extend(self.parts().into_iter().map(|it| part(Table::Attempt, it)));
        }
        if detail == Detail::Whole && self.is_apart() {
            reads.extend([Read::Record(Table::Body, key()), Read::Record(Table::Job, key())]);
        }
        if detail == Detail::Whole && self.view.state == State::Completed {
            reads.push(Read::Record(Table::Result, key()));
        }
    }

    /// From what was found under [`Head::reads`].
    fn view(
        &self,
        detail: Detail,
        found: &mut impl Iterator<Item = Found>,
    ) -> Result<Option<JobView>, StoreError> {
        let mut next = || found.next().and_then(Found::record);
        let mut view = self.view.clone();
        let mut failures = Vec::new();
        if self.has_failed {
            for record in [next(), next()].into_iter().flatten() {
                failures.extend(records::readable(records::read_failure(&record))?);
            }
        }
        if detail >= Detail::Attempts {
            let kept: Vec<_> = self.parts().into_iter().filter_map(|_| next()).collect();
            view.attempts = attempts(&kept, failures.first(), failures.last())?;
        } else {
            view.progress.checkpoint.clear();
        }
        view.last_failure = failures.pop();
        if detail < Detail::Whole {
            return Ok(Some(view));
        }
        let mut body = None;
        if self.is_apart() {
            body = next();
            if next().is_none() {
                // Its body went with it.
                return Ok(None);
            }
        }
        if let Some(job) = &self.job {
            (view.spec, view.corrupt) = whole(self.number, job, body)?;
        }
        if view.state == State::Completed
            && let Some(record) = next()
        {
            let result = records::readable(records::read_result(&record))?;
            view.corrupt |= result.is_none();
            view.result = result.unwrap_or_default();
        }
        Ok(Some(view))
    }
}

/// The job with its body, and whether it is damaged.
pub(crate) fn whole(
    number: u64,
    job: &Bytes,
    body: Option<Bytes>,
) -> Result<(Spec, bool), StoreError> {
    if let Some(spec) = records::readable(records::read_job(job, body.as_ref()))? {
        return Ok((spec, false));
    }
    if let Some(spec) = records::readable(records::read_job_unchecked(job, body.as_ref()))? {
        return Ok((spec, true));
    }
    let spec = records::job_or_stand_in(number, None)?;
    Ok((Spec { body: body.map_or(Body::None, Body::Data), ..spec }, true))
}

/// The attempts in order, with first and last failure whole.
fn attempts(
    kept: &[Bytes],
    first: Option<&Failure>,
    last: Option<&Failure>,
) -> Result<Vec<Attempt>, StoreError> {
    let mut all = Vec::with_capacity(kept.len());
    for record in kept {
        let attempt = records::readable(records::read_attempt(record))?;
        all.push(attempt.unwrap_or_else(records::damaged_attempt));
    }
    let failed = |attempt: &&mut Attempt| attempt.failure.is_some();
    if let Some(attempt) = all.iter_mut().rfind(failed) {
        make_whole(attempt, last);
    }
    if let Some(attempt) = all.iter_mut().find(failed) {
        make_whole(attempt, first);
    }
    Ok(all)
}

/// Puts a failure where its summary is; its own attempt may be one of those that were not kept.
fn make_whole(attempt: &mut Attempt, whole: Option<&Failure>) {
    if attempt.failure == whole.map(Failure::summary) {
        attempt.failure = whole.cloned();
    }
}
