//! Who waits for work, and who is woken when there is some: as many as there is work for, in the order they came.
//!
//! A waiter takes a seat before it looks for work, so nothing that comes between looking and waiting is missed. Those who
//! were woken and have not looked yet count for what they can take, so a burst wakes nobody for nothing. A waiter that
//! leaves with an unused wake-up passes it on, and every claim that leaves work behind wakes the next in line; so a job
//! never lies ready while somebody waits for it.

use crate::{
    domain::{
        breaker::{BreakerState, Guarded},
        ids::QueueName,
        lease::Lease,
        time::Timestamp,
    },
    store::{BreakerNotice, DeadNotice, Listener},
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, broadcast};

/// Cancelled jobs that a stream has not heard of yet; one that falls behind learns of the rest by Extend.
const CANCELS_KEPT: usize = 1_024;

#[derive(Debug)]
pub struct Wakeups {
    room: Mutex<Room>,
    /// Leases whose jobs somebody cancelled.
    cancels: broadcast::Sender<Lease>,
    /// When the sweeper is needed, and the bell that tells it.
    due: Mutex<Option<Timestamp>>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Room {
    next_seat: u64,
    seats: HashMap<u64, Occupant>,
    lines: HashMap<QueueName, Line>,
}

#[derive(Debug)]
struct Occupant {
    queues: Vec<QueueName>,
    wants: usize,
    /// Woken, and has not looked yet.
    awake: bool,
    woken: Arc<Notify>,
}

/// Who waits for one queue.
#[derive(Debug, Default)]
struct Line {
    /// In the order they came.
    asleep: BTreeSet<u64>,
    /// What those who are awake can take.
    awake_for: usize,
}

impl Room {
    /// The occupant looks now, and sleeps on if it finds nothing.
    fn asleep(&mut self, seat: u64) {
        let Some(occupant) = self.seats.get_mut(&seat) else {
            return;
        };
        let was_awake = std::mem::take(&mut occupant.awake);
        for queue in &occupant.queues {
            let line = self.lines.entry(queue.clone()).or_default();
            line.asleep.insert(seat);
            if was_awake {
                line.awake_for -= occupant.wants;
            }
        }
    }

    fn wake(&mut self, seat: u64) {
        let Some(occupant) = self.seats.get_mut(&seat) else {
            return;
        };
        occupant.awake = true;
        occupant.woken.notify_one();
        for queue in &occupant.queues {
            if let Some(line) = self.lines.get_mut(queue) {
                line.asleep.remove(&seat);
                line.awake_for += occupant.wants;
            }
        }
    }

    /// Wakes sleepers until those who are awake could take `jobs`.
    fn wake_for(&mut self, queue: &QueueName, jobs: usize) {
        while let Some(line) = self.lines.get(queue)
            && line.awake_for < jobs
            && let Some(&seat) = line.asleep.first()
        {
            self.wake(seat);
        }
    }

    fn leave(&mut self, seat: u64) {
        let Some(occupant) = self.seats.remove(&seat) else {
            return;
        };
        for queue in &occupant.queues {
            let Some(line) = self.lines.get_mut(queue) else {
                continue;
            };
            line.asleep.remove(&seat);
            if occupant.awake {
                // It never looked at what it was woken for: somebody else must.
                let for_all = line.awake_for;
                line.awake_for -= occupant.wants;
                self.wake_for(queue, for_all);
            }
            let unused = |line: &Line| line.asleep.is_empty() && line.awake_for == 0;
            if self.lines.get(queue).is_some_and(unused) {
                self.lines.remove(queue);
            }
        }
    }
}

impl Default for Wakeups {
    fn default() -> Self {
        let (cancels, _) = broadcast::channel(CANCELS_KEPT);
        Self { room: Mutex::default(), cancels, due: Mutex::default(), bell: Notify::new() }
    }
}

impl Wakeups {
    /// Hears of cancelled jobs from now on.
    pub(super) fn cancels(&self) -> broadcast::Receiver<Lease> {
        self.cancels.subscribe()
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat for somebody who could take `wants` jobs of these queues.
    pub(super) fn sit(self: &Arc<Self>, queues: Vec<QueueName>, wants: usize) -> Seat {
        let mut room = self.room();
        let number = room.next_seat;
        room.next_seat += 1;
        let woken = Arc::new(Notify::new());
        let occupant = Occupant { queues, wants, awake: false, woken: woken.clone() };
        room.seats.insert(number, occupant);
        room.asleep(number);
        Seat { number, woken, wakeups: self.clone() }
    }

    /// Sleeps until something earlier is due than was known; the sweeper's.
    pub(super) async fn due_changed(&self) {
        self.bell.notified().await;
    }

    /// Takes the earliest time announced since the last call.
    pub(super) fn take_due(&self) -> Option<Timestamp> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Listener for Wakeups {
    fn available(&self, queue: &QueueName, jobs: usize) {
        self.room().wake_for(queue, jobs);
    }

    fn come_due(&self, queue: &QueueName) {
        self.room().wake_for(queue, 1);
    }

    /// Every dead letter gets one line.
    fn died(&self, notice: &DeadNotice) {
        tracing::warn!(
            queue = %notice.queue,
            job_id = %notice.id,
            job_type = notice.job_type,
            reason = notice.reason.as_str(),
            attempts = notice.attempts,
            error_type = notice.error_type,
            overflow = notice.overflow,
            "dead-lettered"
        );
    }

    fn cancel_requested(&self, lease: Lease) {
        // Nobody listens where nobody streams.
        let _ = self.cancels.send(lease);
    }

    /// Every transition gets one line.
    fn breaker(&self, notice: &BreakerNotice) {
        let name = tracing::field::display(&notice.name);
        let state = notice.state.as_str();
        if let Some(forced) = &notice.forced {
            tracing::warn!(breaker = name, state, reason = forced.reason, "breaker forced");
            return;
        }
        let probe_at = notice.probe_at.map(tracing::field::display);
        match (notice.state, notice.name.guarded) {
            (BreakerState::Open, Guarded::Work) => tracing::warn!(
                breaker = name,
                state,
                error = notice.error,
                probe_at,
                "breaker open: the queue is held back"
            ),
            (BreakerState::Open, Guarded::DeadLetters) => tracing::error!(
                breaker = name,
                state,
                error = notice.error,
                probe_at,
                "breaker open: new dead letters go to the overflow; requeue or purge some, or raise max_entries"
            ),
            (BreakerState::HalfOpen, _) => {
                tracing::info!(breaker = name, state, "breaker half open: probing")
            }
            (BreakerState::Closed, _) => tracing::info!(breaker = name, state, "breaker closed"),
        }
    }

    fn due(&self, at: Timestamp) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        if due.is_none_or(|earlier| at < earlier) {
            *due = Some(at);
            self.bell.notify_one();
        }
    }
}

/// A place in the waiting room; given up when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    number: u64,
    woken: Arc<Notify>,
    wakeups: Arc<Wakeups>,
}

impl Seat {
    /// Sleeps until there may be work. Who then finds nothing still has its old place in line.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
        self.wakeups.room().asleep(self.number);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.wakeups.room().leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::Future, pin::pin, task::Context};

