//! Finding a job: by its id, and in the index that has it.

use super::{
    facts::{JobFacts, LeaseFacts},
    records::{self, Whereabouts},
};
use crate::{
    domain::{
        ids::{JobId, QueueName},
        job::State,
        lease::Lease,
    },
    store::{
        JobRefused, StoreError,
        storage::{Entry, Found, Index, Member, Read, Reads, RecordKey, Table, flag},
    },
};
use bytes::Bytes;

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
    store: &mut S,
    id: &JobId,
    queue: Option<&QueueName>,
) -> Result<Vec<Named>, StoreError> {
    let queues = match queue {
        Some(queue) => vec![queue.clone()],
        None => holders(store, id).await?,
    };
    let mut named = Vec::with_capacity(queues.len());
    for queue in queues {
        named.extend(find_in(store, id, queue).await?);
    }
    Ok(named)
}

async fn holders<S: Reads>(store: &mut S, id: &JobId) -> Result<Vec<QueueName>, StoreError> {
    let text = RecordKey::Text(id.to_string().into());
    let mut queues = store.holders(Table::Id, &text).await?;
    if let Some(number) = id.number() {
        queues.extend(store.holders(Table::Job, &RecordKey::Number(number)).await?);
    }
    queues.sort_unstable();
    queues.dedup();
    Ok(queues)
}

async fn find_in<S: Reads>(
    store: &mut S,
    id: &JobId,
    queue: QueueName,
) -> Result<Option<Named>, StoreError> {
    let mut reads = vec![Read::Record(Table::Id, RecordKey::Text(id.to_string().into()))];
    let number = id.number();
    reads.extend(number.map(|number| Read::Record(Table::Job, RecordKey::Number(number))));
    let Some(found) = store.read(&queue, &reads).await? else { return Ok(None) };
    let mut found = found.into_iter().map(Found::record);
    if let Some(record) = found.next().flatten()
        && let Some(record) = records::readable(records::read_id(&record))?
    {
        return Ok(Some(Named { queue, number: record.number, own_id: true }));
    }
    // An id that a server made has no record of its own.
    let (Some(number), Some(job)) = (number, found.next().flatten()) else { return Ok(None) };
    let is_its = has_id(&job, id)?;
    Ok(is_its.then_some(Named { queue, number, own_id: false }))
}

/// Whether the record of a job has this id.
pub(crate) fn has_id(job: &Bytes, id: &JobId) -> Result<bool, StoreError> {
    let spec = records::readable(records::read_job_head(job))?;
    Ok(spec.is_some_and(|spec| spec.id == *id))
}

/// The one job that is meant.
pub(crate) async fn find_one<S: Reads>(
    store: &mut S,
    id: &JobId,
    queue: Option<&QueueName>,
) -> Result<Result<Named, JobRefused>, StoreError> {
    let mut named = find_job(store, id, queue).await?;
    if named.len() > 1 {
        let queues = named.into_iter().map(|named| named.queue).collect();
        return Ok(Err(JobRefused::Ambiguous { queues }));
    }
    Ok(named.pop().ok_or(JobRefused::NoSuchJob))
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
        Index::Ready => State::Ready,
        Index::Scheduled | Index::Retrying => State::Scheduled,
        Index::Leased => State::Leased,
        Index::Dead | Index::Overflow => State::Dead,
        _ => State::Completed,
    }
}

pub(crate) async fn locate<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    number: u64,
) -> Result<Option<Located>, StoreError> {
    Ok(locate_all(store, queue, &[number]).await?.pop().flatten())
}

