//! Requeue to another queue: three batches, each of which any server may repeat.
//!
//! 1. *begin*, at the source: the dead letter is bound for the target, and nothing else may be done to it.
//! 2. *arrive*, at the target: the job is ready there, under a new number, and a mark says so.
//! 3. *leave*, at the source: the dead letter is gone, and a record says where to, so that a late Ack is refused.
//!
//! Until it has arrived the job is at the source, from then on at the target. Where the target has its id or its key already, a
//! mark says that, so that no server that comes later lets it arrive, and the source keeps it. A mark stays longer than any server
//! takes between two steps, and is not removed before the source is done.

use super::{
    bulk::{self, Decision, Fate, Known, Part},
    context::{CallContext, overtaken},
    encoding::{
        FORMAT, Read as ReadResult, Unreadable::Damaged, open, put_text, put_u48, put_u64, seal,
    },
    facts::{JobFacts, QueueFacts},
    find::has_id,
    records::{self, DeadRecord, History, IdRecord, KeyRecord, Whereabouts},
    removal::{Belongings, LetterFacts, Owner},
    requeue::{candidates, keys_of},
    select::DeadEntry,
    state_changes::{
        Changes, FIRST_FAILURE, FoundKey, LAST_FAILURE, Total, attempt_part, kept_attempts,
    },
};
use crate::{
    domain::{
        ids::QueueName,
        job::{DeadReason, Spec},
        time::Timestamp,
    },
    store::{
        REPLY_KEPT, SkipReason, StoreError,
        storage::{
            Applied, Entry, Fence, Found, Index, Member, Read, Reads, RecordKey, Storage, Table,
        },
    },
};
use bytes::Bytes;
use std::{collections::HashSet, time::Duration};

/// A move that was begun so long ago is completed by the sweep.
const COMPLETED_AFTER: Duration = Duration::from_secs(10);
/// How long the mark of an arrival stays.
const MARK_KEPT: Duration = Duration::from_secs(3600);
/// How long a refusal stays, which is as long as the same job is refused without a look.
const REFUSAL_KEPT: Duration = Duration::from_secs(60);
/// Jobs of one batch: each may have 52 records of its history.
const JOBS_MAX: usize = 50;
/// So often as one batch; from then on one batch for each job.
const JOINT_ROUNDS: usize = 3;
/// How often others may overtake a batch before the call gives up.
const ROUNDS_MAX: usize = 50;

// ---- the record ----

/// What a record of `Move` says. At the source it has the job's number there as its key, and at the target the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MoveRecord {
    /// At the source: it is bound for this queue.
    Begun(Begun),
    /// At the source: it has left for this queue.
    Left { to: QueueName, until: Timestamp },
    /// At the target: it has arrived from this queue.
    Arrived { from: QueueName, until: Timestamp },
    /// At the target: it could not arrive from this queue.
    Refused { from: QueueName, reason: SkipReason, until: Timestamp },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) to: QueueName,
    keep_attempts: bool,
    /// The dead letter that it is.
    overflow: bool,
    death: u64,
    /// From then on the sweep completes it.
    due: Timestamp,
}

impl Begun {
    fn letter(&self, number: u64) -> DeadEntry {
        let index = if self.overflow { Index::Overflow } else { Index::Dead };
        DeadEntry { index, death: self.death, number }
    }
}

impl MoveRecord {
    fn bytes(&self) -> Bytes {
        let mut out = Vec::with_capacity(64);
        out.push(FORMAT);
        match self {
            Self::Begun(begun) => {
                out.push(1);
                put_u48(&mut out, begun.due.millis());
                put_text(&mut out, begun.to.as_str());
                out.push(u8::from(begun.keep_attempts) | u8::from(begun.overflow) << 1);
                put_u64(&mut out, begun.death);
            }
            Self::Left { to, until } => {
                out.push(2);
                put_u48(&mut out, until.millis());
                put_text(&mut out, to.as_str());
            }
            Self::Arrived { from, until } => {
                out.push(3);
                put_u48(&mut out, until.millis());
                put_text(&mut out, from.as_str());
            }
            Self::Refused { from, reason, until } => {
                out.push(4);
                put_u48(&mut out, until.millis());
                put_text(&mut out, from.as_str());
                out.push(u8::from(*reason == SkipReason::KeyTaken));
            }
        }
        seal(out).into()
    }

