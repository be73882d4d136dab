//! Fields that a newer server has added to records of a format that this one knows: they are still there when a record was
//! written again.

use crate::{jobs_fixture, overtaken};
use jobs_fixture::{HOUR, SECOND, at_once, with_id};
use overtaken::{ids, named, oldest, request, requeue_to};
use redrive::domain::{BreakerName, Failure, JobId, QueueName};
use redrive::queue::{Ack, BreakerOrder, Claim, Extend, Import, NewPause, QueueHolds, Settlements, Share, Sweep};
use redrive::queue::{Answer, Verb};
use redrive::store::memory::MemoryStorage;
use redrive::store::storage::{Batch, NO_GROUP, Read, Reads, RecordKey, Storage, Table, Write};
use std::time::Duration;

/// Tag, length, value.
const FIELD: &[u8] = b"\xc8\x08tomorrow";

/// A record of the store.
struct Record {
    store: MemoryStorage,
    queue: QueueName,
    table: Table,
    key: RecordKey,
}

impl Record {
    fn of(store: &MemoryStorage, queue: &str, table: Table, key: RecordKey) -> Self {
        Self { store: store.clone(), queue: named(queue), table, key }
    }

    fn numbered(f: &jobs_fixture::Fixture, table: Table, number: u64) -> Self {
        Self::of(&f.store, "q", table, RecordKey::Number(number))
    }

    fn bytes(&self) -> Vec<u8> {
        let read = [Read::Record(self.table, self.key.clone())];
        let found = at_once(self.store.clone().read(&self.queue, &read)).unwrap().unwrap().remove(0);
        found.record().expect("the record is there").to_vec()
    }

    fn put(&self, bytes: Vec<u8>) {
        let writes = vec![Write::Put(self.table, self.key.clone(), bytes.into())];
        at_once(self.store.clone().apply(&self.queue, &Batch { writes, ..Batch::default() })).unwrap();
    }

    /// Adds the field, as a newer server would have written it.
    fn grow(self) -> Self {
        self.put([&self.bytes(), FIELD].concat());
        self
    }

    /// The same, where a checksum ends the record.
    fn grow_sealed(self) -> Self {
        let mut bytes = self.bytes();
        bytes.truncate(bytes.len() - 4);
        bytes.extend(FIELD);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        self.put(bytes);
        self
    }

    fn has_field(&self) -> bool {
        self.bytes().windows(FIELD.len()).any(|bytes| bytes == FIELD)
    }
}

fn sweep(f: &mut jobs_fixture::Fixture) {
    let all = Sweep {
        asked_at: redrive::domain::Timestamp::MAX,
        spare_made_before: Default::default(),
        spare_until: Default::default(),
    };
    f.run(Verb::Sweep(all, vec![named("q")]));
}

fn extend_saving(f: &mut jobs_fixture::Fixture, lease: redrive::domain::Lease, checkpoint: &str) {
    let extensions = vec![Extend { lease, duration: None, checkpoint: checkpoint.into() }];
    f.run(Verb::Settle(Settlements { extensions, ..Settlements::default() }));
}

fn set_breaker(f: &mut jobs_fixture::Fixture, name: &str, order: BreakerOrder) {
    f.run(Verb::SetBreaker(BreakerName::parse(name).unwrap(), order));
}

fn force(open: bool) -> BreakerOrder {
    BreakerOrder::Force { open, reason: "a test".into() }
}

#[test]
fn of_a_job_and_its_history_after_a_nack() {
    let mut f = jobs_fixture::Fixture::new();
    f.enqueue(with_id("a"));
    let lease = f.claim();
    let number = lease.number;
    f.fail(lease, Failure::new("E", ""), false);
    let records = [Table::Job, Table::History].map(|table| Record::numbered(&f, table, number).grow_sealed());
    f.advance(HOUR);
    let lease = f.claim();
    f.fail(lease, Failure::new("E", ""), false);
    assert_eq!(f.view("a").progress.tries, 2);
    assert!(records.iter().all(Record::has_field));
}

#[test]
fn of_a_lease_after_a_checkpoint() {
    let mut f = jobs_fixture::Fixture::new();
    f.enqueue(with_id("a"));
    let lease = f.claim();
    let record = Record::numbered(&f, Table::Lease, lease.number).grow();
    extend_saving(&mut f, lease, "half way");
    assert_eq!(f.view("a").progress.checkpoint, "half way");
    assert!(record.has_field());
}

#[test]
fn of_a_queue_after_a_pause() {
    let mut f = jobs_fixture::Fixture::new();
    f.enqueue(with_id("a"));
    let pause = |reason: &str| Some(NewPause { duration: None, reason: reason.into() });
    f.run(Verb::Pause(named("q"), pause("one")));
    let record = Record::of(&f.store, "q", Table::Queue, RecordKey::Only).grow();
    f.run(Verb::Pause(named("q"), pause("two")));
    assert!(record.has_field());
    f.run(Verb::Pause(named("q"), None));
    assert!(record.has_field());
}

#[test]
fn of_a_breaker_after_a_transition_and_what_follows_from_one() {
    let mut f = jobs_fixture::Fixture::new();
    for _ in 0..6 {
        f.enqueue(jobs_fixture::job("q"));
    }
    let leases: Vec<_> = (0..5).map(|_| f.claim()).collect();
    f.advance(SECOND);
    for lease in leases {
        f.fail(lease, Failure::new("ConnectException", "Connection refused"), false);
    }
    let record = Record::of(&f.store, "q", Table::Breaker, RecordKey::Group(NO_GROUP)).grow();
    // Its failures are returned to their jobs.
    let before = record.bytes();
    sweep(&mut f);
    assert!(record.has_field());
    assert!(record.bytes().len() < before.len(), "nothing was returned");
    for order in [force(false), BreakerOrder::Reset, force(true)] {
        set_breaker(&mut f, "queue:q", order);
        assert!(record.has_field());
    }
}

