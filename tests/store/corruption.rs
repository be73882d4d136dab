//! Bytes that rot on the disk of the embedded engine: the job they belong to is set aside, the rest goes on.

use crate::{
    builders::*,
    harness::{Harness, run},
};
use redrive::{
    domain::{
        ids::JobId,
        job::{Body, DeadReason, State},
    },
    store::{SkipReason, Which, embedded::Embedded},
};
use rusqlite::Connection;

/// Changes one byte of a column while nobody has the database open; `at` counts from the end where negative.
async fn flip(h: &mut Harness<Embedded>, table: &str, column: &str, at: isize) {
    h.close().await;
    let database = Connection::open(h.database()).expect("the database");
    let (kind, mut bytes): (String, Vec<u8>) = database
        .query_row(
            &format!(
                "SELECT typeof({column}), CAST({column} AS BLOB) FROM {table} ORDER BY number"
            ),
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .expect("a row");
    let at = if at < 0 { bytes.len() - at.unsigned_abs() } else { at.unsigned_abs() };
    bytes[at] ^= 0x01;
    let value = match kind.as_str() {
        "text" => rusqlite::types::Value::Text(String::from_utf8(bytes).expect("still text")),
        _ => rusqlite::types::Value::Blob(bytes),
    };
    let first = format!("(SELECT min(number) FROM {table})");
    database
        .execute(&format!("UPDATE {table} SET {column} = ?1 WHERE number = {first}"), [value])
        .expect("an update");
    drop(database);
    h.open().await;
}

async fn next_flows(h: &Harness<Embedded>) {
    h.enqueue(job("q").id("next")).await;
    let claimed = h.try_claim(claim_of(&["q"], 1)).await;
    assert_eq!(claimed.jobs[0].spec.id.to_string(), "next");
    h.ack(claimed.jobs[0].delivery.lease.clone()).await.expect("the lease is out");
}

#[test]
fn a_damaged_body_makes_a_dead_letter_and_the_next_job_flows() {
    run(async |mut h: Harness<Embedded>| {
        h.enqueue(job("q").id("bad").priority(5)).await;
        flip(&mut h, "jobs", "body", 0).await;
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
        h.audit().await;
    });
}

#[test]
fn a_damaged_head_makes_a_dead_letter_and_the_next_job_flows() {
    run(async |mut h: Harness<Embedded>| {
        h.enqueue(job("q").priority(5)).await;
        // The version at its beginning, then anything in it, then its checksum.
        for at in [0, 1, 10, 19, -1] {
            flip(&mut h, "jobs", "head", at).await;
            next_flows(&h).await;
            let dead = h.dead("q").await;
            assert_eq!(dead.len(), 1, "byte {at}");
            assert_eq!(dead[0].death.as_ref().unwrap().reason, DeadReason::Corrupt);
            assert_eq!(dead[0].spec.body, Body::Text("body".into()));
            h.reopen().await;
            h = Harness::new().await;
            h.enqueue(job("q").priority(5)).await;
        }
    });
}

/// Where a job waits is looked up by what its head says; a head that lies must not stop the store.
#[test]
fn a_damaged_job_that_reaches_its_deadline_stops_nothing() {
    run(async |_: Harness<Embedded>| {
        for delay in [seconds(0), 2 * HOUR] {
            for at in 0..40 {
                let mut h: Harness<Embedded> = Harness::new().await;
                h.enqueue(job("q").delay(delay).expires(HOUR)).await;
                flip(&mut h, "jobs", "head", at).await;
                h.advance(HOUR);
                h.sweep().await;
                h.advance(2 * HOUR);
                h.sweep().await;
                next_flows(&h).await;
                assert_eq!(h.depths("q").await.dead, 1, "byte {at}");
                assert_eq!(h.dead("q").await.len(), 1, "byte {at}");
                h.audit().await;
            }
        }
    });
}

#[test]
fn a_damaged_job_that_is_leased_can_be_settled() {
    run(async |_: Harness<Embedded>| {
        for at in 0..30 {
            let mut h: Harness<Embedded> = Harness::new().await;
            h.enqueue(job("q").id("mine").key("k").expires(HOUR)).await;
            h.enqueue(job("q").delay(HOUR)).await;
            let lease = h.claim("q").await.delivery.lease;
            flip(&mut h, "jobs", "head", at).await;
            let ended = h.nack(lease, released()).await;
            assert!(ended.is_ok(), "byte {at}");
            let claimed = h.try_claim(claim_of(&["q"], 1)).await;
            assert!(claimed.jobs.is_empty(), "byte {at}");
            assert_eq!(h.depths("q").await.dead, 1, "byte {at}");
            h.audit().await;
        }
    });
}

/// What a job has been through is lost then; the job is not, and nothing stops.
#[test]
fn damaged_progress_costs_the_count_and_not_the_job() {
    run(async |mut h: Harness<Embedded>| {
        h.set(without_jitter);
        let id = h.enqueue(job("q")).await;
        for _ in 0..2 {
            let lease = h.claim("q").await.delivery.lease;
            h.nack(lease, failed("Timeout")).await.unwrap();
            h.advance(HOUR);
        }
        flip(&mut h, "progress", "record", 2).await;
        for _ in 0..3 {
            let lease = h.claim("q").await.delivery.lease;
            h.nack(lease, failed("Timeout")).await.unwrap();
            h.advance(HOUR);
        }
        assert_eq!(h.view(&id).await.progress.tries, 3);
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.audit().await;
    });
}

#[test]
fn a_damaged_attempt_is_shown_as_such() {
    run(async |mut h: Harness<Embedded>| {
        let id = h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack(lease, failed("Timeout")).await.unwrap();
        flip(&mut h, "attempts", "record", 3).await;
        let view = h.view(&id).await;
        assert!(view.attempts[0].note.contains("damaged"));
        h.advance(HOUR);
        let lease = h.claim("q").await.delivery.lease;
        assert!(h.ack(lease).await.is_ok());
    });
}

#[test]
fn a_damaged_letter_can_be_purged_and_leaves_nothing_behind() {
    run(async |mut h: Harness<Embedded>| {
        for column in ["head", "body"] {
            h.enqueue(job("q").id("bad").key("k").priority(5).expires(HOUR)).await;
            flip(&mut h, "jobs", column, 0).await;
            next_flows(&h).await;
            assert_eq!(h.purge(purge_of("q", oldest(10))).await.unwrap().count, 1);
            assert!(h.views(&JobId::parse("bad")).await.is_empty());
            assert_eq!(h.depths("q").await.held(), 0);
        }
        h.enqueue(job("q").id("bad").key("k").body("other")).await;
        h.audit().await;
    });
}

#[test]
fn a_damaged_result_is_not_handed_out_and_the_job_says_so() {
    run(async |mut h: Harness<Embedded>| {
        h.set(|queue| queue.completed_retention = Some(HOUR));
        for at in [0, 1, 5, -1] {
            let id = h.enqueue(job("q")).await;
            let lease = h.claim("q").await.delivery.lease;
            h.ack_with(lease, "sent", "result".into()).await.unwrap();
            assert_eq!(&*h.view(&id).await.result, b"result");
            flip(&mut h, "results", "record", at).await;
            let view = h.view(&id).await;
            assert_eq!((view.state, view.corrupt), (State::Completed, true), "byte {at}");
            assert!(view.result.is_empty(), "byte {at}");
            assert_eq!(view.attempts[0].note, "sent");
            h.advance(HOUR);
            assert_eq!(h.sweep().await.completed_removed, 1);
        }
        h.audit().await;
    });
}

#[test]
fn a_completed_job_that_is_damaged_goes_in_time_and_leaves_nothing_behind() {
    run(async |mut h: Harness<Embedded>| {
        h.set(|queue| queue.completed_retention = Some(HOUR));
        for (table, column) in [("jobs", "head"), ("progress", "record"), ("attempts", "record")] {
            h.enqueue(job("q").id("bad").expires(2 * HOUR)).await;
            let lease = h.claim("q").await.delivery.lease;
            h.ack(lease).await.unwrap();
            flip(&mut h, table, column, 0).await;
            assert_eq!(h.views(&JobId::parse("bad")).await[0].state, State::Completed, "{table}");
            h.advance(HOUR);
            assert_eq!(h.sweep().await.completed_removed, 1, "{table}");
            assert!(h.depths("q").await.is_empty(), "{table}");
        }
        h.enqueue(job("q").id("bad").body("other")).await;
        h.audit().await;
    });
}
