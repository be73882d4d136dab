//! Listing a queue's jobs: a walk along its indexes, from where the page before ended.

use super::answers::{Answers, ask, ask_known, range};
use super::get_job::{self, Detail, counted};
use super::records;
use super::refusal;
use crate::domain::{JobId, State, Timestamp};
use crate::queue::{JobPage, JobPosition, JobQuery, JobView, sizes};
use crate::store::Result;
use crate::store::storage::{Entry, Found, Index, Member, NO_GROUP, Read, Reads, RecordKey, Table};
use bytes::Bytes;
use std::ops::ControlFlow;

/// Entries of one read.
const ENTRIES_MAX: usize = 250;
/// The same where whole jobs are listed.
const WHOLE_MAX: usize = 50;

/// A page of a queue's jobs.
pub(crate) async fn jobs<S: Reads>(store: &mut S, query: &JobQuery) -> refusal::Result<JobPage> {
    let mut walk =
        Walk { store, query, page: JobPage::default(), looked: 0, bytes: 0, ahead: 0, last: query.after.clone() };
    for (state, after) in query.walk() {
        for indexes in stages(state, after) {
            if walk.state(state, indexes, after.cloned()).await?.is_break() {
                return Ok(walk.page);
            }
        }
    }
    Ok(walk.page)
}

struct Walk<'a, S> {
    store: &'a mut S,
    query: &'a JobQuery,
    page: JobPage,
    looked: usize,
    bytes: usize,
    /// READY jobs before the next one.
    ahead: usize,
    last: Option<JobPosition>,
}

