//! Breaker keys: what jobs depend on. Each key of a queue has a group, the number under which its jobs wait, and a breaker of its
//! own. The first job or failure that names a key makes its group; one that has been closed and without jobs for an hour is
//! forgotten, and its number is given to another.

use super::answers::{Answers, ask, ask_if_there, by_name, scan};
use super::context::CallContext;
use super::encoding::Unknown;
use super::facts::{QueueFacts, Rounds};
use super::records::{self, GroupRecord, read_if};
use super::state_changes::Changes;
use crate::domain::{Breaker, JobId, Measured, QueueName, Timestamp};
use crate::store::Result;
use crate::store::storage::{
    Applied, Entry, Fence, Found, GROUPS_MAX, GroupState, Index, Len, Member, NO_GROUP, Position, Read, Reads,
    RecordKey, Storage, Table, Version, Write, epoch_of,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A group that has been closed and without jobs for so long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// Jobs for later that are looked through for those of idle groups. Where there are more, groups are kept.
const LOOKED_THROUGH_MAX: u64 = 10_000;
const PAGE: usize = 1_000;
/// Far more than a load after an outage is compared with.
const LEASES_COUNTED_MAX: usize = 10_000;

/// The groups of some keys of a queue. Those that no longer fit, as there are too many, are in none.
#[derive(Debug, Default)]
pub(crate) struct KeyGroups {
    by_key: BTreeMap<Box<str>, (GroupRecord, Bytes)>,
}

impl KeyGroups {
    /// Makes those that are not there. None: there is no such queue.
    pub(crate) async fn of<S: Storage>(
        store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, keys: impl Iterator<Item = &str>,
    ) -> Result<Option<Self>> {
        let keys: BTreeSet<&str> = keys.filter(|key| !key.is_empty()).collect();
        if keys.is_empty() {
            return Ok(Some(Self::default()));
        }
        let mut rounds = Rounds::default();
        loop {
            let Some(found) = Self::read(store, queue, &keys).await? else { return Ok(None) };
            let missing: Vec<_> = keys.iter().filter(|key| !found.by_key.contains_key(**key)).copied().collect();
            if missing.is_empty() || !make(store, cx, queue, &missing).await? {
                return Ok(Some(found));
            }
            rounds.next()?;
        }
    }

    /// Those that are there.
    async fn read<S: Reads>(store: &mut S, queue: &QueueName, keys: &BTreeSet<&str>) -> Result<Option<Self>> {
        let reads: Vec<_> = keys.iter().map(|key| by_name(Table::Group, *key)).collect();
        let Some(mut found) = ask_if_there(store, queue, &reads).await? else { return Ok(None) };
        let mut groups = Self::default();
        for key in keys {
            let record = found.record();
            if let Some(group) = read_if(record.as_ref(), records::read_group)?.zip(record) {
                groups.by_key.insert((*key).into(), group);
            }
        }
        Ok(Some(groups))
    }

    /// Where the jobs of a key wait.
    pub(crate) fn group(&self, key: Option<&str>) -> u16 {
        key.and_then(|key| self.by_key.get(key)).map_or(NO_GROUP, |(record, _)| record.group)
    }

    /// A batch that puts jobs of these keys into their groups: they are as they were read, and not idle from now on.
    pub(crate) fn enter<'k>(&self, keys: impl Iterator<Item = &'k str>, changes: &mut Changes) {
        for key in keys.collect::<BTreeSet<_>>() {
            let Some((record, bytes)) = self.by_key.get(key) else { continue };
            let name = RecordKey::Text(key.into());
            changes.fence(Fence::Is(Table::Group, name.clone(), bytes.clone()));
            if record.idle_since.is_some() {
                changes.put(Table::Group, name, records::group(&GroupRecord { idle_since: None, ..*record }));
            }
        }
    }
}

/// Makes the groups of these keys. False: there is no room for any.
async fn make<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, keys: &[&str]) -> Result<bool> {
    let length = Read::Len(Len::Table(Table::Group));
    if ask(store, queue, &[length]).await?.number() >= u64::from(GROUPS_MAX) {
        return Ok(false);
    }
    let used: BTreeSet<u16> = all(store, queue).await?.into_iter().map(|(_, record, _)| record.group).collect();
    // From anywhere: calls that make groups at the same time do not all want the same number.
    let first = (cx.rng.next_u64() % u64::from(GROUPS_MAX)) as u16 + 1;
    let numbers = (first..=GROUPS_MAX).chain(1..first);
    let free: Vec<_> = numbers.filter(|group| !used.contains(group)).take(keys.len()).collect();
    if free.is_empty() {
        return Ok(false);
    }
    let mut changes = Changes::default();
    for (group, key) in free.into_iter().zip(keys) {
        let (name, number) = (RecordKey::Text((*key).into()), RecordKey::Group(group));
        changes.fence(Fence::Absent(Table::Group, name.clone()));
        changes.fence(Fence::Absent(Table::Breaker, number.clone()));
        // Nothing is left of a key that had the number before; and a full Redis refuses no batch that begins with a removal.
        changes.delete(Table::Outcomes, number.clone());
        changes.write(Write::ForgetSums(epoch_of(group, 0)));
        changes.put(Table::Group, name, records::group(&GroupRecord { group, idle_since: None }));
        let breaker = Breaker { key: (*key).to_owned(), ..Breaker::default() };
        let version = cx.new_version(queue, group, &breaker);
        changes.put(Table::Breaker, number.clone(), records::breaker(&breaker, &Unknown::default()));
        changes.put(Table::Version, number, Bytes::copy_from_slice(&version.bytes()));
    }
    store.apply(queue, &changes.batch()).await?;
    // What remembers that the queue has none knows less than there is. Where another call was first, its groups are read.
    cx.memory.forget_facts(queue);
    Ok(true)
}

