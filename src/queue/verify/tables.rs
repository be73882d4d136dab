//! From the tables: a record belongs to a job or has an entry that knows of it.

use super::{PAGE, Pass, Verification, job::readable};
use crate::{
    domain::ids::QueueName,
    queue::{
        context::epoch,
        encoding::Read as ReadBytes,
        records,
        state_changes::{LAST_FAILURE, attempt_part, kept_attempts},
    },
    store::{
        Check, StoreError,
        storage::{
            Found, GroupState, Index, Member, NO_GROUP, Read, Reads, RecordKey, Table, Version,
            WHOLE_QUEUE,
        },
    },
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Bodies are large.
const BODIES_PAGE: usize = 8;

/// Parts of a job in one table.
const PARTS_MAX: u64 = 1 << 8;

/// The tables but `Job` and those of the queue itself.
pub(super) const TABLES: [Table; 11] = [
    Table::Body,
    Table::History,
    Table::Attempt,
    Table::Failure,
    Table::Lease,
    Table::Dead,
    Table::Result,
    Table::Id,
    Table::Key,
    Table::Request,
    Table::Move,
];

/// Records of one read.
pub(super) fn page(table: Table) -> usize {
    if table == Table::Body { BODIES_PAGE } else { PAGE }
}

fn name(table: Table) -> &'static str {
    match table {
        Table::Queue => "queue",
        Table::Version => "versions",
        Table::Breaker => "breakers",
        Table::Outcomes => "outcomes",
        Table::Job => "jobs",
        Table::Body => "bodies",
        Table::History => "histories",
        Table::Attempt => "attempts",
        Table::Failure => "failures",
        Table::Lease => "leases",
        Table::Dead => "dead letters",
        Table::Result => "results",
        Table::Id => "ids",
        Table::Key => "idempotency keys",
        Table::Request => "requests",
        Table::Move => "moves",
    }
}

