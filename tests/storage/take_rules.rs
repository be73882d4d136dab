//! How many leases there are at once, how many start in a second, and what a recovery's meter says.

use crate::engines::TestEngine;
use crate::fixture::{Fixture, OwnedTake, job_record, numbers_of};
use bytes::Bytes;
use redrive::domain::Timestamp;
use redrive::store::storage::{
    Entry, GroupState, Index, Meter, NO_GROUP, Position, Probes, Ramp, Rate, Read, RecordKey, Rule, Stop, StoppedBy,
    Table, Taken, Version, WHOLE_QUEUE, Write, epoch_of, flag,
};

/// Ready jobs of a group, in the order of their numbers.
async fn add<E: TestEngine>(f: &mut Fixture<E>, group: u16, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let position = Position { group, rank: 0, ready_at: Timestamp::from_millis(number), number, tag: 0 };
        f.write(vec![
            Write::Put(Table::Job, RecordKey::Number(number), job_record(10, 0)),
            Write::Insert(position.ready_index(), Entry::ready(position)),
        ])
        .await;
    }
}

async fn end<E: TestEngine>(f: &mut Fixture<E>, group: u16, number: u64) {
    let mut writes = vec![Write::Delete(Table::Lease, RecordKey::Number(number))];
    writes
        .extend((group != NO_GROUP).then(|| Write::Remove(Index::LeasedByGroup, Entry::number(group.into(), number))));
    f.write(writes).await;
}

fn rule(group: u16) -> Rule {
    Rule { group, ..Rule::default() }
}

fn rate(per_second: f64, burst: f64) -> Option<Rate> {
    Some(Rate { per_second, burst })
}

fn ramp(per_second: f64, burst: f64) -> Option<Ramp> {
    Some(Ramp { rate: Rate { per_second, burst }, patience_ms: 1_000 })
}

fn stop(group: u16, by: StoppedBy, until: Option<Timestamp>) -> Stop {
    Stop { group, by, until }
}

fn count_and_stops(taken: Taken) -> (usize, Vec<Stop>) {
    (taken.jobs.len(), taken.stops)
}

async fn meter<E: TestEngine>(f: &mut Fixture<E>, group: u16) -> Option<Meter> {
    f.read(Read::Meter(group)).await.meter()
}

async fn leases_are_bounded_in_the_queue_and_in_each_group<E: TestEngine>(mut f: Fixture<E>) {
    for group in [0, 1, 2] {
        add(&mut f, group, (1..=10).map(|number| 100 * u64::from(group) + number)).await;
    }
    let mut take = f.plain_take(30);
    take.whole.leased = Some(7);
    take.rule.leased = Some(2);
    take.others = vec![Rule { leased: Some(3), ..rule(1) }];
    let taken = f.take(&take).await;
    assert_eq!(numbers_of(&taken), [1, 2, 101, 102, 103, 201, 202]);
    let stopped = |group| stop(group, StoppedBy::Leased, None);
    assert_eq!(taken.stops, [WHOLE_QUEUE, NO_GROUP, 1].map(stopped));
    end(&mut f, 1, 101).await;
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.stops), (vec![104], [WHOLE_QUEUE, NO_GROUP, 1].map(stopped).to_vec()));
    // More than there may be: the bound was lowered.
    take.whole.leased = None;
    take.others[0].leased = Some(1);
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken).len(), taken.stops), (8, [NO_GROUP, 1].map(stopped).to_vec()));
}

async fn nothing_is_stopped_where_as_many_were_taken_or_none_is_ready<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, 1, 1..=3).await;
    let mut take = f.plain_take(2);
    take.others = vec![Rule { leased: Some(2), rate: rate(1.0, 2.0), ..rule(1) }];
    assert_eq!(count_and_stops(f.take(&take).await), (2, vec![]));
    assert_eq!(count_and_stops(f.take(&take).await), (0, vec![stop(1, StoppedBy::Leased, None)]));
    let last = f.entries(Index::Keyed).await.remove(0);
    f.write(vec![Write::Remove(Index::Keyed, last)]).await;
    assert_eq!(count_and_stops(f.take(&take).await), (0, vec![]));
}

