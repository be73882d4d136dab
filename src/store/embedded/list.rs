//! Listing a queue's jobs: a walk along the trees that hold their places, from where the page before ended.

use super::{
    lookup::Found,
    memory::{QueueNumber, timestamp, unsigned},
    places::Tie,
    read,
};
use crate::{
    domain::{job::State, time::Timestamp},
    store::{Ahead, JobPage, JobPosition, JobQuery, sizes},
};
use rusqlite::{Connection, OptionalExtension, Result, types::Value};
use std::ops::ControlFlow;

const READY: &str = "SELECT number, rank, at, tie FROM ready \
    WHERE queue = ?1 AND (rank, at, tie) > (?2, ?3, ?4) ORDER BY rank, at, tie";
const READY_BEFORE: &str = "SELECT count(*) FROM (SELECT 1 FROM ready \
    WHERE queue = ?1 AND (rank, at, tie) <= (?2, ?3, ?4) LIMIT ?5)";
const SCHEDULED: &str = "SELECT number, at, tie FROM scheduled \
    WHERE queue = ?1 AND (at, tie) > (?2, ?3) ORDER BY at, tie";
/// Of all queues: the hot path keeps no order for listings.
const LEASED: &str = "SELECT number, queue FROM leases WHERE number > ?1 ORDER BY number";
const DEAD: &str = "SELECT number, death FROM dead WHERE queue = ?1 AND death > ?2 ORDER BY death";

const COMPLETED: &str = "SELECT number, at FROM completed \
    WHERE queue = ?1 AND (at, number) > (?2, ?3) ORDER BY at, number";

/// One row on the way.
struct Step {
    number: u64,
    /// It is of another queue.
    foreign: bool,
    position: JobPosition,
    ahead: Option<Ahead>,
}

struct Walk<'a> {
    connection: &'a Connection,
    queue: QueueNumber,
    query: &'a JobQuery,
    page: JobPage,
    looked: usize,
    bytes: usize,
    last: Option<JobPosition>,
}

pub(super) fn jobs(connection: &Connection, query: &JobQuery) -> Result<Option<JobPage>> {
    let moment = connection.unchecked_transaction()?;
    let Some(queue) = read::queue_number(&moment, &query.queue)? else {
        return Ok(None);
    };
    let last = query.after.clone();
    let page = JobPage::default();
    let mut walk = Walk { connection: &moment, queue, query, page, looked: 0, bytes: 0, last };
    for (state, after) in query.walk() {
        let walked = match state {
            State::Ready => walk.ready(after)?,
            State::Scheduled => walk.scheduled(after)?,
            State::Leased => walk.leased(after)?,
            State::Dead => walk.dead(after)?,
            State::Completed => walk.completed(after)?,
        };
        if walked.is_break() {
            break;
        }
    }
    Ok(Some(walk.page))
}

fn millis(at: Timestamp) -> i64 {
    at.millis().cast_signed()
}

fn tie_of(position: &JobPosition) -> Tie {
    if position.id.is_empty() { Tie::Number(position.number) } else { Tie::Id(position.id.clone()) }
}

fn own_id(tie: Value) -> String {
    match tie {
        Value::Text(id) => id,
        _ => String::new(),
    }
}

