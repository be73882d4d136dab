//! Jobs with a breaker key: where they wait, whose turn it is, and what a held group holds.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, NO_JOBS, bytes, job_record, numbers_of};
use bytes::Bytes;
use redrive::domain::Timestamp;
use redrive::store::storage::{
    Entry, Fence, GroupState, Index, LEASE_TAIL, Len, Member, NO_GROUP, Position, Probes, Read, RecordKey, Rule,
    Storage, Table, Taken, Version, Was, Write, epoch_of, flag, group_of,
};

fn position(group: u16, rank: u8, ready_at: u64, number: u64) -> Position {
    Position { group, rank, ready_at: Timestamp::from_millis(ready_at), number, tag: 0 }
}

fn version(group: u16, state: GroupState, transitions: u64) -> Version {
    Version { state, epoch: epoch_of(group, transitions), random: [transitions as u8; 8] }
}

fn put_version(group: u16, version: &Version) -> Write {
    Write::Put(Table::Version, RecordKey::Group(group), Bytes::copy_from_slice(&version.bytes()))
}

fn rule(group: u16, version: Version) -> Rule {
    Rule { group, version, ..Rule::default() }
}

/// Ready jobs: group, rank, time and number.
async fn add<E: TestEngine>(f: &mut Fixture<E>, jobs: &[(u16, u8, u64, u64)]) -> u64 {
    let mut ready = 0;
    for (group, rank, ready_at, number) in jobs {
        let position = position(*group, *rank, *ready_at, *number);
        let insert = Write::Insert(position.ready_index(), Entry::ready(position));
        let job = Write::Put(Table::Job, RecordKey::Number(*number), job_record(10, 0));
        ready = f.write(vec![job, insert]).await.ready;
    }
    ready
}

async fn set<E: TestEngine>(f: &mut Fixture<E>, group: u16, state: GroupState, transitions: u64) -> Version {
    let version = version(group, state, transitions);
    f.write(vec![put_version(group, &version)]).await;
    version
}

/// The epochs of what was taken.
fn epochs(taken: &Taken) -> Vec<u32> {
    let epoch = |lease: &[u8]| u32::from_be_bytes(lease[13..17].try_into().unwrap());
    taken.jobs.iter().map(|job| epoch(&job.lease)).collect()
}

async fn a_group_is_a_range_of_keyed<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, &[(2, 0, 5, 1), (1, 1, 5, 2), (256, 0, 1, 3), (1, 0, 9, 4), (1, 1, 4, 5), (0, 0, 1, 6)]).await;
    assert_eq!(f.jobs(Index::Keyed).await, [4, 5, 2, 1, 3]);
    assert_eq!(f.jobs(Index::Ready).await, [6]);
    assert_eq!((f.len(Len::Index(Index::Keyed)).await, f.len(Len::Index(Index::Ready)).await), (5, 1));
    let entry = Entry::ready(position(1, 1, 4, 5));
    let range =
        |reverse| Read::Range { index: Index::Keyed, after: Some(entry.clone()), up_to: None, limit: 2, reverse };
    let numbers = |entries: Vec<Entry>| entries.iter().filter_map(|entry| entry.member.job()).collect::<Vec<_>>();
    assert_eq!(numbers(f.read(range(false)).await.entries()), [2, 1]);
    assert_eq!(numbers(f.read(range(true)).await.entries()), [4]);
    // Of its group: the others have a line of their own.
    let ahead = |position| Read::Ahead(position, 10);
    for (position, before) in [(position(1, 1, 5, 2), 2), (position(2, 0, 5, 1), 0), (position(256, 9, 9, 9), 1)] {
        assert_eq!(f.read(ahead(position)).await.number(), before, "{position:?}");
    }
    assert_eq!(f.read(Read::Ahead(position(1, 9, 9, 9), 2)).await.number(), 2);

    assert_eq!(f.score(Index::Keyed, entry.member.clone()).await, Some(0));
    assert_eq!(f.failing(vec![Fence::At(Index::Keyed, entry.clone())]).await, []);
    f.write(vec![Write::Remove(Index::Keyed, entry.clone())]).await;
    assert_eq!(f.failing(vec![Fence::At(Index::Keyed, entry)]).await, [(0, Was::Score(None))]);
    assert_eq!(f.jobs(Index::Keyed).await, [4, 2, 1, 3]);
}

