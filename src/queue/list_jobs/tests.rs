use super::*;
use crate::{
    domain::{
        failure::Failure,
        job::{AttemptStatus, Body, DeadReason, NewJob, Progress},
    },
    queue::{
        facts::JobFacts,
        find,
        fixture::{Fixture, HOUR, SECOND, delayed, job, queue, with_body, with_id},
        records::{DeadRecord, History, Whereabouts},
        state_changes::Changes,
    },
    store::{Ahead, storage::Write},
};

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
        let page = f.page(&query);
        pages.push(page.jobs.iter().map(|(_, view)| view.spec.id.to_string()).collect());
        if page.next.is_none() {
            return pages;
        }
        query.after = page.next;
    }
}

fn number_of(f: &mut Fixture, id: &str) -> u64 {
    let record = f.read(Read::Record(Table::Id, RecordKey::Text(id.into()))).record().unwrap();
    records::read_id(&record).unwrap().number
}

/// Ends the lease of the next job, with a history.
fn next_with_history(f: &mut Fixture, whereabouts: Whereabouts, at: Timestamp) -> u64 {
    let number = f.take().number;
    let progress = Progress { deliveries: 1, tries: 1, ..Progress::default() };
    let history = History { progress, whereabouts, at, ..History::default() };
    f.apply(vec![
        Write::Delete(Table::Lease, RecordKey::Number(number)),
        Write::Put(Table::History, RecordKey::Number(number), records::history(&history)),
    ]);
    number
}

fn kill(f: &mut Fixture, index: Index) {
    let whereabouts = if index == Index::Dead { Whereabouts::Dead } else { Whereabouts::Overflow };
    let now = f.now();
    let number = next_with_history(f, whereabouts, now);
    let dead = DeadRecord {
        reason: DeadReason::Exhausted,
        died_at: now,
        counted_as: "E".into(),
        context: Vec::new(),
    };
    f.apply(vec![Write::AppendDead { index, number, record: records::dead(&dead) }]);
}

/// Jobs in every state and every index, each told apart by its id.
fn every_state() -> Fixture {
    let mut f = Fixture::new();
    for (id, index) in
        [("dead-b", Index::Dead), ("dead-o", Index::Overflow), ("dead-a", Index::Dead)]
    {
        f.enqueue(with_id(id));
        kill(&mut f, index);
    }
    for id in ["done-b", "done-a"] {
        f.enqueue(with_id(id));
        let now = f.now();
        let number = next_with_history(&mut f, Whereabouts::Completed, now);
        f.apply(vec![Write::Insert(Index::Completed, Entry::number(now.millis(), number))]);
    }
    f.enqueue(with_id("retry"));
    let at = f.now().after(2 * SECOND);
    let number = next_with_history(&mut f, Whereabouts::Retrying, at);
    let position = records::position(number, records::rank(0), at, true);
    f.apply(vec![Write::Insert(Index::Retrying, Entry::waiting(position))]);
    for id in ["leased-b", "leased-a"] {
        f.enqueue(with_id(id));
        f.take();
        f.advance(SECOND / 1_000);
    }
    f.enqueue(NewJob { priority: -1, ..with_id("ready-low") });
    f.enqueue(with_id("ready-b"));
    f.enqueue(with_id("ready-a"));
    f.enqueue(NewJob { priority: 1, ..with_id("ready-high") });
    f.enqueue(delayed(with_id("later-b"), HOUR));
    f.enqueue(delayed(NewJob { priority: 4, ..with_id("later-a") }, HOUR));
    f.enqueue(delayed(with_id("soon"), SECOND));
    f.enqueue(NewJob { queue: queue("other"), ..with_id("elsewhere") });
    f
}

const READY: [&str; 4] = ["ready-high", "ready-b", "ready-a", "ready-low"];
const SCHEDULED: [&str; 4] = ["soon", "retry", "later-a", "later-b"];
const LEASED: [&str; 2] = ["leased-b", "leased-a"];
const DEAD: [&str; 3] = ["dead-b", "dead-o", "dead-a"];
const COMPLETED: [&str; 2] = ["done-b", "done-a"];

