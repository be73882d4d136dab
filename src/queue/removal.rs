//! A job that is not leased is removed, with all that belongs to it: its id and its key are given free, if they are its own.

use super::{
    facts::JobFacts,
    records::{self, DeadRecord},
    select::DeadEntry,
    state_changes::Changes,
};
use crate::{
    domain::ids::QueueName,
    domain::job::DeadReason,
    store::{
        StoreError,
        storage::{Entry, Fence, Found, Index, Member, Read, Reads, RecordKey, Table, flag},
    },
};
use bytes::Bytes;

/// Records that one read looks through for the ids and keys of a damaged job.
const SCAN_MAX: usize = 1_000;

/// A dead letter as its records are.
#[derive(Clone, Debug)]
pub(crate) struct LetterFacts {
    pub(crate) letter: DeadEntry,
    pub(crate) job: JobFacts,
    pub(crate) job_record: Option<Bytes>,
    pub(crate) history_record: Option<Bytes>,
    /// None: it is damaged.
    pub(crate) dead: Option<DeadRecord>,
    /// This very dead letter is there, and is not on its way to another queue.
    pub(crate) is_there: bool,
}

impl LetterFacts {
    /// Of each of these, in their order.
    pub(crate) async fn read<S: Reads>(
        store: &mut S,
        queue: &QueueName,
        letters: &[DeadEntry],
    ) -> Result<Vec<Self>, StoreError> {
        if letters.is_empty() {
            return Ok(Vec::new());
        }
        let tables = [Table::Job, Table::History, Table::Dead, Table::Move];
        let of_letter = |letter: &DeadEntry| {
            let key = RecordKey::Number(letter.number);
            let place = Read::Score(letter.index, Member::Number(letter.number));
            tables.map(|table| Read::Record(table, key.clone())).into_iter().chain([place])
        };
        let reads: Vec<_> = letters.iter().flat_map(of_letter).collect();
        let mut found = store.read(queue, &reads).await?.unwrap_or_default().into_iter();
        let mut facts = Vec::with_capacity(letters.len());
        for letter in letters {
            let mut next = || found.next().and_then(Found::record);
            let (job, history, dead, moving) = (next(), next(), next(), next());
            let place = found.next().and_then(|found| found.score());
            let same = dead.is_some() && place == Some(letter.death);
            let dead = dead.map(|it| records::readable(records::read_dead(&it))).transpose()?;
            facts.push(Self {
                letter: *letter,
                job: JobFacts::of(letter.number, job.as_ref(), history.as_ref())?,
                job_record: job,
                history_record: history,
                dead: dead.flatten().map(|(_, record)| record),
                is_there: same && moving.is_none(),
            });
        }
        Ok(facts)
    }

    pub(crate) fn reason(&self) -> DeadReason {
        self.dead.as_ref().map_or(DeadReason::Corrupt, |dead| dead.reason)
    }

    /// The job as its removal needs it.
    pub(crate) fn owner(&self) -> Owner<'_> {
        let damaged = self.reason() == DeadReason::Corrupt;
        Owner { job: &self.job, record: self.job_record.as_ref(), damaged, has_key: true }
    }
}

/// A job that is to be removed.
pub(crate) struct Owner<'a> {
    pub(crate) job: &'a JobFacts,
    pub(crate) record: Option<&'a Bytes>,
    /// It is known to be damaged.
    pub(crate) damaged: bool,
    /// Its key goes with it. That of a job that is done is held for as long as the key's own retention says.
    pub(crate) has_key: bool,
}

impl Owner<'_> {
    /// What the record says of id, key and deadline may be wrong.
    fn is_damaged(&self) -> bool {
        let Some(record) = self.record else { return true };
        // The checksum of one whose body stands apart covers the body, which is not read for this.
        let apart = records::traits(record) & flag::BODY != 0;
        let read = if apart {
            records::read_job_head(record).map(drop)
        } else {
            records::read_job(record, None).map(drop)
        };
        self.damaged || read.is_err()
    }
}

