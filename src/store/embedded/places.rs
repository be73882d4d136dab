//! Where a job can be, and the moves between: the writer's verbs are made of these.

use super::{
    codec,
    leases::Traits,
    memory::{QueueNumber, timestamp, unsigned},
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        breaker::Guarded,
        ids::JobId,
        job::{Attempt, Body, DeadReason, Next, Progress, Spec, State},
        settings::QueueSettings,
        time::Timestamp,
    },
    store::{DeadNotice, history},
};
use bytes::Bytes;
use rusqlite::{
    Row, ToSql,
    types::{ToSqlOutput, Value, ValueRef},
};

/// What breaks a tie between jobs that became ready together: the id. Ids that the store made sort as their numbers do,
/// before the callers' own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tie {
    Number(u64),
    Id(String),
}

impl Tie {
    pub(super) fn of(number: u64, id: &JobId) -> Self {
        if id.number() == Some(number) { Self::Number(number) } else { Self::Id(id.to_string()) }
    }

    fn read(value: Value, number: u64) -> Self {
        match value {
            Value::Text(id) => Self::Id(id),
            // Not the number beside it: one of the two may be damaged, and this one is the key.
            Value::Integer(tie) => Self::Number(tie.cast_unsigned()),
            _ => Self::Number(number),
        }
    }
}

impl ToSql for Tie {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Number(number) => number.cast_signed().into(),
            Self::Id(id) => id.as_str().into(),
        })
    }
}

/// A job as its tables name it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) queue: QueueNumber,
    pub(super) number: u64,
    pub(super) priority: i8,
    pub(super) tie: Tie,
    /// It has a row in `progress`.
    pub(super) seen: bool,
}

impl Place {
    pub(super) fn of(queue: QueueNumber, number: u64, spec: &Spec, seen: bool) -> Self {
        Self { queue, number, priority: spec.priority, tie: Tie::of(number, &spec.id), seen }
    }

    /// A row of `ready` or `scheduled`: `queue, rank, at, tie, number, seen`. With the time by which it is ordered.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(Self, Timestamp)> {
        let number = unsigned(row, 4)?;
        let rank: i64 = row.get(1)?;
        let place = Self {
            queue: row.get(0)?,
            number,
            priority: (-rank) as i8,
            tie: Tie::read(row.get(3)?, number),
            seen: row.get(5)?,
        };
        Ok((place, timestamp(row, 2)?))
    }

    pub(super) fn rank(&self) -> i64 {
        -i64::from(self.priority)
    }
}

pub(super) struct BodyColumn<'a>(pub(super) &'a Body);

impl ToSql for BodyColumn<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.0 {
            Body::None => ValueRef::Null,
            Body::Text(text) => ValueRef::Text(text),
            Body::Data(data) => ValueRef::Blob(data),
        }))
    }
}

/// A body that is no longer text where text was stored is damaged; its bytes are handed on as data.
pub(super) fn read_body(value: ValueRef<'_>) -> Body {
    match value {
        ValueRef::Text(text) if std::str::from_utf8(text).is_ok() => {
            Body::Text(Bytes::copy_from_slice(text))
        }
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Body::Data(Bytes::copy_from_slice(bytes)),
        _ => Body::None,
    }
}

