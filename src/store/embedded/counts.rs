//! Dead letters counted, without looking at them.

use super::{
    codec,
    memory::{QueueNumber, timestamp, unsigned},
};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    store::{DeadCount, DeadCountQuery, DeadCounts, LatestDeath},
};
use rusqlite::{Connection, OptionalExtension, Result};

pub(super) fn dead_letter_counts(
    connection: &Connection,
    query: &DeadCountQuery,
) -> Result<DeadCounts> {
    let moment = connection.unchecked_transaction()?;
    let mut counts = DeadCounts::default();
    let (only, after) = (query.queue.as_ref(), query.after.as_ref());
    let mut queues = match only {
        Some(_) => moment.prepare_cached(
            "SELECT queue, name, dead, overflow FROM queues WHERE name = ?1 LIMIT ?2",
        )?,
        None => moment.prepare_cached(
            "SELECT queue, name, dead, overflow FROM queues WHERE name > ?1 AND dead > 0 \
             ORDER BY name LIMIT ?2",
        )?,
    };
    let name = only.or(after).map_or("", QueueName::as_str);
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let mut rows = queues.query((name, limit))?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(1)?;
        let Some(queue) = QueueName::parse(&name) else {
            continue;
        };
        let number: QueueNumber = row.get(0)?;
        counts.queues.push(DeadCount {
            queue,
            count: unsigned(row, 2)?,
            overflow: unsigned(row, 3)?,
            oldest: oldest(&moment, number)?,
            by_error_type: types(&moment, number, query.types)?,
            latest: latest(&moment, number, query.latest)?,
        });
    }
    counts.total = match only {
        Some(_) => counts.queues.iter().map(|queue| queue.count).sum(),
        None => moment
            .prepare_cached("SELECT coalesce(sum(dead), 0) FROM queues")?
            .query_row([], |row| unsigned(row, 0))?,
    };
    Ok(counts)
}

fn oldest(connection: &Connection, queue: QueueNumber) -> Result<Option<Timestamp>> {
    connection
        .prepare_cached("SELECT died_at FROM dead WHERE queue = ?1 ORDER BY death LIMIT 1")?
        .query_row([queue], |row| timestamp(row, 0))
        .optional()
}

fn types(connection: &Connection, queue: QueueNumber, limit: usize) -> Result<Vec<(String, u64)>> {
    connection
        .prepare_cached(
            "SELECT error_type, count FROM dead_types WHERE queue = ?1 \
             ORDER BY count DESC, error_type LIMIT ?2",
        )?
        .query_map((queue, limit as i64), |row| Ok((row.get(0)?, unsigned(row, 1)?)))?
        .collect()
}

fn latest(connection: &Connection, queue: QueueNumber, limit: usize) -> Result<Vec<LatestDeath>> {
    connection
        .prepare_cached(
            "SELECT number, died_at, counted_as, head FROM dead JOIN jobs USING (number) \
             WHERE dead.queue = ?1 ORDER BY death DESC LIMIT ?2",
        )?
        .query_map((queue, limit as i64), |row| {
            let head = row.get_ref(3)?.as_blob().unwrap_or_default();
            let number = unsigned(row, 0)?;
            let spec =
                codec::read_head_unchecked(head).unwrap_or_else(|_| codec::unreadable(number));
            Ok(LatestDeath { id: spec.id, error_type: row.get(2)?, died_at: timestamp(row, 1)? })
        })?
        .collect()
}
