//! What limits a take: bytes, leases and probes.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, OwnedTake, history_record, job_record, name, numbers_of, position};
use bytes::Bytes;
use redrive::domain::Timestamp;
use redrive::store::storage::{
    Entry, GroupState, HAS_HISTORY_TAG, Index, Len, Member, NO_GROUP, Position, Probes, RecordKey, Rule, Stop,
    StoppedBy, Table, Version, Write, flag,
};

/// Ready jobs 1, 2, … of these sizes.
async fn add_sizes<E: TestEngine>(f: &mut Fixture<E>, sizes: &[u32]) {
    for (number, size) in (1..).zip(sizes) {
        f.write(vec![
            Write::Put(Table::Job, RecordKey::Number(number), job_record(*size, 0)),
            Write::Insert(Index::Ready, Entry::ready(position(0, 1, number))),
        ])
        .await;
    }
}

async fn the_bytes_of_a_take_are_bounded<E: TestEngine>(mut f: Fixture<E>) {
    add_sizes(&mut f, &[40, 60, 1, 90]).await;
    let mut take = f.plain_take(10);
    take.bytes = 100;
    let taken = f.take(&take).await;
    // Exactly full; the next one is too much, and none behind it is tried.
    assert_eq!((numbers_of(&taken), taken.bytes_full, taken.ready), (vec![1, 2], true, 2));
    take.bytes = 90;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.bytes_full), (vec![3], true));
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.bytes_full), (vec![4], false));
}

async fn bytes_are_not_full_where_the_jobs_are_enough<E: TestEngine>(mut f: Fixture<E>) {
    add_sizes(&mut f, &[40, 90]).await;
    let mut take = f.plain_take(1);
    take.bytes = 50;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.bytes_full), (vec![1], false));
}

async fn the_first_job_may_be_exempt_from_the_bytes<E: TestEngine>(mut f: Fixture<E>) {
    add_sizes(&mut f, &[500, 0, 1]).await;
    let mut take = f.plain_take(10);
    take.bytes = 100;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.bytes_full), (vec![], true));
    take.first_fits = true;
    let taken = f.take(&take).await;
    assert_eq!(numbers_of(&taken)[0], 1);
    assert!(taken.bytes_full);
    assert!(f.jobs(Index::Ready).await.contains(&3));
}

async fn a_history_counts_where_the_tag_names_it<E: TestEngine>(mut f: Fixture<E>) {
    add_sizes(&mut f, &[40]).await;
    let tagged = Position { tag: HAS_HISTORY_TAG, ..position(0, 2, 2) };
    f.write(vec![
        Write::Put(Table::Job, RecordKey::Number(2), job_record(40, 0)),
        Write::Put(Table::History, RecordKey::Number(1), history_record(1_000, 0, 1, 1)),
        Write::Put(Table::History, RecordKey::Number(2), history_record(21, 0, 1, 1)),
        Write::Insert(Index::Ready, Entry::ready(tagged)),
    ])
    .await;
    let mut take = f.plain_take(2);
    take.bytes = 100;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.bytes_full), (vec![1], true));
    take.bytes = 61;
    assert_eq!(numbers_of(&f.take(&take).await), [2]);
}

async fn a_job_without_a_record_has_no_size<E: TestEngine>(mut f: Fixture<E>) {
    f.write(vec![
        Write::Insert(Index::Ready, Entry::ready(position(0, 1, 1))),
        Write::Insert(Index::Ready, Entry::ready(position(0, 1, 2))),
        Write::Put(Table::Job, RecordKey::Number(2), Bytes::from_static(b"\0\0")),
    ])
    .await;
    let mut take = f.plain_take(5);
    take.bytes = 0;
    let taken = f.take(&take).await;
    assert_eq!(numbers_of(&taken), [1, 2]);
    assert_eq!(taken.jobs[0].job, None);
}

async fn leases_are_bounded_over_all_queues<E: TestEngine>(mut f: Fixture<E>) {
    if !E::BOUNDS_LEASES {
        return;
    }
    f.register("other").await;
    f.add_jobs([1, 2, 3, 4]).await;
    let mut take = f.plain_take(1);
    take.max_leases = 2;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.leases_full), (vec![1], false));
    f.queue = name("other");
    f.add_jobs([11, 12]).await;
    take.jobs = 5;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.leases_full, taken.ready), (vec![11], true, 1));
    f.queue = name("jobs");
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.leases_full), (vec![], true));

    // One ends, another is only rewritten.
    let (ends, lease) = (f.at(50), Bytes::from_static(b"lease"));
    f.write(vec![Write::PutLease { number: 1, expires_at: ends, record: lease }]).await;
    assert!(f.take(&take).await.leases_full);
    f.write(vec![Write::Delete(Table::Lease, RecordKey::Number(1))]).await;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.leases_full), (vec![2], true));
    // With no job there is nothing that the bound holds back.
    take.max_leases = 3;
    assert_eq!(numbers_of(&f.take(&take).await), [3]);
    f.write(vec![Write::Remove(Index::Ready, Entry::ready(position(0, 4, 4)))]).await;
    assert!(!f.take(&take).await.leases_full);
}

/// A take under a rule of this epoch, whose leases are probes.
async fn probing<E: TestEngine>(f: &mut Fixture<E>, epoch: u32, most: u64) -> OwnedTake {
    let version = Version { state: GroupState::NeedsRule, epoch, random: [5; 8] };
    let record = Bytes::copy_from_slice(&version.bytes());
    f.write(vec![Write::Put(Table::Version, RecordKey::Group(NO_GROUP), record)]).await;
    let probes = Some(Probes { most, started_after: Timestamp::from_millis(0) });
    let rule = Rule { version, flags: flag::PROBE, probes, ..Rule::default() };
    OwnedTake { rule, ..f.plain_take(10) }
}

