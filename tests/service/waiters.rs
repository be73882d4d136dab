//! Which of the claims that wait are notified.

use redrive::domain::QueueName;
use redrive::queue::{Event, Subscriber};
use redrive::service::{Waiter, Waiters};
use std::{future::Future, pin::pin, sync::Arc, task::Context};

fn queue(name: &str) -> QueueName {
    QueueName::parse(name).unwrap()
}

fn is_notified(waiter: &Waiter) -> bool {
    let mut context = Context::from_waker(std::task::Waker::noop());
    pin!(waiter.notified()).poll(&mut context).is_ready()
}

fn registered(waiters: &Arc<Waiters>, count: usize, wants: usize) -> Vec<Waiter> {
    (0..count).map(|_| waiters.register(vec![queue("q")], wants)).collect()
}

fn available(waiters: &Waiters, name: &str, jobs: usize) {
    waiters.event(&Event::Available { queue: queue(name), jobs });
}

#[test]
fn one_job_notifies_one_of_a_hundred_and_it_is_the_first() {
    let waiters = Arc::new(Waiters::default());
    let all = registered(&waiters, 100, 1);
    available(&waiters, "q", 1);
    let notified: Vec<_> = all.iter().map(is_notified).collect();
    assert!(notified[0]);
    assert_eq!(notified.iter().filter(|notified| **notified).count(), 1);
}

#[test]
fn as_many_are_notified_as_there_is_work_for() {
    let waiters = Arc::new(Waiters::default());
    let all = registered(&waiters, 5, 10);
    available(&waiters, "q", 25);
    available(&waiters, "other", 5);
    assert_eq!(all.iter().filter(|waiter| is_notified(waiter)).count(), 3);
}

#[test]
fn a_burst_notifies_none_for_nothing() {
    let waiters = Arc::new(Waiters::default());
    let all = registered(&waiters, 10, 1);
    for ready in 1..=3 {
        available(&waiters, "q", ready);
    }
    assert_eq!(all.iter().filter(|waiter| is_notified(waiter)).count(), 3);
}

#[test]
fn a_notification_that_is_not_used_goes_to_the_next() {
    let waiters = Arc::new(Waiters::default());
    let first = waiters.register(vec![queue("a"), queue("b")], 1);
    let second = waiters.register(vec![queue("a")], 1);
    available(&waiters, "a", 1);
    drop(first);
    assert!(is_notified(&second));
}

#[test]
fn a_waiter_that_found_nothing_keeps_its_position() {
    let waiters = Arc::new(Waiters::default());
    let all = registered(&waiters, 2, 1);
    available(&waiters, "q", 1);
    assert!(is_notified(&all[0]));
    available(&waiters, "q", 1);
    assert!(is_notified(&all[0]));
    assert!(!is_notified(&all[1]));
}

#[test]
fn nothing_is_remembered_of_those_that_left() {
    let waiters = Arc::new(Waiters::default());
    let mut all = registered(&waiters, 3, 2);
    available(&waiters, "q", 3);
    assert!(is_notified(&all[0]));
    all.clear();
    assert!(waiters.is_empty());
}