async fn jobs_start_at_a_rate<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, 0, 1..=30).await;
    let mut take = f.plain_take(9);
    take.whole.rate = rate(10.0, 2.0);
    assert_eq!(meter(&mut f, WHOLE_QUEUE).await, None);
    let until = |at| vec![stop(WHOLE_QUEUE, StoppedBy::Rate, Some(at))];
    let next = f.at(100);
    assert_eq!(count_and_stops(f.take(&take).await), (2, until(next)));
    f.pass(99);
    assert_eq!(count_and_stops(f.take(&take).await), (0, until(next)));
    f.pass(1);
    let later = f.at(100);
    assert_eq!(count_and_stops(f.take(&take).await), (1, until(later)));
    // What was not used is kept up to the burst.
    f.pass(5_000);
    take.jobs = 1;
    assert_eq!(count_and_stops(f.take(&take).await), (1, vec![]));
    let kept = meter(&mut f, WHOLE_QUEUE).await.unwrap();
    assert_eq!((kept.at, kept.tokens, kept.ramp_tokens), (f.now(), 1.0, f64::INFINITY));
    take.jobs = 9;
    let next = f.at(100);
    assert_eq!(count_and_stops(f.take(&take).await), (1, until(next)));
    // Parts of a token are kept too.
    f.pass(150);
    let next = f.at(50);
    assert_eq!(count_and_stops(f.take(&take).await), (1, until(next)));
    // Without a rate nothing is counted, and what was stays as it was.
    take.whole.rate = None;
    let before = meter(&mut f, WHOLE_QUEUE).await;
    assert_eq!(f.take(&take).await.jobs.len(), 9);
    assert_eq!(meter(&mut f, WHOLE_QUEUE).await, before);
}

async fn groups_have_rates_of_their_own<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, 1, 1..=9).await;
    add(&mut f, 2, 11..=19).await;
    add(&mut f, 0, 21..=29).await;
    let mut take = f.plain_take(12);
    take.others = vec![Rule { rate: rate(4.0, 1.0), ..rule(2) }, Rule { rate: rate(0.0, 3.0), ..rule(1) }];
    let next = f.at(250);
    let stops = vec![stop(2, StoppedBy::Rate, Some(next)), stop(1, StoppedBy::Rate, None)];
    let taken = f.take(&take).await;
    assert_eq!(numbers_of(&taken), [1, 2, 3, 11, 21, 22, 23, 24, 25, 26, 27, 28]);
    assert_eq!(taken.stops, []);
    take.jobs = 13;
    assert_eq!(count_and_stops(f.take(&take).await), (1, stops));
    assert!(meter(&mut f, NO_GROUP).await.is_none());
    f.pass(1_000);
    assert_eq!(numbers_of(&f.take(&take).await), [12]);
}

async fn the_smallest_limit_is_the_one_that_is_named<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, 1, 1..=9).await;
    let version = Version { state: GroupState::Held, epoch: epoch_of(1, 2), random: [1; 8] };
    f.write(vec![Write::Put(Table::Version, RecordKey::Group(1), Bytes::copy_from_slice(&version.bytes()))]).await;
    let probes = |most| Some(Probes { most, started_after: Timestamp::default() });
    let all = Rule { version, leased: Some(4), rate: rate(10.0, 4.0), ramp: ramp(10.0, 4.0), ..rule(1) };
    let mut take = f.plain_take(9);
    let mut named = Vec::new();
    for rule in [
        Rule { leased: Some(0), ..all.clone() },
        Rule { flags: flag::PROBE, probes: probes(0), ..all.clone() },
        Rule { rate: rate(10.0, 0.5), ..all.clone() },
        Rule { rate: None, ramp: ramp(10.0, 0.5), ..all.clone() },
        // The first of equal ones.
        Rule { rate: rate(10.0, 0.5), ramp: ramp(20.0, 0.5), ..all.clone() },
    ] {
        take.others = vec![rule];
        named.extend(f.take(&take).await.stops.into_iter().map(|stop| (stop.by, stop.until)));
    }
    let short = Some(f.at(50));
    assert_eq!(
        named,
        [
            (StoppedBy::Leased, None),
            (StoppedBy::Probes, None),
            (StoppedBy::Rate, short),
            (StoppedBy::Ramp, short),
            (StoppedBy::Rate, short)
        ]
    );
}