async fn what_is_due_goes_to_its_group<E: TestEngine>(mut f: Fixture<E>) {
    let now = f.now().millis();
    for (index, group, number) in [(Index::Scheduled, 2, 1), (Index::Retrying, 0, 2), (Index::Retrying, 1, 3)] {
        let entry = |at| Entry::waiting(position(group, 3, at, number));
        f.write(vec![Write::Insert(index, entry(now))]).await;
        f.write(vec![Write::Insert(index, Entry::waiting(position(group, 0, now + 5, number + 10)))]).await;
    }
    // By time and then by group, as the bytes of positions are.
    assert_eq!(f.jobs(Index::Retrying).await, [2, 3, 12, 13]);
    let done = f.write(vec![Write::Promote(10)]).await;
    assert_eq!((done.promoted, done.ready), (3, 3));
    assert_eq!((f.jobs(Index::Ready).await, f.jobs(Index::Keyed).await), (vec![2], vec![3, 1]));
    f.pass(5);
    let taken = f.take_jobs(4).await;
    assert_eq!((numbers_of(&taken), taken.promoted, taken.ready), (vec![11, 12, 13, 1], 3, 2));
    assert_eq!(f.jobs(Index::Scheduled).await, NO_JOBS);
}

async fn jobs_of_all_groups_have_one_order<E: TestEngine>(mut f: Fixture<E>) {
    // One moment: by number, whatever their bytes are.
    add(&mut f, &[(0, 1, 50, 255), (3, 1, 50, 256), (0, 1, 50, 257), (2, 1, 50, 128), (0, 1, 50, 127)]).await;
    add(&mut f, &[(2, 1, 50, 65_536), (3, 0, 90, 9), (1, 2, 10, 1), (2, 1, 49, 500)]).await;
    let taken = f.take_jobs(7).await;
    assert_eq!(numbers_of(&taken), [9, 500, 127, 128, 255, 256, 257]);
    assert_eq!((taken.ready, &taken.changed[..], &taken.stops[..]), (2, &[][..], &[][..]));
    assert_eq!(taken.jobs[1].position, position(2, 1, 49, 500));
    assert!(taken.jobs.iter().all(|job| job.job.is_some()));
    assert_eq!(numbers_of(&f.take_jobs(7).await), [65_536, 1]);
    assert_eq!(f.take_jobs(7).await.ready, 0);
}

async fn a_held_group_keeps_its_jobs<E: TestEngine>(mut f: Fixture<E>) {
    let held = set(&mut f, 1, GroupState::Held, 4).await;
    assert_eq!(add(&mut f, &[(1, 0, 1, 1), (1, 0, 2, 2)]).await, 0);
    let taken = f.take_jobs(5).await;
    assert_eq!((numbers_of(&taken), taken.ready, taken.changed, taken.stops), (vec![], 0, vec![], vec![]));
    // Others overtake them; then all of `Keyed` is counted.
    assert_eq!(add(&mut f, &[(0, 9, 9, 3)]).await, 1);
    assert_eq!(add(&mut f, &[(2, 9, 9, 4)]).await, 4);
    let taken = f.take_jobs(5).await;
    assert_eq!((numbers_of(&taken), taken.ready), (vec![3, 4], 0));
    // A rule for it takes all the same: a probe.
    let mut take = f.plain_take(5);
    let probes = Some(Probes { most: 1, started_after: Timestamp::from_millis(0) });
    take.others = vec![Rule { flags: flag::PROBE, probes, ..rule(1, held) }];
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), epochs(&taken)), (vec![1], vec![epoch_of(1, 4)]));
    assert_eq!(taken.jobs[0].lease[12] & flag::PROBE, flag::PROBE);
    let probe = Member::Probe { epoch: epoch_of(1, 4), number: 1 };
    assert_eq!(f.score(Index::Probe, probe).await, Some(f.now().millis()));
}

