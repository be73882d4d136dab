//! Records, counters and marks.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, bytes, text};
use bytes::Bytes;
use redrive::domain::Timestamp;
use redrive::store::storage::{Counter, CounterGroup, Found, Len, Mark, Read, Reads, RecordKey, Table, Write};

/// One key of the kind that each table has.
fn some_key(table: Table) -> RecordKey {
    match table {
        Table::Queue | Table::Outcomes => RecordKey::Only,
        Table::Version | Table::Breaker => RecordKey::Group(3),
        Table::Attempt | Table::Event | Table::Failure => RecordKey::Part(7, 1),
        Table::Id | Table::Key | Table::Request => text("a text"),
        _ => RecordKey::Number(7),
    }
}

async fn every_table_keeps_replaces_and_deletes_records<E: TestEngine>(mut f: Fixture<E>) {
    for table in Table::ALL {
        let key = some_key(table);
        let put = |record: Bytes| match table {
            Table::Lease => Write::PutLease { number: 7, expires_at: Timestamp::from_millis(5), record },
            _ => Write::Put(table, some_key(table), record),
        };
        assert_eq!(f.record(table, key.clone()).await, None, "{table:?}");
        f.write(vec![put(bytes("first"))]).await;
        assert_eq!(f.record(table, key.clone()).await, Some(bytes("first")), "{table:?}");
        f.write(vec![put(bytes("second, and longer"))]).await;
        let second = Some(bytes("second, and longer"));
        assert_eq!(f.record(table, key.clone()).await, second, "{table:?}");
        for _ in 0..2 {
            f.write(vec![Write::Delete(table, key.clone())]).await;
            assert_eq!(f.record(table, key.clone()).await, None, "{table:?}");
        }
    }
}

async fn records_hold_any_bytes_and_none<E: TestEngine>(mut f: Fixture<E>) {
    let all: Bytes = (0..=255).collect::<Vec<u8>>().into();
    f.write(vec![
        Write::Put(Table::Body, RecordKey::Number(1), all.clone()),
        Write::Put(Table::Body, RecordKey::Number(2), Bytes::new()),
        Write::Put(Table::Id, text("naïve 'quoted' \u{1F600}"), all.clone()),
    ])
    .await;
    assert_eq!(f.record(Table::Body, RecordKey::Number(1)).await, Some(all.clone()));
    assert_eq!(f.record(Table::Body, RecordKey::Number(2)).await, Some(Bytes::new()));
    assert_eq!(f.record(Table::Id, text("naïve 'quoted' \u{1F600}")).await, Some(all));
    assert_eq!(f.record(Table::Id, text("naïve")).await, None);
}

async fn reads_are_answered_in_the_order_asked<E: TestEngine>(mut f: Fixture<E>) {
    f.write(vec![
        Write::Put(Table::Job, RecordKey::Number(1), bytes("one")),
        Write::Put(Table::Job, RecordKey::Number(2), bytes("two")),
        Write::Put(Table::Key, text("k"), bytes("key")),
        Write::Add(Counter::Total(4), 9),
    ])
    .await;
    let job = |number| Read::Record(Table::Job, RecordKey::Number(number));
    let reads = [
        job(2),
        Read::Len(Len::Table(Table::Job)),
        Read::Record(Table::Key, text("k")),
        job(3),
        Read::Counters(CounterGroup::Totals),
        job(1),
        job(2),
    ];
    let queue = f.queue.clone();
    let found = f.storage().read(&queue, &reads).await.unwrap().unwrap();
    let expected = vec![
        Found::Record(Some(bytes("two"))),
        Found::Number(2),
        Found::Record(Some(bytes("key"))),
        Found::Record(None),
        Found::Counters(vec![(Counter::Total(4), 9)]),
        Found::Record(Some(bytes("one"))),
        Found::Record(Some(bytes("two"))),
    ];
    assert_eq!(found, expected);
    assert_eq!(f.storage().read(&queue, &[]).await.unwrap(), Some(vec![]));
}

async fn queues_do_not_see_each_other<E: TestEngine>(mut f: Fixture<E>) {
    f.register("others").await;
    f.write(vec![
        Write::Put(Table::Key, text("k"), bytes("of jobs")),
        Write::Add(Counter::Total(0), 1),
        Write::Put(Table::Job, RecordKey::Number(1), bytes("job")),
    ])
    .await;
    f.queue = crate::fixture::name("others");
    assert_eq!(f.record(Table::Key, text("k")).await, None);
    assert_eq!(f.record(Table::Job, RecordKey::Number(1)).await, None);
    assert_eq!(f.len(Len::Table(Table::Job)).await, 0);
    assert_eq!(f.read(Read::Counters(CounterGroup::Totals)).await.counters(), []);
}

async fn parts_of_a_number_are_deleted_together<E: TestEngine>(mut f: Fixture<E>) {
    const TABLES: [Table; 3] = [Table::Attempt, Table::Event, Table::Failure];
    let puts = [(6, 255), (7, 0), (7, 1), (7, 50), (7, 255), (8, 0)];
    for (at, table) in TABLES.into_iter().enumerate() {
        for other in TABLES {
            let put = |(number, part): (u64, u8)| Write::Put(other, RecordKey::Part(number, part), bytes("part"));
            f.write(puts.into_iter().map(put).collect()).await;
        }
        f.write(vec![Write::DeleteParts(table, 7), Write::DeleteParts(table, 9)]).await;
        for (number, part) in puts {
            for other in TABLES {
                let left = f.record(other, RecordKey::Part(number, part)).await;
                assert_eq!(left.is_some(), other != table || number != 7, "{other:?} {number}/{part} {at}");
            }
        }
        let scanned = f.read(Read::Scan(table, None, 10)).await.scanned();
        assert_eq!(scanned.len(), 2, "{table:?}");
    }
}