    pub(crate) fn read(record: &[u8]) -> ReadResult<Self> {
        let mut read = open(record)?;
        let kind = read.u8()?;
        let until = Timestamp::from_millis(read.u48()?);
        let queue = QueueName::parse(&read.text()?).ok_or(Damaged)?;
        Ok(match kind {
            1 => {
                let flags = read.u8()?;
                Self::Begun(Begun {
                    to: queue,
                    keep_attempts: flags & 1 != 0,
                    overflow: flags & 2 != 0,
                    death: read.u64()?,
                    due: until,
                })
            }
            2 => Self::Left { to: queue, until },
            3 => Self::Arrived { from: queue, until },
            4 => {
                let reason =
                    if read.u8()? == 1 { SkipReason::KeyTaken } else { SkipReason::IdTaken };
                Self::Refused { from: queue, reason, until }
            }
            _ => return Err(Damaged),
        })
    }

    /// Its entry in `Expires`.
    fn entry(&self, number: u64) -> Entry {
        let at = match self {
            Self::Begun(begun) => begun.due,
            Self::Left { until, .. }
            | Self::Arrived { until, .. }
            | Self::Refused { until, .. } => *until,
        };
        Entry { score: at.millis(), member: Member::Record(Table::Move, RecordKey::Number(number)) }
    }

    /// In place of `before`.
    fn put(&self, number: u64, before: Option<&Self>, changes: &mut Changes) {
        if let Some(before) = before {
            changes.remove(Index::Expires, before.entry(number));
        }
        changes.put(Table::Move, RecordKey::Number(number), self.bytes());
        changes.insert(Index::Expires, self.entry(number));
    }

    fn delete(&self, number: u64, changes: &mut Changes) {
        changes.remove(Index::Expires, self.entry(number));
        changes.delete(Table::Move, RecordKey::Number(number));
    }
}

/// The records of these moves as they are in a queue; none where there is none, or a damaged one.
async fn moves<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    numbers: impl Iterator<Item = u64>,
) -> Result<Vec<Option<(MoveRecord, Bytes)>>, StoreError> {
    let reads: Vec<_> =
        numbers.map(|number| Read::Record(Table::Move, RecordKey::Number(number))).collect();
    let Some(found) = store.read(queue, &reads).await? else {
        return Ok(vec![None; reads.len()]);
    };
    found.into_iter().map(|found| read_move(found.record())).collect()
}

fn read_move(record: Option<Bytes>) -> Result<Option<(MoveRecord, Bytes)>, StoreError> {
    let Some(bytes) = record else { return Ok(None) };
    Ok(records::readable(MoveRecord::read(&bytes))?.map(|record| (record, bytes)))
}

/// Whether a dead letter of this queue is already in the one that it is bound for: then it is to be seen there alone. `record`:
/// of `Move` under its number here.
pub(crate) async fn is_moved_away<S: Reads>(
    store: &mut S,
    number: u64,
    record: &Bytes,
) -> Result<bool, StoreError> {
    let Some(MoveRecord::Begun(begun)) = records::readable(MoveRecord::read(record))? else {
        return Ok(false);
    };
    let mark = moves(store, &begun.to, std::iter::once(number)).await?;
    Ok(matches!(mark.first(), Some(Some((MoveRecord::Arrived { .. }, _)))))
}

// ---- begin ----

/// What stands in the way of jobs at a target.
struct TargetFacts {
    marks: Vec<Option<(MoveRecord, Bytes)>>,
    /// Their ids are taken.
    ids: Vec<bool>,
    keys: Vec<Option<FoundKey>>,
}

