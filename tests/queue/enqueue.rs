//! Enqueue: batches, what is told of them, ids, keys and numbers that are taken, and other servers that come between.

use crate::jobs_fixture::{
    Fixture, HOUR, SECOND, at_once, delayed, enqueue_of, job, queue, with_body, with_id, with_key,
};
use proptest::prelude::*;
use redrive::domain::{Body, Failure, JobId, NewJob, QueueName, State, Timestamp, When};
use redrive::queue::EnqueueOutcome;
use redrive::queue::Enqueued;
use redrive::queue::Refusal;
use redrive::queue::{Answer, CallContext, Event, QueueMemory, StoreLimits, run};
use redrive::store::memory::MemoryStorage;
use redrive::store::storage::{
    Applied, Batch, Found, Index, Len, Read, Reads, RecordKey, Storage, Table, Take, Taken, Write,
};
use std::ops::Range;
use std::sync::{Arc, Mutex};

type StoreResult<T> = Result<T, redrive::store::StoreError>;

fn duplicate(answer: &Result<Enqueued, Refusal>) -> bool {
    answer.as_ref().unwrap().outcome == EnqueueOutcome::Existing
}

#[test]
fn numbers_ids_and_answers_follow_the_order_of_the_call() {
    let mut f = Fixture::new();
    let answers = f.enqueue_all(vec![job("q"), job("r"), job("q"), job("r"), job("q")]);
    let ids: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b));
    assert_eq!(f.ready(), [1, 3, 5]);
    assert!(f.enqueue_all(Vec::new()).is_empty());
}

#[test]
fn what_became_ready_or_becomes_due_is_told_once_for_each_batch() {
    let mut f = Fixture::new();
    let now = f.now();
    let expires = |after| NewJob { expiry: Some(When::After(after)), ..job("q") };
    f.enqueue_all(vec![delayed(job("q"), HOUR), delayed(job("q"), SECOND), expires(HOUR), expires(2 * HOUR)]);
    let due = |at, job| Event::Due { queue: queue("q"), at, job };
    let available = Event::Available { queue: queue("q"), jobs: 2 };
    let expected = [available, due(now.after(SECOND), true), due(now.after(HOUR), false)];
    assert_eq!(f.events, expected);
    f.enqueue(delayed(job("q"), HOUR));
    assert_eq!(f.events, [due(now.after(HOUR), true)], "none became ready");
    assert_eq!(f.len(Len::Index(Index::Deadline)), 2);
}

#[test]
fn a_long_call_is_added_in_several_batches() {
    let mut f = Fixture::new();
    let answers = f.enqueue_all(vec![job("q"); 201]);
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(f.events.len(), 3);
    let large = with_body(job("q"), &"x".repeat((1 << 19) - 100));
    f.enqueue_all(vec![large; 5]);
    assert_eq!(f.events.len(), 3, "two of them are a batch");
    assert_eq!(f.len(Len::Table(Table::Job)), 206);
}

#[test]
fn ids_and_keys_that_are_taken_decide() {
    let mut f = Fixture::new();
    let both = |id: &str, key: &str| NewJob { key: Some(key.into()), ..with_id(id) };
    f.enqueue(both("one", "k"));
    f.enqueue(both("two", "l"));
    let answers = f.enqueue_all(vec![
        with_id("one"),
        with_body(with_id("two"), "other"),
        with_key("l"),
        both("three", "k"),
        job("q"),
    ]);
    assert!(duplicate(&answers[0]) && duplicate(&answers[2]));
    assert_eq!(answers[2].as_ref().unwrap().id, JobId::parse("two"));
    assert_eq!(answers[1], Err(Refusal::IdTaken));
    assert_eq!(answers[3], Err(Refusal::IdAndKeyDiffer));
    assert!(!duplicate(&answers[4]));
    assert_eq!(f.try_enqueue(both("one", "l")), Err(Refusal::IdAndKeyDiffer));
    assert_eq!(f.try_enqueue(with_body(with_key("k"), "other")), Err(Refusal::KeyTaken));
    assert!(duplicate(&f.try_enqueue(both("two", "l"))));
    assert_eq!(f.len(Len::Table(Table::Job)), 3);
}

#[test]
fn jobs_of_one_call_may_share_ids_and_keys() {
    let mut f = Fixture::new();
    let answers = f.enqueue_all(vec![
        with_id("a"),
        with_body(with_id("a"), "other"),
        with_id("a"),
        NewJob { key: Some("k".into()), ..with_id("a") },
        with_key("k"),
        with_key("k"),
        with_body(with_key("k"), "other"),
        NewJob { key: Some("k".into()), ..with_id("b") },
    ]);
    assert!(!duplicate(&answers[0]) && duplicate(&answers[2]));
    assert_eq!(answers[1], Err(Refusal::IdTaken));
    // A duplicate takes no key: the next one has it.
    assert!(duplicate(&answers[3]));
    assert!(!duplicate(&answers[4]) && duplicate(&answers[5]));
    assert_eq!(answers[5].as_ref().unwrap().id, answers[4].as_ref().unwrap().id);
    assert_eq!(answers[6], Err(Refusal::KeyTaken));
    assert_eq!(answers[7], Err(Refusal::IdAndKeyDiffer));
    assert_eq!(f.len(Len::Table(Table::Job)), 2);
}

