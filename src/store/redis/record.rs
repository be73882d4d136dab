//! How things are written in Redis. What scripts look at has fixed places; the rest are the records of `codec`.

use crate::{
    domain::{
        breaker::{BreakerState, Sent},
        ids::{JobId, QueueName},
        job::{Body, DeadReason, Delivery, Progress, Sameness, Spec},
        lease::Lease,
        time::{Timestamp, millis_ceil},
    },
    store::{Death, Depths, codec, sizes},
};
use bytes::Bytes;
use std::time::Duration;

/// Bodies up to this length stand in the job's record; larger ones are read only by who wants them.
const INLINE_MAX: usize = 1024;
const APART: u8 = 4;
const HEAD_AT: usize = 10;

/// A job's number is kept in so many bytes, the highest first, so that numbers sort as their bytes do.
pub(super) const NUMBER_BYTES: usize = 6;
/// Queues have numbers up to this.
pub(super) const QUEUE_MAX: u64 = (1 << 18) - 1;
/// Jobs have numbers up to this.
pub(super) const NUMBER_MAX: u64 = (1 << 46) - 1;

/// A job's number within the store, and as its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Number(pub(super) u64);

impl Number {
    pub(super) fn bytes(self) -> Vec<u8> {
        self.0.to_be_bytes()[8 - NUMBER_BYTES..].to_vec()
    }