#[test]
fn every_job_is_listed_once_in_order_whatever_the_page() {
    let mut f = every_state();
    let all = [&READY[..], &SCHEDULED, &LEASED, &DEAD, &COMPLETED].concat();
    for limit in 1..=all.len() + 1 {
        let pages = pages(&mut f, query(limit));
        assert_eq!(pages.concat(), all, "{limit} a page");
        assert!(pages.iter().rev().skip(1).all(|page| page.len() == limit), "{pages:?}");
    }
    for (state, expected) in [
        (State::Ready, &READY[..]),
        (State::Scheduled, &SCHEDULED),
        (State::Leased, &LEASED),
        (State::Dead, &DEAD),
        (State::Completed, &COMPLETED),
    ] {
        for limit in [1, 2, 100] {
            let query = JobQuery { state: Some(state), ..query(limit) };
            assert_eq!(pages(&mut f, query.clone()).concat(), expected);
            assert!(f.page(&query).jobs.iter().all(|(_, view)| view.state == state));
        }
    }
}

#[test]
fn a_listed_job_is_what_looking_at_it_shows() {
    let mut f = every_state();
    let whole = f.page(&JobQuery { full: true, ..query(100) }).jobs;
    assert_eq!(whole.len(), 15);
    for (_, listed) in &whole {
        let view = f.view(&listed.spec.id);
        assert_eq!(format!("{listed:?}"), format!("{view:?}"));
        assert!(!view.corrupt);
    }
    let brief = f.page(&query(100)).jobs;
    for ((_, brief), (_, whole)) in brief.iter().zip(&whole) {
        let mut expected = whole.clone();
        expected.spec.body = Body::None;
        assert_eq!(format!("{brief:?}"), format!("{expected:?}"));
    }
    let death = f.view(&JobId::parse("dead-o")).death.unwrap();
    assert_eq!((death.number, death.overflow, death.reason), (2, true, DeadReason::Exhausted));
}

#[test]
fn ready_jobs_know_how_many_go_first() {
    let mut f = every_state();
    let mut query = JobQuery { state: Some(State::Ready), ..query(3) };
    let first = f.page(&query);
    query.after = first.next;
    let jobs = first.jobs.into_iter().chain(f.page(&query).jobs);
    let ahead: Vec<_> = jobs.filter_map(|(_, view)| view.ahead).collect();
    let expected: Vec<_> = (0..4).map(|jobs| Ahead { jobs, more: false }).collect();
    assert_eq!(ahead, expected);
}

#[test]
fn a_type_is_found_among_others_at_a_bounded_cost() {
    let mut f = Fixture::new();
    let jobs = (0..30).map(|n| {
        let kind = if n % 10 == 9 { "rare" } else { "mail" };
        NewJob { job_type: kind.into(), ..with_id(&format!("{n:02}")) }
    });
    f.enqueue_all(jobs.collect());
    let rare = JobQuery { job_type: Some("rare".into()), looks_max: 4, ..query(100) };
    let found = pages(&mut f, rare.clone());
    assert_eq!((found.concat(), found.len()), (vec!["09".into(), "19".into(), "29".into()], 8));
    assert_eq!(pages(&mut f, JobQuery { looks_max: 30, ..rare }).len(), 1);
}

#[test]
fn a_page_ends_before_it_gets_too_long_but_is_never_empty() {
    let mut f = Fixture::new();
    for id in ["a", "b", "c"] {
        f.enqueue(with_body(with_id(id), &"x".repeat(10_000)));
    }
    let full = JobQuery { full: true, max_bytes: 25_000, ..query(100) };
    assert_eq!(pages(&mut f, full.clone()), [vec!["a", "b"], vec!["c"]]);
    assert_eq!(pages(&mut f, JobQuery { max_bytes: 1, ..full }), [["a"], ["b"], ["c"]]);
    assert_eq!(pages(&mut f, JobQuery { max_bytes: 25_000, ..query(100) }).len(), 1);
}

#[test]
fn a_queue_of_many_jobs_is_listed_whole() {
    let mut f = Fixture::new();
    f.enqueue_all(vec![job("q"); 600]);
    assert_eq!(f.page(&query(1_000)).jobs.len(), 600);
    assert_eq!(pages(&mut f, query(251)).concat().len(), 600);
    let missing = JobQuery { queue: queue("missing"), ..query(1) };
    assert!(crate::queue::fixture::at_once(jobs(&mut f.store, &missing)).unwrap().is_none());
}

