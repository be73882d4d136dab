//! Records whose format number a newer server has raised: each call that has to read one says so, and changes nothing.

use crate::jobs_fixture::{Fixture, HOUR, SECOND, at_once, enqueue_of, job, queue, with_id, with_key};
use bytes::Bytes;
use redrive::domain::{BreakerName, DeadPart, Failure, JobId, Lease, NewJob, Outcome, When};
use redrive::queue::{Ack, BreakerOrder, Claim, DeadLetterQuery, Extend, JobQuery, Nack, NewPause, Purge, Requeue};
use redrive::queue::{Answer, Settlements, Share, Sweep, Verb, View, Which};
use redrive::store::StoreError;
use redrive::store::storage::{Batch, CounterGroup, Found, Index, Read, Reads, RecordKey, Storage, Table, Write};

/// Where the format stands in a record, and whether a checksum ends it.
fn format_of(table: Table) -> (usize, bool) {
    match table {
        Table::Job => (5, true),
        Table::History => (13, true),
        Table::Lease => (47, false),
        Table::Dead => (8, true),
        Table::Key => (6, false),
        _ => (0, !matches!(table, Table::Queue | Table::Breaker)),
    }
}

/// The number of the format is raised by one.
fn raise(f: &mut Fixture, table: Table, key: RecordKey) {
    raise_in("q", f, table, key);
}

fn raise_in(name: &str, f: &mut Fixture, table: Table, key: RecordKey) {
    let found = at_once(f.store.read(&queue(name), &[Read::Record(table, key.clone())])).unwrap().unwrap().remove(0);
    let mut record = found.record().expect("the record is there").to_vec();
    let (at, sealed) = format_of(table);
    // The sum of a dead letter leaves out its number of death.
    let from = if table == Table::Dead { 8 } else { 0 };
    if sealed {
        record.truncate(record.len() - 4);
    }
    assert_eq!(record[at], 1, "{table:?}");
    record[at] = 2;
    if sealed {
        record.extend(crc32c::crc32c(&record[from..]).to_le_bytes());
    }
    let writes = vec![Write::Put(table, key, record.into())];
    at_once(f.store.apply(&queue(name), &Batch { writes, ..Batch::default() })).unwrap();
}

/// All that is stored, but for counts of outcomes, whose time ends by the clock.
fn dump(f: &mut Fixture) -> Vec<(String, Found)> {
    let mut all = Vec::new();
    for table in Table::ALL.into_iter().filter(|table| *table != Table::Outcomes) {
        all.push((format!("{table:?}"), f.read(Read::Scan(table, None, 1_000))));
    }
    for index in Index::ALL {
        let range = Read::Range { index, after: None, up_to: None, limit: 1_000, reverse: false };
        all.push((format!("{index:?}"), f.read(range)));
    }
    for group in [CounterGroup::Totals, CounterGroup::ErrorTypes] {
        all.push((format!("{group:?}"), f.read(Read::Counters(group))));
    }
    all
}

/// The call fails by the name of the format, and the store is as it was.
#[track_caller]
fn assert_named<T>(f: &mut Fixture, what: &str, call: impl FnOnce(&mut Fixture) -> Result<T, StoreError>) {
    let before = dump(f);
    let error = call(f).err().unwrap_or_else(|| panic!("{what}: it was carried out"));
    let StoreError::NewerFormat(named) = &error else { panic!("{what}: {error}") };
    assert!(named.contains("format 2") && named.contains("use "), "{what}: {named}");
    for (before, after) in before.into_iter().zip(dump(f)) {
        assert_eq!(before, after, "{what}");
    }
}

fn claim_of(queues: &[&str], max_jobs: usize, request_id: &str) -> Verb {
    Verb::Claim(Claim {
        shares: queues.iter().map(|name| Share { queue: queue(name), first: usize::MAX }).collect(),
        max_jobs,
        max_bytes: 1 << 20,
        lease_duration: None,
        worker_id: "w".into(),
        request_id: request_id.into(),
        settle: Settlements::default(),
    })
}

