//! Import, as it is stored. That a store arrives whole in another is looked at in `tests/store/import.rs`.

use crate::imported::*;
use bytes::Bytes;
use redrive::domain::{Body, Breaker, JobId, Outage, Pause, QueueSettings, Settings, State};
use redrive::queue::Refusal;
use redrive::queue::{Answer, Event, Verb, View, Viewed, verify, view};
use redrive::queue::{Imported, JobView, QueueHolds, QueueView};
use redrive::store::storage::{
    Counter, CounterGroup, Entry, Found, GroupState, Index, Len, Member, NO_GROUP, Read, RecordKey, Rule, Table,
    Version, WHOLE_QUEUE, Write,
};
use std::{sync::Arc, time::Duration};

const HOUR: Duration = Duration::from_secs(3600);

fn assert_sound(f: &mut Fixture) {
    let report = now(verify(&mut f.store, &mut |_| {}));
    assert!(report.is_clean(), "{:#?}", report.findings);
}

fn totals(f: &mut Fixture) -> Vec<(Counter, i64)> {
    f.read(Read::Counters(CounterGroup::Totals)).counters()
}

fn view_of(f: &mut Fixture, id: &str) -> JobView {
    match now(view(&mut f.store, View::Job(JobId::parse(id), None))) {
        Viewed::Job(mut views) => views.remove(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_that_waits_is_ready_or_scheduled_at_its_own_time() {
    let mut f = Fixture::new();
    let mut high = ready("high");
    high.spec.priority = 9;
    // Of a clock that is ahead: its record alone would not say where it waits.
    let mut early = ready("early");
    (early.spec.enqueued_at, early.spec.run_at, early.ready_at) = (at(90), at(90), Some(at(90)));
    let jobs = vec![ready("a"), ready("b"), high, scheduled("later", 500), failed("again", 2, 600), early];
    assert_eq!(f.import(jobs), [Imported::Added; 6]);
    let events = f.events.clone();
    let [a, b, high, later, again, early] = ["a", "b", "high", "later", "again", "early"].map(|id| f.number_of(id));
    assert_eq!(f.jobs(Index::Ready), [high, a, b]);
    assert_eq!(f.jobs(Index::Scheduled), [early, later]);
    assert_eq!(f.jobs(Index::Retrying), [again]);
    assert!(f.record(Table::History, number(a)).is_none(), "nothing has happened to it");
    assert!(f.record(Table::History, number(early)).is_some());
    let due = |event: &Event| matches!(event, Event::Due { at: then, job: true, .. } if *then == at(500));
    assert!(events.iter().any(due), "{events:?}");
    assert!(events.contains(&Event::Available { queue: queue_name(), jobs: 3 }), "{events:?}");
    assert_eq!(totals(&mut f), [(Counter::Total(12), 6)]);
    assert_sound(&mut f);
}

#[test]
fn a_history_arrives_with_the_attempts_that_are_kept() {
    let mut f = Fixture::new();
    let job = failed("often", 53, 600);
    f.import(vec![job.clone()]);
    let often = view_of(&mut f, "often");
    assert_eq!((often.state, often.ready_at, &often.progress), (State::Retrying, Some(at(600)), &job.progress));
    let attempts: Vec<_> = often.attempts.iter().map(|attempt| attempt.number).collect();
    assert_eq!(attempts, (1..=10).chain(14..=53).collect::<Vec<_>>());
    assert_eq!(f.read(Read::Scan(Table::Attempt, None, 100)).scanned().len(), 50);
    let whole = [often.attempts[0].failure.as_ref(), often.last_failure.as_ref()];
    assert_eq!(whole, [job.attempts[0].failure.as_ref(), job.last_failure.as_ref()]);
    assert_sound(&mut f);
}

#[test]
fn a_leased_job_arrives_ready_at_its_old_position_with_the_delivery_counted() {
    let mut f = Fixture::new();
    f.clock.advance(Duration::from_secs(1));
    let mut leased = ready("leased");
    (leased.state, leased.ready_at, leased.old_place) = (State::Leased, None, Some(at(20)));
    leased.progress.deliveries = 1;
    let mut behind = ready("behind");
    (behind.spec.enqueued_at, behind.spec.run_at, behind.ready_at) = (at(30), at(30), Some(at(30)));
    f.import(vec![behind, leased]);
    let (leased, behind) = (f.number_of("leased"), f.number_of("behind"));
    assert_eq!(f.jobs(Index::Ready), [leased, behind]);
    let taken = f.take(1, Rule::default());
    assert_eq!((taken.jobs[0].number, taken.jobs[0].attempt), (leased, 1));
    assert_eq!(taken.jobs[0].lease[..4], [0, 0, 0, 2], "the second delivery");
    assert_sound(&mut f);
}

#[test]
fn dead_letters_keep_their_order_and_their_type_of_error() {
    let mut f = Fixture::new();
    f.import(vec![dead("d1", 40, false), dead("d2", 30, true)]);
    f.import(vec![dead("d3", 20, false)]);
    let [d1, d2, d3] = ["d1", "d2", "d3"].map(|id| f.number_of(id));
    assert_eq!(f.entries(Index::Dead), [Entry::number(1, d1), Entry::number(3, d3)]);
    assert_eq!(f.entries(Index::Overflow), [Entry::number(2, d2)]);
    let death = view_of(&mut f, "d2").death.unwrap();
    assert_eq!((death.number, death.died_at), (2, at(30)));
    let types = f.read(Read::Counters(CounterGroup::ErrorTypes));
    assert_eq!(types, Found::Counters(vec![(Counter::ErrorType("E1".into()), 3)]));
    assert_eq!(totals(&mut f), [(Counter::Total(12), 3)]);
    assert_sound(&mut f);
}

#[test]
fn completed_jobs_keep_their_results_and_count_as_completed() {
    let mut f = Fixture::new();
    let mut large = with_key(completed("done", 10, "well"), "k");
    large.spec.body = Body::Data(vec![7; 5_000].into());
    f.import(vec![large, completed("empty", 11, "")]);
    let done = f.number_of("done");
    assert_eq!(f.jobs(Index::Completed), [done, f.number_of("empty")]);
    assert_eq!(view_of(&mut f, "done").result, "well");
    assert_eq!(f.record(Table::Body, number(done)).unwrap().len(), 5_000);
    let free_at = at(0).after(HOUR).millis();
    let end = f.read(Read::Score(Index::FinishedKey, Member::Text("k".into()))).score();
    assert_eq!(end, Some(free_at));
    assert_eq!(totals(&mut f), [(Counter::Total(1), 2), (Counter::Total(12), 2)]);
    assert_sound(&mut f);
}

#[test]
fn an_id_that_is_there_is_passed_over() {
    let mut f = Fixture::new();
    assert_eq!(f.import(vec![ready("a"), ready("a")]), [Imported::Added, Imported::AlreadyThere]);
    assert_eq!(f.import(vec![ready("a"), ready("b")]), [Imported::AlreadyThere, Imported::Added]);
    // An id of another store holds a number of that store: it has a record of its own here.
    let made = JobId::make(at(0), 1, 5).to_string();
    assert_eq!(f.import(vec![ready(&made), ready(&made)]), [Imported::Added, Imported::AlreadyThere]);
    assert_eq!(f.import(vec![ready(&made)]), [Imported::AlreadyThere]);
    assert!(f.number_of(&made) > 1);
    // One whose number is its own needs none.
    let next = f.len(Len::Table(Table::Job)) + 10;
    let own: Vec<_> = (1..next + 20).map(|n| JobId::make(at(0), n, 5).to_string()).collect();
    f.import(own.iter().skip(1).map(|id| ready(id)).collect());
    assert_eq!(f.import(own.iter().map(|id| ready(id)).collect()), vec![Imported::AlreadyThere; own.len()]);
    assert_sound(&mut f);
}

#[test]
fn a_key_belongs_to_one_job_that_is_not_done() {
    let mut f = Fixture::new();
    let jobs = vec![
        with_key(ready("first"), "k"),
        with_key(ready("second"), "k"),
        with_key(dead("dead", 1, false), "k"),
        with_key(completed("done", 2, ""), "k"),
    ];
    assert_eq!(f.import(jobs), [Imported::Added, Imported::KeyTaken, Imported::Added, Imported::Added]);
    let (key, first) = (f.record(Table::Key, text("k")).unwrap(), f.record(Table::Id, text("first")).unwrap());
    assert_eq!(key[..6], first[..6], "the number of the job that has it");
    assert_eq!(f.import(vec![with_key(ready("third"), "k")]), [Imported::KeyTaken]);
    assert_sound(&mut f);
    // One that is done gives it to a job that waits.
    f.import(vec![with_key(completed("done-2", 2, ""), "k2")]);
    assert_eq!(f.import(vec![with_key(ready("next"), "k2")]), [Imported::Added]);
    assert_eq!(f.len(Len::Index(Index::FinishedKey)), 2, "each key is looked at once");
    assert_eq!(f.import(vec![with_key(ready("last"), "k2")]), [Imported::KeyTaken]);
    assert_sound(&mut f);
}

#[test]
fn dead_jobs_hold_keys_where_the_queue_says_so() {
    let mut f = Fixture::new();
    f.import(vec![with_key(dead("without", 1, false), "k1")]);
    assert!(f.record(Table::Key, text("k1")).is_none());
    let holding = QueueSettings { dead_jobs_hold_keys: true, ..QueueSettings::default() };
    f.settings = Settings { defaults: Arc::new(holding), ..Settings::default() };
    f.import(vec![with_key(dead("with", 1, false), "k2")]);
    assert!(f.record(Table::Key, text("k2")).is_some());
    assert_sound(&mut f);
}

#[test]
fn deadlines_are_watched_while_jobs_wait() {
    let mut f = Fixture::new();
    let expires = |mut job: JobView| {
        job.spec.expires_at = Some(at(900));
        job
    };
    let mut cleared = expires(failed("cleared", 1, 0));
    cleared.progress.deadline_cleared = true;
    f.import(vec![expires(ready("r")), expires(failed("f", 1, 600)), expires(dead("d", 1, false)), cleared]);
    let watched = ["r", "f"].map(|id| Entry::number(at(900).millis(), f.number_of(id)));
    assert_eq!(f.entries(Index::Deadline), watched);
    assert_sound(&mut f);
}

/// The queue with its breaker, the breaker of its dead letters, and its versions.
fn holds(f: &mut Fixture) -> (QueueView, Breaker, [Version; 2]) {
    let Viewed::Queues(mut queues) = now(view(&mut f.store, View::Queues(None, 1))) else { panic!("no queues") };
    let Answer::Breakers(mut breakers) = f.run(&mut f.store.clone(), Verb::Breakers(vec![queue_name()])) else {
        panic!("no breakers")
    };
    let mut version = |group| Version::read(f.record(Table::Version, RecordKey::Group(group)).as_deref());
    let versions = [WHOLE_QUEUE, NO_GROUP].map(&mut version);
    (queues.remove(0), breakers.remove(0).dead_letters.breaker, versions)
}

#[test]
fn the_queue_is_held_back_as_it_was_there() {
    let mut f = Fixture::new();
    let pause = Pause { until: Some(at(5_000)), reason: "night".into() };
    let outage = Outage { since: at(0), opened_at: at(0), probe_at: at(700), ..Outage::default() };
    let work = Breaker { transitions: 3, outage: Some(outage.into()), ..Breaker::default() };
    let dead_letters = Breaker { transitions: 2, trips: 1, ..Breaker::default() };
    let there = QueueHolds { pause: Some(pause.clone()), work: work.clone(), keys: Vec::new(), dead_letters };
    let mut store = f.store.clone();
    f.import_to(&mut store, there.clone(), Vec::new()).unwrap();
    let (queue, dead_letters, versions) = holds(&mut f);
    assert_eq!((queue.pause, queue.breaker), (Some(pause), work));
    assert_eq!(dead_letters, there.dead_letters);
    assert_eq!(versions.map(|it| it.state), [GroupState::Held, GroupState::NeedsRule]);
    assert_eq!(versions[1].epoch, 3);
    assert_sound(&mut f);
    // Said again it changes nothing, and transitions never go back.
    f.import_to(&mut store, there, Vec::new()).unwrap();
    assert_eq!(holds(&mut f).2, versions);
    let work = Breaker { transitions: 1, trips: 1, ..Breaker::default() };
    f.import_to(&mut store, QueueHolds { work, ..QueueHolds::default() }, Vec::new()).unwrap();
    let (queue, ..) = holds(&mut f);
    assert_eq!((queue.breaker.transitions, queue.breaker.outage), (3, None));
    assert!(queue.pause.is_some(), "nothing was said about it");
    assert_sound(&mut f);
}

#[test]
fn a_queue_that_finds_no_room_is_refused() {
    let mut f = Fixture { max_queues: 0, ..Fixture::new() };
    let refused = f.import_to(&mut f.store.clone(), QueueHolds::default(), vec![ready("a")]);
    assert!(matches!(refused, Err(Refusal::TooManyQueues { limit: 0 })));
}

#[test]
fn an_id_a_key_or_a_number_that_is_taken_meanwhile_is_noticed() {
    let mut f = Fixture::new();
    // Records as a call leaves them that is faster: those of another store, whose job has another number there.
    let mut other = Fixture::new();
    other.import((0..90).map(|n| ready(&n.to_string())).collect());
    other.import(vec![with_key(ready("other"), "k")]);
    let (job, holder) = (Bytes::from_static(b"another job"), number(other.number_of("other")));
    let mut store = Hooked::new(&f.store);
    store.writes = vec![
        Write::Put(Table::Id, text("a"), other.record(Table::Id, text("other")).unwrap()),
        Write::Put(Table::Key, text("k"), other.record(Table::Key, text("k")).unwrap()),
        Write::Put(Table::Job, number(2), job.clone()),
        Write::Put(Table::Job, holder.clone(), other.record(Table::Job, holder).unwrap()),
    ];
    let jobs = vec![ready("a"), with_key(ready("b"), "k"), ready("c")];
    let taken = f.import_to(&mut store, QueueHolds::default(), jobs).unwrap();
    assert_eq!(taken, [Imported::AlreadyThere, Imported::KeyTaken, Imported::Added]);
    assert_eq!(f.record(Table::Job, number(2)), Some(job));
    let available = |event: &&Event| matches!(event, Event::Available { .. });
    assert_eq!(f.events.iter().filter(available).count(), 1);
    assert!(f.number_of("c") > 3);
    assert_eq!(totals(&mut f), [(Counter::Total(12), 1)]);
}
