//! Rings when a scheduled job comes due, so that whoever waits for its queue claims it at once.
//!
//! A claim promotes what is due by itself, and needs no sweep before it. A thread of its own, because it sleeps to a
//! fraction of a millisecond and rings while the writer waits for the disk: the claim is then there for the next
//! transaction.

use super::{lock, writer::SharedClock};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    env::Clock,
    store::Listener,
};
use std::{
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// A machine that was suspended has slept for longer than its threads think.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(60);

/// A queue, and when the first of its scheduled jobs is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) at: Timestamp,
    pub(super) queue: QueueName,
}

pub(super) struct Alarm {
    shared: Arc<Shared>,
    /// As it was last set: nothing rings twice.
    set: Option<Due>,
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
    over: bool,
}

impl Alarm {
    pub(super) fn start(
        clock: Arc<dyn Clock>,
        time: SharedClock,
        listener: Arc<dyn Listener>,
    ) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let here = shared.clone();
        let run = move || {
            while let Some(queue) = here.sleep(|at| rest(at, &time, &*clock)) {
                listener.come_due(&queue);
            }
        };
        let thread = thread::Builder::new().name("redrive-alarm".into()).spawn(run)?;
        Ok(Self { shared, set: None, thread: Some(thread) })
    }

    /// Rings then, and for nothing else any more.
    pub(super) fn set(&mut self, due: Option<Due>) {
        if self.set == due {
            return;
        }
        self.set.clone_from(&due);
        let mut next = lock(&self.shared.next);
        // Who sleeps too short looks again by itself.
        let earlier = due
            .as_ref()
            .is_some_and(|due| next.due.as_ref().is_none_or(|before| due.at < before.at));
        next.due = due;
        drop(next);
        if earlier {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        lock(&self.shared.next).over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Shared {
    /// Until a queue has something due. None: it is over.
    fn sleep(&self, rest: impl Fn(Timestamp) -> Duration) -> Option<QueueName> {
        let mut next = lock(&self.next);
        loop {
            if next.over {
                return None;
            }
            let Some(due) = next.due.take() else {
                next = self.changed.wait(next).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let rest = rest(due.at);
            if rest.is_zero() {
                return Some(due.queue);
            }
            next.due = Some(due);
            let woken = self.changed.wait_timeout(next, rest.min(LOOK_AT_LEAST_EVERY));
            (next, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn rest(at: Timestamp, time: &SharedClock, clock: &dyn Clock) -> Duration {
    let mut time = lock(time);
    time.now(clock.read());
    time.until(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{lease::Lease, store_clock::StoreClock},
        env::{ManualClock, SystemClock},
        store::{BreakerNotice, DeadNotice},
    };
    use std::sync::mpsc::{self, Receiver, Sender};

    struct Ear(Sender<QueueName>);

    impl Listener for Ear {
        fn available(&self, _: &QueueName, _: usize) {}
        fn come_due(&self, queue: &QueueName) {
            self.0.send(queue.clone()).unwrap();
        }
        fn due(&self, _: Timestamp) {}
        fn died(&self, _: &DeadNotice) {}
        fn cancel_requested(&self, _: Lease) {}
        fn breaker(&self, _: &BreakerNotice) {}
    }

    struct Scene {
        alarm: Alarm,
        rung: Receiver<QueueName>,
        clock: Arc<dyn Clock>,
        time: SharedClock,
    }

    impl Scene {
        fn new(clock: Arc<dyn Clock>) -> Self {
            let (ear, rung) = mpsc::channel();
            let time = Arc::new(Mutex::new(StoreClock::start(None, clock.read())));
            let alarm = Alarm::start(clock.clone(), time.clone(), Arc::new(Ear(ear))).unwrap();
            Self { alarm, rung, clock, time }
        }

        fn now(&self) -> Timestamp {
            lock(&self.time).now(self.clock.read())
        }

        fn due(&self, queue: &str, millis: u64) -> Due {
            let at = self.now().after(Duration::from_millis(millis));
            Due { at, queue: QueueName::parse(queue).unwrap() }
        }

        fn ring(&self) -> QueueName {
            self.rung.recv_timeout(Duration::from_secs(20)).expect("it rings")
        }

        /// What rings until nothing more can.
        fn end(self) -> Vec<String> {
            drop(self.alarm);
            self.rung.iter().map(|queue| queue.to_string()).collect()
        }
    }

    #[test]
    fn it_rings_in_time_and_once() {
        let mut scene = Scene::new(Arc::new(SystemClock::new()));
        let first = scene.due("first", 30);
        scene.alarm.set(Some(first.clone()));
        assert_eq!(scene.ring(), first.queue);
        assert!(scene.now() >= first.at, "too early");
        scene.alarm.set(Some(first));
        assert_eq!(lock(&scene.alarm.shared.next).due, None, "it has rung for that");
        let second = scene.due("second", 0);
        scene.alarm.set(Some(second.clone()));
        assert_eq!(scene.ring(), second.queue);
        assert_eq!(scene.end(), [""; 0]);
    }

    #[test]
    fn what_is_due_earlier_is_not_slept_through() {
        let mut scene = Scene::new(Arc::new(SystemClock::new()));
        scene.alarm.set(Some(scene.due("later", 3_600_000)));
        let earlier = scene.due("earlier", 1);
        scene.alarm.set(Some(earlier.clone()));
        assert_eq!(scene.ring(), earlier.queue);
        scene.alarm.set(Some(scene.due("later", 3_600_000)));
        assert_eq!(scene.end(), [""; 0], "it ends without waiting for what is to come");
    }

    #[test]
    fn what_is_not_to_come_any_more_does_not_ring() {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000_000)));
        let mut scene = Scene::new(clock.clone());
        scene.alarm.set(Some(scene.due("cancelled", 1)));
        scene.alarm.set(None);
        assert_eq!(lock(&scene.alarm.shared.next).due, None);
        scene.alarm.set(Some(scene.due("moved", 2)));
        scene.alarm.set(Some(scene.due("last", 3)));
        clock.advance(Duration::from_millis(10));
        assert_eq!(scene.ring().to_string(), "last");
        assert_eq!(scene.end(), [""; 0]);
    }
}
