//! Which jobs a take takes, and when it takes none.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, NO_JOBS, name, numbers_of, position};
use bytes::Bytes;
use redrive::domain::Timestamp;
use redrive::store::storage::{
    Entry, GroupState, Index, Len, NO_GROUP, RecordKey, Rule, Table, Taken, Version, WHOLE_QUEUE, Write,
};

async fn the_first_of_ready_are_taken<E: TestEngine>(mut f: Fixture<E>) {
    for at in [position(1, 5, 1), position(0, 9, 2), position(1, 4, 3), position(0, 9, 4)] {
        f.add_ready(at).await;
    }
    let taken = f.take_jobs(3).await;
    assert_eq!(numbers_of(&taken), [2, 4, 3]);
    assert_eq!((taken.ready, taken.promoted), (1, 0));
    assert_eq!(f.jobs(Index::Ready).await, [1]);
    assert_eq!(f.jobs(Index::Leased).await, [2, 3, 4]);
    assert_eq!(f.len(Len::Table(Table::Lease)).await, 3);
    assert_eq!(f.len(Len::Table(Table::Job)).await, 4);

    assert_eq!(numbers_of(&f.take_jobs(3).await), [1]);
    let nothing = f.take_jobs(3).await;
    assert!(nothing.jobs.is_empty() && nothing.ready == 0);
    let Taken { bytes_full, leases_full, changed, stops, .. } = nothing;
    assert!(!bytes_full && !leases_full && changed.is_empty() && stops.is_empty());
}

async fn a_take_is_of_one_queue<E: TestEngine>(mut f: Fixture<E>) {
    f.register("other").await;
    f.add_jobs([1]).await;
    f.queue = name("other");
    f.add_jobs([2]).await;
    assert_eq!(numbers_of(&f.take_jobs(5).await), [2]);
    f.queue = name("jobs");
    assert_eq!(numbers_of(&f.take_jobs(5).await), [1]);
}

async fn what_is_due_is_promoted_and_taken<E: TestEngine>(mut f: Fixture<E>) {
    let now = f.now().millis();
    f.write(vec![
        Write::Insert(Index::Retrying, Entry::waiting(position(1, now - 3, 1))),
        Write::Insert(Index::Scheduled, Entry::waiting(position(0, now, 2))),
        Write::Insert(Index::Scheduled, Entry::waiting(position(0, now + 1, 3))),
        Write::Insert(Index::Ready, Entry::ready(position(0, now - 1, 4))),
    ])
    .await;
    let taken = f.take_jobs(2).await;
    assert_eq!(numbers_of(&taken), [4, 2]);
    assert_eq!((taken.promoted, taken.ready), (2, 1));
    assert_eq!(f.jobs(Index::Ready).await, [1]);
    assert_eq!(f.jobs(Index::Retrying).await, NO_JOBS);
    assert_eq!(f.jobs(Index::Scheduled).await, [3]);
}

async fn promotion_has_a_limit_for_each_index<E: TestEngine>(mut f: Fixture<E>) {
    let now = f.now().millis();
    for number in 1..=3 {
        let at = |job| Entry::waiting(position(0, now - 10 + number, job));
        f.write(vec![Write::Insert(Index::Retrying, at(number)), Write::Insert(Index::Scheduled, at(number + 10))])
            .await;
    }
    let mut take = f.plain_take(1);
    take.promote = 2;
    let taken = f.take(&take).await;
    assert_eq!((taken.promoted, taken.ready), (4, 3));
    assert_eq!(f.jobs(Index::Retrying).await, [3]);
    assert_eq!(f.jobs(Index::Scheduled).await, [13]);
    take.promote = 0;
    assert_eq!(f.take(&take).await.promoted, 0);
}

async fn the_first_due_time_is_told_where_jobs_are_missing<E: TestEngine>(mut f: Fixture<E>) {
    let now = f.now().millis();
    f.add_jobs([1, 2]).await;
    let retry = Entry::waiting(position(0, now + 50, 3));
    f.write(vec![
        Write::Insert(Index::Scheduled, Entry::waiting(position(0, now + 90, 4))),
        Write::Insert(Index::Retrying, retry.clone()),
    ])
    .await;
    let due = |millis| Some(Timestamp::from_millis(now + millis));
    assert_eq!(f.take_jobs(1).await.next_due, None);
    assert_eq!(f.take_jobs(1).await.next_due, None);
    assert_eq!(f.take_jobs(1).await.next_due, due(50));
    f.write(vec![Write::Remove(Index::Retrying, retry)]).await;
    f.add_jobs([5]).await;
    let taken = f.take_jobs(2).await;
    assert_eq!((numbers_of(&taken), taken.next_due), (vec![5], due(90)));
    f.pass(90);
    let taken = f.take_jobs(2).await;
    assert_eq!((numbers_of(&taken), taken.next_due), (vec![4], None));

    // What is due and was not promoted is due at its own time.
    f.write(vec![Write::Insert(Index::Scheduled, Entry::waiting(position(0, now, 6)))]).await;
    let mut take = f.plain_take(1);
    take.promote = 0;
    assert_eq!(f.take(&take).await.next_due, due(0));
}

