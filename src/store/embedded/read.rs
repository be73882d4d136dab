//! Reads, on connections of their own: each sees one consistent moment and waits for no write.

use super::{
    breakers, codec,
    dead::Dead,
    leases::{Traits, read_lease},
    lookup,
    memory::{QueueNumber, read_queue, timestamp, unsigned},
    pause,
    places::{Tie, read_body},
};
use crate::{
    domain::{
        failure::Failure,
        ids::{JobId, QueueName},
        job::{Attempt, Delivery, Progress, Spec, State},
        time::Timestamp,
    },
    store::{
        Ahead, DeadLetterPage, DeadLetterQuery, Death, JobView, QueueView, history,
        notation::Damaged, sizes,
    },
};
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Result};

/// READY jobs ahead are counted up to here.
pub(super) const AHEAD_MAX: usize = 10_000;

/// The number of the job that has this id in this queue.
pub(super) fn number_of(
    connection: &Connection,
    id: &JobId,
    queue: QueueNumber,
) -> Result<Option<u64>> {
    Ok(numbers_of(connection, id)?
        .into_iter()
        .find(|(_, of_queue)| *of_queue == queue)
        .map(|(number, _)| number))
}

/// Every job of this id: the one that the id's own number leads to, and those whose callers chose it.
pub(super) fn numbers_of(connection: &Connection, id: &JobId) -> Result<Vec<(u64, QueueNumber)>> {
    let mut found = Vec::new();
    if let Some(number) = id.number() {
        let mut job =
            connection.prepare_cached("SELECT queue, head FROM jobs WHERE number = ?1")?;
        let mut rows = job.query([number.cast_signed()])?;
        if let Some(row) = rows.next()? {
            let head = row.get_ref(1)?.as_blob().unwrap_or_default();
            if codec::read_head_unchecked(head).is_ok_and(|spec| spec.id == *id) {
                found.push((number, row.get(0)?));
            }
        }
    }
    let mut ids = connection.prepare_cached("SELECT number, queue FROM ids WHERE id = ?1")?;
    let mut rows = ids.query([id.to_string()])?;
    while let Some(row) = rows.next()? {
        let entry = (unsigned(row, 0)?, row.get(1)?);
        if !found.contains(&entry) {
            found.push(entry);
        }
    }
    Ok(found)
}

pub(super) fn queue_number(
    connection: &Connection,
    name: &QueueName,
) -> Result<Option<QueueNumber>> {
    connection
        .prepare_cached("SELECT queue FROM queues WHERE name = ?1")?
        .query_row([name.as_str()], |row| row.get(0))
        .optional()
}

fn queue_name(connection: &Connection, queue: QueueNumber) -> Result<Option<QueueName>> {
    let name: Option<String> = connection
        .prepare_cached("SELECT name FROM queues WHERE queue = ?1")?
        .query_row([queue], |row| row.get(0))
        .optional()?;
    Ok(name.and_then(|name| QueueName::parse(&name)))
}

pub(super) fn jobs(
    connection: &Connection,
    id: &JobId,
    queue: Option<&QueueName>,
) -> Result<Vec<JobView>> {
    let moment = connection.unchecked_transaction()?;
    let queue = match queue {
        None => None,
        Some(name) => match queue_number(&moment, name)? {
            Some(number) => Some(number),
            None => return Ok(Vec::new()),
        },
    };
    let mut views = Vec::new();
    let mut numbers = numbers_of(&moment, id)?;
    numbers.retain(|(_, of_queue)| queue.is_none_or(|queue| queue == *of_queue));
    // Whoever finds several has to ask again, and needs no bodies for that.
    let full = numbers.len() == 1;
    for (number, _) in numbers {
        views.extend(view(&moment, number, full)?);
    }
    Ok(views)
}

