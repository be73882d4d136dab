//! What follows a commit: waiters are notified, the log hears of dead letters and breakers, and the schedule of sweeps learns when
//! something is due.

use super::{
    context::{Event, QueueMemory},
    due_timer::DueTimer,
};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    store::{Listener, Unanswered},
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// When each queue next has something due.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    by_queue: HashMap<QueueName, Timestamp>,
    by_time: BTreeSet<(Timestamp, QueueName)>,
}

impl Schedule {
    /// Something of this queue is due then, or earlier.
    pub(crate) fn note(&mut self, queue: &QueueName, at: Timestamp) {
        if self.by_queue.get(queue).is_none_or(|known| at < *known) {
            self.set(queue, Some(at));
        }
    }

    pub(crate) fn set(&mut self, queue: &QueueName, at: Option<Timestamp>) {
        if let Some(before) = self.by_queue.remove(queue) {
            self.by_time.remove(&(before, queue.clone()));
        }
        if let Some(at) = at {
            self.by_queue.insert(queue.clone(), at);
            self.by_time.insert((at, queue.clone()));
        }
    }

    /// Queues that are due, first those that have been for longest; they are in the schedule no longer.
    fn take_due(&mut self, now: Timestamp, limit: usize) -> Vec<QueueName> {
        let due = self.by_time.iter().take_while(|(at, _)| *at <= now).take(limit);
        let due: Vec<_> = due.map(|(_, queue)| queue.clone()).collect();
        due.iter().for_each(|queue| self.set(queue, None));
        due
    }

    pub(crate) fn first(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }

    fn contains(&self, queue: &QueueName) -> bool {
        self.by_queue.contains_key(queue)
    }

    pub(crate) fn in_order(&self) -> impl Iterator<Item = (Timestamp, &QueueName)> {
        self.by_time.iter().map(|(at, queue)| (*at, queue))
    }
}

/// Takes events after the commit. Shared by the engine and the store around it.
pub struct Notifier {
    listener: Arc<dyn Listener>,
    pub(crate) memory: QueueMemory,
    inner: Mutex<Inner>,
    timer: DueTimer,
}

#[derive(Default)]
struct Inner {
    sweeps: Schedule,
    /// When the first waiting job of each queue becomes ready.
    jobs: Schedule,
    /// What the sweeper was told last.
    announced: Option<Timestamp>,
    undelivered: Vec<Unanswered>,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

impl Notifier {
    pub(crate) fn new(listener: Arc<dyn Listener>, timer: DueTimer) -> Self {
        Self { listener, memory: QueueMemory::default(), inner: Mutex::default(), timer }
    }

    /// What this process remembers of the queues.
    pub fn memory(&self) -> &QueueMemory {
        &self.memory
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells what a commit led to. Several events about one queue's jobs are one.
    pub fn tell(&self, events: Vec<Event>) {
        let mut available: Vec<(QueueName, usize)> = Vec::new();
        let mut inner = self.lock();
        let mut jobs_due = false;
        let mut rest = Vec::new();
        for event in events {
            match event {
                Event::Available { queue, jobs } => {
                    match available.iter_mut().find(|(known, _)| *known == queue) {
                        // The last one is how it is now.
                        Some((_, known)) => *known = jobs,
                        None => available.push((queue, jobs)),
                    }
                }
                Event::Due { queue, at, job } => {
                    if job {
                        inner.jobs.note(&queue, at);
                        jobs_due = true;
                    }
                    inner.sweeps.note(&queue, at);
                }
                other => rest.push(other),
            }
        }
        let announce = inner.announce();
        drop(inner);
        if jobs_due {
            self.set_timer();
        }
        for (queue, jobs) in available {
            self.listener.available(&queue, jobs);
        }
        for event in rest {
            match event {
                Event::DeadLettered(notice) => self.listener.died(&notice),
                Event::CancelRequested(lease) => self.listener.cancel_requested(lease),
                Event::Breaker(notice) => self.listener.breaker(&notice),
                Event::Available { .. } | Event::Due { .. } => {}
            }
        }
        if let Some(at) = announce {
            self.listener.due(at);
        }
    }

    /// Something is due, to be announced later.
    pub(crate) fn note(&self, event: Event) {
        if let Event::Due { queue, at, job } = event {
            let mut inner = self.lock();
            inner.sweeps.note(&queue, at);
            if job {
                inner.jobs.note(&queue, at);
            }
        }
    }

    /// Another server has made jobs available, or this one may have missed that.
    pub fn available(&self, queue: &QueueName, jobs: usize) {
        self.listener.available(queue, jobs);
    }

    /// A job of this queue is due: a claim that waits for it takes it at once. What follows it is found by that claim, or by the
    /// sweep.
    pub(crate) fn job_is_due(&self, queue: &QueueName) {
        self.lock().jobs.set(queue, None);
        if !self.memory.is_held(queue) {
            self.listener.come_due(queue);
        }
        self.set_timer();
    }

    fn set_timer(&self) {
        let inner = self.lock();
        let held = |queue: &QueueName| self.memory.is_held(queue);
        let first = inner.jobs.in_order().take(16).find(|(_, queue)| !held(queue));
        self.timer.set(first.map(|(at, queue)| (at, queue.clone())));
    }

    // ---- claims that were not delivered ----

    /// The caller of a claim has gone: its jobs return with the next call or sweep.
    pub fn undelivered(&self, claim: Unanswered, now: Timestamp) {
        if claim.leases.is_empty() {
            return;
        }
        let queue = claim.leases[0].queue.clone();
        let mut inner = self.lock();
        inner.undelivered.push(claim);
        inner.sweeps.note(&queue, now);
        let announce = inner.announce();
        drop(inner);
        if let Some(at) = announce {
            self.listener.due(at);
        }
    }

    pub(crate) fn take_undelivered(&self) -> Vec<Unanswered> {
        std::mem::take(&mut self.lock().undelivered)
    }

    // ---- sweeps ----

    pub(crate) fn take_due(&self, now: Timestamp, limit: usize) -> Vec<QueueName> {
        let mut inner = self.lock();
        let due = inner.sweeps.take_due(now, limit);
        for queue in &due {
            // The sweep finds the next one.
            inner.jobs.set(queue, None);
        }
        due
    }

    /// A sweep has found when these queues next have something due.
    pub(crate) fn swept(&self, next: &[(QueueName, Option<Timestamp>)]) -> Option<Timestamp> {
        let mut inner = self.lock();
        for (queue, at) in next {
            if let Some(at) = at {
                inner.sweeps.note(queue, *at);
            }
        }
        let first = inner.sweeps.first();
        // The sweeper hears it here; from now on only what comes earlier is announced.
        inner.announced = first;
        first
    }

    /// Announces what is due first, as a store that opens does.
    pub(crate) fn announce(&self) {
        let announce = self.lock().announce();
        self.set_timer();
        if let Some(at) = announce {
            self.listener.due(at);
        }
    }

    pub(crate) fn is_scheduled(&self, queue: &QueueName) -> bool {
        self.lock().sweeps.contains(queue)
    }
}

impl Inner {
    /// When a sweep is needed, where that is earlier than was told before.
    fn announce(&mut self) -> Option<Timestamp> {
        let at = self.sweeps.first()?;
        let earlier = self.announced.is_none_or(|announced| at < announced);
        if earlier {
            self.announced = Some(at);
        }
        earlier.then_some(at)
    }
}
