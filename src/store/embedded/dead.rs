//! Which dead letters a call means, decided in one place for all calls that do something to them.

use super::{
    codec, lookup,
    memory::{QueueNumber, timestamp, unsigned},
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        dead_filter::DeadFilter,
        ids::{DeadPart, JobId},
        job::{DeadReason, State},
        time::Timestamp,
    },
    store::{Deaths, Search, Which},
};
use rusqlite::{Connection, OptionalExtension, Row};

/// Types of error that a queue counts one by one; the rest is counted together.
const TYPES_MAX: i64 = 1_000;
const OTHER_TYPES: &str = "(other)";

/// A dead letter, found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dead {
    pub(super) death: u64,
    pub(super) number: u64,
    pub(super) reason: DeadReason,
    pub(super) died_at: Timestamp,
}

impl Dead {
    /// `death, number, reason, died_at`.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            death: unsigned(row, 0)?,
            number: unsigned(row, 1)?,
            reason: codec::reason_of(row.get(2)?).unwrap_or(DeadReason::Corrupt),
            died_at: timestamp(row, 3)?,
        })
    }

    /// Reads no more of the job than the filter asks about.
    pub(super) fn fits(
        &self,
        connection: &Connection,
        filter: &DeadFilter,
    ) -> rusqlite::Result<bool> {
        if !filter.fits_death(self.reason, self.died_at) {
            return Ok(false);
        }
        let row = self.number.cast_signed();
        let head: Option<Vec<u8>> = connection
            .prepare_cached("SELECT head FROM jobs WHERE number = ?1")?
            .query_row([row], |row| row.get(0))
            .optional()?;
        let spec = codec::read_head_unchecked(&head.unwrap_or_default())
            .unwrap_or_else(|_| codec::unreadable(self.number));
        let failure: Option<Vec<u8>> = connection
            .prepare_cached(
                "SELECT record FROM failures WHERE number = ?1 ORDER BY last DESC LIMIT 1",
            )?
            .query_row([row], |row| row.get(0))
            .optional()?;
        let failure = failure.and_then(|record| codec::read_failure(&record).ok());
        Ok(filter.fits_job(&spec.job_type, failure.as_ref()))
    }
}

/// What a call means.
#[derive(Debug)]
pub(super) struct Picked {
    /// In their order; an id that is not among the dead letters stands for itself.
    pub(super) letters: Vec<Result<Dead, JobId>>,
    pub(super) has_more: bool,
    pub(super) left: Deaths,
}

impl Writer<'_> {
    pub(super) fn pick(
        &mut self,
        queue: QueueNumber,
        part: &DeadPart,
        which: &Which,
    ) -> Result<Picked, Failure> {
        let newest = self.memory.queue(queue).map_or(0, |queue| queue.next_death - 1);
        let all = Deaths { after: 0, up_to: newest };
        match which {
            Which::Ids(ids) => {
                let mut letters = Vec::with_capacity(ids.len());
                for id in ids {
                    let dead = self.dead_of_id(queue, id, part.overflow_only)?;
                    letters.push(dead.ok_or_else(|| id.clone()));
                }
                Ok(Picked { letters, has_more: false, left: all })
            }
            Which::Oldest { limit, among } => {
                self.oldest(queue, part.overflow_only, None, *limit, among.unwrap_or(all))
            }
            Which::Found { search, limit, among } => {
                self.oldest(queue, part.overflow_only, Some(search), *limit, among.unwrap_or(all))
            }
        }
    }

    fn oldest(
        &mut self,
        queue: QueueNumber,
        overflow_only: bool,
        search: Option<&Search>,
        limit: usize,
        among: Deaths,
    ) -> Result<Picked, Failure> {
        let connection = self.connection;
        let look_at = search.map_or(limit, |search| search.look_at);
        let mut rows = self.sql.oldest_dead.query((
            queue,
            among.after.cast_signed(),
            among.up_to.cast_signed(),
            overflow_only,
            i64::try_from(look_at.saturating_add(1)).unwrap_or(i64::MAX),
        ))?;
        let mut picked = Picked { letters: Vec::new(), has_more: false, left: among };
        let mut looked_at = 0;
        while let Some(row) = rows.next()? {
            if looked_at == look_at || picked.letters.len() == limit {
                picked.has_more = true;
                break;
            }
            looked_at += 1;
            let dead = Dead::read(row)?;
            picked.left.after = dead.death;
            let found = match search {
                Some(search) => dead.fits(connection, &search.filter)?,
                None => true,
            };
            if found {
                picked.letters.push(Ok(dead));
            }
        }
        Ok(picked)
    }

    fn dead_of_id(
        &mut self,
        queue: QueueNumber,
        id: &JobId,
        overflow_only: bool,
    ) -> Result<Option<Dead>, Failure> {
        let Some(number) = super::read::number_of(self.connection, id, queue)? else {
            return Ok(None);
        };
        let Some(found) = lookup::place(self.connection, number)? else {
            return Ok(None);
        };
        if found.state != State::Dead {
            return Ok(None);
        }
        let death = found.death.cast_signed();
        let mut rows = self.sql.oldest_dead.query((queue, death - 1, death, overflow_only, 1))?;
        Ok(rows.next()?.map(Dead::read).transpose()?)
    }

    /// It is no longer among the dead letters. False: it was not.
    pub(super) fn take_dead(&mut self, queue: QueueNumber, dead: &Dead) -> Result<bool, Failure> {
        let mut rows = self.sql.delete_dead.query((queue, dead.death.cast_signed()))?;
        let taken: Option<(bool, String)> = rows
            .next()?
            .map(|row| Ok::<_, rusqlite::Error>((row.get(0)?, row.get(1)?)))
            .transpose()?;
        drop(rows);
        let Some((overflow, counted_as)) = taken else {
            return Ok(false);
        };
        self.sql.count_type.execute((queue, &counted_as, -1))?;
        self.sql.delete_type.execute((queue, &counted_as))?;
        self.memory.change(queue, |queue| {
            queue.depths.dead -= 1;
            queue.depths.overflow -= u64::from(overflow);
        });
        self.made_room(queue)?;
        Ok(true)
    }

    /// Counts a dead letter by its type of error; says under which.
    pub(super) fn count_dead<'a>(
        &mut self,
        queue: QueueNumber,
        error_type: &'a str,
    ) -> Result<&'a str, Failure> {
        if self.sql.count_type.execute((queue, error_type, 1))? > 0
            || self.sql.insert_type.execute((queue, error_type, TYPES_MAX))? > 0
        {
            return Ok(error_type);
        }
        if self.sql.count_type.execute((queue, OTHER_TYPES, 1))? == 0 {
            self.sql.insert_other_type.execute((queue, OTHER_TYPES))?;
        }
        Ok(OTHER_TYPES)
    }
}
