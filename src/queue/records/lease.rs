//! Lease, a delivery that runs: the fence 27, attempt 4, position 16, then the tail: format 1, answer 8, tagged fields

use super::*;
use crate::domain::{Delivery, JobEvent, Lease, QueueName, Timestamp};
use crate::queue::encoding::Unreadable::Damaged;
use crate::queue::encoding::{FORMAT, Read, Reader, Unknown, put_field, put_field_u64};
use crate::store::storage::{HAS_HISTORY_TAG, LEASE_TAIL, Position, flag};
use bytes::Bytes;
use std::time::Duration;

mod lease_tag {
    pub(super) const WORKER: u8 = 1;
    pub(super) const REQUEST: u8 = 2;
    pub(super) const CHECKPOINT: u8 = 3;
    pub(super) const CANCEL_REQUESTED: u8 = 4;
    pub(super) const RETURN_AT: u8 = 5;
    pub(super) const RETURNED: u8 = 6;
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
    /// Becomes one of the job's events when the delivery ends and the job stays.
    pub(crate) cancel_requested: Option<JobEvent>,
    /// Failures of earlier deliveries that do not count any more.
    pub(crate) returned: u32,
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
    let mut out = Vec::with_capacity(16 + tail.worker_id.len() + tail.request_id.len() + tail.checkpoint.len());
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
    if let Some(event) = &tail.cancel_requested {
        let mut field = Vec::new();
        put_event(&mut field, event);
        put_field(&mut out, lease_tag::CANCEL_REQUESTED, &field);
    }
    if let Some(undelivered) = tail.undelivered {
        let mut field = Vec::with_capacity(12);
        put_time(&mut field, undelivered.return_at);
        put_time(&mut field, undelivered.expires_at);
        put_field(&mut out, lease_tag::RETURN_AT, &field);
    }
    if tail.returned > 0 {
        put_field_u64(&mut out, lease_tag::RETURNED, tail.returned.into());
    }
    tail.unknown.put(&mut out);
    out
}

fn read_lease_tail(mut read: Reader<'_>) -> Read<LeaseTail> {
    read.format()?;
    let mut tail = LeaseTail { answer: read.be64()?, ..LeaseTail::default() };
    let unknown = read.fields(|tag, mut value| {
        match tag {
            lease_tag::WORKER => tail.worker_id = value.rest_text()?,
            lease_tag::REQUEST => tail.request_id = value.rest_text()?,
            lease_tag::CHECKPOINT => tail.checkpoint = value.rest_text()?,
            lease_tag::CANCEL_REQUESTED => tail.cancel_requested = Some(read_event_fields(&mut value)?),
            lease_tag::RETURNED => tail.returned = value.u32()?,
            lease_tag::RETURN_AT => {
                let (return_at, expires_at) = (read_time(&mut value)?, read_time(&mut value)?);
                tail.undelivered = Some(Undelivered { return_at, expires_at });
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(LeaseTail { unknown, ..tail })
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
    let attempt = read.be32()?;
    let position = Position::read(read.take(Position::LENGTH)?).ok_or(Damaged)?;
    let tail = read_lease_tail(read)?;
    let lease = Lease::of(queue.clone(), number, &fence, None);
    Ok(LeaseRecord { lease, attempt, position, tail })
}

impl LeaseRecord {
    pub(crate) fn delivery(&self, expires_at: Timestamp) -> Delivery {
        Delivery {
            lease: self.lease.clone(),
            attempt: self.attempt.saturating_sub(self.tail.returned).max(1),
            worker_id: self.tail.worker_id.clone(),
            started_at: self.lease.started_at,
            expires_at,
            duration: Duration::from_millis(u64::from(self.lease.duration_ms)),
            probe: self.lease.flags & flag::PROBE != 0,
        }
    }

    /// When it ends, by its score in `Leased`.
    pub(crate) fn expires_at(&self, score: u64) -> Timestamp {
        self.tail.undelivered.map_or_else(|| Timestamp::from_millis(score), |it| it.expires_at)
    }
}

/// Where a job of a group waits.
pub(crate) fn position(group: u16, number: u64, rank: u8, ready_at: Timestamp, has_history: bool) -> Position {
    let ready_at = Timestamp::from_millis(ready_at.millis().min(TIME_MAX));
    let tag = if has_history { HAS_HISTORY_TAG } else { 0 };
    Position { group, rank, ready_at, number, tag }
}
