//! Requeue: dead letters go back to work.

use super::{
    dead::Dead,
    memory::{QueueNumber, unsigned},
    places::Place,
    replies::{Call, Earlier},
    writer::{Failure, Writer},
};
use crate::{
    domain::job::{DeadReason, Spec},
    store::{Ask, Refused, Requeue, RequeueRefused, Requeued, SkipReason, Which, saved_reply},
};
use std::collections::HashSet;

/// Bodies that one call reads, about: the writer does nothing else meanwhile.
const BYTES_MAX: usize = 16 << 20;

impl Writer<'_> {
    pub(super) fn requeue(
        &mut self,
        _ask: &Ask,
        requeue: &Requeue,
    ) -> Result<Result<Requeued, RequeueRefused>, Failure> {
        match self.earlier_reply(Call::Requeue, requeue.request.as_ref())? {
            Earlier::Nothing => {}
            Earlier::Answered(record) => return Ok(Ok(saved_reply::read_requeued(&record))),
            Earlier::Another => return Ok(Err(RequeueRefused::RequestIdTaken)),
        }
        let Some(queue) = self.memory.find(&requeue.part.queue) else {
            return Ok(Err(RequeueRefused::NoSuchQueue));
        };
        if let Some(target) = &requeue.target
            && !requeue.dry_run
            && let Err(Refused::TooManyQueues { limit }) = self.queue_for(target)?
        {
            return Ok(Err(RequeueRefused::TooManyQueues { limit }));
        }
        let picked = self.pick(queue, &requeue.part, &requeue.which)?;
        let mut out =
            Requeued { has_more: picked.has_more, left: picked.left, ..Requeued::default() };
        // Whoever was named before is gone, in a dry run too.
        let mut gone = HashSet::new();
        let mut bytes = 0;
        for letter in picked.letters {
            // Who named no ids can go on where this call stops, and others have their turn in between.
            if bytes > BYTES_MAX
                && !matches!(requeue.which, Which::Ids(_))
                && let Ok(next) = &letter
            {
                out.has_more = true;
                out.left.after = next.death - 1;
                break;
            }
            match letter {
                Ok(dead) if gone.contains(&dead.number) => {
                    let head = self.read_head(dead.number)?;
                    out.skipped.extend(head.map(|(spec, _)| (spec.id, SkipReason::JobNotFound)));
                }
                Ok(dead) => {
                    let before = out.ids.len();
                    bytes += self.requeue_one(queue, &dead, requeue, &mut out)?;
                    if out.ids.len() > before {
                        gone.insert(dead.number);
                    }
                }
                Err(id) => out.skipped.push((id, SkipReason::JobNotFound)),
            }
        }
        let request = requeue.request.as_ref();
        self.keep_reply(Call::Requeue, request, || saved_reply::requeued(&out))?;
        Ok(Ok(out))
    }

    /// DEAD → READY, in its own queue or another. Says how much of a body was read for it.
    fn requeue_one(
        &mut self,
        from: QueueNumber,
        dead: &Dead,
        requeue: &Requeue,
        out: &mut Requeued,
    ) -> Result<usize, Failure> {
        let number = dead.number;
        let Ok(spec) = self.read_job(number)? else {
            let id = self
                .read_head(number)?
                .map_or_else(|| super::codec::unreadable(number).id, |(spec, _)| spec.id);
            out.skipped.push((id, SkipReason::DataCorrupt));
            return Ok(0);
        };
        let bytes = spec.body.bytes().len();
        if dead.reason == DeadReason::Corrupt {
            out.skipped.push((spec.id, SkipReason::DataCorrupt));
            return Ok(bytes);
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
            return Ok(bytes);
        }
        out.ids.push(spec.id.clone());
        if let Some(to) = to
            && !requeue.dry_run
        {
            self.back_to_work(from, to, dead, &spec, requeue.keep_attempts)?;
        }
        Ok(bytes)
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
        if !self.take_dead(from, dead)? {
            return Ok(());
        }
        let mut progress = self.read_progress(number)?.unwrap_or_default();
        progress.requeue(self.now, spec.expires_at, keep_attempts);

        let place = Place::of(to, number, spec, true);
        // Only where it is kept: large bodies take their time.
        let print = || spec.sameness();
        if from != to {
            self.sql.move_job.execute((row, to))?;
            if let super::places::Tie::Id(id) = &place.tie {
                self.sql.delete_id.execute((id, from))?;
                self.sql.insert_id.execute((id, to, row, print()))?;
            }
            if let Some(key) = &spec.key {
                self.sql.delete_key.execute((from, key, row))?;
            }
        }
        if let Some(key) = &spec.key {
            self.save_key(to, key, number, &spec.id.to_string(), &print())?;
        }
        self.memory.change(from, |queue| {
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
