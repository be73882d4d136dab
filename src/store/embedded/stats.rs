//! Counters: of one queue, and of all that there ever were. Looks at queues, never at jobs.

use super::{
    memory::{QueueNumber, read_queue, read_totals},
    writer::{Failure, Writer},
};
use crate::{domain::ids::QueueName, store::Stats};
use rusqlite::{Connection, Result};

pub(super) fn stats(connection: &Connection, name: Option<&QueueName>) -> Result<Option<Stats>> {
    let moment = connection.unchecked_transaction()?;
    let mut queues = moment.prepare_cached("SELECT * FROM queues WHERE ?1 IS NULL OR name = ?1")?;
    let mut rows = queues.query([name.map(QueueName::as_str)])?;
    let mut all = name.is_none().then(Stats::default);
    while let Some(row) = rows.next()? {
        if let Some(queue) = read_queue(row)? {
            let sum = all.get_or_insert_default();
            sum.totals += queue.totals;
            sum.held += queue.depths.held();
        }
    }
    if name.is_none()
        && let Some(all) = &mut all
    {
        let forgotten = moment
            .prepare_cached("SELECT * FROM forgotten")?
            .query_row([], |row| read_totals(row, 0))?;
        all.totals += forgotten;
    }
    Ok(all)
}

impl Writer<'_> {
    /// The queue is about to be forgotten, but not what it has counted.
    pub(super) fn remember_totals(
        &mut self,
        queue: QueueNumber,
    ) -> std::result::Result<(), Failure> {
        if let Some(queue) = self.memory.queue(queue) {
            let totals = queue.totals.values().map(u64::cast_signed);
            self.sql.remember_totals.execute(totals)?;
        }
        Ok(())
    }
}
