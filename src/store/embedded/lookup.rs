//! Finding a job's place from its number. For the writer's rare needs and for readers alike.

use super::{
    codec,
    memory::{QueueNumber, timestamp, unsigned},
    places::{Place, Tie, state_of},
};
use crate::domain::{job::State, time::Timestamp};
use rusqlite::{Connection, OptionalExtension};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) queue: QueueNumber,
    pub(super) state: State,
    /// When it became ready, is due, was leased, was done or died.
    pub(super) at: Timestamp,
    /// Its number in the order of death.
    pub(super) death: u64,
}

pub(super) fn place(connection: &Connection, number: u64) -> rusqlite::Result<Option<Found>> {
    let row = number.cast_signed();
    let lease = connection
        .prepare_cached("SELECT queue, started_at FROM leases WHERE number = ?1")?
        .query_row([row], |row| Ok((row.get(0)?, timestamp(row, 1)?)))
        .optional()?;
    if let Some((queue, at)) = lease {
        return Ok(Some(Found { queue, state: State::Leased, at, death: 0 }));
    }
    let job = connection
        .prepare_cached("SELECT queue, head FROM jobs WHERE number = ?1")?
        .query_row([row], |row| Ok((row.get::<_, QueueNumber>(0)?, row.get::<_, Vec<u8>>(1)?)))
        .optional()?;
    let Some((queue, head)) = job else {
        return Ok(None);
    };
    let spec = codec::read_head_unchecked(&head).unwrap_or_else(|_| codec::unreadable(number));
    let progress = connection
        .prepare_cached("SELECT state, at, death FROM progress WHERE number = ?1")?
        .query_row([row], |row| Ok((row.get(0)?, timestamp(row, 1)?, unsigned(row, 2)?)))
        .optional()?;
    let (state, at, death) = match progress {
        Some((code, at, death)) => (state_of(code).unwrap_or(State::Ready), at, death),
        None => (State::Ready, spec.run_at, 0),
    };
    if !matches!(state, State::Ready | State::Scheduled) {
        return Ok(Some(Found { queue, state, at, death }));
    }
    // A promotion moves a job from one tree to the other and writes nothing else.
    let scheduled = connection
        .prepare_cached("SELECT 1 FROM scheduled WHERE queue = ?1 AND at = ?2 AND tie = ?3")?
        .exists((queue, at.millis().cast_signed(), Tie::of(number, &spec.id)))?;
    let state = if scheduled { State::Scheduled } else { State::Ready };
    Ok(Some(Found { queue, state, at, death }))
}

/// Whether this job is READY at this very place.
pub(super) fn is_ready(
    connection: &Connection,
    place: &Place,
    at: Timestamp,
) -> rusqlite::Result<bool> {
    let millis = at.millis().cast_signed();
    connection
        .prepare_cached(
            "SELECT 1 FROM ready WHERE queue = ?1 AND rank = ?2 AND at = ?3 AND tie = ?4 AND number = ?5",
        )?
        .exists((place.queue, place.rank(), millis, &place.tie, place.number.cast_signed()))
}

/// Where a job waits, by its number alone. Looks at every waiting job: for one whose head cannot be trusted.
pub(super) fn search(
    connection: &Connection,
    number: u64,
) -> rusqlite::Result<Option<(Place, Timestamp, State)>> {
    for (table, state) in [("ready", State::Ready), ("scheduled", State::Scheduled)] {
        let sql =
            format!("SELECT queue, rank, at, tie, number, seen FROM {table} WHERE number = ?1");
        let found = connection
            .prepare_cached(&sql)?
            .query_row([number.cast_signed()], Place::read)
            .optional()?;
        if let Some((place, at)) = found {
            return Ok(Some((place, at, state)));
        }
    }
    Ok(None)
}