impl<S: Reads> Verification<'_, S> {
    pub(super) async fn all_records(&mut self, table: Table) -> Result<(), StoreError> {
        // Of most tables it is not known how much there is; a job has no more than this in any of them.
        let mut pass = Pass::new(self.numbers.len() as u64 * PARTS_MAX);
        let mut after = None;
        while !pass.is_over {
            let records = self.scan(table, after).await?;
            let Some((last, _)) = records.last() else { break };
            pass.page(records.len(), page(table));
            after = Some(last.clone());
            self.report.records += records.len() as u64;
            match table {
                Table::Id => self.ids(records).await?,
                Table::Key => self.keys(records).await?,
                Table::Request | Table::Move => self.expiring(table, records).await?,
                _ => self.of_numbers(table, records).await?,
            }
            self.tell(name(table), pass.count, None);
        }
        Ok(())
    }

    /// Records of a job: it is there, and knows the parts of its history.
    async fn of_numbers(
        &mut self,
        table: Table,
        page: Vec<(RecordKey, Bytes)>,
    ) -> Result<(), StoreError> {
        let mut attempts: BTreeMap<u64, BTreeSet<u8>> = BTreeMap::new();
        for (key, _) in page {
            match key {
                RecordKey::Number(number) if !self.is_job(number) => {
                    self.suspect_record(number, table, key);
                }
                RecordKey::Part(number, _) if !self.is_job(number) => {
                    self.suspect_record(number, table, key);
                }
                RecordKey::Part(number, part) if table == Table::Attempt => {
                    attempts.entry(number).or_default().insert(part);
                }
                RecordKey::Part(number, part) if part > LAST_FAILURE => {
                    self.suspect_record(number, table, key);
                }
                _ => {}
            }
        }
        let history = |number: &u64| Read::Record(Table::History, RecordKey::Number(*number));
        let reads: Vec<_> = attempts.keys().map(history).collect();
        let found = self.read(&reads).await?;
        for ((number, parts), found) in attempts.into_iter().zip(found) {
            let history = found.record().and_then(|record| records::read_history(&record).ok());
            let recorded = history.map_or(0, |history| history.progress.recorded);
            let known: BTreeSet<u8> = kept_attempts(recorded).map(attempt_part).collect();
            for part in parts.difference(&known) {
                self.suspect_record(number, Table::Attempt, RecordKey::Part(number, *part));
            }
        }
        Ok(())
    }

    /// The jobs of these numbers, as far as they are there and can be read.
    async fn heads(
        &mut self,
        numbers: &[u64],
    ) -> Result<Vec<Option<crate::domain::job::Spec>>, StoreError> {
        let read = |number: &u64| Read::Record(Table::Job, RecordKey::Number(*number));
        let reads: Vec<_> = numbers.iter().map(read).collect();
        let found = self.read(&reads).await?.into_iter();
        let head = |found: Found| records::read_job_head(&found.record()?).ok();
        Ok(found.map(head).collect())
    }

    async fn ids(&mut self, page: Vec<(RecordKey, Bytes)>) -> Result<(), StoreError> {
        let mut ids = Vec::with_capacity(page.len());
        for (key, record) in page {
            match (&key, records::read_id(&record)) {
                (RecordKey::Text(text), Ok(id)) => ids.push((text.clone(), id.number)),
                _ => drop(self.others.insert((Table::Id, key))),
            }
        }
        let numbers: Vec<u64> = ids.iter().map(|(_, number)| *number).collect();
        let heads = self.heads(&numbers).await?;
        for ((text, number), head) in ids.into_iter().zip(heads) {
            let own = head.and_then(|spec| records::own_id(&spec, number));
            if own.as_deref() != Some(&*text) {
                self.suspect_record(number, Table::Id, RecordKey::Text(text));
            }
        }
        Ok(())
    }

    async fn keys(&mut self, page: Vec<(RecordKey, Bytes)>) -> Result<(), StoreError> {
        let (mut held, mut finished) = (Vec::new(), Vec::new());
        for (key, record) in page {
            match (key, records::read_key(&record)) {
                (RecordKey::Text(text), Ok(record)) => match record.free_at {
                    Some(at) => finished.push((text, at)),
                    None => held.push((text, record.number)),
                },
                (key, _) => drop(self.others.insert((Table::Key, key))),
            }
        }
        let numbers: Vec<u64> = held.iter().map(|(_, number)| *number).collect();
        let heads = self.heads(&numbers).await?;
        for ((text, number), head) in held.into_iter().zip(heads) {
            if head.and_then(|spec| spec.key).as_deref() != Some(&*text) {
                self.suspect_record(number, Table::Key, RecordKey::Text(text));
            }
        }
        let end = |text: &str| Read::Score(Index::FinishedKey, Member::Text(text.into()));
        let reads: Vec<_> = finished.iter().map(|(text, _)| end(text)).collect();
        let found = self.read(&reads).await?;
        for ((text, at), found) in finished.into_iter().zip(found) {
            if found.score() != Some(at.millis()) {
                self.others.insert((Table::Key, RecordKey::Text(text)));
            }
        }
        Ok(())
    }

    async fn expiring(
        &mut self,
        table: Table,
        page: Vec<(RecordKey, Bytes)>,
    ) -> Result<(), StoreError> {
        let expiry =
            |key: &RecordKey| Read::Score(Index::Expires, Member::Record(table, key.clone()));
        let reads: Vec<_> = page.iter().map(|(key, _)| expiry(key)).collect();
        let found = self.read(&reads).await?;
        for ((key, _), found) in page.into_iter().zip(found) {
            if found.score().is_none() {
                self.others.insert((table, key));
            }
        }
        Ok(())
    }

    // ---- records without a job ----

    pub(super) async fn suspected_others(&mut self) -> Result<(), StoreError> {
        for (table, key) in std::mem::take(&mut self.others) {
            let member = match (table, &key) {
                (Table::Key, RecordKey::Text(text)) => Member::Text(text.clone()),
                _ => Member::Record(table, key.clone()),
            };
            let index = if table == Table::Key { Index::FinishedKey } else { Index::Expires };
            let reads = [Read::Record(table, key.clone()), Read::Score(index, member)];
            let mut found = self.read(&reads).await?.into_iter();
            let record = found.next().and_then(Found::record);
            let score = found.next().and_then(|found| found.score());
            let what = shown(table, &key);
            if let Some((check, what)) = of_other(self.queue, table, &what, record.as_ref(), score)?
            {
                self.found(check, what);
            }
        }
        Ok(())
    }

    // ---- the queue itself ----

    pub(super) async fn queue_records(&mut self) -> Result<(), StoreError> {
        let of_group = |table, group| Read::Record(table, RecordKey::Group(group));
        let reads = [
            Read::Record(Table::Queue, RecordKey::Only),
            of_group(Table::Breaker, NO_GROUP),
            Read::Record(Table::Outcomes, RecordKey::Only),
            of_group(Table::Version, WHOLE_QUEUE),
            of_group(Table::Version, NO_GROUP),
        ];
        let found: Vec<_> = self.read(&reads).await?.into_iter().map(Found::record).collect();
        let record = |at: usize| found.get(at).and_then(Option::as_ref);
        let queue =
            self.of_queue("its pause and dead-letter state", record(0), records::read_queue)?;
        let breaker = self.of_queue("its breaker", record(1), records::read_breaker)?;
        self.of_queue("what its breaker has counted", record(2), records::read_outcomes)?;
        for version in [record(3), record(4)].into_iter().flatten() {
            if version.len() != Version::LENGTH {
                self.found(Check::Checksums, "one of its versions is not what was written");
            }
        }
        let version = |at: usize| Version::read(record(at).map(AsRef::as_ref));
        let paused = queue.as_ref().is_some_and(|queue| queue.pause.is_some());
        if (queue.is_some() || record(0).is_none())
            && paused != (version(3).state == GroupState::Held)
        {
            self.found(Check::Indexes, "whether it is paused is said twice, differently");
        }
        if (breaker.is_some() || record(1).is_none())
            && version(4).epoch != breaker.as_ref().map_or(0, epoch)
        {
            self.found(
                Check::Indexes,
                "the transitions of its breaker are said twice, differently",
            );
        }
        Ok(())
    }

    fn of_queue<T>(
        &mut self,
        what: &str,
        record: Option<&Bytes>,
        read: impl Fn(&[u8]) -> ReadBytes<T>,
    ) -> Result<Option<T>, StoreError> {
        let Some(record) = record else { return Ok(None) };
        let value = readable(self.queue, what, read(record))?;
        if value.is_none() {
            self.found(Check::Checksums, format!("{what} is not what was written"));
        }
        Ok(value)
    }
}

