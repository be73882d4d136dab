//! The leases that a take writes, and the records that it returns.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, bytes, history_record, job_record, position};
use bytes::{BufMut, Bytes};
use redrive::domain::{Rng, Timestamp};
use redrive::store::storage::{
    Entry, Fence, GroupState, HAS_HISTORY_TAG, Index, LEASE_FENCE, LEASE_TAIL, NO_GROUP, Position, RecordKey, Table,
    TakenJob, Version, Write, flag,
};

fn tagged(number: u64) -> Position {
    Position { tag: HAS_HISTORY_TAG, ..position(3, 500 + number, number) }
}

async fn a_new_job_is_leased_byte_for_byte<E: TestEngine>(mut f: Fixture<E>) {
    let version = Version { state: GroupState::Free, epoch: 0x0102_0304, random: [9; 8] };
    let record = Bytes::copy_from_slice(&version.bytes());
    let at = position(3, 500, 0x0a0b_0c0d_0e0f);
    f.write(vec![
        Write::Put(Table::Version, RecordKey::Group(NO_GROUP), record),
        Write::Put(Table::Job, RecordKey::Number(at.number), job_record(10, flag::OWN_ID)),
        Write::Insert(Index::Ready, Entry::ready(at)),
    ])
    .await;
    let mut take = f.plain_take(1);
    take.rule.version = version;
    take.rule.flags = flag::LOOK;
    take.lease.seed = 0xdead_beef;
    let TakenJob { number, lease, attempt, position, .. } = f.take(&take).await.jobs.remove(0);
    assert_eq!((number, attempt, position), (at.number, 1, at));

    let mut expected = Vec::new();
    expected.put_u32(1);
    expected.put_u64(Rng::new(0xdead_beef).next_u64());
    expected.put_u8(flag::OWN_ID | flag::LOOK);
    expected.put_u32(0x0102_0304);
    expected.put_uint(f.now().millis(), 6);
    expected.put_u32(30_000);
    assert_eq!(lease[..], expected[..]);
    expected.put_u32(1);
    expected.put_slice(&at.bytes());
    expected.put_slice(b"tail");
    let key = RecordKey::Number(at.number);
    let record = f.record(Table::Lease, key.clone()).await.unwrap();
    assert_eq!(record, expected);
    assert_eq!((&record[..LEASE_FENCE], &record[LEASE_TAIL..]), (&lease[..], &b"tail"[..]));
    let expires = f.at(30_000).millis();
    assert_eq!(f.entries(Index::Leased).await, [Entry::number(expires, at.number)]);
    // What the token of the lease holds is a fence on it.
    let fence = Fence::Begins(Table::Lease, key, Bytes::copy_from_slice(&lease));
    assert_eq!(f.failing(vec![fence]).await, []);
}

async fn the_start_and_the_end_are_those_handed_in<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1]).await;
    let mut take = f.plain_take(1);
    take.lease.started_at = Timestamp::from_millis(0x0607_0809_0a0b);
    take.lease.expires_at = Timestamp::from_millis(77);
    take.lease.duration_ms = u32::MAX;
    take.lease.tail = b"";
    let lease = f.take(&take).await.jobs.remove(0).lease;
    assert_eq!(lease[17..23], [6, 7, 8, 9, 10, 11]);
    assert_eq!(lease[23..], [255; 4]);
    assert_eq!(f.entries(Index::Leased).await, [Entry::number(77, 1)]);
    let record = f.record(Table::Lease, RecordKey::Number(1)).await.unwrap();
    assert_eq!(record.len(), LEASE_TAIL);
}

async fn nonces_follow_from_the_seed_in_the_order_of_jobs<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1, 2, 3, 4]).await;
    let mut take = f.plain_take(3);
    take.lease.seed = 42;
    // A job that is passed over uses up no nonce.
    take.rule.pass_over = Some(2);
    let taken = f.take(&take).await;
    let mut rng = Rng::new(42);
    for (job, number) in taken.jobs.iter().zip([1, 3, 4]) {
        assert_eq!((job.number, &job.lease[4..12]), (number, &rng.next_u64().to_be_bytes()[..]));
    }
}

async fn a_history_numbers_the_delivery_and_the_attempt<E: TestEngine>(mut f: Fixture<E>) {
    let history = history_record(5, flag::HISTORY | flag::RETRIED, 6, 4);
    f.write(vec![
        Write::Put(Table::Job, RecordKey::Number(1), job_record(10, flag::LOOK)),
        Write::Put(Table::History, RecordKey::Number(1), history.clone()),
        Write::Insert(Index::Ready, Entry::ready(tagged(1))),
    ])
    .await;
    let job = f.take_jobs(1).await.jobs.remove(0);
    assert_eq!(job.lease[..4], 7u32.to_be_bytes());
    assert_eq!(job.attempt, 5);
    assert_eq!(job.lease[12], flag::HISTORY | flag::RETRIED | flag::LOOK);
    assert_eq!(job.position, tagged(1));
    assert_eq!((job.job, job.history), (Some(job_record(10, flag::LOOK)), Some(history)));
    let record = f.record(Table::Lease, RecordKey::Number(1)).await.unwrap();
    assert_eq!(record[LEASE_FENCE..LEASE_FENCE + 4], 5u32.to_be_bytes());
    assert_eq!(Position::read(&record[LEASE_FENCE + 4..LEASE_TAIL]), Some(tagged(1)));
}

