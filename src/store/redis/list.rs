//! Listing a queue's jobs: a walk along the sets that hold their places, from where the page before ended.

use super::{
    Core,
    connection::Arg,
    look::Show,
    record::{self, Number},
    registry::Queue,
    reply::Reply,
    scripts::PAGE,
};
use crate::{
    domain::{job::State, time::Timestamp},
    store::{JobPage, JobPosition, JobQuery, JobView, StoreError, sizes},
};
use std::{ops::ControlFlow, sync::Arc};

/// Places that one script tells of.
const PLACES_MAX: usize = 100;
/// Leases that are read at once; they are told in the order of their numbers.
const LEASES_MAX: usize = 1_000;

struct Walk<'a> {
    core: &'a Core,
    queue: Arc<Queue>,
    query: &'a JobQuery,
    page: JobPage,
    looked: usize,
    bytes: usize,
    last: Option<JobPosition>,
}

impl Core {
    pub(super) async fn jobs(&self, query: JobQuery) -> Result<Option<JobPage>, StoreError> {
        let Some(queue) = self.find(&query.queue).await? else { return Ok(None) };
        let last = query.after.clone();
        let page = JobPage::default();
        let mut walk = Walk { core: self, queue, query: &query, page, looked: 0, bytes: 0, last };
        for (state, after) in query.walk() {
            if walk.state(state, after.cloned()).await?.is_break() {
                break;
            }
        }
        Ok(Some(walk.page))
    }
}

