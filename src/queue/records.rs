//! The records: what stands in the tables, byte by byte.
//!
//! Every record has a format number, fixed fields, and a tail of tagged fields that older readers skip and keep. What an engine
//! reads of a record stands first: `store::storage` says which bytes.

use super::encoding::{
    FORMAT, Read, Reader, Unknown,
    Unreadable::{self, Damaged},
    open, open_unchecked, open_with, put_f64, put_field, put_field_u64, put_id, put_option, put_text,
    put_u48, put_u64, seal, seal_with,
};
use crate::{
    domain::{
        breaker::{Breaker, BreakerState, Forced, Open, Tally},
        failure::Failure,
        ids::{JobId, QueueName},
        job::{Attempt, AttemptStatus, Body, DeadReason, Delivery, Next, Progress, Sameness, Spec, State},
        lease::Lease,
        pause::Pause,
        policy::{Jitter, PolicyOverride, Strategy},
        presets::Preset,
        time::{Timestamp, millis_ceil},
    },
    store::{
        StoreError,
        sizes,
        storage::{HAS_HISTORY_TAG, LEASE_TAIL, NO_GROUP, Position, flag},
    },
};
use bytes::Bytes;
use std::{collections::HashSet, time::Duration};

/// Larger bodies stand in a record of their own.
const INLINE_BODY_MAX: usize = 1024;
/// Content types that nearly every job has, in one byte.
const KNOWN_CONTENT_TYPES: [&str; 3] =
    ["application/json", "text/plain", "application/octet-stream"];
/// The largest time that stands in six bytes.
const TIME_MAX: u64 = (1 << 48) - 1;

fn put_time(out: &mut Vec<u8>, at: Timestamp) {
    put_u48(out, at.millis().min(TIME_MAX));
}

fn read_time(read: &mut Reader<'_>) -> Read<Timestamp> {
    read.u48().map(Timestamp::from_millis)
}

/// A record of a newer server is an error that says so; what is damaged is `None`.
pub(crate) fn readable<T>(read: Read<T>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Damaged) => Ok(None),
        Err(Unreadable::Newer(format)) => Err(StoreError::NewerFormat(format!(
            "a record has format {format}, and this server reads formats up to {FORMAT}: use the newer redrive that wrote it"
        ))),
    }
}

// ---- Job: size 4, traits 1, format 1, rank 1, enqueued_at 6, run_at 6, texts, body, tagged fields, checksum ----

mod job_tag {
    pub(super) const EXPIRES_AT: u8 = 1;
    pub(super) const HEADER: u8 = 2;
    pub(super) const KEY: u8 = 3;
    pub(super) const POLICY: u8 = 4;
    pub(super) const SAMENESS: u8 = 5;
}

/// Where the format of a job's record stands.
const JOB_FORMAT: usize = 5;

/// `priority_rank`: 0 goes first.
pub(crate) fn rank(priority: i8) -> u8 {
    (127 - i16::from(priority)) as u8
}

/// From [`rank`].
pub(crate) fn priority(rank: u8) -> i8 {
    (127 - i16::from(rank)) as i8
}

/// A job's record, and its body where that stands apart.
pub(crate) struct JobRecord {
    pub(crate) record: Bytes,
    pub(crate) body: Option<Bytes>,
    pub(crate) traits: u8,
}

