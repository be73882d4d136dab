//! Sweep: what time makes due in the queues that have something due, a bounded part at a time.

use super::{
    Core,
    court::Court,
    ending::{Burial, Done},
    guards,
    record::Number,
    registry::Queue,
    scripts::{BURY, DUE, FIRST_DUE},
};
use crate::{
    domain::{
        chance::Dice,
        job::{DeadReason, State},
        settings::Settings,
        time::Timestamp,
        verdict::Ending,
    },
    store::{Ask, ExpiredLease, StoreError, Sweep, Swept},
};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

/// Queues that one sweep looks at; the rest is due at once.
const QUEUES_MAX: usize = 100;
/// So much of each kind that one script does or tells of.
const EACH_MAX: usize = 100;
/// Dead letters whose retention is over that go at once, a script at a time.
const REMOVALS_MAX: usize = 500;
const REMOVALS_APART: Duration = Duration::from_secs(1);
/// Leases that are spared and passed over in one queue.
const SPARED_MAX: usize = 1_000;
/// A job on its way to another queue is left to whoever moves it for so long.
const MOVE_AFTER: Duration = Duration::from_secs(5);

/// Something of a queue whose time is over.
struct Over {
    queue: Arc<Queue>,
    at: Timestamp,
    number: Number,
}

/// What a look at the queues found.
#[derive(Default)]
struct Looked {
    promoted: usize,
    leases: Vec<Over>,
    deadlines: Vec<Over>,
    /// Queues that may have dead letters to let go, and when the oldest of them died.
    dead: Vec<(Arc<Queue>, Timestamp)>,
    moving: Vec<Arc<Queue>>,
    /// Queues that keep jobs which are done.
    completed: Vec<Arc<Queue>>,
}

impl Core {
    /// A server that starts knows of nothing: it looks at every queue, and tells when the first has something due.
    pub(super) async fn begin(self: &Arc<Self>) -> Result<(), StoreError> {
        self.hear_time().await?;
        self.tidying.lock().unwrap_or_else(PoisonError::into_inner).last = self.now();
        let queues = self.all_queues().await?;
        let firsts = self.each(queues, |core, queue| async move { core.first_due(&queue).await });
        for (queue, first) in firsts.await? {
            if let Some(at) = first {
                self.agenda.note(queue.number, at);
            }
        }
        Ok(())
    }

    /// When the queue has something due; how long dead letters are kept is for the sweep to say.
    pub(super) async fn first_due(&self, queue: &Queue) -> Result<Option<Timestamp>, StoreError> {
        let (now, mut reply) = self.run(&FIRST_DUE, queue, Vec::new()).await?;
        let (scheduled, lease) = (reply.maybe_time()?, reply.maybe_time()?);
        let (deadline, pause) = (reply.maybe_time()?, reply.maybe_time()?);
        reply.maybe_time()?;
        let moving = (reply.count()? > 0).then_some(now);
        Ok([scheduled, lease, deadline, pause, moving].into_iter().flatten().min())
    }

    pub(super) async fn sweep(
        self: &Arc<Self>,
        ask: Ask,
        sweep: Sweep,
    ) -> Result<Swept, StoreError> {
        self.look_at_all_under(&ask.settings).await?;
        let due = self.agenda.take_due(self.now(), QUEUES_MAX);
        let swept = self.sweep_queues(&ask, sweep, &due).await;
        if swept.is_err() {
            for queue in due {
                self.agenda.keep(queue, self.now());
            }
        }
        let mut swept = swept?;
        self.tidy(&ask.settings).await?;
        swept.next = self.agenda.swept();
        Ok(swept)
    }

    /// Other settings may keep dead letters for another time.
    async fn look_at_all_under(&self, settings: &Arc<Settings>) -> Result<(), StoreError> {
        let known = {
            let under = self.under.lock().unwrap_or_else(PoisonError::into_inner);
            under.upgrade().is_some_and(|under| Arc::ptr_eq(&under, settings))
        };
        if !known {
            let now = self.now();
            for queue in self.all_queues().await? {
                self.agenda.keep(queue.number, now);
            }
            *self.under.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(settings);
        }
        Ok(())
    }

    async fn sweep_queues(
        self: &Arc<Self>,
        ask: &Ask,
        sweep: Sweep,
        due: &[u64],
    ) -> Result<Swept, StoreError> {
        let mut looked = Looked::default();
        for number in due {
            if let Some(queue) = self.find_number(*number).await? {
                self.look_at(ask, &queue, sweep, &mut looked).await?;
            }
        }
        let mut swept = Swept { promoted: looked.promoted, ..Swept::default() };
        let mut dice = Dice::new(ask.seed);
        looked.leases.sort_by_key(|over| (over.at, over.number));
        for run in in_runs(&looked.leases) {
            self.expire(ask, run, &mut dice, &mut swept).await?;
        }
        looked.deadlines.sort_by_key(|over| (over.at, over.number));
        for run in in_runs(&looked.deadlines) {
            self.pass_deadlines(ask, run).await?;
        }
        for (queue, oldest) in &looked.dead {
            let most = REMOVALS_MAX - swept.retention_expired;
            swept.retention_expired += self.end_retention(ask, queue, *oldest, most).await?;
        }
        for queue in &looked.completed {
            let most = REMOVALS_MAX - swept.completed_removed;
            let settings = ask.settings.queue(&queue.name);
            let (gone, next) = self.end_completed(queue, settings, most).await?;
            swept.completed_removed += gone;
            self.keep_apart(queue, gone, next);
        }
        for queue in &looked.moving {
            self.complete_moves(queue).await?;
        }
        Ok(swept)
    }

