//! Which queues there are, and the numbers that a store gives.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, bytes, name, position, text};
use bytes::Bytes;
use redrive::domain::{QueueName, Timestamp};
use redrive::store::storage::{
    Applied, Batch, Counter, CounterGroup, Entry, Fence, GroupState, Index, Mark, Read, Reads, RecordKey, Storage,
    Table, Version, Write,
};
use std::collections::BTreeSet;

fn names(names: &[&str]) -> Vec<QueueName> {
    names.iter().map(|queue| name(queue)).collect()
}

async fn a_queue_is_there_once_it_is_registered<E: TestEngine>(mut f: Fixture<E>) {
    let other = name("other");
    let take = f.plain_take(1);
    let read = [Read::Record(Table::Job, RecordKey::Number(1))];
    let batch = Batch {
        // Whether it holds is not even looked at.
        fences: vec![Fence::Is(Table::Job, RecordKey::Number(1), bytes("job"))],
        writes: vec![Write::Put(Table::Job, RecordKey::Number(1), bytes("job"))],
        ..Batch::default()
    };
    let storage = f.storage();
    assert_eq!(storage.read(&other, &read).await.unwrap(), None);
    assert_eq!(storage.apply(&other, &batch).await.unwrap(), Applied::NoQueue);
    assert!(storage.take(&other, &take).await.unwrap().is_none());
    assert!(!storage.forget(&other, Timestamp::MAX).await.unwrap());

    assert!(storage.register(&other, 10).await.unwrap());
    assert!(storage.read(&other, &read).await.unwrap().is_some());
    assert!(matches!(storage.apply(&other, &batch).await.unwrap(), Applied::Changed(_)));
    assert!(storage.take(&other, &take).await.unwrap().is_some());
}

async fn there_are_at_most_so_many_queues<E: TestEngine>(mut f: Fixture<E>) {
    let storage = f.storage();
    assert!(storage.register(&name("b"), 2).await.unwrap());
    assert!(!storage.register(&name("c"), 2).await.unwrap());
    // It is there already.
    assert!(storage.register(&name("b"), 1).await.unwrap());
    assert!(storage.register(&name("c"), 3).await.unwrap());
    assert_eq!(storage.queues(None, 10).await.unwrap(), names(&["b", "c", "jobs"]));
}

async fn registering_again_changes_nothing<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1]).await;
    f.register("jobs").await;
    assert_eq!(f.jobs(Index::Ready).await, [1]);
}

async fn queues_are_listed_by_name<E: TestEngine>(mut f: Fixture<E>) {
    for queue in ["b", "B", "a-1", "a.1", "10", "9", "a"] {
        f.register(queue).await;
    }
    let all = names(&["10", "9", "B", "a", "a-1", "a.1", "b", "jobs"]);
    let storage = f.storage();
    assert_eq!(storage.queues(None, 100).await.unwrap(), all);
    assert_eq!(storage.queues(None, 3).await.unwrap(), all[..3]);
    assert_eq!(storage.queues(Some(&name("B")), 2).await.unwrap(), all[3..5]);
    // What it goes on after need not be there.
    assert_eq!(storage.queues(Some(&name("a0")), 100).await.unwrap(), all[6..]);
    assert_eq!(storage.queues(Some(&name("jobs")), 100).await.unwrap(), []);
}

async fn the_holders_of_a_record<E: TestEngine>(mut f: Fixture<E>) {
    for queue in ["a", "b", "c"] {
        f.register(queue).await;
    }
    for queue in ["a", "c"] {
        f.queue = name(queue);
        f.write(vec![Write::Put(Table::Id, text("id"), bytes("1"))]).await;
    }
    f.queue = name("b");
    f.write(vec![
        Write::Put(Table::Key, text("id"), bytes("1")),
        Write::Put(Table::Job, RecordKey::Number(9), bytes("1")),
    ])
    .await;
    let nine = RecordKey::Number(9);
    let mut holders = f.storage().holders(Table::Id, &text("id")).await.unwrap();
    holders.sort();
    assert_eq!(holders, names(&["a", "c"]));
    assert_eq!(f.storage().holders(Table::Job, &nine).await.unwrap(), names(&["b"]));
    assert_eq!(f.storage().holders(Table::History, &nine).await.unwrap(), []);
    assert_eq!(f.storage().holders(Table::Id, &text("other")).await.unwrap(), []);
    f.write(vec![Write::Delete(Table::Job, nine.clone())]).await;
    assert_eq!(f.storage().holders(Table::Job, &nine).await.unwrap(), []);
}

async fn numbers_are_given_once<E: TestEngine>(mut f: Fixture<E>) {
    let mut given = BTreeSet::new();
    // More than one server takes at once, and more than it has left.
    for count in [1, 3, 1, 500, 2, 600, 2_500, 1] {
        let numbers = f.storage().numbers(count).await.unwrap();
        assert_eq!(numbers.end - numbers.start, count);
        for number in numbers {
            assert!(given.insert(number), "{number} was given twice");
        }
    }
    f.reopen().await;
    let numbers = f.storage().numbers(5).await.unwrap();
    assert!(numbers.into_iter().all(|number| given.insert(number)));
    // 0 stands for "none" where numbers are bytes, and six bytes hold no more.
    assert!(given.iter().all(|number| (1..1 << 48).contains(number)));
}

