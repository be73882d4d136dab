//! History, what a job has been through, and where it is: size 4, traits 1, deliveries 4, tries 4, format 1, where it is, last nonce, counts, tagged fields, checksum

use super::*;
use crate::domain::{Lease, Progress, State, Timestamp, millis_ceil};
use crate::queue::encoding::{
    FORMAT, Read, Reader, Unknown, open_with, put_field, put_field_u64, put_option, put_u64, seal,
};
use crate::store::storage::flag;
use bytes::Bytes;

const CHECKPOINT_TAG: u8 = 1;
const EVENTS_TAG: u8 = 2;
const MAX_RETRIES_TAG: u8 = 3;
const UNCOUNTED_SINCE_TAG: u8 = 4;
const LEARNT_KEY_TAG: u8 = 5;

/// Where a job is that is not leased. A promotion moves it from `Scheduled` or `Retrying` to `Ready` and writes nothing else, so
/// one that waits is in the index that is named here or in `Ready`, at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    #[default]
    Ready = 1,
    Scheduled = 2,
    Retrying = 3,
    Completed = 4,
    Dead = 5,
    Overflow = 6,
    Cancelled = 7,
}

impl Whereabouts {
    /// Their places are their codes.
    const ALL: [Self; 7] =
        [Self::Ready, Self::Scheduled, Self::Retrying, Self::Completed, Self::Dead, Self::Overflow, Self::Cancelled];

    /// Done or cancelled: it has left the queue, and is kept to be looked at.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled)
    }

    pub(crate) fn state(self) -> State {
        match self {
            Self::Ready => State::Ready,
            Self::Scheduled => State::Scheduled,
            Self::Retrying => State::Retrying,
            Self::Completed => State::Completed,
            Self::Cancelled => State::Cancelled,
            Self::Dead | Self::Overflow => State::Dead,
        }
    }
}

/// What a job has been through, and where it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct History {
    pub(crate) progress: Progress,
    pub(crate) whereabouts: Whereabouts,
    pub(crate) rank: u8,
    /// When it became, or becomes, ready; was done or cancelled; died.
    pub(crate) at: Timestamp,
    /// Of the last delivery, whose number is `progress.deliveries`.
    pub(crate) nonce: u64,
    /// What its last failure takes in a reply.
    pub(crate) failure_bytes: u32,
    /// Of its breaker key, while it waits or runs.
    pub(crate) group: u16,
    /// The breaker key that a failure named last, where it is not the one that the job was enqueued with.
    pub(crate) learnt_key: Option<String>,
    pub(crate) unknown: Unknown,
}

impl History {
    /// Its last delivery was that of this lease.
    pub(crate) fn ended(&self, lease: &Lease) -> bool {
        self.progress.deliveries == lease.delivery && self.nonce == lease.nonce
    }
}

pub(crate) fn history(history: &History) -> Bytes {
    let progress = &history.progress;
    let retried = if progress.retries > 0 { flag::RETRIED } else { 0 };
    let failed = if progress.tries > 0 { flag::FAILED } else { 0 };
    // An Ack that looks at the job finds its events: those of all others have none to delete.
    let look = if progress.events > 0 { flag::LOOK } else { 0 };
    let size = history.failure_bytes.saturating_add(progress.checkpoint.len() as u32);
    let mut out = Vec::with_capacity(80 + progress.checkpoint.len());
    out.extend_from_slice(&size.to_be_bytes());
    out.push(flag::HISTORY | retried | failed | look);
    out.extend_from_slice(&progress.deliveries.to_be_bytes());
    out.extend_from_slice(&progress.tries.to_be_bytes());
    out.push(FORMAT);
    out.push(history.whereabouts as u8);
    out.push(history.rank);
    out.extend_from_slice(&history.group.to_be_bytes());
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
        put_field(&mut out, CHECKPOINT_TAG, progress.checkpoint.as_bytes());
    }
    if progress.events > 0 {
        put_field_u64(&mut out, EVENTS_TAG, progress.events.into());
    }
    if let Some(max_retries) = progress.max_retries {
        put_field_u64(&mut out, MAX_RETRIES_TAG, max_retries.into());
    }
    if let Some(since) = progress.uncounted_since {
        put_field_u64(&mut out, UNCOUNTED_SINCE_TAG, since.millis());
    }
    if let Some(key) = &history.learnt_key {
        put_field(&mut out, LEARNT_KEY_TAG, key.as_bytes());
    }
    history.unknown.put(&mut out);
    seal(out).into()
}

pub(crate) fn read_history(record: &[u8]) -> Read<History> {
    let mut read = Reader(open_with(record, &[])?);
    let size = read.be32()?;
    read.u8()?;
    let (deliveries, tries) = (read.be32()?, read.be32()?);
    read.format()?;
    let whereabouts = read.place(&Whereabouts::ALL)?;
    let rank = read.u8()?;
    let group = u16::from_be_bytes(read.array()?);
    let at = read_time(&mut read)?;
    let nonce = read.be64()?;
    let mut progress = Progress {
        deliveries,
        tries,
        releases: read.u32()?,
        interruptions: read.u32()?,
        uncounted: read.u32()?,
        redrives: read.u32()?,
        recorded: read.u32()?,
        retries: read.u32()?,
        last_delay: read.option_duration()?,
        ..Progress::default()
    };
    let flags = read.u8()?;
    progress.cancel_requested = flags & 1 != 0;
    progress.deadline_cleared = flags & 2 != 0;
    progress.first_failed_at = read.option_time()?;
    progress.last_failed_at = read.option_time()?;
    let mut learnt_key = None;
    let unknown = read.fields(|tag, mut value| {
        match tag {
            CHECKPOINT_TAG => progress.checkpoint = value.rest_text()?,
            EVENTS_TAG => progress.events = value.u32()?,
            MAX_RETRIES_TAG => progress.max_retries = Some(value.u32()?),
            UNCOUNTED_SINCE_TAG => progress.uncounted_since = Some(value.time()?),
            LEARNT_KEY_TAG => learnt_key = Some(value.rest_text()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let failure_bytes = size.saturating_sub(progress.checkpoint.len() as u32);
    Ok(History { progress, whereabouts, rank, at, nonce, failure_bytes, group, learnt_key, unknown })
}
