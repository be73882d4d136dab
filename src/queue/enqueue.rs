//! Enqueue: one batch for the jobs of a queue, without a read. Ids and keys that are taken are found by its fences.

use super::{
    context::{CallContext, after_some, overtaken},
    encoding::Unknown,
    facts::QueueFacts,
    find::{self, Located},
    records::{self, IdRecord, JobRecord, KeyRecord},
    state_changes::{Changes, Total},
};
use crate::{
    domain::{
        ids::{JobId, QueueName},
        job::{NewJob, Sameness, Spec, State},
        time::Timestamp,
    },
    store::{
        Enqueued, Refused, StoreError,
        storage::{
            Applied, Batch, Done, Fence, Found, Index, Len, Read, RecordKey, Storage, Table, Was,
            flag,
        },
    },
};
use bytes::Bytes;
use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

/// Jobs and bytes of one batch: while an engine applies it, it does nothing else.
const BATCH_JOBS: usize = 500;
const BATCH_BYTES: usize = 1 << 20;
/// So often as one batch; from then on one batch for each job.
const JOINT_ROUNDS: usize = 2;
/// How often others may overtake one job before the call gives up.
const ROUNDS_MAX: usize = 50;

/// What does not count against the depth limit.
const NOT_IN_DEPTH: [Len; 3] =
    [Len::Index(Index::Dead), Len::Index(Index::Overflow), Len::Index(Index::Completed)];

type Answer = Result<Enqueued, Refused>;

/// A job on its way in. Made before a call is handed to the writer, which has other things to do than hashing bodies.
#[derive(Clone, Debug)]
pub struct Incoming {
    job: NewJob,
    /// Where it has an own id or a key.
    sameness: Option<Sameness>,
}

impl Incoming {
    pub fn new(job: NewJob) -> Self {
        let named = job.id.is_some() || job.key.is_some();
        let sameness = named.then(|| job.sameness());
        Self { job, sameness }
    }

    /// About what it takes of memory and disk.
    pub fn bytes(&self) -> usize {
        self.job.bytes()
    }
}

/// Adds jobs; each is added or refused by itself. Answers are in the order of the jobs.
pub(crate) async fn enqueue<S: Storage>(
    store: &mut S,
    cx: &mut CallContext<'_>,
    jobs: Vec<Incoming>,
) -> Result<Vec<Answer>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    // Numbers follow the order of the call, whatever the queue: so do the ids that are made of them.
    let numbers = store.numbers(jobs.len() as u64).await?;
    let now = store.now();
    let groups = by_queue(&jobs);
    let mut answers: Vec<Option<Answer>> = Vec::new();
    answers.resize_with(jobs.len(), || None);
    let mut jobs: Vec<Option<Incoming>> = jobs.into_iter().map(Some).collect();
    let mut begun = false;
    for (queue, places) in groups {
        let limit = cx.settings.queue(&queue).max_depth;
        let mut adding = Adding { store, cx, queue, limit, now, answers: &mut answers, begun };
        let mut chunk = Chunk::default();
        for at in places {
            let Some(incoming) = jobs[at].take() else { continue };
            if chunk.is_full(&incoming) {
                adding.add_chunk(std::mem::take(&mut chunk)).await?;
            }
            let number = numbers.start + at as u64;
            chunk.push(Item::new(at, number, incoming, now, adding.cx), &numbers);
        }
        adding.add_chunk(chunk).await?;
        begun = adding.begun;
    }
    answers.into_iter().map(|answer| answer.ok_or_else(overtaken)).collect()
}

/// The places of each queue's jobs, in the order in which the queues first come up.
fn by_queue(jobs: &[Incoming]) -> Vec<(QueueName, Vec<usize>)> {
    let mut groups: Vec<(QueueName, Vec<usize>)> = Vec::new();
    let mut known: HashMap<QueueName, usize> = HashMap::new();
    let mut last = 0;
    for (at, Incoming { job, .. }) in jobs.iter().enumerate() {
        if groups.get(last).is_none_or(|(queue, _)| *queue != job.queue) {
            last = *known.entry(job.queue.clone()).or_insert(groups.len());
            if last == groups.len() {
                groups.push((job.queue.clone(), Vec::with_capacity(jobs.len() - at)));
            }
        }
        groups[last].1.push(at);
    }
    groups
}