/// `None`: there is no such job.
pub(crate) async fn locate_all<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    numbers: &[u64],
) -> Result<Vec<Option<Located>>, StoreError> {
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
    store: &mut S,
    queue: &QueueName,
    numbers: &[u64],
    wanted: Vec<usize>,
    located: &mut [Option<Located>],
) -> Result<Vec<usize>, StoreError> {
    let reads: Vec<_> = wanted.iter().flat_map(|at| LeaseFacts::reads(numbers[*at])).collect();
    let Some(found) = store.read(queue, &reads).await? else { return Ok(Vec::new()) };
    let (mut found, now) = (found.into_iter(), store.now());
    let (mut waiting, mut reads) = (Vec::new(), Vec::new());
    for at in wanted {
        let (lease, job) = LeaseFacts::found(queue, numbers[at], &mut found)?;
        if let Some(lease) = lease {
            let entry = Entry::number(lease.score, job.number);
            located[at] = Some(Located { job, index: Index::Leased, entry, lease: Some(lease) });
        } else if job.exists {
            let candidates = candidates(&job, now);
            let score = |(index, entry): &(Index, Entry)| Read::Score(*index, entry.member.clone());
            reads.extend(candidates.iter().map(score));
            waiting.push((at, job, candidates));
        }
    }
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    let found = store.read(queue, &reads).await?.unwrap_or_default();
    let mut found = found.into_iter().map(|found| found.score());
    let mut left = Vec::new();
    for (at, job, candidates) in waiting {
        let scores = found.by_ref().take(candidates.len());
        let mut hits: Vec<_> = candidates
            .into_iter()
            .zip(scores)
            .filter_map(|((index, entry), score)| {
                score.map(|score| (index, Entry { score, ..entry }))
            })
            .collect();
        match hits.is_empty() {
            true => left.push(at),
            false => {
                let (index, entry) = hits.swap_remove(0);
                located[at] = Some(Located { job, index, entry, lease: None });
            }
        }
    }
    Ok(left)
}

/// The indexes that may have a job which is not leased, and where. A promotion moves it and writes nothing else.
fn candidates(job: &JobFacts, now: crate::domain::time::Timestamp) -> Vec<(Index, Entry)> {
    let (whereabouts, at) = job.whereabouts(now);
    let position = records::position(job.number, job.rank(), at, job.has_history);
    let (waiting, ready) = (Entry::waiting(position), Entry::ready(position));
    let numbered = Entry::number(at.millis(), job.number);
    match whereabouts {
        Whereabouts::Ready => vec![(Index::Ready, ready)],
        Whereabouts::Scheduled => vec![(Index::Scheduled, waiting), (Index::Ready, ready)],
        Whereabouts::Retrying => vec![(Index::Retrying, waiting), (Index::Ready, ready)],
        Whereabouts::Completed => vec![(Index::Completed, numbered)],
        Whereabouts::Dead => vec![(Index::Dead, numbered.clone()), (Index::Overflow, numbered)],
        Whereabouts::Overflow => vec![(Index::Overflow, numbered.clone()), (Index::Dead, numbered)],
    }
}

/// Looks at every waiting job of the queue: for one whose record cannot be trusted.
async fn search<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    number: u64,
) -> Result<Option<Located>, StoreError> {
    const BY_NUMBER: [Index; 3] = [Index::Dead, Index::Overflow, Index::Completed];
    let mut reads = JobFacts::reads(number).to_vec();
    reads.extend(BY_NUMBER.map(|index| Read::Score(index, Member::Number(number))));
    let Some(found) = store.read(queue, &reads).await? else { return Ok(None) };
    let mut found = found.into_iter();
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
    for index in [Index::Ready, Index::Scheduled, Index::Retrying] {
        if let Some(entry) = search_index(store, queue, index, number).await? {
            return Ok(Some(Located { job, index, entry, lease: None }));
        }
    }
    Ok(None)
}

async fn search_index<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    index: Index,
    number: u64,
) -> Result<Option<Entry>, StoreError> {
    let mut after = None;
    loop {
        let limit = SEARCH_ENTRIES;
        let range = Read::Range { index, after, up_to: None, limit, reverse: false };
        let found = store.read(queue, &[range]).await?.unwrap_or_default();
        let entries = found.into_iter().next().map(Found::entries).unwrap_or_default();
        let last = entries.last().cloned();
        let hit = entries.into_iter().find(|entry| entry.member.job() == Some(number));
        if hit.is_some() || last.is_none() {
            return Ok(hit);
        }
        after = last;
    }
}
