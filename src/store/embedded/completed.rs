//! Completed jobs, where their queue keeps them: with their history and their result, until their retention is over.

use super::{
    codec,
    leases::{Held, Traits},
    memory::{QueueNumber, timestamp, unsigned},
    places::Tie,
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        job::{AttemptStatus, State},
        lease::Lease,
        time::Timestamp,
    },
    store::Ack,
};
use rusqlite::Row;
use std::time::Duration;

/// A completed job, found.
pub(super) struct Completed {
    pub(super) at: Timestamp,
    number: u64,
    /// The caller's own.
    id: Option<String>,
}

impl Completed {
    /// `at, number, id`.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { at: timestamp(row, 0)?, number: unsigned(row, 1)?, id: row.get(2)? })
    }
}

impl Writer<'_> {
    /// LEASED → COMPLETED.
    pub(super) fn complete(
        &mut self,
        held: &Held,
        ack: &Ack,
        retention: Duration,
    ) -> Result<(), Failure> {
        let number = held.lease.number;
        let Some((spec, queue)) = self.read_head(number)? else {
            return Err(Failure::Stopped(format!("job number {number} is leased but not there")));
        };
        let (worker, saved) = self.lease_texts(number)?;
        let mut progress = self.progress_under(held)?;
        let attempt = progress.complete(&held.delivery(worker), &ack.note, self.now);
        if !saved.is_empty() {
            progress.checkpoint = saved;
        }
        self.end_lease(number, queue)?;
        self.record(number, progress.recorded, &attempt)?;
        self.save_progress(number, State::Completed, self.now, 0, &progress)?;
        let row = number.cast_signed();
        let own_id = match Tie::of(number, &spec.id) {
            Tie::Id(id) => Some(id),
            Tie::Number(_) => None,
        };
        self.sql.insert_completed.execute((queue, self.now.millis().cast_signed(), row, own_id))?;
        if !ack.result.is_empty() {
            self.sql.insert_result.execute((row, codec::result(&ack.result)))?;
        }
        if let Some(at) = spec.expires_at {
            self.sql.delete_deadline.execute((at.millis().cast_signed(), row))?;
        }
        self.memory.change(queue, |queue| queue.depths.completed += 1);
        self.memory.completed_kept.kept_until(self.now.after(retention));
        Ok(())
    }

    /// Whether this very lease completed a job that is still kept.
    pub(super) fn acked_before(&mut self, lease: &Lease) -> Result<bool, Failure> {
        let ended = self.ended_under(lease)?;
        Ok(ended.is_some_and(|attempt| attempt.status == AttemptStatus::Succeeded))
    }

    /// COMPLETED → gone. Its key is held for as long as the key's own retention says.
    pub(super) fn remove_completed(
        &mut self,
        queue: QueueNumber,
        done: &Completed,
    ) -> Result<(), Failure> {
        let row = done.number.cast_signed();
        self.sql.delete_completed.execute((queue, done.at.millis().cast_signed(), row))?;
        self.sql.delete_result.execute([row])?;
        if let Some(id) = &done.id {
            self.sql.delete_id.execute((id, queue))?;
        }
        self.remove(done.number, queue, Traits(Traits::SEEN))?;
        self.memory.change(queue, |queue| queue.depths.completed -= 1);
        Ok(())
    }
}
