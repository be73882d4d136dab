//! Where jobs are.

use super::*;
use redrive::store::storage::LEASE_FENCE;

#[test]
fn a_job_that_is_nowhere_is_found() {
    use Check::{Counts, Indexes, Places};
    after(
        |f| {
            let position = position(f, Index::Ready, "ready");
            vec![Write::Remove(Index::Ready, Entry::ready(position))]
        },
        &[
            (Places, "(ready) is nowhere"),
            (Counts, "it has 10 jobs and places for 9"),
            (Check::Law, "1 jobs came in and are neither held nor accounted for"),
        ],
    );
    after(
        |f| vec![Write::Delete(Table::Lease, number(f.number_of("leased")))],
        &[(Places, "(leased) is nowhere"), (Counts, "it has 10 jobs and places for 9"), (Check::Law, "1 jobs came in")],
    );
    after(
        |f| {
            let kept = f.number_of("kept");
            vec![Write::Remove(Index::Completed, Entry::number(at(4).millis(), kept))]
        },
        &[
            (Places, "(kept) is nowhere"),
            (Indexes, "one result leads to job"),
            (Counts, "it has 10 jobs and places for 9"),
        ],
    );
}

#[test]
fn a_job_in_two_places_is_found() {
    use Check::{Counts, Law, Places};
    after(
        |f| {
            let position = position(f, Index::Ready, "ready");
            vec![Write::Insert(Index::Scheduled, Entry::waiting(position))]
        },
        &[
            (Places, "(ready) is in 2 places: READY, SCHEDULED"),
            (Counts, "it has 10 jobs and places for 11"),
            (Law, "1 jobs are held or went out and never came in"),
        ],
    );
    // At another time, where only its index knows of it.
    after(
        |f| {
            let mut position = position(f, Index::Ready, "ready");
            position.ready_at = at(3);
            vec![Write::Insert(Index::Ready, Entry::ready(position))]
        },
        &[
            (Places, "(ready) is in 2 places: READY, READY"),
            (Places, "(ready), READY: its time is not the one"),
            (Counts, "it has 10 jobs and places for 11"),
            (Law, "1 jobs are held or went out and never came in"),
        ],
    );
    after(
        |f| {
            let job = f.number_of("dead-1");
            vec![Write::Insert(Index::Completed, Entry::number(at(1).millis(), job))]
        },
        &[
            (Places, "(dead-1) is in 2 places: DEAD, COMPLETED"),
            (Places, "(dead-1), COMPLETED: its history says that it is elsewhere"),
            (Counts, "it has 10 jobs and places for 11"),
        ],
    );
    after(
        |f| {
            let job = f.number_of("dead-1");
            vec![Write::Insert(Index::Overflow, Entry::number(1, job))]
        },
        &[
            (Places, "(dead-1) is in 2 places: DEAD, DEAD (overflow)"),
            (Counts, "it has 10 jobs and places for 11"),
            (Counts, "it has 3 dead-letter records and positions for 4"),
            (Law, "1 jobs are held"),
        ],
    );
}

#[test]
fn a_job_that_is_gone_leaves_nothing_behind() {
    use Check::{Counts, Indexes, Places};
    after(
        |f| vec![Write::Delete(Table::Job, number(f.number_of("dead-1")))],
        &[
            (Places, "DEAD holds job 7, which is not there"),
            (Indexes, "the history of job 7 is there without it"),
            (Indexes, "a dead-letter record of job 7 is there without it"),
            (Indexes, "an attempt of job 7 is there without it"),
            (Indexes, "a failure of job 7 is there without it"),
            (Indexes, "one id leads to job 7, which is not there"),
            (Counts, "it has 9 jobs and places for 10"),
        ],
    );
    after(
        |f| vec![Write::Delete(Table::Job, number(f.number_of("ready")))],
        &[
            (Places, "READY holds job 1, which is not there"),
            (Indexes, "a body of job 1 is there without it"),
            (Indexes, "one id leads to job 1, which is not there"),
            (Indexes, "one deadline leads to job 1, which is not there"),
            (Counts, "it has 9 jobs and places for 10"),
        ],
    );
    after(
        |f| vec![Write::Delete(Table::Job, number(f.number_of("probe")))],
        &[
            (Places, "LEASED holds job 3, which is not there"),
            (Indexes, "a lease of job 3 is there without it"),
            (Indexes, "one probe leads to job 3, which is not there"),
            (Indexes, "one id leads to job 3, which is not there"),
            (Counts, "it has 9 jobs and places for 10"),
        ],
    );
    after(
        |f| vec![Write::Delete(Table::Job, number(f.number_of("kept")))],
        &[
            (Places, "COMPLETED holds job 10, which is not there"),
            (Indexes, "the history of job 10"),
            (Indexes, "a result of job 10"),
            (Indexes, "an attempt of job 10"),
            (Indexes, "one id leads to job 10"),
            (Counts, "it has 9 jobs and places for 10"),
        ],
    );
}