fn ack(lease: Lease) -> Verb {
    let acks = vec![Ack { lease, note: String::new(), result: Bytes::new(), breaker_key: String::new() }];
    Verb::Settle(Settlements { acks, ..Settlements::default() })
}

fn nack(lease: Lease) -> Verb {
    let outcome = Outcome::Failed { failure: Failure::new("E", ""), permanent: false, retry_after: None };
    let nacks = vec![Nack { lease, outcome, checkpoint: String::new() }];
    Verb::Settle(Settlements { nacks, ..Settlements::default() })
}

fn extend(lease: Lease) -> Verb {
    let extensions = vec![Extend { lease, duration: None, checkpoint: "half way".into() }];
    Verb::Settle(Settlements { extensions, ..Settlements::default() })
}

fn sweep() -> Verb {
    let all = Sweep {
        asked_at: redrive::domain::Timestamp::MAX,
        spare_made_before: Default::default(),
        spare_until: Default::default(),
    };
    Verb::Sweep(all, vec![queue("q")])
}

fn cancel(id: &str) -> Verb {
    Verb::Cancel(JobId::parse(id), None, String::new())
}

fn get(id: &str) -> View {
    View::Job(JobId::parse(id), None)
}

fn list() -> View {
    View::Jobs(JobQuery {
        queue: queue("q"),
        state: None,
        job_type: None,
        after: None,
        limit: 10,
        full: true,
        max_bytes: usize::MAX,
        looks_max: usize::MAX,
    })
}

fn list_dead() -> View {
    let part = DeadPart { queue: queue("q"), overflow_only: false };
    View::DeadLetters(DeadLetterQuery { part, after: 0, limit: 10, search: None, full: true, max_bytes: usize::MAX })
}

fn requeue(target: Option<&str>) -> Verb {
    Verb::Requeue(Requeue {
        part: DeadPart { queue: queue("q"), overflow_only: false },
        which: Which::Oldest { limit: 10, among: None },
        target: target.map(queue),
        keep_attempts: false,
        reason: String::new(),
        dry_run: false,
        request: None,
    })
}

/// Has failed once and waits, READY: `a`, and behind it `b`.
fn waiting() -> Fixture {
    let mut f = Fixture::new();
    let expiring = NewJob { expiry: Some(When::After(2 * HOUR)), ..with_id("a") };
    f.enqueue(expiring);
    let lease = f.claim();
    f.fail(lease, Failure::new("E", "it did not work"), false);
    f.advance(HOUR);
    f.enqueue(with_id("b"));
    f.run(sweep());
    f
}

#[test]
fn of_a_job_that_waits() {
    for table in [Table::Job, Table::History] {
        let mut f = waiting();
        raise(&mut f, table, RecordKey::Number(1));
        let what = |verb: &str| format!("{verb}, {table:?}");
        assert_named(&mut f, &what("Claim"), |f| f.try_run(claim_of(&["q"], 2, "")));
        assert_named(&mut f, &what("Claim of one request"), |f| f.try_run(claim_of(&["q"], 2, "r")));
        assert_named(&mut f, &what("CancelJob"), |f| f.try_run(cancel("a")));
        assert_named(&mut f, &what("GetJob"), |f| f.try_look(get("a")));
        assert_named(&mut f, &what("ListJobs"), |f| f.try_look(list()));
        f.advance(HOUR);
        assert_named(&mut f, &what("sweep of a deadline"), |f| f.try_run(sweep()));
    }
}

#[test]
fn of_a_job_that_is_leased() {
    for table in [Table::Job, Table::History, Table::Lease] {
        let mut f = waiting();
        let lease = f.claim();
        raise(&mut f, table, RecordKey::Number(1));
        let what = |verb: &str| format!("{verb}, {table:?}");
        assert_named(&mut f, &what("Ack"), |f| f.try_run(ack(lease.clone())));
        assert_named(&mut f, &what("Nack"), |f| f.try_run(nack(lease.clone())));
        assert_named(&mut f, &what("CancelJob"), |f| f.try_run(cancel("a")));
        assert_named(&mut f, &what("GetJob"), |f| f.try_look(get("a")));
        assert_named(&mut f, &what("ListJobs"), |f| f.try_look(list()));
        f.advance(60 * SECOND);
        assert_named(&mut f, &what("sweep of a lease"), |f| f.try_run(sweep()));
    }
    let mut f = waiting();
    let lease = f.claim();
    raise(&mut f, Table::Lease, RecordKey::Number(1));
    // Its end is not in the record, and has moved before the record is looked at.
    let before = f.record(Table::Lease, 1);
    let error = f.try_run(extend(lease)).expect_err("the checkpoint is saved");
    assert!(matches!(&error, StoreError::OutcomeUnknown(why) if why.contains("format 2")), "{error}");
    assert_eq!(f.record(Table::Lease, 1), before);
}