/// One job with its history. `full`: with body and headers.
fn view(connection: &Connection, number: u64, full: bool) -> Result<Option<JobView>> {
    let Some(found) = lookup::place(connection, number)? else {
        return Ok(None);
    };
    let Some(mut view) = placed(connection, number, &found, full)? else {
        return Ok(None);
    };
    if found.state == State::Ready {
        view.ahead = Some(ahead(connection, &found, number, &view.spec)?);
    }
    Ok(Some(view))
}

/// As `view`, for a job whose place is known. Does not count who goes first.
pub(super) fn placed(
    connection: &Connection,
    number: u64,
    found: &lookup::Found,
    full: bool,
) -> Result<Option<JobView>> {
    let Some(queue) = queue_name(connection, found.queue)? else {
        return Ok(None);
    };
    let Some((spec, mut corrupt)) = spec(connection, number, full)? else {
        return Ok(None);
    };
    let done = found.state == State::Completed;
    let mut result = Bytes::new();
    if done && full {
        let kept = self::result(connection, number)?;
        corrupt |= kept.is_err();
        result = kept.unwrap_or_default();
    }
    let mut progress = progress(connection, number)?;
    let lease = lease(connection, number, &queue)?;
    if let Some(Running { delivery, checkpoint, cancel_requested, .. }) = &lease {
        progress.cancel_requested |= cancel_requested;
        progress.deliveries = delivery.lease.delivery;
        progress.checkpoint = checkpoint.clone().unwrap_or(progress.checkpoint);
    }
    let old_place = lease.as_ref().map(|lease| lease.old_place);
    let delivery = lease.map(|lease| lease.delivery);
    let (first, last) = failures(connection, number)?;
    let attempts = attempts(connection, number, first.as_ref(), last.as_ref())?;
    let waits = matches!(found.state, State::Ready | State::Scheduled);
    let death = match found.state {
        State::Dead => death(connection, found.queue, found.death)?,
        _ => None,
    };
    Ok(Some(JobView {
        queue,
        spec,
        corrupt,
        state: found.state,
        ready_at: waits.then_some(found.at),
        old_place,
        progress,
        delivery,
        death,
        completed_at: done.then_some(found.at),
        result,
        attempts,
        last_failure: last,
        ahead: None,
        pause: pause::of(connection, found.queue)?,
        breaker: breakers::of(connection, found.queue)?,
    }))
}

/// What never changes about a job, and whether it is damaged. Without `full` neither body nor headers are read.
fn spec(connection: &Connection, number: u64, full: bool) -> Result<Option<(Spec, bool)>> {
    let unchecked = |head: &[u8]| {
        codec::read_head_unchecked(head).unwrap_or_else(|_| codec::unreadable(number))
    };
    let row = number.cast_signed();
    if !full {
        return connection
            .prepare_cached("SELECT head FROM jobs WHERE number = ?1")?
            .query_row([row], |row| {
                let head = unchecked(row.get_ref(0)?.as_blob().unwrap_or_default());
                Ok((Spec { headers: Vec::new(), ..head }, false))
            })
            .optional();
    }
    connection
        .prepare_cached("SELECT head, body FROM jobs WHERE number = ?1")?
        .query_row([row], |row| {
            let head = row.get_ref(0)?.as_blob().unwrap_or_default();
            let body = read_body(row.get_ref(1)?);
            Ok(match codec::read_job(head, body.clone()) {
                Ok(spec) => (spec, false),
                Err(_) => (Spec { body, ..unchecked(head) }, true),
            })
        })
        .optional()
}

/// What the Ack of a completed job carried; most carry nothing.
fn result(connection: &Connection, number: u64) -> Result<std::result::Result<Bytes, Damaged>> {
    let record = connection
        .prepare_cached("SELECT record FROM results WHERE number = ?1")?
        .query_row([number.cast_signed()], |row| {
            Ok(codec::read_result(row.get_ref(0)?.as_blob().unwrap_or_default()))
        })
        .optional()?;
    Ok(record.unwrap_or_else(|| Ok(Bytes::new())))
}

