//! Cancel and run-now: an operator changes one job.

use super::{
    context::{CallContext, Event, overtaken},
    facts::QueueFacts,
    find::{self, Located, Named},
    records::{self, KeyRecord, LeaseRecord, LeaseTail, Whereabouts},
    state_changes::Changes,
};
use crate::{
    domain::{
        ids::{JobId, QueueName},
        job::State,
        time::Timestamp,
    },
    store::{
        Cancelled, JobRefused, StoreError,
        storage::{
            Applied, Fence, Found, Index, Member, Position, Read, RecordKey, Storage, Table, flag,
        },
    },
};

/// How often others may overtake a call before it gives up.
const ROUNDS_MAX: usize = 50;

/// Removes a job that waits, or asks for the end of one that is leased.
pub(crate) async fn cancel<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    id: &JobId,
    queue: Option<&QueueName>,
) -> Result<Result<Cancelled, JobRefused>, StoreError> {
    for _ in 0..ROUNDS_MAX {
        let (named, located) = match find_one(store, id, queue).await? {
            Ok(found) => found,
            Err(refused) => return Ok(Err(refused)),
        };
        let outcome = match find::state_of(located.index) {
            State::Leased => request(store, cx, id, &named, &located).await?,
            State::Ready | State::Scheduled => remove(store, id, &named, located).await?,
            state @ (State::Completed | State::Dead) => {
                return Ok(Err(JobRefused::WrongState { state }));
            }
        };
        if let Some(cancelled) = outcome {
            return Ok(Ok(cancelled));
        }
    }
    Err(overtaken())
}

/// SCHEDULED → READY now; a READY one stays as it is.
pub(crate) async fn run_now<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    id: &JobId,
    queue: Option<&QueueName>,
) -> Result<Result<(), JobRefused>, StoreError> {
    for _ in 0..ROUNDS_MAX {
        let (named, located) = match find_one(store, id, queue).await? {
            Ok(found) => found,
            Err(refused) => return Ok(Err(refused)),
        };
        match (find::state_of(located.index), position_of(&located)) {
            (State::Ready, _) => return Ok(Ok(())),
            (State::Scheduled, Some(position)) => {
                if make_ready(store, cx, &named.queue, &located, position).await? {
                    return Ok(Ok(()));
                }
            }
            (state, _) => return Ok(Err(JobRefused::WrongState { state })),
        }
    }
    Err(overtaken())
}

async fn find_one<S: Storage>(
    store: &mut S,
    id: &JobId,
    queue: Option<&QueueName>,
) -> Result<Result<(Named, Located), JobRefused>, StoreError> {
    let named = match find::find_one(store, id, queue).await? {
        Ok(named) => named,
        Err(refused) => return Ok(Err(refused)),
    };
    let located = find::locate(store, &named.queue, named.number).await?;
    Ok(located.map(|located| (named, located)).ok_or(JobRefused::NoSuchJob))
}

fn position_of(located: &Located) -> Option<Position> {
    match located.entry.member {
        Member::Position(position) => Some(position),
        _ => None,
    }
}

/// `None`: the facts are old.
async fn request<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    id: &JobId,
    named: &Named,
    located: &Located,
) -> Result<Option<Cancelled>, StoreError> {
    let Some(facts) = &located.lease else { return Ok(None) };
    if !facts.lease.tail.cancel_requested {
        let tail = LeaseTail { cancel_requested: true, ..facts.lease.tail.clone() };
        let record = records::lease(&LeaseRecord { tail, ..facts.lease.clone() });
        let mut changes = Changes::default();
        changes.fence(facts.fence());
        changes.put(Table::Lease, RecordKey::Number(named.number), record);
        if !matches!(store.apply(&named.queue, &changes.batch()).await?, Applied::Done(_)) {
            return Ok(None);
        }
    }
    let lease = find::with_own_id(facts.lease.lease.clone(), id);
    cx.events.push(Event::CancelRequested(lease));
    Ok(Some(Cancelled::Requested))
}

/// `None`: the facts are old.
async fn remove<S: Storage>(
    store: &mut S,
    id: &JobId,
    named: &Named,
    located: Located,
) -> Result<Option<Cancelled>, StoreError> {
    let Located { mut job, index, entry, .. } = located;
    let mut reads = vec![Read::Score(Index::Deadline, Member::Number(job.number))];
    if let Some(key) = &job.spec.key {
        reads.push(Read::Record(Table::Key, RecordKey::Text(key.as_str().into())));
    }
    let found = store.read(&named.queue, &reads).await?.unwrap_or_default();
    let mut found = found.into_iter();
    // The indexes and the id that was asked for are right, whatever a damaged record says.
    let deadline = found.next().and_then(|found| found.score());
    job.spec.expires_at = deadline.map(Timestamp::from_millis);
    job.spec.id = id.clone();
    job.traits &= !flag::OWN_ID;
    if named.own_id {
        job.traits |= flag::OWN_ID;
    }
    let key: Option<KeyRecord> = match found.next().and_then(Found::record) {
        Some(record) => records::readable(records::read_key(&record))?,
        None => None,
    };
    let mut changes = Changes::default();
    changes.fence(Fence::At(index, entry.clone()));
    changes.remove(index, entry);
    changes.cancel_job(&job, key.as_ref());
    let applied = store.apply(&named.queue, &changes.batch()).await?;
    Ok(matches!(applied, Applied::Done(_)).then_some(Cancelled::Removed))
}

/// False: the facts are old.
async fn make_ready<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    located: &Located,
    position: Position,
) -> Result<bool, StoreError> {
    let Located { job, index, entry, .. } = located;
    let now = store.now();
    let mut changes = Changes::default();
    changes.fence(Fence::At(*index, entry.clone()));
    changes.remove(*index, entry.clone());
    let mut history = job.next_history(job.progress());
    history.rank = position.rank;
    // It may have been due already, and keeps its position then.
    let at = position.ready_at.min(now);
    let events = cx.events.len();
    changes.enter_waiting(job, history, at, Whereabouts::Scheduled, now, cx, queue);
    let Applied::Done(done) = store.apply(queue, &changes.batch()).await? else {
        cx.events.truncate(events);
        return Ok(false);
    };
    if let Some(facts) = QueueFacts::remembered(store, queue, cx).await? {
        cx.available(queue, &facts, done.ready, now);
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