#[test]
fn of_a_dead_letter() {
    for table in [Table::Job, Table::History, Table::Dead] {
        let mut f = Fixture::new();
        f.set(|queue| queue.dead_letters.retention = Some(HOUR));
        f.enqueue(with_key("k"));
        let lease = f.claim();
        f.fail(lease, Failure::new("E", "it did not work"), true);
        raise(&mut f, table, RecordKey::Number(1));
        let what = |verb: &str| format!("{verb}, {table:?}");
        assert_named(&mut f, &what("ListDeadLetters"), |f| f.try_look(list_dead()));
        assert_named(&mut f, &what("ListJobs"), |f| f.try_look(list()));
        assert_named(&mut f, &what("Requeue"), |f| f.try_run(requeue(None)));
        assert_named(&mut f, &what("PurgeDeadLetters"), |f| {
            let part = DeadPart { queue: queue("q"), overflow_only: false };
            let which = Which::Oldest { limit: 10, among: None };
            f.try_run(Verb::Purge(Purge { part, which, dry_run: false, request: None }))
        });
        f.advance(HOUR);
        assert_named(&mut f, &what("sweep of what is kept for a time"), |f| f.try_run(sweep()));
    }
}

#[test]
fn of_what_holds_a_queue_back_and_of_a_key() {
    let hold = |table, key: RecordKey| {
        let mut f = waiting();
        f.run(Verb::Pause(queue("q"), Some(NewPause { duration: None, reason: String::new() })));
        let name = BreakerName::parse("queue:q").unwrap();
        let order = BreakerOrder::Force { open: true, reason: String::new() };
        f.run(Verb::SetBreaker(name, order));
        raise(&mut f, table, key);
        f.forget();
        f
    };
    for (table, key) in [(Table::Queue, RecordKey::Only), (Table::Breaker, RecordKey::Group(0))] {
        let mut f = hold(table, key);
        assert_named(&mut f, "Claim", |f| f.try_run(claim_of(&["q"], 1, "")));
        assert_named(&mut f, "ResumeQueue", |f| f.try_run(Verb::Pause(queue("q"), None)));
        assert_named(&mut f, "ListQueues", |f| f.try_look(View::Queues(None, 10)));
        assert_named(&mut f, "sweep", |f| f.try_run(sweep()));
    }
    let mut f = Fixture::new();
    f.enqueue(with_key("k"));
    raise(&mut f, Table::Key, RecordKey::Text("k".into()));
    assert_named(&mut f, "Enqueue", |f| f.try_run(enqueue_of(vec![with_key("k")])));
}

#[test]
fn what_a_claim_has_taken_before_it_meets_one_returns() {
    let mut f = Fixture::new();
    let second = NewJob { id: Some(JobId::parse("newer")), ..job("second") };
    f.enqueue(with_id("first"));
    f.enqueue(second);
    raise_in("second", &mut f, Table::Job, RecordKey::Number(2));
    let error = f.try_run(claim_of(&["q", "second"], 10, "r")).expect_err("it was claimed");
    assert!(matches!(error, StoreError::NewerFormat(_)), "nothing is in doubt: {error}");
    assert!(f.entries(Index::Leased).is_empty());
    assert_eq!(f.ready(), [1]);
    // Asked again for what can be read, it gets it at once.
    let Ok(Answer::Claim(Some(claimed))) = f.try_run(claim_of(&["q"], 10, "r")) else { panic!("no claim") };
    assert_eq!(claimed.jobs[0].spec.id, JobId::parse("first"));
}