fn progress(connection: &Connection, number: u64) -> Result<Progress> {
    let record: Option<Vec<u8>> = connection
        .prepare_cached("SELECT record FROM progress WHERE number = ?1")?
        .query_row([number.cast_signed()], |row| row.get(0))
        .optional()?;
    Ok(record.and_then(|record| codec::read_progress(&record).ok()).unwrap_or_default())
}

/// A job that is out: its delivery, where it was before, what it has saved so far, and whether somebody cancelled it
/// meanwhile.
struct Running {
    delivery: Delivery,
    old_place: Timestamp,
    checkpoint: Option<String>,
    cancel_requested: bool,
}

fn lease(connection: &Connection, number: u64, queue: &QueueName) -> Result<Option<Running>> {
    connection
        .prepare_cached(
            "SELECT number, queue, delivery, nonce, attempt, started_at, expires_at, duration, ready_at, \
             traits, request, breaker, worker, checkpoint FROM leases WHERE number = ?1",
        )?
        .query_row([number.cast_signed()], |row| {
            let worker: Option<String> = row.get(12)?;
            let held = read_lease(row, queue.clone())?;
            Ok(Running {
                cancel_requested: held.traits.has(Traits::CANCEL_REQUESTED),
                delivery: held.delivery(worker.unwrap_or_default()),
                old_place: held.ready_at,
                checkpoint: row.get(13)?,
            })
        })
        .optional()
}

/// The first and the last failure; the same one where there is only one.
fn failures(connection: &Connection, number: u64) -> Result<(Option<Failure>, Option<Failure>)> {
    let mut failures =
        connection.prepare_cached("SELECT record FROM failures WHERE number = ?1 ORDER BY last")?;
    let mut rows = failures.query([number.cast_signed()])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.extend(codec::read_failure(row.get_ref(0)?.as_blob().unwrap_or_default()).ok());
    }
    Ok((all.first().cloned(), all.pop()))
}

/// The history in order, with first and last failure whole.
fn attempts(
    connection: &Connection,
    number: u64,
    first: Option<&Failure>,
    last: Option<&Failure>,
) -> Result<Vec<Attempt>> {
    let mut attempts = connection
        .prepare_cached("SELECT seq, record FROM attempts WHERE number = ?1 ORDER BY seq")?;
    let mut rows = attempts.query([number.cast_signed()])?;
    let mut records: Vec<Vec<u8>> = Vec::new();
    while let Some(row) = rows.next()? {
        records.push(row.get_ref(1)?.as_blob().unwrap_or_default().to_vec());
    }
    Ok(history::put_together(records.iter().map(Vec::as_slice), first, last))
}

fn ahead(
    connection: &Connection,
    found: &lookup::Found,
    number: u64,
    spec: &crate::domain::job::Spec,
) -> Result<Ahead> {
    let jobs: i64 = connection
        .prepare_cached(
            "SELECT count(*) FROM (SELECT 1 FROM ready WHERE queue = ?1 \
             AND (rank, at, tie) < (?2, ?3, ?4) LIMIT ?5)",
        )?
        .query_row(
            (
                found.queue,
                -i64::from(spec.priority),
                found.at.millis().cast_signed(),
                Tie::of(number, &spec.id),
                AHEAD_MAX as i64 + 1,
            ),
            |row| row.get(0),
        )?;
    let jobs = jobs as usize;
    Ok(Ahead { jobs: jobs.min(AHEAD_MAX), more: jobs > AHEAD_MAX })
}

fn death(connection: &Connection, queue: QueueNumber, death: u64) -> Result<Option<Death>> {
    connection
        .prepare_cached(
            "SELECT reason, died_at, overflow, context FROM dead WHERE queue = ?1 AND death = ?2",
        )?
        .query_row((queue, death.cast_signed()), |row| {
            let context: String = row.get(3)?;
            let reason = codec::reason_of(row.get(0)?);
            Ok(Death {
                number: death,
                reason: reason.unwrap_or(crate::domain::job::DeadReason::Corrupt),
                died_at: timestamp(row, 1)?,
                overflow: row.get(2)?,
                context: codec::read_context(&context),
            })
        })
        .optional()
}

