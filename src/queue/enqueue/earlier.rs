//! What the fences of a batch found: jobs that are there already under the same id or key, and how many find room.

use super::{Adding, Answer, item::Item};
use crate::domain::{JobId, OnConflict, Sameness, State};
use crate::queue::answers::{ask, ask_record, by_name};
use crate::queue::find::{self, Located};
use crate::queue::records;
use crate::queue::refusal::Refusal;
use crate::queue::state_changes::{EndedId, FoundKey};
use crate::queue::{EnqueueOutcome, Enqueued};
use crate::store::Result;
use crate::store::storage::{Batch, Entry, Fence, Member, RecordKey, Storage, Table, Was};
use bytes::Bytes;
use std::collections::HashMap;

impl<S: Storage> Adding<'_, '_, S> {
    /// Answers those that are there already or find no room; the others come back.
    pub(super) async fn resolve(
        &mut self, items: Vec<Item>, batch: &Batch, fences: &[usize], failed: Vec<(usize, Was)>,
    ) -> Result<Vec<Item>> {
        let mut depth = None;
        let mut found: HashMap<usize, Taken> = HashMap::new();
        for (fence, was) in failed {
            let of = fences.partition_point(|first| *first <= fence).saturating_sub(1);
            match (&batch.fences[fence], was) {
                (Fence::Room { .. }, Was::Len(len)) => depth = Some(len),
                // The group of a breaker key is another by now: it is looked for again.
                (Fence::Is(Table::Group, ..), _) => {}
                (of_fence, Was::Record(record)) => {
                    let taken = found.entry(of).or_default();
                    match of_fence {
                        Fence::Absent(Table::Job, _) if fence == fences[of] => taken.job = record,
                        Fence::Absent(Table::Job, _) => taken.number_in_id = record,
                        Fence::Absent(Table::Id, _) | Fence::Is(Table::Id, ..) => taken.id = record,
                        _ => taken.key = Some(record),
                    }
                }
                _ => {}
            }
        }
        self.note_ended_ids(&items, &mut found).await?;
        let (mut left, mut earlier, mut replaced) = (Vec::with_capacity(items.len()), Vec::new(), Vec::new());
        for (at, mut item) in items.into_iter().enumerate() {
            let Some(taken) = found.remove(&at) else {
                left.push(item);
                continue;
            };
            if item.on_conflict == OnConflict::ReplaceWaiting {
                // It may replace one of those that others are to be answered with.
                left.extend(self.answer_earlier(std::mem::take(&mut earlier)).await?);
            }
            if replaced.iter().any(|number| taken.is_of(*number, &item)) {
                left.push(item);
                continue;
            }
            match self.decide(&mut item, taken).await? {
                Decision::Answer(answer) => self.answers[item.at] = Some(answer),
                Decision::Earlier(other) => earlier.push((item, other)),
                Decision::Replaced(number, answer) => {
                    replaced.push(number);
                    self.answers[item.at] = Some(answer);
                }
                Decision::TryAgain => left.push(item),
            }
        }
        left.extend(self.answer_earlier(earlier).await?);
        if let (Some(depth), Some(limit)) = (depth, self.limit) {
            let room = usize::try_from(limit.saturating_sub(depth)).unwrap_or(usize::MAX);
            for item in left.drain(room.min(left.len())..) {
                self.answers[item.at] = Some(Err(Refusal::QueueFull { limit }));
            }
        }
        Ok(left)
    }

    /// Which of the own ids that are taken are those of jobs that have ended, for long enough.
    async fn note_ended_ids(&mut self, items: &[Item], found: &mut HashMap<usize, Taken>) -> Result<()> {
        let taken: Vec<_> = found.iter_mut().filter(|(_, taken)| taken.id.is_some()).collect();
        let reads: Vec<_> = taken.iter().map(|(at, _)| EndedId::end(&items[**at].spec.id)).collect();
        let mut ends = ask(self.store, &self.queue, &reads).await?;
        for (_, taken) in taken {
            let end = ends.score();
            taken.ended_id = taken.id.as_ref().and_then(|record| EndedId::of(record, end, self.now));
        }
        Ok(())
    }

