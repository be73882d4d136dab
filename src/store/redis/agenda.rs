//! What this server knows of when time makes something due, for each queue. It may be too early, never too late for what
//! this server wrote; what others wrote is heard of, or found by looking now and then.

use crate::{domain::time::Timestamp, store::Listener};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A queue's number.
pub(super) type QueueNumber = u64;

pub(super) struct Agenda {
    state: Mutex<State>,
    listener: Arc<dyn Listener>,
}

#[derive(Default)]
struct State {
    by_queue: HashMap<QueueNumber, Timestamp>,
    by_time: BTreeSet<(Timestamp, QueueNumber)>,
    /// The sweeper knows of this time; only what comes earlier is announced.
    announced: Option<Timestamp>,
}

impl State {
    fn remove(&mut self, queue: QueueNumber) {
        if let Some(at) = self.by_queue.remove(&queue) {
            self.by_time.remove(&(at, queue));
        }
    }

    fn first(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }
}

impl Agenda {
    pub(super) fn new(listener: Arc<dyn Listener>) -> Self {
        Self { state: Mutex::default(), listener }
    }

    /// Something of this queue is due then.
    pub(super) fn note(&self, queue: QueueNumber, at: Timestamp) {
        self.keep(queue, at);
        self.announce();
    }

    /// As `note`, for the sweep: what it finds is in its answer.
    pub(super) fn keep(&self, queue: QueueNumber, at: Timestamp) {
        let mut state = self.lock();
        if state.by_queue.get(&queue).is_none_or(|known| at < *known) {
            state.remove(queue);
            state.by_queue.insert(queue, at);
            state.by_time.insert((at, queue));
        }
    }

    fn announce(&self) {
        let mut state = self.lock();
        let Some(first) = state.first() else { return };
        if state.announced.is_none_or(|announced| first < announced) {
            state.announced = Some(first);
            drop(state);
            self.listener.due(first);
        }
    }

    /// Queues that have something due, which are looked at now: what they have later is noted again.
    pub(super) fn take_due(&self, now: Timestamp, limit: usize) -> Vec<QueueNumber> {
        let mut state = self.lock();
        let due = state.by_time.iter().take_while(|(at, _)| *at <= now).take(limit);
        let due: Vec<_> = due.map(|(_, queue)| *queue).collect();
        for queue in &due {
            state.remove(*queue);
        }
        due
    }

    /// The sweep is over, and its answer says when the next one is needed.
    pub(super) fn swept(&self) -> Option<Timestamp> {
        let mut state = self.lock();
        state.announced = state.first();
        state.announced
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
