//! From the tables and the indexes: what leads to a job is known to it, and what does not has an end.

use super::job::{self, readable};
use super::moment::{Item, Moment, owner, shown};
use super::{Look, PAGE, Pages, Verification};
use crate::queue::breaker_keys;
use crate::queue::context::epoch;
use crate::queue::encoding::Read as ReadBytes;
use crate::queue::records;
use crate::store::storage::{
    Entry, Found, GROUPS_MAX, GroupState, Index, Len, Member, NO_GROUP, Read, Reads, RecordKey, Table, Version,
    WHOLE_QUEUE,
};
use crate::store::{Check, Result};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Bodies are large.
const BODIES_PAGE: usize = 8;
/// Parts of a job in one table.
const PARTS_MAX: u64 = 1 << 8;
/// What a first look at something that leads to a job reads of it: what says which items it knows of.
const FIRST_LOOK: [Table; 3] = [Table::Job, Table::History, Table::Lease];

/// The tables but `Job` and those of the queue itself, and how progress names them.
pub(super) const TABLES: [(Table, &str); 12] = [
    (Table::Body, "bodies"),
    (Table::History, "histories"),
    (Table::Attempt, "attempts"),
    (Table::Event, "events"),
    (Table::Failure, "failures"),
    (Table::Lease, "leases"),
    (Table::Dead, "dead letters"),
    (Table::Result, "results"),
    (Table::Id, "ids"),
    (Table::Key, "idempotency keys"),
    (Table::Request, "requests"),
    (Table::Move, "moves"),
];

/// Of an own id whose job has ended.
fn end_of(id: &RecordKey) -> Item {
    Item::Entry(Index::Expires, Member::Record(Table::Id, id.clone()))
}

