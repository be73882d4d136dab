//! Pauses: a queue hands out nothing for a while, and everything else goes on.

use super::{
    memory::{QueueNumber, unsigned},
    writer::{Failure, Writer},
};
use crate::{
    domain::{ids::QueueName, pause::Pause, time::Timestamp},
    store::{Ask, NewPause, QueueRefused},
};
use rusqlite::{Connection, OptionalExtension, Row};

/// Every pause there is: at most one for each queue.
pub(super) fn all(connection: &Connection) -> rusqlite::Result<Vec<(QueueNumber, Pause)>> {
    let mut pauses = connection.prepare("SELECT until, reason, queue FROM pauses")?;
    let all = pauses.query_map([], |row| Ok((row.get(2)?, read(row)?)))?;
    all.collect()
}

pub(super) fn of(connection: &Connection, queue: QueueNumber) -> rusqlite::Result<Option<Pause>> {
    connection
        .prepare_cached("SELECT until, reason FROM pauses WHERE queue = ?1")?
        .query_row([queue], read)
        .optional()
}

fn read(row: &Row<'_>) -> rusqlite::Result<Pause> {
    let until: Option<i64> = row.get(0)?;
    let until = until.map(|_| unsigned(row, 0)).transpose()?.map(Timestamp::from_millis);
    Ok(Pause { until, reason: row.get(1)? })
}

impl Writer<'_> {
    pub(super) fn pause(
        &mut self,
        ask: &Ask,
        name: &QueueName,
        pause: Option<NewPause>,
    ) -> Result<Result<(), QueueRefused>, Failure> {
        let queue = match self.memory.find(name) {
            Some(queue) => queue,
            None if !ask.settings.queues.contains_key(name) => {
                return Ok(Err(QueueRefused::NoSuchQueue));
            }
            // What has not been made is not paused either.
            None if pause.is_none() => return Ok(Ok(())),
            None => match self.queue_for(name)? {
                Ok(queue) => queue,
                Err(refused) => return Ok(Err(QueueRefused::NotMade(refused))),
            },
        };
        let Some(NewPause { duration, reason }) = pause else {
            self.resume(queue)?;
            return Ok(Ok(()));
        };
        let until = duration.map(|duration| self.now.after(duration));
        self.save_pause(queue, Pause { until, reason })?;
        Ok(Ok(()))
    }

    pub(super) fn save_pause(&mut self, queue: QueueNumber, pause: Pause) -> Result<(), Failure> {
        let until = pause.until.map(|until| until.millis().cast_signed());
        self.sql.save_pause.execute((queue, until, &pause.reason))?;
        self.memory.set_pause(queue, Some(pause));
        self.memory.change(queue, |_| {});
        Ok(())
    }

    /// Pauses whose time has come are over.
    pub(super) fn end_pauses(&mut self) -> Result<(), Failure> {
        while let Some((until, queue)) = self.memory.first_pause_end()
            && until <= self.now
        {
            self.resume(queue)?;
        }
        Ok(())
    }

    fn resume(&mut self, queue: QueueNumber) -> Result<(), Failure> {
        self.sql.delete_pause.execute([queue])?;
        self.memory.set_pause(queue, None);
        // What has been waiting can be claimed from now on.
        self.memory.change(queue, |queue| queue.made_available = true);
        Ok(())
    }
}
