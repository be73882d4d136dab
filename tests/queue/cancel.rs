//! Cancel and run-now: what stays of a job, and what its damaged records may not change.

use crate::jobs_fixture::{Fixture, HOUR, SECOND, delayed, job, queue, with_body, with_id};
use redrive::domain::{NewJob, State, When};
use redrive::queue::Cancelled;
use redrive::queue::Event;
use redrive::queue::Refusal;
use redrive::store::storage::{Index, Len, Table};

fn no_job(id: &str) -> Refusal {
    Refusal::JobNotFound { id: id.into(), searched: None }
}

/// What stays of a job with an own id for a while.
const OWN_ID_HELD: [&str; 2] = ["Id", "expires"];
const REMOVED: Result<Cancelled, Refusal> = Ok(Cancelled::Cancelled);

fn with_all(id: &str) -> NewJob {
    NewJob { key: Some("k".into()), expiry: Some(When::After(HOUR)), ..with_id(id) }
}

#[test]
fn nothing_of_a_waiting_job_that_is_cancelled_stays() {
    let mut f = Fixture::new();
    let made = f.enqueue(delayed(job("q"), HOUR)).to_string();
    f.enqueue(with_body(with_all("own"), &"x".repeat(2_000)));
    f.enqueue(delayed(with_id("later"), HOUR));
    assert_eq!(f.run_now("later"), Ok(()), "it has a history now");
    assert_eq!(f.cancel(&made), REMOVED);
    assert_eq!(f.cancel("own"), REMOVED);
    assert_eq!(f.cancel("later"), REMOVED);
    assert_eq!(f.cancel("own"), Err(no_job("own")));
    assert_eq!(f.kept(), OWN_ID_HELD);
    f.advance(600 * SECOND);
    f.enqueue(with_body(with_all("own"), "another"));
}

#[test]
fn a_job_can_be_cancelled_whatever_its_record_says() {
    for delay in [0, 3600] {
        for at in 0..49 {
            let mut f = Fixture::new();
            f.enqueue(job("q"));
            let mine = NewJob { expiry: Some(When::After(2 * HOUR)), priority: 3, ..with_id("mine") };
            f.enqueue(delayed(mine, SECOND * delay));
            f.damage(Table::Job, 2, at);
            assert_eq!(f.cancel("mine"), REMOVED, "byte {at}");
            assert_eq!(f.cancel("mine"), Err(no_job("mine")), "byte {at}");
            assert_eq!(f.kept(), ["Job", "Id", "ready", "expires"], "byte {at}");
        }
    }
}

#[test]
fn a_damaged_history_hides_no_job() {
    let mut f = Fixture::new();
    f.enqueue(delayed(with_id("a"), HOUR));
    f.run_now("a").unwrap();
    f.damage(Table::History, 1, 20);
    assert_eq!(f.view("a").state, State::Ready);
    assert_eq!(f.cancel("a"), REMOVED);
    assert_eq!(f.kept(), OWN_ID_HELD);
}

#[test]
fn the_worker_of_a_leased_job_is_told_by_its_own_token() {
    let mut f = Fixture::new();
    for id in ["own", &"long".repeat(20)] {
        f.enqueue(with_id(id));
        let lease = f.claim();
        for _ in 0..2 {
            assert_eq!(f.cancel(id), Ok(Cancelled::Requested));
            assert_eq!(f.events, [Event::CancelRequested(lease.clone())]);
        }
        let view = f.view(id);
        assert!(view.progress.cancel_requested);
        assert_eq!(view.delivery.unwrap().lease, lease);
        assert_eq!(f.run_now(id), Err(Refusal::WrongState { id: id.to_owned(), state: State::Leased }));
    }
}

#[test]
fn a_job_that_is_run_now_is_ready_and_keeps_what_it_has() {
    let mut f = Fixture::new();
    let job = NewJob { priority: 9, expiry: Some(When::After(2 * HOUR)), ..with_id("a") };
    f.enqueue(delayed(job, HOUR));
    f.enqueue(delayed(with_id("due"), SECOND));
    f.advance(2 * SECOND);
    let now = f.now();
    assert_eq!(f.run_now("a"), Ok(()));
    assert!(f.events.contains(&Event::Available { queue: queue("q"), jobs: 1 }));
    assert_eq!(f.run_now("a"), Ok(()));
    assert!(f.events.is_empty(), "it was ready");
    assert_eq!(f.view("a").ready_at, Some(now));
    assert_eq!(f.run_now("due"), Ok(()));
    let was_due = f.view("due").ready_at.unwrap();
    assert_eq!(now.since(was_due), SECOND, "it keeps its position");
    assert_eq!(f.len(Len::Index(Index::Deadline)), 1);
    assert_eq!(f.ready(), [1, 2]);
}
