//! `redrive audit`: silent about a good store, and precise about every kind of damage.

use crate::{
    audited::one_of_everything,
    harness::{Harness, run},
};
use redrive::store::{AuditReport, Check, embedded, embedded::Embedded};
use rusqlite::Connection;
use std::{
    fs::OpenOptions,
    io::{Seek, SeekFrom, Write},
    path::Path,
};

fn audit(h: &Harness<Embedded>) -> AuditReport {
    let directory = h.database().parent().unwrap().to_owned();
    embedded::audit(&directory, &mut |_| {}).unwrap()
}

async fn busy() -> Harness<Embedded> {
    let mut h: Harness<Embedded> = Harness::new().await;
    one_of_everything(&mut h).await;
    h
}

/// What is found after this was done to the database.
async fn after(sql: &str) -> AuditReport {
    let mut h = busy().await;
    h.close().await;
    let database = Connection::open(h.database()).unwrap();
    assert!(database.execute(sql, []).unwrap() > 0, "{sql} changes nothing");
    drop(database);
    audit(&h)
}

#[track_caller]
fn assert_found(report: &AuditReport, check: Check, part: &str) {
    let has = |found: &redrive::store::Finding| found.check == check && found.what.contains(part);
    assert!(report.findings.iter().any(has), "no {check:?} with {part:?}: {:#?}", report.findings);
}

#[test]
fn a_busy_store_is_clean_while_it_runs_and_after_it() {
    run(async |_: Harness<Embedded>| {
        let mut h = busy().await;
        let beside = audit(&h);
        assert!(beside.is_clean(), "{:#?}", beside.findings);
        assert_eq!((beside.jobs, beside.queues.len()), (9, 4));
        assert!(beside.records > beside.jobs, "history counts, too");
        h.close().await;
        assert_eq!(audit(&h), beside);
        // And it has changed nothing.
        h.open().await;
        h.audit().await;
    });
}

#[test]
fn a_job_that_is_nowhere_or_in_two_places_is_found() {
    run(async |_: Harness<Embedded>| {
        let lost = after("DELETE FROM ready WHERE tie = 'ready'").await;
        assert_found(&lost, Check::Places, "(ready) is nowhere");
        assert_found(&lost, Check::Counts, "READY and there are");
        let lost = after("DELETE FROM completed").await;
        assert_found(&lost, Check::Places, "(kept) is nowhere");
        assert_found(&lost, Check::Counts, "it counts 1 COMPLETED and there are 0");
        let twice = "INSERT INTO scheduled SELECT queue, at, tie, rank, number, seen FROM ready \
                     WHERE tie = 'ready'";
        let twice = after(twice).await;
        assert_found(&twice, Check::Places, "(ready) is in 2 places: READY, SCHEDULED");
        let gone = after("DELETE FROM jobs WHERE number = (SELECT min(number) FROM dead)").await;
        assert_found(&gone, Check::Places, "DEAD holds job");
        assert_found(&gone, Check::Indexes, "an attempt of job");
        assert_found(&gone, Check::Indexes, "a failure of job");
        assert_found(&gone, Check::Indexes, "the progress of job");
        assert_found(&gone, Check::Indexes, "one id leads to job");
    });
}

#[test]
fn a_place_that_nobody_would_look_in_is_found() {
    run(async |_: Harness<Embedded>| {
        let rank = after("UPDATE ready SET rank = 0 WHERE rank = -9").await;
        assert_found(&rank, Check::Places, "not that of its priority and id");
        let time = after("UPDATE scheduled SET at = at + 1 WHERE tie = 'later'").await;
        assert_found(&time, Check::Places, "its time is not the one");
        let queue = after("UPDATE ready SET queue = 77 WHERE tie = 'ready'").await;
        assert_found(&queue, Check::Places, "it is in another queue, number 77");
        let seen = after("UPDATE ready SET seen = 1 WHERE tie = 'ready'").await;
        assert_found(&seen, Check::Places, "whether it has been out before");
        let death = after("UPDATE progress SET death = 55 WHERE death > 0").await;
        assert_found(&death, Check::Places, "its progress says that it is elsewhere");
        let elsewhere = after("UPDATE progress SET state = 2 WHERE state = 4").await;
        assert_found(&elsewhere, Check::Places, "(kept), COMPLETED: its progress says");
        let of_nobody = after("UPDATE jobs SET queue = 99 WHERE number = 1").await;
        assert_found(&of_nobody, Check::Places, "a queue that is not there");
    });
}

#[test]
fn counters_that_are_wrong_are_found() {
    run(async |_: Harness<Embedded>| {
        for column in ["ready", "scheduled", "leased", "completed_now", "dead", "overflow"] {
            let report = after(&format!("UPDATE queues SET {column} = {column} + 3")).await;
            assert_found(&report, Check::Counts, "it counts ");
        }
        let types = after("UPDATE dead_types SET count = count + 1").await;
        assert_found(&types, Check::Counts, "are said to have died of \"Hopeless\"");
        assert_found(&types, Check::Counts, "dead letters died of \"Hopeless\"");
        let keys = after("UPDATE queues SET finished_keys = 9 WHERE name = 'q'").await;
        assert_found(&keys, Check::Counts, "it counts 9 keys of finished jobs and there are 1");
        let death = after("UPDATE queues SET next_death = 1 WHERE name = 'dying'").await;
        assert_found(&death, Check::Counts, "the next dead letter gets number 1, again");
        let number = after("UPDATE store SET next_number = 2").await;
        assert_found(&number, Check::Counts, "the next job gets number 2, again");
    });
}

