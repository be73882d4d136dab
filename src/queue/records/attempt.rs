//! Attempt, Failure, Result: sealed records of what came of a delivery.

use crate::domain::{Attempt, AttemptStatus, BreakerState, DeadReason, Failure, FailureCategory, Next, millis_ceil};
use crate::queue::encoding::Unreadable::Damaged;
use crate::queue::encoding::{
    FORMAT, Read, Reader, Unknown, open, put_field, put_option, put_place, put_text, put_u64, seal,
};
use bytes::Bytes;

const FAILURE_TAG: u8 = 1;

/// Their places are their codes.
const STATUSES: [AttemptStatus; 7] = [
    AttemptStatus::Running,
    AttemptStatus::Succeeded,
    AttemptStatus::Failed,
    AttemptStatus::LeaseExpired,
    AttemptStatus::Released,
    AttemptStatus::Interrupted,
    AttemptStatus::Cancelled,
];
const CATEGORIES: [FailureCategory; 10] = [
    FailureCategory::Unreachable,
    FailureCategory::Timeout,
    FailureCategory::Unavailable,
    FailureCategory::RateLimited,
    FailureCategory::Invalid,
    FailureCategory::NotFound,
    FailureCategory::Unauthorized,
    FailureCategory::Forbidden,
    FailureCategory::Conflict,
    FailureCategory::Internal,
];
pub(super) const REASONS: [DeadReason; 5] = [
    DeadReason::Exhausted,
    DeadReason::NonRetryable,
    DeadReason::Expired,
    DeadReason::WouldMissDeadline,
    DeadReason::Corrupt,
];

pub(crate) fn attempt(it: &Attempt) -> Bytes {
    attempt_with(it, it.failure.as_ref(), &Unknown::default())
}

/// With this failure in place of its own.
pub(crate) fn attempt_with(attempt: &Attempt, failure: Option<&Failure>, unknown: &Unknown) -> Bytes {
    let mut out = Vec::with_capacity(128);
    out.push(FORMAT);
    put_u64(&mut out, u64::from(attempt.number));
    put_u64(&mut out, u64::from(attempt.delivery));
    out.extend_from_slice(&attempt.nonce.to_be_bytes());
    put_place(&mut out, &STATUSES, &attempt.status);
    let flags = [attempt.counted, attempt.probe, attempt.nacked];
    let flags = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
    let breaker = BreakerState::ALL.iter().position(|state| *state == attempt.breaker).unwrap_or_default() as u8;
    out.push(flags | breaker << 3);
    put_text(&mut out, &attempt.worker_id);
    put_u64(&mut out, attempt.started_at.millis());
    put_u64(&mut out, attempt.ended_at.millis());
    put_text(&mut out, &attempt.note);
    match attempt.next {
        Next::Later { at } => {
            out.push(0);
            put_u64(&mut out, at.millis());
        }
        Next::Behind { at } => {
            out.push(1);
            put_u64(&mut out, at.millis());
        }
        Next::OldPlace => out.push(2),
        Next::DeadLetter(reason) => {
            out.push(3);
            put_place(&mut out, &REASONS, &reason);
        }
        Next::Cancelled => out.push(4),
    }
    put_option(&mut out, attempt.delay.map(millis_ceil));
    put_u64(&mut out, u64::from(attempt.retries_left));
    put_u64(&mut out, u64::from(attempt.redrives));
    put_text(&mut out, &attempt.rule);
    put_text(&mut out, &attempt.explanation);
    if let Some(failure) = failure {
        let mut field = Vec::new();
        put_failure(&mut field, failure);
        put_field(&mut out, FAILURE_TAG, &field);
    }
    unknown.put(&mut out);
    seal(out).into()
}

pub(crate) fn read_attempt(record: &[u8]) -> Read<Attempt> {
    read_attempt_whole(record).map(|(attempt, _)| attempt)
}

