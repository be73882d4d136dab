//! Bytes that rot on the disk under SQLite: the job they belong to is set aside, the rest goes on.

use crate::builders::*;
use crate::harness::{Harness, run};
use redrive::domain::{Body, DeadReason, JobId, State};
use redrive::queue::hosts::sqlite::SqliteStore;
use redrive::queue::{SkipReason, Which};
use rusqlite::Connection;

/// Changes one byte of the first record of a table while no store has the database open; `at` counts from the end where
/// negative.
async fn flip(h: &mut Harness<SqliteStore>, table: &str, at: isize) {
    change(h, table, |record| {
        let at = if at < 0 { record.len() - at.unsigned_abs() } else { at.unsigned_abs() };
        record[at] ^= 0x01;
    })
    .await;
}

/// The same, for the first byte of a job's body, which is "body".
async fn flip_body(h: &mut Harness<SqliteStore>) {
    change(h, "job", |record| {
        let at = record.windows(4).rposition(|bytes| bytes == b"body").expect("a body");
        record[at] ^= 0x01;
    })
    .await;
}

async fn change(h: &mut Harness<SqliteStore>, table: &str, change: impl FnOnce(&mut Vec<u8>)) {
    h.close().await;
    let database = Connection::open(h.database()).expect("the database");
    let (number, mut record): (i64, Vec<u8>) = database
        .query_row(&format!("SELECT number, record FROM {table} ORDER BY number"), [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .expect("a row");
    change(&mut record);
    database
        .execute(&format!("UPDATE {table} SET record = ?1 WHERE number = ?2"), (record, number))
        .expect("an update");
    drop(database);
    h.open().await;
}

async fn next_flows(h: &Harness<SqliteStore>) {
    h.enqueue(job("q").id("next")).await;
    let claimed = h.try_claim(claim_of(&["q"], 1)).await;
    assert_eq!(claimed.jobs[0].spec.id.to_string(), "next");
    h.ack(claimed.jobs[0].delivery.lease.clone()).await.expect("the lease is out");
}

#[test]
fn a_damaged_body_makes_a_dead_letter_and_the_next_job_flows() {
    run(async |mut h: Harness<SqliteStore>| {
        h.enqueue(job("q").id("bad").priority(5)).await;
        flip_body(&mut h).await;
        next_flows(&h).await;
        let view = h.view(&JobId::parse("bad")).await;
        assert_eq!((view.state, view.corrupt), (State::Dead, true));
        assert_eq!(view.death.unwrap().reason, DeadReason::Corrupt);
        assert_eq!(view.spec.body, Body::Text("cody".into()), "its bytes are kept");
        assert_eq!(h.dead("q").await.len(), 1);
        let by_id = Which::Ids(vec![JobId::parse("bad")]);
        for which in [by_id, oldest(1)] {
            let done = h.requeue(requeue_of("q", which)).await.unwrap();
            assert_eq!(done.skipped, [(JobId::parse("bad"), SkipReason::DataCorrupt)]);
        }
        h.verify().await;
    });
}

#[test]
fn a_damaged_head_makes_a_dead_letter_and_the_next_job_flows() {
    run(async |mut h: Harness<SqliteStore>| {
        h.enqueue(job("q").priority(5)).await;
        // Its size, its traits, its format, anything in it, and its checksum. Of one whose id cannot be read nothing is shown.
        for (at, body) in [(0, "body"), (4, "body"), (5, ""), (10, "body"), (19, ""), (-1, "body")] {
            flip(&mut h, "job", at).await;
            next_flows(&h).await;
            let dead = h.dead("q").await;
            assert_eq!(dead.len(), 1, "byte {at}");
            assert_eq!(dead[0].death.as_ref().unwrap().reason, DeadReason::Corrupt);
            let text = if body.is_empty() { Body::None } else { Body::Text(body.into()) };
            assert_eq!(dead[0].spec.body, text, "byte {at}");
            h.reopen().await;
            h = Harness::new().await;
            h.enqueue(job("q").priority(5)).await;
        }
    });
}

/// A newer server would have sealed its record.
#[test]
fn a_damaged_format_is_not_taken_for_a_newer_one() {
    run(async |mut h: Harness<SqliteStore>| {
        h.enqueue(job("q").id("bad").priority(5)).await;
        change(&mut h, "job", |record| record[5] ^= 0x80).await;
        next_flows(&h).await;
        let dead = h.dead("q").await;
        assert_eq!(dead[0].death.as_ref().unwrap().reason, DeadReason::Corrupt);
        assert_eq!(h.purge(purge_of("q", oldest(10))).await.unwrap().count, 1);
        h.verify().await;
    });
}

/// Where a job waits is looked up by what its head says; a head that lies must not stop the store.
#[test]
fn a_damaged_job_that_reaches_its_deadline_stops_nothing() {
    run(async |_: Harness<SqliteStore>| {
        for delay in [seconds(0), 2 * HOUR] {
            for at in 0..40 {
                let mut h: Harness<SqliteStore> = Harness::new().await;
                h.enqueue(job("q").delay(delay).expires(HOUR)).await;
                flip(&mut h, "job", at).await;
                h.advance(HOUR);
                h.sweep().await;
                h.advance(2 * HOUR);
                h.sweep().await;
                next_flows(&h).await;
                assert_eq!(h.depths("q").await.dead, 1, "byte {at}");
                assert_eq!(h.dead("q").await.len(), 1, "byte {at}");
                h.verify().await;
            }
        }
    });
}

#[test]
fn a_damaged_job_that_is_leased_can_be_settled() {
    run(async |_: Harness<SqliteStore>| {
        for at in 0..30 {
            let mut h: Harness<SqliteStore> = Harness::new().await;
            h.enqueue(job("q").id("mine").key("k").expires(HOUR)).await;
            h.enqueue(job("q").delay(HOUR)).await;
            let lease = h.claim("q").await.delivery.lease;
            flip(&mut h, "job", at).await;
            let ended = h.nack(lease, released()).await;
            assert!(ended.is_ok(), "byte {at}");
            let claimed = h.try_claim(claim_of(&["q"], 1)).await;
            assert!(claimed.jobs.is_empty(), "byte {at}");
            assert_eq!(h.depths("q").await.dead, 1, "byte {at}");
            h.verify().await;
        }
    });
}

/// What a job has been through is lost then, but for its counts where they are not what rotted; the job is not lost, and
/// nothing stops.
#[test]
fn a_damaged_history_costs_what_it_says_and_not_the_job() {
    run(async |_: Harness<SqliteStore>| {
        for at in 0..40 {
            let mut h: Harness<SqliteStore> = Harness::new().await;
            h.set(without_jitter);
            let id = h.enqueue(job("q")).await;
            for _ in 0..2 {
                let lease = h.claim("q").await.delivery.lease;
                h.nack(lease, failed("Timeout")).await.unwrap();
                h.advance(HOUR);
            }
            flip(&mut h, "history", at).await;
            if !(5..13).contains(&at) {
                let lease = h.claim("q").await.delivery.lease;
                h.nack(lease, failed("Timeout")).await.unwrap();
                h.advance(HOUR);
                let progress = h.view(&id).await.progress;
                assert_eq!((progress.tries, progress.recorded), (3, 1), "byte {at}");
            }
            let lease = h.claim("q").await.delivery.lease;
            h.ack(lease).await.unwrap();
            assert!(h.views(&id).await.is_empty(), "byte {at}");
            h.verify().await;
        }
    });
}

#[test]
fn a_damaged_attempt_is_shown_as_such() {
    run(async |mut h: Harness<SqliteStore>| {
        let id = h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, failed("Timeout")).await.unwrap();
        flip(&mut h, "attempt", 3).await;
        let view = h.view(&id).await;
        assert!(view.attempts[0].note.contains("damaged"));
        h.advance(HOUR);
        let lease = h.claim("q").await.delivery.lease;
        assert!(h.ack(lease).await.is_ok());
    });
}

#[test]
fn a_damaged_letter_can_be_purged_and_leaves_nothing_behind() {
    run(async |mut h: Harness<SqliteStore>| {
        for in_body in [false, true] {
            h.enqueue(job("q").id("bad").key("k").priority(5).expires(HOUR)).await;
            if in_body {
                flip_body(&mut h).await;
            } else {
                flip(&mut h, "job", 0).await;
            }
            next_flows(&h).await;
            assert_eq!(h.purge(purge_of("q", oldest(10))).await.unwrap().count, 1);
            assert!(h.views(&JobId::parse("bad")).await.is_empty());
            assert_eq!(h.depths("q").await.held(), 0);
            h.advance(seconds(600));
        }
        h.enqueue(job("q").id("bad").key("k").body("other")).await;
        h.verify().await;
    });
}

#[test]
fn a_damaged_result_is_not_handed_out_and_the_job_says_so() {
    run(async |mut h: Harness<SqliteStore>| {
        h.set(|queue| queue.completed_retention = Some(HOUR));
        for at in [0, 1, 5, -1] {
            let id = h.enqueue(job("q")).await;
            let lease = h.claim("q").await.delivery.lease;
            h.ack_with(lease, "sent", "result".into()).await.unwrap();
            assert_eq!(&*h.view(&id).await.result, b"result");
            flip(&mut h, "result", at).await;
            let view = h.view(&id).await;
            assert_eq!((view.state, view.corrupt), (State::Completed, true), "byte {at}");
            assert!(view.result.is_empty(), "byte {at}");
            assert_eq!(view.attempts[0].note, "sent");
            h.advance(HOUR);
            assert_eq!(h.sweep().await.completed_removed, 1);
        }
        h.verify().await;
    });
}

#[test]
fn a_completed_job_that_is_damaged_goes_in_time_and_leaves_nothing_behind() {
    run(async |mut h: Harness<SqliteStore>| {
        h.set(|queue| queue.completed_retention = Some(HOUR));
        for table in ["job", "history", "attempt"] {
            h.enqueue(job("q").id("bad").expires(2 * HOUR)).await;
            let lease = h.claim("q").await.delivery.lease;
            h.ack(lease).await.unwrap();
            flip(&mut h, table, 0).await;
            assert_eq!(h.views(&JobId::parse("bad")).await[0].state, State::Completed, "{table}");
            h.advance(HOUR);
            assert_eq!(h.sweep().await.completed_removed, 1, "{table}");
            assert!(h.depths("q").await.is_empty(), "{table}");
            h.advance(seconds(600));
        }
        h.enqueue(job("q").id("bad").body("other")).await;
        h.verify().await;
    });
}