impl TargetFacts {
    /// Of these jobs, by their numbers at the source. A queue that is not there has nothing in it.
    async fn read<S: Reads>(
        store: &mut S,
        queue: &QueueName,
        jobs: &[(u64, Option<&Spec>)],
    ) -> Result<Self, StoreError> {
        let mut reads = Vec::new();
        for (number, spec) in jobs {
            reads.push(Read::Record(Table::Move, RecordKey::Number(*number)));
            if let Some(spec) = spec {
                reads.push(Read::Record(Table::Id, RecordKey::Text(spec.id.to_string().into())));
                let own = spec.id.number();
                reads.extend(own.map(|own| Read::Record(Table::Job, RecordKey::Number(own))));
            }
        }
        let mut found = store.read(queue, &reads).await?.unwrap_or_default().into_iter();
        let mut next = || found.next().and_then(Found::record);
        let (mut marks, mut ids) = (Vec::new(), Vec::new());
        for (_, spec) in jobs {
            marks.push(read_move(next())?);
            ids.push(match spec {
                None => false,
                Some(spec) => {
                    let named = next().is_some();
                    let job = spec.id.number().and_then(|_| next());
                    named || job.map(|job| has_id(&job, &spec.id)).transpose()?.unwrap_or(false)
                }
            });
        }
        let specs = jobs.iter().map(|(_, spec)| *spec);
        let keys = keys_of(store, queue, specs).await?;
        Ok(Self { marks, ids, keys })
    }

    /// Why the n-th of them cannot arrive.
    fn refusal(&self, at: usize, spec: &Spec, keys: &HashSet<String>) -> Option<SkipReason> {
        if self.ids[at] {
            return Some(SkipReason::IdTaken);
        }
        // A key of that queue has no job of this one.
        let taken = self.keys[at].as_ref().is_some_and(|key| key.is_taken_from(0));
        let given = spec.key.as_ref().is_some_and(|key| keys.contains(key));
        (taken || given).then_some(SkipReason::KeyTaken)
    }
}

/// Begins the moves of as many as one batch takes.
pub(super) async fn decide<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    part: Part<'_>,
    to: &QueueName,
    keep_attempts: bool,
    known: &mut Known,
    changes: &mut Changes,
) -> Result<Vec<Decision>, StoreError> {
    let Part { queue, items, dry_run, budget } = part;
    let items = &items[..items.len().min(JOBS_MAX)];
    let letters: Vec<_> = items.iter().filter_map(|item| item.letter).collect();
    let facts = LetterFacts::read(store, queue, &letters).await?;
    let candidates = candidates(store, queue, items, &facts, budget).await?;
    let jobs: Vec<_> = candidates
        .iter()
        .map(|it| it.as_ref().map_or((0, None), |it| (it.facts.letter.number, it.spec.as_ref())))
        .collect();
    let target = TargetFacts::read(store, to, &jobs).await?;
    let due = store.now().after(COMPLETED_AFTER);
    let mut begun = false;
    let mut decisions = Vec::with_capacity(candidates.len());
    for (at, (item, candidate)) in items.iter().zip(&candidates).enumerate() {
        let Some(candidate) = candidate else {
            decisions.push(item.missing());
            continue;
        };
        let letter = &candidate.facts.letter;
        let refusal = match (&candidate.spec, &target.marks[at]) {
            _ if known.gone.contains(&letter.number) => Some(SkipReason::JobNotFound),
            (None, _) => Some(SkipReason::DataCorrupt),
            (_, Some((MoveRecord::Refused { reason, .. }, _))) => Some(*reason),
            (Some(spec), _) => target.refusal(at, spec, &known.keys),
        };
        if let Some(reason) = refusal {
            decisions.push(candidate.skipped(reason));
            continue;
        }
        known.gone.insert(letter.number);
        known.keys.extend(candidate.spec.as_ref().and_then(|spec| spec.key.clone()));
        decisions.push(candidate.decision(Fate::Done));
        if dry_run {
            continue;
        }
        begun = true;
        changes.fence(Fence::At(letter.index, letter.entry()));
        changes.fence(Fence::Absent(Table::Move, RecordKey::Number(letter.number)));
        let begun = Begun {
            to: to.clone(),
            keep_attempts,
            overflow: letter.index == Index::Overflow,
            death: letter.death,
            due,
        };
        MoveRecord::Begun(begun).put(letter.number, None, changes);
    }
    if begun {
        cx.due(queue, due);
    }
    Ok(decisions)
}

// ---- arrive ----