/// What a take says whose probes are all out, of which the oldest started then.
fn all_out<E: TestEngine>(f: &mut Fixture<E>, take: &OwnedTake, oldest: Timestamp) -> Vec<Stop> {
    let back = f.now().since(take.rule.probes.unwrap().started_after);
    vec![Stop { group: NO_GROUP, by: StoppedBy::Probes, until: Some(oldest.after(back)) }]
}

async fn at_most_so_many_probes_run<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1, 2, 3, 4]).await;
    let start = f.now();
    let take = probing(&mut f, 6, 2).await;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.stops), (vec![1, 2], all_out(&mut f, &take, start)));
    let probe = |number| Entry { score: start.millis(), member: Member::Probe { epoch: 6, number } };
    assert_eq!(f.entries(Index::Probe).await, [probe(1), probe(2)]);

    f.pass(10);
    let mut take = probing(&mut f, 6, 2).await;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.stops), (vec![], all_out(&mut f, &take, start)));
    assert_eq!(taken.ready, 2);
    // One of them ends.
    f.write(vec![Write::Remove(Index::Probe, probe(1))]).await;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.stops), (vec![3], all_out(&mut f, &take, start)));
    // The oldest of those that run.
    f.write(vec![Write::Remove(Index::Probe, probe(2))]).await;
    take.rule.probes = Some(Probes { most: 1, started_after: Timestamp::from_millis(0) });
    let now = f.now();
    assert_eq!(f.take(&take).await.stops, all_out(&mut f, &take, now));
    assert_eq!(f.len(Len::Index(Index::Probe)).await, 1);
    // As many as were asked for: nothing was stopped. Nor is it where no job is ready.
    take.rule.probes = Some(Probes { most: 2, started_after: Timestamp::from_millis(0) });
    take.jobs = 1;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.stops), (vec![4], vec![]));
    assert_eq!(f.take(&take).await.stops, []);
}

async fn probes_of_another_epoch_do_not_count<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1, 2]).await;
    let take = probing(&mut f, 6, 1).await;
    assert_eq!(numbers_of(&f.take(&take).await), [1]);
    let take = probing(&mut f, 7, 1).await;
    assert_eq!(numbers_of(&f.take(&take).await), [2]);
    let members: Vec<_> = f.entries(Index::Probe).await.into_iter().map(|e| e.member).collect();
    let expected = [(6, 1), (7, 2)].map(|(epoch, number)| Member::Probe { epoch, number });
    assert_eq!(members, expected);
}

async fn probes_that_started_too_long_ago_do_not_count<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1, 2, 3]).await;
    let take = probing(&mut f, 6, 1).await;
    let start = f.now();
    assert_eq!(numbers_of(&f.take(&take).await), [1]);
    f.pass(1_000);
    let mut take = probing(&mut f, 6, 1).await;
    let before = Timestamp::from_millis(start.millis() - 1);
    take.rule.probes = Some(Probes { most: 1, started_after: before });
    assert_eq!(f.take(&take).await.stops, all_out(&mut f, &take, start));
    take.rule.probes = Some(Probes { most: 1, started_after: start });
    assert_eq!(numbers_of(&f.take(&take).await), [2]);
    // The old one is not the one that is told.
    let now = f.now();
    assert_eq!(f.take(&take).await.stops, all_out(&mut f, &take, now));
}

async fn no_probe_at_all_may_start<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1]).await;
    let take = probing(&mut f, 6, 0).await;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.ready), (vec![], 1));
    assert_eq!(taken.stops, [Stop { group: NO_GROUP, by: StoppedBy::Probes, until: None }]);
}

async fn all_probes_are_out_and_jobs_are_promoted_all_the_same<E: TestEngine>(mut f: Fixture<E>) {
    let start = f.now();
    f.add_jobs([1]).await;
    let take = probing(&mut f, 6, 1).await;
    f.take(&take).await;
    f.write(vec![
        Write::Insert(Index::Retrying, Entry::waiting(position(0, start.millis(), 2))),
        Write::Insert(Index::Retrying, Entry::waiting(position(0, start.millis() + 5, 3))),
    ])
    .await;
    let taken = f.take(&take).await;
    assert_eq!((taken.promoted, taken.ready, taken.jobs.len()), (1, 1, 0));
    assert_eq!(taken.stops, all_out(&mut f, &take, start));
    assert_eq!(taken.next_due, Some(f.at(5)));
}

async fn leases_without_a_bound_of_probes_are_none<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1, 2]).await;
    let mut take = probing(&mut f, 6, 1).await;
    f.take(&take).await;
    take.rule.probes = None;
    take.rule.flags = 0;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.stops), (vec![2], vec![]));
    assert_eq!(f.jobs(Index::Probe).await, [1]);
}

async fn a_probe_passes_over_the_job_that_failed<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1, 2]).await;
    let mut take = probing(&mut f, 6, 1).await;
    take.rule.pass_over = Some(1);
    assert_eq!(numbers_of(&f.take(&take).await), [2]);
}

on_every_engine!(
    the_bytes_of_a_take_are_bounded,
    bytes_are_not_full_where_the_jobs_are_enough,
    the_first_job_may_be_exempt_from_the_bytes,
    a_history_counts_where_the_tag_names_it,
    a_job_without_a_record_has_no_size,
    leases_are_bounded_over_all_queues,
    at_most_so_many_probes_run,
    probes_of_another_epoch_do_not_count,
    probes_that_started_too_long_ago_do_not_count,
    no_probe_at_all_may_start,
    all_probes_are_out_and_jobs_are_promoted_all_the_same,
    leases_without_a_bound_of_probes_are_none,
    a_probe_passes_over_the_job_that_failed,
);
