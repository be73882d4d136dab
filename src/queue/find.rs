//! Finding a job: by its id, and in the index that has it.

use super::answers::{Answers, ask, ask_if_there, ask_known, by_name, numbered, range};
use super::facts::{JobFacts, LeaseFacts};
use super::records::{self, Whereabouts, read_if};
use super::refusal::{self, Refusal};
use crate::domain::{JobId, Lease, QueueName, State, Timestamp};
use crate::store::Result;
use crate::store::storage::{Entry, Index, Member, Read, Reads, RecordKey, Table, flag};
use bytes::Bytes;
use std::collections::HashSet;

/// How often a job that moves meanwhile is looked for.
const ROUNDS_MAX: usize = 3;
/// Entries of one read while an index is searched.
const SEARCH_ENTRIES: usize = 1_000;

// ---- by id ----

/// A job that has the id that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) queue: QueueName,
    pub(crate) number: u64,
    /// The id is the caller's own: there is a record in `Id`.
    pub(crate) own_id: bool,
}

/// The jobs of this id, by name of their queues: one in each queue that has it.
pub(crate) async fn find_job<S: Reads>(
    store: &mut S, id: &JobId, queue: Option<&QueueName>,
) -> refusal::Result<Vec<Named>> {
    let reads: Vec<_> = id_reads(id).collect();
    if let Some(queue) = queue {
        let mut found = ask_known(store, queue, &reads).await?;
        return Ok(named(id, queue, &mut found)?.into_iter().collect());
    }
    let queues = holders(store, id).await?;
    let mut all = Vec::with_capacity(queues.len());
    for queue in queues {
        all.extend(named(id, &queue, &mut ask(store, &queue, &reads).await?)?);
    }
    // An own id may outlive its job, and where that was no job is meant.
    if all.len() > 1 {
        let mut there = Vec::with_capacity(all.len());
        for named in all {
            let job = ask(store, &named.queue, &[numbered(Table::Job, named.number)]).await?.record();
            there.extend(job.map(|_| named));
        }
        all = there;
    }
    Ok(all)
}

async fn holders<S: Reads>(store: &mut S, id: &JobId) -> Result<Vec<QueueName>> {
    let text = RecordKey::Text(id.to_string().into());
    let mut queues = store.holders(Table::Id, &text).await?;
    if let Some(number) = id.number() {
        queues.extend(store.holders(Table::Job, &RecordKey::Number(number)).await?);
    }
    queues.sort_unstable();
    queues.dedup();
    Ok(queues)
}

fn named(id: &JobId, queue: &QueueName, found: &mut Answers) -> Result<Option<Named>> {
    let (record, own) = found_id(id, found)?;
    let queue = queue.clone();
    if let Some(record) = read_if(record.as_ref(), records::read_id)? {
        return Ok(Some(Named { queue, number: record.number, own_id: true }));
    }
    Ok(own.map(|number| Named { queue, number, own_id: false }))
}

/// Reads of [`found_id`].
pub(crate) fn id_reads(id: &JobId) -> impl Iterator<Item = Read> {
    let record = by_name(Table::Id, id.to_string());
    std::iter::once(record).chain(id.number().map(|number| numbered(Table::Job, number)))
}

/// The record of the id, and the number that it holds, where the job of that number has this id: one that a server made has no
/// record of its own.
pub(crate) fn found_id(id: &JobId, found: &mut Answers) -> Result<(Option<Bytes>, Option<u64>)> {
    let record = found.record();
    Ok(match id.number().and_then(|number| Some((number, found.record()?))) {
        Some((number, job)) if has_id(&job, id)? => (record, Some(number)),
        _ => (record, None),
    })
}

/// Whether the record of a job has this id.
pub(crate) fn has_id(job: &Bytes, id: &JobId) -> Result<bool> {
    let spec = records::readable(records::read_job_head(job))?;
    Ok(spec.is_some_and(|spec| spec.id == *id))
}