/// A move and what became of it at the target.
pub(super) struct Arrival {
    number: u64,
    /// The record at the source, if it had begun.
    begun: Option<Bytes>,
    /// Why it could not arrive.
    refused: Option<SkipReason>,
}

/// A job on its way.
struct Traveller {
    /// Its place among the moves.
    at: usize,
    number: u64,
    begun: Begun,
    spec: Spec,
    unknown: super::encoding::Unknown,
    history: Option<History>,
    attempts: Vec<(Table, u8, Bytes)>,
}

/// Moves that have begun arrive, each at its target. What has left the source already has arrived.
pub(super) async fn arrive_all<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    source: &QueueName,
    numbers: &[u64],
) -> Result<Vec<Arrival>, StoreError> {
    let arrival = |number: &u64| Arrival { number: *number, begun: None, refused: None };
    let mut arrivals: Vec<_> = numbers.iter().map(arrival).collect();
    let mut travellers = travellers(store, source, &mut arrivals).await?;
    while let Some(to) = travellers.first().map(|it| it.begun.to.clone()) {
        let (there, elsewhere) = travellers.into_iter().partition(|it| it.begun.to == to);
        travellers = elsewhere;
        let mut there: Vec<Traveller> = there;
        let (mut width, mut rounds) = (usize::MAX, 0);
        while !there.is_empty() {
            let some = there.len().min(width);
            match arrive(store, cx, source, &to, &there[..some]).await? {
                Some(refused) => {
                    for (traveller, refused) in there.drain(..some).zip(refused) {
                        arrivals[traveller.at].refused = refused;
                    }
                    rounds = 0;
                }
                None => {
                    rounds += 1;
                    if rounds >= JOINT_ROUNDS {
                        width = 1;
                    }
                    if rounds == ROUNDS_MAX {
                        return Err(overtaken());
                    }
                }
            }
        }
    }
    Ok(arrivals)
}

/// The jobs of the moves that have begun, whole.
async fn travellers<S: Reads>(
    store: &mut S,
    source: &QueueName,
    arrivals: &mut [Arrival],
) -> Result<Vec<Traveller>, StoreError> {
    let tables = [Table::Move, Table::Job, Table::Body, Table::History];
    let reads: Vec<_> = arrivals
        .iter()
        .flat_map(|it| tables.map(|table| Read::Record(table, RecordKey::Number(it.number))))
        .collect();
    let Some(found) = store.read(source, &reads).await? else { return Ok(Vec::new()) };
    let mut found = found.into_iter();
    let mut next = || found.next().and_then(Found::record);
    let mut travellers = Vec::new();
    for (at, arrival) in arrivals.iter_mut().enumerate() {
        let (moving, job, body, history) = (next(), next(), next(), next());
        let Some((MoveRecord::Begun(begun), bytes)) = read_move(moving)? else {
            // It has left, or was given up: the source says which.
            arrival.refused = Some(SkipReason::JobNotFound);
            continue;
        };
        arrival.begun = Some(bytes);
        let spec = job.as_ref().map(|it| records::readable(records::read_job(it, body.as_ref())));
        let Some(spec) = spec.transpose()?.flatten() else {
            arrival.refused = Some(SkipReason::DataCorrupt);
            continue;
        };
        let rest = job.as_ref().and_then(|job| records::read_job_rest(job).ok());
        let history =
            history.map(|it| records::readable(records::read_history(&it))).transpose()?;
        travellers.push(Traveller {
            at,
            number: arrival.number,
            begun,
            spec,
            unknown: rest.map(|(_, unknown)| unknown).unwrap_or_default(),
            history: history.flatten(),
            attempts: Vec::new(),
        });
    }
    read_attempts(store, source, &mut travellers).await?;
    Ok(travellers)
}

