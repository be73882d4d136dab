//! An Ack whose lease is not out. The work is done: where the lease expired or was interrupted, it counts until the job is
//! delivered again.

use super::AckAnswer;
use crate::domain::{Attempt, JobEvent, JobEventKind, Next, QueueSettings};
use crate::queue::answers::{ask, ask_if_there, numbered};
use crate::queue::bulk;
use crate::queue::context::CallContext;
use crate::queue::encoding::Unknown;
use crate::queue::facts::{JobFacts, Rounds, record_fence};
use crate::queue::find::{self, Located};
use crate::queue::records::{self, History, Whereabouts};
use crate::queue::refusal::Refusal;
use crate::queue::select::{DeadEntry, read_dead};
use crate::queue::state_changes::{Changes, ID_HELD, Total, attempt_part};
use crate::queue::{Ack, Acked};
use crate::store::Result;
use crate::store::storage::{Applied, Entry, Fence, Index, Read, RecordKey, Storage, Table, flag};

const GONE: AckAnswer = Ok(Acked { already_gone: true });
const DONE: AckAnswer = Ok(Acked { already_gone: false });
const LOST: AckAnswer = Err(Refusal::LeaseLost);

pub(super) async fn ack_without_lease<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, ack: &Ack, settings: &QueueSettings,
) -> Result<AckAnswer> {
    let mut rounds = Rounds::default();
    loop {
        rounds.next()?;
        if let Some(answer) = try_ack(store, cx, ack, settings).await? {
            return Ok(answer);
        }
    }
}

/// None: the facts were old.
async fn try_ack<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, ack: &Ack, settings: &QueueSettings,
) -> Result<Option<AckAnswer>> {
    let (lease, queue, number) = (&ack.lease, &ack.lease.queue, ack.lease.number);
    let reads = [Table::Move, Table::Lease, Table::Job, Table::History].map(|table| numbered(table, number));
    let Some(mut found) = ask_if_there(store, queue, &reads).await? else { return Ok(Some(GONE)) };
    let (moved, leased) = (found.record().is_some(), found.record().is_some());
    let (job_record, history_record) = (found.record(), found.record());
    let job = JobFacts::of(number, job_record.as_ref(), history_record.as_ref())?;
    if !job.exists {
        // A job that was moved runs elsewhere.
        return Ok(Some(if moved { LOST } else { GONE }));
    }
    let Some(history) = job.history.as_ref().filter(|history| history.ended(lease) && !leased) else {
        return Ok(Some(LOST));
    };
    if history.whereabouts == Whereabouts::Completed {
        return Ok(Some(GONE));
    }
    if history.progress.recorded == 0 {
        return Ok(Some(LOST));
    }
    let part = RecordKey::Part(number, attempt_part(history.progress.recorded));
    let reads = [numbered(Table::History, number), Read::Record(Table::Attempt, part)];
    let mut found = ask(store, queue, &reads).await?;
    if found.record() != history_record {
        // The job was delivered again, or acked by the same call said twice.
        return Ok(None);
    }
    let attempt = found.parse(records::read_attempt_whole)?;
    let may_be_acked = |(attempt, _): &(Attempt, _)| !moved && attempt.may_be_acked(lease, &history.progress);
    let Some((attempt, unknown)) = attempt.filter(may_be_acked) else {
        return Ok(Some(LOST));
    };
    // By the end of this delivery, or later of something else.
    let died_of_it = matches!(attempt.next, Next::DeadLetter(_));
    let is_dead = match history.whereabouts {
        Whereabouts::Ready | Whereabouts::Scheduled | Whereabouts::Retrying => false,
        Whereabouts::Dead | Whereabouts::Overflow if died_of_it => true,
        _ => return Ok(Some(LOST)),
    };
    let Some(Located { index, entry, .. }) = find::locate(store, queue, number).await? else { return Ok(None) };
    let mut changes = Changes::default();
    changes.fence(record_fence(Table::History, RecordKey::Number(number), history_record.as_ref()));
    if is_dead {
        let record = ask(store, queue, &[numbered(Table::Dead, number)]).await?.record();
        let letter = DeadEntry { index, death: entry.score, number };
        changes.fence(Fence::Absent(Table::Move, RecordKey::Number(number)));
        changes.leave_dead(&letter, read_dead(record.as_ref())?.as_ref());
    } else {
        changes.leave(index, entry);
        changes.unwatch_deadline(&job);
    }
    let retried = u64::from(history.progress.retries > 0);
    changes.add(Total::Completed, 1);
    changes.add(Total::SuccessfulRetries, retried);
    // One that died was finished before.
    changes.add(Total::RetriedFinished, if is_dead { 0 } else { retried });
    write_end(&mut changes, cx, ack, settings, &job, (history, attempt, &unknown), store.now());
    match store.apply(queue, &changes.batch()).await? {
        Applied::Done(_) => {
            cx.applied();
            if is_dead {
                bulk::make_room(store, cx, queue).await?;
            }
            cx.memory.forget_facts(queue);
            Ok(Some(DONE))
        }
        Applied::Changed(_) => Ok(None),
        Applied::NoQueue => Ok(Some(GONE)),
    }
}

/// The job is gone, or completed where its queue keeps it.
fn write_end(
    changes: &mut Changes, cx: &mut CallContext<'_>, ack: &Ack, settings: &QueueSettings, job: &JobFacts,
    (history, mut attempt, unknown): (&History, Attempt, &Unknown), now: crate::domain::Timestamp,
) {
    let number = job.number;
    let Some(retention) = settings.completed_retention else {
        if job.traits & flag::OWN_ID != 0 {
            changes.hold_id(RecordKey::Text(job.spec.id.to_string().into()), number, now);
            cx.due(&ack.lease.queue, now.after(ID_HELD));
        }
        return changes.remove_job(number, job.traits);
    };
    let mut history = history.clone();
    history.progress.complete_late(&mut attempt, &ack.note, now);
    (history.whereabouts, history.at) = (Whereabouts::Completed, now);
    let part = RecordKey::Part(number, attempt_part(history.progress.recorded));
    changes.put(Table::Attempt, part, records::attempt_with(&attempt, attempt.failure.as_ref(), unknown));
    let event = JobEvent::new(now, JobEventKind::AckedAfterLease, "", attempt.explanation);
    changes.record_event(number, &mut history.progress, &event);
    changes.put(Table::History, RecordKey::Number(number), records::history(&history));
    changes.insert(Index::Completed, Entry::number(now.millis(), number));
    if !ack.result.is_empty() {
        changes.put(Table::Result, RecordKey::Number(number), records::result(&ack.result));
    }
    cx.due(&ack.lease.queue, now.after(retention));
}