/// The one job that is meant, and where it is.
pub(crate) async fn find_one<S: Reads>(
    store: &mut S, id: &JobId, queue: Option<&QueueName>,
) -> refusal::Result<(Named, Located)> {
    let mut before = None;
    loop {
        let named = find_job(store, id, queue).await?;
        let named = only(id, queue, named, |named| &named.queue)?;
        match locate(store, &named.queue, named.number).await? {
            Some(located) => return Ok((named, located)),
            // A job that was replaced meanwhile has another number.
            None if before.replace(named.number) == Some(named.number) => return Err(not_found(id, queue).into()),
            None => {}
        }
    }
}

/// The one of them, where a call means one job.
pub(crate) fn only<T>(
    id: &JobId, queue: Option<&QueueName>, mut found: Vec<T>, queue_of: impl Fn(&T) -> &QueueName,
) -> Result<T, Refusal> {
    if found.len() > 1 {
        let queues = found.iter().map(|it| queue_of(it).clone()).collect();
        return Err(Refusal::AmbiguousJobId { id: id.to_string(), queues });
    }
    found.pop().ok_or_else(|| not_found(id, queue))
}

fn not_found(id: &JobId, queue: Option<&QueueName>) -> Refusal {
    Refusal::JobNotFound { id: id.to_string(), searched: queue.map(|queue| (queue.clone(), None)) }
}

pub(crate) fn key_not_found(key: &str, queue: &QueueName) -> Refusal {
    Refusal::KeyNotFound { key: key.to_owned(), queue: queue.clone(), kept: None }
}

/// The token of a lease as its worker has it.
pub(crate) fn with_own_id(mut lease: Lease, id: &JobId) -> Lease {
    if lease.flags & flag::OWN_ID != 0 {
        let id = id.to_string();
        lease.own_id = (id.len() <= Lease::OWN_ID_MAX).then(|| id.into());
    }
    lease
}

// ---- by number ----

/// A job, and the index that has it.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) job: JobFacts,
    pub(crate) index: Index,
    pub(crate) entry: Entry,
    /// In `Leased`.
    pub(crate) lease: Option<LeaseFacts>,
}

/// The state of the jobs of an index.
pub(crate) fn state_of(index: Index) -> State {
    match index {
        Index::Ready | Index::Keyed => State::Ready,
        Index::Scheduled => State::Scheduled,
        Index::Retrying => State::Retrying,
        Index::Leased => State::Leased,
        Index::Dead | Index::Overflow => State::Dead,
        Index::Cancelled => State::Cancelled,
        _ => State::Completed,
    }
}

pub(crate) async fn locate<S: Reads>(store: &mut S, queue: &QueueName, number: u64) -> Result<Option<Located>> {
    Ok(locate_all(store, queue, &[number]).await?.pop().flatten())
}

/// `None`: there is no such job.
pub(crate) async fn locate_all<S: Reads>(
    store: &mut S, queue: &QueueName, numbers: &[u64],
) -> Result<Vec<Option<Located>>> {
    let mut located: Vec<Option<Located>> = numbers.iter().map(|_| None).collect();
    let mut left: Vec<usize> = (0..numbers.len()).collect();
    for _ in 0..ROUNDS_MAX {
        if left.is_empty() {
            break;
        }
        left = locate_some(store, queue, numbers, left, &mut located).await?;
    }
    for at in left {
        located[at] = search(store, queue, numbers[at]).await?;
    }
    Ok(located)
}

/// Looks where their records say that they are. Those that are not there come back: they move, or a record is damaged.
async fn locate_some<S: Reads>(
    store: &mut S, queue: &QueueName, numbers: &[u64], wanted: Vec<usize>, located: &mut [Option<Located>],
) -> Result<Vec<usize>> {
    let reads: Vec<_> = wanted.iter().flat_map(|at| LeaseFacts::reads(numbers[*at])).collect();
    let Some(mut found) = ask_if_there(store, queue, &reads).await? else { return Ok(Vec::new()) };
    let now = store.now();
    let (mut waiting, mut reads) = (Vec::new(), Vec::new());
    for at in wanted {
        match LeaseFacts::found(queue, numbers[at], &mut found)? {
            Ok(lease) => {
                let (job, entry) = (lease.job.clone(), Entry::number(lease.score, lease.job.number));
                located[at] = Some(Located { job, index: Index::Leased, entry, lease: Some(lease) });
            }
            Err(job) if job.exists => {
                let candidates = candidates(&job, now);
                reads.extend(candidates.iter().map(|(index, entry)| Read::Score(*index, entry.member.clone())));
                waiting.push((at, job, candidates));
            }
            Err(_) => {}
        }
    }
    let mut found = ask(store, queue, &reads).await?;
    let mut left = Vec::new();
    for (at, job, candidates) in waiting {
        let mut hit = None;
        for (index, entry) in candidates {
            let score = found.score();
            hit = hit.or_else(|| score.map(|score| (index, Entry { score, ..entry })));
        }
        match hit {
            Some((index, entry)) => located[at] = Some(Located { job, index, entry, lease: None }),
            None => left.push(at),
        }
    }
    Ok(left)
}

