//! What a restart must not change.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, bytes, name, position, text};
use redrive::domain::Timestamp;
use redrive::store::storage::{
    Counter, CounterGroup, Entry, Found, Index, Len, Mark, OutcomeSums, Read, Reads, RecordKey, Storage, Table, Write,
};

async fn everything_is_there_after_a_restart<E: TestEngine>(mut f: Fixture<E>) {
    f.register("other").await;
    f.add_jobs([1, 2, 3]).await;
    let (ends, now) = (f.at(900), f.now());
    f.write(vec![
        Write::Put(Table::Queue, RecordKey::Only, bytes("state")),
        Write::Put(Table::Key, text("k"), bytes("key")),
        Write::Put(Table::Attempt, RecordKey::Part(1, 4), bytes("attempt")),
        Write::PutLease { number: 9, expires_at: now, record: bytes("lease") },
        Write::Insert(Index::Retrying, Entry::waiting(position(3, 900, 4))),
        Write::AppendDead { index: Index::Overflow, number: 8, record: bytes("dead") },
        Write::Add(Counter::Total(3), 12),
        Write::Add(Counter::ErrorType("timeout".into()), 2),
    ])
    .await;
    f.write(vec![Write::Extend { number: 9, expires_at: ends }]).await;
    let all = |index| Read::Range { index, after: None, up_to: None, limit: 100, reverse: false };
    let mut reads: Vec<_> = Table::ALL.map(|table| Read::Scan(table, None, 100)).into();
    reads.extend(Index::ALL.map(all));
    reads.extend(Index::ALL.map(|index| Read::Len(Len::Index(index))));
    let tables = [Table::Job, Table::Lease, Table::Dead];
    reads.extend(tables.map(|table| Read::Len(Len::Table(table))));
    reads.push(Read::Counters(CounterGroup::Totals));
    reads.push(Read::Counters(CounterGroup::ErrorTypes));

    let queue = f.queue.clone();
    let before = f.storage().read(&queue, &reads).await.unwrap();
    f.reopen().await;
    assert_eq!(f.storage().read(&queue, &reads).await.unwrap(), before);
    let queues = f.storage().queues(None, 10).await.unwrap();
    assert_eq!(queues, [name("jobs"), name("other")]);
    // The sequence of deaths goes on.
    let append = Write::AppendDead { index: Index::Dead, number: 7, record: bytes("dead") };
    f.write(vec![append]).await;
    let (dead, overflow) = (f.entries(Index::Dead).await, f.entries(Index::Overflow).await);
    assert!(dead[0].score > overflow[0].score);
    // With the retry, which was due long ago.
    assert_eq!(f.take_jobs(9).await.jobs.len(), 4);
}

async fn store_time_goes_on_after_a_restart<E: TestEngine>(mut f: Fixture<E>) {
    f.pass(5_000);
    f.add_jobs([1]).await;
    let before = f.now();
    // Neither by the wall clock, which was set meanwhile, nor from the beginning.
    f.clock.jump_wall(3_600);
    f.reopen().await;
    assert_eq!(f.now(), before);
    f.clock.jump_wall(-3_600);
    f.pass(1_000);
    assert_eq!(f.now().millis(), before.millis() + 1_000);
}

async fn when_a_queue_was_used_is_known_after_a_restart<E: TestEngine>(mut f: Fixture<E>) {
    let queue = f.queue.clone();
    f.pass(100);
    let since = Timestamp::from_millis(f.now().millis() - 50);
    f.write(vec![Write::Add(Counter::Total(0), 1)]).await;
    f.reopen().await;
    assert!(!f.storage().forget(&queue, since).await.unwrap());
    let later = f.at(1);
    assert!(f.storage().forget(&queue, later).await.unwrap());
    f.reopen().await;
    assert_eq!(f.storage().read(&queue, &[]).await.unwrap(), None);
}

async fn outcomes_are_there_where_the_engine_keeps_them<E: TestEngine>(mut f: Fixture<E>) {
    let now = f.now();
    let sums = OutcomeSums { succeeded: 2, retried: 1, took_ms: 40, ln_took: -7 };
    f.write(vec![
        Write::Put(Table::Outcomes, RecordKey::Group(1), bytes("outcomes")),
        Write::Count { epoch: 1, sums, at: now },
        Write::Raise(Mark::LastClaim, now),
    ])
    .await;
    f.reopen().await;
    let kept = E::KEEPS_OUTCOMES;
    assert_eq!(f.record(Table::Outcomes, RecordKey::Group(1)).await.is_some(), kept);
    let found = f.read(Read::Sums(1)).await;
    assert_eq!(found.sums(), if kept { (sums, Some(now)) } else { Default::default() });
    let mark = f.read(Read::Mark(Mark::LastClaim)).await;
    assert_eq!(mark, Found::Score(kept.then_some(now.millis())));
}

on_every_engine!(
    everything_is_there_after_a_restart,
    store_time_goes_on_after_a_restart,
    when_a_queue_was_used_is_known_after_a_restart,
    outcomes_are_there_where_the_engine_keeps_them,
);