impl Walk<'_> {
    fn ready(&mut self, after: Option<&JobPosition>) -> Result<ControlFlow<()>> {
        let from = match after {
            None => (self.queue, i64::MIN, 0, Tie::Number(0)),
            Some(after) => {
                (self.queue, -i64::from(after.priority), millis(after.at), tie_of(after))
            }
        };
        let most = read::AHEAD_MAX;
        let mut line: usize = match after {
            None => 0,
            Some(_) => self
                .connection
                .prepare_cached(READY_BEFORE)?
                .query_row((from.0, from.1, from.2, &from.3, most as i64 + 1), |row| {
                    unsigned(row, 0).map(|rows| rows as usize)
                })?,
        };
        let mut ready = self.connection.prepare_cached(READY)?;
        let mut rows = ready.query((from.0, from.1, from.2, &from.3))?;
        while let Some(row) = rows.next()? {
            let (number, rank) = (unsigned(row, 0)?, row.get::<_, i64>(1)?);
            let position = JobPosition {
                state: State::Ready,
                priority: (-rank) as i8,
                at: timestamp(row, 2)?,
                number,
                id: own_id(row.get(3)?),
            };
            let ahead = Some(Ahead { jobs: line.min(most), more: line > most });
            line += 1;
            if self.step(Step { number, foreign: false, position, ahead })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn scheduled(&mut self, after: Option<&JobPosition>) -> Result<ControlFlow<()>> {
        let from = match after {
            None => (self.queue, i64::MIN, Tie::Number(0)),
            Some(after) => (self.queue, millis(after.at), tie_of(after)),
        };
        let mut scheduled = self.connection.prepare_cached(SCHEDULED)?;
        let mut rows = scheduled.query((from.0, from.1, &from.2))?;
        while let Some(row) = rows.next()? {
            let number = unsigned(row, 0)?;
            let (at, id) = (timestamp(row, 1)?, own_id(row.get(2)?));
            let position = JobPosition { state: State::Scheduled, priority: 0, at, number, id };
            if self.step(Step { number, foreign: false, position, ahead: None })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn leased(&mut self, after: Option<&JobPosition>) -> Result<ControlFlow<()>> {
        let out: i64 = self
            .connection
            .prepare_cached("SELECT leased FROM queues WHERE queue = ?1")?
            .query_row([self.queue], |row| row.get(0))?;
        if out == 0 {
            return Ok(ControlFlow::Continue(()));
        }
        let from = after.map_or(0, |after| after.number);
        let mut leased = self.connection.prepare_cached(LEASED)?;
        let mut rows = leased.query([from.cast_signed()])?;
        while let Some(row) = rows.next()? {
            let number = unsigned(row, 0)?;
            let foreign = row.get::<_, QueueNumber>(1)? != self.queue;
            let position = numbered(State::Leased, number);
            if self.step(Step { number, foreign, position, ahead: None })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn dead(&mut self, after: Option<&JobPosition>) -> Result<ControlFlow<()>> {
        let from = after.map_or(0, |after| after.number);
        let mut dead = self.connection.prepare_cached(DEAD)?;
        let mut rows = dead.query((self.queue, from.cast_signed()))?;
        while let Some(row) = rows.next()? {
            let position = numbered(State::Dead, unsigned(row, 1)?);
            let number = unsigned(row, 0)?;
            if self.step(Step { number, foreign: false, position, ahead: None })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn completed(&mut self, after: Option<&JobPosition>) -> Result<ControlFlow<()>> {
        let from = after.map_or((i64::MIN, 0), |after| (millis(after.at), after.number));
        let mut completed = self.connection.prepare_cached(COMPLETED)?;
        let mut rows = completed.query((self.queue, from.0, from.1.cast_signed()))?;
        while let Some(row) = rows.next()? {
            let number = unsigned(row, 0)?;
            let at = timestamp(row, 1)?;
            let position = JobPosition { at, ..numbered(State::Completed, number) };
            if self.step(Step { number, foreign: false, position, ahead: None })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Takes the job in if it is wanted; a break ends the page before it.
    fn step(&mut self, step: Step) -> Result<ControlFlow<()>> {
        if self.page.jobs.len() >= self.query.limit || self.looked >= self.query.looks_max {
            self.page.next.clone_from(&self.last);
            return Ok(ControlFlow::Break(()));
        }
        self.looked += 1;
        if !step.foreign && self.is_wanted(step.number)? {
            let JobPosition { state, at, number: death, .. } = step.position;
            let found = Found { queue: self.queue, state, at, death };
            if let Some(mut view) =
                read::placed(self.connection, step.number, &found, self.query.full)?
            {
                view.ahead = step.ahead;
                if !self.query.full {
                    view.attempts.clear();
                    view.progress.checkpoint.clear();
                }
                self.bytes += sizes::of_view(&view);
                if self.bytes > self.query.max_bytes && !self.page.jobs.is_empty() {
                    self.page.next.clone_from(&self.last);
                    return Ok(ControlFlow::Break(()));
                }
                self.page.jobs.push((step.position.clone(), view));
            }
        }
        self.last = Some(step.position);
        Ok(ControlFlow::Continue(()))
    }

    fn is_wanted(&self, number: u64) -> Result<bool> {
        let Some(wanted) = &self.query.job_type else {
            return Ok(true);
        };
        let job_type = self
            .connection
            .prepare_cached("SELECT head FROM jobs WHERE number = ?1")?
            .query_row([number.cast_signed()], |row| {
                let head = row.get_ref(0)?.as_blob().unwrap_or_default();
                Ok(super::codec::read_head_unchecked(head).ok().map(|spec| spec.job_type))
            })
            .optional()?;
        Ok(job_type.flatten().as_ref() == Some(wanted))
    }
}

fn numbered(state: State, number: u64) -> JobPosition {
    JobPosition { state, priority: 0, at: Timestamp::default(), number, id: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What makes a page cost the same whatever the backlog.
    #[test]
    fn every_walk_follows_a_tree_and_sorts_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("list.db");
        let connection =
            super::super::schema::open_writer(&path, super::super::Durability::None).unwrap();
        for sql in [READY, READY_BEFORE, SCHEDULED, LEASED, DEAD, COMPLETED] {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let rows = plan.raw_query().mapped(|row| row.get::<_, String>(3));
            let plan = rows.collect::<Result<Vec<_>>>().unwrap().join("; ");
            assert!(plan.contains("SEARCH") && plan.contains("PRIMARY KEY"), "{sql}: {plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
    }
}
