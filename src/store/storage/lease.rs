//! How a ready job becomes a lease, for engines that do it in Rust: `take.lua` writes the same bytes.

use super::{Chosen, LEASE_FENCE, LEASE_TAIL, Take, flag};
use bytes::{Buf, BufMut, Bytes};

/// The parts of a job's `Failure`, the last one first: a job that failed once has the first failure alone.
pub const FAILURES: [u8; 2] = [1, 0];

/// What the fronts of a `Job` and its `History` say. Of a missing or damaged one: zeros.
pub struct JobHead {
    /// In a reply.
    pub size: usize,
    traits: u8,
    deliveries: u32,
    tries: u32,
}

impl JobHead {
    pub fn read(job: Option<&[u8]>, history: Option<&[u8]>) -> Self {
        let (size, traits) = job.and_then(size_and_traits).unwrap_or_default();
        let (history_size, history_traits, deliveries, tries) = history.and_then(history_head).unwrap_or_default();
        let size = (size as usize).saturating_add(history_size as usize);
        Self { size, traits: traits | history_traits, deliveries, tries }
    }
}

fn size_and_traits(mut record: &[u8]) -> Option<(u32, u8)> {
    Some((record.try_get_u32().ok()?, record.try_get_u8().ok()?))
}

fn history_head(record: &[u8]) -> Option<(u32, u8, u32, u32)> {
    let (size, traits) = size_and_traits(record)?;
    let mut counts = &record[5..];
    Some((size, traits, counts.try_get_u32().ok()?, counts.try_get_u32().ok()?))
}

pub struct NewLease {
    /// What its token holds.
    pub fence: [u8; LEASE_FENCE],
    pub attempt: u32,
    pub has_body: bool,
    pub record: Bytes,
}

impl Take<'_> {
    /// Leases under its rule are probes.
    pub(in crate::store) fn is_probe(&self, chosen: &Chosen) -> bool {
        chosen.rule.is_some_and(|rule| self.groups[rule].probes.is_some())
    }

    pub(in crate::store) fn lease_on(&self, chosen: &Chosen, job: &JobHead, nonce: u64) -> NewLease {
        let flags = chosen.flags | job.traits;
        let attempt = job.tries.saturating_add(1);
        let mut fence = [0; LEASE_FENCE];
        let mut out = &mut fence[..];
        out.put_u32(job.deliveries.saturating_add(1));
        out.put_u64(nonce);
        out.put_u8(flags);
        out.put_u32(chosen.epoch);
        out.put_uint(self.lease.started_at.millis(), 6);
        out.put_u32(self.lease.duration_ms);
        let mut record = Vec::with_capacity(LEASE_TAIL + self.lease.tail.len());
        record.put_slice(&fence);
        record.put_u32(attempt);
        record.put_slice(&chosen.position.bytes());
        record.put_slice(self.lease.tail);
        NewLease { fence, attempt, has_body: flags & flag::BODY != 0, record: record.into() }
    }
}
