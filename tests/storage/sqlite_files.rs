//! What is in the files of SQLite's engine: formats that a server may not know, and a log that does not grow for ever.

use crate::fixture::{manual_clock, name, runtime};
use crate::sqlite::{Calls, SqliteCalls, done};
use bytes::Bytes;
use redrive::env::Clock;
use redrive::store::sqlite::{Options, SqliteEngine, read_directory};
use redrive::store::storage::{Batch, Len, Read, Reads, RecordKey, Storage, Table, Write};
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

// ---- formats ----

/// What opening a store says, and what reading it says, after a change to its database.
fn after(change: &str) -> (Result<(), String>, Result<(), String>) {
    let directory = TempDir::new().unwrap();
    runtime().block_on(async {
        SqliteCalls::open(directory.path(), manual_clock()).0.close().await;
        Connection::open(directory.path().join("redrive.db")).unwrap().execute_batch(change).unwrap();
        let clock = manual_clock();
        let read = read_directory(directory.path(), &*clock as &dyn Clock, |_| ()).map_err(|error| error.to_string());
        let opened = SqliteEngine::open(Options::new(directory.path()), clock, Calls);
        (opened.map(drop).map_err(|error| error.to_string()), read)
    })
}

#[test]
fn a_store_of_a_newer_format_is_refused_with_the_version_it_needs() {
    let (opened, read) = after("UPDATE store SET min_reader = 9, min_writer = 9, needs = '7.5.0'");
    for refused in [opened.unwrap_err(), read.unwrap_err()] {
        assert!(refused.contains("needs redrive 7.5.0"), "{refused}");
    }
}

#[test]
fn a_store_that_may_be_read_but_not_written_is_read() {
    let (opened, read) = after("UPDATE store SET min_writer = 9");
    assert_eq!(read, Ok(()));
    let refused = opened.unwrap_err();
    assert!(refused.contains("its format is 9"), "{refused}");
}

// ---- the log ----

const MIB: u64 = 1 << 20;
/// The length of the log from which on it is copied.
const COPIED_FROM: u64 = 16 * MIB;
const BODY: usize = 100_000;

struct Log {
    directory: TempDir,
    store: SqliteCalls,
    written: u64,
}

impl Log {
    async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let store = SqliteCalls::open(directory.path(), manual_clock());
        store.call(|storage| done(storage.register(&name("jobs"), 10))).await.unwrap();
        Self { directory, store, written: 0 }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    async fn write(&mut self) {
        self.written += 1;
        let body = Bytes::from(vec![7; BODY]);
        let writes = vec![Write::Put(Table::Body, RecordKey::Number(self.written), body)];
        let batch = Batch { writes, ..Batch::default() };
        self.store.call(move |storage| done(storage.apply(&name("jobs"), &batch))).await.unwrap();
    }

    /// The number of the log: another one each time that it begins again.
    fn begun(&self) -> [u8; 4] {
        let mut number = [0; 4];
        let log = File::open(self.path().join("redrive.db-wal")).unwrap();
        log.read_exact_at(&mut number, 12).unwrap();
        number
    }

    fn len(&self) -> u64 {
        fs::metadata(self.path().join("redrive.db-wal")).unwrap().len()
    }

    /// The bytes that were written before the log began again.
    async fn write_until_it_begins_again(&mut self) -> u64 {
        let (begun, before) = (self.begun(), self.written);
        let mut written = 0;
        while self.begun() == begun {
            self.write().await;
            written = (self.written - before) * BODY as u64;
            assert!(written < 500 * MIB, "it never begins again");
            if written > COPIED_FROM {
                // So that the copy keeps up on a busy machine.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        written
    }
}

#[test]
fn the_log_begins_again_while_the_writer_goes_on() {
    runtime().block_on(async {
        let mut log = Log::new().await;
        for _ in 0..3 {
            log.write_until_it_begins_again().await;
        }
        let read = [Read::Len(Len::Table(Table::Body))];
        let found = log.store.0.read(move |reader| done(reader.read(&name("jobs"), &read))).await.unwrap();
        assert_eq!(found.unwrap()[0].number(), log.written);
    });
}

#[test]
fn a_reader_keeps_the_log_only_as_long_as_it_reads() {
    runtime().block_on(async {
        let mut log = Log::new().await;
        log.write().await;
        let reader = Connection::open_with_flags(log.path().join("redrive.db"), OpenFlags::SQLITE_OPEN_READ_ONLY);
        let reader = reader.unwrap();
        let count =
            || reader.query_row("SELECT count(*) FROM body", [], |row| row.get::<_, i64>(0)).unwrap().cast_unsigned();
        reader.execute_batch("BEGIN").unwrap();
        assert_eq!(count(), 1);
        let begun = log.begun();
        while log.len() < 4 * COPIED_FROM {
            log.write().await;
        }
        assert_eq!(log.begun(), begun);
        assert_eq!(count(), 1, "it reads what was there when it began");
        reader.execute_batch("COMMIT").unwrap();
        log.write_until_it_begins_again().await;
        assert_eq!(count(), log.written);
        // As early as ever, however long it was before.
        assert!(log.write_until_it_begins_again().await < 3 * COPIED_FROM);
    });
}
