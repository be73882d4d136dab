//! Which jobs a take takes, for engines that look in Rust: `take_groups.lua` does the same.

use super::limits::{Allowance, Measures};
use super::{GroupState, Meter, NO_GROUP, Position, Rule, Stop, Take, Version, WHOLE_QUEUE};
use crate::domain::Timestamp;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The first position of a group: its rank and time, and the group.
pub(in crate::store) type Head = (u8, Timestamp, u16);

/// The heads of the groups that are not held and have ready jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::store) struct Heads {
    by_group: BTreeMap<u16, Head>,
    order: BTreeSet<Head>,
}

impl Heads {
    pub(in crate::store) fn set(&mut self, group: u16, version: &Version, first: Option<&Position>) {
        if let Some(old) = self.by_group.remove(&group) {
            self.order.remove(&old);
        }
        if let (Some(first), GroupState::Free | GroupState::NeedsRule) = (first, version.state) {
            let head = (first.rank, first.ready_at, group);
            self.by_group.insert(group, head);
            self.order.insert(head);
        }
    }

    pub(in crate::store) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(in crate::store) fn has(&self, group: u16) -> bool {
        self.by_group.contains_key(&group)
    }

    pub(in crate::store) fn after(&self, head: Option<Head>) -> Option<Head> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.order.range((head.map_or(Unbounded, Excluded), Unbounded)).next().copied()
    }
}

/// What jobs are chosen from.
pub(in crate::store) trait ReadyJobs: Measures {
    fn version(&self, group: u16) -> Version;

    /// Of the groups that are not held the next head.
    fn head(&self, after: Option<Head>) -> Option<Head>;

    fn has_head(&self, group: u16) -> bool;

    /// The first ready positions of a group, or those behind this one.
    fn positions(&mut self, group: u16, after: Option<&Position>, limit: usize) -> Result<Vec<Position>, Self::Error>;
}

/// Groups from which jobs are taken: their positions are read in pages, so that each gives only what the line lacks.
#[derive(Debug)]
struct Source {
    group: u16,
    /// Its rule, by its place.
    rule: Option<usize>,
    epoch: u32,
    flags: u8,
    pass_over: Option<u64>,
    left: u64,
    /// In the order against theirs.
    page: Vec<Position>,
    last: Option<Position>,
    page_size: usize,
}

const FIRST_PAGE: usize = 2;
const PAGE_GROWTH: usize = 4;

impl Source {
    fn new(group: u16, epoch: u32, left: u64) -> Self {
        let (page, page_size) = (Vec::new(), FIRST_PAGE);
        Self { group, rule: None, epoch, flags: 0, pass_over: None, left, page, last: None, page_size }
    }

    fn next<R: ReadyJobs>(&mut self, ready: &mut R) -> Result<Option<Position>, R::Error> {
        loop {
            if self.left == 0 {
                return Ok(None);
            }
            if self.page.is_empty() {
                self.page = ready.positions(self.group, self.last.as_ref(), self.page_size)?;
                self.page.reverse();
                self.page_size *= PAGE_GROWTH;
            }
            let Some(position) = self.page.pop() else { return Ok(None) };
            self.last = Some(position);
            if Some(position.number) != self.pass_over {
                self.left -= 1;
                return Ok(Some(position));
            }
        }
    }
}

/// When the first job of a source goes, which source that is, and where the job waits.
type Turn = ((u8, Timestamp, u64), usize, Position);

/// Sources by the turns of their next positions.
#[derive(Debug, Default)]
struct Sources {
    list: Vec<Source>,
    order: BinaryHeap<Reverse<Turn>>,
}

impl Sources {
    fn open<R: ReadyJobs>(&mut self, mut source: Source, ready: &mut R) -> Result<(), R::Error> {
        let (at, first) = (self.list.len(), source.next(ready)?);
        self.order.extend(first.map(|position| Reverse((position.turn(), at, position))));
        self.list.push(source);
        Ok(())
    }

    fn first(&self) -> Option<&Position> {
        self.order.peek().map(|Reverse((.., position))| position)
    }

    fn next<R: ReadyJobs>(&mut self, ready: &mut R) -> Result<Option<Chosen>, R::Error> {
        let Some(Reverse((_, at, position))) = self.order.pop() else { return Ok(None) };
        let source = &mut self.list[at];
        let next = source.next(ready)?;
        self.order.extend(next.map(|position| Reverse((position.turn(), at, position))));
        Ok(Some(Chosen { position, epoch: source.epoch, flags: source.flags, rule: source.rule }))
    }
}

/// A job that is to be taken.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Chosen {
    pub(in crate::store) position: Position,
    /// Of the lease.
    pub(in crate::store) epoch: u32,
    pub(in crate::store) flags: u8,
    /// Its rule, by its place.
    pub(in crate::store) rule: Option<usize>,
}

/// What stopped a take, and the meters as they are then.
type Ended = (Vec<Stop>, Vec<(u16, Meter)>);

/// The rules of a take, while it is made.
#[derive(Debug)]
pub(in crate::store) struct Rules<'t> {
    take: &'t Take<'t>,
    whole: Allowance,
    /// By the rules of groups; none: its version is another.
    groups: Vec<Option<Allowance>>,
    pub(in crate::store) changed: Vec<u16>,
}

