//! `redrive verify`: silent about a good store, and precise about every kind of damage.

use crate::harness::{Harness, run};
use crate::verified::one_of_everything;
use redrive::env::SystemClock;
use redrive::queue::hosts::sqlite::{SqliteStore, verify_directory};
use redrive::queue::{VerifyProgress, VerifyReport};
use redrive::store::Check;
use redrive::store::storage::{Index, Table};
use rusqlite::Connection;
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

fn verify(h: &Harness<SqliteStore>) -> VerifyReport {
    verify_at(h.database().parent().unwrap(), &mut |_| {}).unwrap()
}

fn verify_at(directory: &Path, progress: &mut (dyn FnMut(VerifyProgress) + Send)) -> Result<VerifyReport, String> {
    let report = verify_directory(directory, &SystemClock::new(), progress);
    report.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

async fn busy() -> Harness<SqliteStore> {
    let mut h: Harness<SqliteStore> = Harness::new().await;
    one_of_everything(&mut h).await;
    h
}

/// What is found after this was done to the database.
async fn after(sql: &str) -> VerifyReport {
    after_change(|database| {
        assert!(database.execute(sql, []).unwrap() > 0, "{sql} changes nothing");
    })
    .await
}

async fn after_change(change: impl FnOnce(&Connection)) -> VerifyReport {
    let mut h = busy().await;
    h.close().await;
    let database = Connection::open(h.database()).unwrap();
    change(&database);
    drop(database);
    verify(&h)
}

/// Numbers in the column `sums` of a queue, behind the store's own: when it was used, deaths, lengths of tables and of indexes,
/// totals.
const DEATHS: usize = 8;
const INDEXES: usize = 9 + Table::ALL.len();
const TOTALS: usize = INDEXES + Index::ALL.len();
/// The next number of a job, in the row that a store writes last when it is closed.
const NEXT_NUMBER: usize = 3;

type SumChange = (usize, fn(u64) -> u64);

/// Changes some of the sums of a queue, or of all queues but the store's own row.
async fn after_sums(queue: Option<&str>, change: &[SumChange]) -> VerifyReport {
    after_change(|database| {
        let sql = "SELECT queue, sums FROM queue WHERE name = ?1 OR (?1 IS NULL AND queue > 0)";
        let mut statement = database.prepare(sql).unwrap();
        let rows = statement.query_map([queue], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let rows: Vec<(i64, Vec<u8>)> = rows.map(Result::unwrap).collect();
        assert!(!rows.is_empty());
        for (queue, mut sums) in rows {
            for (at, change) in change {
                sums.resize(sums.len().max(8 * at + 8), 0);
                let number = &mut sums[8 * at..8 * at + 8];
                let before = u64::from_le_bytes((&*number).try_into().unwrap());
                number.copy_from_slice(&change(before).to_le_bytes());
            }
            let sql = "UPDATE queue SET sums = ?1 WHERE queue = ?2";
            database.execute(sql, (sums, queue)).unwrap();
        }
    })
    .await
}

#[track_caller]
fn assert_found(report: &VerifyReport, check: Check, part: &str) {
    let has = |found: &redrive::store::Finding| found.check == check && found.what.contains(part);
    assert!(report.findings.iter().any(has), "no {check:?} with {part:?}: {:#?}", report.findings);
}

#[test]
fn a_busy_store_is_clean_while_it_runs_and_after_it() {
    run(async |_: Harness<SqliteStore>| {
        let mut h = busy().await;
        let beside = verify(&h);
        assert!(beside.is_clean(), "{:#?}", beside.findings);
        assert_eq!((beside.jobs, beside.queues.len()), (10, 4));
        assert!(beside.records > beside.jobs, "history counts, too");
        h.close().await;
        assert_eq!(verify(&h), beside);
        // And it has changed nothing.
        h.open().await;
        h.verify().await;
    });
}

/// The jobs of `one_of_everything`.
const READY: u64 = 1;
const LATER: u64 = 3;

#[test]
fn a_job_that_is_nowhere_or_in_two_places_is_found() {
    run(async |_: Harness<SqliteStore>| {
        let lost = after(&format!("DELETE FROM ready WHERE member >> 8 = {READY}")).await;
        assert_found(&lost, Check::Places, "(ready) is nowhere");
        assert_found(&lost, Check::Counts, "the index ready counts 2 entries and has 1");
        let lost = after(&format!("DELETE FROM entry WHERE {}", is(Index::Completed))).await;
        assert_found(&lost, Check::Places, "(kept) is nowhere");
        assert_found(&lost, Check::Counts, "the index completed counts 1 entries and has 0");
        let twice = format!(
            "INSERT INTO waiting SELECT slot | {}, (score & ((1 << 48) - 1)) << 8 | score >> 48, member \
             FROM ready WHERE member >> 8 = {READY}",
            Index::Scheduled as u8
        );
        let twice = after(&twice).await;
        assert_found(&twice, Check::Places, "(ready) is in 2 places: READY, SCHEDULED");
        let gone = after("DELETE FROM job WHERE number = (SELECT min(number) FROM dead)").await;
        assert_found(&gone, Check::Places, "DEAD holds job");
        assert_found(&gone, Check::Indexes, "an attempt of job");
        assert_found(&gone, Check::Indexes, "a failure of job");
        assert_found(&gone, Check::Indexes, "the history of job");
        assert_found(&gone, Check::Indexes, "a dead-letter record of job");
        assert_found(&gone, Check::Indexes, "one id leads to job");
    });
}

fn is(index: Index) -> String {
    format!("slot & 15 = {}", index as u8)
}

#[test]
fn a_job_at_a_wrong_position_is_found() {
    run(async |_: Harness<SqliteStore>| {
        // That of priority 9.
        let rank = after("UPDATE ready SET score = score + (1 << 48) WHERE score >> 48 = 118").await;
        assert_found(&rank, Check::Places, "its position is not that of its priority");
        let time = format!("UPDATE waiting SET score = score + (1 << 8) WHERE member >> 8 = {LATER}");
        assert_found(&after(&time).await, Check::Places, "its time is not the one");
        let queue = format!("UPDATE ready SET slot = 77 << 4 WHERE member >> 8 = {READY}");
        let queue = after(&queue).await;
        assert_found(&queue, Check::Places, "(ready) is nowhere");
        assert_found(&queue, Check::Places, "1 rows of ready are of a queue that is not there");
        let tag = format!("UPDATE ready SET member = member + 1 WHERE member >> 8 = {READY}");
        let tag = after(&tag).await;
        assert_found(&tag, Check::Places, "whether it has a history is said twice");
        let death = format!("UPDATE entry SET score = 55 WHERE {}", is(Index::Dead));
        assert_found(&after(&death).await, Check::Places, "its position is not that of its death");
        let elsewhere = "UPDATE history SET record = (SELECT record FROM history WHERE number = (SELECT number FROM dead)) \
                         WHERE number = (SELECT number FROM result)";
        let elsewhere = after(elsewhere).await;
        assert_found(&elsewhere, Check::Places, "(kept), COMPLETED: its history says");
        let of_none = after(&format!("UPDATE job SET queue = 99 WHERE number = {READY}")).await;
        assert_found(&of_none, Check::Places, "1 rows of job are of a queue that is not there");
        assert_found(&of_none, Check::Places, "READY holds job 1, which is not there");
    });
}

#[test]
fn counters_that_are_wrong_are_found() {
    run(async |_: Harness<SqliteStore>| {
        let places = [
            Index::Ready,
            Index::Scheduled,
            Index::Retrying,
            Index::Leased,
            Index::Completed,
            Index::Dead,
            Index::Overflow,
        ];
        for index in places {
            let report = after_sums(None, &[(INDEXES + index as usize, |len| len + 3)]).await;
            let counts = format!("the index {} counts 3 entries and has 0", index.name());
            assert_found(&report, Check::Counts, &counts);
            assert_found(&report, Check::Counts, "jobs and places for");
        }
        let types = after("UPDATE error_type SET count = count + 1").await;
        assert_found(&types, Check::Counts, "dead letters are counted under \"Hopeless\"");
        assert_found(&types, Check::Counts, "dead letters are counted by type of error");
        let keys = INDEXES + Index::FinishedKey as usize;
        let keys = after_sums(Some("q"), &[(keys, |_| 9)]).await;
        assert_found(&keys, Check::Counts, "counts 9 entries and has 2");
        let death = after_sums(Some("dying"), &[(DEATHS, |_| 0)]).await;
        assert_found(&death, Check::Counts, "the next dead letter gets number 1, again");
        let number = after_sums(Some(""), &[(NEXT_NUMBER, |_| 2)]).await;
        assert_found(&number, Check::Counts, "the next job gets number 2, again");
    });
}

#[test]
fn jobs_that_are_not_accounted_for_are_found() {
    run(async |_: Harness<SqliteStore>| {
        // Completed, purged, cancelled, removed by retention.
        for total in [1, 9, 10, 11] {
            let report = after_sums(None, &[(TOTALS + total, |count| count + 2)]).await;
            assert_found(&report, Check::Law, "2 jobs are held or went out and never came in");
        }
        let enqueued = after_sums(Some("q"), &[(TOTALS, |count| count + 1)]).await;
        assert_eq!(enqueued.findings.len(), 1);
        assert_found(&enqueued, Check::Law, "1 jobs came in and are neither held nor accounted");
    });
}

#[test]
fn what_does_not_lead_to_its_job_is_found() {
    run(async |_: Harness<SqliteStore>| {
        let id = after("DELETE FROM id WHERE key = 'ready'").await;
        assert_found(&id, Check::Indexes, "(ready) cannot be found by its id");
        let key = after("DELETE FROM key WHERE key = 'k-ready'").await;
        assert_found(&key, Check::Indexes, "(ready) cannot be found by its idempotency key");
        let deadlines = is(Index::Deadline);
        let deadline = after(&format!("DELETE FROM entry WHERE {deadlines}")).await;
        assert_found(&deadline, Check::Indexes, "(ready) cannot be found by its deadline");
        let id = after("UPDATE id SET key = 'another' WHERE key = 'ready'").await;
        assert_found(&id, Check::Indexes, "one id leads to job 1 (ready), wrongly");
        let key = after("UPDATE key SET key = 'another' WHERE key = 'k-ready'").await;
        assert_found(&key, Check::Indexes, "one idempotency key leads to job 1 (ready), wrongly");
        let deadline = after(&format!("UPDATE entry SET member = 4000 WHERE {deadlines}")).await;
        assert_found(&deadline, Check::Indexes, "one deadline leads to job 4000, which is not there");
    });
}

#[test]
fn bytes_that_rot_are_found() {
    run(async |_: Harness<SqliteStore>| {
        // The last byte is one of the checksum.
        let rot = |table: &str| format!("UPDATE {table} SET record = substr(record, 1, length(record) - 1)");
        let job = after(&rot("job")).await;
        assert_found(&job, Check::Checksums, "the record of job 1");
        assert!(job.findings.iter().all(|found| found.check == Check::Checksums), "{job:#?}");
        let body = "UPDATE body SET record = CAST('other' AS BLOB) WHERE number = 1";
        assert_found(&after(body).await, Check::Checksums, "the record of job 1 (ready) is not what was written");
        let history = after(&rot("history")).await;
        assert_found(&history, Check::Checksums, "the history of job");
        let attempt = after(&rot("attempt")).await;
        assert_found(&attempt, Check::Checksums, "one attempt of job");
        let result = after(&rot("result")).await;
        assert_found(&result, Check::Checksums, "one result of job");
        let result = after("UPDATE result SET number = 4000").await;
        assert_found(&result, Check::Indexes, "a result of job 4000 is there without it");
        let failure = after(&rot("failure")).await;
        assert_found(&failure, Check::Checksums, "one failure of job");
        let dead = after(&rot("dead")).await;
        assert_found(&dead, Check::Checksums, "the dead-letter record of job");
    });
}

#[test]
fn damage_to_the_file_itself_is_found() {
    run(async |_: Harness<SqliteStore>| {
        let mut h = busy().await;
        h.close().await;
        // The header's count of free pages.
        let mut file = OpenOptions::new().write(true).open(h.database()).unwrap();
        file.seek(SeekFrom::Start(36)).unwrap();
        file.write_all(&9u32.to_be_bytes()).unwrap();
        drop(file);
        let report = verify(&h);
        assert!(report.findings.iter().any(|found| found.check == Check::Files), "{report:#?}");
    });
}

#[test]
fn a_directory_without_a_store_is_refused_and_stays_as_it_is() {
    let empty = tempfile::tempdir().unwrap();
    let refused = verify_at(empty.path(), &mut |_| {}).unwrap_err();
    assert!(refused.contains("is this the data directory of a server that has run?"), "{refused}");
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
    std::fs::write(Path::join(empty.path(), "redrive.db"), "not a database".repeat(100)).unwrap();
    let refused = verify_at(empty.path(), &mut |_| {}).unwrap_err();
    assert!(refused.contains("not a database"), "{refused}");
}

#[test]
fn a_long_verify_tells_how_far_it_is() {
    run(async |_: Harness<SqliteStore>| {
        let h = busy().await;
        let directory = h.database().parent().unwrap().to_owned();
        let mut told = Vec::new();
        verify_at(&directory, &mut |progress| told.push(progress.step)).unwrap();
        assert!(told.contains(&"files") && told.contains(&"counts"), "{told:?}");
    });
}
