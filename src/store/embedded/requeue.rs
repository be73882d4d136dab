//! Requeue: dead letters go back to work.

use super::{
    memory::{QueueNumber, unsigned},
    places::Place,
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        ids::JobId,
        job::{DeadReason, Spec, State, sameness},
    },
    store::{Ask, Deaths, Refused, Requeue, RequeueRefused, Requeued, SkipReason, Which},
};

/// A dead letter, found.
struct Dead {
    death: u64,
    number: u64,
    corrupt: bool,
}

impl Writer<'_> {
    pub(super) fn requeue(
        &mut self,
        _ask: &Ask,
        requeue: &Requeue,
    ) -> Result<Result<Requeued, RequeueRefused>, Failure> {
        let Some(queue) = self.memory.find(&requeue.part.queue) else {
            return Ok(Err(RequeueRefused::NoSuchQueue));
        };
        if let Some(target) = &requeue.target
            && !requeue.dry_run
            && let Err(Refused::TooManyQueues { limit }) = self.queue_for(target)?
        {
            return Ok(Err(RequeueRefused::TooManyQueues { limit }));
        }
        let newest = self.memory.queue(queue).map_or(0, |queue| queue.next_death - 1);
        let left = Deaths { after: 0, up_to: newest };
        let mut out = Requeued { left, ..Requeued::default() };
        let overflow_only = requeue.part.overflow_only;
        match &requeue.which {
            Which::Ids(ids) => {
                for id in ids {
                    match self.dead_of_id(queue, id, overflow_only)? {
                        Some(dead) => self.requeue_one(queue, &dead, requeue, &mut out)?,
                        None => out.skipped.push((id.clone(), SkipReason::JobNotFound)),
                    }
                }
            }
            Which::Oldest { limit, among } => {
                out.left = among.unwrap_or(out.left);
                let dead =
                    self.oldest_dead(queue, out.left, overflow_only, limit.saturating_add(1))?;
                out.has_more = dead.len() > *limit;
                for dead in dead.iter().take(*limit) {
                    self.requeue_one(queue, dead, requeue, &mut out)?;
                    out.left.after = dead.death;
                }
            }
        }
        Ok(Ok(out))
    }

    fn oldest_dead(
        &mut self,
        queue: QueueNumber,
        among: Deaths,
        overflow_only: bool,
        limit: usize,
    ) -> Result<Vec<Dead>, Failure> {
        let mut rows = self.sql.oldest_dead.query((
            queue,
            among.after.cast_signed(),
            among.up_to.cast_signed(),
            overflow_only,
            i64::try_from(limit).unwrap_or(i64::MAX),
        ))?;
        let mut dead = Vec::new();
        while let Some(row) = rows.next()? {
            let reason: u8 = row.get(2)?;
            dead.push(Dead {
                death: unsigned(row, 0)?,
                number: unsigned(row, 1)?,
                corrupt: super::codec::reason_of(reason) == Ok(DeadReason::Corrupt),
            });
        }
        Ok(dead)
    }

    fn dead_of_id(
        &mut self,
        queue: QueueNumber,
        id: &JobId,
        overflow_only: bool,
    ) -> Result<Option<Dead>, Failure> {
        let Some(number) = super::read::number_of(self.connection, id, queue)? else {
            return Ok(None);
        };
        let Some(found) = super::lookup::place(self.connection, number)? else {
            return Ok(None);
        };
        if found.state != State::Dead {
            return Ok(None);
        }
        let mut dead = self.sql.oldest_dead.query((
            queue,
            found.death.cast_signed() - 1,
            found.death.cast_signed(),
            overflow_only,
            1,
        ))?;
        let Some(row) = dead.next()? else {
            return Ok(None);
        };
        let reason: u8 = row.get(2)?;
        let corrupt = super::codec::reason_of(reason) == Ok(DeadReason::Corrupt);
        Ok(Some(Dead { death: found.death, number, corrupt }))
    }

    /// DEAD → READY, in its own queue or another.
    fn requeue_one(
        &mut self,
        from: QueueNumber,
        dead: &Dead,
        requeue: &Requeue,
        out: &mut Requeued,
    ) -> Result<(), Failure> {
        let number = dead.number;
        let Ok(spec) = self.read_job(number)? else {
            let id = self
                .read_head(number)?
                .map_or_else(|| super::codec::unreadable(number).id, |(spec, _)| spec.id);
            out.skipped.push((id, SkipReason::DataCorrupt));
            return Ok(());
        };
        if dead.corrupt {
            out.skipped.push((spec.id, SkipReason::DataCorrupt));
            return Ok(());
        }
        let to = match &requeue.target {
            None => Some(from),
            // Only a dry run has not made it yet, and a queue that is not there has nothing in it.
            Some(target) => self.memory.find(target),
        };
        let taken = match to {
            None => None,
            Some(to) => self.key_or_id_taken(from, to, number, &spec)?,
        };
        if let Some(reason) = taken {
            out.skipped.push((spec.id, reason));
            return Ok(());
        }
        out.ids.push(spec.id.clone());
        match to {
            Some(to) if !requeue.dry_run => {
                self.back_to_work(from, to, dead, &spec, requeue.keep_attempts)
            }
            _ => Ok(()),
        }
    }

    fn back_to_work(
        &mut self,
        from: QueueNumber,
        to: QueueNumber,
        dead: &Dead,
        spec: &Spec,
        keep_attempts: bool,
    ) -> Result<(), Failure> {
        let number = dead.number;
        let row = number.cast_signed();
        let mut rows = self.sql.delete_dead.query((from, dead.death.cast_signed()))?;
        let overflow: Option<bool> = rows.next()?.map(|row| row.get(0)).transpose()?;
        drop(rows);
        let Some(overflow) = overflow else {
            return Ok(());
        };
        let mut progress = self.read_progress(number)?.unwrap_or_default();
        progress.requeue(self.now, spec.expires_at, keep_attempts);

        let place = Place::of(to, number, spec, true);
        let print = sameness(&spec.job_type, &spec.body);
        if from != to {
            self.sql.move_job.execute((row, to))?;
            if let super::places::Tie::Id(id) = &place.tie {
                self.sql.delete_id.execute((id, from))?;
                self.sql.insert_id.execute((id, to, row, print))?;
            }
            if let Some(key) = &spec.key {
                self.sql.delete_key.execute((from, key, row))?;
            }
        }
        if let Some(key) = &spec.key {
            self.save_key(to, key, number, &spec.id.to_string(), &print)?;
        }
        self.memory.change(from, |queue| {
            queue.depths.dead -= 1;
            queue.depths.overflow -= u64::from(overflow);
            queue.totals.requeued += 1;
            queue.totals.moved_out += u64::from(from != to);
        });
        let state = self.wait(&place, self.now)?;
        self.save_progress(number, state, self.now, 0, &progress)?;
        self.watch_deadline(number, progress.deadline(spec.expires_at))?;
        self.memory.change(to, |queue| queue.totals.moved_in += u64::from(from != to));
        Ok(())
    }

    /// Whether another job has what this one needs where it goes.
    fn key_or_id_taken(
        &mut self,
        from: QueueNumber,
        to: QueueNumber,
        number: u64,
        spec: &Spec,
    ) -> Result<Option<SkipReason>, Failure> {
        if from != to && super::read::number_of(self.connection, &spec.id, to)?.is_some() {
            return Ok(Some(SkipReason::IdTaken));
        }
        let Some(key) = &spec.key else {
            return Ok(None);
        };
        let mut rows = self.sql.key.query((to, key))?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let other = unsigned(row, 0)? != number;
        let live = row.get::<_, Option<i64>>(3)?.is_none();
        Ok((other && live).then_some(SkipReason::KeyTaken))
    }
}
