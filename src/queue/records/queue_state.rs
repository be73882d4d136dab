//! Breaker, Queue, Outcomes: what holds a queue back, and what a breaker has counted.

use crate::domain::{Breaker, Forced, Open, OutcomeStats, Pause, Timestamp};
use crate::queue::encoding::{
    FORMAT, Read, Reader, Unknown, put_f64, put_field, put_field_u64, put_id, put_option, put_text, put_u64,
};
use bytes::Bytes;

pub(crate) fn breaker(breaker: &Breaker) -> Bytes {
    let mut out = vec![FORMAT];
    put_breaker(&mut out, breaker);
    out.into()
}

pub(crate) fn read_breaker(record: &[u8]) -> Read<Breaker> {
    let mut read = Reader(record);
    read.format()?;
    read_breaker_fields(&mut read)
}

fn put_breaker(out: &mut Vec<u8>, breaker: &Breaker) {
    put_u64(out, breaker.transitions);
    put_u64(out, u64::from(breaker.trips));
    put_text(out, &breaker.last_error);
    out.push(u8::from(breaker.open.is_some()) | u8::from(breaker.forced.is_some()) << 1);
    if let Some(open) = &breaker.open {
        put_u64(out, open.since.millis());
        put_u64(out, open.probe_at.millis());
        put_u64(out, u64::from(open.successes));
        out.push(u8::from(open.failed_probe.is_some()));
        if let Some(id) = &open.failed_probe {
            put_id(out, id);
        }
    }
    if let Some(forced) = &breaker.forced {
        out.push(u8::from(forced.open));
        put_u64(out, forced.since.millis());
        put_text(out, &forced.reason);
    }
}

fn read_breaker_fields(read: &mut Reader<'_>) -> Read<Breaker> {
    let transitions = read.u64()?;
    let trips = read.u32()?;
    let last_error = read.text()?;
    let has = read.u8()?;
    let mut breaker = Breaker { transitions, trips, open: None, forced: None, last_error };
    if has & 1 != 0 {
        breaker.open = Some(Open {
            since: read.time()?,
            probe_at: read.time()?,
            successes: read.u32()?,
            failed_probe: if read.u8()? == 1 { Some(read.id()?) } else { None },
        });
    }
    if has & 2 != 0 {
        breaker.forced = Some(Forced { open: read.u8()? == 1, since: read.time()?, reason: read.text()? });
    }
    Ok(breaker)
}

mod queue_tag {
    pub(super) const PAUSE: u8 = 1;
    pub(super) const DEAD_LETTERS: u8 = 2;
    pub(super) const FULL_IN_A_ROW: u8 = 3;
}

/// What holds a queue as a whole back, and the state of its dead letters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QueueRecord {
    pub(crate) pause: Option<Pause>,
    /// The breaker of the dead letters.
    pub(crate) dead_letters: Breaker,
    /// Dead letters that found no room, one after the other.
    pub(crate) full_in_a_row: u32,
    pub(crate) unknown: Unknown,
}

pub(crate) fn queue(queue: &QueueRecord) -> Bytes {
    let mut out = vec![FORMAT];
    if let Some(pause) = &queue.pause {
        let mut field = Vec::new();
        put_option(&mut field, pause.until.map(Timestamp::millis));
        field.extend_from_slice(pause.reason.as_bytes());
        put_field(&mut out, queue_tag::PAUSE, &field);
    }
    if queue.dead_letters != Breaker::default() {
        let mut field = Vec::new();
        put_breaker(&mut field, &queue.dead_letters);
        put_field(&mut out, queue_tag::DEAD_LETTERS, &field);
    }
    if queue.full_in_a_row > 0 {
        put_field_u64(&mut out, queue_tag::FULL_IN_A_ROW, u64::from(queue.full_in_a_row));
    }
    queue.unknown.put(&mut out);
    out.into()
}

pub(crate) fn read_queue(record: &[u8]) -> Read<QueueRecord> {
    let mut read = Reader(record);
    read.format()?;
    let mut queue = QueueRecord::default();
    let unknown = read.fields(|tag, mut value| {
        match tag {
            queue_tag::PAUSE => {
                queue.pause = Some(Pause { until: value.option_time()?, reason: value.rest_text()? });
            }
            queue_tag::DEAD_LETTERS => queue.dead_letters = read_breaker_fields(&mut value)?,
            queue_tag::FULL_IN_A_ROW => queue.full_in_a_row = value.u32()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(QueueRecord { unknown, ..queue })
}

/// What a closed breaker has counted under one epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OutcomesRecord {
    pub(crate) epoch: u32,
    pub(crate) outcome_stats: OutcomeStats,
    /// Of the counter of successes: those after it are not in the outcome_stats yet.
    pub(crate) succeeded: u64,
}

pub(crate) fn outcomes(outcomes: &OutcomesRecord) -> Bytes {
    let mut out = vec![FORMAT];
    let outcome_stats = &outcomes.outcome_stats;
    put_u64(&mut out, u64::from(outcomes.epoch));
    put_u64(&mut out, outcomes.succeeded);
    put_u64(&mut out, u64::from(outcome_stats.streak));
    put_option(&mut out, outcome_stats.last_success.map(Timestamp::millis));
    put_f64(&mut out, outcome_stats.outcomes);
    put_f64(&mut out, outcome_stats.failures);
    put_u64(&mut out, outcome_stats.failed.len() as u64);
    outcome_stats.failed.iter().for_each(|id| put_id(&mut out, id));
    out.into()
}

pub(crate) fn read_outcomes(record: &[u8]) -> Read<OutcomesRecord> {
    let mut read = Reader(record);
    read.format()?;
    let (epoch, succeeded) = (read.u32()?, read.u64()?);
    let outcome_stats = OutcomeStats {
        streak: read.u32()?,
        last_success: read.option_time()?,
        outcomes: read.f64()?,
        failures: read.f64()?,
        failed: read.list(Reader::id)?,
    };
    Ok(OutcomesRecord { epoch, outcome_stats, succeeded })
}