#[test]
fn jobs_that_are_not_accounted_for_are_found() {
    run(async |_: Harness<Embedded>| {
        for column in ["completed", "purged", "cancelled", "retention_expired"] {
            let report = after(&format!("UPDATE queues SET {column} = {column} + 2")).await;
            assert_found(&report, Check::Law, "2 jobs are held or went out and never came in");
        }
        let enqueued = after("UPDATE queues SET enqueued = enqueued + 1 WHERE name = 'q'").await;
        assert_eq!(enqueued.findings.len(), 1);
        assert_found(&enqueued, Check::Law, "1 jobs came in and are neither held nor accounted");
        let moved =
            after("UPDATE queues SET moved_in = moved_in + 1, completed = completed + 1").await;
        assert_found(&moved, Check::Law, "1 jobs moved out of queues and 5 into queues");
        let forgotten = after("UPDATE forgotten SET enqueued = 5").await;
        assert_found(&forgotten, Check::Law, "the queues that are no more: 5 jobs came in");
    });
}

#[test]
fn what_does_not_lead_to_its_job_is_found() {
    run(async |_: Harness<Embedded>| {
        let id = after("DELETE FROM ids WHERE id = 'ready'").await;
        assert_found(&id, Check::Indexes, "(ready) cannot be found by its id");
        let key = after("DELETE FROM keys WHERE key = 'k-ready'").await;
        assert_found(&key, Check::Indexes, "(ready) cannot be found by its idempotency key");
        let deadline = after("DELETE FROM deadlines").await;
        assert_found(&deadline, Check::Indexes, "(ready) cannot be found by its deadline");
        let id = after("UPDATE ids SET id = 'another' WHERE id = 'ready'").await;
        assert_found(&id, Check::Indexes, "one id leads to job 1 (ready), wrongly");
        let key = after("UPDATE keys SET key = 'another' WHERE key = 'k-ready'").await;
        assert_found(&key, Check::Indexes, "one idempotency key leads to job 1 (ready), wrongly");
        let deadline = after("UPDATE deadlines SET number = 4000").await;
        assert_found(
            &deadline,
            Check::Indexes,
            "one deadline leads to job 4000, which is not there",
        );
    });
}

#[test]
fn bytes_that_rot_are_found() {
    run(async |_: Harness<Embedded>| {
        // The last byte is one of the checksum.
        let rot = |table: &str, column: &str| {
            format!("UPDATE {table} SET {column} = substr({column}, 1, length({column}) - 1)")
        };
        let head = after(&rot("jobs", "head")).await;
        assert_found(&head, Check::Checksums, "the record of job 1");
        assert!(head.findings.iter().all(|found| found.check == Check::Checksums), "{head:#?}");
        let body = after("UPDATE jobs SET body = 'other' WHERE number = 1").await;
        assert_found(
            &body,
            Check::Checksums,
            "the record of job 1 (ready) is not what was written",
        );
        let progress = after(&rot("progress", "record")).await;
        assert_found(&progress, Check::Checksums, "the progress of job");
        let attempt = after(&rot("attempts", "record")).await;
        assert_found(&attempt, Check::Checksums, "one attempt of job");
        let result = after(&rot("results", "record")).await;
        assert_found(&result, Check::Checksums, "one result of job");
        let result = after("UPDATE results SET number = 4000").await;
        assert_found(&result, Check::Indexes, "a result of job 4000 is there without it");
        let failure = after(&rot("failures", "record")).await;
        assert_found(&failure, Check::Checksums, "one failure of job");
    });
}

#[test]
fn damage_to_the_file_itself_is_found() {
    run(async |_: Harness<Embedded>| {
        let mut h = busy().await;
        h.close().await;
        // The header's count of free pages.
        let mut file = OpenOptions::new().write(true).open(h.database()).unwrap();
        file.seek(SeekFrom::Start(36)).unwrap();
        file.write_all(&9u32.to_be_bytes()).unwrap();
        drop(file);
        let report = audit(&h);
        assert!(report.findings.iter().any(|found| found.check == Check::Files), "{report:#?}");
    });
}

#[test]
fn a_directory_without_a_store_is_refused_and_stays_as_it_is() {
    let empty = tempfile::tempdir().unwrap();
    let refused = embedded::audit(empty.path(), &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("is this the data directory of a server that has run?"), "{refused}");
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
    std::fs::write(Path::join(empty.path(), "redrive.db"), "not a database".repeat(100)).unwrap();
    let refused = embedded::audit(empty.path(), &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("not a database"), "{refused}");
}

#[test]
fn a_long_audit_tells_how_far_it_is() {
    run(async |_: Harness<Embedded>| {
        let h = busy().await;
        let directory = h.database().parent().unwrap().to_owned();
        let mut told = Vec::new();
        embedded::audit(&directory, &mut |progress| told.push(progress.step)).unwrap();
        assert!(told.contains(&"files") && told.contains(&"counts"), "{told:?}");
    });
}
