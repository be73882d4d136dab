//! Jobs that come from another store: each gets a number here, and everything else as it was there.

use super::{
    codec,
    memory::QueueNumber,
    places::{BodyColumn, Place, Tie},
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        breaker::Guarded,
        job::{Progress, Spec, State},
        settings::QueueSettings,
    },
    store::{
        Ask, Death, JobView, Newcomers, Refused, Standing, TakenIn, Totals, history, take_over,
    },
};

impl Writer<'_> {
    pub(super) fn take_in(
        &mut self,
        ask: &Ask,
        newcomers: Newcomers,
    ) -> Result<Result<Vec<TakenIn>, Refused>, Failure> {
        let Newcomers { queue: name, standing, jobs } = newcomers;
        let queue = match self.queue_for(&name)? {
            Ok(queue) => queue,
            Err(refused) => return Ok(Err(refused)),
        };
        self.stand(queue, standing, ask.settings.queue(&name))?;
        let mut taken = Vec::with_capacity(jobs.len());
        for job in &jobs {
            taken.push(self.take_in_one(ask, queue, job)?);
        }
        let added = taken.iter().filter(|taken| **taken == TakenIn::Added).count() as u64;
        self.memory.change(queue, |queue| queue.totals.moved_in += added);
        // Where they come from is to this store like a queue that is no more.
        let elsewhere = Totals { enqueued: added, moved_out: added, ..Totals::default() };
        self.sql.remember_totals.execute(elsewhere.values().map(u64::cast_signed))?;
        Ok(Ok(taken))
    }

    /// The queue is held back as it was there.
    fn stand(
        &mut self,
        queue: QueueNumber,
        standing: Standing,
        settings: &QueueSettings,
    ) -> Result<(), Failure> {
        if let Some(pause) = standing.pause {
            self.save_pause(queue, pause)?;
        }
        self.move_breaker(queue, Guarded::Work, settings, |guards| {
            take_over(&mut guards.work, &standing.work)
        })?;
        self.move_breaker(queue, Guarded::DeadLetters, settings, |guards| {
            take_over(&mut guards.dead_letters, &standing.dead_letters)
        })
    }

    fn take_in_one(
        &mut self,
        ask: &Ask,
        queue: QueueNumber,
        job: &JobView,
    ) -> Result<TakenIn, Failure> {
        let spec = &job.spec;
        if super::read::number_of(self.connection, &spec.id, queue)?.is_some() {
            return Ok(TakenIn::AlreadyThere);
        }
        let key_is_free = self.key_is_free(queue, spec)?;
        let ended = matches!(job.state, State::Dead | State::Completed);
        if !key_is_free && !ended {
            return Ok(TakenIn::KeyTaken);
        }
        let number = self.memory.next_number;
        self.memory.next_number += 1;
        self.write_job(queue, number, spec)?;
        self.write_history(number, job)?;
        let settings = ask.settings.queue(&job.queue);
        match (&job.death, job.completed_at) {
            (Some(death), _) => self.lay_to_rest(queue, number, job, death, settings)?,
            (None, Some(_)) => self.shelve(queue, number, job, settings)?,
            (None, None) => self.line_up(queue, number, job)?,
        }
        let holds_key = job.death.is_none() || settings.dead_jobs_hold_keys;
        if let Some(key) = spec.key.as_ref().filter(|_| key_is_free && holds_key) {
            let print = spec.sameness();
            self.save_key(queue, key, number, &spec.id.to_string(), &print)?;
            if job.completed_at.is_some() {
                self.finish_key(ask, number)?;
            }
        }
        Ok(TakenIn::Added)
    }

    /// Nobody has it who is not done.
    fn key_is_free(&mut self, queue: QueueNumber, spec: &Spec) -> Result<bool, Failure> {
        let Some(key) = &spec.key else {
            return Ok(true);
        };
        let mut rows = self.sql.key.query((queue, key))?;
        Ok(match rows.next()? {
            Some(row) => row.get::<_, Option<i64>>(3)?.is_some(),
            None => true,
        })
    }

    fn write_job(&mut self, queue: QueueNumber, number: u64, spec: &Spec) -> Result<(), Failure> {
        let row = number.cast_signed();
        let mut head = std::mem::take(&mut self.scratch);
        codec::head(spec, &mut head);
        self.sql.insert_job.execute((row, queue, &head, BodyColumn(&spec.body)))?;
        self.scratch = head;
        // An id that another store made carries a number of that store, and is like one that a caller chose.
        if let Tie::Id(id) = Tie::of(number, &spec.id) {
            let print = spec.sameness();
            self.sql.insert_id.execute((&id, queue, row, print))?;
        }
        Ok(())
    }

    fn write_history(&mut self, number: u64, job: &JobView) -> Result<(), Failure> {
        let row = number.cast_signed();
        let kept = history::take_apart(job);
        for (seq, record) in kept.attempts {
            self.sql.insert_attempt.execute((row, seq, record))?;
        }
        for (last, record) in [(false, kept.first), (true, kept.last)] {
            if let Some(record) = record {
                self.sql.save_failure.execute((row, last, record))?;
            }
        }
        Ok(())
    }

    /// READY or SCHEDULED.
    fn line_up(&mut self, queue: QueueNumber, number: u64, job: &JobView) -> Result<(), Failure> {
        let (spec, at) = (&job.spec, job.waits_at());
        let seen = job.progress != Progress::default() || at != spec.run_at;
        let state = self.wait(&Place::of(queue, number, spec, seen), at)?;
        if seen {
            self.save_progress(number, state, at, 0, &job.progress)?;
        }
        self.watch_deadline(number, job.progress.deadline(spec.expires_at))
    }

    /// DEAD, the last of those who are here.
    fn lay_to_rest(
        &mut self,
        queue: QueueNumber,
        number: u64,
        job: &JobView,
        death: &Death,
        settings: &QueueSettings,
    ) -> Result<(), Failure> {
        let place = self.memory.queue(queue).map_or(1, |queue| queue.next_death);
        let counted_as = self.count_dead(queue, job.error_type())?;
        self.sql.insert_dead.execute((
            queue,
            place.cast_signed(),
            number.cast_signed(),
            death.overflow,
            codec::reason_code(death.reason),
            death.died_at.millis().cast_signed(),
            codec::context(&death.context),
            counted_as,
        ))?;
        self.save_progress(number, State::Dead, death.died_at, place, &job.progress)?;
        self.memory.change(queue, |queue| {
            queue.next_death += 1;
            queue.depths.dead += 1;
            queue.depths.overflow += u64::from(death.overflow);
        });
        if let Some(retention) = settings.dead_letters.retention {
            self.memory.dead_kept.kept_until(death.died_at.after(retention));
        }
        Ok(())
    }

    /// COMPLETED.
    fn shelve(
        &mut self,
        queue: QueueNumber,
        number: u64,
        job: &JobView,
        settings: &QueueSettings,
    ) -> Result<(), Failure> {
        let row = number.cast_signed();
        let at = job.completed_at.unwrap_or(self.now);
        let own_id = match Tie::of(number, &job.spec.id) {
            Tie::Id(id) => Some(id),
            Tie::Number(_) => None,
        };
        self.sql.insert_completed.execute((queue, at.millis().cast_signed(), row, own_id))?;
        if !job.result.is_empty() {
            self.sql.insert_result.execute((row, codec::result(&job.result)))?;
        }
        self.save_progress(number, State::Completed, at, 0, &job.progress)?;
        self.memory.change(queue, |queue| {
            queue.depths.completed += 1;
            queue.totals.completed += 1;
        });
        let retention = settings.completed_retention.unwrap_or_default();
        self.memory.completed_kept.kept_until(at.after(retention));
        Ok(())
    }
}