// ---- one job ----

/// A job as it is to be written.
struct Item {
    /// Its place in the call.
    at: usize,
    number: u64,
    spec: Spec,
    state: State,
    bytes: usize,
    /// The id is the caller's own.
    own_id: bool,
    sameness: Option<Sameness>,
    record: JobRecord,
    /// Its key belonged to a job that is done and whose time is over: this is the record of the key.
    finished_key: Option<(Bytes, Timestamp)>,
    /// Its own id holds the number of another job, which has another id.
    number_in_id_is_another: bool,
}

impl Item {
    fn new(
        at: usize,
        number: u64,
        incoming: Incoming,
        now: Timestamp,
        cx: &mut CallContext<'_>,
    ) -> Self {
        let bytes = incoming.bytes();
        let Incoming { mut job, sameness } = incoming;
        let own_id = job.id.take();
        let is_own = own_id.is_some();
        let id = own_id.unwrap_or_else(|| JobId::make(now, number, cx.rng.roll()));
        let (spec, state) = job.admit(now, id);
        let record = records::job(&spec, number, sameness.as_ref(), &Unknown::default());
        Self {
            at,
            number,
            spec,
            state,
            bytes,
            own_id: is_own,
            sameness,
            record,
            finished_key: None,
            number_in_id_is_another: false,
        }
    }

    /// Another job has its number.
    fn renumber(&mut self, number: u64, now: Timestamp, cx: &mut CallContext<'_>) {
        self.number = number;
        if !self.own_id {
            self.spec.id = JobId::make(now, number, cx.rng.roll());
        }
        let sameness = self.sameness.as_ref();
        self.record = records::job(&self.spec, number, sameness, &Unknown::default());
    }

    /// The job that its own id would name if a server had made it.
    fn number_in_id(&self) -> Option<u64> {
        let number =
            self.spec.id.number().filter(|_| self.own_id && !self.number_in_id_is_another)?;
        (number != self.number).then_some(number)
    }

    fn added(&self) -> Answer {
        let (id, run_at) = (self.spec.id.clone(), Some(self.spec.run_at));
        Ok(Enqueued { id, deduplicated: false, state: self.state, run_at })
    }

    /// Its fences and writes. The first of each are those of the job.
    fn write(&self, changes: &mut Changes, now: Timestamp) {
        let key = || RecordKey::Number(self.number);
        changes.fence(Fence::Absent(Table::Job, key()));
        changes.put(Table::Job, key(), self.record.record.clone());
        if let Some(body) = &self.record.body {
            changes.put(Table::Body, key(), body.clone());
        }
        let rank = records::rank(self.spec.priority);
        let position = records::position(self.number, rank, self.spec.run_at, false);
        changes.enter(position, self.spec.expires_at, now);
        if let Some(sameness) = self.sameness {
            self.write_names(changes, sameness);
        }
    }

    fn write_names(&self, changes: &mut Changes, sameness: Sameness) {
        let number = self.number;
        if self.own_id {
            let id = RecordKey::Text(self.spec.id.to_string().into());
            // An id that holds the number of its own job needs no record: it is found by that.
            if self.record.traits & flag::OWN_ID != 0 {
                let record = records::id(&IdRecord { number, sameness });
                changes.put(Table::Id, id.clone(), record);
            }
            changes.fence(Fence::Absent(Table::Id, id));
        }
        if let Some(number) = self.number_in_id() {
            changes.fence(Fence::Absent(Table::Job, RecordKey::Number(number)));
        }
        if let Some(key) = &self.spec.key {
            let name = RecordKey::Text(key.as_str().into());
            let id = self.spec.id.clone();
            let record = records::key(&KeyRecord { number, free_at: None, sameness, id });
            match &self.finished_key {
                Some((found, free_at)) => changes.take_finished_key(key, found, *free_at),
                None => changes.fence(Fence::Absent(Table::Key, name.clone())),
            }
            changes.put(Table::Key, name, record);
        }
    }
}