#[test]
fn attempts_are_put_together_with_first_and_last_failure_whole() {
    let mut f = Fixture::new();
    f.enqueue(with_id("a"));
    let number = number_of(&mut f, "a");
    let mut progress = Progress { recorded: 0, ..Progress::default() };
    let mut recorded = Vec::new();
    for n in 1..=60u32 {
        let job = f.record(Table::Job, number);
        let history = (n > 1).then(|| {
            records::history(&History { progress: progress.clone(), ..History::default() })
        });
        let facts = JobFacts::of(number, job.as_ref(), history.as_ref()).unwrap();
        let failure =
            Failure { stack_trace: "s".repeat(3_000), ..Failure::new("E", n.to_string()) };
        let attempt = crate::domain::job::Attempt {
            number: n,
            status: AttemptStatus::Failed,
            failure: Some(failure),
            ..records::damaged_attempt()
        };
        let mut changes = Changes::default();
        changes.record_attempt(&facts, n, &attempt);
        f.apply(changes.batch().writes);
        progress.recorded = n;
        progress.first_failed_at = Some(f.now());
        recorded.push(attempt);
    }
    let at = f.now();
    let history = History { progress, at, ..History::default() };
    let entry = f.entries(Index::Ready).remove(0);
    let position = records::position(number, records::rank(0), at, true);
    f.apply(vec![
        Write::Put(Table::History, RecordKey::Number(number), records::history(&history)),
        Write::Remove(Index::Ready, entry),
        Write::Insert(Index::Ready, Entry::ready(position)),
    ]);
    let view = f.view(&JobId::parse("a"));
    let numbers: Vec<_> = view.attempts.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, (1..=10).chain(21..=60).collect::<Vec<_>>());
    assert_eq!(view.attempts[0], recorded[0]);
    assert_eq!(view.attempts[49], recorded[59]);
    assert_eq!(view.last_failure, recorded[59].failure);
    assert!(view.attempts[20].failure.as_ref().unwrap().stack_trace.is_empty());
    f.damage(Table::History, number, 30);
    assert_eq!(f.view(&JobId::parse("a")).attempts.len(), 50, "they stay visible");
}

#[test]
fn a_damaged_job_is_shown_as_far_as_it_can_be_read() {
    let mut f = Fixture::new();
    f.enqueue(with_id("a"));
    f.damage(Table::Job, 1, 0);
    let view = f.view(&JobId::parse("a"));
    assert!(view.corrupt);
    assert_eq!(view.spec.body, Body::Text("body".into()));
    f.enqueue(with_body(with_id("b"), &"x".repeat(5_000)));
    assert!(!f.view(&JobId::parse("b")).corrupt);
    f.damage(Table::Body, 2, 7);
    let view = f.view(&JobId::parse("b"));
    assert!(view.corrupt);
    assert_eq!(view.spec.body.bytes().len(), 5_000);
}

#[test]
fn a_page_goes_on_behind_the_job_where_the_last_one_ended() {
    let at = |rank, millis, number, tag| {
        let at = Timestamp::from_millis(millis);
        let mut position = records::position(number, rank, at, false);
        position.tag = tag;
        position
    };
    let ready = [at(1, 9, 7, 0), at(1, 9, 8, 1), at(200, 3, 4, 1)].map(Entry::ready);
    let waiting = [at(9, 3, 7, 1), at(10, 3, 7, 0), at(0, 4, 1, 0)].map(Entry::waiting);
    let dead = [Entry::number(3, 99), Entry::number(4, 1)];
    let completed = [Entry::number(3, 1), Entry::number(3, 2), Entry::number(4, 1)];
    for (state, entries) in [
        (State::Ready, &ready[..]),
        (State::Scheduled, &waiting),
        (State::Dead, &dead),
        (State::Completed, &completed),
    ] {
        for pair in entries.windows(2) {
            let after = entry_of(&position(state, &pair[0]));
            assert!(pair[0] <= after && after < pair[1], "{state:?}: {after:?}");
            assert_eq!(find::state_of(indexes(state)[0]), state);
        }
    }
}

#[test]
fn two_indexes_are_one_list() {
    let found = |scores: &[u64]| {
        Found::Entries(scores.iter().map(|score| Entry::number(*score, 1)).collect())
    };
    let seen = in_order(State::Dead, vec![found(&[1, 4]), found(&[2, 3])], 3);
    let seen: Vec<_> = seen.iter().map(|(index, entry)| (*index, entry.score)).collect();
    assert_eq!(seen, [(Index::Dead, 1), (Index::Overflow, 2), (Index::Overflow, 3)]);
}
