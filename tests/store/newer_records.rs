//! A record that a newer server has written while this one runs: the store says which version it needs. What each call makes of
//! such records is in `tests/queue/newer_records.rs`.

use crate::builders::*;
use crate::engines::Engine;
use crate::harness::{Harness, run};
use crate::redis_server;
use redrive::domain::JobId;
use redrive::queue::hosts::redis::RedisStore;
use redrive::queue::hosts::sqlite::SqliteStore;
use redrive::queue::{Error, Queues};
use redrive::store::StoreError;
use rusqlite::Connection;

/// The number of the format of a job's record, raised by one.
fn raise(record: &mut Vec<u8>) {
    record.truncate(record.len() - 4);
    record[5] += 1;
    record.extend(crc32c::crc32c(record).to_le_bytes());
}

/// `raise` makes the store one of the next format, with this record in it.
async fn scenario<S: Engine<Host: redrive::queue::Host>>(h: Harness<S>, raise: impl FnOnce(&Harness<S>)) {
    h.enqueue(job("q").id("a")).await;
    raise(&h);
    let store: &Queues<S::Host> = h.store();
    let claimed = store.claim(claim_of(&["q"], 1)).await.map(drop);
    let looked = store.jobs_of_id(JobId::parse("a"), None).await.map(drop);
    let listed = store.jobs(jobs_of("q")).await.map(drop);
    let first = claimed.as_ref().unwrap_err().to_string();
    assert!(first.contains("a record has format 2"), "{first}");
    for answer in [claimed, looked, listed] {
        // Once a server knows it, it says no more than that.
        let Err(Error::Store(StoreError::NewerFormat(why) | StoreError::Unavailable(why))) = answer else {
            panic!("{answer:?}")
        };
        assert!(why.contains("redrive 9.9.9 or newer"), "{why}");
    }
}

#[test]
fn sqlite() {
    run(async |h: Harness<SqliteStore>| {
        scenario(h, |h| {
            let database = Connection::open(h.database()).unwrap();
            let mut record: Vec<u8> = database.query_row("SELECT record FROM job", [], |row| row.get(0)).unwrap();
            raise(&mut record);
            database.execute("UPDATE job SET record = ?1", [record]).unwrap();
            database.execute("UPDATE store SET min_reader = 2, min_writer = 2, needs = '9.9.9'", []).unwrap();
        })
        .await;
    });
}

#[test]
fn redis() {
    run(async |h: Harness<RedisStore>| {
        scenario(h, |h| {
            let mut redis = redis::Client::open(redis_server::shared().address()).unwrap().get_connection().unwrap();
            let key = h.place.key("q", "j");
            let (field, mut record): (Vec<u8>, Vec<u8>) = redis::cmd("HGETALL").arg(&key).query(&mut redis).unwrap();
            raise(&mut record);
            redis::cmd("HSET").arg(&key).arg(field).arg(record).exec(&mut redis).unwrap();
            let catalogue = h.place.key("~catalogue", "c");
            redis::cmd("HSET").arg(catalogue).arg("~format").arg("2 2 9.9.9").exec(&mut redis).unwrap();
        })
        .await;
    });
}