impl<S: Reads> Verification<'_, S> {
    pub(super) async fn all_records(&mut self, table: Table, name: &'static str) -> Result<()> {
        let of = if table == Table::Job { Some(self.len(Len::Table(table)).await?) } else { None };
        // Of most tables it is not known how much there is; a job has no more than this in any of them.
        let most = of.unwrap_or(self.numbers.len() as u64 * PARTS_MAX);
        let limit = if table == Table::Body { BODIES_PAGE } else { PAGE };
        let mut pages = Pages::new(limit, most);
        while let Some(page) = self.records(table, &mut pages).await? {
            self.report.records += page.len() as u64;
            if table == Table::Job {
                self.jobs(page).await?;
            } else {
                self.of_table(table, page).await?;
            }
            self.report_progress(name, pages.count, of);
        }
        Ok(())
    }

    async fn jobs(&mut self, page: Vec<(RecordKey, Bytes)>) -> Result<()> {
        let mut looks = Vec::with_capacity(page.len());
        for (key, record) in page {
            let RecordKey::Number(number) = key else { continue };
            self.numbers.push(number);
            self.report.jobs += 1;
            let record = (Item::Record(Table::Job, key), Found::Record(Some(record)));
            let moment = Moment::new(self.queue, number, [record].into_iter());
            looks.push(Look::new(moment, BTreeSet::new()));
        }
        for moment in self.moments(looks).await? {
            if !job::findings(self.queue, &moment)?.is_empty() {
                self.suspects.entry(moment.number).or_default();
            }
        }
        Ok(())
    }

    async fn of_table(&mut self, table: Table, page: Vec<(RecordKey, Bytes)>) -> Result<()> {
        let (mut items, mut others, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        for (key, record) in page {
            let owner = owner(table, &key, &record);
            if let Ok(Some(number)) = owner {
                items.push((number, Item::Record(table, key.clone())));
            }
            // A key leads to a job and has an end of its own.
            match records::read_key(&record) {
                Ok(record) if table == Table::Key => keys.push((key, record.at.millis())),
                _ if !matches!(owner, Ok(Some(_))) => others.push((table, key)),
                _ => {}
            }
        }
        self.lead_to_jobs(items).await?;
        others.extend(self.without_their_ends(keys).await?.into_iter().map(|key| (table, key)));
        self.others(others, false).await
    }

    /// Those of these keys that have no entry with this score. Some engines find an entry by its member only by looking at all of
    /// them, so that is left for keys that are suspected.
    async fn without_their_ends(&mut self, keys: Vec<(RecordKey, u64)>) -> Result<Vec<RecordKey>> {
        let behind = |(key, score): &(RecordKey, u64)| match key {
            RecordKey::Text(text) => Entry { score: *score, member: Member::Text(format!("{text}\0").into()) },
            _ => Entry::number(0, 0),
        };
        let last =
            |after| Read::Range { index: Index::FinishedKey, after: Some(after), up_to: None, limit: 1, reverse: true };
        let reads: Vec<_> = keys.iter().map(|key| last(behind(key))).collect();
        let mut found = self.read(&reads).await?;
        let mut is_there = |(key, score): &(RecordKey, u64)| {
            let entry = found.entries().pop().filter(|entry| entry.score == *score).map(|entry| entry.member);
            matches!((entry, key), (Some(Member::Text(text)), RecordKey::Text(key)) if text == *key)
        };
        Ok(keys.into_iter().filter(|key| !is_there(key)).map(|(key, _)| key).collect())
    }

    pub(super) async fn all_entries(&mut self, index: Index) -> Result<()> {
        let mut pages = Pages::new(PAGE, self.len(Len::Index(index)).await?);
        let mut last_score = None;
        while let Some(page) = self.entries(index, &mut pages).await? {
            let (mut items, mut others, mut keys) = (Vec::new(), Vec::new(), Vec::new());
            let mut groups = BTreeSet::new();
            for entry in page {
                if let Member::Position(position) = &entry.member {
                    groups.extend((position.group != NO_GROUP).then_some(position.group));
                }
                let score = Some(entry.score);
                if matches!(index, Index::Dead | Index::Overflow) && last_score == score {
                    let what = format!("two dead letters have the number of death {}", entry.score);
                    self.found(Check::Counts, what);
                }
                last_score = score;
                let score = entry.score;
                match (entry.member.job(), entry.member) {
                    (Some(number), member) => items.push((number, Item::Entry(index, member))),
                    (None, Member::Text(key)) => keys.push((RecordKey::Text(key), score)),
                    (None, Member::Record(table, key)) => others.push((table, key)),
                    (None, _) => {}
                }
            }
            if !groups.is_empty() {
                self.groups_without_key(groups).await?;
            }
            self.lead_to_jobs(items).await?;
            others.extend(self.without_their_records(keys).await?.into_iter().map(|key| (Table::Key, key)));
            self.others(others, true).await?;
            self.report_progress(index.name(), pages.count, None);
        }
        if self.len(Len::Index(index)).await? != pages.count {
            self.recount.push(index);
        }
        Ok(())
    }

    /// Those of these keys whose record does not name this end.
    async fn without_their_records(&mut self, keys: Vec<(RecordKey, u64)>) -> Result<Vec<RecordKey>> {
        let reads: Vec<_> = keys.iter().map(|(key, _)| Read::Record(Table::Key, key.clone())).collect();
        let found = self.read(&reads).await?;
        let left = keys.into_iter().zip(found).filter(|((_, score), found)| {
            let record = found.clone().record().and_then(|record| records::read_key(&record).ok());
            record.is_none_or(|record| record.at.millis() != *score)
        });
        Ok(left.map(|((key, _), _)| key).collect())
    }

    /// The pass over the jobs has looked at what they know of. What they do not know of is a suspicion.
    async fn lead_to_jobs(&mut self, items: Vec<(u64, Item)>) -> Result<()> {
        let mut unsure: BTreeMap<u64, Vec<Item>> = BTreeMap::new();
        for (number, item) in items {
            if !item.is_of_every_job() || self.numbers.binary_search(&number).is_err() {
                unsure.entry(number).or_default().push(item);
            }
        }
        let first_look = |number| FIRST_LOOK.map(|table| Item::Record(table, RecordKey::Number(number)));
        let reads: Vec<_> = unsure.keys().flat_map(|number| first_look(*number)).map(|item| item.read()).collect();
        let mut found = self.read(&reads).await?;
        let mut ids = Vec::new();
        for (number, items) in unsure {
            let moment = Moment::new(self.queue, number, first_look(number).into_iter().zip(found.by_ref()));
            let known = moment.record(Table::Job).map(|_| moment.items());
            for item in items {
                match (&known, &item) {
                    (Some(known), item) if known.contains(item) => {}
                    // A key may outlive its job, and so may an own id that has an end.
                    (None, Item::Record(Table::Key, _)) => {}
                    (None, Item::Record(Table::Id, id)) => ids.push((number, end_of(id), item)),
                    _ => drop(self.suspects.entry(number).or_default().insert(item)),
                }
            }
        }
        let reads: Vec<_> = ids.iter().map(|(_, end, _)| end.read()).collect();
        let mut found = self.read(&reads).await?;
        for (number, end, id) in ids {
            if found.score().is_none() {
                self.suspects.entry(number).or_default().extend([end, id]);
            }
        }
        Ok(())
    }

    /// Records that end by themselves, each with its end at one moment. `by_end`: it is the ends that led to them.
    async fn others(&mut self, names: Vec<(Table, RecordKey)>, by_end: bool) -> Result<()> {
        let reads = names.iter().flat_map(|(table, key)| {
            let end = match (table, key) {
                (Table::Key, RecordKey::Text(text)) => Read::Score(Index::FinishedKey, Member::Text(text.clone())),
                _ => Read::Score(Index::Expires, Member::Record(*table, key.clone())),
            };
            [Read::Record(*table, key.clone()), end]
        });
        let reads: Vec<_> = reads.collect();
        let mut found = self.read(&reads).await?;
        for (table, key) in names {
            let (record, end) = (found.record(), found.score());
            let what = shown(table, &key);
            let Some(record) = record else {
                if by_end && end.is_some() {
                    let end = if table == Table::Key { "end" } else { "expiry" };
                    self.found(Check::Indexes, format!("an {end} leads to {what}, which is not there"));
                }
                continue;
            };
            let owner = readable(self.queue, &format!("the record of {what}"), owner(table, &key, &record))?;
            let at = || records::read_key(&record).ok().map(|key| key.at.millis());
            // By its end a record is only looked for: the pass over its table finds what is wrong with it.
            match owner {
                // An id that ends while its job is there.
                Some(Some(number)) if by_end && table == Table::Id && self.numbers.binary_search(&number).is_ok() => {
                    self.suspects.entry(number).or_default().extend([end_of(&key), Item::Record(table, key)]);
                }
                _ if by_end => {}
                None => self.found(Check::Checksums, format!("the record of {what} is not what was written")),
                Some(_) if table == Table::Key && end != at() => {
                    self.found(Check::Indexes, format!("{what} would not be freed at its time"));
                }
                Some(None) if end.is_none() => self.found(Check::Indexes, format!("{what} would never be removed")),
                Some(_) => {}
            }
        }
        Ok(())
    }

    // ---- the queue itself ----

    pub(super) async fn queue_records(&mut self) -> Result<()> {
        let of_group = |table, group| Read::Record(table, RecordKey::Group(group));
        let reads = [
            Read::Record(Table::Queue, RecordKey::Only),
            of_group(Table::Breaker, NO_GROUP),
            of_group(Table::Outcomes, NO_GROUP),
            of_group(Table::Version, WHOLE_QUEUE),
            of_group(Table::Version, NO_GROUP),
        ];
        let mut found = self.read(&reads).await?;
        let (queue, breaker, outcomes) = (found.record(), found.record(), found.record());
        let versions = [found.record(), found.record()];
        let queue = self.of_queue("its pause and dead-letter state", queue, records::read_queue)?;
        let breaker = self.of_queue("its breaker", breaker, records::read_breaker)?;
        self.of_queue("what its breaker has counted", outcomes, records::read_outcomes)?;
        for _ in versions.iter().flatten().filter(|version| version.len() != Version::LENGTH) {
            self.found(Check::Checksums, "one of its versions is not what was written");
        }
        let [whole, version] = versions.map(|version| Version::read(version.as_deref()));
        let paused = queue.map(|queue| queue.is_some_and(|queue| queue.pause.is_some()));
        if paused.is_some_and(|paused| paused != (whole.state == GroupState::Held)) {
            self.found(Check::Indexes, "whether it is paused is said twice, differently");
        }
        let current = breaker.map(|breaker| breaker.as_ref().map_or(0, |breaker| epoch(NO_GROUP, breaker)));
        if current.is_some_and(|epoch| epoch != version.epoch) {
            self.found(Check::Indexes, "the transitions of its breaker are said twice, differently");
        }
        self.breaker_keys().await
    }

    /// Each breaker key has a group, with a breaker that names it and a version of its own.
    async fn breaker_keys(&mut self) -> Result<()> {
        let mut pages = Pages::new(PAGE, u64::from(GROUPS_MAX));
        let mut taken = BTreeSet::new();
        while let Some(page) = self.records(Table::Group, &mut pages).await? {
            for (key, record) in page {
                let RecordKey::Text(text) = &key else { continue };
                let what = format!("the breaker key {text:?}");
                let group =
                    self.of_queue(&format!("the record of {what}"), Some(record.clone()), records::read_group)?;
                let Some(Some(group)) = group else { continue };
                let of_group = |table| Read::Record(table, RecordKey::Group(group.group));
                let again = Read::Record(Table::Group, key.clone());
                let mut found = self.read(&[again, of_group(Table::Breaker), of_group(Table::Version)]).await?;
                // It may have been forgotten meanwhile.
                if found.record().as_ref() != Some(&record) {
                    continue;
                }
                if !taken.insert(group.group) {
                    self.found(Check::Indexes, format!("{what} has the number of another"));
                }
                let breaker =
                    self.of_queue(&format!("the breaker of {what}"), found.record(), records::read_breaker)?;
                let version = Version::read(found.record().as_deref());
                let Some(breaker) = breaker else { continue };
                if breaker.as_ref().is_none_or(|breaker| *breaker.key != **text) {
                    self.found(Check::Indexes, format!("the breaker of {what} is not there, or that of another"));
                } else if breaker.is_some_and(|breaker| epoch(group.group, &breaker) != version.epoch) {
                    self.found(
                        Check::Indexes,
                        format!("the transitions of the breaker of {what} are said twice, differently"),
                    );
                }
            }
        }
        Ok(())
    }

    /// Positions of groups that no breaker key has: nothing holds their jobs back, and nothing lets them out.
    async fn groups_without_key(&mut self, groups: BTreeSet<u16>) -> Result<()> {
        let keys = breaker_keys::groups(self.store, self.queue).await?;
        let known: BTreeSet<u16> = keys.into_iter().map(|(_, group)| group).collect();
        for group in groups.difference(&known) {
            let what = format!("jobs wait under the number {group}, which is that of no breaker key");
            self.found(Check::Indexes, what);
        }
        Ok(())
    }

    /// None inside: there is none. None: it is damaged, which is a finding.
    fn of_queue<T>(
        &mut self, what: &str, record: Option<Bytes>, read: impl Fn(&[u8]) -> ReadBytes<T>,
    ) -> Result<Option<Option<T>>> {
        let Some(record) = record else { return Ok(Some(None)) };
        let value = readable(self.queue, what, read(&record))?;
        if value.is_none() {
            self.found(Check::Checksums, format!("{what} is not what was written"));
        }
        Ok(value.map(Some))
    }
}