    /// From its bytes, or from what ends with them.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let start = bytes.len().saturating_sub(NUMBER_BYTES);
        Self(bytes[start..].iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

/// What this engine knows of a delivery stands beside its lease, so the token carries none of it.
fn lease(queue: &QueueName, number: Number, delivery: u32, nonce: u64) -> Lease {
    Lease {
        queue: queue.clone(),
        number: number.0,
        delivery,
        nonce,
        flags: 0,
        epoch: 0,
        started_at: Timestamp::default(),
        duration_ms: 0,
        own_id: None,
    }
}

/// What a lease must match.
pub(super) fn token(lease: &Lease) -> Vec<u8> {
    [&lease.delivery.to_be_bytes()[..], &lease.nonce.to_be_bytes()].concat()
}

/// A lease as scripts name it: number, delivery, nonce.
pub(super) fn read_named_lease(name: &[u8], queue: &QueueName) -> Option<Lease> {
    let (number, token) = name.split_at_checked(NUMBER_BYTES)?;
    let (delivery, nonce) = token.split_at_checked(4)?;
    let delivery = u32::from_be_bytes(delivery.try_into().ok()?);
    let nonce = u64::from_be_bytes(nonce.try_into().ok()?);
    Some(lease(queue, Number::read(number), delivery, nonce))
}

// ---- places ----

/// As the scripts keep it, in 32 bytes.
pub(super) fn print(sameness: Sameness) -> Vec<u8> {
    let mut print = sameness.to_vec();
    print.resize(32, 0);
    print
}

/// The lowest level is handed out first.
pub(super) fn level(priority: i8) -> u8 {
    (127 - i16::from(priority)) as u8
}

pub(super) fn priority(level: u8) -> i8 {
    (127 - i16::from(level)) as i8
}

/// The caller's own id; none where the id carries the job's number.
pub(super) fn own_id(number: Number, id: &JobId) -> Option<String> {
    (id.number() != Some(number.0)).then(|| id.to_string())
}

/// Breaks ties between jobs that became ready together: ids that the store made sort as their numbers do, before the
/// callers' own.
pub(super) fn tie(number: Number, id: &JobId) -> Vec<u8> {
    match own_id(number, id) {
        None => number.bytes(),
        Some(own) => [&[255], own.as_bytes(), &[0], &number.bytes()[..]].concat(),
    }
}

/// The caller's own id in a tie.
pub(super) fn id_in_tie(tie: &[u8]) -> String {
    match tie.split_first() {
        Some((255, rest)) if rest.len() > NUMBER_BYTES => {
            String::from_utf8_lossy(&rest[..rest.len() - NUMBER_BYTES - 1]).into_owned()
        }
        _ => String::new(),
    }
}

const LEVEL: u64 = 1 << 44;

pub(super) fn ready_score(level: u8, at: Timestamp) -> u64 {
    u64::from(level) * LEVEL + at.millis().min(LEVEL - 1)
}

pub(super) fn read_score(score: u64) -> (u8, Timestamp) {
    ((score / LEVEL) as u8, Timestamp::from_millis(score % LEVEL))
}

// ---- jobs ----

/// What it takes in a reply 4 bytes, level 1, kind of body 1, length of the head 4, head, body where it is not apart.
pub(super) fn job(spec: &Spec) -> (Vec<u8>, Bytes) {
    let mut head = Vec::new();
    codec::head(spec, &mut head);
    let body = spec.body.bytes();
    let apart = body.len() > INLINE_MAX;
    let kind = match spec.body {
        Body::None => 0,
        Body::Text(_) => 1,
        Body::Data(_) => 2,
    };
    let mut record = Vec::with_capacity(HEAD_AT + head.len() + if apart { 0 } else { body.len() });
    record.extend_from_slice(&(sizes::of_job(spec) as u32).to_be_bytes());
    record.push(level(spec.priority));
    record.push(if apart { kind | APART } else { kind });
    record.extend_from_slice(&(head.len() as u32).to_be_bytes());
    record.extend_from_slice(&head);
    if apart {
        return (record, body.clone());
    }
    record.extend_from_slice(body);
    (record, Bytes::new())
}

/// Head, kind of body, and the body as far as it is here.
fn parts(record: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let (prefix, rest) = record.split_at_checked(HEAD_AT)?;
    let length = u32::from_be_bytes(prefix[6..].try_into().ok()?) as usize;
    let (head, body) = rest.split_at_checked(length)?;
    Some((head, prefix[5], body))
}

/// A job whole; `Err` if its checksum fails.
pub(super) fn read_job(number: Number, record: &[u8], apart: Vec<u8>) -> Result<Spec, Box<Spec>> {
    let Some((head, kind, inline)) = parts(record) else {
        let unreadable = codec::unreadable(number.0);
        return Err(Box::new(Spec { body: Body::Data(record.to_vec().into()), ..unreadable }));
    };
    let bytes = if kind & APART != 0 { apart.into() } else { Bytes::copy_from_slice(inline) };
    let body = match kind & !APART {
        0 => Body::None,
        1 if std::str::from_utf8(&bytes).is_ok() => Body::Text(bytes),
        _ => Body::Data(bytes),
    };
    codec::read_job(head, body.clone())
        .map_err(|_| Box::new(Spec { body, ..read_head(number, record) }))
}

/// All of a job but its body, whatever its checksum says.
pub(super) fn read_head(number: Number, record: &[u8]) -> Spec {
    parts(record)
        .and_then(|(head, ..)| codec::read_head_unchecked(head).ok())
        .unwrap_or_else(|| codec::unreadable(number.0))
}

/// What a job has besides: enqueued at 8 bytes, deadline 8 (0: none), length of its own id 2, its own id, key. Nothing
/// for a job that has none of it.
pub(super) fn extras(number: Number, spec: &Spec) -> Vec<u8> {
    let own = own_id(number, &spec.id).unwrap_or_default();
    if own.is_empty() && spec.key.is_none() && spec.expires_at.is_none() {
        return Vec::new();
    }
    let mut out = spec.enqueued_at.millis().to_be_bytes().to_vec();
    let deadline = spec.expires_at.map_or(0, |at| at.millis().max(1));
    out.extend_from_slice(&deadline.to_be_bytes());
    out.extend_from_slice(&(own.len() as u16).to_be_bytes());
    out.extend_from_slice(own.as_bytes());
    out.extend_from_slice(spec.key.as_deref().unwrap_or_default().as_bytes());
    out
}

// ---- progress ----

pub(super) const PROGRESS_AT: usize = 17;

/// What it adds to a reply 4 bytes, deliveries 4, tries 4, attempts recorded 4, whether it was retried 1, the record.
pub(super) fn progress(progress: &Progress, past_bytes: usize) -> Vec<u8> {
    let mut out = (past_bytes as u32).to_be_bytes().to_vec();
    for count in [progress.deliveries, progress.tries, progress.recorded] {
        out.extend_from_slice(&count.to_be_bytes());
    }
    out.push(u8::from(progress.retries > 0));
    out.extend_from_slice(&codec::progress(progress));
    out
}

/// A damaged record counts as none.
pub(super) fn read_progress(record: &[u8]) -> Progress {
    let record = record.get(PROGRESS_AT..).unwrap_or_default();
    codec::read_progress(record).unwrap_or_default()
}

// ---- leases ----

const CANCEL_REQUESTED: u8 = 32;
const PROBE: u8 = 64;

/// A lease that is out.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) delivery: Delivery,
    pub(super) ready_at: Timestamp,
    /// Its caller has gone: then the job goes back to its old place.
    pub(super) unclaim_at: Option<Timestamp>,
    pub(super) cancel_requested: bool,
    /// Of the breaker, when it was handed out.
    pub(super) transitions: u64,
    pub(super) checkpoint: String,
}

impl Held {
    /// As a breaker sees it.
    pub(super) fn sent(&self) -> Sent {
        Sent { transitions: self.transitions, probe: self.delivery.probe }
    }
}

/// See `lua/lib/lease.lua`, which says what is where.
pub(super) fn read_lease(number: Number, queue: &QueueName, record: &[u8]) -> Option<Held> {
    let mut at = 0;
    let mut take = |length: usize| {
        let taken = record.get(at..at + length);
        at += length;
        taken
    };
    let delivery = u32::from_be_bytes(take(4)?.try_into().ok()?);
    let nonce = u64::from_be_bytes(take(8)?.try_into().ok()?);
    let traits = take(1)?[0];
    let attempt = u32::from_be_bytes(take(4)?.try_into().ok()?);
    let mut number64 = || Some(u64::from_be_bytes(take(8)?.try_into().ok()?));
    let (started, expires) = (number64()?, number64()?);
    let (duration, ready_at) = (number64()?, number64()?);
    let (_answer, unclaim_at) = (number64()?, number64()?);
    let transitions = number64()?;
    let length = u16::from_be_bytes(take(2)?.try_into().ok()?) as usize;
    let worker_id = String::from_utf8_lossy(take(length)?).into_owned();
    let length = u16::from_be_bytes(take(2)?.try_into().ok()?) as usize;
    take(length)?;
    let checkpoint = String::from_utf8_lossy(record.get(at..)?).into_owned();
    let delivery = Delivery {
        lease: lease(queue, number, delivery, nonce),
        attempt,
        worker_id,
        started_at: Timestamp::from_millis(started),
        expires_at: Timestamp::from_millis(expires),
        duration: Duration::from_millis(duration),
        probe: traits & PROBE != 0,
    };
    Some(Held {
        delivery,
        ready_at: Timestamp::from_millis(ready_at),
        unclaim_at: (unclaim_at > 0).then(|| Timestamp::from_millis(unclaim_at)),
        cancel_requested: traits & CANCEL_REQUESTED != 0,
        transitions,
        checkpoint,
    })
}

// ---- deaths ----

/// How a job died, and under which type of error it is counted. See `lua/lib/death.lua`.
pub(super) fn read_death(record: &[u8]) -> Option<(Death, String)> {
    let number = |at: usize| Some(u64::from_be_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let depths = Depths {
        ready: number(18)?,
        scheduled: number(26)?,
        leased: number(34)?,
        dead: number(42)?,
        overflow: number(50)?,
        ..Depths::default()
    };
    let length = u16::from_be_bytes(record.get(58..60)?.try_into().ok()?) as usize;
    let counted_as = String::from_utf8_lossy(record.get(60..60 + length)?).into_owned();
    let states: [u8; 2] = record.get(60 + length..)?.try_into().ok()?;
    let mut context = depths.context(states.map(read_state));
    // Kept as an object elsewhere, whose names are in order.
    context.sort();
    let death = Death {
        number: number(0)?,
        reason: codec::reason_of(record[8]).unwrap_or(DeadReason::Corrupt),
        died_at: Timestamp::from_millis(number(9)?),
        overflow: record[17] == 1,
        context,
    };
    Some((death, counted_as))
}

/// A death without its number, from the reason to the depths, and the states of both breakers.
pub(super) fn death(death: &Death) -> (Vec<u8>, String) {
    let of = |name: &str| death.context.iter().find(|(is, _)| is == name).map(|(_, value)| value);
    let mut head = vec![codec::reason_code(death.reason)];
    head.extend_from_slice(&death.died_at.millis().to_be_bytes());
    head.push(u8::from(death.overflow));
    for name in ["ready", "scheduled", "leased", "dead", "overflow"] {
        let depth = of(name).and_then(|depth| depth.parse::<u64>().ok()).unwrap_or_default();
        head.extend_from_slice(&depth.to_be_bytes());
    }
    let state = |name| {
        let is = |state: &BreakerState| of(name).is_some_and(|said| said == state.as_str());
        [BreakerState::Open, BreakerState::HalfOpen].into_iter().find(is).unwrap_or_default()
    };
    (head, states([state("queue_breaker"), state("dlq_breaker")]))
}

/// Both breakers at the time of a death, one character each.
pub(super) fn states(breakers: [BreakerState; 2]) -> String {
    let code = |state| match state {
        BreakerState::Closed => '0',
        BreakerState::Open => '1',
        BreakerState::HalfOpen => '2',
    };
    breakers.map(code).iter().collect()
}

fn read_state(code: u8) -> BreakerState {
    match code {
        b'1' => BreakerState::Open,
        b'2' => BreakerState::HalfOpen,
        _ => BreakerState::Closed,
    }
}

/// Milliseconds as an argument.
pub(super) fn millis(duration: Duration) -> u64 {
    millis_ceil(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_levels_and_scores_read_back() {
        let queue = QueueName::parse("emails").unwrap();
        for number in [0, 1, 255, 256, NUMBER_MAX] {
            let number = Number(number);
            assert_eq!(Number::read(&number.bytes()), number);
            assert_eq!(Number::read(&tie(number, &JobId::parse("own"))), number);
            let lease = lease(&queue, number, 3, u64::MAX);
            assert_eq!(Lease::parse(&lease.to_string()).as_ref(), Some(&lease));
            let name = [number.bytes(), token(&lease)].concat();
            assert_eq!(read_named_lease(&name, &queue), Some(lease));
            assert!(number.bytes()[0] < 255, "no number looks like a caller's own id");
        }
        for is in [i8::MIN, -1, 0, 1, i8::MAX] {
            assert_eq!(priority(level(is)), is);
            let at = Timestamp::from_millis(4_000_000_000_000);
            assert_eq!(read_score(ready_score(level(is), at)), (level(is), at));
            assert!(ready_score(level(is), Timestamp::MAX) < 1 << 53, "scores are doubles");
        }
        assert!(level(1) < level(0), "the higher priority goes first");
    }

    #[test]
    fn a_death_reads_back() {
        let depths = Depths { ready: 1, dead: 7, overflow: 2, ..Depths::default() };
        let mut context = depths.context([BreakerState::HalfOpen, BreakerState::Open]);
        context.sort();
        let died = Death {
            number: 9,
            reason: DeadReason::Expired,
            died_at: Timestamp::from_millis(77),
            overflow: true,
            context,
        };
        let (head, states) = death(&died);
        let counted = [&[0, 1], &b"E"[..]].concat();
        let record = [&9u64.to_be_bytes()[..], &head, &counted, states.as_bytes()].concat();
        assert_eq!(read_death(&record), Some((died, "E".to_owned())));
    }

    #[test]
    fn ties_are_those_of_the_ids_and_made_ids_come_first() {
        let tie = |id: &str| tie(Number(7), &JobId::parse(id));
        let mut ties = [tie("b"), tie("ab"), Number(9).bytes(), tie("a"), Number(8).bytes()];
        ties.sort();
        let ids: Vec<_> = ties.iter().map(|tie| id_in_tie(tie)).collect();
        assert_eq!(ids, ["", "", "a", "ab", "b"]);
    }
}