impl<S: Reads> Walk<'_, S> {
    /// A break ends the page.
    async fn state(
        &mut self, state: State, indexes: &[Index], mut after: Option<JobPosition>,
    ) -> refusal::Result<ControlFlow<()>> {
        // Of the jobs of a breaker key it is not known what goes before them.
        self.ahead = if indexes == [Index::Keyed] { usize::MAX } else { 0 };
        if indexes == [Index::Ready] {
            self.count_ahead(after.as_ref()).await?;
        }
        loop {
            let limit = self.entries();
            let reads = reads(state, indexes, after.as_ref(), limit);
            let found = ask_known(self.store, &self.query.queue, &reads).await?;
            let seen = in_order(indexes, found, limit);
            let Some((_, last)) = seen.last() else {
                return Ok(ControlFlow::Continue(()));
            };
            after = Some(position(state, last));
            if self.steps(state, &seen).await?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }

    /// False: there is no such queue.
    async fn count_ahead(&mut self, after: Option<&JobPosition>) -> Result<()> {
        if let Some(Entry { member: Member::Position(position), .. }) = after.map(entry_of) {
            let read = Read::Ahead(position, get_job::AHEAD_MAX + 1);
            let ahead = ask(self.store, &self.query.queue, &[read]).await?.number();
            self.ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
        }
        Ok(())
    }

    /// Not many more than the page can take.
    fn entries(&self) -> usize {
        let most = if self.query.full { WHOLE_MAX } else { ENTRIES_MAX };
        let room = match self.query.job_type {
            Some(_) => most,
            None => self.query.limit.saturating_sub(self.page.jobs.len()),
        };
        let looks = self.query.looks_max.saturating_sub(self.looked);
        room.min(looks).saturating_add(1).min(most)
    }

    async fn steps(&mut self, state: State, seen: &[(Index, Entry)]) -> Result<ControlFlow<()>> {
        let query = self.query;
        let detail = if query.full { Detail::Whole } else { Detail::Brief };
        let mut heads = get_job::heads(self.store, &query.queue, seen).await?;
        if let Some(wanted) = &query.job_type {
            heads.iter_mut().for_each(|head| drop(head.take_if(|head| head.job_type() != wanted)));
        }
        let mut entries = seen.iter();
        while let left @ 1.. = entries.len() {
            let heads = &heads[heads.len() - left..];
            let views = get_job::complete_some(self.store, &query.queue, heads, detail).await?;
            for (view, (_, entry)) in views.into_iter().zip(&mut entries) {
                if self.step(position(state, entry), view).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Adds the job if it is wanted; a break ends the page before it.
    fn step(&mut self, position: JobPosition, view: Option<JobView>) -> ControlFlow<()> {
        if self.page.jobs.len() >= self.query.limit || self.looked >= self.query.looks_max {
            self.page.next.clone_from(&self.last);
            return ControlFlow::Break(());
        }
        self.looked += 1;
        let is_ready = position.state == State::Ready;
        let ahead = (is_ready && position.group == NO_GROUP).then(|| counted(self.ahead));
        self.ahead = self.ahead.saturating_add(usize::from(is_ready));
        if let Some(mut view) = view {
            view.ahead = ahead;
            self.bytes += sizes::of_view(&view);
            if self.bytes > self.query.max_bytes && !self.page.jobs.is_empty() {
                self.page.next.clone_from(&self.last);
                return ControlFlow::Break(());
            }
            self.page.jobs.push((position.clone(), view));
        }
        self.last = Some(position);
        ControlFlow::Continue(())
    }
}

/// The indexes that have the jobs of a state, one after the other; those that stand together are merged. `after`: where to go on.
fn stages(state: State, after: Option<&JobPosition>) -> &'static [&'static [Index]] {
    match state {
        State::Ready if after.is_some_and(|after| after.group != NO_GROUP) => &[&[Index::Keyed]],
        State::Ready => &[&[Index::Ready], &[Index::Keyed]],
        State::Scheduled => &[&[Index::Scheduled]],
        State::Retrying => &[&[Index::Retrying]],
        State::Leased => &[&[Index::Leased]],
        State::Dead => &[&[Index::Dead, Index::Overflow]],
        State::Completed => &[&[Index::Completed]],
        State::Cancelled => &[&[Index::Cancelled]],
    }
}

fn reads(state: State, indexes: &[Index], after: Option<&JobPosition>, limit: usize) -> Vec<Read> {
    // `Leased` is in the order in which leases end.
    if state == State::Leased {
        let after = after.map(|after| RecordKey::Number(after.number));
        return vec![Read::Scan(Table::Lease, after, limit)];
    }
    // Behind the last one of another index there is nothing left of it.
    let after = after.filter(|after| indexes != [Index::Keyed] || after.group != NO_GROUP).map(entry_of);
    indexes.iter().map(|index| range(*index, after.clone(), limit)).collect()
}

/// The first `limit` of what was found, in the order of the list.
fn in_order(indexes: &[Index], found: Answers, limit: usize) -> Vec<(Index, Entry)> {
    let mut seen: Vec<(Index, Entry)> = Vec::new();
    for (index, found) in indexes.iter().zip(found) {
        let entries = match found {
            // Their scores are not known, and not needed.
            Found::Scanned(leases) => leases.iter().filter_map(leased).collect(),
            found => found.entries(),
        };
        seen.extend(entries.into_iter().map(|entry| (*index, entry)));
    }
    if indexes.len() > 1 {
        seen.sort_by(|(_, a), (_, b)| a.cmp(b));
        seen.truncate(limit);
    }
    seen
}

fn leased((key, _): &(RecordKey, Bytes)) -> Option<Entry> {
    match key {
        RecordKey::Number(number) => Some(Entry::number(0, *number)),
        _ => None,
    }
}

fn position(state: State, entry: &Entry) -> JobPosition {
    let number = entry.member.job().unwrap_or_default();
    let group = match &entry.member {
        Member::Position(position) => position.group,
        _ => NO_GROUP,
    };
    let (priority, at, number) = match (&entry.member, state) {
        (Member::Position(position), _) => (records::priority(position.rank), position.ready_at, number),
        (_, State::Dead) => (0, Timestamp::default(), entry.score),
        (_, State::Completed | State::Cancelled) => (0, Timestamp::from_millis(entry.score), number),
        _ => (0, Timestamp::default(), number),
    };
    JobPosition { state, group, priority, at, number, id: String::new() }
}

/// From [`position`]: an entry that is behind the one at this position, and before the next. It need not be there.
fn entry_of(position: &JobPosition) -> Entry {
    let number = position.number.min(JobId::NUMBER_MAX);
    match position.state {
        State::Ready | State::Scheduled | State::Retrying => {
            let rank = records::rank(position.priority);
            let mut place = records::position(position.group, number, rank, position.at, false);
            place.tag = u8::MAX;
            match position.state {
                State::Ready => Entry::ready(place),
                _ => Entry::waiting(place),
            }
        }
        // No two have the same number of death.
        State::Dead => Entry::number(position.number, JobId::NUMBER_MAX),
        State::Leased | State::Completed | State::Cancelled => Entry::number(position.at.millis(), number),
    }
}
