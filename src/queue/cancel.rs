//! Cancel and run-now: an operator changes one job.

use super::answers::{ask, by_name};
use super::context::CallContext;
use super::events::{Event, EventKind};
use super::facts::{QueueFacts, Rounds};
use super::find::{self, Located, Named};
use super::records::{self, LeaseTail, Whereabouts};
use super::refusal::{self, Refusal};
use super::state_changes::Changes;
use super::undelivered::put_lease;
use crate::domain::{JobEvent, JobEventKind, JobId, QueueName, State, Timestamp};
use crate::queue::Cancelled;
use crate::store::Result;
use crate::store::storage::{Applied, Index, Member, Position, Read, Storage, Table, flag};

/// Ends a job that waits, or asks for the end of one that is leased.
pub(crate) async fn cancel<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, id: &JobId, queue: Option<&QueueName>, reason: &str,
) -> refusal::Result<Cancelled> {
    let mut rounds = Rounds::default();
    loop {
        rounds.next()?;
        let (named, located) = find::find_one(store, id, queue).await?;
        let outcome = match find::state_of(located.index) {
            State::Leased => request(store, cx, id, &named, &located, reason).await?,
            State::Ready | State::Scheduled | State::Retrying => end(store, cx, id, &named, located, reason).await?,
            state @ (State::Completed | State::Cancelled | State::Dead) => return Err(wrong_state(id, state)),
        };
        if let Some(cancelled) = outcome {
            return Ok(cancelled);
        }
    }
}

/// SCHEDULED or RETRYING → READY now; a READY one stays as it is.
pub(crate) async fn run_now<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, id: &JobId, queue: Option<&QueueName>, reason: &str,
) -> refusal::Result<()> {
    let mut rounds = Rounds::default();
    loop {
        rounds.next()?;
        let (named, located) = find::find_one(store, id, queue).await?;
        match (find::state_of(located.index), &located.entry.member) {
            (State::Ready, _) => return Ok(()),
            (State::Scheduled | State::Retrying, Member::Position(position)) => {
                if make_ready(store, cx, &named.queue, &located, *position, reason).await? {
                    return Ok(());
                }
            }
            (state, _) => return Err(wrong_state(id, state)),
        }
    }
}

fn wrong_state(id: &JobId, state: State) -> refusal::Error {
    Refusal::WrongState { id: id.to_string(), state }.into()
}

/// `None`: the facts are old.
async fn request<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, id: &JobId, named: &Named, located: &Located, reason: &str,
) -> Result<Option<Cancelled>> {
    let Some(facts) = &located.lease else { return Ok(None) };
    if facts.lease.tail.cancel_requested.is_none() {
        let detail = match facts.lease.tail.worker_id.as_str() {
            "" => "a worker had it".to_owned(),
            name => format!("worker {name} had it"),
        };
        let event = JobEvent::new(store.now(), JobEventKind::CancelRequested, reason, detail);
        let tail = LeaseTail { cancel_requested: Some(event), ..facts.lease.tail.clone() };
        if !put_lease(store, &named.queue, facts, tail, Timestamp::from_millis(facts.score)).await? {
            return Ok(None);
        }
    }
    if cx.wanted.has(EventKind::CancelRequested) {
        cx.events.push(Event::CancelRequested(find::with_own_id(facts.lease.lease.clone(), id)));
    }
    Ok(Some(Cancelled::Requested))
}

/// `None`: the facts are old.
async fn end<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, id: &JobId, named: &Named, located: Located, reason: &str,
) -> Result<Option<Cancelled>> {
    let Located { mut job, index, entry, .. } = located;
    let mut reads = vec![Read::Score(Index::Deadline, Member::Number(job.number))];
    reads.extend(job.spec.key.as_deref().map(|key| by_name(Table::Key, key)));
    let mut found = ask(store, &named.queue, &reads).await?;
    // The indexes and the id that was asked for are right, whatever a damaged record says.
    job.spec.expires_at = found.score().map(Timestamp::from_millis);
    job.spec.id = id.clone();
    job.traits = job.traits & !flag::OWN_ID | if named.own_id { flag::OWN_ID } else { 0 };
    let key = found.parse(records::read_key)?;
    let (mut changes, mut history, now) = (Changes::default(), job.next_history(job.progress()), store.now());
    changes.leave(index, entry);
    if cx.queue(&named.queue).completed_retention.is_some() {
        let event = JobEvent::new(now, JobEventKind::CancelRequested, reason, "it was waiting".into());
        changes.record_event(job.number, &mut history.progress, &event);
    }
    changes.cancel(&job, history, key.as_ref(), &named.queue, now, cx);
    let applied = store.apply(&named.queue, &changes.batch()).await?;
    Ok(matches!(applied, Applied::Done(_)).then_some(Cancelled::Cancelled))
}

/// False: the facts are old.
async fn make_ready<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, located: &Located, position: Position, reason: &str,
) -> Result<bool> {
    let Located { job, index, entry, .. } = located;
    let now = store.now();
    let mut changes = Changes::default();
    changes.leave(*index, entry.clone());
    let mut history = job.next_history(job.progress());
    history.rank = position.rank;
    let detail = format!("it was due at {}", position.ready_at);
    let event = JobEvent::new(now, JobEventKind::RunNow, reason, detail);
    changes.record_event(job.number, &mut history.progress, &event);
    // It may have been due already, and keeps its position then.
    let at = position.ready_at.min(now);
    let events = cx.events.len();
    changes.enter_waiting(job, history, at, Whereabouts::Scheduled, now, cx, queue);
    let Applied::Done(done) = store.apply(queue, &changes.batch()).await? else {
        cx.events.truncate(events);
        return Ok(false);
    };
    QueueFacts::tell_ready(store, queue, cx, done.ready, now).await?;
    Ok(true)
}
