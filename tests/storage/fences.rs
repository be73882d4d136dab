//! Fences: which hold, what those tell that fail, and that nothing is written then.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, NO_JOBS, bytes, position, text};
use bytes::Bytes;
use redrive::domain::Timestamp;
use redrive::store::storage::{
    Applied, Counter, CounterGroup, Entry, Fence, GroupState, Index, Len, Mark, Member, OutcomeSums, Read, RecordKey,
    Table, Version, WHOLE_QUEUE, Was, Write,
};

const ONE: RecordKey = RecordKey::Number(1);
const TWO: RecordKey = RecordKey::Number(2);

async fn with_record<E: TestEngine>(f: &mut Fixture<E>) {
    f.write(vec![Write::Put(Table::History, ONE, bytes("abc"))]).await;
}

async fn begins_compares_the_first_bytes<E: TestEngine>(mut f: Fixture<E>) {
    with_record(&mut f).await;
    let begins = |key, prefix| Fence::Begins(Table::History, key, bytes(prefix));
    for prefix in ["", "a", "abc"] {
        assert_eq!(f.failing(vec![begins(ONE, prefix)]).await, [], "{prefix}");
    }
    for prefix in ["b", "abd", "abcd"] {
        let failed = f.failing(vec![begins(ONE, prefix)]).await;
        assert_eq!(failed, [(0, Was::Record(Some(bytes("abc"))))], "{prefix}");
    }
    for prefix in ["", "a"] {
        let failed = f.failing(vec![begins(TWO, prefix)]).await;
        assert_eq!(failed, [(0, Was::Record(None))], "{prefix}");
    }
}

async fn tell_returns_the_records_as_they_were<E: TestEngine>(mut f: Fixture<E>) {
    with_record(&mut f).await;
    f.write(vec![Write::Put(Table::Key, text("k"), bytes("key"))]).await;
    let tell = |prefix| Fence::Tell(Table::History, ONE, bytes(prefix));
    let fences = vec![Fence::Tell(Table::Key, text("k"), bytes("k")), Fence::Absent(Table::Job, ONE), tell("ab")];
    let writes = vec![Write::Delete(Table::Key, text("k")), Write::Put(Table::History, ONE, bytes("later"))];
    let done = Fixture::<E>::done(f.apply(fences, writes).await);
    assert_eq!(done.told, [bytes("key"), bytes("abc")]);
    assert_eq!(f.failing(vec![tell("ab")]).await, [(0, Was::Record(Some(bytes("later"))))]);
    let missing = Fence::Tell(Table::History, TWO, Bytes::new());
    assert_eq!(f.failing(vec![missing]).await, [(0, Was::Record(None))]);
}

async fn is_compares_the_whole_record<E: TestEngine>(mut f: Fixture<E>) {
    with_record(&mut f).await;
    let is = |key, record| Fence::Is(Table::History, key, bytes(record));
    assert_eq!(f.failing(vec![is(ONE, "abc")]).await, []);
    for record in ["", "ab", "abcd"] {
        let failed = f.failing(vec![is(ONE, record)]).await;
        assert_eq!(failed, [(0, Was::Record(Some(bytes("abc"))))], "{record}");
    }
    assert_eq!(f.failing(vec![is(TWO, "")]).await, [(0, Was::Record(None))]);
}

async fn absent_wants_no_record<E: TestEngine>(mut f: Fixture<E>) {
    with_record(&mut f).await;
    f.write(vec![Write::Put(Table::Body, TWO, Bytes::new())]).await;
    let fences = vec![
        Fence::Absent(Table::History, ONE),
        Fence::Absent(Table::History, TWO),
        Fence::Absent(Table::Body, TWO),
        Fence::Absent(Table::Id, text("abc")),
    ];
    let expected = [(0, Was::Record(Some(bytes("abc")))), (2, Was::Record(Some(Bytes::new())))];
    assert_eq!(f.failing(fences).await, expected);
}

