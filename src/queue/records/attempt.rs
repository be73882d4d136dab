//! Attempt, Failure, Result: sealed records of what came of a delivery.
//!
//! Attempt, Failure, Result: sealed

use crate::domain::{
    breaker::BreakerState,
    failure::Failure,
    job::{Attempt, AttemptStatus, DeadReason, Next},
    time::{Timestamp, millis_ceil},
};
use crate::queue::encoding::{
    FORMAT, Read, Reader, Unreadable::Damaged, open, put_field, put_option, put_text, put_u64, seal,
};
use bytes::Bytes;
use std::time::Duration;

pub(crate) fn attempt(attempt: &Attempt) -> Bytes {
    let mut out = Vec::with_capacity(128);
    out.push(FORMAT);
    put_u64(&mut out, u64::from(attempt.number));
    put_u64(&mut out, u64::from(attempt.delivery));
    out.extend_from_slice(&attempt.nonce.to_be_bytes());
    out.push(status_code(attempt.status));
    let open = attempt.breaker == BreakerState::Open;
    let half_open = attempt.breaker == BreakerState::HalfOpen;
    let flags = [attempt.counted, attempt.probe, attempt.nacked, open, half_open];
    out.push(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
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
        Next::Bury(reason) => {
            out.push(3);
            out.push(reason_code(reason));
        }
    }
    put_option(&mut out, attempt.delay.map(millis_ceil));
    put_u64(&mut out, u64::from(attempt.retries_left));
    put_text(&mut out, &attempt.rule);
    put_text(&mut out, &attempt.explanation);
    if let Some(failure) = &attempt.failure {
        let mut field = Vec::new();
        put_failure(&mut field, failure);
        put_field(&mut out, attempt_tag::FAILURE, &field);
    }
    seal(out).into()
}

mod attempt_tag {
    pub(super) const FAILURE: u8 = 1;
}

pub(crate) fn read_attempt(record: &[u8]) -> Read<Attempt> {
    let mut read = open(record)?;
    let number = read.u32()?;
    let delivery = read.u32()?;
    let nonce = u64::from_be_bytes(read.array()?);
    let status = status_of(read.u8()?)?;
    let flags = read.u8()?;
    let worker_id = read.text()?;
    let started_at = Timestamp::from_millis(read.u64()?);
    let ended_at = Timestamp::from_millis(read.u64()?);
    let note = read.text()?;
    let next = match read.u8()? {
        0 => Next::Later { at: Timestamp::from_millis(read.u64()?) },
        1 => Next::Behind { at: Timestamp::from_millis(read.u64()?) },
        2 => Next::OldPlace,
        3 => Next::Bury(reason_of(read.u8()?)?),
        _ => return Err(Damaged),
    };
    let mut attempt = Attempt {
        number,
        delivery,
        nonce,
        status,
        worker_id,
        started_at,
        ended_at,
        note,
        next,
        delay: read.option()?.map(Duration::from_millis),
        retries_left: read.u32()?,
        counted: flags & 1 != 0,
        probe: flags & 2 != 0,
        nacked: flags & 4 != 0,
        breaker: match flags >> 3 & 3 {
            0 => BreakerState::Closed,
            1 => BreakerState::Open,
            _ => BreakerState::HalfOpen,
        },
        rule: read.text()?,
        explanation: read.text()?,
        failure: None,
    };
    read.fields(|tag, mut value| {
        if tag == attempt_tag::FAILURE {
            attempt.failure = Some(read_failure_fields(&mut value)?);
        }
        Ok(true)
    })?;
    Ok(attempt)
}

/// Stands for an attempt that fails its checksum.
pub(crate) fn damaged_attempt() -> Attempt {
    Attempt {
        number: 0,
        delivery: 0,
        nonce: 0,
        status: AttemptStatus::Failed,
        worker_id: String::new(),
        started_at: Timestamp::default(),
        ended_at: Timestamp::default(),
        note: "this entry is damaged on disk".into(),
        failure: None,
        next: Next::OldPlace,
        delay: None,
        retries_left: 0,
        counted: false,
        probe: false,
        nacked: false,
        breaker: BreakerState::default(),
        rule: String::new(),
        explanation: String::new(),
    }
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
    let mut read = open(record)?;
    read_failure_fields(&mut read)
}

fn put_failure(out: &mut Vec<u8>, failure: &Failure) {
    put_text(out, &failure.error_type);
    put_text(out, &failure.message);
    put_text(out, &failure.stack_trace);
    put_u64(out, u64::from(failure.http_status));
    put_text(out, &failure.response_body);
    put_text(out, &failure.details);
    out.push(u8::from(failure.truncated));
}

/// What follows them is a newer server's.
fn read_failure_fields(read: &mut Reader<'_>) -> Read<Failure> {
    Ok(Failure {
        error_type: read.text()?,
        message: read.text()?,
        stack_trace: read.text()?,
        http_status: read.u32()?,
        response_body: read.text()?,
        details: read.text()?,
        truncated: read.u8()? == 1,
    })
}

fn status_code(status: AttemptStatus) -> u8 {
    match status {
        AttemptStatus::Running => 1,
        AttemptStatus::Succeeded => 2,
        AttemptStatus::Failed => 3,
        AttemptStatus::LeaseExpired => 4,
        AttemptStatus::Released => 5,
        AttemptStatus::Interrupted => 6,
        AttemptStatus::Cancelled => 7,
    }
}

fn status_of(code: u8) -> Read<AttemptStatus> {
    Ok(match code {
        1 => AttemptStatus::Running,
        2 => AttemptStatus::Succeeded,
        3 => AttemptStatus::Failed,
        4 => AttemptStatus::LeaseExpired,
        5 => AttemptStatus::Released,
        6 => AttemptStatus::Interrupted,
        7 => AttemptStatus::Cancelled,
        _ => return Err(Damaged),
    })
}

pub(super) fn reason_code(reason: DeadReason) -> u8 {
    match reason {
        DeadReason::Exhausted => 1,
        DeadReason::NonRetryable => 2,
        DeadReason::Expired => 3,
        DeadReason::WouldMissDeadline => 4,
        DeadReason::Cancelled => 5,
        DeadReason::Corrupt => 6,
    }
}

pub(super) fn reason_of(code: u8) -> Read<DeadReason> {
    Ok(match code {
        1 => DeadReason::Exhausted,
        2 => DeadReason::NonRetryable,
        3 => DeadReason::Expired,
        4 => DeadReason::WouldMissDeadline,
        5 => DeadReason::Cancelled,
        6 => DeadReason::Corrupt,
        _ => return Err(Damaged),
    })
}
