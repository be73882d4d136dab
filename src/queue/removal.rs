//! A job that is not leased is removed, with all that belongs to it; its key is given free, if it is its own.

use super::answers::{ask, numbered, scan};
use super::facts::{JobFacts, record_fence};
use super::records::{self, DeadRecord};
use super::select::{DeadEntry, read_dead};
use super::state_changes::{Changes, FoundKey};
use crate::domain::{DeadReason, QueueName, Timestamp};
use crate::store::Result;
use crate::store::storage::{Entry, Fence, Index, Member, Read, Reads, RecordKey, Table, flag};
use bytes::Bytes;

/// A dead letter as its records are.
#[derive(Clone, Debug)]
pub(crate) struct LetterFacts {
    pub(crate) letter: DeadEntry,
    pub(crate) job: JobFacts,
    pub(crate) job_record: Option<Bytes>,
    pub(crate) history_record: Option<Bytes>,
    /// None: it is damaged.
    pub(crate) dead: Option<DeadRecord>,
    /// Its record of `Move`: it is on its way to another queue.
    pub(crate) moving: Option<Bytes>,
    /// This very dead letter is there.
    is_there: bool,
}

impl LetterFacts {
    /// Of each of these, in their order.
    pub(crate) async fn read<S: Reads>(store: &mut S, queue: &QueueName, letters: &[DeadEntry]) -> Result<Vec<Self>> {
        let tables = [Table::Job, Table::History, Table::Dead, Table::Move];
        let of_letter = |letter: &DeadEntry| {
            let (index, number) = (letter.index, letter.number);
            let place = Read::Score(index, Member::Number(number));
            tables.map(|table| numbered(table, number)).into_iter().chain([place])
        };
        let reads: Vec<_> = letters.iter().flat_map(of_letter).collect();
        let mut found = ask(store, queue, &reads).await?;
        let mut facts = Vec::with_capacity(letters.len());
        for letter in letters {
            let (job_record, history_record) = (found.record(), found.record());
            let (dead, moving, place) = (found.record(), found.record(), found.score());
            facts.push(Self {
                letter: *letter,
                job: JobFacts::of(letter.number, job_record.as_ref(), history_record.as_ref())?,
                job_record,
                history_record,
                is_there: dead.is_some() && place == Some(letter.death),
                dead: read_dead(dead.as_ref())?,
                moving,
            });
        }
        Ok(facts)
    }

    /// It is there, and not on its way to another queue.
    pub(crate) fn is_free(&self) -> bool {
        self.is_there && self.moving.is_none()
    }

    /// Its body stands apart.
    pub(crate) fn has_body(&self) -> bool {
        self.job.traits & flag::BODY != 0
    }

    pub(crate) fn is_corrupt(&self) -> bool {
        self.dead.as_ref().is_none_or(|dead| dead.reason == DeadReason::Corrupt)
    }
}

/// What becomes of the own ids of jobs that are removed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IdsAfter {
    /// The jobs have ended now.
    Held(Timestamp),
    /// The jobs go on in another queue.
    Free,
}

/// DEAD → gone. One that is on its way to another queue is that move's: the record of `Move` has to be as it was read.
pub(crate) async fn remove_letters<S: Reads>(
    store: &mut S, queue: &QueueName, letters: &[&LetterFacts], ids: IdsAfter, changes: &mut Changes,
) -> Result<()> {
    let mut jobs = Vec::with_capacity(letters.len());
    for facts in letters {
        let number = RecordKey::Number(facts.letter.number);
        changes.fence(record_fence(Table::Move, number, facts.moving.as_ref()));
        changes.leave_dead(&facts.letter, facts.dead.as_ref());
        let job = Removal::new(&facts.job, facts.job_record.as_ref(), true);
        jobs.push(Removal { damaged: job.damaged || facts.is_corrupt(), ..job });
    }
    remove_jobs(store, queue, jobs, ids, changes).await
}