/// `number`: an id that holds it needs no record in `Id`. `sameness`: for a job with a key, so that its Ack need not read more.
pub(crate) fn job(
    spec: &Spec,
    number: u64,
    sameness: Option<&Sameness>,
    unknown: &Unknown,
) -> JobRecord {
    let body = spec.body.bytes();
    let apart = body.len() > INLINE_BODY_MAX;
    let own_id = spec.id.number() != Some(number);
    let long_id = matches!(&spec.id, JobId::Text(id) if id.len() > Lease::OWN_ID_MAX);
    let look = spec.key.is_some() || spec.expires_at.is_some() || long_id;
    let bits = [(own_id, flag::OWN_ID), (look, flag::LOOK), (apart, flag::BODY)];
    let traits = bits.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum();
    let mut out = Vec::with_capacity(96 + spec.job_type.len() + if apart { 0 } else { body.len() });
    out.extend_from_slice(&(sizes::of_job(spec) as u32).to_be_bytes());
    out.push(traits);
    out.push(FORMAT);
    out.push(rank(spec.priority));
    put_time(&mut out, spec.enqueued_at);
    put_time(&mut out, spec.run_at);
    put_id(&mut out, &spec.id);
    put_text(&mut out, &spec.job_type);
    match KNOWN_CONTENT_TYPES.iter().position(|known| *known == spec.content_type) {
        Some(at) => out.push(at as u8 + 1),
        None => {
            out.push(0);
            put_text(&mut out, &spec.content_type);
        }
    }
    out.push(match spec.body {
        Body::None => 0,
        Body::Text(_) => 1,
        Body::Data(_) => 2,
    });
    put_u64(&mut out, body.len() as u64);
    if !apart {
        out.extend_from_slice(body);
    }
    if let Some(at) = spec.expires_at {
        put_field_u64(&mut out, job_tag::EXPIRES_AT, at.millis());
    }
    for (name, value) in &spec.headers {
        let mut header = Vec::with_capacity(name.len() + value.len() + 2);
        put_text(&mut header, name);
        header.extend_from_slice(value.as_bytes());
        put_field(&mut out, job_tag::HEADER, &header);
    }
    if let Some(key) = &spec.key {
        put_field(&mut out, job_tag::KEY, key.as_bytes());
    }
    if let Some(policy) = &spec.policy {
        let mut field = Vec::new();
        put_policy(&mut field, policy);
        put_field(&mut out, job_tag::POLICY, &field);
    }
    if let Some(sameness) = sameness.filter(|_| spec.key.is_some()) {
        put_field(&mut out, job_tag::SAMENESS, sameness);
    }
    unknown.put(&mut out);
    let beside = if apart { body.clone() } else { Bytes::new() };
    seal_with(&mut out, &beside);
    JobRecord { record: out.into(), body: apart.then_some(beside), traits }
}

/// A caller's own id, which needs a record in `Id`: the others hold the job's number.
pub(crate) fn own_id(spec: &Spec, number: u64) -> Option<String> {
    (spec.id.number() != Some(number)).then(|| spec.id.to_string())
}

/// The job whole, checked. `body`: where it stands apart.
pub(crate) fn read_job(record: &Bytes, body: Option<&Bytes>) -> Read<Spec> {
    let apart = is_apart(record);
    let beside: &[u8] = if apart { body.ok_or(Damaged)? } else { &[] };
    let checked = open_with(record, beside)?;
    let (mut spec, inline, kind) = read_job_fields(checked)?.spec();
    let body = match (apart, body) {
        (true, Some(body)) => body.clone(),
        _ => record.slice(inline),
    };
    spec.body = body_of(kind, body)?;
    Ok(spec)
}

/// The same as far as it can be read, whatever its checksum says.
pub(crate) fn read_job_unchecked(record: &Bytes, body: Option<&Bytes>) -> Read<Spec> {
    let fields = read_job_fields_unchecked(record)?;
    let (mut spec, inline, kind) = fields.spec();
    let body = match body.filter(|_| is_apart(record)) {
        Some(body) => body.clone(),
        None => record.slice(inline),
    };
    spec.body = body_of(kind, body.clone()).unwrap_or(Body::Data(body));
    Ok(spec)
}

/// All of a job but its body, whatever its checksum says.
pub(crate) fn read_job_head(record: &[u8]) -> Read<Spec> {
    read_job_fields_unchecked(record).map(|fields| fields.spec().0)
}

/// How long the job's body is, whether it stands in the record or apart.
pub(crate) fn body_length(record: &[u8]) -> usize {
    let fields = open_unchecked(record).and_then(read_job_fields);
    fields.map_or(0, |fields| fields.length)
}

/// What else stands in the record: sameness, and the fields of a newer server.
pub(crate) fn read_job_rest(record: &[u8]) -> Read<(Option<Sameness>, Unknown)> {
    read_job_fields_unchecked(record).map(|fields| (fields.sameness, fields.unknown))
}

