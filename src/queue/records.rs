//! The records: what stands in the tables, byte by byte.
//!
//! Every record has a format number, fixed fields, and a tail of tagged fields that older readers skip and keep. What an engine
//! reads of a record stands first: `store::storage` says which bytes.

mod attempt;
mod dead;
mod event;
mod history;
mod job;
mod lease;
mod names;
mod queue_state;

pub(crate) use attempt::*;
pub(crate) use dead::*;
pub(crate) use event::*;
pub(crate) use history::*;
pub(crate) use job::*;
pub(crate) use lease::*;
pub(crate) use names::*;
pub(crate) use queue_state::*;

use super::encoding::Unreadable::{self, Damaged};
use super::encoding::{FORMAT, Read, Reader, put_u48};
use crate::domain::Timestamp;
use crate::store::{Result, StoreError};
use bytes::Bytes;

/// Larger bodies stand in a record of their own.
const INLINE_BODY_MAX: usize = 1024;
/// Content types that nearly every job has, in one byte.
const KNOWN_CONTENT_TYPES: [&str; 3] = ["application/json", "text/plain", "application/octet-stream"];
/// The largest time that stands in six bytes.
const TIME_MAX: u64 = (1 << 48) - 1;
/// As a time.
pub(crate) const LAST_TIME: Timestamp = Timestamp::from_millis(TIME_MAX);

fn put_time(out: &mut Vec<u8>, at: Timestamp) {
    put_u48(out, at.millis().min(TIME_MAX));
}

fn read_time(read: &mut Reader<'_>) -> Read<Timestamp> {
    read.u48().map(Timestamp::from_millis)
}

/// A record of a newer server is an error that says so; what is damaged is `None`.
pub(crate) fn readable<T>(read: Read<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Damaged) => Ok(None),
        Err(Unreadable::Newer(format)) => Err(StoreError::NewerFormat(format!(
            "a record has format {format}, and this server reads formats up to {FORMAT}: use the newer redrive that wrote it"
        ))),
    }
}

/// The same of a record that may not be there.
pub(crate) fn read_if<'r, T>(record: Option<&'r Bytes>, read: impl FnOnce(&'r [u8]) -> Read<T>) -> Result<Option<T>> {
    record.map_or(Ok(None), |record| readable(read(record)))
}
