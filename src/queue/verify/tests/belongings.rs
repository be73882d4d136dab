//! What belongs to jobs and leads to them, and the bytes of it.

use super::*;

#[test]
fn what_does_not_lead_to_its_job_is_found() {
    use Check::Indexes;
    after(
        async |f| {
            let deadline = f.entries(Index::Deadline).await.remove(0);
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
        ],
    );
    after(
        async |f| {
            let (id, key) = (
                f.record(Table::Id, text("later")).await,
                f.record(Table::Key, text("k-ready")).await,
            );
            let later = f.number_of("later").await;
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
        ],
    );
    after(
        async |f| {
            let kept = f.number_of("kept").await;
            let record = f.record(Table::Key, text("k-kept")).await.unwrap();
            let record = KeyRecord { free_at: None, ..records::read_key(&record).unwrap() };
            assert_eq!(record.number, kept);
            vec![Write::Put(Table::Key, text("k-kept"), records::key(&record))]
        },
        &[
            (Indexes, "one idempotency key leads to job 10 (kept), wrongly"),
            (
                Indexes,
                "the end of the idempotency key \"k-kept\" is known, and its job is not done",
            ),
        ],
    );
    after(
        async |f| vec![Write::Delete(Table::History, number(f.number_of("kept").await))],
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
        async |f| {
            vec![Write::Remove(Index::FinishedKey, f.entries(Index::FinishedKey).await.remove(0))]
        },
        &[(Indexes, "the idempotency key \"k-kept\" would not be freed at its time")],
    );
    after(
        async |_| vec![Write::Delete(Table::Key, text("k-kept"))],
        &[(Indexes, "an end leads to the idempotency key \"k-kept\", which is not there")],
    );
    after(
        async |f| vec![Write::Remove(Index::Expires, f.entries(Index::Expires).await.remove(0))],
        &[(Indexes, "the request \"claim:w:r\" would never be removed")],
    );
    after(
        async |_| vec![Write::Delete(Table::Request, text("claim:w:r"))],
        &[(Indexes, "an expiry leads to the request \"claim:w:r\", which is not there")],
    );
    after(
        async |_| vec![Write::Put(Table::Move, number(77), Bytes::from_static(b"\x01mark"))],
        &[(Indexes, "the move of job 77 would never be removed")],
    );
}

#[test]
fn parts_that_are_missing_or_too_many_are_found() {
    use Check::Indexes;
    after(
        async |f| {
            let (often, dead) = (f.number_of("often").await, f.number_of("dead-1").await);
            let attempt = f.record(Table::Attempt, RecordKey::Part(often, 1)).await.unwrap();
            let failure = f.record(Table::Failure, RecordKey::Part(often, 0)).await.unwrap();
            vec![
                Write::Delete(Table::Attempt, RecordKey::Part(often, 3)),
                Write::Delete(Table::Attempt, RecordKey::Part(often, 50)),
                Write::Put(Table::Attempt, RecordKey::Part(often, 51), attempt),
                Write::Delete(Table::Failure, RecordKey::Part(dead, 0)),
                Write::Put(Table::Failure, RecordKey::Part(often, 9), failure),
            ]
        },
        &[
            (Indexes, "2 attempts of job 6 (often) are not there"),
            (Indexes, "one attempt leads to job 6 (often), wrongly"),
            (Indexes, "one failure leads to job 6 (often), wrongly"),
            (Indexes, "the first failure of job 7 (dead-1) is not there"),
        ],
    );
    after(
        async |f| {
            let [later, gone] = [f.number_of("later").await, 4_000];
            let other = Bytes::from_static(b"other");
            vec![
                Write::Put(Table::Body, number(later), other.clone()),
                Write::Put(Table::Result, number(later), records::result(b"r")),
                Write::Put(Table::Body, number(gone), other),
                Write::Put(Table::Result, number(gone), records::result(b"r")),
            ]
        },
        &[
            (Indexes, "one body leads to job 4 (later), wrongly"),
            (Indexes, "one result leads to job 4 (later), wrongly"),
            (Indexes, "a body of job 4000 is there without it"),
            (Indexes, "a result of job 4000 is there without it"),
        ],
    );
}

#[test]
fn bytes_that_are_not_those_that_were_written_are_found() {
    use Check::Checksums;
    let of_number = |table: Table, id: &'static str, part: &[(Check, &str)]| {
        after(
            async |f| {
                let key = number(f.number_of(id).await);
                rotten(f, table, key).await
            },
            part,
        );
    };
    of_number(
        Table::Job,
        "later",
        &[(Checksums, "the record of job 4 (later) is not what was written")],
    );
    of_number(
        Table::Body,
        "ready",
        &[(Checksums, "the record of job 1 (ready) is not what was written")],
    );
    of_number(Table::History, "retried", &[(Checksums, "the history of job 5 (retried)")]);
    of_number(Table::Dead, "dead-1", &[(Checksums, "the dead-letter record of job 7 (dead-1)")]);
    of_number(Table::Result, "kept", &[(Checksums, "one result of job 10 (kept)")]);
    let of_part = |table: Table, part: u8, expected: &[(Check, &str)]| {
        after(
            async |f| {
                let key = RecordKey::Part(f.number_of("often").await, part);
                rotten(f, table, key).await
            },
            expected,
        );
    };
    of_part(Table::Attempt, 33, &[(Checksums, "one attempt of job 6 (often)")]);
    of_part(Table::Failure, 1, &[(Checksums, "one failure of job 6 (often)")]);
    after(
        async |_| {
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
    run(async |mut f| {
        everything(&mut f).await;
        let later = f.number_of("later").await;
        let mut record = f.record(Table::Job, number(later)).await.unwrap().to_vec();
        record.truncate(record.len() - 4);
        record[5] = 9;
        let record = crate::queue::encoding::seal(record);
        f.write(vec![Write::Put(Table::Job, number(later), record.into())]).await;
        let error = verify(&mut f.store, &mut |_| {}).await.unwrap_err();
        let StoreError::NewerFormat(what) = &error else { panic!("{error}") };
        assert!(what.contains("queue q: the record of job 4 has format 9"), "{what}");
    });
}