/// The job as far as it can be read: its bytes stay where they are, and it stays visible.
pub(crate) fn job_or_stand_in(
    number: u64,
    record: Option<&Bytes>,
) -> Result<Spec, StoreError> {
    let spec = record.map(|record| readable(read_job_head(record))).transpose()?.flatten();
    Ok(spec.unwrap_or_else(|| stand_in(number)))
}

fn is_apart(record: &[u8]) -> bool {
    record.get(4).is_some_and(|traits| traits & flag::BODY != 0)
}

/// The traits byte of a Job or a History.
pub(crate) fn traits(record: &[u8]) -> u8 {
    record.get(4).copied().unwrap_or_default()
}

fn body_of(kind: u8, body: Bytes) -> Read<Body> {
    match kind {
        0 => Ok(Body::None),
        1 if std::str::from_utf8(&body).is_ok() => Ok(Body::Text(body)),
        2 => Ok(Body::Data(body)),
        _ => Err(Damaged),
    }
}

struct JobFields {
    spec: Spec,
    inline: std::ops::Range<usize>,
    kind: u8,
    length: usize,
    sameness: Option<Sameness>,
    unknown: Unknown,
}

impl JobFields {
    fn spec(self) -> (Spec, std::ops::Range<usize>, u8) {
        (self.spec, self.inline, self.kind)
    }
}

/// A newer format is believed only where the checksum is right, as far as that can be told without the body.
fn read_job_fields_unchecked(record: &[u8]) -> Read<JobFields> {
    let fields = read_job_fields(open_unchecked(record)?);
    match fields {
        Err(Unreadable::Newer(_)) if !is_apart(record) && open_with(record, &[]).is_err() => {
            Err(Damaged)
        }
        fields => fields,
    }
}

