//! Dead, a dead letter: number of death 8 (the engine's), then format, reason, died_at, texts, checksum

use super::*;
use crate::domain::{BreakerState, DeadReason, Timestamp};
use crate::queue::DeathContext;
use crate::queue::encoding::{FORMAT, Read, Reader, open, put_place, put_text, put_u64, seal};
use bytes::Bytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadRecord {
    pub(crate) reason: DeadReason,
    pub(crate) died_at: Timestamp,
    /// The type of error that counts it.
    pub(crate) counted_as: String,
    pub(crate) context: DeathContext,
}

impl DeadRecord {
    /// Stands for one that is damaged.
    pub(crate) fn damaged(died_at: Timestamp) -> Self {
        Self { reason: DeadReason::Corrupt, died_at, counted_as: String::new(), context: DeathContext::default() }
    }
}

/// Without the number of death.
pub(crate) fn dead(dead: &DeadRecord) -> Bytes {
    let mut out = Vec::with_capacity(192);
    out.push(FORMAT);
    put_place(&mut out, &REASONS, &dead.reason);
    put_time(&mut out, dead.died_at);
    put_text(&mut out, &dead.counted_as);
    let DeathContext { ready, scheduled, retrying, leased, dead, overflow, queue_breaker, dlq_breaker } = dead.context;
    for depth in [ready, scheduled, retrying, leased, dead, overflow] {
        put_u64(&mut out, depth);
    }
    put_place(&mut out, &BreakerState::ALL, &queue_breaker);
    put_place(&mut out, &BreakerState::ALL, &dlq_breaker);
    seal(out).into()
}

/// With its number of death.
pub(crate) fn read_dead(record: &[u8]) -> Read<(u64, DeadRecord)> {
    let mut read = Reader(record);
    let death = read.be64()?;
    let mut read = open(read.0)?;
    // Fields are read in the order in which they stand here.
    let dead = DeadRecord {
        reason: read.place(&REASONS)?,
        died_at: read_time(&mut read)?,
        counted_as: read.text()?,
        context: DeathContext {
            ready: read.u64()?,
            scheduled: read.u64()?,
            retrying: read.u64()?,
            leased: read.u64()?,
            dead: read.u64()?,
            overflow: read.u64()?,
            queue_breaker: read.place(&BreakerState::ALL)?,
            dlq_breaker: read.place(&BreakerState::ALL)?,
        },
    };
    Ok((death, dead))
}

/// The number of death of a record that may be damaged.
pub(crate) fn death_of(record: &[u8]) -> u64 {
    record.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
