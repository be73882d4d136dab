//! Compare and batch: every fence holds and every write is made, or nothing is.

use super::storage::SqliteStorage;
use crate::{
    domain::ids::QueueName,
    store::storage::{Applied, Batch, Done, Fence, RecordKey, Table, Was, Write},
};
use bytes::Bytes;
use rusqlite::Result;

/// A `Put` whose insert is also the look of its `Absent` fence.
pub(super) struct Claim<'b> {
    table: Table,
    pub(super) key: &'b RecordKey,
    record: &'b Bytes,
    pub(super) is_made: bool,
}

impl SqliteStorage<'_> {
    pub(super) fn apply_now(&mut self, name: &QueueName, batch: &Batch) -> Result<Applied> {
        let Some(at) = self.queue(name) else { return Ok(Applied::NoQueue) };
        let mut done = Done::default();
        let mut claims = claims(batch);
        let failed = self.fences(at, &batch.fences, &mut claims, &mut done.told)?;
        if !failed.is_empty() {
            return Ok(Applied::Changed(failed));
        }
        self.write_all(at, &batch.writes, &claims, &mut done)?;
        done.ready = self.cache.queues[at].sums.ready();
        Ok(Applied::Done(done))
    }

    // ---- fences ----

    fn fences(
        &mut self,
        at: usize,
        fences: &[Fence],
        claims: &mut [Claim<'_>],
        told: &mut Vec<Bytes>,
    ) -> Result<Vec<(usize, Was)>> {
        let mut failed = Vec::new();
        // Fence and claim.
        let mut later = Vec::new();
        for (place, fence) in fences.iter().enumerate() {
            if let Fence::Absent(table, key) = fence
                && let Some(claim) = claim_of(claims, later.len(), *table, key)
            {
                later.push((place, claim));
            } else if let Some(was) = self.fails(at, fence, told)? {
                failed.push((place, was));
            }
        }
        if later.is_empty() {
            return Ok(failed);
        }
        let others_hold = failed.is_empty();
        for (place, claim) in later {
            let Claim { table, key, record, is_made } = &mut claims[claim];
            if others_hold && self.insert_keyed(at, *table, key, record)? {
                *is_made = true;
            } else if let Some(found) = self.record(at, *table, key)? {
                failed.push((place, Was::Record(Some(found))));
            }
        }
        if !failed.is_empty() {
            for claim in claims.iter().filter(|claim| claim.is_made) {
                self.delete_keyed(at, claim.table, claim.key)?;
            }
            failed.sort_unstable_by_key(|(place, _)| *place);
        }
        Ok(failed)
    }

    /// What a fence that does not hold finds.
    fn fails(&mut self, at: usize, fence: &Fence, told: &mut Vec<Bytes>) -> Result<Option<Was>> {
        let begins = |record: Option<&[u8]>, prefix: &Bytes| match record {
            Some(record) if record.starts_with(prefix) => None,
            other => Some(Was::Record(other.map(Bytes::copy_from_slice))),
        };
        match fence {
            Fence::Begins(table, key, prefix) => {
                self.look(at, *table, key, |record| begins(record, prefix))
            }
            Fence::Tell(table, key, prefix) => {
                let record = self.record(at, *table, key)?;
                let was = begins(record.as_deref(), prefix);
                if was.is_none() {
                    told.extend(record);
                }
                Ok(was)
            }
            Fence::Is(table, key, whole) => self.look(at, *table, key, |record| match record {
                Some(record) if record == whole => None,
                other => Some(Was::Record(other.map(Bytes::copy_from_slice))),
            }),
            // No number is above the highest.
            Fence::Absent(Table::Job, RecordKey::Number(number))
                if *number > self.cache.highest_job =>
            {
                Ok(None)
            }
            Fence::Absent(table, key) => self.look(at, *table, key, |record| {
                record.map(|record| Was::Record(Some(Bytes::copy_from_slice(record))))
            }),
            Fence::At(index, entry) => {
                let score = self.score(at, *index, &entry.member)?;
                Ok((score != Some(entry.score)).then_some(Was::Score(score)))
            }
            Fence::Room { of, minus, add, limit } => {
                let sums = &self.cache.queues[at].sums;
                let taken_off: u64 = minus.iter().map(|of| sums.len(*of)).sum();
                let len = sums.len(*of).saturating_sub(taken_off);
                Ok((len.saturating_add(*add) > *limit).then_some(Was::Len(len)))
            }
        }
    }
}

/// Tables by key whose records are not in memory.
pub(super) fn is_claimable(table: Table) -> bool {
    matches!(table, Table::Id | Table::Key | Table::Request | Table::Move)
}

/// The puts that may be the look of a fence, in their order.
fn claims(batch: &Batch) -> Vec<Claim<'_>> {
    let claim = |write| match write {
        &Write::Put(table, ref key, ref record) if is_claimable(table) => {
            Some(Claim { table, key, record, is_made: false })
        }
        _ => None,
    };
    batch.writes.iter().filter_map(claim).collect()
}

/// Fences and puts mostly come in the same order.
fn claim_of(claims: &[Claim<'_>], near: usize, table: Table, key: &RecordKey) -> Option<usize> {
    let is_it = |claim: &Claim<'_>| claim.table == table && claim.key == key;
    match claims.get(near) {
        Some(claim) if is_it(claim) => Some(near),
        _ => claims.iter().position(is_it),
    }
}
