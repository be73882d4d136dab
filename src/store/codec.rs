//! The records inside the tables: a job's head, its progress, an attempt, a failure, a result. Each begins with a version.

use super::notation::{Damaged, Read, Reader, put_f64, put_id, put_option, put_text, put_u64};
use crate::domain::{
    breaker::BreakerState,
    failure::Failure,
    ids::JobId,
    job::{Attempt, AttemptStatus, Body, DeadReason, Next, Progress, Spec},
    policy::{Jitter, PolicyOverride, Strategy},
    presets::Preset,
    time::{Timestamp, millis_ceil},
};
use bytes::Bytes;
use std::time::Duration;

pub(super) const VERSION: u8 = 1;
const CRC_BYTES: usize = 4;

/// Content types that nearly every job has, in one byte.
const KNOWN_CONTENT_TYPES: [&str; 3] =
    ["application/json", "text/plain", "application/octet-stream"];

// ---- the job's head ----

/// All of a job but its body, then a checksum over both.
pub(super) fn head(spec: &Spec, out: &mut Vec<u8>) {
    out.clear();
    out.push(VERSION);
    put_id(out, &spec.id);
    put_text(out, &spec.job_type);
    let known = KNOWN_CONTENT_TYPES.iter().position(|known| *known == spec.content_type);
    match known {
        Some(at) => out.push(at as u8 + 1),
        None => {
            out.push(0);
            put_text(out, &spec.content_type);
        }
    }
    out.push(spec.priority.cast_unsigned());
    put_u64(out, spec.enqueued_at.millis());
    put_u64(out, spec.run_at.since(spec.enqueued_at).as_millis() as u64);
    put_option(out, spec.expires_at.map(Timestamp::millis));
    put_u64(out, spec.headers.len() as u64);
    for (name, value) in &spec.headers {
        put_text(out, name);
        put_text(out, value);
    }
    match &spec.key {
        None => out.push(0),
        Some(key) => {
            out.push(1);
            put_text(out, key);
        }
    }
    match &spec.policy {
        None => out.push(0),
        Some(policy) => {
            out.push(1);
            put_policy(out, policy);
        }
    }
    let sum = checksum(out, spec.body.bytes());
    out.extend_from_slice(&sum.to_le_bytes());
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), body)
}

/// Reads a head back, and says so if head or body are not what was written.
pub(super) fn read_job(head: &[u8], body: Body) -> Read<Spec> {
    let at = head.len().checked_sub(CRC_BYTES).ok_or(Damaged)?;
    let (head, sum) = head.split_at(at);
    if checksum(head, body.bytes()).to_le_bytes() != sum {
        return Err(Damaged);
    }
    read_head(head, body)
}

/// Reads a head as far as it can be read, whatever its checksum says.
pub(super) fn read_head_unchecked(head: &[u8]) -> Read<Spec> {
    let at = head.len().checked_sub(CRC_BYTES).ok_or(Damaged)?;
    read_head(&head[..at], Body::None)
}

fn read_head(head: &[u8], body: Body) -> Read<Spec> {
    let mut read = Reader(head);
    expect(read.u8()?, VERSION)?;
    let id = read.id()?;
    let job_type = read.text()?;
    let content_type = match read.u8()? {
        0 => read.text()?,
        known => (*KNOWN_CONTENT_TYPES.get(known as usize - 1).ok_or(Damaged)?).to_owned(),
    };
    let priority = read.u8()?.cast_signed();
    let enqueued_at = Timestamp::from_millis(read.u64()?);
    let run_at = enqueued_at.after(Duration::from_millis(read.u64()?));
    let expires_at = read.option()?.map(Timestamp::from_millis);
    let count = read.u64()?;
    let mut headers = Vec::new();
    for _ in 0..count {
        headers.push((read.text()?, read.text()?));
    }
    let key = if read.u8()? == 1 { Some(read.text()?) } else { None };
    let policy = if read.u8()? == 1 { Some(Box::new(read_policy(&mut read)?)) } else { None };
    read.end()?;
    Ok(Spec {
        id,
        key,
        job_type,
        content_type,
        headers,
        body,
        priority,
        enqueued_at,
        run_at,
        expires_at,
        policy,
    })
}

fn put_policy(out: &mut Vec<u8>, policy: &PolicyOverride) {
    let millis = |duration: Option<Duration>| duration.map(millis_ceil);
    put_text(out, policy.preset.map_or("", Preset::name));
    put_option(out, policy.max_retries.map(u64::from));
    put_text(out, policy.strategy.map_or("", Strategy::as_str));
    put_option(out, millis(policy.base_delay));
    put_option_f64(out, policy.factor);
    put_option(out, millis(policy.max_delay));
    put_u64(out, policy.delays.len() as u64);
    for delay in &policy.delays {
        put_u64(out, millis_ceil(*delay));
    }
    put_text(out, policy.jitter.map_or("", Jitter::as_str));
    put_option_f64(out, policy.jitter_fraction);
    put_option(out, millis(policy.jitter_max));
}

fn read_policy(read: &mut Reader<'_>) -> Read<PolicyOverride> {
    let preset = word(read, Preset::parse)?;
    let max_retries = read.option()?.map(|n| n as u32);
    let strategy = word(read, Strategy::parse)?;
    let base_delay = read.option()?.map(Duration::from_millis);
    let factor = read_option_f64(read)?;
    let max_delay = read.option()?.map(Duration::from_millis);
    let count = read.u64()?;
    let mut delays = Vec::new();
    for _ in 0..count {
        delays.push(Duration::from_millis(read.u64()?));
    }
    let jitter = word(read, Jitter::parse)?;
    let jitter_fraction = read_option_f64(read)?;
    let jitter_max = read.option()?.map(Duration::from_millis);
    Ok(PolicyOverride {
        preset,
        max_retries,
        strategy,
        base_delay,
        factor,
        max_delay,
        delays,
        jitter,
        jitter_fraction,
        jitter_max,
    })
}