    /// Promotes, ends a pause, and gathers what else is due; keeps in mind when the queue has something due again.
    async fn look_at(
        &self,
        ask: &Ask,
        queue: &Arc<Queue>,
        sweep: Sweep,
        looked: &mut Looked,
    ) -> Result<(), StoreError> {
        let mut passed_over = 0;
        loop {
            let args = vec![(EACH_MAX as u64).into(), (passed_over as u64).into()];
            let (now, mut reply) = self.run(&DUE, queue, args).await?;
            let available = reply.int()?;
            let promoted = reply.count()? as usize;
            let (scheduled, lease) = (reply.maybe_time()?, reply.maybe_time()?);
            let (deadline, pause) = (reply.maybe_time()?, reply.maybe_time()?);
            let (_keys, oldest) = (reply.maybe_time()?, reply.maybe_time()?);
            let moving = reply.count()?;
            let (mut leases, mut deadlines) = (reply.list()?, reply.list()?);
            let told = leases.left();
            queue.guards.see(reply.bytes()?, reply.bytes()?);
            let mut started = reply.list()?;
            let mut probes = Vec::new();
            while started.left() > 0 {
                probes.push(started.time()?);
            }
            let settings = ask.settings.queue(&queue.name);
            self.pass_gate(queue, settings, &probes, now).await?;
            if let Some(done) = reply.maybe_time()? {
                let due = done.after(settings.completed_retention.unwrap_or_default());
                if due <= now {
                    looked.completed.push(queue.clone());
                } else {
                    self.agenda.keep(queue.number, due);
                }
            }
            let more = promoted == EACH_MAX || told == EACH_MAX || deadlines.left() == EACH_MAX;
            self.tell(queue, available).await;
            looked.promoted += promoted;
            let mut next = [scheduled, lease, deadline, pause, more.then_some(now)];
            let mut spared = 0;
            while leases.left() > 0 {
                let mut entry = leases.list()?;
                let number = Number::read(&entry.bytes()?);
                looked.leases.push(Over { queue: queue.clone(), at: entry.time()?, number });
            }
            while deadlines.left() > 0 {
                let mut entry = deadlines.list()?;
                let number = Number::read(&entry.bytes()?);
                looked.deadlines.push(Over { queue: queue.clone(), at: entry.time()?, number });
            }
            if now < sweep.spare_until && told > 0 {
                let began = looked.leases.len() - told;
                spared = self.spare(queue, sweep, began, looked).await?;
                if spared > 0 {
                    next[1] = Some(lease.map_or(sweep.spare_until, |at| at.min(sweep.spare_until)));
                }
            }
            for at in next.into_iter().flatten() {
                self.agenda.keep(queue.number, at);
            }
            if let Some(oldest) = oldest {
                looked.dead.push((queue.clone(), oldest));
            }
            if moving > 0 {
                self.agenda.keep(queue.number, now.after(MOVE_AFTER));
                looked.moving.push(queue.clone());
            }
            passed_over += spared;
            // Those that are spared stand before others that are not.
            if spared < EACH_MAX || passed_over >= SPARED_MAX {
                return Ok(());
            }
        }
    }

    /// Takes out the leases whose workers get a chance to come back; says how many.
    async fn spare(
        &self,
        queue: &Arc<Queue>,
        sweep: Sweep,
        began: usize,
        looked: &mut Looked,
    ) -> Result<usize, StoreError> {
        let told = looked.leases.split_off(began);
        let numbers: Vec<_> = told.iter().map(|over| over.number).collect();
        let (now, outs) = self.outs(queue, &numbers).await?;
        let mut spared = 0;
        for (over, out) in told.into_iter().zip(outs) {
            let held = out.held(queue);
            let is_spared = held.is_some_and(|held| {
                held.delivery.started_at < sweep.spare_made_before
                    && held.unclaim_at.is_none_or(|at| at > now)
            });
            if is_spared {
                spared += 1;
            } else {
                looked.leases.push(over);
            }
        }
        Ok(spared)
    }

