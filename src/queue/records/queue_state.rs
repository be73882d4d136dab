//! Breaker, Queue, Outcomes: what holds a queue back, and what a breaker has counted.

use crate::domain::{
    Breaker, BreakerState, Bucket, CountedFailure, Forced, Outage, OutcomeStats, Pause, Recovery, Step, Successes,
    Timestamp, Transition, Usual,
};
use crate::queue::encoding::{
    FORMAT, Read, Reader, Unknown, put_f64, put_field, put_field_u64, put_id, put_list, put_option, put_option_f64,
    put_place, put_text, put_u64,
};
use bytes::Bytes;

pub(crate) fn breaker(breaker: &Breaker, unknown: &Unknown) -> Bytes {
    let mut out = vec![FORMAT];
    put_breaker(&mut out, breaker, unknown);
    out.into()
}

pub(crate) fn read_breaker(record: &[u8]) -> Read<Breaker> {
    read_breaker_whole(record).map(|(breaker, _)| breaker)
}

/// For a rewrite.
pub(crate) fn read_breaker_whole(record: &[u8]) -> Read<(Breaker, Unknown)> {
    let mut read = Reader(record);
    read.format()?;
    read_breaker_fields(&mut read)
}

/// In the order of [`BreakerState::ALL`].
fn put_state(out: &mut Vec<u8>, state: BreakerState) {
    put_place(out, &BreakerState::ALL, &state);
}

mod breaker_tag {
    pub(super) const OUTAGE: u8 = 1;
    pub(super) const FORCED: u8 = 2;
    pub(super) const USUAL: u8 = 3;
    pub(super) const RETURNED: u8 = 4;
    pub(super) const LOG: u8 = 5;
    pub(super) const KEY: u8 = 6;
}

fn put_breaker(out: &mut Vec<u8>, breaker: &Breaker, unknown: &Unknown) {
    put_u64(out, breaker.transitions);
    put_u64(out, u64::from(breaker.trips));
    put_text(out, &breaker.last_error);
    let mut field = |tag, is_there: bool, put: &dyn Fn(&mut Vec<u8>)| {
        if is_there {
            let mut value = Vec::new();
            put(&mut value);
            put_field(out, tag, &value);
        }
    };
    if let Some(outage) = &breaker.outage {
        field(breaker_tag::OUTAGE, true, &|out| put_outage(out, outage));
    }
    if let Some(forced) = &breaker.forced {
        field(breaker_tag::FORCED, true, &|out| {
            out.push(u8::from(forced.open));
            put_u64(out, forced.since.millis());
            put_text(out, &forced.reason);
        });
    }
    field(breaker_tag::USUAL, breaker.usual != Usual::default(), &|out| put_usual(out, &breaker.usual));
    field(breaker_tag::RETURNED, !breaker.returned.is_empty(), &|out| {
        put_list(out, &breaker.returned, put_counted);
    });
    field(breaker_tag::LOG, !breaker.log.is_empty(), &|out| {
        put_list(out, &breaker.log, |out, transition| {
            put_u64(out, transition.at.millis());
            put_state(out, transition.to);
            put_text(out, &transition.why);
        });
    });
    field(breaker_tag::KEY, !breaker.key.is_empty(), &|out| out.extend_from_slice(breaker.key.as_bytes()));
    unknown.put(out);
}

