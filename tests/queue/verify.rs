//! A small store is built by import, damaged by hand, and verified.

mod changing;
mod places;
mod records;

use crate::imported::*;
use bytes::Bytes;
use redrive::domain::Body;
use redrive::queue::verify;
use redrive::queue::{FINDINGS_MAX, VerifyReport};
use redrive::store::storage::{
    Counter, Entry, Found, Index, Len, Member, Position, Probes, Read, Reads, RecordKey, Rule, Table, Version, Write,
    flag,
};
use redrive::store::{Check, Finding};

/// One of everything: ready, scheduled, retrying, leased, a probe, completed, dead, overflow; with ids, keys, deadlines, history,
/// bodies, results and a request.
fn everything() -> Fixture {
    let mut f = Fixture::new();
    let mut large = with_key(ready("ready"), "k-ready");
    large.spec.body = Body::Data(vec![7; 5_000].into());
    large.spec.expires_at = Some(at(90_000));
    let mut high = ready("leased");
    high.spec.priority = 9;
    let mut probe = ready("probe");
    probe.spec.priority = 8;
    f.import(vec![
        large,
        high,
        probe,
        scheduled("later", 5_000),
        failed("retried", 2, 6_000),
        with_events(failed("often", 53, 7_000), 3),
        dead("dead-1", 1, false),
        dead("dead-2", 2, false),
        dead("overflow", 3, true),
        with_key(completed("kept", 4, "result"), "k-kept"),
    ]);
    f.take(1, Rule::default());
    let probes = Some(Probes { most: 1, started_after: at(0) });
    f.take(1, Rule { flags: flag::PROBE, probes, ..Rule::default() });
    let expiry = Member::Record(Table::Request, text("claim:w:r"));
    f.write(vec![
        Write::Put(Table::Request, text("claim:w:r"), Bytes::from_static(b"\x01request")),
        Write::Insert(Index::Expires, Entry { score: at(60_000).millis(), member: expiry }),
    ]);
    f
}

fn check<S: Reads>(store: &mut S) -> VerifyReport {
    now(verify(store, &mut |_| {}))
}

#[track_caller]
fn assert_found(report: &VerifyReport, check: Check, part: &str) {
    let has = |found: &Finding| found.check == check && found.what.contains(part);
    assert!(report.findings.iter().any(has), "no {check:?} with {part:?}: {:#?}", report.findings);
}

/// These are found after these writes, and nothing else.
#[track_caller]
fn after(damage: impl FnOnce(&mut Fixture) -> Vec<Write>, expected: &[(Check, &str)]) {
    let mut f = everything();
    let writes = damage(&mut f);
    f.write(writes);
    let report = check(&mut f.store);
    for (check, part) in expected {
        assert_found(&report, *check, part);
    }
    assert_eq!(report.findings.len(), expected.len(), "{:#?}", report.findings);
}

fn position(f: &mut Fixture, index: Index, id: &str) -> Position {
    let job = f.number_of(id);
    let found = f.entries(index).into_iter().find_map(|entry| match entry.member {
        Member::Position(position) if position.number == job => Some(position),
        _ => None,
    });
    found.expect("it is there")
}

#[test]
fn a_good_store_is_clean_and_shown_with_its_sums() {
    let mut f = everything();
    let mut told = Vec::new();
    let report = now(verify(&mut f.store, &mut |progress| told.push(progress.step)));
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!((report.jobs, report.queues.len()), (10, 1));
    assert!(report.records > report.jobs);
    let queue = &report.queues[0];
    assert_eq!((queue.totals.moved_in, queue.totals.completed, queue.depths.held()), (10, 1, 9));
    for step in ["jobs", "ready", "overflow", "bodies", "idempotency keys", "counts"] {
        assert!(told.contains(&step), "{told:?}");
    }
    assert_eq!(check(&mut f.store), report, "it changes nothing");
}