    /// What follows for one job from what is there already.
    async fn decide(&mut self, item: &mut Item, taken: Taken) -> Result<Decision> {
        if taken.job.as_ref() == Some(&item.record.record) {
            // The batch was applied before, and its answer was lost.
            return Ok(Decision::Answer(item.added()));
        }
        let Some(sameness) = item.sameness else { return self.number_taken(item, &taken).await };
        item.ended_id.clone_from(&taken.ended_id);
        let by_id = match &taken.id {
            Some(_) if taken.ended_id.is_some() => None,
            Some(record) => Some(earlier_by_id(item, record, &sameness)?),
            None => self.earlier_by_number(item, &taken, &sameness).await?,
        };
        let by_key = match &taken.key {
            Some(record) => self.earlier_by_key(item, record.clone(), &sameness).await?,
            None => None,
        };
        match earlier(item, by_id, by_key) {
            Ok(Some(_)) if item.on_conflict == OnConflict::ReplaceWaiting && taken.job.is_some() => {
                self.number_taken(item, &taken).await
            }
            Ok(Some(earlier)) if item.on_conflict == OnConflict::ReplaceWaiting => self.replace(item, earlier).await,
            Ok(Some(earlier)) => Ok(Decision::Earlier(earlier)),
            Ok(None) => self.number_taken(item, &taken).await,
            Err(refused) => Ok(Decision::Answer(Err(refused))),
        }
    }

    /// `None`: it is free, and the item takes it.
    async fn earlier_by_key(
        &mut self, item: &mut Item, record: Option<Bytes>, sameness: &Sameness,
    ) -> Result<Option<Earlier>> {
        item.finished_key = None;
        let Some(bytes) = record else { return Ok(None) };
        let Some(record) = records::readable(records::read_key(&bytes))? else {
            return Ok(Some(Earlier { number: 0, id: item.spec.id.clone(), same: false }));
        };
        let held = record.until > self.now
            || find::not_done(self.store, &self.queue, &[record.number]).await?.contains(&record.number);
        if held {
            let same = record.sameness == *sameness;
            return Ok(Some(Earlier { number: record.number, id: record.id, same }));
        }
        item.finished_key = Some(FoundKey { bytes, record });
        Ok(None)
    }

    async fn number_taken(&mut self, item: &mut Item, taken: &Taken) -> Result<Decision> {
        if taken.job.is_some() {
            let number = self.store.numbers(1).await?.start;
            item.renumber(number, self.now, self.cx);
        }
        Ok(Decision::TryAgain)
    }

    /// A job whose id holds its own number has no record in `Id`.
    async fn earlier_by_number(
        &mut self, item: &mut Item, taken: &Taken, sameness: &Sameness,
    ) -> Result<Option<Earlier>> {
        let Some(number) = item.spec.id.number().filter(|_| item.own_id) else { return Ok(None) };
        let found = if number == item.number { &taken.job } else { &taken.number_in_id };
        let Some(found) = found else { return Ok(None) };
        if !find::has_id(found, &item.spec.id)? {
            item.number_in_id_is_another = number != item.number;
            return Ok(None);
        }
        let same = self.sameness_of(number, found).await?.as_ref() == Some(sameness);
        Ok(Some(Earlier { number, id: item.spec.id.clone(), same }))
    }

    async fn sameness_of(&mut self, number: u64, job: &Bytes) -> Result<Option<Sameness>> {
        let body = match records::is_apart(job) {
            true => ask_record(self.store, &self.queue, Table::Body, RecordKey::Number(number)).await?,
            false => None,
        };
        let spec = records::readable(records::read_job_unchecked(job, body.as_ref()))?;
        Ok(spec.map(|spec| spec.sameness()))
    }