// ---- the jobs of one batch ----

/// Fences look before any write: no id, key or number is fenced twice in a batch.
#[derive(Default)]
struct Chunk {
    items: Vec<Item>,
    bytes: usize,
    /// Own ids and keys, and the items that have them.
    ids: HashMap<JobId, usize>,
    keys: HashMap<Box<str>, usize>,
    /// Numbers in own ids.
    numbers: HashSet<u64>,
    /// The same job as another one of the batch: its place in the call, and that of the other.
    again: Vec<(usize, usize)>,
    /// Those that share an id or key with another one of the batch and are not the same job: each is a batch of its own.
    apart: Vec<Item>,
}

impl Chunk {
    fn is_full(&self, next: &Incoming) -> bool {
        let bytes = self.bytes + next.bytes();
        self.items.len() >= BATCH_JOBS || !self.items.is_empty() && bytes > BATCH_BYTES
    }

    /// `call`: the numbers of all jobs of the call.
    fn push(&mut self, item: Item, call: &Range<u64>) {
        if item.sameness.is_some() {
            if let Some(other) = self.same_as(&item) {
                return self.again.push((item.at, other));
            }
            if !self.is_alone(&item, call) {
                return self.apart.push(item);
            }
            let at = self.items.len();
            if item.own_id {
                self.ids.insert(item.spec.id.clone(), at);
            }
            self.keys.extend(item.spec.key.as_deref().map(|key| (key.into(), at)));
            self.numbers.extend(item.number_in_id());
        }
        self.bytes += item.bytes;
        self.items.push(item);
    }

    /// The items that have its id, and its key.
    fn named_as(&self, item: &Item) -> [Option<usize>; 2] {
        let id = item.own_id.then(|| self.ids.get(&item.spec.id)).flatten();
        let key = item.spec.key.as_deref().and_then(|key| self.keys.get(key));
        [id.copied(), key.copied()]
    }

    /// The place of the item that is the same job under the same id and key.
    fn same_as(&self, item: &Item) -> Option<usize> {
        let [by_id, by_key] = self.named_as(item);
        let other = &self.items[by_id.or(by_key)?];
        let ids = other.own_id == item.own_id && (!item.own_id || other.spec.id == item.spec.id);
        let same = ids && other.spec.key == item.spec.key && other.sameness == item.sameness;
        same.then_some(other.at)
    }

    /// Shares nothing with another item that a fence looks at.
    fn is_alone(&self, item: &Item, call: &Range<u64>) -> bool {
        let is_fenced = |number| call.contains(&number) || self.numbers.contains(&number);
        self.named_as(item) == [None, None] && !item.number_in_id().is_some_and(is_fenced)
    }
}

// ---- the jobs of one queue ----

struct Adding<'c, 'a, S> {
    store: &'c mut S,
    cx: &'c mut CallContext<'a>,
    queue: QueueName,
    limit: Option<u64>,
    now: Timestamp,
    answers: &'c mut [Option<Answer>],
    /// A batch of this call was applied.
    begun: bool,
}

impl<S: Storage> Adding<'_, '_, S> {
    async fn add_chunk(&mut self, chunk: Chunk) -> Result<(), StoreError> {
        let Chunk { items, again, apart, .. } = chunk;
        if let Err(error) = self.add_all(items, apart).await {
            return Err(after_some(error, self.begun));
        }
        for (at, other) in again {
            let answer = self.answers[other].clone();
            self.answers[at] =
                answer.map(|it| it.map(|first| Enqueued { deduplicated: true, ..first }));
        }
        Ok(())
    }