async fn fences_compare_records_of_every_table<E: TestEngine>(mut f: Fixture<E>) {
    let keys = [
        (Table::Queue, RecordKey::Only),
        (Table::Version, RecordKey::Group(WHOLE_QUEUE)),
        (Table::Breaker, RecordKey::Group(0)),
        (Table::Outcomes, RecordKey::Group(0)),
        (Table::Job, RecordKey::Number(9)),
        (Table::Body, RecordKey::Number(9)),
        (Table::Attempt, RecordKey::Part(9, 4)),
        (Table::Failure, RecordKey::Part(9, 1)),
        (Table::Result, RecordKey::Number(9)),
        (Table::Id, text("id")),
        (Table::Key, text("key")),
        (Table::Request, text("request")),
        (Table::Move, RecordKey::Number(9)),
    ];
    let absent = || keys.iter().map(|(table, key)| Fence::Absent(*table, key.clone())).collect();
    let is = || keys.iter().map(|(table, key)| Fence::Is(*table, key.clone(), bytes("record")));
    assert_eq!(f.failing(absent()).await, []);
    let found = f.failing(is().collect()).await;
    assert_eq!(found, (0..keys.len()).map(|at| (at, Was::Record(None))).collect::<Vec<_>>());

    let put = |(table, key): &(_, RecordKey)| Write::Put(*table, key.clone(), bytes("record"));
    f.write(keys.iter().map(put).collect()).await;
    assert_eq!(f.failing(is().collect()).await, []);
    let record = || Was::Record(Some(bytes("record")));
    let found = f.failing(absent()).await;
    assert_eq!(found, (0..keys.len()).map(|at| (at, record())).collect::<Vec<_>>());
}

async fn at_wants_the_member_with_this_score<E: TestEngine>(mut f: Fixture<E>) {
    let at = position(1, 300, 4);
    f.write(vec![
        Write::Insert(Index::Ready, Entry::ready(at)),
        Write::Insert(Index::Scheduled, Entry::waiting(at)),
        Write::Insert(Index::Deadline, Entry::number(70, 4)),
        Write::PutLease { number: 8, expires_at: Timestamp::from_millis(90), record: bytes("l") },
    ])
    .await;
    let holding = vec![
        Fence::At(Index::Ready, Entry::ready(at)),
        Fence::At(Index::Scheduled, Entry::waiting(at)),
        Fence::At(Index::Deadline, Entry::number(70, 4)),
        Fence::At(Index::Leased, Entry::number(90, 8)),
    ];
    assert_eq!(f.failing(holding).await, []);
    let failing = vec![
        Fence::At(Index::Ready, Entry::ready(position(1, 300, 5))),
        Fence::At(Index::Retrying, Entry::waiting(at)),
        Fence::At(Index::Deadline, Entry::number(71, 4)),
        Fence::At(Index::Leased, Entry::number(80, 8)),
        Fence::At(Index::Dead, Entry::number(1, 8)),
    ];
    let expected = [None, None, Some(70), Some(90), None];
    let expected: Vec<_> = expected.into_iter().map(Was::Score).enumerate().collect();
    assert_eq!(f.failing(failing).await, expected);
}

async fn room_is_what_is_there_and_what_comes<E: TestEngine>(mut f: Fixture<E>) {
    const DEPTH: &[Len] = &[Len::Index(Index::Dead), Len::Index(Index::Overflow), Len::Index(Index::Completed)];
    let job = |number| Write::Put(Table::Job, RecordKey::Number(number), bytes("job"));
    f.write((1..=6).map(job).collect()).await;
    f.write(vec![
        Write::AppendDead { index: Index::Dead, number: 1, record: bytes("") },
        Write::AppendDead { index: Index::Overflow, number: 2, record: bytes("") },
        Write::Insert(Index::Completed, Entry::number(5, 3)),
    ])
    .await;
    let room = |of, minus, add, limit| Fence::Room { of, minus, add, limit };
    let jobs = Len::Table(Table::Job);
    for (fence, was) in [
        (room(jobs, &[], 0, 6), None),
        (room(jobs, &[], 0, 5), Some(6)),
        (room(jobs, &[], 2, 8), None),
        (room(jobs, &[], 3, 8), Some(6)),
        (room(jobs, DEPTH, 2, 5), None),
        (room(jobs, DEPTH, 3, 5), Some(3)),
        (room(Len::Table(Table::Dead), &[], 1, 3), None),
        (room(Len::Table(Table::Dead), &[], 1, 2), Some(2)),
        (room(Len::Index(Index::Dead), &[], 1, 2), None),
        (room(Len::Index(Index::Dead), &[], 1, 1), Some(1)),
        (room(jobs, &[Len::Table(Table::Dead)], 1, 4), Some(4)),
    ] {
        let found = f.failing(vec![fence.clone()]).await;
        let expected: Vec<_> = was.map(|len| (0, Was::Len(len))).into_iter().collect();
        assert_eq!(found, expected, "{fence:?}");
    }
}