fn word<T>(read: &mut Reader<'_>, parse: impl Fn(&str) -> Option<T>) -> Read<Option<T>> {
    match read.text()?.as_str() {
        "" => Ok(None),
        word => parse(word).map(Some).ok_or(Damaged),
    }
}

fn put_option_f64(out: &mut Vec<u8>, value: Option<f64>) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put_f64(out, value);
    }
}

fn read_option_f64(read: &mut Reader<'_>) -> Read<Option<f64>> {
    if read.u8()? == 1 { read.f64().map(Some) } else { Ok(None) }
}

// ---- progress ----

pub(super) fn progress(progress: &Progress) -> Vec<u8> {
    let mut out = vec![VERSION];
    for count in [
        progress.deliveries,
        progress.tries,
        progress.releases,
        progress.interruptions,
        progress.uncounted,
        progress.redrives,
        progress.recorded,
        progress.retries,
    ] {
        put_u64(&mut out, u64::from(count));
    }
    put_option(&mut out, progress.last_delay.map(millis_ceil));
    out.push(u8::from(progress.cancel_requested) | u8::from(progress.deadline_cleared) << 1);
    put_option(&mut out, progress.first_failed_at.map(Timestamp::millis));
    put_option(&mut out, progress.last_failed_at.map(Timestamp::millis));
    put_text(&mut out, &progress.checkpoint);
    seal(out)
}

pub(super) fn read_progress(record: &[u8]) -> Read<Progress> {
    let mut read = open(record)?;
    let progress = Progress {
        deliveries: read.u32()?,
        tries: read.u32()?,
        releases: read.u32()?,
        interruptions: read.u32()?,
        uncounted: read.u32()?,
        redrives: read.u32()?,
        recorded: read.u32()?,
        retries: read.u32()?,
        last_delay: read.option()?.map(Duration::from_millis),
        ..Progress::default()
    };
    let flags = read.u8()?;
    let progress = Progress {
        cancel_requested: flags & 1 != 0,
        deadline_cleared: flags & 2 != 0,
        first_failed_at: read.option()?.map(Timestamp::from_millis),
        last_failed_at: read.option()?.map(Timestamp::from_millis),
        checkpoint: read.text()?,
        ..progress
    };
    read.end()?;
    Ok(progress)
}

// ---- attempts ----

pub(super) fn attempt(attempt: &Attempt) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_u64(&mut out, u64::from(attempt.number));
    put_u64(&mut out, u64::from(attempt.delivery));
    out.extend_from_slice(&attempt.nonce.to_le_bytes());
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
    match &attempt.failure {
        None => out.push(0),
        Some(failure) => {
            out.push(1);
            put_failure(&mut out, failure);
        }
    }
    seal(out)
}

pub(super) fn read_attempt(record: &[u8]) -> Read<Attempt> {
    let mut read = open(record)?;
    let number = read.u32()?;
    let delivery = read.u32()?;
    let nonce = u64::from_le_bytes(read.take(8)?.try_into().map_err(|_| Damaged)?);
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
    let attempt = Attempt {
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
        failure: if read.u8()? == 1 { Some(read_failure_fields(&mut read)?) } else { None },
    };
    read.end()?;
    Ok(attempt)
}

/// What the Ack of a job that is kept carried.
pub(super) fn result(result: &[u8]) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(result);
    seal(out)
}

pub(super) fn read_result(record: &[u8]) -> Read<Bytes> {
    open(record).map(|Reader(result)| Bytes::copy_from_slice(result))
}

pub(super) fn failure(failure: &Failure) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_failure(&mut out, failure);
    seal(out)
}

pub(super) fn read_failure(record: &[u8]) -> Read<Failure> {
    let mut read = open(record)?;
    let failure = read_failure_fields(&mut read)?;
    read.end()?;
    Ok(failure)
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

// ---- the death's context ----

pub(super) fn context(entries: &[(String, String)]) -> String {
    let object = entries.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    serde_json::Value::Object(object).to_string()
}

pub(super) fn read_context(text: &str) -> Vec<(String, String)> {
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).unwrap_or_default();
    let entry = |(name, value): (String, serde_json::Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (name, text)
    };
    object.into_iter().map(entry).collect()
}

// ---- sealing ----

pub(super) fn seal(mut record: Vec<u8>) -> Vec<u8> {
    let sum = crc32c::crc32c(&record);
    record.extend_from_slice(&sum.to_le_bytes());
    record
}

pub(super) fn open(record: &[u8]) -> Read<Reader<'_>> {
    let at = record.len().checked_sub(CRC_BYTES).ok_or(Damaged)?;
    let (record, sum) = record.split_at(at);
    if crc32c::crc32c(record).to_le_bytes() != sum {
        return Err(Damaged);
    }
    let mut read = Reader(record);
    expect(read.u8()?, VERSION)?;
    Ok(read)
}

fn expect(found: u8, wanted: u8) -> Read<()> {
    if found == wanted { Ok(()) } else { Err(Damaged) }
}

/// A stand-in for a head that cannot be read: the bytes stay where they are, the job stays visible.
pub(super) fn unreadable(number: u64) -> Spec {
    Spec {
        id: JobId::Text(format!("unreadable-{number}").into()),
        key: None,
        job_type: String::new(),
        content_type: String::new(),
        headers: Vec::new(),
        body: Body::None,
        priority: 0,
        enqueued_at: Timestamp::default(),
        run_at: Timestamp::default(),
        expires_at: None,
        policy: None,
    }
}