#[test]
fn sums_that_are_wrong_are_found() {
    let add = |counter: Counter, count| move |_: &mut Fixture| vec![Write::Add(counter, count)];
    after(add(Counter::Total(9), 2), &[(Check::Law, "2 jobs are held or went out and never came in")]);
    after(add(Counter::Total(0), 2), &[(Check::Law, "2 jobs came in and are neither held nor accounted for")]);
    after(
        add(Counter::ErrorType("Other".into()), 2),
        &[
            (Check::Counts, "5 dead letters are counted by type of error, and there are 3"),
            (Check::Counts, "2 dead letters are counted under \"Other\", and there are 0"),
        ],
    );
    after(
        add(Counter::ErrorType("E1".into()), -3),
        &[
            (Check::Counts, "0 dead letters are counted by type of error, and there are 3"),
            (Check::Counts, "3 dead letters died of \"E1\", which is not counted"),
        ],
    );
    after(
        |_| {
            let version = Version { epoch: 4, random: [1; 8], ..Version::default() };
            vec![Write::Put(Table::Version, RecordKey::Group(0), Bytes::copy_from_slice(&version.bytes()))]
        },
        &[(Check::Indexes, "the transitions of its breaker are said twice, differently")],
    );
}

/// A store whose answers to reads are changed.
fn answering(f: &Fixture, change: fn(&Read, Found) -> Found) -> Hooked {
    let read = Box::new(move |store: &mut _, queue: &_, reads: &[Read]| {
        let found: Option<Vec<Found>> = now(Reads::read(store, queue, reads));
        found.map(|found| reads.iter().zip(found).map(|(read, found)| change(read, found)).collect())
    });
    Hooked { read, ..Hooked::new(&f.store) }
}

#[test]
fn a_length_that_is_not_that_of_the_index_is_found() {
    let f = everything();
    let report = check(&mut answering(&f, |read, found| match (read, found) {
        (Read::Len(Len::Index(Index::Retrying)), Found::Number(number)) => Found::Number(number + 1),
        (_, found) => found,
    }));
    assert_found(&report, Check::Counts, "the index retrying counts 3 entries and has 2");
    let report = check(&mut answering(&f, |read, found| match (read, found) {
        (Read::Len(Len::Index(Index::Deadline)), Found::Number(number)) => Found::Number(number + 1),
        (_, found) => found,
    }));
    assert_found(&report, Check::Counts, "the index deadline counts 2 entries and has 1");
    assert_eq!(report.findings.len(), 1);
}

/// Pages that are not full are not the end, and neither are several of them: what is behind them is looked at.
#[test]
fn what_an_engine_cannot_read_hides_nothing_behind_it() {
    let mut f = Fixture::new();
    f.import((0..900).map(|n| ready(&format!("job-{n:03}"))).collect());
    let last = f.record(Table::Id, text("job-899")).unwrap();
    f.write(vec![Write::Put(Table::Id, text("not-its-own"), last)]);
    let report = check(&mut answering(&f, |read, found| match (read, found) {
        (Read::Scan(Table::Job | Table::Id, ..), Found::Scanned(mut page)) if page.len() > 1 => {
            page.remove(0);
            Found::Scanned(page)
        }
        (Read::Range { index: Index::Ready, .. }, Found::Entries(mut page)) if page.len() > 1 => {
            page.remove(0);
            Found::Entries(page)
        }
        (_, found) => found,
    }));
    assert_eq!(report.jobs, 895, "five pages, each without its first");
    assert_found(&report, Check::Indexes, "one id leads to job");
    assert_found(&report, Check::Counts, "the index ready counts 900 entries and has 89");
    assert_eq!(report.findings.len(), 2, "{:#?}", report.findings);
}

#[test]
fn endless_findings_are_counted_and_not_listed() {
    let mut report = VerifyReport::default();
    for _ in 0..FINDINGS_MAX + 5 {
        report.add(Check::Places, "q", "lost");
    }
    assert_eq!((report.findings.len(), report.left_out), (FINDINGS_MAX, 5));
}

#[test]
fn its_future_can_move_between_threads() {
    fn is_send(_: impl Send) {}
    is_send(verify(&mut everything().store, &mut |_| {}));
}
