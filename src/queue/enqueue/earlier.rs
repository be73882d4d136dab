//! What the fences of a batch found: jobs that are there already under the same id or key, and how many find room.

use super::{Adding, Answer, item::Item};
use crate::domain::{JobId, OnConflict, Sameness, State};
use crate::queue::answers::{ask, ask_record, by_name};
use crate::queue::find::{self, Located};
use crate::queue::records;
use crate::queue::refusal::Refusal;
use crate::queue::state_changes::FoundKey;
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
                (of_fence, Was::Record(record)) => {
                    let taken = found.entry(of).or_default();
                    match of_fence {
                        Fence::Absent(Table::Job, _) if fence == fences[of] => taken.job = record,
                        Fence::Absent(Table::Job, _) => taken.number_in_id = record,
                        Fence::Absent(Table::Id, _) => taken.id = record,
                        _ => taken.key = Some(record),
                    }
                }
                _ => {}
            }
        }
        let (mut left, mut earlier, mut replaced) = (Vec::with_capacity(items.len()), Vec::new(), false);
        for (at, mut item) in items.into_iter().enumerate() {
            // What the fences found may be of a job that was replaced since.
            let Some(taken) = found.remove(&at).filter(|_| !replaced) else {
                left.push(item);
                continue;
            };
            if item.on_conflict == OnConflict::ReplaceWaiting {
                self.answer_earlier(std::mem::take(&mut earlier), &mut left).await?;
            }
            match self.decide(&mut item, taken).await? {
                Decision::Answer(answer) => {
                    replaced = matches!(answer, Ok(Enqueued { outcome: EnqueueOutcome::Replaced, .. }));
                    self.answers[item.at] = Some(answer);
                }
                Decision::Earlier(other) => earlier.push((item, other)),
                Decision::TryAgain => left.push(item),
            }
        }
        self.answer_earlier(earlier, &mut left).await?;
        if let (Some(depth), Some(limit), false) = (depth, self.limit, replaced) {
            let room = usize::try_from(limit.saturating_sub(depth)).unwrap_or(usize::MAX);
            for item in left.drain(room.min(left.len())..) {
                self.answers[item.at] = Some(Err(Refusal::QueueFull { limit }));
            }
        }
        Ok(left)
    }

    /// What follows for one job from what is there already.
    async fn decide(&mut self, item: &mut Item, taken: Taken) -> Result<Decision> {
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

    /// The answers of those that are there already, with the earlier jobs. Those that are about a job that is gone by now
    /// come back in `left`.
    async fn answer_earlier(&mut self, earlier: Vec<(Item, Earlier)>, left: &mut Vec<Item>) -> Result<()> {
        if earlier.is_empty() {
            return Ok(());
        }
        let numbers: Vec<_> = earlier.iter().map(|(_, earlier)| earlier.number).collect();
        let mut located = find::locate_all(self.store, &self.queue, &numbers).await?.into_iter();
        for (item, earlier) in earlier {
            // A key may outlive its job.
            let located = located.next().flatten();
            if located.is_none() && self.is_stale(&item, &earlier).await? {
                left.push(item);
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
            let answer = Enqueued { id: earlier.id, outcome: EnqueueOutcome::Existing, state, run_at };
            self.answers[item.at] = Some(Ok(answer));
        }
        Ok(())
    }

    /// Neither id nor key lead to this job any more, which is not there.
    async fn is_stale(&mut self, item: &Item, earlier: &Earlier) -> Result<bool> {
        let mut reads = vec![by_name(Table::Id, earlier.id.to_string())];
        reads.extend(item.spec.key.as_deref().map(|key| by_name(Table::Key, key)));
        let owner = records::owner(earlier.number);
        let mut found = ask(self.store, &self.queue, &reads).await?;
        Ok(!reads.iter().any(|_| found.record().is_some_and(|record| record.starts_with(&owner))))
    }
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

pub(super) enum Decision {
    Answer(Answer),
    Earlier(Earlier),
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