async fn without_the_tag_no_history_is_looked_for<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1]).await;
    f.write(vec![
        Write::Put(Table::History, RecordKey::Number(1), history_record(5, flag::HISTORY, 6, 4)),
        Write::Put(Table::Failure, RecordKey::Part(1, 1), bytes("failure")),
    ])
    .await;
    let job = f.take_jobs(1).await.jobs.remove(0);
    assert_eq!((job.history, job.last_failure, job.attempt), (None, None, 1));
    assert_eq!(job.lease[..4], 1u32.to_be_bytes());
    assert_eq!(job.lease[12], 0);
}

async fn a_history_that_is_missing_or_damaged_counts_as_none<E: TestEngine>(mut f: Fixture<E>) {
    f.write(vec![
        Write::Put(Table::Job, RecordKey::Number(1), job_record(10, 0)),
        Write::Put(Table::Job, RecordKey::Number(2), job_record(10, 0)),
        Write::Put(Table::History, RecordKey::Number(2), bytes("too short")),
        Write::Insert(Index::Ready, Entry::ready(tagged(1))),
        Write::Insert(Index::Ready, Entry::ready(tagged(2))),
    ])
    .await;
    let jobs = f.take_jobs(2).await.jobs;
    assert_eq!((jobs[0].number, jobs[1].number), (1, 2));
    for job in &jobs {
        assert_eq!((&job.lease[..4], job.attempt), (&1u32.to_be_bytes()[..], 1));
    }
    assert_eq!(jobs[0].history, None);
    assert_eq!(jobs[1].history, Some(bytes("too short")));
}

async fn the_last_failure_or_else_the_first_comes_along<E: TestEngine>(mut f: Fixture<E>) {
    for number in 1..=3 {
        f.write(vec![
            Write::Put(Table::Job, RecordKey::Number(number), job_record(10, 0)),
            Write::Put(Table::History, RecordKey::Number(number), history_record(5, 4, 1, 1)),
            Write::Insert(Index::Ready, Entry::ready(tagged(number))),
        ])
        .await;
    }
    f.write(vec![
        Write::Put(Table::Failure, RecordKey::Part(1, 0), bytes("first of 1")),
        Write::Put(Table::Failure, RecordKey::Part(1, 1), bytes("last of 1")),
        Write::Put(Table::Failure, RecordKey::Part(2, 0), bytes("first of 2")),
    ])
    .await;
    let taken = f.take_jobs(3).await;
    let failures: Vec<_> = taken.jobs.into_iter().map(|job| job.last_failure).collect();
    assert_eq!(failures, [Some(bytes("last of 1")), Some(bytes("first of 2")), None]);
}

async fn a_body_apart_comes_along_where_the_flag_names_it<E: TestEngine>(mut f: Fixture<E>) {
    for (number, traits) in [(1, flag::BODY), (2, 0), (3, flag::BODY)] {
        f.write(vec![
            Write::Put(Table::Job, RecordKey::Number(number), job_record(10, traits)),
            Write::Insert(Index::Ready, Entry::ready(position(0, 1, number))),
        ])
        .await;
    }
    f.write(vec![
        Write::Put(Table::Body, RecordKey::Number(1), bytes("body of 1")),
        Write::Put(Table::Body, RecordKey::Number(2), bytes("body of 2")),
    ])
    .await;
    let jobs = f.take_jobs(3).await.jobs;
    let flags: Vec<_> = jobs.iter().map(|job| job.lease[12]).collect();
    assert_eq!(flags, [flag::BODY, 0, flag::BODY]);
    let bodies: Vec<_> = jobs.into_iter().map(|job| job.body).collect();
    assert_eq!(bodies, [Some(bytes("body of 1")), None, None]);
}

async fn a_job_that_is_taken_again_has_another_lease<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1]).await;
    let first = f.take_jobs(1).await.jobs.remove(0);
    f.write(vec![
        Write::Delete(Table::Lease, RecordKey::Number(1)),
        Write::Put(Table::History, RecordKey::Number(1), history_record(5, flag::HISTORY, 1, 1)),
        Write::Insert(Index::Ready, Entry::ready(tagged(1))),
    ])
    .await;
    let mut take = f.plain_take(1);
    take.lease.seed = 8;
    let second = f.take(&take).await.jobs.remove(0);
    assert_eq!((first.attempt, second.attempt), (1, 2));
    let fence = |job: &TakenJob| {
        let lease = Bytes::copy_from_slice(&job.lease);
        vec![Fence::Begins(Table::Lease, RecordKey::Number(1), lease)]
    };
    assert_eq!(f.failing(fence(&first)).await.len(), 1);
    assert_eq!(f.failing(fence(&second)).await.len(), 0);
}

on_every_engine!(
    a_new_job_is_leased_byte_for_byte,
    the_start_and_the_end_are_those_handed_in,
    nonces_follow_from_the_seed_in_the_order_of_jobs,
    a_history_numbers_the_delivery_and_the_attempt,
    without_the_tag_no_history_is_looked_for,
    a_history_that_is_missing_or_damaged_counts_as_none,
    the_last_failure_or_else_the_first_comes_along,
    a_body_apart_comes_along_where_the_flag_names_it,
    a_job_that_is_taken_again_has_another_lease,
);