/// Every key that has a group, with its record.
async fn all<S: Reads>(store: &mut S, queue: &QueueName) -> Result<Vec<(Box<str>, GroupRecord, Bytes)>> {
    let mut groups = Vec::new();
    scan(store, queue, Table::Group, |key, bytes| {
        let record = read_if(Some(&bytes), records::read_group)?;
        if let (RecordKey::Text(key), Some(record)) = (key, record) {
            groups.push((key, record, bytes));
        }
        Ok(())
    })
    .await?;
    Ok(groups)
}

/// The same by key, with the number alone.
pub(crate) async fn groups<S: Reads>(store: &mut S, queue: &QueueName) -> Result<Vec<(Box<str>, u16)>> {
    Ok(all(store, queue).await?.into_iter().map(|(key, record, _)| (key, record.group)).collect())
}

/// The group of a key; none: it has none.
pub(crate) async fn find<S: Reads>(store: &mut S, queue: &QueueName, key: &str) -> Result<Option<u16>> {
    let record = ask(store, queue, &[by_name(Table::Group, key)]).await?.parse(records::read_group)?;
    Ok(record.map(|record| record.group))
}

/// The groups that are not free, remembered: those whose jobs leave under a rule, or not at all.
pub(crate) async fn read_anew<S: Reads>(
    store: &mut S, cx: &CallContext<'_>, queue: &QueueName,
) -> Result<Vec<Arc<QueueFacts>>> {
    let now = store.now();
    let groups: Vec<u16> = all(store, queue).await?.into_iter().map(|(_, record, _)| record.group).collect();
    let version = |group: &u16| Read::Record(Table::Version, RecordKey::Group(*group));
    let mut found = ask(store, queue, &groups.iter().map(version).collect::<Vec<_>>()).await?;
    let known = cx.memory.keys(queue).unwrap_or_default();
    let mut keys = Vec::new();
    for group in groups {
        let version = Version::read(found.record().as_deref());
        if version.state == GroupState::Free {
            continue;
        }
        match known.iter().find(|facts| facts.group == group && facts.version == version) {
            Some(facts) => keys.push(facts.clone()),
            None => keys.extend(QueueFacts::read_group(store, queue, group).await?.map(Arc::new)),
        }
    }
    cx.memory.remember_keys(queue, keys.clone(), now);
    Ok(keys)
}

/// As they are remembered, or else as the store has them.
pub(crate) async fn remembered<S: Reads>(
    store: &mut S, cx: &CallContext<'_>, queue: &QueueName,
) -> Result<Vec<Arc<QueueFacts>>> {
    match cx.memory.keys(queue) {
        Some(keys) => Ok(keys),
        None => read_anew(store, cx, queue).await,
    }
}

// ---- idle groups ----