    /// Answers those that are there already, each with the earlier job. Those whose earlier job was removed or replaced meanwhile
    /// come back.
    async fn answer_earlier(&mut self, earlier: Vec<(Item, Earlier)>) -> Result<Vec<Item>> {
        let mut again = Vec::new();
        if earlier.is_empty() {
            return Ok(again);
        }
        let numbers: Vec<_> = earlier.iter().map(|(_, earlier)| earlier.number).collect();
        let mut located = find::locate_all(self.store, &self.queue, &numbers).await?.into_iter();
        for (item, earlier) in earlier {
            // A key or an own id may outlive its job.
            let located = located.next().flatten();
            if located.is_none() && !self.is_named(&item, &earlier).await? {
                again.push(item);
                continue;
            }
            let state = located.as_ref().map_or(State::Completed, |located| find::state_of(located.index));
            // When it became or becomes ready, while it waits.
            let run_at = match located {
                Some(Located { entry: Entry { member: Member::Position(position), .. }, .. }) => {
                    Some(position.ready_at)
                }
                _ => None,
            };
            let outcome = EnqueueOutcome::Existing;
            self.answers[item.at] = Some(Ok(Enqueued { id: earlier.id, outcome, state, run_at }));
        }
        Ok(again)
    }

    /// Its id or key still names this job, which is done; otherwise it was removed or replaced a moment ago.
    async fn is_named(&mut self, item: &Item, earlier: &Earlier) -> Result<bool> {
        let key = item.spec.key.clone().unwrap_or_default();
        let reads = [by_name(Table::Id, earlier.id.to_string()), by_name(Table::Key, key)];
        let mut found = ask(self.store, &self.queue, &reads).await?;
        let (by_id, by_key) = (found.parse(records::read_id)?, found.parse(records::read_key)?);
        let numbers = [by_id.map(|id| id.number), by_key.map(|key| key.number)];
        Ok(numbers.contains(&Some(earlier.number)))
    }
}

/// What the fences of one job found.
#[derive(Default)]
struct Taken {
    /// Under its number.
    job: Option<Bytes>,
    id: Option<Bytes>,
    /// The same, where the job of that id has ended for long enough.
    ended_id: Option<EndedId>,
    /// Under the number that its own id holds.
    number_in_id: Option<Bytes>,
    /// None inside: the key was another's and is free now.
    key: Option<Option<Bytes>>,
}

impl Taken {
    /// Something that was found belongs to the job of this number.
    fn is_of(&self, number: u64, item: &Item) -> bool {
        let owner = records::owner(number);
        let names = self.id.iter().chain(self.key.iter().flatten());
        names.into_iter().any(|record| record.starts_with(&owner)) || item.spec.id.number() == Some(number)
    }
}

pub(super) enum Decision {
    Answer(Answer),
    Earlier(Earlier),
    /// The job of this number gave way.
    Replaced(u64, Answer),
    TryAgain,
}

/// A job that is there already under the same id or key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Earlier {
    pub(super) number: u64,
    pub(super) id: JobId,
    same: bool,
}

/// A record that cannot be read belongs to a job that cannot be shown to be the same.
fn earlier_by_id(item: &Item, record: &Bytes, sameness: &Sameness) -> Result<Earlier> {
    let found = records::readable(records::read_id(record))?;
    let number = found.as_ref().map_or(0, |found| found.number);
    let same = found.is_some_and(|found| found.sameness == *sameness);
    Ok(Earlier { number, id: item.spec.id.clone(), same })
}

/// The job that has the id or the key already; a refusal if that is a different job.
fn earlier(item: &Item, by_id: Option<Earlier>, by_key: Option<Earlier>) -> Result<Option<Earlier>, Refusal> {
    // Where a record cannot be read there is no job to answer with.
    let refuses = |it: &Earlier| !it.same && (item.on_conflict == OnConflict::RejectDifferent || it.number == 0);
    match (by_id, by_key) {
        (Some(by_id), _) if refuses(&by_id) => Err(Refusal::IdTaken),
        (_, Some(by_key)) if refuses(&by_key) => Err(Refusal::KeyTaken),
        (Some(by_id), Some(by_key)) if by_id.number != by_key.number => Err(Refusal::IdAndKeyDiffer),
        // The key's job has another id than the one asked for.
        (None, Some(by_key)) if item.own_id && item.spec.id != by_key.id => Err(Refusal::IdAndKeyDiffer),
        (_, Some(by_key)) => Ok(Some(by_key)),
        (by_id, None) => Ok(by_id),
    }
}