impl Writer<'_> {
    // ---- jobs ----

    /// The job whole; `Err` inside if its checksum fails.
    pub(super) fn read_job(&mut self, number: u64) -> Result<Result<Spec, Spec>, Failure> {
        let mut rows = self.sql.job.query([number.cast_signed()])?;
        let Some(row) = rows.next()? else {
            return Ok(Err(codec::unreadable(number)));
        };
        let head = row.get_ref(0)?.as_blob().unwrap_or_default();
        let body = read_body(row.get_ref(1)?);
        Ok(match codec::read_job(head, body.clone()) {
            Ok(spec) => Ok(spec),
            Err(_) => {
                let spec =
                    codec::read_head_unchecked(head).unwrap_or_else(|_| codec::unreadable(number));
                Err(Spec { body, ..spec })
            }
        })
    }

    /// All of a job but its body, and its queue. None: there is no such job.
    pub(super) fn read_head(
        &mut self,
        number: u64,
    ) -> Result<Option<(Spec, QueueNumber)>, Failure> {
        let mut rows = self.sql.job_head.query([number.cast_signed()])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let head = row.get_ref(0)?.as_blob().unwrap_or_default();
        let spec = codec::read_head_unchecked(head).unwrap_or_else(|_| codec::unreadable(number));
        Ok(Some((spec, row.get(1)?)))
    }

    /// What it has been through; a damaged record counts as none.
    pub(super) fn read_progress(&mut self, number: u64) -> Result<Option<Progress>, Failure> {
        let mut rows = self.sql.progress.query([number.cast_signed()])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let record = row.get_ref(0)?.as_blob().unwrap_or_default();
        Ok(Some(codec::read_progress(record).unwrap_or_default()))
    }

    // ---- waiting ----

    /// Puts a job in line: READY if its time has come, otherwise SCHEDULED.
    pub(super) fn wait(&mut self, place: &Place, at: Timestamp) -> Result<State, Failure> {
        let number = place.number.cast_signed();
        let millis = at.millis().cast_signed();
        if at <= self.now {
            self.sql.insert_ready.execute((
                place.queue,
                place.rank(),
                millis,
                &place.tie,
                number,
                place.seen,
            ))?;
            self.memory.change(place.queue, |queue| {
                queue.depths.ready += 1;
                queue.made_available = true;
            });
            return Ok(State::Ready);
        }
        self.sql.insert_scheduled.execute((
            place.queue,
            millis,
            &place.tie,
            place.rank(),
            number,
            place.seen,
        ))?;
        self.memory.change(place.queue, |queue| queue.depths.scheduled += 1);
        self.memory.due_at(place.queue, at);
        Ok(State::Scheduled)
    }

    pub(super) fn take_ready(&mut self, place: &Place, at: Timestamp) -> Result<(), Failure> {
        self.delete_ready(place, at)?;
        self.memory.change(place.queue, |queue| queue.depths.ready -= 1);
        Ok(())
    }

    pub(super) fn delete_ready(&mut self, place: &Place, at: Timestamp) -> Result<(), Failure> {
        let key = (place.queue, place.rank(), at.millis().cast_signed(), &place.tie);
        match self.sql.delete_ready.execute(key)? {
            0 => Err(lost_place(place)),
            _ => Ok(()),
        }
    }

    pub(super) fn take_scheduled(&mut self, place: &Place, at: Timestamp) -> Result<(), Failure> {
        let key = (place.queue, at.millis().cast_signed(), &place.tie);
        if self.sql.delete_scheduled.execute(key)? == 0 {
            return Err(lost_place(place));
        }
        self.memory.change(place.queue, |queue| queue.depths.scheduled -= 1);
        Ok(())
    }

    pub(super) fn refresh_due(&mut self, queue: QueueNumber) -> rusqlite::Result<()> {
        let mut rows = self.sql.next_due.query([queue])?;
        let next = rows.next()?.map(|row| unsigned(row, 0)).transpose()?;
        drop(rows);
        self.memory.set_next_due(queue, next.map(Timestamp::from_millis));
        Ok(())
    }

    pub(super) fn refresh_deadline(&mut self) -> rusqlite::Result<()> {
        let mut rows = self.sql.next_deadline.query([])?;
        let next = rows.next()?.map(|row| unsigned(row, 0)).transpose()?;
        self.memory.next_deadline = next.map(Timestamp::from_millis);
        Ok(())
    }

    /// Lets the deadline be noticed while the job waits.
    pub(super) fn watch_deadline(
        &mut self,
        number: u64,
        deadline: Option<Timestamp>,
    ) -> Result<(), Failure> {
        if let Some(at) = deadline {
            self.sql.save_deadline.execute((at.millis().cast_signed(), number.cast_signed()))?;
            self.memory.deadline_at(at);
        }
        Ok(())
    }

    // ---- endings ----

    /// The lease is over.
    pub(super) fn end_lease(&mut self, number: u64, queue: QueueNumber) -> Result<(), Failure> {
        self.sql.delete_lease.execute([number.cast_signed()])?;
        self.forget_lease(number, queue);
        Ok(())
    }

    /// The same, while its row is still there.
    pub(super) fn forget_lease(&mut self, number: u64, queue: QueueNumber) {
        if self.leases_are_full() {
            self.memory.tell_all();
        }
        let held = self.memory.leases.remove(number);
        self.memory.change(queue, |queue| queue.depths.leased -= 1);
        if held.is_some_and(|held| held.traits.has(Traits::PROBE)) {
            self.memory.probe_back(queue, number, self.now);
        }
    }

    /// Where a delivery that did not succeed leads; the lease has been ended.
    pub(super) fn go_on(
        &mut self,
        place: &Place,
        next: Next,
        old_place: Timestamp,
        spec: &Spec,
        progress: &Progress,
        settings: &QueueSettings,
    ) -> Result<(), Failure> {
        let at = match next {
            Next::Bury(reason) => return self.bury(place, spec, progress, reason, settings),
            Next::Later { at } | Next::Behind { at } => at,
            Next::OldPlace => old_place,
        };
        let state = self.wait(place, at)?;
        self.save_progress(place.number, state, at, 0, progress)?;
        self.watch_deadline(place.number, progress.deadline(spec.expires_at))
    }

    /// DEAD, from any state; its place has been given up.
    pub(super) fn bury(
        &mut self,
        place: &Place,
        spec: &Spec,
        progress: &Progress,
        reason: DeadReason,
        settings: &QueueSettings,
    ) -> Result<(), Failure> {
        let Some(queue) = self.memory.queue(place.queue) else {
            return Err(lost_place(place));
        };
        let (death, name, depths) = (queue.next_death, queue.name.clone(), queue.depths);
        let overflow = self.finds_no_room(place.queue, settings)?;
        let state = |guarded| self.memory.breaker_state(place.queue, guarded, self.now);
        let breakers = [state(Guarded::Work), state(Guarded::DeadLetters)];
        let context = depths.context(breakers);
        let number = place.number.cast_signed();
        let error_type = match progress.last_failed_at {
            Some(_) => self.last_failure(place.number)?.map(|failure| failure.error_type),
            None => None,
        };
        let error_type = error_type.unwrap_or_default();
        let counted_as = self.count_dead(place.queue, &error_type)?;
        self.sql.insert_dead.execute((
            place.queue,
            death.cast_signed(),
            number,
            overflow,
            codec::reason_code(reason),
            self.now.millis().cast_signed(),
            codec::context(&context),
            counted_as,
        ))?;
        self.save_progress(place.number, State::Dead, self.now, death, progress)?;
        if let Some(at) = spec.expires_at {
            self.sql.delete_deadline.execute((at.millis().cast_signed(), number))?;
        }
        if let Some(key) = &spec.key
            && !settings.dead_jobs_hold_keys
        {
            self.sql.delete_key.execute((place.queue, key, number))?;
        }
        self.memory.change(place.queue, |queue| {
            queue.next_death += 1;
            queue.depths.dead += 1;
            queue.depths.overflow += u64::from(overflow);
            queue.totals.dead_lettered += 1;
            queue.totals.retried_finished += u64::from(progress.retries > 0);
        });
        if let Some(retention) = settings.dead_letters.retention {
            self.memory.dead_kept.kept_until(self.now.after(retention));
        }
        self.died.push(DeadNotice {
            queue: name,
            id: spec.id.clone(),
            job_type: spec.job_type.clone(),
            reason,
            attempts: progress.tries,
            error_type,
            overflow,
        });
        Ok(())
    }

    pub(super) fn save_progress(
        &mut self,
        number: u64,
        state: State,
        at: Timestamp,
        death: u64,
        progress: &Progress,
    ) -> Result<(), Failure> {
        self.sql.save_progress.execute((
            number.cast_signed(),
            state_code(state),
            at.millis().cast_signed(),
            death.cast_signed(),
            codec::progress(progress),
        ))?;
        Ok(())
    }

    /// Writes an ended attempt to the history, whole for a first or last failure.
    pub(super) fn record(
        &mut self,
        number: u64,
        seq: u32,
        attempt: &Attempt,
    ) -> Result<(), Failure> {
        let number = number.cast_signed();
        let summary = codec::attempt(&history::summary(attempt));
        self.sql.insert_attempt.execute((number, seq, summary))?;
        if seq > history::FIRST_ATTEMPTS + history::LAST_ATTEMPTS {
            self.sql.delete_attempt.execute((number, seq - history::LAST_ATTEMPTS))?;
        }
        if let Some(failure) = &attempt.failure {
            let mut rows = self.sql.last_failure.query([number])?;
            let first = rows.next()?.is_none();
            drop(rows);
            self.sql.save_failure.execute((number, !first, codec::failure(failure)))?;
        }
        Ok(())
    }

    /// The job is gone for good, with all that hung on it.
    pub(super) fn remove(
        &mut self,
        number: u64,
        queue: QueueNumber,
        traits: Traits,
    ) -> Result<(), Failure> {
        self.strip(number, queue, traits)?;
        self.sql.delete_job.execute([number.cast_signed()])?;
        Ok(())
    }

    /// Removes all that hangs on a job.
    pub(super) fn strip(
        &mut self,
        number: u64,
        queue: QueueNumber,
        traits: Traits,
    ) -> Result<(), Failure> {
        let row = number.cast_signed();
        if traits.has(Traits::OWN_ID | Traits::DEADLINE)
            && let Some((spec, _)) = self.read_head(number)?
        {
            if traits.has(Traits::OWN_ID) {
                self.sql.delete_id.execute((spec.id.to_string(), queue))?;
            }
            if let Some(at) = spec.expires_at {
                self.sql.delete_deadline.execute((at.millis().cast_signed(), row))?;
            }
        }
        if traits.has(Traits::SEEN) {
            self.sql.delete_progress.execute([row])?;
            self.sql.delete_attempts.execute([row])?;
            self.sql.delete_failures.execute([row])?;
        }
        Ok(())
    }
}

/// A job must be exactly where the tables say that it is.
pub(super) fn lost_place(place: &Place) -> Failure {
    Failure::Stopped(format!("job number {} is not where the store has it", place.number))
}

pub(super) fn state_code(state: State) -> i64 {
    match state {
        State::Scheduled => 1,
        State::Ready => 2,
        State::Leased => 3,
        State::Completed => 4,
        State::Dead => 5,
    }
}

pub(super) fn state_of(code: i64) -> Option<State> {
    Some(match code {
        1 => State::Scheduled,
        2 => State::Ready,
        3 => State::Leased,
        4 => State::Completed,
        5 => State::Dead,
        _ => return None,
    })
}