async fn heads_follow_the_versions<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, &[(1, 0, 1, 1), (1, 0, 2, 2), (1, 0, 3, 3), (1, 0, 4, 4)]).await;
    for (state, ready) in
        [(GroupState::Held, 0), (GroupState::NeedsRule, 4), (GroupState::Held, 0), (GroupState::Free, 4)]
    {
        set(&mut f, 1, state, 7).await;
        assert_eq!(f.write(vec![]).await.ready, ready, "{state:?}");
    }
    let taken = f.take_jobs(1).await;
    assert_eq!((numbers_of(&taken), epochs(&taken)), (vec![1], vec![epoch_of(1, 7)]));
    // In one batch with what fills the group, and gone with its version.
    let fifth = Entry::ready(position(2, 0, 1, 5));
    let held = put_version(2, &version(2, GroupState::Held, 1));
    assert_eq!(f.write(vec![Write::Insert(Index::Keyed, fifth), held]).await.ready, 4);
    assert_eq!(numbers_of(&f.take_jobs(9).await), [2, 3, 4]);
    assert_eq!(f.write(vec![Write::Delete(Table::Version, RecordKey::Group(2))]).await.ready, 1);
    assert_eq!(numbers_of(&f.take_jobs(9).await), [5]);
}

async fn heads_follow_the_positions<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, &[(5, 0, 30, 3), (5, 0, 10, 1), (6, 0, 40, 4), (6, 0, 20, 2)]).await;
    f.write(vec![Write::Remove(Index::Keyed, Entry::ready(position(5, 0, 10, 1)))]).await;
    assert_eq!(numbers_of(&f.take_jobs(1).await), [2]);
    assert_eq!(numbers_of(&f.take_jobs(9).await), [3, 4]);
}

async fn a_group_that_needs_a_rule_is_reported_at_its_turn<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, &[(0, 0, 1, 1), (1, 0, 2, 2), (0, 0, 3, 3), (2, 0, 4, 4)]).await;
    let needs = set(&mut f, 1, GroupState::NeedsRule, 2).await;
    set(&mut f, 2, GroupState::NeedsRule, 2).await;
    let taken = f.take_jobs(1).await;
    assert_eq!((numbers_of(&taken), taken.changed), (vec![1], vec![]));
    let taken = f.take_jobs(1).await;
    assert_eq!((numbers_of(&taken), taken.changed), (vec![3], vec![1]));
    let mut take = f.plain_take(1);
    take.others = vec![rule(1, needs)];
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.changed, taken.ready), (vec![2], vec![], 1));
    assert_eq!(f.take(&take).await.changed, [2]);
}

async fn a_rule_of_another_version_takes_nothing_of_its_group<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, &[(1, 0, 1, 1), (0, 0, 2, 2), (2, 0, 3, 3)]).await;
    let old = set(&mut f, 1, GroupState::Free, 2).await;
    set(&mut f, 1, GroupState::Free, 3).await;
    let mut take = f.plain_take(9);
    take.others = vec![rule(1, old), rule(2, version(2, GroupState::Free, 9))];
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.changed), (vec![2], vec![1, 2]));
    assert_eq!(numbers_of(&f.take_jobs(9).await), [1, 3]);
}

async fn each_group_passes_over_its_own<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, &[(1, 0, 1, 1), (1, 0, 2, 2), (2, 0, 3, 3), (0, 0, 4, 4), (0, 0, 5, 5)]).await;
    let mut take = f.plain_take(2);
    take.rule.pass_over = Some(4);
    let over = |group, number| Rule { pass_over: Some(number), ..rule(group, Version::default()) };
    take.others = vec![over(1, 1), over(2, 3)];
    // 3 is the only one of its group.
    assert_eq!(numbers_of(&f.take(&take).await), [2, 3]);
    assert_eq!(numbers_of(&f.take(&take).await), [1, 5]);
}