impl<'t> Rules<'t> {
    /// None: the queue is of another version, and nothing is taken.
    pub(in crate::store) fn allow<R: ReadyJobs>(
        take: &'t Take<'t>, ready: &mut R, now: Timestamp,
    ) -> Result<Option<Self>, R::Error> {
        if ready.version(WHOLE_QUEUE) != take.whole.version {
            return Ok(None);
        }
        let whole = take.whole.allow(ready, now)?;
        let (mut groups, mut changed) = (Vec::with_capacity(take.groups.len()), Vec::new());
        for rule in take.groups {
            let is_same = ready.version(rule.group) == rule.version;
            groups.push(if is_same { Some(rule.allow(ready, now)?) } else { None });
            changed.extend((!is_same).then_some(rule.group));
        }
        Ok(Some(Self { take, whole, groups, changed }))
    }

    /// Of the whole queue.
    fn most(&self) -> usize {
        self.take.jobs.min(usize::try_from(self.whole.most).unwrap_or(usize::MAX))
    }

    /// Where there are jobs without a group alone, and a rule for them alone: so many of these are to be taken at most.
    pub(in crate::store) fn only_without_group(&self) -> Option<usize> {
        match (self.take.groups, &self.groups[..]) {
            ([rule], [allowance]) if rule.group == NO_GROUP => {
                let most = allowance.as_ref().map_or(0, |allowance| allowance.most);
                Some(self.most().min(usize::try_from(most).unwrap_or(usize::MAX)))
            }
            _ => None,
        }
    }

    /// A job under a rule.
    pub(in crate::store) fn chosen(&self, position: Position, rule: usize) -> Chosen {
        let Rule { version, flags, .. } = self.take.groups[rule];
        Chosen { position, epoch: version.epoch, flags, rule: Some(rule) }
    }

    /// The jobs that are to be taken, in their order.
    pub(in crate::store) fn line<R: ReadyJobs>(&mut self, ready: &mut R) -> Result<Vec<Chosen>, R::Error> {
        let rules = self.take.groups;
        let places: BTreeMap<u16, usize> = rules.iter().enumerate().map(|(at, rule)| (rule.group, at)).collect();
        let mut sources = Sources::default();
        // Others come with their heads.
        let is_headless = |rule: &Rule| rule.group == NO_GROUP || rule.version.state == GroupState::Held;
        for at in places.values().copied().filter(|at| is_headless(&rules[*at])) {
            self.open(at, &mut sources, ready)?;
        }
        let (mut head, mut line, most) = (ready.head(None), Vec::new(), self.most());
        while line.len() < most {
            while let Some((rank, ready_at, group)) = head
                && sources.first().is_none_or(|first| (rank, ready_at) <= (first.rank, first.ready_at))
            {
                head = ready.head(head);
                let version = ready.version(group);
                if let Some(at) = places.get(&group) {
                    self.open(*at, &mut sources, ready)?;
                } else if version.state == GroupState::Free {
                    sources.open(Source::new(group, version.epoch, u64::MAX), ready)?;
                } else {
                    self.changed.push(group);
                }
            }
            let Some(chosen) = sources.next(ready)? else { break };
            line.push(chosen);
        }
        Ok(line)
    }

    /// Where its version is the same.
    fn open<R: ReadyJobs>(&self, at: usize, sources: &mut Sources, ready: &mut R) -> Result<(), R::Error> {
        let (rule, Some(allowance)) = (&self.take.groups[at], &self.groups[at]) else { return Ok(()) };
        let mut source = Source::new(rule.group, rule.version.epoch, allowance.most);
        (source.rule, source.flags) = (Some(at), rule.flags);
        if rule.pass_over.is_some() && ready.positions(rule.group, None, 2)?.len() > 1 {
            source.pass_over = rule.pass_over;
        }
        sources.open(source, ready)
    }

    pub(in crate::store) fn took(&mut self, job: &Chosen) {
        self.whole.taken += 1;
        if let Some(Some(allowance)) = job.rule.map(|rule| &mut self.groups[rule]) {
            allowance.taken += 1;
        }
    }

    /// `left`: ready jobs that are left, of all groups. What stopped it, and the meters as they are then.
    pub(in crate::store) fn end<R: ReadyJobs>(
        self, ready: &mut R, left: u64, now: Timestamp,
    ) -> Result<Ended, R::Error> {
        let is_short = self.whole.taken < self.take.jobs as u64;
        let (mut stops, mut meters) = (Vec::new(), Vec::new());
        let groups = self.take.groups.iter().zip(self.groups);
        let groups = groups.filter_map(|(rule, allowance)| Some((rule, allowance?)));
        for (rule, allowance) in [(&self.take.whole, self.whole)].into_iter().chain(groups) {
            if rule.is_free() {
                continue;
            }
            let has_more = match rule.group {
                WHOLE_QUEUE => left > 0,
                NO_GROUP => !ready.positions(NO_GROUP, None, 1)?.is_empty(),
                group if rule.version.state == GroupState::Held => !ready.positions(group, None, 1)?.is_empty(),
                group => ready.has_head(group),
            };
            let (stop, meter) = rule.end(allowance, has_more, is_short, now);
            stops.extend(stop);
            meters.extend(meter.map(|meter| (rule.group, meter)));
        }
        Ok((stops, meters))
    }
}