async fn read_attempts<S: Reads>(
    store: &mut S,
    source: &QueueName,
    travellers: &mut [Traveller],
) -> Result<(), StoreError> {
    let parts = |traveller: &Traveller| -> Vec<(Table, u8)> {
        let recorded = traveller.history.as_ref().map_or(0, |history| history.progress.recorded);
        let attempts = kept_attempts(recorded).map(|n| (Table::Attempt, attempt_part(n)));
        let failures = [FIRST_FAILURE, LAST_FAILURE].map(|part| (Table::Failure, part));
        attempts.chain(failures).collect()
    };
    let reads: Vec<_> = travellers
        .iter()
        .flat_map(|traveller| {
            let number = traveller.number;
            let read = move |(table, part)| Read::Record(table, RecordKey::Part(number, part));
            parts(traveller).into_iter().map(read)
        })
        .collect();
    if reads.is_empty() {
        return Ok(());
    }
    let mut found = store.read(source, &reads).await?.unwrap_or_default().into_iter();
    for traveller in travellers {
        for (table, part) in parts(traveller) {
            let record = found.next().and_then(Found::record);
            traveller.attempts.extend(record.map(|record| (table, part, record)));
        }
    }
    Ok(())
}

/// One batch at the target: for each why it could not arrive. None: the facts were old.
async fn arrive<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    source: &QueueName,
    to: &QueueName,
    travellers: &[Traveller],
) -> Result<Option<Vec<Option<SkipReason>>>, StoreError> {
    let jobs: Vec<_> = travellers.iter().map(|it| (it.number, Some(&it.spec))).collect();
    let target = TargetFacts::read(store, to, &jobs).await?;
    let mut numbers = store.numbers(travellers.len() as u64).await?;
    let (now, mark) = (store.now(), cx.events.len());
    let mut changes = Changes::default();
    let mut keys = HashSet::new();
    let mut refused = Vec::with_capacity(travellers.len());
    for (at, traveller) in travellers.iter().enumerate() {
        match &target.marks[at] {
            Some((MoveRecord::Refused { reason, .. }, _)) => {
                refused.push(Some(*reason));
                continue;
            }
            // Another server has done it.
            Some(_) => {
                refused.push(None);
                continue;
            }
            None => {}
        }
        let reason = target.refusal(at, &traveller.spec, &keys);
        refused.push(reason);
        changes.fence(Fence::Absent(Table::Move, RecordKey::Number(traveller.number)));
        let from = source.clone();
        match (reason, numbers.next()) {
            (None, Some(number)) => {
                let until = now.after(MARK_KEPT);
                MoveRecord::Arrived { from, until }.put(traveller.number, None, &mut changes);
                keys.extend(traveller.spec.key.clone());
                enter(traveller, number, target.keys[at].as_ref(), now, to, cx, &mut changes);
            }
            (reason, _) => {
                let (reason, until) =
                    (reason.unwrap_or(SkipReason::IdTaken), now.after(REFUSAL_KEPT));
                let mark = MoveRecord::Refused { from, reason, until };
                mark.put(traveller.number, None, &mut changes);
            }
        }
    }
    if changes.is_empty() {
        return Ok(Some(refused));
    }
    let made_ready = changes.made_ready;
    match store.apply(to, &changes.batch()).await? {
        Applied::Done(done) => {
            if made_ready && let Some(facts) = QueueFacts::remembered(store, to, cx).await? {
                cx.available(to, &facts, done.ready, now);
            }
            Ok(Some(refused))
        }
        Applied::Changed(_) => {
            cx.events.truncate(mark);
            Ok(None)
        }
        Applied::NoQueue => {
            cx.events.truncate(mark);
            // It was forgotten meanwhile. Without it no mark can say that the jobs are refused, so they stay on their way.
            if !store.register(to, cx.limits.queues).await? {
                let limit = cx.limits.queues;
                let message = format!("{to} was forgotten, and there are {limit} other queues");
                return Err(StoreError::Unavailable(message));
            }
            Ok(None)
        }
    }
}