/// For a rewrite.
pub(crate) fn read_attempt_whole(record: &[u8]) -> Read<(Attempt, Unknown)> {
    let mut read = open(record)?;
    let (number, delivery, nonce) = (read.u32()?, read.u32()?, read.be64()?);
    let (status, flags) = (read.place(&STATUSES)?, read.u8()?);
    // The other fields are read in the order in which they stand here.
    let mut attempt = Attempt {
        number,
        delivery,
        nonce,
        status,
        counted: flags & 1 != 0,
        probe: flags & 2 != 0,
        nacked: flags & 4 != 0,
        breaker: BreakerState::ALL[usize::from(flags >> 3 & 3)],
        worker_id: read.text()?,
        started_at: read.time()?,
        ended_at: read.time()?,
        note: read.text()?,
        next: match read.u8()? {
            0 => Next::Later { at: read.time()? },
            1 => Next::Behind { at: read.time()? },
            2 => Next::OldPlace,
            3 => Next::DeadLetter(read.place(&REASONS)?),
            4 => Next::Cancelled,
            _ => return Err(Damaged),
        },
        delay: read.option_duration()?,
        retries_left: read.u32()?,
        redrives: read.u32()?,
        rule: read.text()?,
        explanation: read.text()?,
        failure: None,
    };
    let unknown = read.fields(|tag, mut value| {
        if tag == FAILURE_TAG {
            attempt.failure = Some(read_failure_fields(&mut value)?);
        }
        Ok(tag == FAILURE_TAG)
    })?;
    Ok((attempt, unknown))
}

/// Stands for an attempt that fails its checksum.
pub(crate) fn damaged_attempt() -> Attempt {
    Attempt { note: "this entry is damaged on disk".into(), ..Attempt::default() }
}

/// What the Ack of a job that is kept carried.
pub(crate) fn result(result: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(result.len() + 5);
    out.push(FORMAT);
    out.extend_from_slice(result);
    seal(out).into()
}

pub(crate) fn read_result(record: &Bytes) -> Read<Bytes> {
    open(record).map(|Reader(result)| record.slice(1..1 + result.len()))
}

pub(crate) fn failure(failure: &Failure) -> Bytes {
    let mut out = Vec::with_capacity(32 + failure.bytes());
    out.push(FORMAT);
    put_failure(&mut out, failure);
    seal(out).into()
}

pub(crate) fn read_failure(record: &[u8]) -> Read<Failure> {
    read_failure_fields(&mut open(record)?)
}

fn put_failure(out: &mut Vec<u8>, failure: &Failure) {
    put_text(out, &failure.error_type);
    put_text(out, &failure.message);
    put_text(out, &failure.stack_trace);
    put_u64(out, u64::from(failure.http_status));
    put_text(out, &failure.response_body);
    put_text(out, &failure.details);
    let Failure { truncated, details_dropped, category_derived, .. } = *failure;
    out.push(u8::from(truncated) | u8::from(details_dropped) << 1 | u8::from(category_derived) << 2);
    put_text(out, &failure.code);
    // 0: none.
    let place = failure.category.and_then(|category| CATEGORIES.iter().position(|known| *known == category));
    put_u64(out, place.map_or(0, |place| place as u64 + 1));
    put_text(out, &failure.breaker_key);
}

/// What follows them is a newer server's.
fn read_failure_fields(read: &mut Reader<'_>) -> Read<Failure> {
    let mut failure = Failure {
        error_type: read.text()?,
        message: read.text()?,
        stack_trace: read.text()?,
        http_status: read.u32()?,
        response_body: read.text()?,
        details: read.text()?,
        ..Failure::default()
    };
    let flags = read.u8()?;
    failure.truncated = flags & 1 != 0;
    failure.details_dropped = flags & 2 != 0;
    failure.category_derived = flags & 4 != 0;
    failure.code = read.text()?;
    failure.category = match read.u32()? {
        0 => None,
        place => Some(*CATEGORIES.get(place as usize - 1).ok_or(Damaged)?),
    };
    failure.breaker_key = read.text()?;
    Ok(failure)
}