    async fn add_all(&mut self, items: Vec<Item>, apart: Vec<Item>) -> Result<(), StoreError> {
        let left = self.add(items, JOINT_ROUNDS).await?;
        for item in left.into_iter().chain(apart) {
            let left = self.add(vec![item], ROUNDS_MAX).await?;
            if !left.is_empty() {
                return Err(overtaken());
            }
        }
        Ok(())
    }

    /// Adds them in one batch. Those that are not answered after so many rounds come back.
    async fn add(&mut self, mut items: Vec<Item>, rounds: usize) -> Result<Vec<Item>, StoreError> {
        for _ in 0..rounds {
            if items.is_empty() {
                break;
            }
            let (changes, fences) = self.changes(&items);
            let made_ready = changes.made_ready;
            let batch = changes.batch();
            match self.store.apply(&self.queue, &batch).await? {
                Applied::Done(done) => {
                    self.begun = true;
                    self.tell(&items, &done, made_ready).await?;
                    for item in items {
                        self.answers[item.at] = Some(item.added());
                    }
                    return Ok(Vec::new());
                }
                Applied::Changed(failed) => {
                    items = self.resolve(items, &batch, &fences, failed).await?;
                }
                Applied::NoQueue => {
                    self.cx.memory.forget(&self.queue);
                    let limit = self.cx.limits.queues;
                    if !self.store.register(&self.queue, limit).await? {
                        for item in items {
                            self.answers[item.at] = Some(Err(Refused::TooManyQueues { limit }));
                        }
                        return Ok(Vec::new());
                    }
                }
            }
        }
        Ok(items)
    }

    /// And where the fences of each item begin.
    fn changes(&self, items: &[Item]) -> (Changes, Vec<usize>) {
        let mut changes = Changes::with_capacity(items.len() + 1, 2 * items.len() + 1);
        let mut fences = Vec::with_capacity(items.len());
        for item in items {
            fences.push(changes.fences());
            item.write(&mut changes, self.now);
        }
        if let Some(limit) = self.limit {
            let (of, minus) = (Len::Table(Table::Job), &NOT_IN_DEPTH[..]);
            changes.fence(Fence::Room { of, minus, add: items.len() as u64, limit });
        }
        changes.add(Total::Enqueued, items.len() as u64);
        (changes, fences)
    }

    async fn tell(
        &mut self,
        items: &[Item],
        done: &Done,
        made_ready: bool,
    ) -> Result<(), StoreError> {
        if made_ready
            && let Some(facts) = QueueFacts::remembered(self.store, &self.queue, self.cx).await?
        {
            self.cx.available(&self.queue, &facts, done.ready, self.now);
        }
        let scheduled = items.iter().filter(|item| item.state == State::Scheduled);
        if let Some(at) = scheduled.map(|item| item.spec.run_at).min() {
            self.cx.job_due(&self.queue, at);
        }
        if let Some(at) = items.iter().filter_map(|item| item.spec.expires_at).min() {
            self.cx.due(&self.queue, at);
        }
        Ok(())
    }

    // ---- what the fences found ----