async fn room_is_compared_before_any_write<E: TestEngine>(mut f: Fixture<E>) {
    let job = |number| Write::Put(Table::Job, RecordKey::Number(number), bytes("job"));
    f.write(vec![job(1)]).await;
    // With what the batch writes itself it would not hold, nor would `Absent`.
    let of = Len::Table(Table::Job);
    let fences = vec![Fence::Room { of, minus: &[], add: 1, limit: 2 }, Fence::Absent(Table::Job, TWO)];
    Fixture::<E>::done(f.apply(fences, vec![job(2)]).await);
    assert_eq!(f.len(of).await, 2);
    // What the batch removes does not make room for it.
    let fences = vec![Fence::Room { of, minus: &[], add: 1, limit: 2 }];
    let writes = vec![Write::Delete(Table::Job, ONE), job(3)];
    assert_eq!(f.apply(fences, writes).await, Applied::Changed(vec![(0, Was::Len(2))]));
}

async fn all_fences_that_fail_are_told<E: TestEngine>(mut f: Fixture<E>) {
    with_record(&mut f).await;
    let at = Entry::number(5, 1);
    let fences = vec![
        Fence::Absent(Table::History, TWO),
        Fence::Is(Table::History, ONE, bytes("ab")),
        Fence::At(Index::Completed, at.clone()),
        Fence::Tell(Table::Job, ONE, bytes("j")),
        Fence::Room { of: Len::Table(Table::Job), minus: &[], add: 1, limit: 1 },
        Fence::Absent(Table::Key, text("k")),
        Fence::Room { of: Len::Table(Table::Job), minus: &[], add: 2, limit: 1 },
        Fence::Begins(Table::Key, text("other"), bytes("")),
    ];
    let expected = vec![
        (1, Was::Record(Some(bytes("abc")))),
        (2, Was::Score(None)),
        (3, Was::Record(None)),
        (6, Was::Len(0)),
        (7, Was::Record(None)),
    ];
    assert_eq!(f.failing(fences).await, expected);
}

