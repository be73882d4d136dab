//! Sweep: what time makes due, a bounded part at a time.

use super::{
    memory::{Memory, QueueNumber, unsigned},
    operate::Waiting,
    places::Place,
    retention::Kept,
    writer::{Command, Failure, Writer},
};
use crate::{
    domain::{chance::Dice, job::DeadReason, settings::Settings, time::Timestamp, verdict::Ending},
    store::{Ask, ExpiredLease, Sweep, Swept},
};
use std::{sync::Arc, time::Duration};

/// So much of each kind in one transaction; the rest is due at once.
pub(super) const PROMOTIONS_MAX: usize = 1_000;
const EXPIRIES_MAX: usize = 500;
const DEADLINES_MAX: usize = 500;
/// Housekeeping that is in no hurry.
const TIDY_EVERY: Duration = Duration::from_secs(10);
const KEYS_MAX: usize = 1_000;
const QUEUE_FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

impl Writer<'_> {
    pub(super) fn sweep(&mut self, ask: &Ask, sweep: Sweep) -> Result<Swept, Failure> {
        let mut swept = Swept::default();
        let mut dice = Dice::new(ask.seed);
        while let Some((at, queue)) = self.memory.first_due()
            && at <= self.now
            && swept.promoted < PROMOTIONS_MAX
        {
            swept.promoted += self.promote(queue, PROMOTIONS_MAX - swept.promoted)?;
        }
        self.end_pauses()?;
        self.open_gates();
        self.expire_leases(ask, sweep, &mut dice, &mut swept)?;
        self.pass_deadlines(ask)?;
        swept.retention_expired = self.end_retention(Kept::Dead, &ask.settings)?;
        swept.completed_removed = self.end_retention(Kept::Completed, &ask.settings)?;
        if self.now.since(self.last_tidied) >= TIDY_EVERY {
            self.last_tidied = self.now;
            self.tidy(&ask.settings)?;
        }
        Ok(swept)
    }

    /// Whether it is a sweep, and nothing is due but jobs whose time has come. That they are READY is told to nobody, and
    /// after a power cut they are due again.
    pub(super) fn only_promotes(&self, command: &Command) -> bool {
        let Command::Sweep(Ask { settings, .. }, _) = command else {
            return false;
        };
        let Memory { dead_kept, completed_kept, .. } = &self.memory;
        Arc::ptr_eq(settings, &self.memory.settings)
            && [dead_kept, completed_kept].into_iter().all(|kept| kept.is_known(settings))
            && self.memory.next_but_due().is_none_or(|at| at > self.now)
            && self.now.since(self.last_tidied) < TIDY_EVERY
    }

    /// SCHEDULED → READY for what is due; late or not, the order is that of the due times.
    pub(super) fn promote(&mut self, queue: QueueNumber, limit: usize) -> Result<usize, Failure> {
        let due = self.memory.queue(queue).and_then(|queue| queue.next_due);
        if due.is_none_or(|due| due > self.now) {
            return Ok(0);
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut rows = self.sql.due.query((queue, self.now.millis().cast_signed(), limit))?;
        let mut due = Vec::new();
        while let Some(row) = rows.next()? {
            due.push(Place::read(row)?);
        }
        drop(rows);
        for (place, at) in &due {
            self.take_scheduled(place, *at)?;
            self.wait(place, *at)?;
        }
        self.refresh_due(queue)?;
        Ok(due.len())
    }

    /// Jobs of callers who have gone, as far as they are due.
    pub(super) fn return_abandoned(&mut self) -> Result<(), Failure> {
        for number in self.memory.leases.to_look_at(self.now, EXPIRIES_MAX) {
            if let Some(held) = self.memory.leases.of_number(number)
                && held.unclaim_at.is_some_and(|at| at <= self.now)
            {
                let lease = held.lease.clone();
                self.unclaim(&lease)?;
            }
        }
        Ok(())
    }

    fn expire_leases(
        &mut self,
        ask: &Ask,
        sweep: Sweep,
        dice: &mut Dice,
        swept: &mut Swept,
    ) -> Result<(), Failure> {
        for number in self.memory.leases.to_look_at(self.now, EXPIRIES_MAX) {
            let Some(held) = self.memory.leases.of_number(number).cloned() else {
                continue;
            };
            if held.unclaim_at.is_some_and(|at| at <= self.now) {
                self.unclaim(&held.lease)?;
                continue;
            }
            let spared = held.started_at < sweep.spare_made_before && self.now < sweep.spare_until;
            if spared {
                self.memory.leases.look_at(number, sweep.spare_until);
                continue;
            }
            let ended = self.end(ask, &held, Ending::Expired, "", dice)?;
            let queue = self.memory.queue(held.queue).map(|queue| queue.name.clone());
            if let Some(queue) = queue {
                let (id, attempt) = (ended.spec.id, ended.attempt);
                swept.expired.push(ExpiredLease { queue, id, attempt });
            }
        }
        Ok(())
    }

    /// Jobs that wait past their deadline die; one that runs is judged when its delivery ends.
    fn pass_deadlines(&mut self, ask: &Ask) -> Result<(), Failure> {
        if self.memory.next_deadline.is_none_or(|next| next > self.now) {
            return Ok(());
        }
        let mut rows = self
            .sql
            .passed_deadlines
            .query((self.now.millis().cast_signed(), DEADLINES_MAX as i64))?;
        let mut passed: Vec<(i64, u64)> = Vec::new();
        while let Some(row) = rows.next()? {
            passed.push((row.get(0)?, unsigned(row, 1)?));
        }
        drop(rows);
        for (at, number) in passed {
            self.sql.delete_deadline.execute((at, number.cast_signed()))?;
            let Some(waiting) = self.waiting(number)? else {
                continue;
            };
            self.take_waiting(&waiting)?;
            let Waiting { place, spec, progress, .. } = waiting;
            let name = self.memory.queue(place.queue).map(|queue| queue.name.clone());
            if let Some(name) = name {
                let settings = ask.settings.queue(&name).clone();
                let reason = DeadReason::Expired;
                self.bury(&place, &spec, &progress, reason, &settings)?;
            }
        }
        Ok(self.refresh_deadline()?)
    }

    /// Forgets keys whose time is over, and queues that nobody uses.
    fn tidy(&mut self, settings: &Settings) -> Result<(), Failure> {
        let with_keys: Vec<_> = self
            .memory
            .queues()
            .filter(|queue| queue.finished_keys > 0)
            .map(|queue| queue.number)
            .collect();
        let mut room = KEYS_MAX;
        for queue in with_keys {
            room -= self.forget_keys(queue, self.now, room as i64)?;
        }
        if room == 0 {
            // There may be more: look again with the next sweep.
            self.last_tidied = Timestamp::default();
        }
        let unused: Vec<_> = self
            .memory
            .queues()
            .filter(|queue| {
                queue.depths.is_empty()
                    && queue.finished_keys == 0
                    && self.now.since(queue.used_at) >= QUEUE_FORGOTTEN_AFTER
                    && queue.pause.is_none()
                    && queue.guards.work.is_at_rest()
                    && queue.guards.dead_letters.is_at_rest()
                    && !settings.queues.contains_key(&queue.name)
            })
            .map(|queue| queue.number)
            .collect();
        for queue in unused {
            self.remember_totals(queue)?;
            self.sql.forget_queue.execute([queue])?;
            self.sql.delete_breakers.execute([queue])?;
            self.memory.forget_queue(queue);
        }
        self.forget_replies()?;
        self.give_space_back()
    }

    /// Pages of removed jobs go back to the file system, a few at a time.
    fn give_space_back(&mut self) -> Result<(), Failure> {
        let mut vacuum = self.connection.prepare_cached("PRAGMA incremental_vacuum(256)")?;
        let mut pages = vacuum.query([])?;
        while pages.next()?.is_some() {}
        Ok(())
    }
}