/// DEAD elsewhere → READY here, with all that it has been through.
fn enter(
    traveller: &Traveller,
    number: u64,
    key: Option<&FoundKey>,
    now: Timestamp,
    to: &QueueName,
    cx: &mut CallContext<'_>,
    changes: &mut Changes,
) {
    let spec = &traveller.spec;
    let sameness = spec.sameness();
    let job = records::job(spec, number, Some(&sameness), &traveller.unknown);
    let name = RecordKey::Number(number);
    changes.fence(Fence::Absent(Table::Job, name.clone()));
    changes.put(Table::Job, name.clone(), job.record);
    if let Some(body) = job.body {
        changes.put(Table::Body, name, body);
    }
    // Also an id that a server made: it holds the number that the job had before.
    if let Some(id) = records::own_id(spec, number) {
        let id = RecordKey::Text(id.into());
        changes.fence(Fence::Absent(Table::Id, id.clone()));
        changes.put(Table::Id, id, records::id(&IdRecord { number, sameness }));
    }
    if let Some(name) = &spec.key {
        let record = KeyRecord { number, free_at: None, sameness, id: spec.id.clone() };
        changes.take_key(name, key, &record);
    }
    for (table, part, record) in &traveller.attempts {
        changes.put(*table, RecordKey::Part(number, *part), record.clone());
    }
    let before = traveller.history.clone().unwrap_or_default();
    let mut history = History { rank: records::rank(spec.priority), ..before };
    history.progress.requeue(now, spec.expires_at, traveller.begun.keep_attempts);
    let facts = JobFacts {
        number,
        spec: Spec { body: Default::default(), ..spec.clone() },
        traits: job.traits,
        history: Some(history.clone()),
        has_history: true,
        exists: true,
        sameness: Some(sameness),
    };
    changes.to_waiting(&facts, history, now, Whereabouts::Scheduled, now, cx, to);
    changes.add(Total::MovedIn, 1);
}

// ---- leave ----

/// What the source does about arrivals, for a batch: what has arrived is removed, what could not is a dead letter again.
/// For each whether it has left, or why not.
pub(super) async fn leave<S: Reads>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    source: &QueueName,
    arrivals: &[Arrival],
    changes: &mut Changes,
) -> Result<Vec<Result<(), SkipReason>>, StoreError> {
    let records = moves(store, source, arrivals.iter().map(|it| it.number)).await?;
    let mut leaving = Vec::new();
    let mut left = Vec::with_capacity(arrivals.len());
    for (arrival, record) in arrivals.iter().zip(records) {
        // A move that another call has begun since is that call's.
        let record = record.filter(|(record, bytes)| {
            !matches!(record, MoveRecord::Begun(_)) || arrival.begun.as_ref() == Some(bytes)
        });
        left.push(match (record, arrival.refused) {
            (Some((MoveRecord::Left { .. }, _)), _) => Ok(()),
            (Some((before @ MoveRecord::Begun(_), bytes)), Some(reason)) => {
                let key = RecordKey::Number(arrival.number);
                changes.fence(Fence::Is(Table::Move, key, bytes));
                before.delete(arrival.number, changes);
                Err(reason)
            }
            (Some((MoveRecord::Begun(begun), bytes)), None) => {
                leaving.push((arrival.number, begun, bytes));
                Ok(())
            }
            // Another server has given it up.
            (_, refused) => Err(refused.unwrap_or(SkipReason::JobNotFound)),
        });
    }
    let settings = cx.queue(source);
    let until = store.now().after(settings.max_run_time.max(REPLY_KEPT));
    let tables = [Table::Job, Table::History, Table::Dead];
    let reads: Vec<_> = leaving
        .iter()
        .flat_map(|(number, ..)| {
            tables.map(|table| Read::Record(table, RecordKey::Number(*number)))
        })
        .collect();
    if reads.is_empty() {
        return Ok(left);
    }
    let mut found = store.read(source, &reads).await?.unwrap_or_default().into_iter();
    let mut next = || found.next().and_then(Found::record);
    let mut jobs: Vec<(JobFacts, Option<Bytes>, Option<DeadRecord>)> = Vec::new();
    for (number, ..) in &leaving {
        let (job, history, dead) = (next(), next(), next());
        let facts = JobFacts::of(*number, job.as_ref(), history.as_ref())?;
        let dead = dead.map(|it| records::readable(records::read_dead(&it))).transpose()?;
        jobs.push((facts, job, dead.flatten().map(|(_, record)| record)));
    }
    let owners: Vec<_> = jobs
        .iter()
        .map(|(job, record, dead)| {
            let damaged = dead.as_ref().is_none_or(|dead| dead.reason == DeadReason::Corrupt);
            Owner { job, record: record.as_ref(), damaged, has_key: true }
        })
        .collect();
    let belongings = Belongings::find(store, source, &owners).await?;
    for (((number, begun, bytes), (_, _, dead)), belongings) in
        leaving.into_iter().zip(&jobs).zip(belongings)
    {
        changes.fence(Fence::Is(Table::Move, RecordKey::Number(number), bytes));
        changes.leave_dead(&begun.letter(number), dead.as_ref());
        belongings.remove(changes);
        let gone = MoveRecord::Left { to: begun.to.clone(), until };
        gone.put(number, Some(&MoveRecord::Begun(begun)), changes);
        changes.add(Total::Requeued, 1);
        changes.add(Total::MovedOut, 1);
    }
    Ok(left)
}

