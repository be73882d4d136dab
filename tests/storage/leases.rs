//! Leases and their expiries.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, bytes};
use redrive::domain::Timestamp;
use redrive::store::storage::{Entry, Fence, Index, Len, Member, RecordKey, Table, Was, Write};

const KEY: RecordKey = RecordKey::Number(8);

fn put(number: u64, expires_at: u64, record: &'static str) -> Write {
    let expires_at = Timestamp::from_millis(expires_at);
    Write::PutLease { number, expires_at, record: bytes(record) }
}

fn extend(number: u64, expires_at: u64) -> Write {
    Write::Extend { number, expires_at: Timestamp::from_millis(expires_at) }
}

async fn a_lease_is_put_with_its_expiry<E: TestEngine>(mut f: Fixture<E>) {
    f.write(vec![put(8, 90, "first"), put(7, 90, "other"), put(6, 95, "third")]).await;
    assert_eq!(f.record(Table::Lease, KEY).await, Some(bytes("first")));
    assert_eq!(f.score(Index::Leased, Member::Number(8)).await, Some(90));
    // The later expiry is 256 s and more away: bytes of numbers are not their order by accident.
    f.write(vec![put(8, 70_000, "second")]).await;
    assert_eq!(f.record(Table::Lease, KEY).await, Some(bytes("second")));
    let leased = [Entry::number(90, 7), Entry::number(95, 6), Entry::number(70_000, 8)];
    assert_eq!(f.entries(Index::Leased).await, leased);
    f.write(vec![put(8, 40, "third")]).await;
    assert_eq!(f.jobs(Index::Leased).await, [8, 7, 6]);
    assert_eq!(f.len(Len::Table(Table::Lease)).await, 3);
    assert_eq!(f.len(Len::Index(Index::Leased)).await, 3);
}

async fn a_lease_that_is_put_as_a_record_keeps_its_expiry<E: TestEngine>(mut f: Fixture<E>) {
    f.write(vec![put(8, 90, "first")]).await;
    f.write(vec![Write::Put(Table::Lease, KEY, bytes("cancel requested"))]).await;
    assert_eq!(f.record(Table::Lease, KEY).await, Some(bytes("cancel requested")));
    assert_eq!(f.entries(Index::Leased).await, [Entry::number(90, 8)]);
    assert_eq!(f.len(Len::Table(Table::Lease)).await, 1);
}

async fn a_deleted_lease_has_no_expiry<E: TestEngine>(mut f: Fixture<E>) {
    f.write(vec![put(8, 90, "lease"), put(9, 90, "other")]).await;
    for _ in 0..2 {
        f.write(vec![Write::Delete(Table::Lease, KEY)]).await;
        assert_eq!(f.record(Table::Lease, KEY).await, None);
        assert_eq!(f.score(Index::Leased, Member::Number(8)).await, None);
        assert_eq!(f.entries(Index::Leased).await, [Entry::number(90, 9)]);
        assert_eq!(f.len(Len::Table(Table::Lease)).await, 1);
        assert_eq!(f.len(Len::Index(Index::Leased)).await, 1);
    }
}

async fn an_expiry_is_only_raised<E: TestEngine>(mut f: Fixture<E>) {
    f.write(vec![put(8, 90, "lease"), put(9, 50, "other")]).await;
    for (asked, ends) in [(100, 100), (60, 100), (100, 100), (101, 101)] {
        let done = f.write(vec![extend(8, asked)]).await;
        assert_eq!(done.raised, [Timestamp::from_millis(ends)]);
        assert_eq!(f.score(Index::Leased, Member::Number(8)).await, Some(ends));
        assert_eq!(f.record(Table::Lease, KEY).await, Some(bytes("lease")));
    }
    let done = f.write(vec![extend(9, 40), extend(8, 200)]).await;
    assert_eq!(done.raised, [50, 200].map(Timestamp::from_millis));
    assert_eq!(f.len(Len::Index(Index::Leased)).await, 2);
}

async fn a_lease_is_rewritten_and_extended_at_once<E: TestEngine>(mut f: Fixture<E>) {
    f.write(vec![put(8, 90, "lease")]).await;
    let fences = vec![Fence::Is(Table::Lease, KEY, bytes("lease"))];
    let writes = vec![Write::Put(Table::Lease, KEY, bytes("with a checkpoint")), extend(8, 120)];
    let done = Fixture::<E>::done(f.apply(fences, writes).await);
    assert_eq!(done.raised, [Timestamp::from_millis(120)]);
    assert_eq!(f.record(Table::Lease, KEY).await, Some(bytes("with a checkpoint")));
    assert_eq!(f.entries(Index::Leased).await, [Entry::number(120, 8)]);
}

/// An expiry that was read must not end a lease that was extended meanwhile.
async fn fences_on_a_lease_and_on_its_expiry<E: TestEngine>(mut f: Fixture<E>) {
    f.write(vec![put(8, 90, "lease")]).await;
    let fences =
        |score| vec![Fence::Is(Table::Lease, KEY, bytes("lease")), Fence::At(Index::Leased, Entry::number(score, 8))];
    assert_eq!(f.failing(fences(90)).await, []);
    f.write(vec![extend(8, 120)]).await;
    assert_eq!(f.failing(fences(90)).await, [(1, Was::Score(Some(120)))]);
    assert_eq!(f.failing(fences(120)).await, []);
    f.write(vec![Write::Delete(Table::Lease, KEY)]).await;
    let gone = [(0, Was::Record(None)), (1, Was::Score(None))];
    assert_eq!(f.failing(fences(120)).await, gone);
    let tell = Fence::Tell(Table::Lease, KEY, bytes("le"));
    assert_eq!(f.failing(vec![tell]).await, [(0, Was::Record(None))]);
}

on_every_engine!(
    a_lease_is_put_with_its_expiry,
    a_lease_that_is_put_as_a_record_keeps_its_expiry,
    a_deleted_lease_has_no_expiry,
    an_expiry_is_only_raised,
    a_lease_is_rewritten_and_extended_at_once,
    fences_on_a_lease_and_on_its_expiry,
);