#[test]
fn an_id_that_the_store_made_is_known_again() {
    let mut f = Fixture::new();
    for body in ["short".to_owned(), "long".repeat(1_000)] {
        let made = f.enqueue(with_body(job("q"), &body)).to_string();
        assert!(duplicate(&f.try_enqueue(with_body(with_id(&made), &body))));
        assert_eq!(f.try_enqueue(with_body(with_id(&made), "other")), Err(Refusal::IdTaken));
    }
    // The same number in another id is another job.
    let other = JobId::make(f.now(), 1, 99).to_string();
    assert!(!duplicate(&f.try_enqueue(with_id(&other))));
    assert!(duplicate(&f.try_enqueue(with_id(&other))));
    assert_eq!(f.len(Len::Table(Table::Id)), 1);
}

#[test]
fn an_id_may_hold_the_number_of_its_own_job_or_of_another_one_of_the_call() {
    let mut f = Fixture::new();
    let id = |number| JobId::make(f.now(), number, 5).to_string();
    let (own, next) = (id(1), id(3));
    let answers = f.enqueue_all(vec![with_id(&own), with_id(&next), job("q"), with_id(&id(1 << 40))]);
    assert!(answers.iter().all(|answer| !duplicate(answer)));
    assert_eq!(f.len(Len::Table(Table::Id)), 2, "its own number needs none");
    assert!(duplicate(&f.try_enqueue(with_id(&own))));
    assert!(duplicate(&f.try_enqueue(with_id(&next))));
    assert_eq!(f.try_enqueue(with_body(with_id(&own), "other")), Err(Refusal::IdTaken));
}

#[test]
fn a_number_that_is_taken_is_passed_over() {
    let mut f = Fixture::new();
    f.enqueue(job("q"));
    let record = f.record(Table::Job, 1);
    f.apply(vec![Write::Put(Table::Job, RecordKey::Number(3), record)]);
    let answers = f.enqueue_all(vec![job("q"), with_id("own"), job("q")]);
    assert!(answers.iter().all(|answer| !duplicate(answer)));
    assert_eq!(f.ready(), [1, 2, 4, 5]);
    assert_eq!(f.view("own").spec.body, Body::Text("body".into()));
    assert_eq!(answers[0].as_ref().unwrap().id.number(), Some(2));
}

#[test]
fn the_key_of_a_job_that_is_done_is_free_when_its_time_is_over() {
    let mut f = Fixture::new();
    f.set(|queue| queue.key_retention = HOUR);
    let id = f.enqueue(with_key("k"));
    let lease = f.claim();
    f.ack(lease);
    let again = f.try_enqueue(with_key("k")).unwrap();
    assert_eq!((again.id, again.state, again.run_at), (id, State::Completed, None));
    assert_eq!(f.try_enqueue(with_body(with_key("k"), "other")), Err(Refusal::KeyTaken));
    f.advance(HOUR);
    let other = || with_body(with_key("k"), "other");
    let answers = f.enqueue_all(vec![other(), job("q"), other()]);
    assert!(!duplicate(&answers[0]) && !duplicate(&answers[1]) && duplicate(&answers[2]));
    assert_eq!(f.entries(Index::FinishedKey).len(), 1, "the end of the earlier job's key is forgotten");
    assert!(duplicate(&f.try_enqueue(other())));
}

#[test]
fn a_duplicate_says_where_the_earlier_job_is() {
    let mut f = Fixture::new();
    let due = f.now().after(SECOND);
    f.enqueue(delayed(with_id("a"), SECOND));
    let again = |f: &mut Fixture| {
        let answer = f.try_enqueue(with_id("a")).unwrap();
        (answer.state, answer.run_at)
    };
    assert_eq!(again(&mut f), (State::Scheduled, Some(due)));
    f.advance(SECOND);
    f.apply(vec![Write::Promote(10)]);
    assert_eq!(again(&mut f), (State::Ready, Some(due)));
    f.claim();
    assert_eq!(again(&mut f), (State::Leased, None));
}

