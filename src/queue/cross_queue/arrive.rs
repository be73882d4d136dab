//! Jobs that are moved arrive at their target.

use super::super::answers::{ask, numbered};
use super::super::breaker_keys::KeyGroups;
use super::super::bulk::Obstacle;
use super::super::context::CallContext;
use super::super::encoding::Unknown;
use super::super::facts::{JobFacts, QueueFacts, Rounds};
use super::super::records::{self, IdRecord, read_if};
use super::super::requeue::ToReady;
use super::super::state_changes::{
    Changes, FIRST_FAILURE, LAST_FAILURE, Total, attempt_part, kept_attempts, kept_before_next,
};
use super::move_record::{MoveRecord, Step, read_move};
use crate::domain::{JobEventKind, QueueName, Spec};
use crate::queue::SkipReason;
use crate::store::storage::{Applied, Fence, NO_GROUP, Read, Reads, RecordKey, Storage, Table};
use crate::store::{Result, StoreError};
use bytes::Bytes;
use std::{collections::HashSet, time::Duration};

/// How long the mark of an arrival stays.
const MARK_KEPT: Duration = Duration::from_secs(3600);
/// How long a refusal stays, which is as long as the same job is refused without a look.
const REFUSAL_KEPT: Duration = Duration::from_secs(60);

/// A move and what became of it at the target.
pub(in crate::queue) struct Arrival {
    pub(super) number: u64,
    /// The record at the source, if it had begun.
    pub(super) begun: Option<Bytes>,
    /// Why it could not arrive.
    pub(super) refused: Option<SkipReason>,
}

/// A job on its way.
struct MovedJob {
    /// Its place among the moves.
    at: usize,
    number: u64,
    to: QueueName,
    keep_attempts: bool,
    reason: String,
    spec: Spec,
    unknown: Unknown,
    history: Option<Bytes>,
    /// And events and failures.
    attempts: Vec<(Table, u8, Bytes)>,
}

/// Moves that have begun arrive, each at its target. What has left the source already has arrived.
pub(in crate::queue) async fn arrive_all<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, source: &QueueName, numbers: &[u64],
) -> Result<Vec<Arrival>> {
    let arrival = |number: &u64| Arrival { number: *number, begun: None, refused: None };
    let mut arrivals: Vec<_> = numbers.iter().map(arrival).collect();
    let moved_jobs = moved_jobs(store, source, &mut arrivals).await?;
    for mut there in moved_jobs.chunk_by(|one, next| one.to == next.to) {
        let mut rounds = Rounds::default();
        while !there.is_empty() {
            let (some, rest) = there.split_at(there.len().min(rounds.width()));
            let Some(refused) = arrive(store, cx, source, &some[0].to, some).await? else {
                rounds.next()?;
                continue;
            };
            for (moved_job, refused) in some.iter().zip(refused) {
                arrivals[moved_job.at].refused = refused;
            }
            rounds.won();
            there = rest;
        }
    }
    Ok(arrivals)
}

/// The jobs whose moves have begun.
async fn moved_jobs<S: Reads>(store: &mut S, source: &QueueName, arrivals: &mut [Arrival]) -> Result<Vec<MovedJob>> {
    let tables = [Table::Move, Table::Job, Table::Body, Table::History];
    let reads: Vec<_> = arrivals.iter().flat_map(|it| tables.map(|table| numbered(table, it.number))).collect();
    let mut found = ask(store, source, &reads).await?;
    let mut moved_jobs = Vec::new();
    for (at, arrival) in arrivals.iter_mut().enumerate() {
        let (moving, job, body, history) = (found.record(), found.record(), found.record(), found.record());
        let Some((MoveRecord { other: to, step: Step::Begun { keep_attempts, .. }, reason, .. }, bytes)) =
            read_move(moving)?
        else {
            // It has left, or was given up: the source says which.
            arrival.refused = Some(SkipReason::JobNotFound);
            continue;
        };
        arrival.begun = Some(bytes);
        let spec = job.as_ref().map(|it| records::readable(records::read_job(it, body.as_ref())));
        let (Some(job), Some(spec)) = (&job, spec.transpose()?.flatten()) else {
            arrival.refused = Some(SkipReason::DataCorrupt);
            continue;
        };
        let unknown = records::read_job_rest(job).map(|(_, unknown)| unknown).unwrap_or_default();
        let (number, attempts) = (arrival.number, Vec::new());
        moved_jobs.push(MovedJob { at, number, to, keep_attempts, reason, spec, unknown, history, attempts });
    }
    read_attempts(store, source, &mut moved_jobs).await?;
    Ok(moved_jobs)
}

async fn read_attempts<S: Reads>(store: &mut S, source: &QueueName, moved_jobs: &mut [MovedJob]) -> Result<()> {
    let mut parts = Vec::new();
    for (at, moved_job) in moved_jobs.iter().enumerate() {
        let history = read_if(moved_job.history.as_ref(), records::read_history)?;
        let (recorded, events) = history.map_or((0, 0), |it| (it.progress.recorded, it.progress.events));
        parts.extend(kept_attempts(recorded).map(|n| (at, Table::Attempt, attempt_part(n))));
        parts.extend(kept_before_next(events).map(|part| (at, Table::Event, part)));
        parts.extend([FIRST_FAILURE, LAST_FAILURE].map(|part| (at, Table::Failure, part)));
    }
    let read =
        |(at, table, part): &(usize, Table, u8)| Read::Record(*table, RecordKey::Part(moved_jobs[*at].number, *part));
    let reads: Vec<_> = parts.iter().map(read).collect();
    let mut found = ask(store, source, &reads).await?;
    for (at, table, part) in parts {
        let record = found.record();
        moved_jobs[at].attempts.extend(record.map(|record| (table, part, record)));
    }
    Ok(())
}

