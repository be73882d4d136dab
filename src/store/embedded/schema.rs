//! The format on disk, in one screen. A job has one home: `jobs` holds what never changes, and exactly one of `ready`,
//! `scheduled`, `leases`, `dead` and `completed` has its place.

use super::Durability;
use rusqlite::{Connection, OpenFlags, config::DbConfig, ffi::ErrorCode};
use std::path::Path;

/// "RDRV": tells our files from other people's databases.
const APPLICATION_ID: i32 = 0x5244_5256;
/// Raised with every change below; an upgrade step goes into `open`.
const VERSION: i32 = 1;

pub(super) const DATABASE: &str = "redrive.db";

const TABLES: &str = "
-- One row: store time and the boot it was read in; the number of the next job. Numbers are never used twice.
CREATE TABLE store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    time_us INTEGER NOT NULL, boot_us INTEGER NOT NULL, boot_id BLOB NOT NULL,
    next_number INTEGER NOT NULL
) STRICT;

-- Depths and totals of each queue, written once per transaction. Dead letters are numbered in their order of death.
CREATE TABLE queues (
    queue INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, used_at INTEGER NOT NULL,
    next_death INTEGER NOT NULL DEFAULT 1, finished_keys INTEGER NOT NULL DEFAULT 0,
    ready INTEGER NOT NULL DEFAULT 0, scheduled INTEGER NOT NULL DEFAULT 0,
    leased INTEGER NOT NULL DEFAULT 0, completed_now INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0, overflow INTEGER NOT NULL DEFAULT 0,
    enqueued INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0,
    failed_attempts INTEGER NOT NULL DEFAULT 0, retries INTEGER NOT NULL DEFAULT 0,
    successful_retries INTEGER NOT NULL DEFAULT 0, retried_finished INTEGER NOT NULL DEFAULT 0,
    dead_lettered INTEGER NOT NULL DEFAULT 0, requeued INTEGER NOT NULL DEFAULT 0,
    lease_expired INTEGER NOT NULL DEFAULT 0, purged INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0, retention_expired INTEGER NOT NULL DEFAULT 0,
    moved_in INTEGER NOT NULL DEFAULT 0, moved_out INTEGER NOT NULL DEFAULT 0
) STRICT;

-- One row: the totals of queues that were forgotten, so that the totals of all never go back. Columns as in `queues`.
CREATE TABLE forgotten (
    enqueued INTEGER NOT NULL, completed INTEGER NOT NULL, failed_attempts INTEGER NOT NULL,
    retries INTEGER NOT NULL, successful_retries INTEGER NOT NULL, retried_finished INTEGER NOT NULL,
    dead_lettered INTEGER NOT NULL, requeued INTEGER NOT NULL, lease_expired INTEGER NOT NULL,
    purged INTEGER NOT NULL, cancelled INTEGER NOT NULL, retention_expired INTEGER NOT NULL,
    moved_in INTEGER NOT NULL, moved_out INTEGER NOT NULL
) STRICT;
INSERT INTO forgotten VALUES (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);

-- What never changes about a job: see codec.rs for the head, which ends with a CRC32C over head and body.
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, queue INTEGER NOT NULL, head BLOB NOT NULL, body ANY
) STRICT;

-- The order in which jobs are handed out. rank = -priority; tie = the number, or the caller's own id.
CREATE TABLE ready (
    queue INTEGER NOT NULL, rank INTEGER NOT NULL, at INTEGER NOT NULL, tie ANY NOT NULL,
    number INTEGER NOT NULL, seen INTEGER NOT NULL,
    PRIMARY KEY (queue, rank, at, tie)
) STRICT, WITHOUT ROWID;

-- Jobs that wait for their time.
CREATE TABLE scheduled (
    queue INTEGER NOT NULL, at INTEGER NOT NULL, tie ANY NOT NULL,
    rank INTEGER NOT NULL, number INTEGER NOT NULL, seen INTEGER NOT NULL,
    PRIMARY KEY (queue, at, tie)
) STRICT, WITHOUT ROWID;

-- Jobs that are out, with the attempt that runs. ready_at leads back to the old place; breaker: its transitions by then.
CREATE TABLE leases (
    number INTEGER PRIMARY KEY, queue INTEGER NOT NULL, delivery INTEGER NOT NULL,
    nonce INTEGER NOT NULL, attempt INTEGER NOT NULL, started_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, duration INTEGER NOT NULL, ready_at INTEGER NOT NULL,
    traits INTEGER NOT NULL, worker TEXT, request TEXT, checkpoint TEXT, breaker INTEGER NOT NULL
) STRICT;

-- What a job has been through and where it is, from its first ending that did not remove it. `at`: ready, due, death or
-- completion.
CREATE TABLE progress (
    number INTEGER PRIMARY KEY, state INTEGER NOT NULL, at INTEGER NOT NULL,
    death INTEGER NOT NULL, record BLOB NOT NULL
) STRICT;

