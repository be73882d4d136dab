//! One job with all that belongs to it, as it was at one moment.

use crate::{
    domain::ids::QueueName,
    queue::{
        records::{self, History, LeaseRecord, Whereabouts},
        state_changes::{FIRST_FAILURE, LAST_FAILURE, attempt_part, kept_attempts},
    },
    store::storage::{Found, Index, Member, Position, Read, RecordKey, Table},
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The indexes whose members are positions.
pub(super) const WAITING: [Index; 3] = [Index::Ready, Index::Scheduled, Index::Retrying];
/// The indexes that say by its number where a job is.
const NUMBERED: [Index; 4] = [Index::Leased, Index::Dead, Index::Overflow, Index::Completed];
/// The tables with one record for a job, but for its body.
const RECORDS: [Table; 5] = [Table::Job, Table::History, Table::Lease, Table::Dead, Table::Result];

/// What led to a job that should perhaps not do so, and is to be looked at with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Suspicion {
    pub(super) entries: BTreeSet<(Index, Member)>,
    /// `Id`, `Key`, and parts of the history.
    pub(super) records: BTreeSet<(Table, RecordKey)>,
}

/// The records and entries of one job.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    queue: QueueName,
    pub(super) number: u64,
    records: BTreeMap<(Table, RecordKey), Bytes>,
    scores: BTreeMap<(Index, Member), u64>,
}

impl Moment {
    /// Before anything is read but perhaps its record.
    pub(super) fn first(queue: &QueueName, number: u64, job: Option<Bytes>) -> Self {
        let (queue, scores) = (queue.clone(), BTreeMap::new());
        let job = job.map(|record| ((Table::Job, RecordKey::Number(number)), record));
        Self { queue, number, records: job.into_iter().collect(), scores }
    }

    /// What was found for these reads.
    pub(super) fn of(
        queue: &QueueName,
        number: u64,
        reads: &[Read],
        found: impl Iterator<Item = Found>,
    ) -> Self {
        let mut moment = Self::first(queue, number, None);
        for (read, found) in reads.iter().zip(found) {
            match (read, found) {
                (Read::Record(table, key), Found::Record(Some(record))) => {
                    moment.records.insert((*table, key.clone()), record);
                }
                (Read::Score(index, member), Found::Score(Some(score))) => {
                    moment.scores.insert((*index, member.clone()), score);
                }
                _ => {}
            }
        }
        moment
    }

    /// What has to be read, as far as it is known. A moment is whole once it asks for nothing more than what it was made of.
    pub(super) fn reads(&self, suspicion: &Suspicion) -> Vec<Read> {
        let number = self.number;
        let mut records: BTreeSet<(Table, RecordKey)> =
            RECORDS.into_iter().map(|table| (table, RecordKey::Number(number))).collect();
        let mut entries: BTreeSet<(Index, Member)> =
            NUMBERED.into_iter().map(|index| (index, Member::Number(number))).collect();
        entries.insert((Index::Deadline, Member::Number(number)));
        for position in self.position().into_iter().chain(self.lease_position()) {
            entries.extend(WAITING.map(|index| (index, Member::Position(position))));
        }
        if let Some(lease) = self.lease() {
            let epoch = lease.lease.epoch;
            entries.insert((Index::Probe, Member::Probe { epoch, number }));
        }
        if self.record(Table::Job).is_some() {
            records.insert((Table::Body, RecordKey::Number(number)));
        }
        if let Some(spec) = self.record(Table::Job).and_then(|it| records::read_job_head(it).ok()) {
            let text = |text: &str| RecordKey::Text(text.into());
            records.extend(records::own_id(&spec, number).map(|id| (Table::Id, text(&id))));
            records.extend(spec.key.as_deref().map(|key| (Table::Key, text(key))));
        }
        let failures = [FIRST_FAILURE, LAST_FAILURE].map(|part| RecordKey::Part(number, part));
        records.extend(failures.map(|key| (Table::Failure, key)));
        let attempts = self.attempts().into_iter().map(|part| RecordKey::Part(number, part));
        records.extend(attempts.map(|key| (Table::Attempt, key)));
        records.extend(suspicion.records.iter().cloned());
        entries.extend(suspicion.entries.iter().cloned());
        let records = records.into_iter().map(|(table, key)| Read::Record(table, key));
        records
            .chain(entries.into_iter().map(|(index, member)| Read::Score(index, member)))
            .collect()
    }