#[test]
fn of_the_breaker_of_the_dead_letters_within_its_queue() {
    let mut f = jobs_fixture::Fixture::new();
    f.enqueue(with_id("a"));
    set_breaker(&mut f, "dlq:q", force(true));
    let record = Record::of(&f.store, "q", Table::Queue, RecordKey::Only);
    // Format, tag and length, which is short enough for a byte.
    let mut bytes = record.bytes();
    assert_eq!((bytes[1], usize::from(bytes[2])), (2, bytes.len() - 3));
    bytes[2] += FIELD.len() as u8;
    bytes.extend(FIELD);
    record.put(bytes);
    set_breaker(&mut f, "dlq:q", BreakerOrder::Reset);
    assert!(record.has_field());
    f.run(Verb::Pause(named("q"), Some(NewPause { duration: None, reason: String::new() })));
    assert!(record.has_field());
}

#[test]
fn of_an_attempt_that_is_acked_late() {
    let mut f = jobs_fixture::Fixture::new();
    f.set(|queue| queue.completed_retention = Some(HOUR));
    f.enqueue(with_id("a"));
    let lease = f.claim();
    f.advance(60 * SECOND);
    sweep(&mut f);
    let record = Record::of(&f.store, "q", Table::Attempt, RecordKey::Part(lease.number, 1)).grow_sealed();
    let acks = vec![Ack { lease, note: "late".into(), result: Default::default(), breaker_key: String::new() }];
    f.run(Verb::Settle(Settlements { acks, ..Settlements::default() }));
    assert_eq!(f.view("a").attempts[0].note, "late");
    assert!(record.has_field());
}

#[test]
fn of_a_job_on_its_way_to_another_queue_and_of_its_move() {
    let f = overtaken::Fixture::new();
    f.dead_letters(&ids(0..1));
    let store = f.server().inner;
    let record = |queue, table, number| Record::of(&store, queue, table, RecordKey::Number(number));
    for table in [Table::Job, Table::History] {
        record("q", table, 1).grow_sealed();
    }
    // It has begun.
    assert!(!f.killed(Verb::Requeue(requeue_to(Some("other"), oldest(1), None)), 1, false));
    let moving = record("q", Table::Move, 1).grow_sealed();
    f.advance(Duration::from_secs(60));
    f.sweep();
    assert!(moving.has_field());
    let Some(RecordKey::Number(number)) = f.scan("other", Table::Job).pop() else { panic!("it has not arrived") };
    for table in [Table::Job, Table::History] {
        assert!(record("other", table, number).has_field(), "{table:?}");
    }
}

#[test]
fn of_the_journal_of_a_bulk_call_that_goes_on() {
    let f = overtaken::Fixture::new();
    f.dead_letters(&ids(0..600));
    let requeue = || requeue_to(None, oldest(600), request());
    assert!(!f.killed(Verb::Requeue(requeue()), 1, false));
    let key = f.scan("q", Table::Request).remove(0);
    let journal = Record::of(&f.server().inner, "q", Table::Request, key).grow_sealed();
    assert_eq!(f.requeue(requeue()).ids.len(), 600);
    assert!(journal.has_field());
}

#[test]
fn of_a_request_that_claims_again() {
    let mut f = jobs_fixture::Fixture::new();
    let mut claim = || {
        f.enqueue(jobs_fixture::job("q"));
        let claimed = f.run(Verb::Claim(Claim {
            shares: vec![Share { queue: named("q"), first: usize::MAX }],
            max_jobs: 1,
            max_bytes: 1 << 20,
            lease_duration: None,
            worker_id: "w".into(),
            request_id: "r".into(),
            settle: Settlements::default(),
        }));
        let Answer::Claim(Some(claimed)) = claimed else { panic!("an answer of another verb") };
        let lease = claimed.jobs[0].delivery.lease.clone();
        f.ack(lease);
        Record::of(&f.store, "q", Table::Request, RecordKey::Text("claim:w:r".into()))
    };
    let record = claim().grow();
    claim();
    assert!(record.has_field());
}

#[test]
fn of_a_job_that_is_imported() {
    let mut source = jobs_fixture::Fixture::new();
    source.enqueue(with_id("failed"));
    let lease = source.claim();
    source.fail(lease, Failure::new("E", ""), true);
    source.enqueue(with_id("put-back"));
    let lease = source.claim();
    source.fail(lease, Failure::new("E", ""), false);
    for number in [1, 2] {
        for table in [Table::Job, Table::History] {
            Record::numbered(&source, table, number).grow_sealed();
        }
    }
    let jobs = ["failed", "put-back"].map(|id| source.view(id)).into();
    let mut target = jobs_fixture::Fixture::new();
    target.run(Verb::Import(Box::new(Import { queue: named("q"), holds: QueueHolds::default(), jobs })));
    for id in ["failed", "put-back"] {
        let id =
            Record::of(&target.store, "q", Table::Id, RecordKey::Text(JobId::parse(id).to_string().into())).bytes();
        for table in [Table::Job, Table::History] {
            assert!(Record::numbered(&target, table, id[5].into()).has_field(), "{table:?}");
        }
    }
}