async fn lengths_of_tables_count_records_once<E: TestEngine>(mut f: Fixture<E>) {
    for _ in 0..2 {
        f.write(vec![
            Write::Put(Table::Job, RecordKey::Number(1), bytes("a")),
            Write::Put(Table::Job, RecordKey::Number(2), bytes("b")),
        ])
        .await;
        assert_eq!(f.len(Len::Table(Table::Job)).await, 2);
    }
    f.write(vec![Write::Delete(Table::Job, RecordKey::Number(2)), Write::Delete(Table::Job, RecordKey::Number(3))])
        .await;
    assert_eq!(f.len(Len::Table(Table::Job)).await, 1);
}

async fn a_scan_pages_through_a_table_by_key<E: TestEngine>(mut f: Fixture<E>) {
    let keys = [1, 2, 255, 256, 70_000];
    let put = |number| Write::Put(Table::Job, RecordKey::Number(number), bytes("job"));
    // Not in their order.
    f.write(keys.into_iter().rev().map(put).collect()).await;
    f.write(vec![
        Write::Put(Table::Request, text("b"), bytes("2")),
        Write::Put(Table::Request, text("a"), bytes("1")),
        Write::Put(Table::Attempt, RecordKey::Part(2, 1), bytes("4")),
        Write::Put(Table::Attempt, RecordKey::Part(1, 9), bytes("3")),
    ])
    .await;

    let (mut seen, mut after) = (vec![], None);
    loop {
        let page = f.read(Read::Scan(Table::Job, after.clone(), 2)).await.scanned();
        assert!(page.len() <= 2);
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        seen.extend(page);
    }
    let expected: Vec<_> = keys.iter().map(|number| (RecordKey::Number(*number), bytes("job"))).collect();
    assert_eq!(seen, expected);

    // What it goes on after need not be there.
    let beyond = f.read(Read::Scan(Table::Job, Some(RecordKey::Number(100)), 1)).await.scanned();
    assert_eq!(beyond, [(RecordKey::Number(255), bytes("job"))]);
    let requests = f.read(Read::Scan(Table::Request, None, 10)).await.scanned();
    assert_eq!(requests, [(text("a"), bytes("1")), (text("b"), bytes("2"))]);
    let attempts = f.read(Read::Scan(Table::Attempt, None, 10)).await.scanned();
    let expected = [(RecordKey::Part(1, 9), bytes("3")), (RecordKey::Part(2, 1), bytes("4"))];
    assert_eq!(attempts, expected);
}

async fn counters_are_sums_that_go_at_zero<E: TestEngine>(mut f: Fixture<E>) {
    let timeout = || Counter::ErrorType("timeout".into());
    f.write(vec![
        Write::Add(Counter::Total(0), 5),
        Write::Add(Counter::Total(0), -7),
        Write::Add(Counter::Total(2), 1),
        Write::Add(timeout(), 1),
        Write::Add(Counter::Succeeded(1), 3),
        Write::Add(Counter::Succeeded(2), 4),
    ])
    .await;
    let totals = vec![(Counter::Total(0), -2), (Counter::Total(2), 1)];
    assert_eq!(sorted(f.read(Read::Counters(CounterGroup::Totals)).await), totals);
    let types = f.read(Read::Counters(CounterGroup::ErrorTypes)).await.counters();
    assert_eq!(types, [(timeout(), 1)]);
    let succeeded = f.read(Read::Counters(CounterGroup::Succeeded(2))).await.counters();
    assert_eq!(succeeded, [(Counter::Succeeded(2), 4)]);

    f.write(vec![Write::Add(timeout(), -1), Write::Add(Counter::Total(2), -1), Write::Add(Counter::Succeeded(1), -3)])
        .await;
    assert_eq!(f.read(Read::Counters(CounterGroup::ErrorTypes)).await.counters(), []);
    assert_eq!(sorted(f.read(Read::Counters(CounterGroup::Totals)).await), totals[..1]);
    assert_eq!(f.read(Read::Counters(CounterGroup::Succeeded(1))).await.counters(), []);
}

fn sorted(found: Found) -> Vec<(Counter, i64)> {
    let mut counters = found.counters();
    counters.sort();
    counters
}

async fn marks_only_rise<E: TestEngine>(mut f: Fixture<E>) {
    for mark in [Mark::LastSuccess(3), Mark::LastClaim] {
        assert_eq!(f.read(Read::Mark(mark)).await, Found::Score(None));
        for (raised, stands) in [(50, 50), (40, 50), (60, 60)] {
            f.write(vec![Write::Raise(mark, Timestamp::from_millis(raised))]).await;
            assert_eq!(f.read(Read::Mark(mark)).await, Found::Score(Some(stands)));
        }
    }
    assert_eq!(f.read(Read::Mark(Mark::LastSuccess(4))).await, Found::Score(None));
}

on_every_engine!(
    every_table_keeps_replaces_and_deletes_records,
    records_hold_any_bytes_and_none,
    reads_are_answered_in_the_order_asked,
    queues_do_not_see_each_other,
    parts_of_a_number_are_deleted_together,
    lengths_of_tables_count_records_once,
    a_scan_pages_through_a_table_by_key,
    counters_are_sums_that_go_at_zero,
    marks_only_rise,
);