-- History: the first 10 and the last 40 attempts; the first (0) and the last (1) failure whole.
CREATE TABLE attempts (
    number INTEGER NOT NULL, seq INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (number, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE failures (
    number INTEGER NOT NULL, last INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (number, last)
) STRICT, WITHOUT ROWID;

-- Dead letters in their order of death. counted_as: the type of error under which it is counted.
CREATE TABLE dead (
    queue INTEGER NOT NULL, death INTEGER NOT NULL, number INTEGER NOT NULL,
    overflow INTEGER NOT NULL, reason INTEGER NOT NULL, died_at INTEGER NOT NULL, context TEXT NOT NULL,
    counted_as TEXT NOT NULL,
    PRIMARY KEY (queue, death)
) STRICT, WITHOUT ROWID;
-- How many died of what, so that nobody has to count.
CREATE TABLE dead_types (
    queue INTEGER NOT NULL, error_type TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (queue, error_type)
) STRICT, WITHOUT ROWID;

-- Jobs that are done, where their queue keeps them, in their order of completion. id: the caller's own. A result has a
-- row only where there is one; see codec.rs.
CREATE TABLE completed (
    queue INTEGER NOT NULL, at INTEGER NOT NULL, number INTEGER NOT NULL, id TEXT,
    PRIMARY KEY (queue, at, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE results (
    number INTEGER PRIMARY KEY, record BLOB NOT NULL
) STRICT;

-- Queues that hand out nothing. until: when it ends by itself.
CREATE TABLE pauses (
    queue INTEGER PRIMARY KEY, until INTEGER, reason TEXT NOT NULL
) STRICT;

-- Breakers that are not as new: of a queue's work, or of its dead letters. opened_at: null while it is closed.
CREATE TABLE breakers (
    queue INTEGER NOT NULL, dead_letters INTEGER NOT NULL, transitions INTEGER NOT NULL,
    trips INTEGER NOT NULL, last_error TEXT NOT NULL,
    opened_at INTEGER, probe_at INTEGER, successes INTEGER, failed_probe TEXT,
    forced_open INTEGER, forced_at INTEGER, forced_reason TEXT,
    PRIMARY KEY (queue, dead_letters)
) STRICT, WITHOUT ROWID;

-- Only where used: callers' own ids, idempotency keys (free_at: when a finished job's key is free), deadlines.
CREATE TABLE ids (
    id TEXT NOT NULL, queue INTEGER NOT NULL, number INTEGER NOT NULL, sameness BLOB NOT NULL,
    PRIMARY KEY (id, queue)
) STRICT, WITHOUT ROWID;
CREATE TABLE keys (
    queue INTEGER NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL,
    sameness BLOB NOT NULL, free_at INTEGER,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX finished_keys ON keys (queue, free_at) WHERE free_at IS NOT NULL;
CREATE TABLE deadlines (
    at INTEGER NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (at, number)
) STRICT, WITHOUT ROWID;

-- Answers to calls with a request id, until they are forgotten. call: see replies.rs; asked: the sum of the request.
CREATE TABLE replies (
    call INTEGER NOT NULL, request TEXT NOT NULL, asked BLOB NOT NULL, until INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (call, request)
) STRICT;
CREATE INDEX old_replies ON replies (until);
";

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error(
        "it has format {found}, and this redrive reads format {VERSION}: use the redrive that wrote it, or a newer one"
    )]
    OtherVersion { found: i32 },
    #[error("it is a database, but not one of redrive's")]
    NotOurs,
    #[error("it is not a database, or damaged beyond reading: {0}")]
    Unreadable(String),
    #[error("there is none: is this the data directory of a server that has run?")]
    Missing,
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

/// Opens the database for its one writer, or what goes on beside it, and makes it if it is not there.
pub(super) fn open_writer(path: &Path, durability: Durability) -> Result<Connection, SchemaError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    prepare(&connection, durability).map_err(or_unreadable)?;
    Ok(connection)
}

/// Opens a database that is there, and never changes it. A server may go on beside.
pub(super) fn open_to_look(path: &Path) -> Result<Connection, SchemaError> {
    if !path.exists() {
        return Err(SchemaError::Missing);
    }
    let connection = open_reader(path)?;
    // What is sorted may be more than fits into memory.
    connection.pragma_update(None, "temp_store", "FILE")?;
    check(&connection).map_err(or_unreadable)?;
    Ok(connection)
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
        check(connection)?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", durability.synchronous())?;
    connection.pragma_update(None, "cache_size", -32 * 1024)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // See wal.rs.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    if tables == 0 {
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; \
             {TABLES} COMMIT;"
        ))?;
    }
    Ok(())
}

/// Whether the database is ours to touch: before anything in it is changed.
fn check(connection: &Connection) -> Result<(), SchemaError> {
    let pragma = |name| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0));
    let (application_id, version): (i32, i32) =
        (pragma("application_id")?, pragma("user_version")?);
    if application_id != APPLICATION_ID {
        return Err(SchemaError::NotOurs);
    }
    if version != VERSION {
        return Err(SchemaError::OtherVersion { found: version });
    }
    Ok(())
}

/// Opens the database for reading beside the writer.
pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    leave_log_alone(&connection)?;
    connection.pragma_update(None, "cache_size", -4 * 1024)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Otherwise the last connection copies it into the database when it is closed.
pub(super) fn leave_log_alone(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(drop)
}