/// Moves a job that waits to a position that its records do not say.
fn moved(index: Index, id: &'static str, change: fn(&mut Position), expected: &[(Check, &str)]) {
    after(
        |f| {
            let old = position(f, index, id);
            let mut new = old;
            change(&mut new);
            let entry = |position| match index {
                Index::Ready => Entry::ready(position),
                _ => Entry::waiting(position),
            };
            vec![Write::Remove(index, entry(old)), Write::Insert(index, entry(new))]
        },
        expected,
    );
}

#[test]
fn a_position_that_no_call_would_look_at_is_found() {
    let places = Check::Places;
    moved(Index::Ready, "ready", |it| it.rank = 3, &[(places, "READY: its position is not that of its priority")]);
    moved(Index::Scheduled, "later", |it| it.ready_at = at(9), &[(places, "SCHEDULED: its time is not the one")]);
    moved(Index::Ready, "ready", |it| it.tag = 1, &[(places, "READY: whether it has a history")]);
    after(
        |f| {
            let position = position(f, Index::Retrying, "retried");
            let entry = Entry::waiting(position);
            vec![Write::Remove(Index::Retrying, entry.clone()), Write::Insert(Index::Scheduled, entry)]
        },
        &[(places, "(retried), SCHEDULED: its history says that it is elsewhere")],
    );
    after(
        |f| {
            let job = f.number_of("dead-2");
            vec![Write::Insert(Index::Dead, Entry::number(55, job))]
        },
        &[(places, "(dead-2), DEAD: its position is not that of its death")],
    );
    after(
        |f| {
            let job = f.number_of("dead-2");
            let record = f.record(Table::Dead, number(job)).unwrap();
            let mut other = record.to_vec();
            other[7] = 1;
            let entry = Entry::number(1, job);
            vec![Write::Put(Table::Dead, number(job), other.into()), Write::Insert(Index::Dead, entry)]
        },
        &[(Check::Counts, "two dead letters have the number of death 1")],
    );
    after(
        |f| {
            let job = f.number_of("dead-2");
            vec![Write::Delete(Table::Dead, number(job))]
        },
        &[
            (places, "(dead-2), DEAD: its dead-letter record is not there"),
            (Check::Counts, "it has 2 dead-letter records and positions for 3"),
            (Check::Counts, "3 dead letters are counted by type of error, and there are 2"),
            (Check::Counts, "3 dead letters are counted under \"E1\", and there are 2"),
        ],
    );
}

#[test]
fn a_lease_that_does_not_know_its_job_is_found() {
    // A lease: delivery 4, nonce 8, flags; behind the fence attempt 4, then the position: group 2, rank.
    const FLAGS: usize = 12;
    const RANK: usize = LEASE_FENCE + 6;
    let changed = |at: usize, byte: fn(u8) -> u8| {
        move |f: &mut Fixture| {
            let key = number(f.number_of("probe"));
            let mut lease = f.record(Table::Lease, key.clone()).unwrap().to_vec();
            lease[at] = byte(lease[at]);
            vec![Write::Put(Table::Lease, key, lease.into())]
        }
    };
    after(
        changed(FLAGS, |flags| flags | flag::HISTORY),
        &[(Check::Places, "(probe), LEASED: its lease does not know what belongs to it")],
    );
    after(
        changed(FLAGS, |flags| flags & !flag::PROBE),
        &[(Check::Indexes, "one probe leads to job 3 (probe), wrongly")],
    );
    after(changed(RANK, |_| 200), &[(Check::Places, "(probe), LEASED: its position is not that of its priority")]);
    after(
        |f| vec![Write::Remove(Index::Probe, f.entries(Index::Probe).remove(0))],
        &[(Check::Indexes, "(probe), LEASED: it is a probe that is not counted")],
    );
}
