//! Id, Key and Group: who has a caller's own id, or an idempotency key (number 6, format 1, …), and the group of a breaker key.

use crate::domain::{JobId, Sameness, Timestamp};
use crate::queue::encoding::{FORMAT, Read, Reader, put_id, put_option, put_u48, put_u64};
use crate::store::storage::{Entry, Member};
use bytes::Bytes;
use std::time::Duration;

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

/// Who has a key. It stays after its job is done, so that an Ack need not look at it: whether it is still held follows from
/// `until` and from the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub(crate) number: u64,
    /// Held until then, whatever its job does, and longer while its job is not done.
    pub(crate) until: Timestamp,
    /// When the sweep looks at it, `until` or later: its score in `FinishedKey`.
    pub(crate) at: Timestamp,
    pub(crate) sameness: Sameness,
    pub(crate) id: JobId,
}

impl KeyRecord {
    pub(crate) fn entry(&self, key: &str) -> Entry {
        Entry { score: self.at.millis(), member: Member::Text(key.into()) }
    }
}

pub(crate) fn key(record: &KeyRecord) -> Bytes {
    let mut out = Vec::with_capacity(48);
    put_u48(&mut out, record.number);
    out.push(FORMAT);
    put_u48(&mut out, record.until.millis());
    put_u64(&mut out, record.at.since(record.until).as_millis() as u64);
    out.extend_from_slice(&record.sameness);
    put_id(&mut out, &record.id);
    out.into()
}

pub(crate) fn read_key(record: &[u8]) -> Read<KeyRecord> {
    let mut read = Reader(record);
    let number = read.u48()?;
    read.format()?;
    let until = Timestamp::from_millis(read.u48()?);
    let at = until.after(Duration::from_millis(read.u64()?));
    Ok(KeyRecord { number, until, at, sameness: read.array()?, id: read.id()? })
}

/// The group of a breaker key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    pub(crate) group: u16,
    /// Since when it has had no jobs, as far as the sweep has seen. What puts a job into the group takes it back.
    pub(crate) idle_since: Option<Timestamp>,
}

pub(crate) fn group(record: &GroupRecord) -> Bytes {
    let mut out = vec![FORMAT];
    out.extend_from_slice(&record.group.to_be_bytes());
    put_option(&mut out, record.idle_since.map(Timestamp::millis));
    out.into()
}

pub(crate) fn read_group(record: &[u8]) -> Read<GroupRecord> {
    let mut read = Reader(record);
    read.format()?;
    Ok(GroupRecord { group: u16::from_be_bytes(read.array()?), idle_since: read.option_time()? })
}
