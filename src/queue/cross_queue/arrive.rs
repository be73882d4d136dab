//! Jobs that are moved arrive at their target.

use super::{
    super::{
        context::{CallContext, overtaken},
        encoding::Unknown,
        facts::{JobFacts, QueueFacts},
        find::has_id,
        records::{self, History, IdRecord, KeyRecord, Whereabouts},
        requeue::keys_of,
        state_changes::{
            Changes, FIRST_FAILURE, FoundKey, LAST_FAILURE, Total, attempt_part, kept_attempts,
        },
    },
    ROUNDS_MAX,
    move_record::{Begun, MoveRecord, read_move},
};
use crate::{
    domain::{ids::QueueName, job::Spec, time::Timestamp},
    store::{
        SkipReason, StoreError,
        storage::{Applied, Fence, Found, Read, Reads, RecordKey, Storage, Table},
    },
};
use bytes::Bytes;
use std::{collections::HashSet, time::Duration};

/// How long the mark of an arrival stays.
const MARK_KEPT: Duration = Duration::from_secs(3600);
/// How long a refusal stays, which is as long as the same job is refused without a look.
const REFUSAL_KEPT: Duration = Duration::from_secs(60);
/// So often as one batch; from then on one batch for each job.
const JOINT_ROUNDS: usize = 3;

/// What stands in the way of jobs at a target.
pub(super) struct TargetFacts {
    pub(super) marks: Vec<Option<(MoveRecord, Bytes)>>,
    /// Their ids are taken.
    ids: Vec<bool>,
    keys: Vec<Option<FoundKey>>,
}

impl TargetFacts {
    /// Of these jobs, by their numbers at the source. A queue that is not there has nothing in it.
    pub(super) async fn read<S: Reads>(
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
    pub(super) fn refusal(
        &self,
        at: usize,
        spec: &Spec,
        keys: &HashSet<String>,
    ) -> Option<SkipReason> {
        if self.ids[at] {
            return Some(SkipReason::IdTaken);
        }
        // A key of that queue has no job of this one.
        let taken = self.keys[at].as_ref().is_some_and(|key| key.is_taken_from(0));
        let given = spec.key.as_ref().is_some_and(|key| keys.contains(key));
        (taken || given).then_some(SkipReason::KeyTaken)
    }
}

/// A move and what became of it at the target.
pub(in crate::queue) struct Arrival {
    pub(super) number: u64,
    /// The record at the source, if it had begun.
    pub(super) begun: Option<Bytes>,
    /// Why it could not arrive.
    pub(super) refused: Option<SkipReason>,
}

/// A job on its way.
struct Traveller {
    /// Its place among the moves.
    at: usize,
    number: u64,
    begun: Begun,
    spec: Spec,
    unknown: Unknown,
    history: Option<History>,
    attempts: Vec<(Table, u8, Bytes)>,
}

/// Moves that have begun arrive, each at its target. What has left the source already has arrived.
pub(in crate::queue) async fn arrive_all<S: Storage>(
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
    changes.enter_waiting(&facts, history, now, Whereabouts::Scheduled, now, cx, to);
    changes.add(Total::MovedIn, 1);
}