    /// Answers those that are there already or find no room; the others come back.
    async fn resolve(
        &mut self,
        items: Vec<Item>,
        batch: &Batch,
        fences: &[usize],
        failed: Vec<(usize, Was)>,
    ) -> Result<Vec<Item>, StoreError> {
        let mut depth = None;
        let mut found: HashMap<usize, Taken> = HashMap::new();
        for (fence, was) in failed {
            let of = fences.partition_point(|first| *first <= fence).saturating_sub(1);
            match (&batch.fences[fence], was) {
                (Fence::Room { .. }, Was::Len(len)) => depth = Some(len),
                (Fence::Absent(Table::Job, _), Was::Record(record)) if fence == fences[of] => {
                    found.entry(of).or_default().job = record;
                }
                (Fence::Absent(Table::Job, _), Was::Record(record)) => {
                    found.entry(of).or_default().number_in_id = record;
                }
                (Fence::Absent(Table::Id, _), Was::Record(record)) => {
                    found.entry(of).or_default().id = record;
                }
                (_, Was::Record(record)) => found.entry(of).or_default().key = Some(record),
                _ => {}
            }
        }
        let (mut left, mut earlier) = (Vec::with_capacity(items.len()), Vec::new());
        for (at, mut item) in items.into_iter().enumerate() {
            let Some(taken) = found.remove(&at) else {
                left.push(item);
                continue;
            };
            match self.decide(&mut item, taken).await? {
                Decision::Answer(answer) => self.answers[item.at] = Some(answer),
                Decision::Earlier(other) => earlier.push((item.at, other)),
                Decision::TryAgain => left.push(item),
            }
        }
        self.answer_earlier(earlier).await?;
        if let (Some(depth), Some(limit)) = (depth, self.limit) {
            let room = usize::try_from(limit.saturating_sub(depth)).unwrap_or(usize::MAX);
            for item in left.drain(room.min(left.len())..) {
                self.answers[item.at] = Some(Err(Refused::QueueFull { limit }));
            }
        }
        Ok(left)
    }

    /// What follows for one job from what is there already.
    async fn decide(&mut self, item: &mut Item, taken: Taken) -> Result<Decision, StoreError> {
        if taken.job.as_ref() == Some(&item.record.record) {
            // The batch was applied before, and its answer was lost.
            return Ok(Decision::Answer(item.added()));
        }
        let Some(sameness) = item.sameness else { return self.number_taken(item, &taken).await };
        let by_id = match &taken.id {
            Some(record) => Some(earlier_by_id(item, record, &sameness)?),
            None => self.earlier_by_number(item, &taken, &sameness).await?,
        };
        let by_key = match &taken.key {
            Some(record) => earlier_by_key(item, record.as_ref(), &sameness, self.now)?,
            None => None,
        };
        match earlier(item, by_id, by_key) {
            Ok(Some(earlier)) => Ok(Decision::Earlier(earlier)),
            Ok(None) => self.number_taken(item, &taken).await,
            Err(refused) => Ok(Decision::Answer(Err(refused))),
        }
    }

    async fn number_taken(
        &mut self,
        item: &mut Item,
        taken: &Taken,
    ) -> Result<Decision, StoreError> {
        if taken.job.is_some() {
            let number = self.store.numbers(1).await?.start;
            item.renumber(number, self.now, self.cx);
        }
        Ok(Decision::TryAgain)
    }

    /// A job whose id holds its own number has no record in `Id`.
    async fn earlier_by_number(
        &mut self,
        item: &mut Item,
        taken: &Taken,
        sameness: &Sameness,
    ) -> Result<Option<Earlier>, StoreError> {
        let Some(number) = item.spec.id.number().filter(|_| item.own_id) else { return Ok(None) };
        let found = if number == item.number { &taken.job } else { &taken.number_in_id };
        let Some(found) = found else { return Ok(None) };
        if !find::has_id(found, &item.spec.id)? {
            item.number_in_id_is_another = number != item.number;
            return Ok(None);
        }
        let same = self.sameness_of(number, found).await?.as_ref() == Some(sameness);
        Ok(Some(Earlier { number, id: item.spec.id.clone(), same, finished: false }))
    }

    async fn sameness_of(
        &mut self,
        number: u64,
        job: &Bytes,
    ) -> Result<Option<Sameness>, StoreError> {
        let body = match records::traits(job) & flag::BODY {
            0 => None,
            _ => {
                let read = Read::Record(Table::Body, RecordKey::Number(number));
                let found = self.store.read(&self.queue, &[read]).await?.unwrap_or_default();
                found.into_iter().next().and_then(Found::record)
            }
        };
        let spec = records::readable(records::read_job_unchecked(job, body.as_ref()))?;
        Ok(spec.map(|spec| spec.sameness()))
    }

