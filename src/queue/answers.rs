//! What a read found, taken one by one in the order asked.

use super::encoding;
use super::records::read_if;
use super::refusal::{self, Refusal};
use crate::domain::{QueueName, Timestamp};
use crate::store::Result;
use crate::store::storage::{Counter, Entry, Found, Index, Meter, OutcomeSums, Read, Reads, RecordKey, Table};
use bytes::Bytes;

/// Of one read.
pub(crate) struct Answers(std::vec::IntoIter<Found>);

/// None: there is no such queue.
pub(crate) async fn ask_if_there<S: Reads>(
    store: &mut S, queue: &QueueName, reads: &[Read],
) -> Result<Option<Answers>> {
    Ok(store.read(queue, reads).await?.map(|found| Answers(found.into_iter())))
}

/// Refused where there is no such queue.
pub(crate) async fn ask_known<S: Reads>(store: &mut S, queue: &QueueName, reads: &[Read]) -> refusal::Result<Answers> {
    Ok(ask_if_there(store, queue, reads).await?.ok_or_else(|| Refusal::no_queue(queue))?)
}

/// Where there is no such queue, nothing is found.
pub(crate) async fn ask<S: Reads>(store: &mut S, queue: &QueueName, reads: &[Read]) -> Result<Answers> {
    let found = if reads.is_empty() { None } else { ask_if_there(store, queue, reads).await? };
    Ok(found.unwrap_or(Answers(Vec::new().into_iter())))
}

pub(crate) async fn ask_record<S: Reads>(
    store: &mut S, queue: &QueueName, table: Table, key: RecordKey,
) -> Result<Option<Bytes>> {
    Ok(ask(store, queue, &[Read::Record(table, key)]).await?.record())
}

impl Answers {
    pub(crate) fn sums(&mut self) -> (OutcomeSums, Option<Timestamp>) {
        self.next().map(|found| found.sums()).unwrap_or_default()
    }

    pub(crate) fn meter(&mut self) -> Option<Meter> {
        self.next().and_then(|found| found.meter())
    }

    pub(crate) fn record(&mut self) -> Option<Bytes> {
        self.next().and_then(Found::record)
    }

    /// The next record as `read` reads it. None: it is not there, or damaged.
    pub(crate) fn parse<T>(&mut self, read: impl FnOnce(&[u8]) -> encoding::Read<T>) -> Result<Option<T>> {
        read_if(self.record().as_ref(), read)
    }

    /// The record that comes after so many others, which stays.
    pub(crate) fn record_after(&self, others: usize) -> Option<Bytes> {
        self.0.as_slice().get(others).cloned().and_then(Found::record)
    }

    pub(crate) fn score(&mut self) -> Option<u64> {
        self.next().and_then(|found| found.score())
    }

    pub(crate) fn entries(&mut self) -> Vec<Entry> {
        self.next().map(Found::entries).unwrap_or_default()
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next().map_or(0, |found| found.number())
    }

    pub(crate) fn counters(&mut self) -> Vec<(Counter, i64)> {
        self.next().map(Found::counters).unwrap_or_default()
    }

    /// The names of the types of error that are counted one by one.
    pub(crate) fn error_types(&mut self) -> impl Iterator<Item = (Box<str>, i64)> + use<> {
        self.counters().into_iter().filter_map(|(counter, count)| match counter {
            Counter::ErrorType(name) => Some((name, count)),
            _ => None,
        })
    }

    pub(crate) fn scanned(&mut self) -> Vec<(RecordKey, Bytes)> {
        self.next().map(Found::scanned).unwrap_or_default()
    }
}

impl Iterator for Answers {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        self.0.next()
    }
}

/// The record of a job.
pub(crate) fn numbered(table: Table, number: u64) -> Read {
    Read::Record(table, RecordKey::Number(number))
}

/// The record of a name.
pub(crate) fn by_name(table: Table, name: impl Into<Box<str>>) -> Read {
    Read::Record(table, RecordKey::Text(name.into()))
}

/// The first entries of an index.
pub(crate) fn first_of(index: Index, limit: usize) -> Read {
    range(index, None, limit)
}

pub(crate) fn range(index: Index, after: Option<Entry>, limit: usize) -> Read {
    Read::Range { index, after, up_to: None, limit, reverse: false }
}

/// The last ones, the last of all first.
pub(crate) fn last_of(index: Index, limit: usize) -> Read {
    Read::Range { index, after: None, up_to: None, limit, reverse: true }
}

/// How many of these are read or written together, by what each takes: at least one.
pub(crate) fn together<T>(items: &[T], most: usize, most_bytes: usize, bytes: impl Fn(&T) -> usize) -> usize {
    let mut sum = 0;
    let fits = |item: &&T| {
        sum += bytes(item);
        sum <= most_bytes
    };
    items.iter().take(most).take_while(fits).count().max(1)
}

/// Records of a table that one read looks through.
const SCAN_MAX: usize = 1_000;

/// Every record of a table.
pub(crate) async fn scan<S: Reads>(
    store: &mut S, queue: &QueueName, table: Table, mut each: impl FnMut(RecordKey, Bytes) -> Result<()>,
) -> Result<()> {
    let mut after = None;
    loop {
        let page = ask(store, queue, &[Read::Scan(table, after, SCAN_MAX)]).await?.scanned();
        let full = page.len() == SCAN_MAX;
        after = page.last().map(|(key, _)| key.clone());
        page.into_iter().try_for_each(|(key, record)| each(key, record))?;
        if !full {
            return Ok(());
        }
    }
}