    /// Leases of one queue that nobody settled in time, and those that go back.
    async fn expire(
        &self,
        ask: &Ask,
        run: &[Over],
        dice: &mut Dice,
        swept: &mut Swept,
    ) -> Result<(), StoreError> {
        let Some(Over { queue, .. }) = run.first() else { return Ok(()) };
        let settings = ask.settings.queue(&queue.name);
        let numbers: Vec<_> = run.iter().map(|over| over.number).collect();
        let mut memory = queue.guards.memory.lock().await;
        let (now, outs) = self.outs(queue, &numbers).await?;
        let mut court = Court::open(queue, settings, now);
        let (mut judged, mut back) = (Vec::new(), Vec::new());
        for out in &outs {
            let Some(held) = out.held(queue) else { continue };
            if held.unclaim_at.is_some_and(|at| at <= now) {
                back.push(out.number);
            } else if held.delivery.expires_at > now {
                // It was extended meanwhile, or asked for again.
                let back_at = held.unclaim_at.unwrap_or(Timestamp::MAX);
                self.agenda.keep(queue.number, held.delivery.expires_at.min(back_at));
            } else {
                judged.push(court.judge(out, held, Ending::Expired, "", dice));
            }
        }
        let verdicts = judged.iter().collect::<Vec<_>>();
        if self.carry_out(queue, court, &verdicts, &mut memory).await? {
            for judged in judged {
                let (id, attempt) = (judged.spec.id, judged.attempt);
                swept.expired.push(ExpiredLease { queue: queue.name.clone(), id, attempt });
            }
        } else {
            // Somebody settled one of them after all, or extended it: the next sweep looks again.
            self.agenda.keep(queue.number, now);
        }
        drop(memory);
        if back.is_empty() { Ok(()) } else { self.return_abandoned(queue, back).await }
    }

    /// Jobs of one queue that wait past their deadline die; one that runs is judged when its delivery ends.
    async fn pass_deadlines(&self, ask: &Ask, run: &[Over]) -> Result<(), StoreError> {
        let Some(Over { queue, .. }) = run.first() else { return Ok(()) };
        let settings = ask.settings.queue(&queue.name);
        let numbers: Vec<_> = run.iter().map(|over| over.number).collect();
        let mut memory = queue.guards.memory.lock().await;
        let (now, outs) = self.outs(queue, &numbers).await?;
        let mut args = Vec::new();
        let mut burials = Vec::new();
        for (over, out) in run.iter().zip(&outs) {
            let progress = out.progress();
            let burial = Burial {
                reason: DeadReason::Expired,
                error_type: out.error_type(&progress),
                retried: progress.retries > 0,
                guards: guards::at_death(queue, settings, now),
            };
            args.extend([over.number.bytes().into(), over.at.millis().into()]);
            args.extend(burial.args(settings));
            burials.push((out.spec(), progress, burial));
        }
        let (_, mut reply) = self.run(&BURY, queue, args).await?;
        let mut full = Vec::new();
        for (spec, progress, burial) in &burials {
            let mut item = reply.list()?;
            if item.int()? == 0 {
                item.int()?;
                let (overflow, was_full) = (item.int()? == 1, item.int()? == 1);
                let done = Done { state: State::Dead, overflow, full: Some(was_full) };
                self.died(queue, spec, progress, burial, &done, settings);
                full.push(was_full);
            }
        }
        if !full.is_empty() {
            // The queue's next time was found before they died, and may have been one of theirs.
            self.agenda.keep(queue.number, now);
        }
        self.heed_deaths(queue, &mut memory, settings, &full).await
    }

    /// Dead letters that were kept for as long as their queue keeps them go; says how many.
    async fn end_retention(
        &self,
        ask: &Ask,
        queue: &Arc<Queue>,
        oldest: Timestamp,
        most: usize,
    ) -> Result<usize, StoreError> {
        let settings = ask.settings.queue(&queue.name);
        let Some(retention) = settings.dead_letters.retention else { return Ok(0) };
        let now = self.now();
        let mut due = Some(oldest.after(retention));
        let mut gone = 0;
        if due.is_some_and(|due| due <= now) {
            let letters = self.letters(queue, false, 0, u64::MAX, most + 1).await?;
            let mut over = Vec::new();
            due = None;
            for letter in letters {
                // Whoever died later is kept for longer.
                let until = letter.died_at.after(retention);
                if until > now || over.len() == most {
                    due = Some(until);
                    break;
                }
                over.push(letter);
            }
            gone = self.purge_letters(queue, "retention_expired", &over).await?;
            if gone > 0 {
                self.made_room(queue).await?;
            }
        }
        self.keep_apart(queue, gone, due);
        Ok(gone)
    }

    /// What is over soon after a removal waits for the next: jobs that came one by one need not go one by one.
    fn keep_apart(&self, queue: &Queue, gone: usize, due: Option<Timestamp>) {
        let now = self.now();
        let later = now.after(REMOVALS_APART);
        if let Some(due) = due {
            let due = if gone > 0 && due > now { due.max(later) } else { due };
            self.agenda.keep(queue.number, due);
        }
    }
}

/// Neighbours of the same queue, as many as one script takes.
fn in_runs(all: &[Over]) -> impl Iterator<Item = &[Over]> {
    all.chunk_by(|a, b| a.queue.number == b.queue.number).flat_map(|run| run.chunks(EACH_MAX))
}