    /// The answers of those that are there already: `(place in the call, the earlier job)`.
    async fn answer_earlier(&mut self, earlier: Vec<(usize, Earlier)>) -> Result<(), StoreError> {
        if earlier.is_empty() {
            return Ok(());
        }
        let numbers: Vec<_> = earlier
            .iter()
            .filter(|(_, earlier)| !earlier.finished)
            .map(|(_, earlier)| earlier.number)
            .collect();
        let located = find::locate_all(self.store, &self.queue, &numbers).await?;
        let mut located = located.into_iter();
        for (at, earlier) in earlier {
            let located = if earlier.finished { None } else { located.next().flatten() };
            let (state, run_at) = located.map_or((State::Completed, None), |it| state_of(&it));
            let answer = Enqueued { id: earlier.id, deduplicated: true, state, run_at };
            self.answers[at] = Some(Ok(answer));
        }
        Ok(())
    }
}

/// And when it became or becomes ready, while it waits.
fn state_of(located: &Located) -> (State, Option<Timestamp>) {
    let run_at = match located.entry.member {
        crate::store::storage::Member::Position(position) => Some(position.ready_at),
        _ => None,
    };
    (find::state_of(located.index), run_at)
}

/// What the fences of one job found.
#[derive(Default)]
struct Taken {
    /// Under its number.
    job: Option<Bytes>,
    id: Option<Bytes>,
    /// Under the number that its own id holds.
    number_in_id: Option<Bytes>,
    /// None inside: the key was another's and is free now.
    key: Option<Option<Bytes>>,
}

enum Decision {
    Answer(Answer),
    Earlier(Earlier),
    TryAgain,
}

/// A job that is there already under the same id or key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Earlier {
    number: u64,
    id: JobId,
    same: bool,
    /// Its key outlives it.
    finished: bool,
}

/// A record that cannot be read belongs to a job that cannot be shown to be the same.
fn earlier_by_id(item: &Item, record: &Bytes, sameness: &Sameness) -> Result<Earlier, StoreError> {
    let found = records::readable(records::read_id(record))?;
    let number = found.as_ref().map_or(0, |found| found.number);
    let same = found.is_some_and(|found| found.sameness == *sameness);
    Ok(Earlier { number, id: item.spec.id.clone(), same, finished: false })
}

/// `None`: it is free, and the item takes it.
fn earlier_by_key(
    item: &mut Item,
    record: Option<&Bytes>,
    sameness: &Sameness,
    now: Timestamp,
) -> Result<Option<Earlier>, StoreError> {
    item.finished_key = None;
    let Some(record) = record else { return Ok(None) };
    let Some(found) = records::readable(records::read_key(record))? else {
        return Ok(Some(Earlier {
            number: 0,
            id: item.spec.id.clone(),
            same: false,
            finished: false,
        }));
    };
    if let Some(free_at) = found.free_at.filter(|free_at| *free_at <= now) {
        item.finished_key = Some((record.clone(), free_at));
        return Ok(None);
    }
    let (same, finished) = (found.sameness == *sameness, found.free_at.is_some());
    Ok(Some(Earlier { number: found.number, id: found.id, same, finished }))
}

/// The job that has the id or the key already; a refusal if that is a different job.
fn earlier(
    item: &Item,
    by_id: Option<Earlier>,
    by_key: Option<Earlier>,
) -> Result<Option<Earlier>, Refused> {
    match (by_id, by_key) {
        (Some(by_id), _) if !by_id.same => Err(Refused::IdTaken),
        (_, Some(by_key)) if !by_key.same => Err(Refused::KeyTaken),
        (Some(by_id), Some(by_key)) if by_id.number != by_key.number => {
            Err(Refused::IdAndKeyDiffer)
        }
        // The key's job has another id than the one asked for.
        (None, Some(by_key)) if item.own_id && item.spec.id != by_key.id => {
            Err(Refused::IdAndKeyDiffer)
        }
        (_, Some(by_key)) => Ok(Some(by_key)),
        (by_id, None) => Ok(by_id),
    }
}

#[cfg(test)]
mod tests;
