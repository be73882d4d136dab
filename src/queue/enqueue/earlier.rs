//! What the fences of a batch found: jobs that are there already under the same id or key, and how many find room.

use super::{Adding, Answer, item::Item};
use crate::{
    domain::{
        ids::JobId,
        job::{Sameness, State},
        time::Timestamp,
    },
    queue::{
        find::{self, Located},
        records,
    },
    store::{
        Enqueued, Refused, StoreError,
        storage::{Batch, Fence, Found, Member, Read, RecordKey, Storage, Table, Was, flag},
    },
};
use bytes::Bytes;
use std::collections::HashMap;

impl<S: Storage> Adding<'_, '_, S> {
    /// Answers those that are there already or find no room; the others come back.
    pub(super) async fn resolve(
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
        Member::Position(position) => Some(position.ready_at),
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