pub(super) fn dead_letters(
    connection: &Connection,
    query: &DeadLetterQuery,
) -> Result<Option<DeadLetterPage>> {
    let moment = connection.unchecked_transaction()?;
    let Some(queue) = queue_number(&moment, &query.part.queue)? else {
        return Ok(None);
    };
    let (dead, overflow) = moment
        .prepare_cached("SELECT dead, overflow FROM queues WHERE queue = ?1")?
        .query_row([queue], |row| Ok((unsigned(row, 0)?, unsigned(row, 1)?)))?;
    let mut page = DeadLetterPage {
        jobs: Vec::new(),
        next: None,
        total: if query.part.overflow_only { overflow } else { dead },
    };
    let mut letters = moment.prepare_cached(
        "SELECT death, number, reason, died_at FROM dead WHERE queue = ?1 AND death > ?2 \
         AND overflow >= ?3 ORDER BY death LIMIT ?4",
    )?;
    let look_at = query.search.as_ref().map_or(query.limit, |search| search.look_at);
    let rows = if query.limit == 0 { 0 } else { look_at.saturating_add(1) };
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    let mut rows =
        letters.query((queue, query.after.cast_signed(), query.part.overflow_only, rows))?;
    let (mut bytes, mut looked_at) = (0, 0);
    let mut last = query.after;
    while let Some(row) = rows.next()? {
        let dead = Dead::read(row)?;
        if looked_at == look_at {
            page.next = Some(last);
            break;
        }
        looked_at += 1;
        let found = match &query.search {
            Some(search) => dead.fits(&moment, &search.filter)?,
            None => true,
        };
        let view = if found { view(&moment, dead.number, query.full)? } else { None };
        if let Some(view) = view {
            bytes += sizes::of_view(&view);
            let full = !page.jobs.is_empty() && bytes > query.max_bytes;
            if page.jobs.len() == query.limit || full {
                page.next = Some(last);
                break;
            }
            page.jobs.push(view);
        }
        last = dead.death;
    }
    Ok(Some(page))
}

pub(super) fn queues(
    connection: &Connection,
    after: Option<&QueueName>,
    limit: usize,
) -> Result<Vec<QueueView>> {
    let moment = connection.unchecked_transaction()?;
    let mut queues =
        moment.prepare_cached("SELECT * FROM queues WHERE name > ?1 ORDER BY name LIMIT ?2")?;
    let mut rows = queues.query((after.map_or("", QueueName::as_str), limit as i64))?;
    let mut views = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(queue) = read_queue(row)? else {
            continue;
        };
        let oldest_ready_at = oldest_ready(&moment, queue.number)?;
        let pause = pause::of(&moment, queue.number)?;
        views.push(QueueView {
            name: queue.name,
            depths: queue.depths,
            totals: queue.totals,
            oldest_ready_at,
            pause,
            breaker: breakers::of(&moment, queue.number)?,
        });
    }
    Ok(views)
}

/// The oldest of all priorities: one look per priority in use, which are at most 256.
fn oldest_ready(connection: &Connection, queue: QueueNumber) -> Result<Option<Timestamp>> {
    let mut first = connection.prepare_cached(
        "SELECT rank, at FROM ready WHERE queue = ?1 AND rank > ?2 ORDER BY rank, at LIMIT 1",
    )?;
    let mut oldest = None;
    let mut above = i64::MIN;
    loop {
        let found = first
            .query_row((queue, above), |row| Ok((row.get::<_, i64>(0)?, timestamp(row, 1)?)))
            .optional()?;
        let Some((rank, at)) = found else {
            return Ok(oldest);
        };
        oldest = Some(oldest.map_or(at, |oldest: crate::domain::time::Timestamp| oldest.min(at)));
        above = rank;
    }
}
