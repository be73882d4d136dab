//! Notifies when a waiting job becomes due, so that a claim that waits for its queue takes it at once.
//!
//! A claim promotes what is due by itself, and needs no sweep before it. A thread of its own, because it sleeps to a fraction of a
//! millisecond and notifies while an engine waits for its disk: the claim is then there for the next transaction.

use crate::domain::{QueueName, Timestamp};
use crate::lock::lock;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

/// A machine that was suspended has slept for longer than its threads think.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(60);

type Due = (Timestamp, QueueName);

pub(crate) struct DueTimer {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    next: Mutex<Next>,
    changed: Condvar,
}

#[derive(Default)]
struct Next {
    due: Option<Due>,
    /// As it was last set: nothing is set twice.
    set: Option<Due>,
    over: bool,
}

impl DueTimer {
    /// `until`: how long it is until then, by store time. `notify`: a job of this queue is due.
    pub(crate) fn start(
        until: impl Fn(Timestamp) -> Duration + Send + 'static, notify: impl Fn(&QueueName) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let here = shared.clone();
        let run = move || {
            while let Some(queue) = here.sleep(&until) {
                notify(&queue);
            }
        };
        let thread = thread::Builder::new().name("redrive-due".into()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Notifies then, and for nothing else any more.
    pub(crate) fn set(&self, due: Option<Due>) {
        let mut next = self.shared.lock();
        if next.set == due {
            return;
        }
        next.set.clone_from(&due);
        // A thread that sleeps too short looks again by itself.
        let earlier = due.as_ref().is_some_and(|(at, _)| next.due.as_ref().is_none_or(|(before, _)| at < before));
        next.due = due;
        drop(next);
        if earlier {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for DueTimer {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            drop(thread.join());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Next> {
        lock(&self.next)
    }

    /// Until a queue has something due. None: it is over.
    fn sleep(&self, until: &impl Fn(Timestamp) -> Duration) -> Option<QueueName> {
        let mut next = self.lock();
        loop {
            if next.over {
                return None;
            }
            let Some((at, queue)) = next.due.take() else {
                next = self.changed.wait(next).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let rest = until(at);
            if rest.is_zero() {
                return Some(queue);
            }
            next.due = Some((at, queue));
            let woken = self.changed.wait_timeout(next, rest.min(LOOK_AT_LEAST_EVERY));
            (next, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