/// One batch at the target: for each why it could not arrive. None: the facts were old.
async fn arrive<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, source: &QueueName, to: &QueueName, moved_jobs: &[MovedJob],
) -> Result<Option<Vec<Option<SkipReason>>>> {
    let jobs: Vec<_> = moved_jobs.iter().map(|it| Some((it.number, &it.spec))).collect();
    let obstacles = Obstacle::read(store, to, &jobs, true).await?;
    let facts = moved_jobs.iter().map(MovedJob::facts).collect::<Result<Vec<_>>>()?;
    let breaker_keys = || facts.iter().filter_map(JobFacts::breaker_key);
    let groups = KeyGroups::of(store, cx, to, breaker_keys()).await?.unwrap_or_default();
    let numbers = store.numbers(moved_jobs.len() as u64).await?;
    let (now, events) = (store.now(), cx.events.len());
    let mut changes = Changes::default();
    let mut keys = HashSet::new();
    let mut refused = Vec::with_capacity(moved_jobs.len());
    for (((moved_job, obstacle), facts), number) in moved_jobs.iter().zip(&obstacles).zip(&facts).zip(numbers) {
        let reason = match obstacle.mark {
            None | Some(Step::Refused(_)) => obstacle.refusal(&moved_job.spec, &keys),
            Some(_) => None,
        };
        refused.push(reason);
        if obstacle.mark.is_some() {
            // Another server has decided.
            continue;
        }
        changes.fence(Fence::Absent(Table::Move, RecordKey::Number(moved_job.number)));
        let (step, kept) = reason.map_or((Step::Arrived, MARK_KEPT), |reason| (Step::Refused(reason), REFUSAL_KEPT));
        let (other, due) = (source.clone(), now.after(kept));
        let mark = MoveRecord { other, due, step, reason: String::new(), unknown: Unknown::default() };
        mark.put(moved_job.number, None, &mut changes);
        if reason.is_none() {
            keys.extend(moved_job.spec.key.clone());
            let ready = ToReady { queue: to, keep_attempts: moved_job.keep_attempts, reason: &moved_job.reason, now };
            let group = groups.group(facts.breaker_key());
            moved_job.enter((number, group), source, obstacle, &ready, cx, &mut changes)?;
        }
    }
    if changes.is_empty() {
        return Ok(Some(refused));
    }
    groups.enter(breaker_keys(), &mut changes);
    let made_ready = changes.made_ready;
    match store.apply(to, &changes.batch()).await? {
        Applied::Done(done) => {
            if made_ready {
                QueueFacts::tell_ready(store, to, cx, done.ready, now).await?;
            }
            return Ok(Some(refused));
        }
        Applied::Changed(_) => {}
        // It was forgotten meanwhile. Without it no mark can say that the jobs are refused, so they stay on their way.
        Applied::NoQueue if !store.register(to, cx.limits.queues).await? => {
            let limit = cx.limits.queues;
            let message = format!("{to} was forgotten, and there are {limit} other queues");
            return Err(StoreError::Unavailable(message));
        }
        Applied::NoQueue => {}
    }
    cx.events.truncate(events);
    Ok(None)
}

impl MovedJob {
    /// As it was at the source.
    fn facts(&self) -> Result<JobFacts> {
        let job = records::job(&self.spec, self.number, NO_GROUP, None, &self.unknown);
        JobFacts::of(self.number, Some(&job.record), self.history.as_ref())
    }

    /// DEAD elsewhere → READY here, with all that it has been through.
    fn enter(
        &self, (number, group): (u64, u16), source: &QueueName, there: &Obstacle, ready: &ToReady<'_>,
        cx: &mut CallContext<'_>, changes: &mut Changes,
    ) -> Result<()> {
        let spec = &self.spec;
        let sameness = spec.sameness();
        let job = records::job(spec, number, group, Some(&sameness), &self.unknown);
        let facts = JobFacts::of(number, Some(&job.record), self.history.as_ref())?;
        let name = RecordKey::Number(number);
        changes.fence(Fence::Absent(Table::Job, name.clone()));
        changes.put(Table::Job, name.clone(), job.record);
        if let Some(body) = job.body {
            changes.put(Table::Body, name, body);
        }
        // Also an id that a server made: it holds the number that the job had before.
        if let Some(id) = records::own_id(spec, number) {
            let id = RecordKey::Text(id.into());
            changes.take_id(id, there.ended_id.as_ref(), Some(records::id(&IdRecord { number, sameness })));
        }
        for (table, part, record) in &self.attempts {
            changes.put(*table, RecordKey::Part(number, *part), record.clone());
        }
        let moved = (JobEventKind::Moved, format!("from {source}"));
        ready.enter(&facts, spec, (there.key.as_ref(), group), moved, cx, changes);
        changes.add(Total::MovedIn, 1);
        Ok(())
    }
}
