//! The format on disk, and how connections are opened.
//!
//! Four shapes: rows by number, records by queue and key, entries of indexes, and one row of sums per queue.

use super::Durability;
use crate::store::storage::Table;
use rusqlite::{Connection, OpenFlags, config::DbConfig, ffi::ErrorCode};
use std::{path::Path, time::Duration};

/// "RDRV": tells our files from other databases.
const APPLICATION_ID: i32 = 0x5244_5256;
/// The layout of the tables below. 1 was the layout before there was a storage contract.
const LAYOUT: i32 = 2;
/// The format of the records in them. A build reads a store with `min_reader` up to this, and writes to one with `min_writer`
/// up to this.
const FORMAT: i64 = 1;

pub(super) const DATABASE: &str = "redrive.db";
/// The log of a database that is open.
pub(super) const LOG: &str = "redrive.db-wal";

/// Tables with an integer key that is unique in the store: a number, or `number << 8 | part`.
pub(super) const ROW_TABLES: [(Table, &str); 7] = [
    (Table::Job, "job"),
    (Table::Body, "body"),
    (Table::History, "history"),
    (Table::Attempt, "attempt"),
    (Table::Failure, "failure"),
    (Table::Dead, "dead"),
    (Table::Result, "result"),
];
/// Tables with a key of their queue's own: a text, a number or a group. The last three are also in memory.
pub(super) const KEYED_TABLES: [(Table, &str); 7] = [
    (Table::Id, "id"),
    (Table::Key, "key"),
    (Table::Request, "request"),
    (Table::Move, "move"),
    (Table::Queue, "state"),
    (Table::Version, "version"),
    (Table::Breaker, "breaker"),
];

const TABLES: &str = "
-- One row: the oldest formats that may read and write it, and the redrive that needs them.
CREATE TABLE store (
    min_reader INTEGER NOT NULL, min_writer INTEGER NOT NULL, needs TEXT NOT NULL
) STRICT;

-- Lengths and totals of each queue: see `cache.rs`. Row 0 is the store itself: its clock and the next numbers. They are
-- written with every transaction, so they share a page.
CREATE TABLE queue (
    queue INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, sums BLOB NOT NULL
) STRICT;

-- Ready jobs. slot: queue << 16 | group; place: rank << 48 | ready_at; member: number << 8 | tag.
CREATE TABLE ready (
    slot INTEGER NOT NULL, place INTEGER NOT NULL, member INTEGER NOT NULL,
    PRIMARY KEY (slot, place, member)
) STRICT, WITHOUT ROWID;

-- Jobs for later. slot: queue << 1 | (0: scheduled, 1: retrying); line: group << 8 | rank.
CREATE TABLE waiting (
    slot INTEGER NOT NULL, at INTEGER NOT NULL, line INTEGER NOT NULL, member INTEGER NOT NULL,
    PRIMARY KEY (slot, at, line, member)
) STRICT, WITHOUT ROWID;

-- The other indexes. slot: queue << 4 | index. member: a number, a text, or bytes.
CREATE TABLE entry (
    slot INTEGER NOT NULL, member ANY NOT NULL, score INTEGER NOT NULL,
    PRIMARY KEY (slot, member)
) STRICT, WITHOUT ROWID;
CREATE INDEX entry_by_score ON entry (slot, score, member);

-- All of them are in memory too.
CREATE TABLE lease (
    number INTEGER PRIMARY KEY, queue INTEGER NOT NULL, expiry INTEGER NOT NULL, record BLOB NOT NULL
) STRICT;

-- Dead letters by type of error.
CREATE TABLE error_type (
    queue INTEGER NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;
";

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error(
        "it has the format that redrive had before 0.2, which is not read any more: start with an empty data directory"
    )]
    Old,
    #[error(
        "it needs redrive {needs} or newer: its format is {found}, and this redrive knows {FORMAT}"
    )]
    Newer { found: i64, needs: String },
    #[error(
        "its layout is {found}, and this redrive knows {LAYOUT}: use the redrive that wrote it, or a newer one"
    )]
    OtherLayout { found: i32 },
    #[error("it is a database, but not one of redrive's")]
    NotOurs,
    #[error("it is not a database, or damaged beyond reading: {0}")]
    Unreadable(String),
    #[error("there is none: is this the data directory of a server that has run?")]
    Missing,
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

