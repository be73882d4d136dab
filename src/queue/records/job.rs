//! Job, what never changes about a job: size 4, traits 1, format 1, rank 1, enqueued_at 6, run_at 6, texts, body, tagged fields, checksum

use super::*;
use crate::domain::{
    Body, Jitter, JobId, Lease, PolicyOverride, Preset, Sameness, Spec, Strategy, Timestamp, millis_ceil,
};
use crate::queue::encoding::Unreadable::{self, Damaged};
use crate::queue::encoding::{
    FORMAT, Read, Reader, Unknown, open_unchecked, open_with, put_field, put_field_u64, put_id, put_list, put_option,
    put_option_f64, put_text, put_u64, seal_with,
};
use crate::queue::sizes;
use crate::store::Result;
use crate::store::storage::{NO_GROUP, flag};
use bytes::Bytes;
use std::time::Duration;

mod job_tag {
    pub(super) const EXPIRES_AT: u8 = 1;
    pub(super) const HEADER: u8 = 2;
    pub(super) const KEY: u8 = 3;
    pub(super) const POLICY: u8 = 4;
    pub(super) const SAMENESS: u8 = 5;
    pub(super) const KEY_TTL: u8 = 6;
    pub(super) const BREAKER_KEY: u8 = 7;
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

/// `number`: an id that holds it needs no record in `Id`. `group`: of its breaker key, for as long as it has no history.
/// `sameness`: for a job with a key, so that its Ack need not read more.
pub(crate) fn job(spec: &Spec, number: u64, group: u16, sameness: Option<&Sameness>, unknown: &Unknown) -> JobRecord {
    let body = spec.body.bytes();
    let apart = body.len() > INLINE_BODY_MAX;
    let own_id = spec.id.number() != Some(number);
    let long_id = matches!(&spec.id, JobId::Text(id) if id.len() > Lease::OWN_ID_MAX);
    let look = spec.expires_at.is_some() || long_id;
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
    if let Some(ttl) = spec.key_ttl {
        let mut field = Vec::new();
        put_u64(&mut field, millis_ceil(ttl));
        put_field(&mut out, job_tag::KEY_TTL, &field);
    }
    if let Some(key) = &spec.breaker_key {
        put_field(&mut out, job_tag::BREAKER_KEY, &[&group.to_be_bytes(), key.as_bytes()].concat());
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
    let body = if is_apart(record) { Some(body.ok_or(Damaged)?) } else { None };
    let mut fields = read_job_fields(open_with(record, body.map_or(&[], |body| body))?)?;
    fields.spec.body = body_of(fields.kind, fields.body(record, body))?;
    Ok(fields.spec)
}

/// The same as far as it can be read, whatever its checksum says.
pub(crate) fn read_job_unchecked(record: &Bytes, body: Option<&Bytes>) -> Read<Spec> {
    let mut fields = read_job_fields_unchecked(record)?;
    let body = fields.body(record, body.filter(|_| is_apart(record)));
    fields.spec.body = body_of(fields.kind, body.clone()).unwrap_or(Body::Data(body));
    Ok(fields.spec)
}

/// All of a job but its body, whatever its checksum says.
pub(crate) fn read_job_head(record: &[u8]) -> Read<Spec> {
    read_job_fields_unchecked(record).map(|fields| fields.spec)
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
pub(crate) fn job_or_stand_in(number: u64, record: Option<&Bytes>) -> Result<Spec> {
    Ok(job_with_rest(number, record)?.0)
}

/// The same, and what its record says of the sameness of a job with a key, and of its group.
pub(crate) fn job_with_rest(number: u64, record: Option<&Bytes>) -> Result<(Spec, Option<Sameness>, u16)> {
    let fields = read_if(record, read_job_fields_unchecked)?;
    Ok(match fields {
        Some(fields) => (fields.spec, fields.sameness, fields.group),
        None => (stand_in(number), None, NO_GROUP),
    })
}

pub(crate) fn is_apart(record: &[u8]) -> bool {
    traits(record) & flag::BODY != 0
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
    group: u16,
    unknown: Unknown,
}

impl JobFields {
    /// `apart`: where it does not stand in the record.
    fn body(&self, record: &Bytes, apart: Option<&Bytes>) -> Bytes {
        apart.cloned().unwrap_or_else(|| record.slice(self.inline.clone()))
    }
}

/// A newer format is believed only where the checksum is right, as far as that can be checked without the body.
fn read_job_fields_unchecked(record: &[u8]) -> Read<JobFields> {
    let fields = read_job_fields(open_unchecked(record)?);
    match fields {
        Err(Unreadable::Newer(_)) if !is_apart(record) && open_with(record, &[]).is_err() => Err(Damaged),
        fields => fields,
    }
}

fn read_job_fields(record: &[u8]) -> Read<JobFields> {
    let apart = is_apart(record);
    let mut read = Reader(record);
    read.take(JOB_FORMAT)?;
    read.format()?;
    // Fields are read in the order in which they stand here.
    let mut spec = Spec {
        priority: priority(read.u8()?),
        enqueued_at: read_time(&mut read)?,
        run_at: read_time(&mut read)?,
        id: read.id()?,
        job_type: read.text()?,
        content_type: match read.u8()? {
            0 => read.text()?,
            known => (*KNOWN_CONTENT_TYPES.get(known as usize - 1).ok_or(Damaged)?).to_owned(),
        },
        key: None,
        headers: Vec::new(),
        body: Body::None,
        expires_at: None,
        policy: None,
        key_ttl: None,
        breaker_key: None,
    };
    let kind = read.u8()?;
    let length = usize::try_from(read.u64()?).map_err(|_| Damaged)?;
    let from = record.len() - read.0.len();
    let inline = from..from + if apart { 0 } else { read.take(length)?.len() };
    let (mut sameness, mut group) = (None, NO_GROUP);
    let unknown = read.fields(|tag, mut value| {
        match tag {
            job_tag::EXPIRES_AT => spec.expires_at = Some(value.time()?),
            job_tag::HEADER => spec.headers.push((value.text()?, value.rest_text()?)),
            job_tag::KEY => spec.key = Some(value.rest_text()?),
            job_tag::POLICY => spec.policy = Some(Box::new(read_policy(&mut value)?)),
            job_tag::KEY_TTL => spec.key_ttl = Some(Duration::from_millis(value.u64()?)),
            job_tag::SAMENESS => sameness = Some(value.array()?),
            job_tag::BREAKER_KEY => {
                group = u16::from_be_bytes(value.array()?);
                spec.breaker_key = Some(value.rest_text()?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(JobFields { spec, inline, kind, length, sameness, group, unknown })
}

fn put_policy(out: &mut Vec<u8>, policy: &PolicyOverride) {
    let millis = |duration: Option<Duration>| duration.map(millis_ceil);
    put_text(out, policy.preset.map_or("", Preset::as_str));
    put_option(out, policy.max_retries.map(u64::from));
    put_text(out, policy.strategy.map_or("", Strategy::as_str));
    put_option(out, millis(policy.base_delay));
    put_option_f64(out, policy.factor);
    put_option(out, millis(policy.max_delay));
    put_list(out, &policy.delays, |out, delay| put_u64(out, millis_ceil(*delay)));
    put_text(out, policy.jitter.map_or("", Jitter::as_str));
    put_option_f64(out, policy.jitter_fraction);
    put_option(out, millis(policy.jitter_max));
}

fn read_policy(read: &mut Reader<'_>) -> Read<PolicyOverride> {
    // Fields are read in the order in which they stand here.
    Ok(PolicyOverride {
        preset: word(read, Preset::parse)?,
        max_retries: read.option()?.map(|n| n as u32),
        strategy: word(read, Strategy::parse)?,
        base_delay: read.option_duration()?,
        factor: read.option_f64()?,
        max_delay: read.option_duration()?,
        delays: read.list(|read| read.u64().map(Duration::from_millis))?,
        jitter: word(read, Jitter::parse)?,
        jitter_fraction: read.option_f64()?,
        jitter_max: read.option_duration()?,
    })
}

fn word<T>(read: &mut Reader<'_>, parse: impl Fn(&str) -> Option<T>) -> Read<Option<T>> {
    match read.text()?.as_str() {
        "" => Ok(None),
        word => parse(word).map(Some).ok_or(Damaged),
    }
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
        key_ttl: None,
        breaker_key: None,
    }
}
