//! All that a queue holds, by the reads that every engine has.

use super::values;
use bytes::Bytes;
use redrive::domain::QueueName;
use redrive::store::storage::{
    CounterGroup, Entry, Found, Index, Len, Mark, Member, Read, Reads, RecordKey, Table, WHOLE_QUEUE,
};

#[derive(Clone, Debug, Default)]
pub(super) struct Dump {
    pub(super) records: Vec<(Table, RecordKey, Bytes)>,
    pub(super) entries: Vec<(Index, Entry)>,
    pub(super) lengths: Vec<(Len, u64)>,
    /// Counters, marks, sums of outcomes and meters.
    sums: Vec<Found>,
}

impl Dump {
    pub(super) fn record(&self, table: Table, key: &RecordKey) -> Option<&Bytes> {
        let mut records = self.records.iter();
        records.find(|(of, at, _)| (*of, at) == (table, key)).map(|(_, _, record)| record)
    }

    pub(super) fn score(&self, index: Index, member: &Member) -> Option<u64> {
        let mut entries = self.entries.iter();
        entries.find(|(of, entry)| (*of, &entry.member) == (index, member)).map(|(_, entry)| entry.score)
    }

    pub(super) fn len(&self, of: Len) -> u64 {
        self.lengths.iter().find(|(len, _)| *len == of).map_or(0, |(_, count)| *count)
    }

    pub(super) fn leased(&self) -> impl Iterator<Item = u64> {
        let leased = self.entries.iter().filter(|(index, _)| *index == Index::Leased);
        leased.filter_map(|(_, entry)| entry.member.job())
    }

    /// The jobs that wait, and where.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (Index, &Entry)> {
        let indexes = [Index::Ready, Index::Keyed, Index::Scheduled, Index::Retrying];
        let waiting = self.entries.iter().filter(move |(index, _)| indexes.contains(index));
        waiting.map(|(index, entry)| (*index, entry))
    }
}

/// Counters have no order.
pub(super) fn ordered(found: Vec<Found>) -> Vec<Found> {
    let order = |found| match found {
        Found::Counters(mut counters) => {
            counters.sort();
            Found::Counters(counters)
        }
        found => found,
    };
    found.into_iter().map(order).collect()
}

/// `None`: there is no such queue.
pub(super) async fn dump(storage: &mut impl Reads, queue: &QueueName) -> Option<Dump> {
    let limit = 1_000;
    let range = |index| Read::Range { index, after: None, up_to: None, limit, reverse: false };
    let mut reads: Vec<_> = Table::ALL.map(|table| Read::Scan(table, None, limit)).into();
    reads.extend(Index::ALL.map(range));
    reads.extend(values::lengths().into_iter().map(Read::Len));
    reads.extend([CounterGroup::Totals, CounterGroup::ErrorTypes].map(Read::Counters));
    reads.extend((0..8).map(|by| Read::Sums(values::epoch(by))));
    reads.extend(values::GROUPS.into_iter().chain([WHOLE_QUEUE]).map(Read::Meter));
    reads.push(Read::Mark(Mark::LastClaim));

    let mut found = storage.read(queue, &reads).await.unwrap()?.into_iter();
    let mut dump = Dump::default();
    for (table, found) in Table::ALL.into_iter().zip(&mut found) {
        let records = found.scanned().into_iter();
        dump.records.extend(records.map(|(key, record)| (table, key, record)));
    }
    for (index, found) in Index::ALL.into_iter().zip(&mut found) {
        dump.entries.extend(found.entries().into_iter().map(|entry| (index, entry)));
    }
    for (of, found) in values::lengths().into_iter().zip(&mut found) {
        dump.lengths.push((of, found.number()));
    }
    dump.sums = ordered(found.collect());
    Some(dump)
}