fn read_breaker_fields(read: &mut Reader<'_>) -> Read<(Breaker, Unknown)> {
    let mut breaker =
        Breaker { transitions: read.u64()?, trips: read.u32()?, last_error: read.text()?, ..Breaker::default() };
    let unknown = read.fields(|tag, mut value| {
        match tag {
            breaker_tag::OUTAGE => breaker.outage = Some(Box::new(read_outage(&mut value)?)),
            breaker_tag::FORCED => {
                let (open, since) = (value.u8()? == 1, value.time()?);
                breaker.forced = Some(Forced { open, since, reason: value.text()? });
            }
            breaker_tag::USUAL => breaker.usual = read_usual(&mut value)?,
            breaker_tag::RETURNED => breaker.returned = value.list(read_counted)?,
            breaker_tag::LOG => {
                breaker.log = value.list(|read| {
                    Ok(Transition { at: read.time()?, to: read.place(&BreakerState::ALL)?, why: read.text()? })
                })?;
            }
            breaker_tag::KEY => breaker.key = value.rest_text()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((breaker, unknown))
}

fn put_outage(out: &mut Vec<u8>, outage: &Outage) {
    for time in [outage.since, outage.down_since, outage.opened_at, outage.probe_at] {
        put_u64(out, time.millis());
    }
    put_text(out, &outage.error_type);
    for count in [outage.successes, outage.other_errors, outage.falls] {
        put_u64(out, u64::from(count));
    }
    out.push(u8::from(outage.failed_probe.is_some()) | u8::from(outage.recovering) << 1);
    if let Some(id) = &outage.failed_probe {
        put_id(out, id);
    }
    let recovery = &outage.recovery;
    let loads = [recovery.load, recovery.previous_load, recovery.start_load, recovery.last_ceiling, recovery.share];
    loads.into_iter().for_each(|load| put_f64(out, load));
    put_option_f64(out, recovery.ceiling);
    put_option(out, recovery.ceiling_until.map(Timestamp::millis));
    put_u64(out, recovery.step_started.millis());
    put_u64(out, recovery.bound_at.millis());
    put_u64(out, outage.uncounted);
}

/// What follows is a newer server's.
fn read_outage(read: &mut Reader<'_>) -> Read<Outage> {
    let mut outage = Outage {
        since: read.time()?,
        down_since: read.time()?,
        opened_at: read.time()?,
        probe_at: read.time()?,
        error_type: read.text()?,
        successes: read.u32()?,
        other_errors: read.u32()?,
        falls: read.u32()?,
        ..Outage::default()
    };
    let has = read.u8()?;
    outage.failed_probe = if has & 1 != 0 { Some(read.id()?) } else { None };
    outage.recovering = has & 2 != 0;
    outage.recovery = Recovery {
        load: read.f64()?,
        previous_load: read.f64()?,
        start_load: read.f64()?,
        last_ceiling: read.f64()?,
        share: read.f64()?,
        ceiling: read.option_f64()?,
        ceiling_until: read.option_time()?,
        step_started: read.time()?,
        bound_at: read.time()?,
    };
    outage.uncounted = read.u64()?;
    Ok(outage)
}

fn put_usual(out: &mut Vec<u8>, usual: &Usual) {
    put_f64(out, usual.share);
    put_f64(out, usual.known);
    put_option_f64(out, usual.load);
    put_option_f64(out, usual.ln_took);
}

fn read_usual(read: &mut Reader<'_>) -> Read<Usual> {
    Ok(Usual { share: read.f64()?, known: read.f64()?, load: read.option_f64()?, ln_took: read.option_f64()? })
}

fn put_counted(out: &mut Vec<u8>, failure: &CountedFailure) {
    put_id(out, &failure.job);
    put_u64(out, failure.number);
    put_u64(out, u64::from(failure.delivery));
    put_u64(out, failure.at.millis());
}

fn read_counted(read: &mut Reader<'_>) -> Read<CountedFailure> {
    Ok(CountedFailure { job: read.id()?, number: read.u64()?, delivery: read.u32()?, at: read.time()? })
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
    /// Within its record.
    dead_letters_unknown: Unknown,
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
    if queue.dead_letters != Breaker::default() || !queue.dead_letters_unknown.is_empty() {
        let mut field = Vec::new();
        put_breaker(&mut field, &queue.dead_letters, &queue.dead_letters_unknown);
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
            queue_tag::DEAD_LETTERS => {
                (queue.dead_letters, queue.dead_letters_unknown) = read_breaker_fields(&mut value)?;
            }
            queue_tag::FULL_IN_A_ROW => queue.full_in_a_row = value.u32()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(QueueRecord { unknown, ..queue })
}

/// What a breaker knows of the outcomes under one epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OutcomesRecord {
    pub(crate) epoch: u32,
    pub(crate) outcome_stats: OutcomeStats,
}

pub(crate) fn outcomes(outcomes: &OutcomesRecord) -> Bytes {
    let mut out = vec![FORMAT];
    let stats = &outcomes.outcome_stats;
    put_u64(&mut out, u64::from(outcomes.epoch));
    put_u64(&mut out, u64::from(stats.streak));
    put_u64(&mut out, stats.streak_since.millis());
    put_option(&mut out, stats.last_success.map(Timestamp::millis));
    put_successes(&mut out, &stats.seen);
    for bucket in [&stats.bucket, &stats.previous] {
        put_u64(&mut out, bucket.since.millis());
        put_successes(&mut out, &bucket.successes);
        put_u64(&mut out, bucket.failed);
    }
    put_usual(&mut out, &stats.usual);
    put_option(&mut out, stats.degraded_since.map(Timestamp::millis));
    put_list(&mut out, &stats.counted, put_counted);
    put_u64(&mut out, stats.uncounted);
    put_f64(&mut out, stats.took_ms);
    put_u64(&mut out, stats.step.ok);
    put_u64(&mut out, stats.step.failed);
    put_f64(&mut out, stats.step.ln_took);
    out.into()
}

pub(crate) fn read_outcomes(record: &[u8]) -> Read<OutcomesRecord> {
    let mut read = Reader(record);
    read.format()?;
    let epoch = read.u32()?;
    let outcome_stats = OutcomeStats {
        streak: read.u32()?,
        streak_since: read.time()?,
        last_success: read.option_time()?,
        seen: read_successes(&mut read)?,
        bucket: read_bucket(&mut read)?,
        previous: read_bucket(&mut read)?,
        usual: read_usual(&mut read)?,
        degraded_since: read.option_time()?,
        counted: read.list(read_counted)?,
        uncounted: read.u64()?,
        took_ms: read.f64()?,
        step: Step { ok: read.u64()?, failed: read.u64()?, ln_took: read.f64()? },
    };
    Ok(OutcomesRecord { epoch, outcome_stats })
}

fn put_successes(out: &mut Vec<u8>, successes: &Successes) {
    put_u64(out, successes.count);
    put_u64(out, successes.retried);
    put_u64(out, successes.took_ms);
    out.extend_from_slice(&successes.ln_took.to_be_bytes());
}

fn read_successes(read: &mut Reader<'_>) -> Read<Successes> {
    let (count, retried, took_ms) = (read.u64()?, read.u64()?, read.u64()?);
    Ok(Successes { count, retried, took_ms, ln_took: read.be64()?.cast_signed() })
}

fn read_bucket(read: &mut Reader<'_>) -> Read<Bucket> {
    Ok(Bucket { since: read.time()?, successes: read_successes(read)?, failed: read.u64()? })
}