async fn another_version_takes_nothing<E: TestEngine>(mut f: Fixture<E>) {
    let now = f.now().millis();
    f.add_jobs([1]).await;
    f.write(vec![Write::Insert(Index::Scheduled, Entry::waiting(position(0, now, 2)))]).await;
    let new = Version::default();
    let version = Version { state: GroupState::Free, epoch: 3, random: [9; 8] };
    let others = [
        Version { epoch: 4, ..version },
        Version { state: GroupState::Held, ..version },
        Version { random: [8; 8], ..version },
        new,
    ];
    for group in [WHOLE_QUEUE, NO_GROUP] {
        let key = RecordKey::Group(group);
        let record = Bytes::copy_from_slice(&version.bytes());
        f.write(vec![Write::Put(Table::Version, key.clone(), record)]).await;
        for other in others {
            let mut take = f.plain_take(5);
            match group {
                WHOLE_QUEUE => take.whole.version = other,
                _ => take.rule.version = other,
            }
            let taken = f.take(&take).await;
            assert_eq!((numbers_of(&taken), &taken.changed[..]), (vec![], &[group][..]), "{other:?}");
            // Of another queue nothing is known; of another group what is due becomes ready all the same.
            let promoted = f.jobs(Index::Ready).await.len() - 1;
            assert_eq!(promoted, usize::from(group == NO_GROUP), "{other:?}");
        }
        f.write(vec![Write::Delete(Table::Version, key)]).await;
    }
    // A version that is not there is as new.
    let mut take = f.plain_take(5);
    take.rule.version = version;
    assert_eq!(f.take(&take).await.changed, [NO_GROUP]);
    take.rule.version = new;
    let taken = f.take(&take).await;
    assert!(taken.changed.is_empty());
    assert_eq!(numbers_of(&taken), [1, 2]);
}

/// The state is the verb's business: a rule for this very version was handed in.
async fn a_rule_for_this_version_takes_in_any_state<E: TestEngine>(mut f: Fixture<E>) {
    let states = [GroupState::Free, GroupState::NeedsRule, GroupState::Held];
    for (number, state) in (1..).zip(states) {
        let version = Version { state, epoch: 3, random: [number as u8; 8] };
        let record = Bytes::copy_from_slice(&version.bytes());
        f.write(vec![
            Write::Put(Table::Version, RecordKey::Group(WHOLE_QUEUE), record.clone()),
            Write::Put(Table::Version, RecordKey::Group(NO_GROUP), record),
        ])
        .await;
        f.add_jobs([number]).await;
        let mut take = f.plain_take(5);
        take.whole.version = version;
        take.rule = Rule { version, ..Rule::default() };
        let taken = f.take(&take).await;
        assert_eq!((numbers_of(&taken), taken.changed), (vec![number], vec![]), "{state:?}");
    }
}

async fn a_job_is_passed_over_while_there_is_another<E: TestEngine>(mut f: Fixture<E>) {
    f.add_jobs([1, 2, 3]).await;
    let mut take = f.plain_take(1);
    take.rule.pass_over = Some(1);
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.ready), (vec![2], 2));
    // Not even if fewer are taken than asked.
    take.jobs = 5;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.ready), (vec![3], 1));
    // It is the only one.
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.ready), (vec![1], 0));

    f.add_jobs([4, 5, 6]).await;
    take.rule.pass_over = Some(5);
    take.jobs = 2;
    assert_eq!(numbers_of(&f.take(&take).await), [4, 6]);
    f.add_jobs([7]).await;
    take.rule.pass_over = Some(99);
    assert_eq!(numbers_of(&f.take(&take).await), [5, 7]);
}

async fn a_promoted_job_counts_as_another<E: TestEngine>(mut f: Fixture<E>) {
    let now = f.now().millis();
    f.add_jobs([1]).await;
    f.write(vec![Write::Insert(Index::Retrying, Entry::waiting(position(9, now, 2)))]).await;
    let mut take = f.plain_take(1);
    take.rule.pass_over = Some(1);
    assert_eq!(numbers_of(&f.take(&take).await), [2]);
}

on_every_engine!(
    the_first_of_ready_are_taken,
    a_take_is_of_one_queue,
    what_is_due_is_promoted_and_taken,
    promotion_has_a_limit_for_each_index,
    the_first_due_time_is_told_where_jobs_are_missing,
    another_version_takes_nothing,
    a_rule_for_this_version_takes_in_any_state,
    a_job_is_passed_over_while_there_is_another,
    a_promoted_job_counts_as_another,
);
