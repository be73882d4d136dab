//! Lists and views of jobs, where several indexes make one list, and where records are damaged.

use crate::jobs_fixture::{Fixture, HOUR, SECOND, delayed, job, queue, with_body, with_id};
use redrive::domain::{Body, DeadReason, Failure, NewJob, State};
use redrive::queue::JobQuery;
use redrive::queue::{View, Viewed};
use redrive::store::storage::{Counter, Table, Write};

fn query(limit: usize) -> JobQuery {
    JobQuery {
        queue: queue("q"),
        state: None,
        job_type: None,
        after: None,
        limit,
        full: false,
        max_bytes: usize::MAX,
        looks_max: 10_000,
    }
}

fn pages(f: &mut Fixture, mut query: JobQuery) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    loop {
        let page = f.page(&query).unwrap();
        pages.push(page.jobs.iter().map(|(_, view)| view.spec.id.to_string()).collect());
        if page.next.is_none() {
            return pages;
        }
        query.after = page.next;
    }
}

fn dead_letter(f: &mut Fixture, id: &str, max_entries: u64) {
    f.set(|queue| queue.dead_letters.max_entries = max_entries);
    f.enqueue(with_id(id));
    let lease = f.claim();
    f.fail(lease, Failure::new("E", id), true);
}

/// Jobs in every state and every index, each told apart by its id.
fn every_state() -> Fixture {
    let mut f = Fixture::new();
    f.set(|queue| queue.completed_retention = Some(HOUR));
    for (id, max_entries) in [("dead-b", 1), ("dead-o", 1), ("dead-a", 10)] {
        dead_letter(&mut f, id, max_entries);
    }
    for id in ["done-b", "done-a"] {
        f.enqueue(with_id(id));
        let lease = f.claim();
        f.ack(lease);
    }
    for id in ["cancelled-b", "cancelled-a"] {
        f.enqueue(with_id(id));
        f.cancel(id).unwrap();
    }
    f.enqueue(with_id("retry"));
    let lease = f.claim();
    f.fail(lease, Failure::new("E", "again"), false);
    for id in ["leased-b", "leased-a"] {
        f.enqueue(with_id(id));
        f.claim();
        f.advance(SECOND / 1_000);
    }
    f.enqueue(NewJob { priority: -1, ..with_id("ready-low") });
    f.enqueue(with_id("ready-b"));
    f.enqueue(with_id("ready-a"));
    f.enqueue(NewJob { priority: 1, ..with_id("ready-high") });
    f.enqueue(delayed(with_id("later-b"), HOUR));
    f.enqueue(delayed(NewJob { priority: 4, ..with_id("later-a") }, HOUR));
    f.enqueue(delayed(with_id("soon"), SECOND / 2));
    f.enqueue(NewJob { queue: queue("other"), ..with_id("elsewhere") });
    f
}

const READY: [&str; 4] = ["ready-high", "ready-b", "ready-a", "ready-low"];
const SCHEDULED: [&str; 3] = ["soon", "later-a", "later-b"];
const RETRYING: [&str; 1] = ["retry"];
const LEASED: [&str; 2] = ["leased-b", "leased-a"];
const DEAD: [&str; 3] = ["dead-b", "dead-o", "dead-a"];
const COMPLETED: [&str; 2] = ["done-b", "done-a"];
const CANCELLED: [&str; 2] = ["cancelled-b", "cancelled-a"];

#[test]
fn the_indexes_of_a_state_are_one_list_whatever_the_page() {
    let mut f = every_state();
    let all = [&READY[..], &SCHEDULED, &RETRYING, &LEASED, &DEAD, &COMPLETED, &CANCELLED].concat();
    for limit in 1..=all.len() + 1 {
        let pages = pages(&mut f, query(limit));
        assert_eq!(pages.concat(), all, "{limit} a page");
        assert!(pages.iter().rev().skip(1).all(|page| page.len() == limit), "{pages:?}");
    }
    let states = [
        (State::Ready, &READY[..]),
        (State::Scheduled, &SCHEDULED),
        (State::Retrying, &RETRYING),
        (State::Leased, &LEASED),
        (State::Dead, &DEAD),
        (State::Completed, &COMPLETED),
        (State::Cancelled, &CANCELLED),
    ];
    for (state, expected) in states {
        for limit in [1, 2, 100] {
            let query = JobQuery { state: Some(state), ..query(limit) };
            assert_eq!(pages(&mut f, query.clone()).concat(), expected);
            assert!(f.page(&query).unwrap().jobs.iter().all(|(_, view)| view.state == state));
        }
    }
}

#[test]
fn a_listed_job_of_any_index_is_what_looking_at_it_shows() {
    let mut f = every_state();
    let whole = f.page(&JobQuery { full: true, ..query(100) }).unwrap().jobs;
    assert_eq!(whole.len(), 17);
    for (_, listed) in &whole {
        let view = f.view(&listed.spec.id.to_string());
        assert_eq!(format!("{listed:?}"), format!("{view:?}"));
        assert!(!view.corrupt);
    }
    let death = f.view("dead-o").death.unwrap();
    assert_eq!((death.number, death.overflow, death.reason), (2, true, DeadReason::NonRetryable));
}

#[test]
fn a_queue_of_many_jobs_is_listed_whole() {
    let mut f = Fixture::new();
    f.enqueue_all(vec![job("q"); 600]);
    assert_eq!(f.page(&query(1_000)).unwrap().jobs.len(), 600);
    assert_eq!(pages(&mut f, query(251)).concat().len(), 600);
    assert!(f.page(&JobQuery { queue: queue("missing"), ..query(1) }).is_none());
}

#[test]
fn attempts_stay_visible_where_their_history_is_damaged() {
    let mut f = Fixture::new();
    f.enqueue(with_id("a"));
    for n in 1..=3 {
        let lease = f.claim();
        f.fail(lease, Failure::new("E", n.to_string()), false);
        f.advance(HOUR);
    }
    let attempts = f.view("a").attempts;
    assert_eq!(attempts.len(), 3);
    f.damage(Table::History, 1, 30);
    assert_eq!(f.view("a").attempts, attempts);
}

#[test]
fn a_damaged_job_is_shown_as_far_as_it_can_be_read() {
    let mut f = Fixture::new();
    f.enqueue(with_id("a"));
    f.damage(Table::Job, 1, 0);
    let view = f.view("a");
    assert!(view.corrupt);
    assert_eq!(view.spec.body, Body::Text("body".into()));
    f.enqueue(with_body(with_id("b"), &"x".repeat(5_000)));
    assert!(!f.view("b").corrupt);
    f.damage(Table::Body, 2, 7);
    let view = f.view("b");
    assert!(view.corrupt);
    assert_eq!(view.spec.body.bytes().len(), 5_000);
}

#[test]
fn a_total_that_this_server_does_not_know_counts_nowhere() {
    let mut f = Fixture::new();
    f.enqueue(job("q"));
    let before = f.look(View::Stats(None));
    f.apply(vec![Write::Add(Counter::Total(99), 1)]);
    let Viewed::Stats(stats) = f.look(View::Stats(Some(queue("q")))) else { panic!("there is a queue") };
    assert_eq!(stats.totals.enqueued, 1);
    assert_eq!(format!("{before:?}"), format!("{:?}", f.look(View::Stats(None))));
}