// ---- the sweep ----

/// Moves of this queue whose records are due in `Expires`, with their entries: those that were interrupted are completed, and the
/// records of those that are long over are removed.
pub(crate) async fn finish_moves<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    queue: &QueueName,
    due: &[(u64, Entry)],
) -> Result<(), StoreError> {
    if due.is_empty() {
        return Ok(());
    }
    let records = moves(store, queue, due.iter().map(|(number, _)| *number)).await?;
    let mut over = Vec::new();
    for ((number, entry), record) in due.iter().zip(records) {
        let number = *number;
        match &record {
            // Not yet: its entry was written again after it was read.
            Some((record, _)) if record.entry(number) != *entry => continue,
            Some((MoveRecord::Begun(_), _)) => {
                complete(store, cx, queue, number).await?;
                continue;
            }
            // As long as the source has not noticed, the mark keeps the job from arriving twice.
            Some((MoveRecord::Arrived { from, .. }, _)) => {
                let at_source = moves(store, from, std::iter::once(number)).await?;
                if let Some(Some((MoveRecord::Begun(_), _))) = at_source.first() {
                    complete(store, cx, from, number).await?;
                }
            }
            _ => {}
        }
        over.push((number, entry, record));
    }
    for (number, entry, record) in over {
        let key = RecordKey::Number(number);
        let mut changes = Changes::default();
        changes.fence(Fence::At(Index::Expires, entry.clone()));
        if let Some((_, bytes)) = record {
            changes.fence(Fence::Is(Table::Move, key.clone(), bytes));
        }
        changes.remove(Index::Expires, entry.clone());
        // A damaged one goes as well.
        changes.delete(Table::Move, key);
        // Where a fence fails, the record is another one by now, with a time of its own.
        store.apply(queue, &changes.batch()).await?;
    }
    Ok(())
}

/// One move that was interrupted.
async fn complete<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    source: &QueueName,
    number: u64,
) -> Result<(), StoreError> {
    let arrivals = arrive_all(store, cx, source, &[number]).await?;
    for _ in 0..ROUNDS_MAX {
        let mut changes = Changes::default();
        leave(store, cx, source, &arrivals, &mut changes).await?;
        if changes.is_empty() {
            return Ok(());
        }
        match store.apply(source, &changes.batch()).await? {
            Applied::Done(_) => return bulk::make_room(store, cx, source).await,
            Applied::NoQueue => return Ok(()),
            Applied::Changed(_) => {}
        }
    }
    Err(overtaken())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_moves_read_back() {
        let queue = || QueueName::parse("other").unwrap();
        let at = Timestamp::from_millis(1_800_000_000_000);
        let begun = Begun { to: queue(), keep_attempts: true, overflow: false, death: 7, due: at };
        let refused = |reason| MoveRecord::Refused { from: queue(), reason, until: at };
        for record in [
            MoveRecord::Begun(Begun { keep_attempts: false, overflow: true, ..begun.clone() }),
            MoveRecord::Begun(begun),
            MoveRecord::Left { to: queue(), until: at },
            MoveRecord::Arrived { from: queue(), until: at },
            refused(SkipReason::IdTaken),
            refused(SkipReason::KeyTaken),
        ] {
            let bytes = record.bytes();
            assert_eq!(record.entry(9).score, at.millis());
            assert_eq!(MoveRecord::read(&bytes), Ok(record));
        }
        assert_eq!(MoveRecord::read(b""), Err(Damaged));
    }
}