/// A record without a job, for people.
fn shown(table: Table, key: &RecordKey) -> String {
    let key = match key {
        RecordKey::Text(text) => format!("{text:?}"),
        RecordKey::Number(number) => format!("{number}"),
        other => format!("{other:?}"),
    };
    match table {
        Table::Id => format!("the id {key}"),
        Table::Key => format!("the idempotency key {key}"),
        Table::Request => format!("the request {key}"),
        Table::Move => format!("the move of job {key}"),
        other => format!("{} {key}", name(other)),
    }
}

/// What is wrong with a record that has no job, at one moment. `score`: of its entry in `FinishedKey` or `Expires`.
fn of_other(
    queue: &QueueName,
    table: Table,
    what: &str,
    record: Option<&Bytes>,
    score: Option<u64>,
) -> Result<Option<(Check, String)>, StoreError> {
    let indexes = |text: String| Ok(Some((Check::Indexes, text)));
    let damaged =
        || Ok(Some((Check::Checksums, format!("the record of {what} is not what was written"))));
    match (table, record) {
        (Table::Id, Some(record)) => match readable(queue, what, records::read_id(record))? {
            Some(_) => Ok(None),
            None => damaged(),
        },
        (Table::Id, None) => Ok(None),
        (Table::Key, Some(record)) => {
            let Some(key) = readable(queue, what, records::read_key(record))? else {
                return damaged();
            };
            match (key.free_at.map(|at| at.millis()), score) {
                (free_at, score) if free_at == score => Ok(None),
                (Some(_), _) => indexes(format!("{what} would not be freed at its time")),
                (None, _) => {
                    indexes(format!("the end of {what} is known, and its job is not done"))
                }
            }
        }
        (Table::Key, None) if score.is_some() => {
            indexes(format!("an end leads to {what}, which is not there"))
        }
        (Table::Key, None) => Ok(None),
        (_, Some(_)) if score.is_none() => indexes(format!("{what} would never be removed")),
        (_, None) if score.is_some() => {
            indexes(format!("an expiry leads to {what}, which is not there"))
        }
        _ => Ok(None),
    }
}