/// Opens the database to write to it, and makes it if it is not there.
pub(super) fn open_writer(path: &Path, durability: Durability) -> Result<Connection, SchemaError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    prepare(&connection, durability).map_err(or_unreadable)?;
    Ok(connection)
}

/// Opens the database to read it while another connection writes.
pub(super) fn open_reader(path: &Path) -> Result<Connection, SchemaError> {
    if !path.exists() {
        return Err(SchemaError::Missing);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    leave_log_alone(&connection)?;
    connection.pragma_update(None, "cache_size", -4 * 1024)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(64);
    check(&connection, "min_reader").map_err(or_unreadable)?;
    Ok(connection)
}

/// Otherwise the last connection copies the log into the database when it is closed.
pub(super) fn leave_log_alone(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(drop)
}

fn or_unreadable(error: SchemaError) -> SchemaError {
    match error {
        SchemaError::Sqlite(rusqlite::Error::SqliteFailure(failure, message))
            if matches!(failure.code, ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) =>
        {
            SchemaError::Unreadable(message.unwrap_or_else(|| failure.to_string()))
        }
        other => other,
    }
}

fn prepare(connection: &Connection, durability: Durability) -> Result<(), SchemaError> {
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    } else {
        check(connection, "min_writer")?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", durability.synchronous())?;
    connection.pragma_update(None, "cache_size", -32 * 1024)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // See checkpointer.rs.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.set_prepared_statement_cache_capacity(64);
    if tables == 0 {
        connection.execute_batch(&make())?;
    }
    Ok(())
}

fn make() -> String {
    let rows = ROW_TABLES.map(|(_, name)| {
        format!(
            "CREATE TABLE {name} (number INTEGER PRIMARY KEY, queue INTEGER NOT NULL, record BLOB NOT NULL) STRICT;"
        )
    });
    let keyed = KEYED_TABLES.map(|(_, name)| {
        format!(
            "CREATE TABLE {name} (queue INTEGER NOT NULL, key ANY NOT NULL, record BLOB NOT NULL, \
             PRIMARY KEY (queue, key)) STRICT, WITHOUT ROWID;"
        )
    });
    format!(
        "BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {LAYOUT}; \
         {TABLES} {} {} INSERT INTO store VALUES ({FORMAT}, {FORMAT}, '{}'); COMMIT;",
        rows.concat(),
        keyed.concat(),
        env!("CARGO_PKG_VERSION")
    )
}

/// Whether the database may be used, before anything in it is changed.
fn check(connection: &Connection, least: &str) -> Result<(), SchemaError> {
    let pragma = |name| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0));
    let (application_id, layout): (i32, i32) = (pragma("application_id")?, pragma("user_version")?);
    match (application_id, layout) {
        (APPLICATION_ID, 1) => return Err(SchemaError::Old),
        (APPLICATION_ID, LAYOUT) => {}
        (APPLICATION_ID, found) => return Err(SchemaError::OtherLayout { found }),
        _ => return Err(SchemaError::NotOurs),
    }
    let (found, needs) =
        connection.query_row(&format!("SELECT {least}, needs FROM store"), [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    if found > FORMAT {
        return Err(SchemaError::Newer { found, needs });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn refusal(change: &str) -> String {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join(DATABASE);
        open_writer(&path, Durability::None).unwrap().execute_batch(change).unwrap();
        assert!(open_reader(&path).is_err());
        open_writer(&path, Durability::None).unwrap_err().to_string()
    }

    #[test]
    fn a_store_of_a_newer_format_is_refused_with_the_version_it_needs() {
        let why = refusal("UPDATE store SET min_reader = 9, min_writer = 9, needs = '7.5.0'");
        assert!(why.contains("needs redrive 7.5.0"), "{why}");
    }

    #[test]
    fn a_store_that_may_be_read_but_not_written_is_read() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join(DATABASE);
        let writer = open_writer(&path, Durability::None).unwrap();
        writer.execute_batch("UPDATE store SET min_writer = 9").unwrap();
        open_reader(&path).unwrap();
        assert!(matches!(
            open_writer(&path, Durability::None),
            Err(SchemaError::Newer { found: 9, .. })
        ));
    }

    #[test]
    fn databases_of_others_and_of_old_are_refused() {
        assert!(refusal("PRAGMA user_version = 1").contains("empty data directory"));
        assert!(refusal("PRAGMA user_version = 3").contains("newer"));
        assert!(refusal("PRAGMA application_id = 5").contains("not one of redrive's"));
    }
}
