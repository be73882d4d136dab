//! Entries of indexes: their order, ranges, and what becomes ready.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, NO_JOBS, bytes, position, text};
use redrive::domain::Timestamp;
use redrive::store::storage::{Entry, HAS_HISTORY_TAG, Index, Len, Member, Position, Read, RecordKey, Table, Write};

fn insert(index: Index, entries: &[Entry]) -> Vec<Write> {
    entries.iter().map(|entry| Write::Insert(index, entry.clone())).collect()
}

async fn entries_go_by_score_and_then_by_number<E: TestEngine>(mut f: Fixture<E>) {
    // 256 is before 3 where bytes are little-endian, and 1,000 before 5 where numbers are texts.
    let ordered = [(1, 9), (5, 3), (5, 256), (5, 70_000), (256, 1), (1_000, 2)];
    let ordered = ordered.map(|(score, number)| Entry::number(score, number));
    let mut shuffled = ordered.clone();
    shuffled.reverse();
    shuffled.swap(1, 3);
    for index in [Index::Completed, Index::Deadline] {
        f.write(insert(index, &shuffled)).await;
        assert_eq!(f.entries(index).await, ordered);
    }
}

async fn equal_scores_go_by_the_bytes_of_members<E: TestEngine>(mut f: Fixture<E>) {
    let entry = |member| Entry { score: 7, member };
    let texts = ["", "B", "a", "aa", "b", "ä"].map(|key| entry(Member::Text(key.into())));
    f.write(insert(Index::FinishedKey, &[3, 1, 5, 0, 4, 2].map(|at| texts[at].clone()))).await;
    assert_eq!(f.entries(Index::FinishedKey).await, texts);

    // By the letters of their tables, then by key.
    let records = [
        (Table::Id, text("z")),
        (Table::Move, RecordKey::Number(3)),
        (Table::Move, RecordKey::Number(256)),
        (Table::Request, text("a")),
        (Table::Request, text("b")),
    ];
    let records = records.map(|(table, key)| entry(Member::Record(table, key)));
    f.write(insert(Index::Expires, &[4, 1, 3, 0, 2].map(|at| records[at].clone()))).await;
    assert_eq!(f.entries(Index::Expires).await, records);

    let probes = [(1, 900), (2, 3), (256, 1)];
    let probes = probes.map(|(epoch, number)| entry(Member::Probe { epoch, number }));
    f.write(insert(Index::Probe, &[2, 0, 1].map(|at| probes[at].clone()))).await;
    assert_eq!(f.entries(Index::Probe).await, probes);
}

async fn ready_goes_by_rank_then_time_then_number<E: TestEngine>(mut f: Fixture<E>) {
    let tagged = Position { tag: HAS_HISTORY_TAG, ..position(1, 300, 5) };
    let ordered = [
        position(0, 900, 9),
        position(1, 200, 300),
        position(1, 300, 4),
        tagged,
        position(1, 300, 256),
        position(200, 1, 1),
    ]
    .map(Entry::ready);
    f.write(insert(Index::Ready, &[5, 3, 1, 0, 4, 2].map(|at| ordered[at].clone()))).await;
    assert_eq!(f.entries(Index::Ready).await, ordered);
}

async fn a_member_has_one_score<E: TestEngine>(mut f: Fixture<E>) {
    let request = || Member::Record(Table::Request, text("a"));
    let mut before = None;
    for score in [50, 70, 70, 60] {
        let entry = Entry { score, member: request() };
        let removed = before.replace(entry.clone()).filter(|before| before.score != score);
        let mut writes: Vec<_> = removed.map(|before| Write::Remove(Index::Expires, before)).into_iter().collect();
        writes.push(Write::Insert(Index::Expires, entry.clone()));
        f.write(writes).await;
        f.write(vec![Write::Insert(Index::Deadline, Entry::number(score, 3))]).await;
        assert_eq!(f.score(Index::Expires, request()).await, Some(score));
        assert_eq!(f.entries(Index::Expires).await, [entry]);
        assert_eq!(f.entries(Index::Deadline).await, [Entry::number(score, 3)]);
        assert_eq!(f.len(Len::Index(Index::Deadline)).await, 1);
    }
}

