//! How a job of `Ready` becomes a lease, for engines that do it in Rust: `take.lua` writes the same bytes.

use super::{Entry, LEASE_FENCE, LEASE_TAIL, Member, Position, Probes, Take, flag};
use crate::domain::Timestamp;
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
    pub fn lease_on(&self, position: &Position, job: &JobHead, nonce: u64) -> NewLease {
        let flags = self.rule.flags | job.traits;
        let attempt = job.tries.saturating_add(1);
        let mut fence = [0; LEASE_FENCE];
        let mut out = &mut fence[..];
        out.put_u32(job.deliveries.saturating_add(1));
        out.put_u64(nonce);
        out.put_u8(flags);
        out.put_u32(self.rule.version.epoch);
        out.put_uint(self.lease.started_at.millis(), 6);
        out.put_u32(self.lease.duration_ms);
        let mut record = Vec::with_capacity(LEASE_TAIL + self.lease.tail.len());
        record.put_slice(&fence);
        record.put_u32(attempt);
        record.put_slice(&position.bytes());
        record.put_slice(self.lease.tail);
        NewLease { fence, attempt, has_body: flags & flag::BODY != 0, record: record.into() }
    }
}

impl Probes {
    /// How many may start, and when the first of those that run has started. `probes`: all that are out, by their start.
    pub fn left(&self, epoch: u32, probes: impl Iterator<Item = Entry>) -> (usize, Option<Timestamp>) {
        let of_epoch = probes.filter(|probe| matches!(probe.member, Member::Probe { epoch: of, .. } if of == epoch));
        let starts = of_epoch.map(|probe| Timestamp::from_millis(probe.score));
        let mut starts = starts.filter(|start| *start > self.started_after).peekable();
        let oldest = starts.peek().copied();
        let left = self.most.saturating_sub(starts.count() as u64);
        (usize::try_from(left).unwrap_or(usize::MAX), oldest)
    }
}
