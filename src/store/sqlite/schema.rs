//! The format on disk, and how connections are opened.
//!
//! Four shapes: rows by number, records by queue and key, entries of indexes, and one row of sums per queue.

use super::Durability;
use crate::store::storage::{self, Table};
use rusqlite::{Connection, OpenFlags, config::DbConfig, ffi::ErrorCode};
use std::{path::Path, time::Duration};

/// "RDRV": tells our files from other databases.
const APPLICATION_ID: i32 = 0x5244_5256;
/// The layout of the tables below. 1 was the layout before there was a storage contract.
const LAYOUT: i32 = 4;
const FORMAT: i64 = storage::FORMAT as i64;

pub(super) const DATABASE: &str = "redrive.db";
/// The log of a database that is open.
pub(super) const LOG: &str = "redrive.db-wal";
/// The index of that log, which its connections share.
pub(super) const LOG_INDEX: &str = "redrive.db-shm";

/// The tables of indexes. slot: queue << 4 | index; member: a number, a text, or bytes. In `ready` (score: rank << 48 | ready_at)
/// and `waiting` (score: ready_at << 8 | rank) the member is number << 8 | tag. A position with a group stands in bytes: in
/// `ready` by its group, in `waiting` (score: ready_at << 8 | 255) behind those without one.
pub(super) const INDEX_TABLES: [&str; 4] = ["ready", "waiting", "timed", "entry"];
pub(super) const READY: usize = 0;
pub(super) const WAITING: usize = 1;
pub(super) const TIMED: usize = 2;
pub(super) const ENTRY: usize = 3;
/// `Leased` is a part of the table `lease`.
pub(super) const LEASE: usize = INDEX_TABLES.len();

/// Where the records of a table are: the name of the table in the database.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// By an integer that is unique in the store: a number, or `number << 8 | part`.
    Row(&'static str),
    /// By a key of the queue's own: a text, a number or a group.
    Keyed(&'static str),
    /// The same; in memory too, and read from there alone.
    Cached(&'static str),
    /// By number. As `Cached`.
    Lease,
    /// In memory alone.
    Volatile,
}

pub(super) fn kind(table: Table) -> Kind {
    match table {
        Table::Job => Kind::Row("job"),
        Table::Body => Kind::Row("body"),
        Table::History => Kind::Row("history"),
        Table::Attempt => Kind::Row("attempt"),
        Table::Event => Kind::Row("event"),
        Table::Failure => Kind::Row("failure"),
        Table::Dead => Kind::Row("dead"),
        Table::Result => Kind::Row("result"),
        Table::Id => Kind::Keyed("id"),
        Table::Key => Kind::Keyed("key"),
        Table::Request => Kind::Keyed("request"),
        Table::Move => Kind::Keyed("move"),
        Table::Queue => Kind::Cached("state"),
        Table::Version => Kind::Cached("version"),
        Table::Breaker => Kind::Cached("breaker"),
        Table::Group => Kind::Cached("breaker_key"),
        Table::Lease => Kind::Lease,
        Table::Outcomes => Kind::Volatile,
    }
}

impl Kind {
    /// The name of the table, and of the column with its key.
    pub(super) fn name_and_key(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Row(name) => Some((name, "number")),
            Self::Keyed(name) | Self::Cached(name) => Some((name, "key")),
            Self::Lease => Some(("lease", "number")),
            Self::Volatile => None,
        }
    }
}

const TABLES: &str = "
-- One row: the oldest formats that may read and write it, and the redrive that needs them.
CREATE TABLE store (
    min_reader INTEGER NOT NULL, min_writer INTEGER NOT NULL, needs TEXT NOT NULL
) STRICT;

-- What is written with every transaction: the store's clock and next numbers, and then lengths and totals of a queue. See
-- `cache.rs`. Row 0 is no queue's.
CREATE TABLE queue (
    queue INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, sums BLOB NOT NULL
) STRICT;

-- The indexes whose members are looked for without their score.
CREATE TABLE entry (
    slot INTEGER NOT NULL, score INTEGER NOT NULL, member ANY NOT NULL,
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
    #[error("it needs redrive {needs} or newer: its format is {found}, and this redrive knows {FORMAT}")]
    Newer { found: i64, needs: String },
    #[error("its layout is {found}, and this redrive knows {LAYOUT}: use the redrive that wrote it, or a newer one")]
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
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    prepare(&connection, durability).map_err(or_unreadable)?;
    Ok(connection)
}

/// Opens the database to read it while another connection writes.
pub(super) fn open_reader(path: &Path) -> Result<Connection, SchemaError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    leave_log_alone(&connection, true)?;
    connection.pragma_update(None, "cache_size", -4 * 1024)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    reuse_statements(&connection)?;
    check(&connection, "min_reader").map_err(or_unreadable)?;
    Ok(connection)
}

/// Otherwise the last connection copies the log into the database when it is closed.
pub(super) fn leave_log_alone(connection: &Connection, alone: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, alone).map(drop)
}

/// A prepared statement keeps its plan. Otherwise SQLite plans it anew whenever another value is bound to it.
fn reuse_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(64);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
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
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    } else {
        // What is refused is left as it is, its log included.
        leave_log_alone(connection, true)?;
        check(connection, "min_writer")?;
        leave_log_alone(connection, false)?;
    }
    // See checkpointer.rs.
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA cache_size = -32768; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 0",
    )?;
    let synchronous = if durability == Durability::Fsync { "FULL" } else { "OFF" };
    connection.pragma_update(None, "synchronous", synchronous)?;
    reuse_statements(connection)?;
    if tables == 0 {
        connection.execute_batch(&make())?;
    }
    Ok(())
}

fn make() -> String {
    let records = Table::ALL.into_iter().map(|table| match kind(table) {
        Kind::Row(name) => format!(
            "CREATE TABLE {name} (number INTEGER PRIMARY KEY, queue INTEGER NOT NULL, record BLOB NOT NULL) STRICT;"
        ),
        // A random key changes a random page: one of an index without the records, which come in the order of their making.
        Kind::Keyed(name) | Kind::Cached(name) => format!(
            "CREATE TABLE {name} (queue INTEGER NOT NULL, key ANY NOT NULL, record BLOB NOT NULL, \
             PRIMARY KEY (queue, key)) STRICT;"
        ),
        Kind::Lease | Kind::Volatile => String::new(),
    });
    // One tree each, in the order of the index.
    let ordered = INDEX_TABLES[..ENTRY].iter().map(|name| {
        format!(
            "CREATE TABLE {name} (slot INTEGER NOT NULL, score INTEGER NOT NULL, member ANY NOT NULL, \
             PRIMARY KEY (slot, score, member)) STRICT, WITHOUT ROWID;"
        )
    });
    format!(
        "BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {LAYOUT}; \
         {TABLES} {} INSERT INTO store VALUES ({FORMAT}, {FORMAT}, '{}'); COMMIT;",
        records.chain(ordered).collect::<String>(),
        storage::VERSION
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
        connection.query_row(&format!("SELECT {least}, needs FROM store"), [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if found > FORMAT {
        return Err(SchemaError::Newer { found, needs });
    }
    Ok(())
}