async fn entries_are_removed_and_may_be_gone_already<E: TestEngine>(mut f: Fixture<E>) {
    let at = position(1, 300, 4);
    f.write(vec![
        Write::Insert(Index::Ready, Entry::ready(at)),
        Write::Insert(Index::Completed, Entry::number(8, 1)),
        Write::Insert(Index::Completed, Entry::number(8, 2)),
    ])
    .await;
    for _ in 0..2 {
        let done = f
            .write(vec![
                Write::Remove(Index::Ready, Entry::ready(at)),
                Write::Remove(Index::Completed, Entry::number(8, 1)),
            ])
            .await;
        assert_eq!(done.ready, 0);
        assert_eq!(f.entries(Index::Ready).await, []);
        assert_eq!(f.entries(Index::Completed).await, [Entry::number(8, 2)]);
        assert_eq!(f.len(Len::Index(Index::Completed)).await, 1);
    }
}

async fn an_entry_moves_within_one_batch<E: TestEngine>(mut f: Fixture<E>) {
    let at = position(1, 300, 4);
    f.write(vec![Write::Insert(Index::Scheduled, Entry::waiting(at))]).await;
    let done = f
        .write(vec![Write::Remove(Index::Scheduled, Entry::waiting(at)), Write::Insert(Index::Ready, Entry::ready(at))])
        .await;
    assert_eq!(done.ready, 1);
    assert_eq!(f.entries(Index::Scheduled).await, []);
    assert_eq!(f.entries(Index::Ready).await, [Entry::ready(at)]);
}

async fn scores_of_members<E: TestEngine>(mut f: Fixture<E>) {
    let at = position(1, 300, 4);
    f.write(vec![
        Write::Insert(Index::Ready, Entry::ready(at)),
        Write::Insert(Index::Retrying, Entry::waiting(position(1, 500, 5))),
        Write::Insert(Index::Completed, Entry::number(8, 1)),
    ])
    .await;
    assert_eq!(f.score(Index::Ready, Member::Position(at)).await, Some(0));
    let other = Member::Position(position(1, 301, 4));
    assert_eq!(f.score(Index::Ready, other).await, None);
    let retrying = Member::Position(position(1, 500, 5));
    assert_eq!(f.score(Index::Retrying, retrying.clone()).await, Some(500));
    assert_eq!(f.score(Index::Scheduled, retrying).await, None);
    assert_eq!(f.score(Index::Completed, Member::Number(1)).await, Some(8));
    assert_eq!(f.score(Index::Completed, Member::Number(2)).await, None);
}

/// The numbers of a range over `Deadline`.
async fn range<E: TestEngine>(
    f: &mut Fixture<E>, after: Option<Entry>, up_to: Option<u64>, limit: usize, reverse: bool,
) -> Vec<u64> {
    let read = Read::Range { index: Index::Deadline, after, up_to, limit, reverse };
    f.read(read).await.entries().iter().filter_map(|entry| entry.member.job()).collect()
}

