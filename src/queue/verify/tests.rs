//! A small store is built by import, damaged by hand, and verified.

mod belongings;
mod changing;
mod places;

use super::{Pass, verify};
use crate::{
    domain::{ids::QueueName, lease::Lease, time::Timestamp},
    queue::{
        copy::fixture::{
            Fixture, at, completed, dead, failed, number, ready, run, scheduled, take, text,
            with_key,
        },
        facts::LeaseFacts,
        records::{self, History, KeyRecord, Whereabouts},
        state_changes::Changes,
    },
    store::{
        AuditReport, Check, Finding, StoreError,
        memory::MemoryStorage,
        storage::{
            Applied, Counter, Entry, Found, Index, Len, Member, Position, Probes, Read, Reads,
            RecordKey, Rule, Storage, Table, Version, Write, flag,
        },
    },
};
use bytes::Bytes;
use std::time::Duration;

/// One of everything: ready, scheduled, retrying, leased, a probe, completed, dead, overflow; with ids, keys, deadlines, history,
/// bodies, results and a request.
async fn everything(f: &mut Fixture) {
    let mut large = with_key(ready("ready"), "k-ready");
    large.spec.body = crate::domain::job::Body::Data(vec![7; 5_000].into());
    large.spec.expires_at = Some(at(90_000));
    let mut high = ready("leased");
    high.spec.priority = 9;
    let mut probe = ready("probe");
    probe.spec.priority = 8;
    let jobs = vec![
        large,
        high,
        probe,
        scheduled("later", 5_000),
        failed("retried", 2, 6_000),
        failed("often", 53, 7_000),
        dead("dead-1", 1, false),
        dead("dead-2", 2, false),
        dead("overflow", 3, true),
        with_key(completed("kept", 4, "result"), "k-kept"),
    ];
    f.import(jobs).await;
    f.take(1, Rule::default()).await;
    let probes = Some(Probes { most: 1, started_after: at(0) });
    f.take(1, Rule { flags: flag::PROBE, probes, ..Rule::default() }).await;
    let expiry = Member::Record(Table::Request, text("claim:w:r"));
    f.write(vec![
        Write::Put(Table::Request, text("claim:w:r"), Bytes::from_static(b"\x01request")),
        Write::Insert(Index::Expires, Entry { score: at(60_000).millis(), member: expiry }),
    ])
    .await;
}

async fn check<S: Reads>(store: &mut S) -> AuditReport {
    verify(store, &mut |_| {}).await.unwrap()
}

#[track_caller]
fn assert_found(report: &AuditReport, check: Check, part: &str) {
    let has = |found: &Finding| found.check == check && found.what.contains(part);
    assert!(report.findings.iter().any(has), "no {check:?} with {part:?}: {:#?}", report.findings);
}

/// What is found after these writes.
fn after<F>(damage: F, expected: &[(Check, &str)])
where
    F: AsyncFnOnce(&mut Fixture) -> Vec<Write>,
{
    run(async |mut f| {
        everything(&mut f).await;
        let writes = damage(&mut f).await;
        f.write(writes).await;
        let report = check(&mut f.store).await;
        for (check, part) in expected {
            assert_found(&report, *check, part);
        }
        let names: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        assert_eq!(report.findings.len(), expected.len(), "{names:#?}");
    });
}

async fn position(f: &mut Fixture, index: Index, id: &str) -> Position {
    let job = f.number_of(id).await;
    let entries = f.entries(index).await;
    let found = entries.into_iter().find_map(|entry| match entry.member {
        Member::Position(position) if position.number == job => Some(position),
        _ => None,
    });
    found.expect("it is there")
}

async fn rotten(f: &mut Fixture, table: Table, key: RecordKey) -> Vec<Write> {
    let mut record = f.record(table, key.clone()).await.unwrap().to_vec();
    *record.last_mut().unwrap() ^= 1;
    vec![Write::Put(table, key, record.into())]
}

