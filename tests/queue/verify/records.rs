//! What belongs to jobs and leads to them, and the bytes of it.

use super::*;
use redrive::queue::poll_once;
use redrive::store::StoreError;

#[test]
fn what_does_not_lead_to_its_job_is_found() {
    use Check::Indexes;
    after(
        |f| {
            let deadline = f.entries(Index::Deadline).remove(0);
            vec![
                Write::Delete(Table::Id, text("ready")),
                Write::Delete(Table::Key, text("k-ready")),
                Write::Remove(Index::Deadline, deadline),
            ]
        },
        &[
            (Indexes, "(ready) cannot be found by its id"),
            (Indexes, "(ready) cannot be found by its idempotency key"),
            (Indexes, "(ready) cannot be found by its deadline"),
            (Indexes, "an end leads to the idempotency key \"k-ready\", which is not there"),
        ],
    );
    after(
        |f| {
            let (id, key) = (f.record(Table::Id, text("later")), f.record(Table::Key, text("k-ready")));
            let later = f.number_of("later");
            vec![
                Write::Put(Table::Id, text("another"), id.unwrap()),
                Write::Put(Table::Key, text("another"), key.unwrap()),
                Write::Insert(Index::Deadline, Entry::number(5, later)),
            ]
        },
        &[
            (Indexes, "one idempotency key leads to job 1 (ready), wrongly"),
            (Indexes, "one deadline leads to job 4 (later), wrongly"),
            (Indexes, "one id leads to job 4 (later), wrongly"),
            (Indexes, "the idempotency key \"another\" would not be freed at its time"),
        ],
    );
    after(
        |f| vec![Write::Delete(Table::History, number(f.number_of("kept")))],
        &[
            (Check::Places, "(kept), COMPLETED: its history says that it is elsewhere"),
            (Indexes, "one attempt leads to job 10 (kept), wrongly"),
        ],
    );
}

#[test]
fn records_that_wait_for_their_end_have_one() {
    use Check::Indexes;
    after(
        |f| {
            let kept = |entry: &Entry| entry.member == Member::Text("k-kept".into());
            let end = f.entries(Index::FinishedKey).into_iter().find(kept).unwrap();
            vec![Write::Remove(Index::FinishedKey, end)]
        },
        &[(Indexes, "the idempotency key \"k-kept\" would not be freed at its time")],
    );
    after(
        |_| vec![Write::Delete(Table::Key, text("k-kept"))],
        &[(Indexes, "an end leads to the idempotency key \"k-kept\", which is not there")],
    );
    after(
        |f| vec![Write::Remove(Index::Expires, f.entries(Index::Expires).remove(0))],
        &[(Indexes, "the request \"claim:w:r\" would never be removed")],
    );
    after(
        |_| vec![Write::Delete(Table::Request, text("claim:w:r"))],
        &[(Indexes, "an expiry leads to the request \"claim:w:r\", which is not there")],
    );
    after(
        |_| vec![Write::Put(Table::Move, number(77), Bytes::from_static(b"\x01mark"))],
        &[(Indexes, "the move of job 77 would never be removed")],
    );
}

