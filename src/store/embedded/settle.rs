//! Settle: leases end or go on. The fence is the lease itself: only the one that is out opens anything.

use super::{
    codec,
    leases::{Held, Traits},
    places::Place,
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        chance::Dice,
        job::{Attempt, Progress, Spec},
        lease::Lease,
        time::Timestamp,
        verdict::{Ending, Leased, judge},
    },
    store::{Ack, Acked, Ask, Extend, Extended, LeaseLost, Nack, Settled, Settlements},
};

/// Keys of finished jobs that a queue remembers.
const FINISHED_KEYS_MAX: u64 = 1_000_000;

/// Numbers of jobs that are done, while their rows are still there.
#[derive(Default)]
struct Done(Vec<i64>);

/// A delivery that ended without an Ack.
pub(super) struct Ended {
    pub(super) attempt: Attempt,
    pub(super) spec: Spec,
}

impl Writer<'_> {
    pub(super) fn settle(&mut self, ask: &Ask, items: Settlements) -> Result<Settled, Failure> {
        let mut settled = Settled::default();
        let mut dice = Dice::new(!ask.seed);
        let mut done = Done::default();
        for ack in items.acks {
            settled.acks.push(self.ack(ask, &ack, &mut done)?);
        }
        self.remove_done(&mut done)?;
        for nack in items.nacks {
            settled.nacks.push(self.nack(ask, nack, &mut dice)?);
        }
        for extend in items.extends {
            settled.extends.push(self.extend(ask, &extend)?);
        }
        Ok(settled)
    }

    fn ack(
        &mut self,
        ask: &Ask,
        ack: &Ack,
        done: &mut Done,
    ) -> Result<Result<Acked, LeaseLost>, Failure> {
        let Some(held) = self.memory.leases.current(&ack.lease) else {
            self.remove_done(done)?;
            let done = !self.job_exists(ack.lease.number)? || self.acked_before(&ack.lease)?;
            return Ok(if done { Ok(Acked { already_gone: true }) } else { Err(LeaseLost) });
        };
        let (queue, traits, sent) = (held.queue, held.traits, held.sent());
        let state = self.memory.queue(queue);
        let settings = state.map(|state| ask.settings.queue(&state.name).clone());
        let retention = settings.as_ref().and_then(|settings| settings.completed_retention);
        let kept = retention.map(|retention| (retention, held.clone()));
        let number = ack.lease.number;
        if traits.has(Traits::KEY) {
            self.finish_key(ask, number)?;
        }
        match kept {
            Some((retention, held)) => self.complete(&held, ack, retention)?,
            None => {
                self.forget_lease(number, queue);
                self.strip(number, queue, traits)?;
                done.0.push(number.cast_signed());
            }
        }
        self.memory.change(queue, |queue| {
            queue.totals.completed += 1;
            queue.totals.successful_retries += u64::from(traits.has(Traits::RETRIED));
            queue.totals.retried_finished += u64::from(traits.has(Traits::RETRIED));
        });
        if let Some(settings) = settings {
            self.heed_success(queue, sent, &settings)?;
        }
        Ok(Ok(Acked { already_gone: false }))
    }

    /// Jobs that came together mostly go together, and a row of them is removed in one go.
    fn remove_done(&mut self, done: &mut Done) -> Result<(), Failure> {
        done.0.sort_unstable();
        for row in done.0.chunk_by(|number, next| number + 1 == *next) {
            let ends = (row[0], row[row.len() - 1]);
            self.sql.delete_leases.execute(ends)?;
            self.sql.delete_jobs.execute(ends)?;
        }
        done.0.clear();
        Ok(())
    }

    fn job_exists(&mut self, number: u64) -> Result<bool, Failure> {
        Ok(self.sql.job_head.exists([number.cast_signed()])?)
    }

    /// The job is done; its key is held until its retention is over.
    pub(super) fn finish_key(&mut self, ask: &Ask, number: u64) -> Result<(), Failure> {
        let Some((spec, queue)) = self.read_head(number)? else {
            return Ok(());
        };
        let (Some(key), Some(state)) = (&spec.key, self.memory.queue(queue)) else {
            return Ok(());
        };
        let free_at = spec.enqueued_at.after(ask.settings.queue(&state.name).key_retention);
        let full = state.finished_keys >= FINISHED_KEYS_MAX;
        let row = number.cast_signed();
        if free_at <= self.now {
            self.sql.delete_key.execute((queue, key, row))?;
            return Ok(());
        }
        if self.sql.finish_key.execute((queue, key, row, free_at.millis().cast_signed()))? > 0 {
            self.memory.change(queue, |queue| queue.finished_keys += 1);
        }
        if full {
            self.forget_keys(queue, Timestamp::MAX, 1)?;
        }
        Ok(())
    }

    /// Forgets keys of finished jobs, oldest first.
    pub(super) fn forget_keys(
        &mut self,
        queue: i64,
        free_by: Timestamp,
        limit: i64,
    ) -> Result<usize, Failure> {
        let mut rows =
            self.sql.oldest_keys.query((queue, free_by.millis().cast_signed(), limit))?;
        let mut keys: Vec<(String, i64)> = Vec::new();
        while let Some(row) = rows.next()? {
            keys.push((row.get(0)?, row.get(1)?));
        }
        drop(rows);
        if keys.is_empty() {
            return Ok(0);
        }
        for (key, number) in &keys {
            self.sql.delete_key.execute((queue, key, number))?;
        }
        self.memory.change(queue, |queue| queue.finished_keys -= keys.len() as u64);
        Ok(keys.len())
    }

    fn nack(
        &mut self,
        ask: &Ask,
        nack: Nack,
        dice: &mut Dice,
    ) -> Result<Result<Attempt, LeaseLost>, Failure> {
        let Some(held) = self.memory.leases.current(&nack.lease).cloned() else {
            return Ok(self.nacked_before(&nack.lease)?.ok_or(LeaseLost));
        };
        let ended = self.end(ask, &held, nack.ending, &nack.checkpoint, dice)?;
        Ok(Ok(ended.attempt))
    }

    /// The answer to a Nack that was given before, until the job is delivered again.
    fn nacked_before(&mut self, lease: &Lease) -> Result<Option<Attempt>, Failure> {
        Ok(self.ended_under(lease)?.filter(|attempt| attempt.nacked))
    }

    /// How the delivery of this lease ended, until the job is delivered again.
    pub(super) fn ended_under(&mut self, lease: &Lease) -> Result<Option<Attempt>, Failure> {
        let progress = match self.read_progress(lease.number)? {
            Some(progress) if progress.deliveries == lease.delivery => progress,
            _ => return Ok(None),
        };
        if self.memory.leases.of_number(lease.number).is_some() {
            return Ok(None);
        }
        let mut rows = self.sql.attempt.query((lease.number.cast_signed(), progress.recorded))?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let attempt = codec::read_attempt(row.get_ref(0)?.as_blob().unwrap_or_default()).ok();
        Ok(attempt.filter(|attempt| attempt.is_of(lease)))
    }

    /// A delivery is over and was no success: judges it and applies the verdict.
    pub(super) fn end(
        &mut self,
        ask: &Ask,
        held: &Held,
        ending: Ending,
        checkpoint: &str,
        dice: &mut Dice,
    ) -> Result<Ended, Failure> {
        let number = held.lease.number;
        let Some((spec, queue)) = self.read_head(number)? else {
            return Err(Failure::Stopped(format!("job number {number} is leased but not there")));
        };
        let name = self.memory.queue(queue).map(|queue| queue.name.clone());
        let name = name.ok_or_else(|| Failure::Stopped("a job without its queue".into()))?;
        let settings = ask.settings.queue(&name);
        let (worker, saved) = self.lease_texts(number)?;
        let progress = self.progress_under(held)?;
        let leased = Leased {
            delivery: &held.delivery(worker),
            progress: &progress,
            policy: spec.policy.as_deref(),
            expires_at: spec.expires_at,
            breaker: self.standing(queue, held.sent(), settings),
        };
        let expired = ending == Ending::Expired;
        let mut verdict = judge(leased, ending, settings, self.now, dice.chance());
        for newer in [saved.as_str(), checkpoint] {
            if !newer.is_empty() {
                verdict.progress.checkpoint = newer.to_owned();
            }
        }

        self.end_lease(number, queue)?;
        verdict.attempt.breaker =
            self.heed(queue, held.sent(), &spec.id, verdict.signal, settings)?;
        self.record(number, verdict.progress.recorded, &verdict.attempt)?;
        let place = Place::of(queue, number, &spec, true);
        self.go_on(&place, verdict.next, held.ready_at, &spec, &verdict.progress, settings)?;
        let failed = verdict.attempt.failure.is_some();
        let retried = verdict.progress.retries > progress.retries;
        self.memory.change(queue, |queue| {
            queue.totals.failed_attempts += u64::from(failed);
            queue.totals.retries += u64::from(retried);
            queue.totals.lease_expired += u64::from(expired);
        });
        Ok(Ended { attempt: verdict.attempt, spec })
    }

    /// Worker and checkpoint of a lease.
    pub(super) fn lease_texts(&mut self, number: u64) -> Result<(String, String), Failure> {
        let mut rows = self.sql.lease_texts.query([number.cast_signed()])?;
        let Some(row) = rows.next()? else {
            return Ok(Default::default());
        };
        let text = |column| row.get::<_, Option<String>>(column).map(Option::unwrap_or_default);
        Ok((text(0)?, text(1)?))
    }

    /// A job's progress while it is out: the delivery that runs is counted.
    pub(super) fn progress_under(&mut self, held: &Held) -> Result<Progress, Failure> {
        let mut progress = self.progress_of(held.lease.number, held.traits)?;
        progress.deliveries = held.lease.delivery;
        progress.cancel_requested |= held.traits.has(Traits::CANCEL_REQUESTED);
        Ok(progress)
    }

    fn extend(
        &mut self,
        ask: &Ask,
        extend: &Extend,
    ) -> Result<Result<Extended, LeaseLost>, Failure> {
        let Some(held) = self.memory.leases.current(&extend.lease).cloned() else {
            return Ok(Err(LeaseLost));
        };
        let Some(queue) = self.memory.queue(held.queue) else {
            return Ok(Err(LeaseLost));
        };
        let longest = held.started_at.after(ask.settings.queue(&queue.name).max_run_time);
        let asked = self.now.after(extend.duration.unwrap_or(held.duration));
        let expires_at = asked.min(longest).max(held.expires_at);
        let number = extend.lease.number;
        let checkpoint = (!extend.checkpoint.is_empty()).then_some(&extend.checkpoint);
        let row = (number.cast_signed(), expires_at.millis().cast_signed(), checkpoint);
        self.sql.extend_lease.execute(row)?;
        self.memory.leases.extend(number, expires_at);
        let cancel_requested = held.traits.has(Traits::CANCEL_REQUESTED);
        Ok(Ok(Extended { expires_at, cancel_requested }))
    }

    /// A job whose claim was never answered goes back to where it was; nothing counts but the delivery, whose token must not
    /// come again.
    pub(super) fn unclaim(&mut self, lease: &Lease) -> Result<(), Failure> {
        let Some(held) = self.memory.leases.current(lease).cloned() else { return Ok(()) };
        let Some((spec, queue)) = self.read_head(lease.number)? else { return Ok(()) };
        let progress = self.progress_under(&held)?;
        self.end_lease(lease.number, queue)?;
        let place = Place::of(queue, lease.number, &spec, true);
        if progress.cancel_requested {
            // Nobody ever had it, so it was waiting when it was cancelled.
            return self.remove_cancelled(&place, &spec, &progress);
        }
        let state = self.wait(&place, held.ready_at)?;
        self.save_progress(lease.number, state, held.ready_at, 0, &progress)?;
        self.watch_deadline(lease.number, progress.deadline(spec.expires_at))
    }
}
