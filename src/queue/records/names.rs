//! Id and Key: who has a caller's own id, or an idempotency key.
//!
//! Id and Key: number 6, format 1, …

use crate::domain::{ids::JobId, job::Sameness, time::Timestamp};
use crate::queue::encoding::{FORMAT, Read, Reader, put_id, put_option, put_u48};
use bytes::Bytes;

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
