//! Who waits for work, and who is woken when there is some: as many as there is work for, in the order they came.
//!
//! A waiter takes a seat before it looks for work, so nothing that comes between looking and waiting is missed. A waiter
//! that leaves with an unused wake-up passes it on, and every claim that leaves work behind wakes the next in line; so a
//! job never lies ready while somebody waits for it.

use crate::{
    domain::{ids::QueueName, time::Timestamp},
    store::Listener,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub struct Wakeups {
    room: Mutex<Room>,
    /// When the sweeper is needed, and the bell that tells it.
    due: Mutex<Option<Timestamp>>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Room {
    next_seat: u64,
    seats: HashMap<u64, Occupant>,
    /// Seats that are not yet woken, in the order they were taken.
    lines: HashMap<QueueName, BTreeMap<u64, ()>>,
}

#[derive(Debug)]
struct Occupant {
    queues: Vec<QueueName>,
    wants: usize,
    woken: Arc<Notify>,
}

impl Room {
    fn stand_in_line(&mut self, seat: u64) {
        let Some(occupant) = self.seats.get(&seat) else {
            return;
        };
        for queue in &occupant.queues {
            self.lines
                .entry(queue.clone())
                .or_default()
                .insert(seat, ());
        }
    }

    /// True if the seat stood in line, that is, was not woken.
    fn leave_line(&mut self, seat: u64) -> bool {
        let Some(occupant) = self.seats.get(&seat) else {
            return false;
        };
        let mut stood = false;
        for queue in &occupant.queues {
            if let Some(line) = self.lines.get_mut(queue) {
                stood |= line.remove(&seat).is_some();
                if line.is_empty() {
                    self.lines.remove(queue);
                }
            }
        }
        stood
    }
}

impl Wakeups {
    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat for somebody who could take `wants` jobs of these queues.
    pub(super) fn sit(self: &Arc<Self>, queues: Vec<QueueName>, wants: usize) -> Seat {
        let mut room = self.room();
        let number = room.next_seat;
        room.next_seat += 1;
        let woken = Arc::new(Notify::new());
        room.seats.insert(
            number,
            Occupant {
                queues,
                wants,
                woken: woken.clone(),
            },
        );
        room.stand_in_line(number);
        Seat {
            number,
            woken,
            wakeups: self.clone(),
        }
    }

    /// Sleeps until the earliest time announced changes; the sweeper's.
    pub(super) async fn due_changed(&self) {
        self.bell.notified().await;
    }

    /// Takes the earliest time announced since the last call.
    pub(super) fn take_due(&self) -> Option<Timestamp> {
        self.due
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    #[cfg(test)]
    fn waiting(&self, queue: &str) -> usize {
        self.room().lines.get(queue).map_or(0, BTreeMap::len)
    }
}

impl Listener for Wakeups {
    fn available(&self, queue: &QueueName, jobs: usize) {
        let mut room = self.room();
        let mut left = jobs;
        while left > 0 {
            let Some((&seat, ())) = room.lines.get(queue).and_then(BTreeMap::first_key_value)
            else {
                return;
            };
            room.leave_line(seat);
            let Some(occupant) = room.seats.get(&seat) else {
                return;
            };
            left = left.saturating_sub(occupant.wants);
            occupant.woken.notify_one();
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
    /// Sleeps until there may be work, then stands in line again, at its old place.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
        self.wakeups.room().stand_in_line(self.number);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut room = self.wakeups.room();
        let stood = room.leave_line(self.number);
        let occupant = room.seats.remove(&self.number);
        drop(room);
        // Woken and never looked: somebody else must.
        if let Some(occupant) = occupant
            && !stood
        {
            for queue in &occupant.queues {
                self.wakeups.available(queue, 1);
            }
        }
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

    #[test]
    fn one_job_wakes_one_of_a_hundred_and_it_is_the_first() {
        let wakeups = Arc::new(Wakeups::default());
        let seats: Vec<_> = (0..100).map(|_| wakeups.sit(vec![queue("q")], 1)).collect();
        wakeups.available(&queue("q"), 1);
        let woken: Vec<_> = seats.iter().map(is_woken).collect();
        assert!(woken[0]);
        assert_eq!(woken.iter().filter(|woken| **woken).count(), 1);
    }

    #[test]
    fn as_many_wake_as_there_is_work_for() {
        let wakeups = Arc::new(Wakeups::default());
        let seats: Vec<_> = (0..5).map(|_| wakeups.sit(vec![queue("q")], 10)).collect();
        wakeups.available(&queue("q"), 25);
        assert_eq!(wakeups.waiting("q"), 2);
        assert_eq!(seats.iter().filter(|seat| is_woken(seat)).count(), 3);
        wakeups.available(&queue("other"), 5);
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
        let first = wakeups.sit(vec![queue("a")], 1);
        let second = wakeups.sit(vec![queue("a")], 1);
        wakeups.available(&queue("a"), 1);
        assert!(is_woken(&first));
        wakeups.available(&queue("a"), 1);
        assert!(is_woken(&first));
        assert!(!is_woken(&second));
    }

    #[test]
    fn empty_lines_are_forgotten() {
        let wakeups = Arc::new(Wakeups::default());
        drop(wakeups.sit(vec![queue("a")], 1));
        assert!(wakeups.room().lines.is_empty() && wakeups.room().seats.is_empty());
    }
}
