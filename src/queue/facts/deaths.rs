//! What deaths depend on: depths, keys, and failures of the jobs that die.

use super::JobFacts;
use crate::domain::{Failure, QueueName};
use crate::queue::Depths;
use crate::queue::answers::{Answers, ask, by_name};
use crate::queue::records::{self, KeyRecord, read_if};
use crate::queue::state_changes::{FIRST_FAILURE, LAST_FAILURE};
use crate::store::Result;
use crate::store::storage::{CounterGroup, Index, Len, Read, Reads, RecordKey, Table};
use std::collections::HashMap;

/// What deaths depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeadFacts {
    pub(crate) depths: Depths,
    /// Types of error that are counted one by one.
    pub(crate) error_types: Vec<Box<str>>,
    /// Who has the keys of the jobs.
    keys: HashMap<String, KeyRecord>,
    /// The types of their last failures.
    failures: HashMap<u64, String>,
}

const DEPTHS: [Index; 9] = [
    Index::Ready,
    Index::Keyed,
    Index::Scheduled,
    Index::Retrying,
    Index::Leased,
    Index::Completed,
    Index::Cancelled,
    Index::Dead,
    Index::Overflow,
];

/// Reads of [`depths`].
pub(crate) fn depth_reads() -> impl Iterator<Item = Read> {
    DEPTHS.into_iter().map(|index| Read::Len(Len::Index(index)))
}

pub(crate) fn depths(found: &mut Answers) -> Depths {
    let [ready, keyed, scheduled, retrying, leased, completed, cancelled, dead, overflow] =
        DEPTHS.map(|_| found.number());
    let ready = ready + keyed;
    Depths { ready, scheduled, retrying, leased, completed, cancelled, dead: dead + overflow, overflow }
}

impl DeadFacts {
    /// For these jobs, which die.
    pub(crate) async fn read<S: Reads>(store: &mut S, queue: &QueueName, jobs: &[&JobFacts]) -> Result<Self> {
        let mut reads: Vec<_> = depth_reads().collect();
        reads.push(Read::Counters(CounterGroup::ErrorTypes));
        let failed = jobs.iter().filter(|job| job.past().is_some_and(|past| past.last_failed_at.is_some()));
        let keys = jobs.iter().filter_map(|job| job.spec.key.as_deref());
        reads.extend(failed.clone().flat_map(|job| failure_reads(job.number)));
        reads.extend(keys.clone().map(|key| by_name(Table::Key, key)));
        let mut found = ask(store, queue, &reads).await?;
        let mut facts = Self { depths: depths(&mut found), ..Self::default() };
        facts.error_types = found.error_types().map(|(name, _)| name).collect();
        for job in failed {
            let failure = last_failure(&mut found)?;
            facts.failures.extend(failure.map(|failure| (job.number, failure.error_type)));
        }
        for key in keys {
            let record = found.parse(records::read_key)?;
            facts.keys.extend(record.map(|record| (key.to_owned(), record)));
        }
        Ok(facts)
    }

    pub(crate) fn key(&self, key: &str) -> Option<&KeyRecord> {
        self.keys.get(key)
    }

    /// Of the job's last failure; empty where there was none.
    pub(crate) fn error_type(&self, number: u64) -> String {
        self.failures.get(&number).cloned().unwrap_or_default()
    }
}

/// Reads of [`last_failure`].
pub(crate) fn failure_reads(number: u64) -> [Read; 2] {
    [LAST_FAILURE, FIRST_FAILURE].map(|part| Read::Record(Table::Failure, RecordKey::Part(number, part)))
}

/// The last failure, which may be the first too.
pub(crate) fn last_failure(found: &mut Answers) -> Result<Option<Failure>> {
    let (last, first) = (found.record(), found.record());
    read_if(last.or(first).as_ref(), records::read_failure)
}