    fn queue(name: &str) -> QueueName {
        QueueName::parse(name).unwrap()
    }

    fn is_woken(seat: &Seat) -> bool {
        let mut context = Context::from_waker(std::task::Waker::noop());
        pin!(seat.woken()).poll(&mut context).is_ready()
    }

    fn seats(wakeups: &Arc<Wakeups>, count: usize, wants: usize) -> Vec<Seat> {
        (0..count).map(|_| wakeups.sit(vec![queue("q")], wants)).collect()
    }

    #[test]
    fn one_job_wakes_one_of_a_hundred_and_it_is_the_first() {
        let wakeups = Arc::new(Wakeups::default());
        let seats = seats(&wakeups, 100, 1);
        wakeups.available(&queue("q"), 1);
        let woken: Vec<_> = seats.iter().map(is_woken).collect();
        assert!(woken[0]);
        assert_eq!(woken.iter().filter(|woken| **woken).count(), 1);
    }

    #[test]
    fn as_many_wake_as_there_is_work_for() {
        let wakeups = Arc::new(Wakeups::default());
        let seats = seats(&wakeups, 5, 10);
        wakeups.available(&queue("q"), 25);
        wakeups.available(&queue("other"), 5);
        assert_eq!(seats.iter().filter(|seat| is_woken(seat)).count(), 3);
    }

    #[test]
    fn a_burst_wakes_nobody_for_nothing() {
        let wakeups = Arc::new(Wakeups::default());
        let seats = seats(&wakeups, 10, 1);
        for ready in 1..=3 {
            wakeups.available(&queue("q"), ready);
        }
        assert_eq!(seats.iter().filter(|seat| is_woken(seat)).count(), 3);
    }

    #[test]
    fn a_wakeup_that_is_not_used_goes_to_the_next() {
        let wakeups = Arc::new(Wakeups::default());
        let first = wakeups.sit(vec![queue("a"), queue("b")], 1);
        let second = wakeups.sit(vec![queue("a")], 1);
        wakeups.available(&queue("a"), 1);
        drop(first);
        assert!(is_woken(&second));
    }

    #[test]
    fn a_waiter_that_found_nothing_keeps_its_place_in_line() {
        let wakeups = Arc::new(Wakeups::default());
        let seats = seats(&wakeups, 2, 1);
        wakeups.available(&queue("q"), 1);
        assert!(is_woken(&seats[0]));
        wakeups.available(&queue("q"), 1);
        assert!(is_woken(&seats[0]));
        assert!(!is_woken(&seats[1]));
    }

    #[test]
    fn nothing_is_remembered_of_those_who_left() {
        let wakeups = Arc::new(Wakeups::default());
        let mut seats = seats(&wakeups, 3, 2);
        wakeups.available(&queue("q"), 3);
        assert!(is_woken(&seats[0]));
        seats.clear();
        assert!(wakeups.room().lines.is_empty() && wakeups.room().seats.is_empty());
    }
}