impl Walk<'_> {
    async fn state(
        &mut self,
        state: State,
        mut after: Option<JobPosition>,
    ) -> Result<ControlFlow<()>, StoreError> {
        loop {
            let places = match state {
                State::Ready => self.line("r", after.as_ref()).await?,
                State::Scheduled => self.line("w", after.as_ref()).await?,
                State::Leased => self.leased(after.as_ref()).await?,
                State::Dead => self.dead(after.as_ref()).await?,
                State::Completed => self.line("z", after.as_ref()).await?,
            };
            if places.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            // Few at a time where they are large.
            for places in places.chunks(if self.query.full { 25 } else { PLACES_MAX }) {
                if self.steps(places).await?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            after.clone_from(&self.last);
        }
    }

    /// Those who wait, in line; or those who are done, in their order.
    async fn line(
        &self,
        line: &str,
        after: Option<&JobPosition>,
    ) -> Result<Vec<(Number, JobPosition)>, StoreError> {
        let (score, member) = after.map_or_else(Default::default, place);
        let args = vec![line.into(), Arg::from(score), Arg::from(member), self.most().into()];
        let (_, mut reply) = self.core.run(&PAGE, &self.queue, args).await?;
        reply.int()?;
        let mut places = Vec::new();
        while reply.left() > 0 {
            let mut entry = reply.list()?;
            let (member, score) = (entry.bytes()?, entry.count()?);
            places.push(match line {
                "r" => of_ready(&member, score),
                "w" => of_scheduled(&member, score),
                _ => of_completed(&member, score),
            });
        }
        Ok(places)
    }

    /// Those who are out, by their numbers. All are read for each page: they are as many as are being worked on.
    async fn leased(
        &self,
        after: Option<&JobPosition>,
    ) -> Result<Vec<(Number, JobPosition)>, StoreError> {
        let key = self.queue.keys.of(b'l');
        let from = after.map_or(0, |after| after.number);
        let mut numbers = Vec::new();
        for start in (0..).step_by(LEASES_MAX) {
            let mut command = redis::cmd("ZRANGE");
            command.arg(key).arg(start).arg(start + LEASES_MAX - 1);
            let mut reply = Reply::of(self.core.redis.command(key, command).await?)?;
            let found = reply.left();
            while reply.left() > 0 {
                numbers.push(Number::read(&reply.bytes()?));
            }
            if found < LEASES_MAX {
                break;
            }
        }
        numbers.retain(|number| number.0 > from);
        numbers.sort_unstable();
        numbers.dedup();
        numbers.truncate(PLACES_MAX);
        let position = |number: Number| (number, numbered(State::Leased, number.0));
        Ok(numbers.into_iter().map(position).collect())
    }

    async fn dead(
        &self,
        after: Option<&JobPosition>,
    ) -> Result<Vec<(Number, JobPosition)>, StoreError> {
        let after = after.map_or(0, |after| after.number);
        let most = self.most() as usize;
        let letters = self.core.letters(&self.queue, false, after, u64::MAX, most).await?;
        let position =
            |letter: super::dead::Letter| (letter.number, numbered(State::Dead, letter.place));
        Ok(letters.into_iter().map(position).collect())
    }

    /// Not many more than the page can take.
    fn most(&self) -> u64 {
        let room = self.query.limit.saturating_sub(self.page.jobs.len());
        room.saturating_add(1).min(PLACES_MAX) as u64
    }

    async fn steps(
        &mut self,
        places: &[(Number, JobPosition)],
    ) -> Result<ControlFlow<()>, StoreError> {
        let numbers: Vec<_> = places.iter().map(|(number, _)| *number).collect();
        let show = Show { full: self.query.full, attempts: self.query.full };
        let views = self.core.views(&self.queue, &numbers, show).await?;
        for ((_, position), view) in places.iter().zip(views) {
            if self.step(position, view).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Takes the job in if it is wanted; a break ends the page before it.
    fn step(&mut self, position: &JobPosition, view: Option<JobView>) -> ControlFlow<()> {
        if self.page.jobs.len() >= self.query.limit || self.looked >= self.query.looks_max {
            self.page.next.clone_from(&self.last);
            return ControlFlow::Break(());
        }
        self.looked += 1;
        let wanted = |view: &JobView| {
            // One that has gone on meanwhile is shown where it is now, if at all.
            view.state == position.state
                && self
                    .query
                    .job_type
                    .as_ref()
                    .is_none_or(|job_type| *job_type == view.spec.job_type)
        };
        if let Some(mut view) = view.filter(wanted) {
            if !self.query.full {
                view.attempts.clear();
                view.progress.checkpoint.clear();
            }
            self.bytes += sizes::of_view(&view);
            if self.bytes > self.query.max_bytes && !self.page.jobs.is_empty() {
                self.page.next.clone_from(&self.last);
                return ControlFlow::Break(());
            }
            self.page.jobs.push((position.clone(), view));
        }
        self.last = Some(position.clone());
        ControlFlow::Continue(())
    }
}

/// Score and member of a place in line.
fn place(position: &JobPosition) -> (Vec<u8>, Vec<u8>) {
    let number = Number(position.number).bytes();
    let mut member = match position.id.as_str() {
        "" => number,
        id => [&[255], id.as_bytes(), &[0], &number[..]].concat(),
    };
    let level = record::level(position.priority);
    let score = match position.state {
        State::Ready => record::ready_score(level, position.at),
        State::Scheduled => {
            member.push(level);
            position.at.millis()
        }
        _ => position.at.millis(),
    };
    (score.to_string().into_bytes(), member)
}

fn of_ready(member: &[u8], score: u64) -> (Number, JobPosition) {
    let (level, at) = record::read_score(score);
    waiting(State::Ready, member, level, at)
}

fn of_scheduled(member: &[u8], score: u64) -> (Number, JobPosition) {
    let (level, tie) = member.split_last().unwrap_or((&0, &[]));
    waiting(State::Scheduled, tie, *level, Timestamp::from_millis(score))
}

fn of_completed(member: &[u8], score: u64) -> (Number, JobPosition) {
    let number = Number::read(member);
    let at = Timestamp::from_millis(score);
    (number, JobPosition { at, ..numbered(State::Completed, number.0) })
}

fn waiting(state: State, tie: &[u8], level: u8, at: Timestamp) -> (Number, JobPosition) {
    let number = Number::read(tie);
    let (priority, id) = (record::priority(level), record::id_in_tie(tie));
    (number, JobPosition { state, priority, at, number: number.0, id })
}

fn numbered(state: State, number: u64) -> JobPosition {
    JobPosition { state, priority: 0, at: Timestamp::default(), number, id: String::new() }
}