/// A take under a ramp of group 1 in this epoch.
async fn ramped<E: TestEngine>(f: &mut Fixture<E>, transitions: u64, leased: u64, ramp: Option<Ramp>) -> OwnedTake {
    let version = Version { state: GroupState::NeedsRule, epoch: epoch_of(1, transitions), random: [9; 8] };
    f.write(vec![Write::Put(Table::Version, RecordKey::Group(1), Bytes::copy_from_slice(&version.bytes()))]).await;
    let mut take = f.plain_take(9);
    take.others = vec![Rule { version, leased: Some(leased), ramp, ..rule(1) }];
    take
}

async fn a_ramp_says_whether_jobs_waited_for_it<E: TestEngine>(mut f: Fixture<E>) {
    let take = ramped(&mut f, 1, 9, ramp(100.0, 1.0)).await;
    let start = f.now();
    f.take(&take).await;
    let empty = meter(&mut f, 1).await.unwrap();
    assert_eq!(
        (empty.empty_at, empty.held_at, empty.most_leased, empty.epoch),
        (start, Timestamp::default(), 0, epoch_of(1, 1))
    );
    // Jobs are held back, but there were none a moment ago.
    f.pass(1_000);
    add(&mut f, 1, 1..=5).await;
    let stopped = f.at(10);
    assert_eq!(count_and_stops(f.take(&take).await), (1, vec![stop(1, StoppedBy::Ramp, Some(stopped))]));
    let held = meter(&mut f, 1).await.unwrap();
    assert_eq!((held.empty_at, held.held_at, held.most_leased), (start, Timestamp::default(), 1));
    f.pass(1);
    let now = f.now();
    f.take(&take).await;
    assert_eq!(meter(&mut f, 1).await.unwrap().held_at, now);
    // By its bound of leases too.
    f.pass(500);
    let take = ramped(&mut f, 1, 2, ramp(100.0, 8.0)).await;
    let now = f.now();
    assert_eq!(count_and_stops(f.take(&take).await), (1, vec![stop(1, StoppedBy::Leased, None)]));
    let held = meter(&mut f, 1).await.unwrap();
    assert_eq!((held.held_at, held.most_leased), (now, 2));
    // Not where the claims ask for no more.
    f.pass(500);
    end(&mut f, 1, 1).await;
    let mut one = take.clone();
    one.jobs = 1;
    f.take(&one).await;
    assert_eq!(meter(&mut f, 1).await.unwrap().held_at, now);
    // All are taken: nothing is ready.
    f.pass(500);
    let take = ramped(&mut f, 1, 9, ramp(100.0, 8.0)).await;
    let empty_at = f.now();
    assert_eq!(f.take(&take).await.jobs.len(), 2);
    let empty = meter(&mut f, 1).await.unwrap();
    assert_eq!((empty.empty_at, empty.held_at, empty.most_leased), (empty_at, now, 4));
    assert_eq!(meter(&mut f, NO_GROUP).await, None);
}