/// A job that is to be removed, and what leads to it.
pub(crate) struct Removal {
    number: u64,
    traits: u8,
    ids: Vec<RecordKey>,
    /// And their records.
    keys: Vec<(RecordKey, Option<Bytes>)>,
    has_key: bool,
    /// What the record says of id, key and deadline may be wrong.
    damaged: bool,
}

impl Removal {
    /// `has_key`: its key goes with it. That of a job that is done is held for as long as the key's own retention says.
    pub(crate) fn new(job: &JobFacts, record: Option<&Bytes>, has_key: bool) -> Self {
        // A stand-in has an id of its own that no record has.
        let id = records::own_id(&job.spec, job.number).map(|id| RecordKey::Text(id.into()));
        let key = job.spec.key.as_deref().filter(|_| has_key).map(|key| RecordKey::Text(key.into()));
        let is_whole = |record: &Bytes| match records::traits(record) & flag::BODY != 0 {
            // The checksum covers the body too, which is not read for this.
            true => records::read_job_head(record).is_ok(),
            false => records::read_job(record, None).is_ok(),
        };
        Self {
            number: job.number,
            traits: job.traits | flag::HISTORY,
            ids: id.into_iter().collect(),
            keys: key.into_iter().map(|key| (key, None)).collect(),
            has_key,
            damaged: !record.is_some_and(is_whole),
        }
    }
}

/// All of these jobs goes. Their places are given up by the caller, and fenced by it.
pub(crate) async fn remove_jobs<S: Reads>(
    store: &mut S, queue: &QueueName, mut jobs: Vec<Removal>, ids: IdsAfter, changes: &mut Changes,
) -> Result<()> {
    let mut reads = Vec::new();
    for job in &jobs {
        reads.extend(job.ids.iter().map(|id| Read::Record(Table::Id, id.clone())));
        reads.extend(job.keys.iter().map(|(key, _)| Read::Record(Table::Key, key.clone())));
    }
    let mut found = ask(store, queue, &reads).await?;
    for job in &mut jobs {
        let owner = records::owner(job.number);
        job.ids.retain(|_| found.record().is_some_and(|record| record.starts_with(&owner)));
        for (_, record) in &mut job.keys {
            *record = found.record().filter(|record| record.starts_with(&owner));
        }
    }
    for mut job in jobs {
        let number = job.number;
        if job.damaged {
            // Every id and key of the queue is looked at.
            job.traits |= flag::BODY | flag::LOOK;
            job.ids = owned(store, queue, Table::Id, number).await?.into_iter().map(|(id, _)| id).collect();
            if job.has_key {
                job.keys = owned(store, queue, Table::Key, number).await?;
            }
            let score = Read::Score(Index::Deadline, Member::Number(number));
            if let Some(at) = ask(store, queue, &[score]).await?.score() {
                changes.remove(Index::Deadline, Entry::number(at, number));
            }
        }
        for name in job.ids {
            match ids {
                IdsAfter::Held(now) => changes.hold_id(name, number, now),
                IdsAfter::Free => {
                    changes.fence(Fence::Begins(Table::Id, name.clone(), records::owner(number)));
                    changes.delete(Table::Id, name);
                }
            }
        }
        for (name, record) in job.keys {
            if let (RecordKey::Text(key), Some(found)) = (&name, FoundKey::read(record)?) {
                changes.fence(Fence::Begins(Table::Key, name.clone(), records::owner(number)));
                changes.remove(Index::FinishedKey, found.record.entry(key));
                changes.delete(Table::Key, name);
            }
        }
        changes.remove_job(number, job.traits);
    }
    Ok(())
}

/// The names that lead to this job, and their records.
async fn owned<S: Reads>(
    store: &mut S, queue: &QueueName, table: Table, number: u64,
) -> Result<Vec<(RecordKey, Option<Bytes>)>> {
    let (owner, mut names) = (records::owner(number), Vec::new());
    let each = |key, record: Bytes| {
        names.extend(record.starts_with(&owner).then(|| (key, Some(record))));
        Ok(())
    };
    scan(store, queue, table, each).await?;
    Ok(names)
}