#[test]
fn a_good_store_is_clean_and_shown_with_its_sums() {
    run(async |mut f| {
        everything(&mut f).await;
        let mut told = Vec::new();
        let report = verify(&mut f.store, &mut |progress| told.push(progress.step)).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
        assert_eq!((report.jobs, report.queues.len()), (10, 1));
        assert!(report.records > report.jobs);
        let queue = &report.queues[0];
        assert_eq!(
            (queue.totals.moved_in, queue.totals.completed, queue.depths.held()),
            (10, 1, 9)
        );
        for step in ["jobs", "ready", "overflow", "bodies", "idempotency keys", "counts"] {
            assert!(told.contains(&step), "{told:?}");
        }
        assert_eq!(check(&mut f.store).await, report, "it changes nothing");
    });
}

#[test]
fn sums_that_are_wrong_are_found() {
    let add = |counter: Counter| vec![Write::Add(counter, 2)];
    after(
        async |_| add(Counter::Total(9)),
        &[(Check::Law, "2 jobs are held or went out and never came in")],
    );
    after(
        async |_| add(Counter::Total(0)),
        &[(Check::Law, "2 jobs came in and are neither held nor accounted for")],
    );
    after(
        async |_| add(Counter::ErrorType("Other".into())),
        &[
            (Check::Counts, "5 dead letters are counted by type of error, and there are 3"),
            (Check::Counts, "2 dead letters are counted under \"Other\", and there are 0"),
        ],
    );
    after(
        async |_| vec![Write::Add(Counter::ErrorType("E1".into()), -3)],
        &[
            (Check::Counts, "0 dead letters are counted by type of error, and there are 3"),
            (Check::Counts, "3 dead letters died of \"E1\", which is not counted"),
        ],
    );
    after(
        async |_| {
            let version = Version { epoch: 4, random: [1; 8], ..Version::default() };
            vec![Write::Put(
                Table::Version,
                RecordKey::Group(0),
                Bytes::copy_from_slice(&version.bytes()),
            )]
        },
        &[(Check::Indexes, "the transitions of its breaker are said twice, differently")],
    );
}

/// A store that counts one entry too many.
struct Miscounting(MemoryStorage, Index);

impl Reads for Miscounting {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn read(
        &mut self,
        queue: &QueueName,
        reads: &[Read],
    ) -> Result<Option<Vec<Found>>, StoreError> {
        let found = self.0.read(queue, reads).await?;
        let off = Read::Len(Len::Index(self.1));
        Ok(found.map(|found| {
            let off = |(read, found): (&Read, Found)| match found {
                Found::Number(number) if *read == off => Found::Number(number + 1),
                found => found,
            };
            reads.iter().zip(found).map(off).collect()
        }))
    }

    async fn queues(
        &mut self,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueName>, StoreError> {
        self.0.queues(after, limit).await
    }

    async fn holders(
        &mut self,
        table: Table,
        key: &RecordKey,
    ) -> Result<Vec<QueueName>, StoreError> {
        self.0.holders(table, key).await
    }
}

#[test]
fn a_length_that_is_not_that_of_the_index_is_found() {
    run(async |mut f| {
        everything(&mut f).await;
        let report = check(&mut Miscounting(f.store.clone(), Index::Retrying)).await;
        assert_found(&report, Check::Counts, "the index retrying counts 3 entries and has 2");
        let report = check(&mut Miscounting(f.store.clone(), Index::Deadline)).await;
        assert_found(&report, Check::Counts, "the index deadline counts 2 entries and has 1");
        assert_eq!(report.findings.len(), 1);
    });
}

#[test]
fn a_pass_ends_behind_pages_that_are_not_full_or_when_the_store_grows_too_fast() {
    let mut pass = Pass::new(5);
    for (length, is_over) in [(10, false), (9, false), (10, false), (9, false), (3, true)] {
        pass.page(length, 10);
        assert_eq!(pass.is_over, is_over);
    }
    assert_eq!(pass.count, 41);
    let mut pass = Pass { most: 25, ..Pass::new(0) };
    for is_over in [false, false, true] {
        pass.page(10, 10);
        assert_eq!(pass.is_over, is_over);
    }
}

#[test]
fn its_future_can_move_between_threads() {
    fn is_send(_: impl Send) {}
    run(async |mut f| is_send(verify(&mut f.store, &mut |_| {})));
}