async fn an_unused_queue_is_forgotten<E: TestEngine>(mut f: Fixture<E>) {
    let version = Version { state: GroupState::Held, epoch: 1, random: [1; 8] };
    let record = Bytes::copy_from_slice(&version.bytes());
    f.write(vec![
        Write::Put(Table::Queue, RecordKey::Only, bytes("state")),
        Write::Put(Table::Version, RecordKey::Group(0), record),
        Write::Put(Table::Breaker, RecordKey::Group(0), bytes("breaker")),
        Write::Put(Table::Outcomes, RecordKey::Only, bytes("outcomes")),
        Write::Add(Counter::Total(0), 5),
        Write::Add(Counter::ErrorType("timeout".into()), 5),
        Write::Raise(Mark::LastSuccess(1), Timestamp::from_millis(5)),
    ])
    .await;
    let (queue, now) = (f.queue.clone(), f.now());
    let earlier = Timestamp::from_millis(now.millis() - 1);
    assert!(!f.storage().forget(&queue, earlier).await.unwrap());
    let later = f.at(1);
    assert!(f.storage().forget(&queue, later).await.unwrap());
    assert!(!f.storage().forget(&queue, later).await.unwrap());
    assert_eq!(f.storage().queues(None, 10).await.unwrap(), []);
    assert_eq!(f.storage().read(&queue, &[]).await.unwrap(), None);

    // One of the same name is new.
    f.register("jobs").await;
    assert_eq!(f.record(Table::Queue, RecordKey::Only).await, None);
    assert_eq!(f.failing(vec![Version::default().fence(0)]).await, []);
    assert_eq!(f.record(Table::Breaker, RecordKey::Group(0)).await, None);
    assert_eq!(f.record(Table::Outcomes, RecordKey::Only).await, None);
    assert_eq!(f.read(Read::Counters(CounterGroup::Totals)).await.counters(), []);
    assert_eq!(f.read(Read::Counters(CounterGroup::ErrorTypes)).await.counters(), []);
    assert_eq!(f.read(Read::Mark(Mark::LastSuccess(1))).await.score(), None);
}

async fn a_queue_that_has_anything_stays<E: TestEngine>(mut f: Fixture<E>) {
    let now = f.now();
    let number = |number| RecordKey::Number(number);
    let waiting = Entry::waiting(position(0, 5, 1));
    let ready = Entry::ready(position(0, 5, 1));
    let insert = |index, entry: &Entry| (Write::Insert(index, entry.clone()), Write::Remove(index, entry.clone()));
    let put = |table, key: RecordKey| (Write::Put(table, key.clone(), bytes("record")), Write::Delete(table, key));
    let lease = Write::PutLease { number: 1, expires_at: now, record: bytes("lease") };
    let pairs = [
        put(Table::Job, number(1)),
        put(Table::Request, text("request")),
        put(Table::Key, text("key")),
        put(Table::Move, number(1)),
        (lease, Write::Delete(Table::Lease, number(1))),
        insert(Index::Ready, &ready),
        insert(Index::Scheduled, &waiting),
        insert(Index::Retrying, &waiting),
        insert(Index::Completed, &Entry::number(5, 1)),
    ];
    let (queue, later) = (f.queue.clone(), f.at(1_000_000));
    for (add, remove) in pairs {
        f.write(vec![add.clone()]).await;
        assert!(!f.storage().forget(&queue, later).await.unwrap(), "{add:?}");
        f.write(vec![remove]).await;
    }
    assert!(f.storage().forget(&queue, later).await.unwrap());
}

async fn a_queue_that_is_written_to_is_used<E: TestEngine>(mut f: Fixture<E>) {
    let (queue, start) = (f.queue.clone(), f.now());
    // A new queue is as one that was written to.
    assert!(!f.storage().forget(&queue, Timestamp::from_millis(start.millis() - 1)).await.unwrap());
    f.pass(100);
    let since = f.at(0).millis() - 50;
    let since = Timestamp::from_millis(since);
    f.write(vec![Write::Add(Counter::Total(0), 1)]).await;
    assert!(!f.storage().forget(&queue, since).await.unwrap());

    // Reads, batches that fail, takes of nothing, promotions of nothing and marks leave it unused.
    f.pass(100);
    let since = Timestamp::from_millis(f.now().millis() - 50);
    f.entries(Index::Ready).await;
    f.failing(vec![Fence::Absent(Table::Job, RecordKey::Number(1))]).await;
    let failing = vec![Fence::Is(Table::Job, RecordKey::Number(1), bytes("job"))];
    f.apply(failing, vec![Write::Add(Counter::Total(0), 1)]).await;
    f.take_jobs(1).await;
    f.write(vec![Write::Promote(10)]).await;
    let now = f.now();
    f.write(vec![Write::Raise(Mark::LastClaim, now)]).await;
    f.register("jobs").await;
    assert!(f.storage().forget(&queue, since).await.unwrap());
}

on_every_engine!(
    a_queue_is_there_once_it_is_registered,
    there_are_at_most_so_many_queues,
    registering_again_changes_nothing,
    queues_are_listed_by_name,
    the_holders_of_a_record,
    numbers_are_given_once,
    an_unused_queue_is_forgotten,
    a_queue_that_has_anything_stays,
    a_queue_that_is_written_to_is_used,
);