#[test]
fn what_fits_is_added_and_the_rest_is_refused() {
    let mut f = Fixture::new();
    f.set(|queue| queue.max_depth = Some(4));
    f.enqueue_all(vec![with_id("a"), job("q")]);
    let full = Err(Refusal::QueueFull { limit: 4 });
    let answers = f.enqueue_all(vec![job("q"), with_id("a"), job("q"), job("q"), with_id("a"), with_id("b")]);
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert!(duplicate(&answers[1]) && duplicate(&answers[4]));
    assert_eq!((&answers[3], &answers[5]), (&full, &full));
    assert_eq!(f.try_enqueue(job("q")), full);
    assert!(f.try_enqueue(job("r")).is_ok());
    // A dead letter takes no room.
    let lease = f.claim();
    f.fail(lease, Failure::new("E", "broken"), true);
    assert!(f.try_enqueue(job("q")).is_ok());
    assert_eq!(f.try_enqueue(job("q")), full);
}

#[test]
fn two_ways_to_write_a_json_body_are_one_job() {
    let mut f = Fixture::new();
    let json = |body: &str| NewJob { content_type: "application/json".into(), ..with_body(with_key("k"), body) };
    f.enqueue(json(r#"{"a":1,"b":2}"#));
    assert!(duplicate(&f.try_enqueue(json("{ \"b\": 2, \"a\": 1 }"))));
    assert_eq!(f.try_enqueue(json(r#"{"a":1,"b":3}"#)), Err(Refusal::KeyTaken));
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        (0..9i64).prop_map(Into::into),
        ".{0,2}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Into::into),
            proptest::collection::btree_map("[ab\"\\\\é]{0,2}", inner, 0..3)
                .prop_map(|members| members.into_iter().collect::<serde_json::Value>()),
        ]
    })
}

proptest! {
    #[test]
    fn json_bodies_are_the_same_if_they_say_the_same(a in any_json(), b in any_json()) {
        let sameness = |body: String| {
            let json = "application/json".into();
            NewJob { content_type: json, ..with_body(job("q"), &body) }.sameness()
        };
        prop_assert_eq!(sameness(a.to_string()), sameness(format!("{a:#}")));
        prop_assert_eq!(sameness(a.to_string()) == sameness(format!("{b:#}")), a == b);
    }
}

// ---- other servers ----

/// Before each of its next batches another server adds a job.
#[derive(Clone)]
struct Overtaken {
    store: MemoryStorage,
    others: Arc<Mutex<Vec<NewJob>>>,
    applied: Arc<Mutex<usize>>,
}

impl Reads for Overtaken {
    fn now(&self) -> Timestamp {
        self.store.now()
    }

    async fn read(&mut self, queue: &QueueName, reads: &[Read]) -> StoreResult<Option<Vec<Found>>> {
        self.store.read(queue, reads).await
    }

    async fn queues(&mut self, after: Option<&QueueName>, limit: usize) -> StoreResult<Vec<QueueName>> {
        self.store.queues(after, limit).await
    }

    async fn holders(&mut self, table: Table, key: &RecordKey) -> StoreResult<Vec<QueueName>> {
        self.store.holders(table, key).await
    }
}

impl Storage for Overtaken {
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> StoreResult<Applied> {
        *self.applied.lock().unwrap() += 1;
        let other = self.others.lock().unwrap().pop();
        if let Some(other) = other {
            let memory = QueueMemory::default();
            let limits = StoreLimits { queues: 9, leases: 9, finished_keys: 1_000 };
            let mut cx = CallContext::new(Default::default(), 1, &memory, limits);
            at_once(run(&mut self.store, &mut cx, enqueue_of(vec![other]))).unwrap();
        }
        self.store.apply(queue, batch).await
    }

    async fn take(&mut self, queue: &QueueName, take: &Take<'_>) -> StoreResult<Option<Taken>> {
        self.store.take(queue, take).await
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> StoreResult<bool> {
        self.store.register(queue, max).await
    }

    async fn forget(&mut self, queue: &QueueName, since: Timestamp) -> StoreResult<bool> {
        self.store.forget(queue, since).await
    }

    async fn numbers(&mut self, count: u64) -> StoreResult<Range<u64>> {
        self.store.numbers(count).await
    }
}

#[test]
fn a_call_that_is_overtaken_again_and_again_is_answered_job_by_job() {
    let mut f = Fixture::new();
    f.enqueue(job("q"));
    let keys = ["a", "b", "c", "d", "e"];
    let others = keys[1..].iter().map(|key| with_key(key)).collect();
    let store = Overtaken { store: f.store.clone(), others: Arc::new(Mutex::new(others)), applied: Arc::default() };
    let jobs = keys.iter().map(|key| with_key(key)).collect();
    let Answer::Enqueue(answers) = f.run_at(store.clone(), enqueue_of(jobs)) else {
        panic!("an answer of another verb")
    };
    let duplicates: Vec<_> = answers.iter().map(duplicate).collect();
    // Two joint rounds lose `e` and `d`; then `a` is added while `c` comes, and `b` finds itself.
    assert_eq!(duplicates, [false, true, true, true, true]);
    assert_eq!(*store.applied.lock().unwrap(), 2 + 3);
    assert_eq!(f.len(Len::Table(Table::Job)), 1 + 5);
}
