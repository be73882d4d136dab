//! Dead: a dead letter.
//!
//! Dead: number of death 8 (the engine's), then format, reason, died_at, texts, checksum

use super::*;
use crate::domain::{job::DeadReason, time::Timestamp};
use crate::queue::encoding::{FORMAT, Read, Reader, open, put_text, put_u64, seal};
use bytes::Bytes;

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