/// What belongs to a job beside its own records.
#[derive(Debug, Default)]
pub(crate) struct Belongings {
    number: u64,
    traits: u8,
    ids: Vec<RecordKey>,
    keys: Vec<RecordKey>,
    /// Where a damaged job may still be watched.
    deadline: Option<u64>,
}

impl Belongings {
    /// Of each of these, in their order.
    pub(crate) async fn find<S: Reads>(
        store: &mut S,
        queue: &QueueName,
        jobs: &[Owner<'_>],
    ) -> Result<Vec<Self>, StoreError> {
        let mut all = Vec::with_capacity(jobs.len());
        let mut reads = Vec::new();
        for owner in jobs {
            let Owner { job, has_key, .. } = owner;
            // A stand-in has an id of its own that no record has.
            let id = records::own_id(&job.spec, job.number).map(|id| RecordKey::Text(id.into()));
            let key = job.spec.key.as_deref().filter(|_| *has_key);
            let key = key.map(|key| RecordKey::Text(key.into()));
            reads.extend(id.iter().map(|id| Read::Record(Table::Id, id.clone())));
            reads.extend(key.iter().map(|key| Read::Record(Table::Key, key.clone())));
            all.push(Self {
                number: job.number,
                traits: job.traits | flag::HISTORY,
                ids: id.into_iter().collect(),
                keys: key.into_iter().collect(),
                deadline: None,
            });
        }
        if !reads.is_empty() {
            let mut found = store.read(queue, &reads).await?.unwrap_or_default().into_iter();
            for belongings in &mut all {
                let owner = records::owner(belongings.number);
                let mut is_own = |_: &RecordKey| {
                    let record = found.next().and_then(Found::record);
                    record.is_some_and(|record| record.starts_with(&owner))
                };
                belongings.ids.retain(&mut is_own);
                belongings.keys.retain(&mut is_own);
            }
        }
        for (owner, belongings) in jobs.iter().zip(&mut all) {
            if owner.is_damaged() {
                belongings.search(store, queue, owner.has_key).await?;
            }
        }
        Ok(all)
    }

    /// Looks at every id and key of the queue: for a job whose record cannot be trusted.
    async fn search<S: Reads>(
        &mut self,
        store: &mut S,
        queue: &QueueName,
        has_key: bool,
    ) -> Result<(), StoreError> {
        self.traits |= flag::BODY;
        self.ids = owned(store, queue, Table::Id, self.number).await?;
        if has_key {
            self.keys = owned(store, queue, Table::Key, self.number).await?;
        }
        let score = Read::Score(Index::Deadline, Member::Number(self.number));
        let found = store.read(queue, &[score]).await?.unwrap_or_default();
        self.deadline = found.first().and_then(Found::score);
        Ok(())
    }

    /// All of the job goes. Its place is given up by the caller, and fenced by it.
    pub(crate) fn remove(self, changes: &mut Changes) {
        let Self { number, traits, ids, keys, deadline } = self;
        let tables = [(Table::Id, ids), (Table::Key, keys)];
        for (table, names) in tables {
            for name in names {
                changes.fence(Fence::Begins(table, name.clone(), records::owner(number)));
                changes.delete(table, name);
            }
        }
        if let Some(at) = deadline {
            changes.remove(Index::Deadline, Entry::number(at, number));
        }
        changes.remove_job(number, traits);
    }
}

/// The names that lead to this job.
async fn owned<S: Reads>(
    store: &mut S,
    queue: &QueueName,
    table: Table,
    number: u64,
) -> Result<Vec<RecordKey>, StoreError> {
    let owner = records::owner(number);
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let scan = Read::Scan(table, after, SCAN_MAX);
        let mut found = store.read(queue, &[scan]).await?.unwrap_or_default();
        let page = found.pop().map(Found::scanned).unwrap_or_default();
        let full = page.len() == SCAN_MAX;
        after = page.last().map(|(key, _)| key.clone());
        let of_job = page.into_iter().filter(|(_, record)| record.starts_with(&owner));
        names.extend(of_job.map(|(key, _)| key));
        if !full {
            return Ok(names);
        }
    }
}