fn read_job_fields(record: &[u8]) -> Read<JobFields> {
    let apart = is_apart(record);
    let mut read = Reader(record);
    read.take(JOB_FORMAT)?;
    read.format()?;
    let priority = priority(read.u8()?);
    let enqueued_at = read_time(&mut read)?;
    let run_at = read_time(&mut read)?;
    let id = read.id()?;
    let job_type = read.text()?;
    let content_type = match read.u8()? {
        0 => read.text()?,
        known => (*KNOWN_CONTENT_TYPES.get(known as usize - 1).ok_or(Damaged)?).to_owned(),
    };
    let kind = read.u8()?;
    let length = usize::try_from(read.u64()?).map_err(|_| Damaged)?;
    let from = record.len() - read.0.len();
    let inline = from..from + if apart { 0 } else { read.take(length)?.len() };
    let (mut expires_at, mut headers, mut key, mut policy) = (None, Vec::new(), None, None);
    let mut sameness = None;
    let unknown = read.fields(|tag, mut value| {
        match tag {
            job_tag::EXPIRES_AT => expires_at = Some(Timestamp::from_millis(value.u64()?)),
            job_tag::HEADER => headers.push((value.text()?, value.rest_text()?)),
            job_tag::KEY => key = Some(value.rest_text()?),
            job_tag::POLICY => policy = Some(Box::new(read_policy(&mut value)?)),
            job_tag::SAMENESS => sameness = Some(value.array()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let body = Body::None;
    let spec = Spec {
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
    };
    Ok(JobFields { spec, inline, kind, length, sameness, unknown })
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

/// Stands for a job whose record cannot be read.
fn stand_in(number: u64) -> Spec {
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

// ---- History: size 4, traits 1, deliveries 4, tries 4, format 1, where it is, last nonce, counts, tagged fields, checksum ----

mod history_tag {
    pub(super) const CHECKPOINT: u8 = 1;
}

/// Where a job is that is not leased. A promotion moves it from `Scheduled` or `Retrying` to `Ready` and writes nothing else, so
/// one that waits is in the index that is named here or in `Ready`, at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    Ready,
    Scheduled,
    Retrying,
    Completed,
    Dead,
    Overflow,
}

impl Whereabouts {
    pub(crate) fn state(self) -> State {
        match self {
            Self::Ready => State::Ready,
            Self::Scheduled | Self::Retrying => State::Scheduled,
            Self::Completed => State::Completed,
            Self::Dead | Self::Overflow => State::Dead,
        }
    }
}

/// What a job has been through, and where it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct History {
    pub(crate) progress: Progress,
    pub(crate) whereabouts: Whereabouts,
    pub(crate) rank: u8,
    /// When it became, or becomes, ready; was done; died.
    pub(crate) at: Timestamp,
    /// Of the last delivery, whose number is `progress.deliveries`.
    pub(crate) nonce: u64,
    /// What its last failure takes in a reply.
    pub(crate) failure_bytes: u32,
    pub(crate) unknown: Unknown,
}

impl Default for History {
    fn default() -> Self {
        Self {
            progress: Progress::default(),
            whereabouts: Whereabouts::Ready,
            rank: rank(0),
            at: Timestamp::default(),
            nonce: 0,
            failure_bytes: 0,
            unknown: Unknown::default(),
        }
    }
}

pub(crate) fn history(history: &History) -> Bytes {
    let progress = &history.progress;
    let retried = if progress.retries > 0 { flag::RETRIED } else { 0 };
    let size = history.failure_bytes.saturating_add(progress.checkpoint.len() as u32);
    let mut out = Vec::with_capacity(80 + progress.checkpoint.len());
    out.extend_from_slice(&size.to_be_bytes());
    out.push(flag::HISTORY | retried);
    out.extend_from_slice(&progress.deliveries.to_be_bytes());
    out.extend_from_slice(&progress.tries.to_be_bytes());
    out.push(FORMAT);
    out.push(match history.whereabouts {
        Whereabouts::Ready => 1,
        Whereabouts::Scheduled => 2,
        Whereabouts::Retrying => 3,
        Whereabouts::Completed => 4,
        Whereabouts::Dead => 5,
        Whereabouts::Overflow => 6,
    });
    out.push(history.rank);
    // The group of its breaker key.
    out.extend_from_slice(&NO_GROUP.to_be_bytes());
    put_time(&mut out, history.at);
    out.extend_from_slice(&history.nonce.to_be_bytes());
    let counts = [
        progress.releases,
        progress.interruptions,
        progress.uncounted,
        progress.redrives,
        progress.recorded,
        progress.retries,
    ];
    for count in counts {
        put_u64(&mut out, u64::from(count));
    }
    put_option(&mut out, progress.last_delay.map(millis_ceil));
    out.push(u8::from(progress.cancel_requested) | u8::from(progress.deadline_cleared) << 1);
    put_option(&mut out, progress.first_failed_at.map(Timestamp::millis));
    put_option(&mut out, progress.last_failed_at.map(Timestamp::millis));
    if !progress.checkpoint.is_empty() {
        put_field(&mut out, history_tag::CHECKPOINT, progress.checkpoint.as_bytes());
    }
    history.unknown.put(&mut out);
    seal(out).into()
}

pub(crate) fn read_history(record: &[u8]) -> Read<History> {
    let mut read = Reader(open_with(record, &[])?);
    let size = u32::from_be_bytes(read.array()?);
    read.u8()?;
    let deliveries = u32::from_be_bytes(read.array()?);
    let tries = u32::from_be_bytes(read.array()?);
    read.format()?;
    let whereabouts = match read.u8()? {
        1 => Whereabouts::Ready,
        2 => Whereabouts::Scheduled,
        3 => Whereabouts::Retrying,
        4 => Whereabouts::Completed,
        5 => Whereabouts::Dead,
        6 => Whereabouts::Overflow,
        _ => return Err(Damaged),
    };
    let rank = read.u8()?;
    read.take(2)?;
    let at = read_time(&mut read)?;
    let nonce = u64::from_be_bytes(read.array()?);
    let mut progress = Progress {
        deliveries,
        tries,
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
    progress.cancel_requested = flags & 1 != 0;
    progress.deadline_cleared = flags & 2 != 0;
    progress.first_failed_at = read.option()?.map(Timestamp::from_millis);
    progress.last_failed_at = read.option()?.map(Timestamp::from_millis);
    let unknown = read.fields(|tag, value| {
        if tag != history_tag::CHECKPOINT {
            return Ok(false);
        }
        progress.checkpoint = value.rest_text()?;
        Ok(true)
    })?;
    let failure_bytes = size.saturating_sub(progress.checkpoint.len() as u32);
    Ok(History { progress, whereabouts, rank, at, nonce, failure_bytes, unknown })
}

// ---- Lease: the fence 27, attempt 4, position 16, then the tail: format 1, answer 8, tagged fields ----

mod lease_tag {
    pub(super) const WORKER: u8 = 1;
    pub(super) const REQUEST: u8 = 2;
    pub(super) const CHECKPOINT: u8 = 3;
    pub(super) const CANCEL_REQUESTED: u8 = 4;
    pub(super) const RETURN_AT: u8 = 5;
}

/// A delivery that runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseRecord {
    pub(crate) lease: Lease,
    pub(crate) attempt: u32,
    /// Where the job waited, and returns to if its claim was not delivered.
    pub(crate) position: Position,
    pub(crate) tail: LeaseTail,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LeaseTail {
    /// Which answer to a claim handed it out last: one that was not delivered takes nothing from a later one.
    pub(crate) answer: u64,
    pub(crate) worker_id: String,
    pub(crate) request_id: String,
    /// What an Extend saved.
    pub(crate) checkpoint: String,
    pub(crate) cancel_requested: bool,
    /// Its claim was not delivered.
    pub(crate) undelivered: Option<Undelivered>,
    pub(crate) unknown: Unknown,
}

/// The job returns then, unless its claim is said again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undelivered {
    pub(crate) return_at: Timestamp,
    /// When the lease would have ended.
    pub(crate) expires_at: Timestamp,
}

pub(crate) fn lease_tail(tail: &LeaseTail) -> Vec<u8> {
    let mut out =
        Vec::with_capacity(16 + tail.worker_id.len() + tail.request_id.len() + tail.checkpoint.len());
    out.push(FORMAT);
    out.extend_from_slice(&tail.answer.to_be_bytes());
    let texts = [
        (lease_tag::WORKER, &tail.worker_id),
        (lease_tag::REQUEST, &tail.request_id),
        (lease_tag::CHECKPOINT, &tail.checkpoint),
    ];
    for (tag, text) in texts {
        if !text.is_empty() {
            put_field(&mut out, tag, text.as_bytes());
        }
    }
    if tail.cancel_requested {
        put_field(&mut out, lease_tag::CANCEL_REQUESTED, &[]);
    }
    if let Some(undelivered) = tail.undelivered {
        let mut field = Vec::with_capacity(12);
        put_time(&mut field, undelivered.return_at);
        put_time(&mut field, undelivered.expires_at);
        put_field(&mut out, lease_tag::RETURN_AT, &field);
    }
    tail.unknown.put(&mut out);
    out
}

fn read_lease_tail(mut read: Reader<'_>) -> Read<LeaseTail> {
    read.format()?;
    let mut tail =
        LeaseTail { answer: u64::from_be_bytes(read.array()?), ..LeaseTail::default() };
    tail.unknown = {
        let tail = &mut tail;
        read.fields(|tag, mut value| {
            match tag {
                lease_tag::WORKER => tail.worker_id = value.rest_text()?,
                lease_tag::REQUEST => tail.request_id = value.rest_text()?,
                lease_tag::CHECKPOINT => tail.checkpoint = value.rest_text()?,
                lease_tag::CANCEL_REQUESTED => tail.cancel_requested = true,
                lease_tag::RETURN_AT => {
                    let return_at = read_time(&mut value)?;
                    let expires_at = read_time(&mut value)?;
                    tail.undelivered = Some(Undelivered { return_at, expires_at });
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?
    };
    Ok(tail)
}

pub(crate) fn lease(record: &LeaseRecord) -> Bytes {
    let tail = lease_tail(&record.tail);
    let mut out = Vec::with_capacity(LEASE_TAIL + tail.len());
    out.extend_from_slice(&record.lease.fence());
    out.extend_from_slice(&record.attempt.to_be_bytes());
    out.extend_from_slice(&record.position.bytes());
    out.extend_from_slice(&tail);
    out.into()
}

/// The lease of this job; its token has no own id.
pub(crate) fn read_lease(queue: &QueueName, number: u64, record: &[u8]) -> Read<LeaseRecord> {
    let mut read = Reader(record);
    let fence: [u8; Lease::FENCE] = read.array()?;
    let attempt = u32::from_be_bytes(read.array()?);
    let position = Position::read(read.take(Position::LENGTH)?).ok_or(Damaged)?;
    let tail = read_lease_tail(read)?;
    let lease = Lease::of(queue.clone(), number, &fence, None);
    Ok(LeaseRecord { lease, attempt, position, tail })
}

impl LeaseRecord {
    pub(crate) fn delivery(&self, expires_at: Timestamp) -> Delivery {
        Delivery {
            lease: self.lease.clone(),
            attempt: self.attempt,
            worker_id: self.tail.worker_id.clone(),
            started_at: self.lease.started_at,
            expires_at,
            duration: Duration::from_millis(u64::from(self.lease.duration_ms)),
            probe: self.lease.flags & flag::PROBE != 0,
        }
    }

    /// When it ends, by its score in `Leased`.
    pub(crate) fn expires_at(&self, score: u64) -> Timestamp {
        self.tail.undelivered.map_or(Timestamp::from_millis(score), |it| it.expires_at)
    }
}

/// Where a job waits.
pub(crate) fn position(number: u64, rank: u8, ready_at: Timestamp, has_history: bool) -> Position {
    let ready_at = Timestamp::from_millis(ready_at.millis().min(TIME_MAX));
    let tag = if has_history { HAS_HISTORY_TAG } else { 0 };
    Position { group: NO_GROUP, rank, ready_at, number, tag }
}

// ---- Attempt, Failure, Result: sealed ----

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

fn reason_code(reason: DeadReason) -> u8 {
    match reason {
        DeadReason::Exhausted => 1,
        DeadReason::NonRetryable => 2,
        DeadReason::Expired => 3,
        DeadReason::WouldMissDeadline => 4,
        DeadReason::Cancelled => 5,
        DeadReason::Corrupt => 6,
    }
}

fn reason_of(code: u8) -> Read<DeadReason> {
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

// ---- Dead: number of death 8 (the engine's), then format, reason, died_at, texts, checksum ----

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadRecord {
    pub(crate) reason: DeadReason,
    pub(crate) died_at: Timestamp,
    /// The type of error that counts it.
    pub(crate) counted_as: String,
    /// The state of things at death.
    pub(crate) context: Vec<(String, String)>,
}

/// Without the number of death.
pub(crate) fn dead(dead: &DeadRecord) -> Bytes {
    let mut out = Vec::with_capacity(192);
    out.push(FORMAT);
    out.push(reason_code(dead.reason));
    put_time(&mut out, dead.died_at);
    put_text(&mut out, &dead.counted_as);
    put_u64(&mut out, dead.context.len() as u64);
    for (name, value) in &dead.context {
        put_text(&mut out, name);
        put_text(&mut out, value);
    }
    seal(out).into()
}

/// With its number of death.
pub(crate) fn read_dead(record: &[u8]) -> Read<(u64, DeadRecord)> {
    let mut read = Reader(record);
    let death = u64::from_be_bytes(read.array()?);
    let mut read = open(read.0)?;
    let reason = reason_of(read.u8()?)?;
    let died_at = read_time(&mut read)?;
    let counted_as = read.text()?;
    let count = read.u64()?;
    let mut context = Vec::new();
    for _ in 0..count {
        context.push((read.text()?, read.text()?));
    }
    Ok((death, DeadRecord { reason, died_at, counted_as, context }))
}

/// The number of death of a record that may be damaged.
pub(crate) fn death_of(record: &[u8]) -> u64 {
    record.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

// ---- Id and Key: number 6, format 1, … ----

/// What a record of `Id` or `Key` begins with while it is this job's.
pub(crate) fn owner(number: u64) -> Bytes {
    let mut out = Vec::with_capacity(6);
    put_u48(&mut out, number);
    out.into()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdRecord {
    pub(crate) number: u64,
    pub(crate) sameness: Sameness,
}

pub(crate) fn id(record: &IdRecord) -> Bytes {
    let mut out = Vec::with_capacity(24);
    put_u48(&mut out, record.number);
    out.push(FORMAT);
    out.extend_from_slice(&record.sameness);
    out.into()
}

pub(crate) fn read_id(record: &[u8]) -> Read<IdRecord> {
    let mut read = Reader(record);
    let number = read.u48()?;
    read.format()?;
    Ok(IdRecord { number, sameness: read.array()? })
}

/// Who has a key, or had it: then it is free at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub(crate) number: u64,
    /// Its job is done.
    pub(crate) free_at: Option<Timestamp>,
    pub(crate) sameness: Sameness,
    pub(crate) id: JobId,
}

pub(crate) fn key(record: &KeyRecord) -> Bytes {
    let mut out = Vec::with_capacity(48);
    put_u48(&mut out, record.number);
    out.push(FORMAT);
    put_option(&mut out, record.free_at.map(Timestamp::millis));
    out.extend_from_slice(&record.sameness);
    put_id(&mut out, &record.id);
    out.into()
}

pub(crate) fn read_key(record: &[u8]) -> Read<KeyRecord> {
    let mut read = Reader(record);
    let number = read.u48()?;
    read.format()?;
    let free_at = read.option()?.map(Timestamp::from_millis);
    Ok(KeyRecord { number, free_at, sameness: read.array()?, id: read.id()? })
}

// ---- Breaker, Queue, Outcomes ----

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
    let open = if has & 1 != 0 {
        Some(Open {
            since: Timestamp::from_millis(read.u64()?),
            probe_at: Timestamp::from_millis(read.u64()?),
            successes: read.u32()?,
            failed_probe: if read.u8()? == 1 { Some(read.id()?) } else { None },
        })
    } else {
        None
    };
    let forced = if has & 2 != 0 {
        Some(Forced {
            open: read.u8()? == 1,
            since: Timestamp::from_millis(read.u64()?),
            reason: read.text()?,
        })
    } else {
        None
    };
    Ok(Breaker { transitions, trips, open, forced, last_error })
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
    queue.unknown = {
        let queue = &mut queue;
        read.fields(|tag, mut value| {
            match tag {
                queue_tag::PAUSE => {
                    let until = value.option()?.map(Timestamp::from_millis);
                    queue.pause = Some(Pause { until, reason: value.rest_text()? });
                }
                queue_tag::DEAD_LETTERS => queue.dead_letters = read_breaker_fields(&mut value)?,
                queue_tag::FULL_IN_A_ROW => queue.full_in_a_row = value.u32()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?
    };
    Ok(queue)
}

/// What a closed breaker has counted under one epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OutcomesRecord {
    pub(crate) epoch: u32,
    pub(crate) tally: Tally,
    /// Of the counter of successes: those after it are not in the tally yet.
    pub(crate) succeeded: u64,
}

pub(crate) fn outcomes(outcomes: &OutcomesRecord) -> Bytes {
    let mut out = vec![FORMAT];
    let tally = &outcomes.tally;
    put_u64(&mut out, u64::from(outcomes.epoch));
    put_u64(&mut out, outcomes.succeeded);
    put_u64(&mut out, u64::from(tally.row));
    put_option(&mut out, tally.last_success.map(Timestamp::millis));
    put_f64(&mut out, tally.outcomes);
    put_f64(&mut out, tally.failures);
    put_u64(&mut out, tally.failed.len() as u64);
    for id in &tally.failed {
        put_id(&mut out, id);
    }
    out.into()
}

pub(crate) fn read_outcomes(record: &[u8]) -> Read<OutcomesRecord> {
    let mut read = Reader(record);
    read.format()?;
    let epoch = read.u32()?;
    let succeeded = read.u64()?;
    let row = read.u32()?;
    let last_success = read.option()?.map(Timestamp::from_millis);
    let (outcomes, failures) = (read.f64()?, read.f64()?);
    let count = read.u64()?;
    let failed = (0..count).map(|_| read.id()).collect::<Read<HashSet<_>>>()?;
    let tally = Tally { failed, row, last_success, outcomes, failures };
    Ok(OutcomesRecord { epoch, tally, succeeded })
}