    /// The one of its number.
    pub(super) fn record(&self, table: Table) -> Option<&Bytes> {
        self.records.get(&(table, RecordKey::Number(self.number)))
    }

    pub(super) fn of_text(&self, table: Table, text: &str) -> Option<&Bytes> {
        self.records.get(&(table, RecordKey::Text(text.into())))
    }

    /// Those of a table, with their keys.
    pub(super) fn all(&self, table: Table) -> impl Iterator<Item = (&RecordKey, &Bytes)> {
        let of_table = move |((of, _), _): &(&(Table, RecordKey), &Bytes)| *of == table;
        self.records.iter().filter(of_table).map(|((_, key), record)| (key, record))
    }

    /// Of the index that has it under its number.
    pub(super) fn score(&self, index: Index) -> Option<u64> {
        self.scores.get(&(index, Member::Number(self.number))).copied()
    }

    /// Its entries in an index.
    pub(super) fn entries(&self, index: Index) -> impl Iterator<Item = (&Member, u64)> {
        let of_index = move |((of, _), _): &(&(Index, Member), &u64)| *of == index;
        self.scores.iter().filter(of_index).map(|((_, member), score)| (member, *score))
    }

    /// About what it takes to read it.
    pub(super) fn bytes(&self) -> usize {
        let size = self.record(Table::Job).and_then(|record| record.first_chunk());
        size.map_or(0, |size| u32::from_be_bytes(*size) as usize)
    }

    // ---- what follows from its records ----

    /// Where its records say that it waits, or has waited. None: they cannot be read.
    pub(super) fn position(&self) -> Option<Position> {
        match self.record(Table::History) {
            Some(record) => {
                let history = records::read_history(record).ok()?;
                Some(records::position(self.number, history.rank, history.at, true))
            }
            None => {
                let spec = records::read_job_head(self.record(Table::Job)?).ok()?;
                let rank = records::rank(spec.priority);
                Some(records::position(self.number, rank, spec.run_at, false))
            }
        }
    }

    pub(super) fn history(&self) -> Option<History> {
        self.record(Table::History).and_then(|record| records::read_history(record).ok())
    }

    pub(super) fn lease(&self) -> Option<LeaseRecord> {
        let record = self.record(Table::Lease)?;
        records::read_lease(&self.queue, self.number, record).ok()
    }

    fn lease_position(&self) -> Option<Position> {
        self.lease().map(|lease| lease.position).filter(|position| position.number == self.number)
    }

    /// The parts of `Attempt` that its history knows.
    pub(super) fn attempts(&self) -> BTreeSet<u8> {
        let recorded = self.history().map_or(0, |history| history.progress.recorded);
        kept_attempts(recorded).map(attempt_part).collect()
    }
}

/// Whether a job that has been there last can be in this index. `None`: it has no history.
pub(super) fn agrees(whereabouts: Option<Whereabouts>, index: Index) -> bool {
    let waits = |first: Index| [Index::Ready, Index::Leased, first].contains(&index);
    match whereabouts {
        // A promotion and a take write nothing about it.
        None | Some(Whereabouts::Scheduled) => waits(Index::Scheduled),
        Some(Whereabouts::Ready) => waits(Index::Ready),
        Some(Whereabouts::Retrying) => waits(Index::Retrying),
        Some(Whereabouts::Completed) => index == Index::Completed,
        Some(Whereabouts::Dead | Whereabouts::Overflow) => {
            [Index::Dead, Index::Overflow].contains(&index)
        }
    }
}
