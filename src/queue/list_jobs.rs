//! Listing a queue's jobs: a walk along its indexes, from where the page before ended.

use super::{
    get_job::{self, Detail, Head, counted},
    records,
};
use crate::{
    domain::{ids::JobId, job::State, time::Timestamp},
    store::{
        JobPage, JobPosition, JobQuery, JobView, StoreError, sizes,
        storage::{Entry, Found, Index, Member, Read, Reads, RecordKey, Table},
    },
};
use std::ops::ControlFlow;

/// Entries of one read.
const ENTRIES_MAX: usize = 250;
/// The same where whole jobs are listed.
const WHOLE_MAX: usize = 50;

/// A page of a queue's jobs. `None`: no such queue.
pub(crate) async fn jobs<S: Reads>(
    store: &mut S,
    query: &JobQuery,
) -> Result<Option<JobPage>, StoreError> {
    let mut walk = Walk {
        store,
        query,
        page: JobPage::default(),
        looked: 0,
        bytes: 0,
        ahead: 0,
        last: query.after.clone(),
    };
    for (state, after) in query.walk() {
        match walk.state(state, after.cloned()).await? {
            None => return Ok(None),
            Some(ControlFlow::Continue(())) => {}
            Some(ControlFlow::Break(())) => break,
        }
    }
    Ok(Some(walk.page))
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
    /// `None`: there is no such queue. A break ends the page.
    async fn state(
        &mut self,
        state: State,
        mut after: Option<JobPosition>,
    ) -> Result<Option<ControlFlow<()>>, StoreError> {
        if state == State::Ready && !self.count_ahead(after.as_ref()).await? {
            return Ok(None);
        }
        loop {
            let limit = self.entries();
            let reads = reads(state, after.as_ref(), limit);
            let Some(found) = self.store.read(&self.query.queue, &reads).await? else {
                return Ok(None);
            };
            let seen = in_order(state, found, limit);
            let Some((_, last)) = seen.last() else {
                return Ok(Some(ControlFlow::Continue(())));
            };
            after = Some(position(state, last));
            if self.steps(state, &seen).await?.is_break() {
                return Ok(Some(ControlFlow::Break(())));
            }
        }
    }

    /// False: there is no such queue.
    async fn count_ahead(&mut self, after: Option<&JobPosition>) -> Result<bool, StoreError> {
        let Some(after) = after else { return Ok(true) };
        let Entry { member: Member::Position(position), .. } = entry_of(after) else {
            return Ok(true);
        };
        let read = Read::Ahead(position, get_job::AHEAD_MAX + 1);
        let Some(found) = self.store.read(&self.query.queue, &[read]).await? else {
            return Ok(false);
        };
        let ahead = found.first().map_or(0, Found::number);
        self.ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
        Ok(true)
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

    async fn steps(
        &mut self,
        state: State,
        seen: &[(Index, Entry)],
    ) -> Result<ControlFlow<()>, StoreError> {
        let query = self.query;
        let detail = if query.full { Detail::Whole } else { Detail::Brief };
        let mut heads = get_job::heads(self.store, &query.queue, seen).await?;
        for head in &mut heads {
            let is_wanted = |head: &Head| match &query.job_type {
                Some(wanted) => head.job_type() == wanted,
                None => true,
            };
            *head = head.take().filter(is_wanted);
        }
        let mut from = 0;
        while from < heads.len() {
            let group = get_job::group(&heads[from..], detail);
            let group = &heads[from..from + group];
            let views = get_job::complete(self.store, &query.queue, group, detail).await?;
            for (view, (_, entry)) in views.into_iter().zip(&seen[from..]) {
                if self.step(position(state, entry), view).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            from += group.len();
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
        let ahead = is_ready.then(|| counted(self.ahead));
        self.ahead += usize::from(is_ready);
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

/// The indexes that have the jobs of a state; those of two are merged.
fn indexes(state: State) -> &'static [Index] {
    match state {
        State::Ready => &[Index::Ready],
        State::Scheduled => &[Index::Scheduled, Index::Retrying],
        State::Leased => &[Index::Leased],
        State::Dead => &[Index::Dead, Index::Overflow],
        State::Completed => &[Index::Completed],
    }
}

fn reads(state: State, after: Option<&JobPosition>, limit: usize) -> Vec<Read> {
    // `Leased` is in the order in which leases end.
    if state == State::Leased {
        let after = after.map(|after| RecordKey::Number(after.number));
        return vec![Read::Scan(Table::Lease, after, limit)];
    }
    let after = after.map(entry_of);
    let range = |index: &Index| {
        let (index, after) = (*index, after.clone());
        Read::Range { index, after, up_to: None, limit, reverse: false }
    };
    indexes(state).iter().map(range).collect()
}

/// The first `limit` of what was found, in the order of the list.
fn in_order(state: State, found: Vec<Found>, limit: usize) -> Vec<(Index, Entry)> {
    let mut seen: Vec<(Index, Entry)> = Vec::new();
    for (index, found) in indexes(state).iter().zip(found) {
        let entries = match found {
            Found::Scanned(leases) => {
                leases.into_iter().filter_map(|(key, _)| leased(&key)).collect()
            }
            found => found.entries(),
        };
        seen.extend(entries.into_iter().map(|entry| (*index, entry)));
    }
    if indexes(state).len() > 1 {
        seen.sort_by(|(_, a), (_, b)| a.cmp(b));
        seen.truncate(limit);
    }
    seen
}

/// Its score is not known, and not needed.
fn leased(key: &RecordKey) -> Option<Entry> {
    match key {
        RecordKey::Number(number) => Some(Entry::number(0, *number)),
        _ => None,
    }
}

fn position(state: State, entry: &Entry) -> JobPosition {
    let numbered = |number| JobPosition {
        state,
        priority: 0,
        at: Timestamp::default(),
        number,
        id: String::new(),
    };
    let number = entry.member.job().unwrap_or_default();
    match (&entry.member, state) {
        (Member::Position(position), _) => JobPosition {
            priority: records::priority(position.rank),
            at: position.ready_at,
            ..numbered(number)
        },
        (_, State::Dead) => numbered(entry.score),
        (_, State::Completed) => {
            JobPosition { at: Timestamp::from_millis(entry.score), ..numbered(number) }
        }
        _ => numbered(number),
    }
}

/// From [`position`]: an entry that is behind the one at this position, and before the next. It need not be there.
fn entry_of(position: &JobPosition) -> Entry {
    let number = position.number.min(JobId::NUMBER_MAX);
    match position.state {
        State::Ready | State::Scheduled => {
            let rank = records::rank(position.priority);
            let mut place = records::position(number, rank, position.at, false);
            place.tag = u8::MAX;
            match position.state {
                State::Ready => Entry::ready(place),
                _ => Entry::waiting(place),
            }
        }
        // No two have the same number of death.
        State::Dead => Entry::number(position.number, JobId::NUMBER_MAX),
        State::Leased | State::Completed => Entry::number(position.at.millis(), number),
    }
}

#[cfg(test)]
mod tests;