async fn leases_are_known_by_their_group<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, &[(2, 0, 1, 1), (1, 0, 2, 2), (0, 0, 3, 3)]).await;
    f.take_jobs(9).await;
    let (ends, at) = (f.at(900), position(300, 0, 1, 9));
    let record: Bytes = [&[7; LEASE_TAIL - Position::LENGTH][..], &at.bytes(), b"tail"].concat().into();
    f.write(vec![Write::PutLease { number: 9, expires_at: ends, record: record.clone() }]).await;
    let leased = [Entry::number(1, 2), Entry::number(2, 1), Entry::number(300, 9)];
    assert_eq!(f.entries(Index::LeasedByGroup).await, leased);
    assert_eq!((f.len(Len::Index(Index::Leased)).await, f.len(Len::Index(Index::LeasedByGroup)).await), (4, 3));
    assert_eq!(f.score(Index::LeasedByGroup, Member::Number(3)).await, None);
    assert_eq!(f.failing(vec![Fence::At(Index::LeasedByGroup, Entry::number(2, 1))]).await, []);
    // Writing it again changes nothing.
    f.write(vec![Write::Put(Table::Lease, RecordKey::Number(9), record.clone())]).await;
    f.write(vec![Write::PutLease { number: 9, expires_at: ends, record }]).await;
    assert_eq!(f.entries(Index::LeasedByGroup).await, leased);
    f.write(vec![
        Write::Delete(Table::Lease, RecordKey::Number(1)),
        Write::Remove(Index::LeasedByGroup, Entry::number(2, 1)),
        Write::Delete(Table::Lease, RecordKey::Number(3)),
    ])
    .await;
    assert_eq!(f.entries(Index::LeasedByGroup).await, [Entry::number(1, 2), Entry::number(300, 9)]);
    assert_eq!(f.failing(vec![Fence::At(Index::LeasedByGroup, Entry::number(2, 1))]).await, [(0, Was::Score(None))]);
}

async fn groups_are_there_after_a_restart<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, &[(1, 0, 1, 1), (2, 0, 2, 2), (0, 0, 3, 3), (2, 0, 4, 4)]).await;
    let now = f.now().millis();
    f.write(vec![
        Write::Put(Table::Group, RecordKey::Text("key".into()), bytes("group")),
        Write::Insert(Index::Scheduled, Entry::waiting(position(2, 0, now + 50, 5))),
    ])
    .await;
    f.take_jobs(1).await;
    set(&mut f, 1, GroupState::Held, 1).await;
    add(&mut f, &[(1, 0, 1, 6)]).await;
    f.reopen().await;
    assert_eq!(f.record(Table::Group, RecordKey::Text("key".into())).await, Some(bytes("group")));
    assert_eq!(f.entries(Index::LeasedByGroup).await, [Entry::number(1, 1)]);
    assert_eq!(f.write(vec![]).await.ready, 4);
    let mut take = f.plain_take(9);
    take.others = vec![Rule { leased: Some(1), ..rule(2, Version::default()) }];
    assert_eq!(numbers_of(&f.take(&take).await), [2, 3]);
    f.pass(50);
    assert_eq!(numbers_of(&f.take_jobs(9).await), [4, 5]);
}

async fn a_queue_with_keyed_jobs_is_not_forgotten<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, &[(1, 0, 1, 1)]).await;
    f.write(vec![Write::Delete(Table::Job, RecordKey::Number(1))]).await;
    let (queue, later) = (f.queue.clone(), f.at(1));
    assert!(!f.storage().forget(&queue, later).await.unwrap());
    f.write(vec![Write::Remove(Index::Keyed, Entry::ready(position(1, 0, 1, 1)))]).await;
    assert!(f.storage().forget(&queue, later).await.unwrap());
}

#[test]
fn an_epoch_carries_its_group() {
    for (group, transitions) in [(NO_GROUP, 0), (1, 0), (1_000, 5), (1_000, (1 << 22) - 1), (7, 1 << 22)] {
        let epoch = epoch_of(group, transitions);
        assert_eq!((group_of(epoch), u64::from(epoch & 0x3f_ffff)), (group, transitions % (1 << 22)));
    }
}

on_every_engine!(
    a_group_is_a_range_of_keyed,
    what_is_due_goes_to_its_group,
    jobs_of_all_groups_have_one_order,
    a_held_group_keeps_its_jobs,
    heads_follow_the_versions,
    heads_follow_the_positions,
    a_group_that_needs_a_rule_is_reported_at_its_turn,
    a_rule_of_another_version_takes_nothing_of_its_group,
    each_group_passes_over_its_own,
    leases_are_known_by_their_group,
    groups_are_there_after_a_restart,
    a_queue_with_keyed_jobs_is_not_forgotten,
);