/// The indexes that may have a job which is not leased, and where. A promotion moves it and writes nothing else.
fn candidates(job: &JobFacts, now: Timestamp) -> Vec<(Index, Entry)> {
    let (whereabouts, at) = job.whereabouts(now);
    let position = records::position(job.group(), job.number, job.rank(), at, job.has_history);
    let (waiting, ready) = (Entry::waiting(position), Entry::ready(position));
    let numbered = Entry::number(at.millis(), job.number);
    match whereabouts {
        Whereabouts::Ready => vec![(position.ready_index(), ready)],
        Whereabouts::Scheduled => vec![(Index::Scheduled, waiting), (position.ready_index(), ready)],
        Whereabouts::Retrying => vec![(Index::Retrying, waiting), (position.ready_index(), ready)],
        Whereabouts::Completed => vec![(Index::Completed, numbered)],
        Whereabouts::Cancelled => vec![(Index::Cancelled, numbered)],
        Whereabouts::Dead => vec![(Index::Dead, numbered.clone()), (Index::Overflow, numbered)],
        Whereabouts::Overflow => vec![(Index::Overflow, numbered.clone()), (Index::Dead, numbered)],
    }
}

/// Looks at every waiting job of the queue: for one whose record cannot be trusted.
async fn search<S: Reads>(store: &mut S, queue: &QueueName, number: u64) -> Result<Option<Located>> {
    const BY_NUMBER: [Index; 4] = [Index::Dead, Index::Overflow, Index::Completed, Index::Cancelled];
    let mut reads = JobFacts::reads(number).to_vec();
    reads.extend(BY_NUMBER.map(|index| Read::Score(index, Member::Number(number))));
    let Some(mut found) = ask_if_there(store, queue, &reads).await? else { return Ok(None) };
    let job = JobFacts::found(number, &mut found)?;
    if !job.exists {
        return Ok(None);
    }
    let scores = found.map(|found| found.score());
    let hit = BY_NUMBER.into_iter().zip(scores).find_map(|(index, score)| Some((index, score?)));
    if let Some((index, score)) = hit {
        let entry = Entry::number(score, number);
        return Ok(Some(Located { job, index, entry, lease: None }));
    }
    for index in [Index::Ready, Index::Keyed, Index::Scheduled, Index::Retrying] {
        if let Some(entry) = search_index(store, queue, index, number).await? {
            return Ok(Some(Located { job, index, entry, lease: None }));
        }
    }
    Ok(None)
}

async fn search_index<S: Reads>(store: &mut S, queue: &QueueName, index: Index, number: u64) -> Result<Option<Entry>> {
    let mut after = None;
    loop {
        let entries = ask(store, queue, &[range(index, after, SEARCH_ENTRIES)]).await?.entries();
        let last = entries.last().cloned();
        let hit = entries.into_iter().find(|entry| entry.member.job() == Some(number));
        if hit.is_some() || last.is_none() {
            return Ok(hit);
        }
        after = last;
    }
}

/// Those of these jobs that are there, and neither done nor cancelled.
pub(crate) async fn not_done<S: Reads>(store: &mut S, queue: &QueueName, numbers: &[u64]) -> Result<HashSet<u64>> {
    let reads: Vec<_> = numbers.iter().flat_map(|number| JobFacts::reads(*number)).collect();
    let mut found = ask(store, queue, &reads).await?;
    let mut left = HashSet::new();
    for number in numbers {
        let job = JobFacts::found(*number, &mut found)?;
        let done = job.history.as_ref().is_some_and(|history| history.whereabouts.is_over());
        left.extend((job.exists && !done).then_some(*number));
    }
    Ok(left)
}
