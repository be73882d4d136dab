//! Reads beside the writer: each `read` sees one moment.

use super::{
    cache::{SharedVolatile, Sums},
    failure::Failure,
    read::{self, QueueReader},
    rows,
    storage::Answer,
};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    store::storage::{Found, Read, Reads, RecordKey, Table},
};
use rusqlite::{Connection, Result};
use std::future::ready;

pub struct SqliteReader<'c> {
    pub(super) connection: &'c Connection,
    pub(super) volatile: SharedVolatile,
    pub(super) now: Timestamp,
}

impl SqliteReader<'_> {
    fn read_now(&self, name: &QueueName, reads: &[Read]) -> Result<Option<Vec<Found>>> {
        // Ends with a rollback, which is all that a transaction that has read needs.
        let transaction = self.connection.unchecked_transaction()?;
        let mut statement =
            transaction.prepare_cached("SELECT queue, sums FROM queue WHERE name = ?1")?;
        let mut found = statement.query([name.as_str()])?;
        let Some(row) = found.next()? else { return Ok(None) };
        let reader = QueueReader { connection: &transaction, queue: row.get(0)? };
        let sums = Sums::read(row.get_ref(1)?.as_blob()?);
        let found = reads.iter().map(|read| reader.read(&sums, &self.volatile, read));
        found.collect::<Result<_>>().map(Some)
    }
}

fn answer<T>(result: Result<T>) -> Answer<T> {
    ready(result.map_err(|error| Failure::from(error).error()))
}

#[expect(refining_impl_trait, reason = "callers that know the engine need not wait")]
impl Reads for SqliteReader<'_> {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn read(&mut self, queue: &QueueName, reads: &[Read]) -> Answer<Option<Vec<Found>>> {
        answer(self.read_now(queue, reads))
    }

    fn queues(&mut self, after: Option<&QueueName>, limit: usize) -> Answer<Vec<QueueName>> {
        // The store's own row has an empty name.
        let sql = "SELECT name FROM queue WHERE name > ?1 ORDER BY name LIMIT ?2";
        let columns = (after.map_or("", QueueName::as_str), rows::limit(limit));
        answer(read::collect(self.connection, sql, columns, |row| {
            Ok(QueueName::parse(row.get_ref(0)?.as_str()?))
        }))
    }

    fn holders(&mut self, table: Table, key: &RecordKey) -> Answer<Vec<QueueName>> {
        answer(read::holders(self.connection, &self.volatile, table, key))
    }
}