async fn the_most_leases_are_those_of_a_version<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, 1, 1..=4).await;
    let take = ramped(&mut f, 1, 9, ramp(100.0, 3.0)).await;
    f.take(&take).await;
    assert_eq!(meter(&mut f, 1).await.unwrap().most_leased, 3);
    for number in [1, 2] {
        end(&mut f, 1, number).await;
    }
    f.take(&take).await;
    assert_eq!(meter(&mut f, 1).await.unwrap().most_leased, 3);
    let take = ramped(&mut f, 2, 9, ramp(100.0, 3.0)).await;
    f.take(&take).await;
    let found = meter(&mut f, 1).await.unwrap();
    assert_eq!((found.most_leased, found.epoch), (1, epoch_of(1, 2)));
    // Another step of the same ramp.
    add(&mut f, 1, 5..=7).await;
    f.pass(1_000);
    f.take(&take).await;
    assert_eq!(meter(&mut f, 1).await.unwrap().most_leased, 4);
    for number in 3..=6 {
        end(&mut f, 1, number).await;
    }
    f.pass(1_000);
    let mut take = ramped(&mut f, 2, 9, ramp(100.0, 3.0)).await;
    let version = Version { random: [7; 8], ..take.others[0].version };
    f.write(vec![Write::Put(Table::Version, RecordKey::Group(1), Bytes::copy_from_slice(&version.bytes()))]).await;
    take.others[0].version = version;
    f.take(&take).await;
    let found = meter(&mut f, 1).await.unwrap();
    assert_eq!((found.most_leased, found.random), (1, [7; 8]));
}

async fn a_job_takes_a_token_of_each_bucket<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, 0, 1..=9).await;
    let mut take = f.plain_take(9);
    take.whole.rate = rate(10.0, 5.0);
    take.rule = Rule { rate: rate(10.0, 4.0), ramp: ramp(0.01, 1.0), leased: Some(50), ..rule(0) };
    let next = f.at(100_000);
    assert_eq!(count_and_stops(f.take(&take).await), (1, vec![stop(NO_GROUP, StoppedBy::Ramp, Some(next))]));
    let (whole, group) = (meter(&mut f, WHOLE_QUEUE).await.unwrap(), meter(&mut f, NO_GROUP).await.unwrap());
    assert_eq!((whole.tokens, group.tokens, group.ramp_tokens), (4.0, 3.0, 0.0));
    f.pass(99_999);
    assert_eq!(f.take(&take).await.jobs.len(), 0);
    f.pass(1);
    assert_eq!(f.take(&take).await.jobs.len(), 1);
}

async fn meters_are_there_where_the_engine_keeps_outcomes<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, 0, 1..=3).await;
    let mut take = f.plain_take(9);
    take.whole.rate = rate(1.0, 1.0);
    f.take(&take).await;
    let before = meter(&mut f, WHOLE_QUEUE).await;
    f.reopen().await;
    assert_eq!(meter(&mut f, WHOLE_QUEUE).await, before.filter(|_| E::KEEPS_OUTCOMES));
}

async fn tokens_are_paid_for_what_was_taken<E: TestEngine>(mut f: Fixture<E>) {
    add(&mut f, 1, 1..=3).await;
    let mut take = f.plain_take(3);
    take.bytes = 15;
    take.others = vec![Rule { rate: rate(1.0, 3.0), ..rule(1) }];
    let taken = f.take(&take).await;
    assert_eq!((numbers_of(&taken), taken.bytes_full, taken.stops), (vec![1], true, vec![]));
    assert_eq!(meter(&mut f, 1).await.unwrap().tokens, 2.0);
}

on_every_engine!(
    leases_are_bounded_in_the_queue_and_in_each_group,
    nothing_is_stopped_where_as_many_were_taken_or_none_is_ready,
    jobs_start_at_a_rate,
    groups_have_rates_of_their_own,
    the_smallest_limit_is_the_one_that_is_named,
    a_ramp_says_whether_jobs_waited_for_it,
    the_most_leases_are_those_of_a_version,
    a_job_takes_a_token_of_each_bucket,
    meters_are_there_where_the_engine_keeps_outcomes,
    tokens_are_paid_for_what_was_taken,
);
