//! What follows a commit: waiters are notified, dead letters and breakers are logged, and the schedule of sweeps learns when
//! something is due.

use super::context::{CallContext, QueueMemory, StoreLimits};
use super::due_timer::DueTimer;
use super::events::{Event, Subscribers, Wanted};
use super::handover::UndeliveredClaim;
use crate::domain::{QueueName, Settings, Timestamp};
use crate::lock::lock;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

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

/// What a store is opened with, whatever its engine.
#[derive(Clone)]
pub struct Setup {
    pub settings: Arc<Settings>,
    pub subscribers: Subscribers,
    /// That come into being by being used.
    pub new_queues_per_minute: usize,
    /// The seed of all randomness in a call.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            settings: Arc::default(),
            subscribers: Subscribers::default(),
            new_queues_per_minute: usize::MAX,
            random: Arc::new(crate::env::random::<u64>),
        }
    }
}

/// Takes events after the commit, and has the settings in force. Shared by the engine and the store around it.
pub struct Notifier {
    settings: RwLock<Arc<Settings>>,
    random: Arc<dyn Fn() -> u64 + Send + Sync>,
    subscribers: Subscribers,
    wanted: Wanted,
    pub(crate) memory: QueueMemory,
    inner: Mutex<Inner>,
    timer: DueTimer,
}

#[derive(Default)]
struct Inner {
    sweeps: Schedule,
    /// When the first waiting job of each queue becomes ready.
    jobs: Schedule,
    /// The time announced to the sweeper last.
    announced: Option<Timestamp>,
    undelivered: Vec<UndeliveredClaim>,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

impl Notifier {
    pub(crate) fn new(setup: Setup, timer: DueTimer) -> Self {
        let Setup { settings, subscribers, new_queues_per_minute, random } = setup;
        let (settings, wanted) = (RwLock::new(settings), subscribers.wanted());
        let (memory, inner) = (QueueMemory::new(new_queues_per_minute), Mutex::default());
        Self { settings, random, subscribers, wanted, memory, inner, timer }
    }

    /// What this process remembers of the queues.
    pub fn memory(&self) -> &QueueMemory {
        &self.memory
    }

    /// Those in force now.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_settings(&self, settings: Arc<Settings>) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    pub(crate) fn random(&self) -> u64 {
        (self.random)()
    }

    /// For one call.
    pub(crate) fn context(&self, settings: Arc<Settings>, seed: u64, limits: StoreLimits) -> CallContext<'_> {
        CallContext { wanted: self.wanted, ..CallContext::new(settings, seed, &self.memory, limits) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Tells what a commit led to. Several events about one queue's jobs are one.
    pub fn publish(&self, events: Vec<Event>) {
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
            self.subscribers.publish(&Event::Available { queue, jobs });
        }
        rest.iter().for_each(|event| self.subscribers.publish(event));
        self.sweep_due(announce);
    }

    fn sweep_due(&self, at: Option<Timestamp>) {
        if let Some(at) = at {
            self.subscribers.publish(&Event::SweepDue { at });
        }
    }

    /// A sweep of this queue has something to do then, to be announced later.
    pub(crate) fn note(&self, queue: &QueueName, at: Timestamp) {
        self.lock().sweeps.note(queue, at);
    }

    /// A job of this queue is due: a claim that waits for it takes it at once. What follows it is found by that claim, or by the
    /// sweep.
    pub(crate) fn job_is_due(&self, queue: &QueueName) {
        self.lock().jobs.set(queue, None);
        if !self.memory.is_held(queue) {
            self.subscribers.publish(&Event::JobDue { queue: queue.clone() });
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
    pub(crate) fn undelivered(&self, claim: UndeliveredClaim, now: Timestamp) {
        let queue = claim.leases[0].queue.clone();
        let mut inner = self.lock();
        inner.undelivered.push(claim);
        inner.sweeps.note(&queue, now);
        let announce = inner.announce();
        drop(inner);
        self.sweep_due(announce);
    }

    pub(crate) fn take_undelivered(&self) -> Vec<UndeliveredClaim> {
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
        // The sweeper gets it here; from now on only what comes earlier is announced.
        inner.announced = first;
        first
    }

    /// Announces what is due first, as a store that opens does.
    pub(crate) fn announce(&self) {
        let announce = self.lock().announce();
        self.set_timer();
        self.sweep_due(announce);
    }

    pub(crate) fn is_scheduled(&self, queue: &QueueName) -> bool {
        self.lock().sweeps.contains(queue)
    }
}

impl Inner {
    /// When a sweep is needed, where that is earlier than announced before.
    fn announce(&mut self) -> Option<Timestamp> {
        let at = self.sweeps.first()?;
        let earlier = self.announced.is_none_or(|announced| at < announced);
        if earlier {
            self.announced = Some(at);
        }
        earlier.then_some(at)
    }
}
