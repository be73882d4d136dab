//! One job with all that belongs to it, as it was at one moment.

use crate::domain::{QueueName, Spec};
use crate::queue::encoding::Read as ReadBytes;
use crate::queue::records::{self, History, LeaseRecord};
use crate::queue::state_changes::{FIRST_FAILURE, LAST_FAILURE, attempt_part, kept_attempts};
use crate::store::storage::{Found, Index, Member, Position, Read, RecordKey, Table};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The indexes whose members are positions.
pub(super) const WAITING: [Index; 4] = [Index::Ready, Index::Keyed, Index::Scheduled, Index::Retrying];
/// The indexes that have a job under its number.
const NUMBERED: [Index; 7] = [
    Index::Leased,
    Index::LeasedByGroup,
    Index::Dead,
    Index::Overflow,
    Index::Completed,
    Index::Cancelled,
    Index::Deadline,
];
/// The tables with one record for a job, but for its body.
const RECORDS: [Table; 5] = [Table::Job, Table::History, Table::Lease, Table::Dead, Table::Result];

/// A record or an entry, by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    Record(Table, RecordKey),
    Entry(Index, Member),
}

impl Item {
    pub(super) fn read(&self) -> Read {
        match self.clone() {
            Self::Record(table, key) => Read::Record(table, key),
            Self::Entry(index, member) => Read::Score(index, member),
        }
    }

    /// A look at any job looks at it, whatever the job's records say.
    pub(super) fn is_of_every_job(&self) -> bool {
        match self {
            Self::Record(Table::Failure, RecordKey::Part(_, part)) => *part <= LAST_FAILURE,
            Self::Record(table, _) => !matches!(table, Table::Attempt | Table::Event | Table::Id | Table::Key),
            Self::Entry(_, member) => matches!(member, Member::Number(_)),
        }
    }
}

/// The job that a record leads to. None: it has an end of its own.
pub(super) fn owner(table: Table, key: &RecordKey, record: &[u8]) -> ReadBytes<Option<u64>> {
    Ok(match (table, key) {
        (Table::Request | Table::Move, _) => None,
        (Table::Id, _) => Some(records::read_id(record)?.number),
        (Table::Key, _) => Some(records::read_key(record)?.number),
        (_, RecordKey::Number(number) | RecordKey::Part(number, _)) => Some(*number),
        _ => None,
    })
}

/// A record that is not found by a job's number, for people.
pub(super) fn shown(table: Table, key: &RecordKey) -> String {
    let key = match key {
        RecordKey::Text(text) => format!("{text:?}"),
        RecordKey::Number(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    match table {
        Table::Id => format!("the id {key}"),
        Table::Key => format!("the idempotency key {key}"),
        Table::Request => format!("the request {key}"),
        Table::Move => format!("the move of job {key}"),
        other => format!("{other:?} {key}"),
    }
}

/// The records and entries of one job.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) number: u64,
    records: BTreeMap<(Table, RecordKey), Bytes>,
    scores: BTreeMap<(Index, Member), u64>,
    /// As far as they can be read, whatever the checksum of the job says.
    pub(super) head: Option<Spec>,
    pub(super) history: Option<History>,
    lease: Option<LeaseRecord>,
}

impl Moment {
    /// What was found of these.
    pub(super) fn new(queue: &QueueName, number: u64, found: impl Iterator<Item = (Item, Found)>) -> Self {
        let (mut records, mut scores) = (BTreeMap::new(), BTreeMap::new());
        for found in found {
            match found {
                (Item::Record(table, key), Found::Record(Some(record))) => drop(records.insert((table, key), record)),
                (Item::Entry(index, member), Found::Score(Some(score))) => drop(scores.insert((index, member), score)),
                _ => {}
            }
        }
        let mut moment = Self { number, records, scores, head: None, history: None, lease: None };
        let record = |table| moment.record(table);
        let head = record(Table::Job).and_then(|it| records::read_job_head(it).ok());
        let history = record(Table::History).and_then(|it| records::read_history(it).ok());
        let lease = record(Table::Lease).and_then(|it| records::read_lease(queue, number, it).ok());
        (moment.head, moment.history, moment.lease) = (head, history, lease);
        moment
    }

    /// What is to be looked at, as far as it is known. A moment is whole once that is nothing more than what it was made of.
    pub(super) fn items(&self) -> BTreeSet<Item> {
        let number = self.number;
        let record = |table| Item::Record(table, RecordKey::Number(number));
        let text = |table, text: &str| Item::Record(table, RecordKey::Text(text.into()));
        let part = |table, part| Item::Record(table, RecordKey::Part(number, part));
        let mut items: BTreeSet<Item> = RECORDS.map(record).into();
        items.extend(NUMBERED.map(|index| Item::Entry(index, Member::Number(number))));
        items.extend([FIRST_FAILURE, LAST_FAILURE].map(|it| part(Table::Failure, it)));
        items.extend(self.attempts().map(|it| part(Table::Attempt, it)));
        items.extend(self.events().map(|it| part(Table::Event, it)));
        // Not before its size is known.
        items.extend(self.record(Table::Job).map(|_| record(Table::Body)));
        if let Some(spec) = &self.head {
            items.extend(records::own_id(spec, number).map(|id| text(Table::Id, &id)));
            items.extend(spec.key.as_deref().map(|key| text(Table::Key, key)));
        }
        let leased = self.lease.as_ref().map(|it| it.position).filter(|it| it.number == number);
        for position in self.position().into_iter().chain(leased) {
            items.extend(WAITING.map(|index| Item::Entry(index, Member::Position(position))));
        }
        if let Some(lease) = &self.lease {
            items.insert(Item::Entry(Index::Probe, Member::Probe { epoch: lease.lease.epoch, number }));
        }
        items
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
        let all = self.records.iter().filter(move |((of, _), _)| *of == table);
        all.map(|((_, key), record)| (key, record))
    }

    /// Of the index that has it under its number.
    pub(super) fn score(&self, index: Index) -> Option<u64> {
        self.scores.get(&(index, Member::Number(self.number))).copied()
    }

    /// Its entries in an index.
    pub(super) fn entries(&self, index: Index) -> impl Iterator<Item = (&Member, u64)> {
        let all = self.scores.iter().filter(move |((of, _), _)| *of == index);
        all.map(|((_, member), score)| (member, *score))
    }

    /// About what it takes to read it.
    pub(super) fn bytes(&self) -> usize {
        let size = self.record(Table::Job).and_then(|record| record.first_chunk());
        size.map_or(0, |size| u32::from_be_bytes(*size) as usize)
    }

    /// Where its records say that it waits, or has waited. None: they cannot be read.
    pub(super) fn position(&self) -> Option<Position> {
        if self.record(Table::History).is_some() {
            let history = self.history.as_ref()?;
            return Some(records::position(history.group, self.number, history.rank, history.at, true));
        }
        let spec = self.head.as_ref()?;
        let (_, _, group) = records::job_with_rest(self.number, self.record(Table::Job)).ok()?;
        Some(records::position(group, self.number, records::rank(spec.priority), spec.run_at, false))
    }

    /// The parts of `Attempt` that its history knows.
    pub(super) fn attempts(&self) -> impl Iterator<Item = u8> + use<> {
        let recorded = self.history.as_ref().map_or(0, |history| history.progress.recorded);
        kept_attempts(recorded).map(attempt_part)
    }

    /// The same of `Event`.
    pub(super) fn events(&self) -> impl Iterator<Item = u8> + use<> {
        let events = self.history.as_ref().map_or(0, |history| history.progress.events);
        kept_attempts(events).map(attempt_part)
    }
}
