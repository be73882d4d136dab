//! What SQLite's engine refuses to open, and what it says.

use crate::builders::*;
use crate::harness::{Harness, run};
use redrive::queue::hosts::sqlite::SqliteStore;
use rusqlite::Connection;
use std::task::{Context, Waker};

/// Closes the store and changes its database by other means.
async fn tamper(h: &mut Harness<SqliteStore>, sql: &str) {
    h.close().await;
    let database = Connection::open(h.database()).expect("the database");
    database.execute_batch(sql).expect("the change");
}

async fn refusal(h: &Harness<SqliteStore>) -> String {
    h.open_another().await.expect_err("it must not open")
}

#[test]
fn a_database_of_another_version_is_refused_by_name() {
    run(async |mut h: Harness<SqliteStore>| {
        tamper(&mut h, "PRAGMA user_version = 77").await;
        let error = refusal(&h).await;
        assert!(error.contains("its layout is 77"), "{error}");
        assert!(error.contains("this redrive knows 4"), "{error}");
        assert!(error.contains("redrive.db"), "{error}");
        tamper(&mut h, "PRAGMA user_version = 1").await;
        let error = refusal(&h).await;
        assert!(error.contains("start with an empty data directory"), "{error}");
        tamper(&mut h, "PRAGMA user_version = 4").await;
        h.open().await;
    });
}

#[test]
fn a_database_of_another_program_is_refused_and_left_as_it_is() {
    run(async |mut h: Harness<SqliteStore>| {
        h.close().await;
        std::fs::remove_file(h.database()).expect("the database");
        let theirs = Connection::open(h.database()).expect("a database");
        theirs.execute_batch("CREATE TABLE theirs (x)").expect("a table");
        drop(theirs);
        let before = std::fs::read(h.database()).expect("the file");
        let error = refusal(&h).await;
        assert!(error.contains("not one of redrive's"), "{error}");
        assert_eq!(std::fs::read(h.database()).expect("the file"), before);
    });
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    run(async |mut h: Harness<SqliteStore>| {
        h.close().await;
        std::fs::write(h.database(), "this is a letter to my aunt. ".repeat(100)).expect("the file");
        let error = refusal(&h).await;
        assert!(error.contains("not a database"), "{error}");
    });
}

#[test]
fn a_directory_in_use_is_refused_and_its_user_named() {
    run(async |mut h: Harness<SqliteStore>| {
        let error = refusal(&h).await;
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        assert!(error.contains(&h.place.directory.display().to_string()), "{error}");
        h.enqueue(job("q")).await;
        h.reopen().await;
        assert_eq!(h.depths("q").await.ready, 1);
    });
}

/// It was not closed, only dropped: the next opener must not meet a writer that still writes.
#[test]
fn a_store_that_is_dropped_lets_go_of_its_directory_only_when_it_has_finished() {
    run(async |mut h: Harness<SqliteStore>| {
        for round in 1..=10 {
            let mut wake = Context::from_waker(Waker::noop());
            for _ in 0..10 {
                let mut call = Box::pin(h.store().enqueue(vec![job("q"); 20]));
                let _ = call.as_mut().poll(&mut wake);
            }
            h.drop_store();
            h.open_when_free().await;
            assert_eq!(h.depths("q").await.ready, round * 200);
            h.enqueue(job("q")).await;
            let lease = h.claim("q").await.delivery.lease;
            h.ack(lease).await.expect("the lease is out");
        }
    });
}

#[test]
fn a_missing_directory_is_made() {
    run(async |mut h: Harness<SqliteStore>| {
        h.close().await;
        h.place.directory = h.place.directory.join("deep/down");
        h.open().await;
        h.enqueue(job("q")).await;
    });
}