async fn ranges_have_two_ends_a_limit_and_a_direction<E: TestEngine>(mut f: Fixture<E>) {
    let entries = [(10, 1), (20, 2), (20, 3), (20, 4), (30, 5), (40, 6)];
    let entries = entries.map(|(score, number)| Entry::number(score, number));
    f.write(insert(Index::Deadline, &entries)).await;
    let at = |score, number| Some(Entry::number(score, number));

    assert_eq!(range(&mut f, None, None, 100, false).await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(range(&mut f, None, None, 100, true).await, [6, 5, 4, 3, 2, 1]);
    assert_eq!(range(&mut f, None, None, 2, false).await, [1, 2]);
    assert_eq!(range(&mut f, None, None, 2, true).await, [6, 5]);
    assert_eq!(range(&mut f, None, None, 0, false).await, NO_JOBS);

    assert_eq!(range(&mut f, None, Some(20), 100, false).await, [1, 2, 3, 4]);
    assert_eq!(range(&mut f, None, Some(19), 100, false).await, [1]);
    assert_eq!(range(&mut f, None, Some(9), 100, false).await, NO_JOBS);
    assert_eq!(range(&mut f, None, Some(29), 3, true).await, [4, 3, 2]);
    assert_eq!(range(&mut f, None, Some(9), 100, true).await, NO_JOBS);

    assert_eq!(range(&mut f, at(20, 3), None, 100, false).await, [4, 5, 6]);
    assert_eq!(range(&mut f, at(20, 3), None, 100, true).await, [2, 1]);
    assert_eq!(range(&mut f, at(20, 3), Some(30), 100, false).await, [4, 5]);
    assert_eq!(range(&mut f, at(20, 3), Some(15), 100, true).await, [1]);
    assert_eq!(range(&mut f, at(20, 3), Some(15), 100, false).await, NO_JOBS);
    assert_eq!(range(&mut f, at(40, 6), None, 100, false).await, NO_JOBS);
    assert_eq!(range(&mut f, at(10, 1), None, 100, true).await, NO_JOBS);
}

async fn a_range_goes_on_after_an_entry_that_is_not_there<E: TestEngine>(mut f: Fixture<E>) {
    let entries = [(10, 1), (20, 2), (20, 4), (30, 5)];
    let entries = entries.map(|(score, number)| Entry::number(score, number));
    f.write(insert(Index::Deadline, &entries)).await;
    for (score, number, forward, backward) in [
        (5, 9, vec![1, 2, 4, 5], vec![]),
        (20, 0, vec![2, 4, 5], vec![1]),
        (20, 3, vec![4, 5], vec![2, 1]),
        (20, 900, vec![5], vec![4, 2, 1]),
        (25, 1, vec![5], vec![4, 2, 1]),
        // Its member is there, with another score.
        (20, 5, vec![5], vec![4, 2, 1]),
        (99, 1, vec![], vec![5, 4, 2, 1]),
    ] {
        let after = Some(Entry::number(score, number));
        assert_eq!(range(&mut f, after.clone(), None, 100, false).await, forward, "{after:?}");
        assert_eq!(range(&mut f, after.clone(), None, 100, true).await, backward, "{after:?}");
    }
}

async fn ranges_page_through_every_kind_of_member<E: TestEngine>(mut f: Fixture<E>) {
    let waiting = [position(1, 10, 1), position(0, 20, 2), position(0, 20, 3), position(3, 20, 1)];
    f.write(waiting.map(|at| Write::Insert(Index::Scheduled, Entry::waiting(at))).into()).await;
    f.write(waiting.map(|at| Write::Insert(Index::Ready, Entry::ready(at))).into()).await;
    let texts = ["a", "b", "c"].map(|key| Entry { score: 1, member: Member::Text(key.into()) });
    f.write(insert(Index::FinishedKey, &texts)).await;
    let records = ["a", "b"].map(|key| Member::Record(Table::Request, text(key)));
    f.write(insert(Index::Expires, &records.map(|member| Entry { score: 1, member }))).await;
    let probes = [(1, 5), (1, 6), (2, 1)];
    let probes = probes.map(|(epoch, number)| Member::Probe { epoch, number });
    f.write(insert(Index::Probe, &probes.map(|member| Entry { score: 1, member }))).await;

    for index in [Index::Scheduled, Index::Ready, Index::FinishedKey, Index::Expires, Index::Probe] {
        let mut all = f.entries(index).await;
        assert!(all.len() > 1);
        for reverse in [false, true] {
            let (mut seen, mut after) = (vec![], None);
            loop {
                let read = Read::Range { index, after, up_to: None, limit: 1, reverse };
                let Some(entry) = f.read(read).await.entries().pop() else { break };
                seen.push(entry.clone());
                after = Some(entry);
            }
            assert_eq!(seen, all, "{index:?}");
            all.reverse();
        }
    }
}

async fn how_many_are_ahead_in_ready<E: TestEngine>(mut f: Fixture<E>) {
    for at in [position(0, 100, 9), position(1, 100, 1), position(1, 100, 2), position(1, 200, 3)] {
        f.write(vec![Write::Insert(Index::Ready, Entry::ready(at))]).await;
    }
    for (at, limit, ahead) in [
        (position(0, 100, 9), 10, 0),
        (position(1, 100, 2), 10, 2),
        (position(1, 200, 3), 10, 3),
        (position(1, 200, 3), 2, 2),
        // It is not there itself.
        (position(1, 150, 7), 10, 3),
        (position(0, 0, 1), 10, 0),
        (position(9, 0, 1), 10, 4),
    ] {
        assert_eq!(f.read(Read::Ahead(at, limit)).await.number(), ahead, "{at:?}");
    }
}

async fn what_is_due_becomes_ready<E: TestEngine>(mut f: Fixture<E>) {
    let now = f.now().millis();
    let retrying = [position(5, now - 2, 1), position(0, now - 1, 2), position(0, now, 3)].map(Entry::waiting);
    let scheduled = [position(1, now, 4), position(1, now + 1, 5), position(0, now + 9, 6)].map(Entry::waiting);
    f.write(insert(Index::Retrying, &retrying)).await;
    f.write(insert(Index::Scheduled, &scheduled)).await;

    // Up to two of each, those first that were due first.
    let done = f.write(vec![Write::Promote(2)]).await;
    assert_eq!((done.promoted, done.ready), (3, 3));
    assert_eq!(f.jobs(Index::Retrying).await, [3]);
    assert_eq!(f.jobs(Index::Scheduled).await, [5, 6]);
    // Their positions are what they were.
    let ready = [position(0, now - 1, 2), position(1, now, 4), position(5, now - 2, 1)];
    assert_eq!(f.entries(Index::Ready).await, ready.map(Entry::ready));

    let done = f.write(vec![Write::Promote(2)]).await;
    assert_eq!((done.promoted, done.ready), (1, 4));
    assert_eq!(f.write(vec![Write::Promote(2)]).await.promoted, 0);
    f.pass(1);
    assert_eq!(f.write(vec![Write::Promote(2)]).await.promoted, 1);
    assert_eq!(f.jobs(Index::Scheduled).await, [6]);
    assert_eq!(f.len(Len::Index(Index::Ready)).await, 5);
    assert_eq!(f.len(Len::Index(Index::Scheduled)).await, 1);
}

async fn the_ready_jobs_are_counted_after_the_batch<E: TestEngine>(mut f: Fixture<E>) {
    let at = |number| Entry::ready(position(0, 1, number));
    let done = f.write(vec![Write::Insert(Index::Ready, at(1)), Write::Insert(Index::Ready, at(2))]);
    assert_eq!(done.await.ready, 2);
    let done = f.write(vec![Write::Remove(Index::Ready, at(1)), Write::Insert(Index::Ready, at(3))]);
    assert_eq!(done.await.ready, 2);
    assert_eq!(f.write(vec![]).await.ready, 2);
    let done = f.write(vec![Write::Remove(Index::Ready, at(2)), Write::Remove(Index::Ready, at(3))]);
    assert_eq!(done.await.ready, 0);
}

async fn dead_letters_are_numbered_in_one_sequence<E: TestEngine>(mut f: Fixture<E>) {
    let append = |index, number| Write::AppendDead { index, number, record: bytes("why") };
    let done = f.write(vec![append(Index::Dead, 50), append(Index::Overflow, 40)]).await;
    let [first, second] = done.deaths[..] else { panic!("{done:?}") };
    let done = f.write(vec![append(Index::Dead, 30)]).await;
    let [third] = done.deaths[..] else { panic!("{done:?}") };
    assert!(first < second && second < third);

    let dead = [Entry::number(first, 50), Entry::number(third, 30)];
    assert_eq!(f.entries(Index::Dead).await, dead);
    assert_eq!(f.entries(Index::Overflow).await, [Entry::number(second, 40)]);
    assert_eq!(f.len(Len::Table(Table::Dead)).await, 3);
    let record = f.record(Table::Dead, RecordKey::Number(40)).await.unwrap();
    assert_eq!(record, [&second.to_be_bytes()[..], b"why"].concat());

    // A number of death is not given again.
    f.write(vec![
        Write::Remove(Index::Dead, Entry::number(third, 30)),
        Write::Delete(Table::Dead, RecordKey::Number(30)),
    ])
    .await;
    assert_eq!(f.len(Len::Table(Table::Dead)).await, 2);
    let done = f.write(vec![append(Index::Dead, 30)]).await;
    assert!(done.deaths[0] > third);
    assert_eq!(f.jobs(Index::Dead).await, [50, 30]);
}

async fn times_far_away_are_kept_exactly<E: TestEngine>(mut f: Fixture<E>) {
    // The last one that positions hold.
    let far = Timestamp::from_millis((1 << 48) - 1);
    let at = Position { ready_at: far, ..position(255, 0, (1 << 48) - 1) };
    f.write(vec![
        Write::Insert(Index::Scheduled, Entry::waiting(at)),
        Write::Insert(Index::Ready, Entry::ready(at)),
        Write::Insert(Index::Deadline, Entry::number((1 << 53) - 1, at.number)),
    ])
    .await;
    assert_eq!(f.entries(Index::Scheduled).await, [Entry::waiting(at)]);
    assert_eq!(f.entries(Index::Ready).await, [Entry::ready(at)]);
    assert_eq!(f.score(Index::Deadline, Member::Number(at.number)).await, Some((1 << 53) - 1));
}

on_every_engine!(
    entries_go_by_score_and_then_by_number,
    equal_scores_go_by_the_bytes_of_members,
    ready_goes_by_rank_then_time_then_number,
    a_member_has_one_score,
    entries_are_removed_and_may_be_gone_already,
    an_entry_moves_within_one_batch,
    scores_of_members,
    ranges_have_two_ends_a_limit_and_a_direction,
    a_range_goes_on_after_an_entry_that_is_not_there,
    ranges_page_through_every_kind_of_member,
    how_many_are_ahead_in_ready,
    what_is_due_becomes_ready,
    the_ready_jobs_are_counted_after_the_batch,
    dead_letters_are_numbered_in_one_sequence,
    times_far_away_are_kept_exactly,
);