#[test]
fn parts_that_are_missing_or_too_many_are_found() {
    use Check::Indexes;
    after(
        |f| {
            let (often, dead) = (f.number_of("often"), f.number_of("dead-1"));
            let attempt = f.record(Table::Attempt, RecordKey::Part(often, 1)).unwrap();
            let failure = f.record(Table::Failure, RecordKey::Part(often, 0)).unwrap();
            let event = f.record(Table::Event, RecordKey::Part(often, 1)).unwrap();
            vec![
                Write::Delete(Table::Attempt, RecordKey::Part(often, 3)),
                Write::Delete(Table::Attempt, RecordKey::Part(often, 50)),
                Write::Put(Table::Attempt, RecordKey::Part(often, 51), attempt),
                Write::Delete(Table::Failure, RecordKey::Part(dead, 0)),
                Write::Delete(Table::Event, RecordKey::Part(often, 2)),
                Write::Put(Table::Event, RecordKey::Part(dead, 1), event),
                Write::Put(Table::Failure, RecordKey::Part(often, 9), failure),
            ]
        },
        &[
            (Indexes, "2 attempts of job 6 (often) are not there"),
            (Indexes, "one attempt leads to job 6 (often), wrongly"),
            (Indexes, "1 events of job 6 (often) are not there"),
            (Indexes, "one failure leads to job 6 (often), wrongly"),
            (Indexes, "one event leads to job 7 (dead-1), wrongly"),
            (Indexes, "the first failure of job 7 (dead-1) is not there"),
        ],
    );
    after(
        |f| {
            let [later, gone, kept] = [f.number_of("later"), 4_000, f.number_of("kept")];
            let other = Bytes::from_static(b"other");
            let result = f.record(Table::Result, number(kept)).unwrap();
            vec![
                Write::Put(Table::Body, number(later), other.clone()),
                Write::Put(Table::Result, number(later), result.clone()),
                Write::Put(Table::Body, number(gone), other),
                Write::Put(Table::Result, number(gone), result.clone()),
                Write::Put(Table::Event, RecordKey::Part(gone, 1), result),
            ]
        },
        &[
            (Indexes, "one body leads to job 4 (later), wrongly"),
            (Indexes, "one result leads to job 4 (later), wrongly"),
            (Indexes, "a body of job 4000 is there without it"),
            (Indexes, "a result of job 4000 is there without it"),
            (Indexes, "an event of job 4000 is there without it"),
            (Check::Checksums, "one event of job 4000 is not what was written"),
        ],
    );
}

#[test]
fn bytes_that_are_not_those_that_were_written_are_found() {
    use Check::Checksums;
    let cases = [
        (Table::Job, "later", None, "the record of job 4 (later) is not what was written"),
        (Table::Body, "ready", None, "the record of job 1 (ready) is not what was written"),
        (Table::History, "retried", None, "the history of job 5 (retried)"),
        (Table::Dead, "dead-1", None, "the dead-letter record of job 7 (dead-1)"),
        (Table::Result, "kept", None, "one result of job 10 (kept)"),
        (Table::Attempt, "often", Some(33), "one attempt of job 6 (often)"),
        (Table::Event, "often", Some(3), "one event of job 6 (often)"),
        (Table::Failure, "often", Some(1), "one failure of job 6 (often)"),
    ];
    for (table, id, part, expected) in cases {
        after(
            |f| {
                let job = f.number_of(id);
                let key = part.map_or_else(|| number(job), |part| RecordKey::Part(job, part));
                let mut record = f.record(table, key.clone()).unwrap().to_vec();
                *record.last_mut().unwrap() ^= 1;
                vec![Write::Put(table, key, record.into())]
            },
            &[(Checksums, expected)],
        );
    }
    after(
        |_| {
            let short = Bytes::from_static(b"short");
            vec![
                Write::Put(Table::Id, text("another"), short.clone()),
                Write::Put(Table::Key, text("another"), short.clone()),
                Write::Put(Table::Version, RecordKey::Group(0), short),
                Write::Put(Table::Breaker, RecordKey::Group(0), Bytes::from_static(b"\x01")),
            ]
        },
        &[
            (Checksums, "the record of the id \"another\" is not what was written"),
            (Checksums, "the record of the idempotency key \"another\" is not what was written"),
            (Checksums, "one of its versions"),
            (Checksums, "its breaker is not what was written"),
        ],
    );
}

#[test]
fn a_record_of_a_newer_format_is_an_error_that_names_it() {
    let mut f = everything();
    let later = f.number_of("later");
    let mut record = f.record(Table::Job, number(later)).unwrap().to_vec();
    record.truncate(record.len() - 4);
    record[5] = 9;
    record.extend(crc32c::crc32c(&record).to_le_bytes());
    f.write(vec![Write::Put(Table::Job, number(later), record.into())]);
    let error = poll_once(verify(&mut f.store, &mut |_| {})).unwrap().unwrap_err();
    let StoreError::NewerFormat(what) = &error else { panic!("{error}") };
    assert!(what.contains("queue q: the record of job 4 has format 9"), "{what}");
}
