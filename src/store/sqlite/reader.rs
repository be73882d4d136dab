//! Reads beside the writer: each `read` sees one moment.

use super::{
    cache::{SharedVolatile, Sums},
    failure::Failure,
    read::{self, QueueReader},
};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    store::{
        StoreError,
        storage::{CounterGroup, Found, Len, Mark, Read, Reads, RecordKey, Table},
    },
};
use rusqlite::{Connection, Result};
use std::future::{Future, ready};

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
        reads.iter().map(|read| self.read_one(reader, &sums, read)).collect::<Result<_>>().map(Some)
    }

    fn read_one(&self, reader: QueueReader<'_>, sums: &Sums, read: &Read) -> Result<Found> {
        let queue = reader.queue;
        let outcomes = || self.volatile.lock().get(&queue).and_then(|queue| queue.outcomes.clone());
        Ok(match read {
            Read::Record(Table::Outcomes, _) => Found::Record(outcomes()),
            Read::Record(table, key) => Found::Record(reader.record(*table, key)?),
            Read::Score(index, member) => Found::Score(reader.score(*index, member)?),
            Read::Range { index, after, up_to, limit, reverse } => {
                Found::Entries(reader.range(*index, after.as_ref(), *up_to, *limit, *reverse)?)
            }
            Read::Ahead(position, most) => Found::Number(reader.ahead(position, *most)?),
            Read::Len(Len::Table(Table::Outcomes)) => Found::Number(outcomes().is_some().into()),
            Read::Len(of) => Found::Number(sums.len(*of)),
            Read::Counters(CounterGroup::Totals) => Found::Counters(sums.totals()),
            Read::Counters(CounterGroup::ErrorTypes) => Found::Counters(reader.error_types()?),
            Read::Counters(CounterGroup::Succeeded(epoch)) => {
                Found::Counters(self.volatile.succeeded(queue, *epoch))
            }
            Read::Mark(Mark::LastSuccess(epoch)) => {
                Found::Score(self.volatile.last_success(queue, *epoch))
            }
            Read::Scan(Table::Outcomes, after, limit) => {
                Found::Scanned(self.volatile.scan_outcomes(queue, after.as_ref(), *limit))
            }
            Read::Scan(table, after, limit) => {
                Found::Scanned(reader.scan(*table, after.as_ref(), *limit)?)
            }
        })
    }

    fn queues_now(&self, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        // The store's own row has an empty name.
        let sql = "SELECT name FROM queue WHERE name > ?1 ORDER BY name LIMIT ?2";
        let columns = (after.map_or("", QueueName::as_str), super::rows::limit(limit));
        read::collect(self.connection.prepare_cached(sql)?, columns, |row| {
            Ok(QueueName::parse(row.get_ref(0)?.as_str()?))
        })
    }

    fn holders_now(&self, table: Table, key: &RecordKey) -> Result<Vec<QueueName>> {
        if table != Table::Outcomes {
            return read::holders(self.connection, table, key);
        }
        let sql = "SELECT name, queue FROM queue WHERE queue > 0 ORDER BY name";
        let volatile = self.volatile.lock();
        read::collect(self.connection.prepare_cached(sql)?, [], |row| {
            let has = volatile.get(&row.get(1)?).is_some_and(|queue| queue.outcomes.is_some());
            Ok(QueueName::parse(row.get_ref(0)?.as_str()?).filter(|_| has))
        })
    }
}

fn checked<T>(result: Result<T>) -> std::result::Result<T, StoreError> {
    result.map_err(|error| Failure::from(error).error())
}

/// The futures are always ready, as those of the writer.
impl Reads for SqliteReader<'_> {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn read(
        &mut self,
        queue: &QueueName,
        reads: &[Read],
    ) -> impl Future<Output = std::result::Result<Option<Vec<Found>>, StoreError>> + Send {
        ready(checked(self.read_now(queue, reads)))
    }

    fn queues(
        &mut self,
        after: Option<&QueueName>,
        limit: usize,
    ) -> impl Future<Output = std::result::Result<Vec<QueueName>, StoreError>> + Send {
        ready(checked(self.queues_now(after, limit)))
    }

    fn holders(
        &mut self,
        table: Table,
        key: &RecordKey,
    ) -> impl Future<Output = std::result::Result<Vec<QueueName>, StoreError>> + Send {
        ready(checked(self.holders_now(table, key)))
    }
}