async fn a_batch_with_a_failed_fence_writes_nothing<E: TestEngine>(mut f: Fixture<E>) {
    let now = f.now();
    let due = position(0, now.millis(), 5);
    let ends = Timestamp::from_millis(90);
    f.write(vec![
        Write::Put(Table::History, ONE, bytes("abc")),
        Write::Put(Table::Attempt, RecordKey::Part(1, 1), bytes("attempt")),
        Write::PutLease { number: 8, expires_at: ends, record: bytes("lease") },
        Write::Insert(Index::Retrying, Entry::waiting(due)),
        Write::Insert(Index::Completed, Entry::number(5, 3)),
    ])
    .await;
    let writes = vec![
        Write::Delete(Table::History, ONE),
        Write::DeleteParts(Table::Attempt, 1),
        Write::Remove(Index::Completed, Entry::number(5, 3)),
        Write::Put(Table::Job, TWO, bytes("job")),
        Write::Put(Table::Key, text("k"), bytes("key")),
        Write::PutLease { number: 9, expires_at: ends, record: bytes("lease") },
        Write::Extend { number: 8, expires_at: Timestamp::from_millis(500) },
        Write::Insert(Index::Ready, Entry::ready(position(0, 1, 2))),
        Write::AppendDead { index: Index::Dead, number: 4, record: bytes("dead") },
        Write::Add(Counter::Total(0), 1),
        Write::Raise(Mark::LastClaim, now),
        Write::Count { epoch: 0, sums: OutcomeSums::default(), at: now },
        Write::Promote(10),
    ];
    // The last fence alone fails, of each kind once.
    let failing = [
        Fence::Absent(Table::History, ONE),
        Fence::Is(Table::History, ONE, bytes("ab")),
        Fence::Begins(Table::History, ONE, bytes("b")),
        Fence::Tell(Table::History, ONE, bytes("b")),
        Fence::At(Index::Completed, Entry::number(6, 3)),
        Fence::Room { of: Len::Index(Index::Completed), minus: &[], add: 1, limit: 1 },
    ];
    for fence in failing {
        let fences = vec![Fence::Absent(Table::Key, text("k")), Fence::Absent(Table::Job, TWO), fence];
        let applied = f.apply(fences.clone(), writes.clone()).await;
        let Applied::Changed(failed) = applied else { panic!("{applied:?}") };
        assert_eq!(failed.len(), 1, "{fences:?}");
        assert_eq!(failed[0].0, 2, "{fences:?}");

        assert_eq!(f.record(Table::History, ONE).await, Some(bytes("abc")));
        assert!(f.record(Table::Attempt, RecordKey::Part(1, 1)).await.is_some());
        assert_eq!(f.record(Table::Job, TWO).await, None);
        assert_eq!(f.record(Table::Key, text("k")).await, None);
        assert_eq!(f.entries(Index::Leased).await, [Entry::number(90, 8)]);
        assert_eq!(f.entries(Index::Completed).await, [Entry::number(5, 3)]);
        assert_eq!(f.jobs(Index::Retrying).await, [5]);
        assert_eq!(f.jobs(Index::Ready).await, NO_JOBS);
        assert_eq!(f.jobs(Index::Dead).await, NO_JOBS);
        assert_eq!(f.len(Len::Table(Table::Job)).await, 0);
        assert_eq!(f.len(Len::Table(Table::Lease)).await, 1);
        assert_eq!(f.len(Len::Table(Table::Dead)).await, 0);
        assert_eq!(f.read(Read::Counters(CounterGroup::Totals)).await.counters(), []);
        assert_eq!(f.read(Read::Mark(Mark::LastClaim)).await.score(), None);
        assert_eq!(f.read(Read::Sums(0)).await.sums().1, None);
    }
    // The same without it.
    let done = f.write(writes).await;
    assert_eq!((done.ready, done.promoted), (2, 1));
    assert_eq!(f.score(Index::Leased, Member::Number(8)).await, Some(500));
}

async fn versions_are_fenced_as_records<E: TestEngine>(mut f: Fixture<E>) {
    let new = Version::default();
    let held = Version { state: GroupState::Held, epoch: 7, random: [3; 8] };
    assert_eq!(f.failing(vec![new.fence(0), new.fence(WHOLE_QUEUE)]).await, []);
    assert_eq!(f.failing(vec![held.fence(0)]).await, [(0, Was::Record(None))]);
    let record = Bytes::copy_from_slice(&held.bytes());
    f.write(vec![Write::Put(Table::Version, RecordKey::Group(0), record.clone())]).await;
    assert_eq!(f.failing(vec![held.fence(0), new.fence(WHOLE_QUEUE)]).await, []);
    assert_eq!(f.failing(vec![new.fence(0)]).await, [(0, Was::Record(Some(record)))]);
}

on_every_engine!(
    begins_compares_the_first_bytes,
    tell_returns_the_records_as_they_were,
    is_compares_the_whole_record,
    absent_wants_no_record,
    fences_compare_records_of_every_table,
    at_wants_the_member_with_this_score,
    room_is_what_is_there_and_what_comes,
    room_is_compared_before_any_write,
    all_fences_that_fail_are_told,
    a_batch_with_a_failed_fence_writes_nothing,
    versions_are_fenced_as_records,
);