/// Notes which groups have no jobs, and forgets those that have had none for an hour. While a group is noted as idle, whatever
/// puts a job into it takes the note back, so that one that is still noted after all indexes were looked through has none.
pub(crate) async fn forget_idle<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName) -> Result<()> {
    let now = store.now();
    let lengths = [Index::Scheduled, Index::Retrying].map(|index| Read::Len(Len::Index(index)));
    let later: u64 = ask(store, queue, &lengths).await?.map(|found| found.number()).sum();
    let groups = all(store, queue).await?;
    let mut over = Vec::new();
    for (key, record, bytes) in groups {
        let Some(facts) = QueueFacts::read_group(store, queue, record.group).await? else { return Ok(()) };
        let in_use = has_jobs(store, queue, record.group).await? || !facts.breaker.is_at_rest() || {
            let sums = ask(store, queue, &[Read::Sums(facts.version.epoch)]).await?.sums();
            sums.1.is_some_and(|last| now.since(last) < FORGOTTEN_AFTER)
        };
        match record.idle_since {
            None if !in_use => {
                let mut changes = Changes::default();
                let name = RecordKey::Text(key);
                changes.fence(Fence::Is(Table::Group, name.clone(), bytes));
                let idle = GroupRecord { idle_since: Some(now), ..record };
                changes.put(Table::Group, name, records::group(&idle));
                store.apply(queue, &changes.batch()).await?;
            }
            Some(since) if !in_use && now.since(since) >= FORGOTTEN_AFTER => {
                over.push((key, record.group, bytes, facts))
            }
            _ => {}
        }
    }
    if over.is_empty() || later > LOOKED_THROUGH_MAX {
        return Ok(());
    }
    let mut waiting = BTreeSet::new();
    // In the order in which jobs go on.
    for index in [Index::Scheduled, Index::Retrying] {
        let mut after = None;
        loop {
            let page = Read::Range { index, after, up_to: None, limit: PAGE, reverse: false };
            let entries = ask(store, queue, &[page]).await?.entries();
            waiting.extend(entries.iter().filter_map(|entry| match &entry.member {
                Member::Position(position) => Some(position.group),
                _ => None,
            }));
            after = entries.last().cloned();
            if entries.len() < PAGE {
                break;
            }
        }
    }
    for (key, group, bytes, facts) in over {
        if waiting.contains(&group) || has_jobs(store, queue, group).await? {
            continue;
        }
        let number = RecordKey::Group(group);
        let mut changes = Changes::default();
        changes.fence(Fence::Is(Table::Group, RecordKey::Text(key.clone()), bytes));
        changes.fence(facts.version.fence(group));
        changes.delete(Table::Group, RecordKey::Text(key));
        for table in [Table::Breaker, Table::Version, Table::Outcomes] {
            changes.delete(table, number.clone());
        }
        changes.write(Write::ForgetSums(facts.version.epoch));
        store.apply(queue, &changes.batch()).await?;
        cx.memory.forget_facts(queue);
    }
    Ok(())
}

/// How many jobs of a group are ready.
pub(crate) fn ready_in(group: u16) -> Read {
    if group == NO_GROUP {
        return Read::Len(Len::Index(Index::Ready));
    }
    let last =
        Position { rank: u8::MAX, ready_at: records::LAST_TIME, number: JobId::NUMBER_MAX, ..first_of_group(group) };
    Read::Ahead(last, usize::MAX)
}

/// The leases of a group, to be counted by [`leased_found`].
pub(crate) fn leased_in(group: u16) -> Read {
    if group == NO_GROUP {
        return Read::Len(Len::Index(Index::Leased));
    }
    let (after, up_to) = (Some(Entry::number(u64::from(group), 0)), Some(u64::from(group)));
    Read::Range { index: Index::LeasedByGroup, after, up_to, limit: LEASES_COUNTED_MAX, reverse: false }
}

pub(crate) fn leased_found(found: &mut Answers) -> u64 {
    match found.next() {
        Some(Found::Entries(entries)) => entries.len() as u64,
        found => found.map_or(0, |found| found.number()),
    }
}

/// The same with the tokens of its meter, which is found next.
pub(crate) fn measured(leased: u64, found: &mut Answers) -> Measured {
    let Some(meter) = found.meter() else { return Measured { leased, ..Measured::default() } };
    Measured { leased, tokens: Some(meter.tokens), ramp_tokens: Some(meter.ramp_tokens), at: meter.at }
}

/// The first ready job of a group, or of one behind it.
pub(crate) fn first_ready_in(group: u16) -> Read {
    let after = Some(Entry::ready(first_of_group(group)));
    Read::Range { index: Index::Keyed, after, up_to: None, limit: 1, reverse: false }
}

/// Before all positions of a group.
fn first_of_group(group: u16) -> Position {
    records::position(group, 0, 0, Timestamp::default(), false)
}

/// Ready or leased ones.
async fn has_jobs<S: Reads>(store: &mut S, queue: &QueueName, group: u16) -> Result<bool> {
    let mut found = ask(store, queue, &[first_ready_in(group), leased_in(group)]).await?;
    let ready = found.entries().first().is_some_and(|entry| match &entry.member {
        Member::Position(position) => position.group == group,
        _ => false,
    });
    Ok(ready || leased_found(&mut found) > 0)
}

/// Versions say whether the jobs of a key leave under limits, which other settings may have changed.
pub(crate) async fn fit_versions<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName) -> Result<()> {
    for (_, group) in groups(store, queue).await? {
        let Some(facts) = QueueFacts::read_group(store, queue, group).await? else { return Ok(()) };
        let version = cx.new_version(queue, group, &facts.breaker);
        if version.state == facts.version.state {
            continue;
        }
        let mut changes = Changes::default();
        changes.fence(facts.version.fence(group));
        changes.put(Table::Version, RecordKey::Group(group), Bytes::copy_from_slice(&version.bytes()));
        // Where another call was first, its version fits.
        if let Applied::Done(_) = store.apply(queue, &changes.batch()).await? {
            cx.memory.remember(queue, Arc::new(QueueFacts { version, ..facts }));
        }
    }
    Ok(())
}
