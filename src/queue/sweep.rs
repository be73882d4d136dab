//! Sweep: what time makes due in one queue, a bounded part at a time.

mod expired_records;

use super::answers::{ask, ask_if_there, first_of, range};
use super::claim::PROMOTIONS_MAX;
use super::context::{CallContext, epoch};
use super::facts::{LeaseFacts, OutcomeFacts, QueueFacts, Rounds};
use super::find::{self, Located};
use super::outcome::{self, End};
use super::state_changes::{Changes, dead_letter_all};
use super::{breaker_keys, breakers, retention, returned, undelivered};
use crate::domain::{
    Admission, BreakerKind, BreakerState, DeadReason, Meter, Outcome, QueueName, QueueSettings, State, Timestamp,
};
use crate::queue::{ExpiredLease, Sweep, Swept};
use crate::store::Result;
use crate::store::storage::{
    Applied, Batch, Entry, Fence, Index, Len, Member, NO_GROUP, Publish, Read, Reads, Storage, Table, Write,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// So much of each kind at a time; the rest is due at once.
const EXPIRIES_MAX: usize = 500;
const DEADLINES_MAX: usize = 500;
const RECORDS_MAX: usize = 500;
const REMOVALS_MAX: usize = 500;
/// Leases that are looked at for those that are not spared.
const SPARED_MAX: usize = 10_000;
/// A sweep that was asked for longer ago ends no lease.
const LATE: Duration = Duration::from_secs(1);
/// Keys and records whose time is over are in no hurry.
const TIDY_EVERY: Duration = Duration::from_secs(10);
/// The groups of breaker keys are looked at so often for those that are idle.
const KEYS_LOOKED_AT_EVERY: Duration = Duration::from_secs(600);

/// Outcomes of a queue that has succeeded in nothing for so long are looked at with its next one: what is written of them would
/// make an empty queue look used, and it could not be forgotten.
const OUTCOMES_REST_AFTER: Duration = Duration::from_secs(15 * 60);

/// Does what is due in one queue. Says when something is due next.
pub(crate) async fn sweep<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, sweep: Sweep, swept: &mut Swept,
) -> Result<Option<Timestamp>> {
    let Some(due) = Due::read(store, queue).await? else {
        cx.memory.forget(queue);
        return Ok(None);
    };
    let (now, settings) = (store.now(), cx.queue(queue));
    let mut sweeping = Sweeping { store, cx, queue, settings, now, sweep, swept, next: Next::default() };
    sweeping.run(&due).await?;
    Ok(sweeping.next.0)
}

/// When a queue next has something due, without doing anything; what retention makes due depends on settings, and is found by
/// the first sweep.
pub(crate) async fn next_due<S: Reads>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName,
) -> Result<Option<Timestamp>> {
    let Some(due) = Due::read(store, queue).await? else { return Ok(None) };
    let settings = cx.queue(queue);
    let mut next = Next::default();
    next.after(&due, &settings, cx, queue, store.now());
    next.at(first(&due.leased));
    next.at(first(&due.deadlines));
    Ok(next.0)
}

/// Whether a sweep would end a lease or dead-letter a job, rather than only make jobs ready: that may not be seen before it is
/// on disk.
pub(crate) async fn ends_anything<S: Reads>(store: &mut S, queue: &QueueName) -> Result<bool> {
    let now = store.now();
    let reads = [first_of(Index::Leased, 1), first_of(Index::Deadline, 1)];
    let mut found = ask(store, queue, &reads).await?;
    Ok(found.any(|found| first(&found.entries()).is_some_and(|at| at <= now)))
}

fn first(entries: &[Entry]) -> Option<Timestamp> {
    entries.first().map(|entry| Timestamp::from_millis(entry.score))
}

/// The earliest of several times.
#[derive(Default)]
struct Next(Option<Timestamp>);

impl Next {
    fn at(&mut self, at: Option<Timestamp>) {
        self.0 = self.0.into_iter().chain(at).min();
    }

    /// All but leases, deadlines and retention, which know better.
    fn after(
        &mut self, due: &Due, settings: &QueueSettings, cx: &mut CallContext<'_>, queue: &QueueName, now: Timestamp,
    ) {
        self.at(due.job_due);
        self.at(due.facts.paused_until());
        let keys = cx.memory.keys(queue).unwrap_or_default();
        for facts in std::iter::once(&due.facts).chain(keys.iter().map(|facts| &**facts)) {
            self.at(next_gate(facts, settings, cx, queue, now));
            self.at((!facts.breaker.returned.is_empty()).then_some(now));
        }
        self.at((due.facts.keys > 0).then(|| now.after(KEYS_LOOKED_AT_EVERY)));
        let tidied = now.after(TIDY_EVERY);
        // Ids may end as fast as jobs do: a full page of them is not the last.
        let more = due.expires.len() == RECORDS_MAX
            && due.expires.last().is_some_and(|entry| {
                entry.score <= now.millis() && matches!(entry.member, Member::Record(Table::Id, _))
            });
        self.at(first(&due.expires).map(|at| if more { now } else { at.max(tidied) }));
        self.at(first(&due.finished_keys).map(|at| at.max(tidied)));
        if let Some(at) = due.job_due {
            cx.job_due(queue, at);
        }
    }
}

/// When a breaker that holds the queue back changes by the clock.
fn next_gate(
    facts: &QueueFacts, settings: &QueueSettings, cx: &CallContext<'_>, queue: &QueueName, now: Timestamp,
) -> Option<Timestamp> {
    let outage = facts.breaker.outage.as_ref().filter(|_| facts.breaker.forced.is_none())?;
    if outage.recovering || cx.memory.half_open_announced(queue, facts.group) != facts.breaker.transitions {
        return breakers::next_look(&facts.breaker, &settings.breaker, now);
    }
    match facts.gate(settings).admission(facts.probes.iter().copied(), now) {
        Admission::Held { until, .. } => until,
        Admission::Jobs(_) => None,
    }
}

/// What is due in a queue, and what comes next.
struct Due {
    facts: QueueFacts,
    leased: Vec<Entry>,
    deadlines: Vec<Entry>,
    expires: Vec<Entry>,
    finished_keys: Vec<Entry>,
    /// All keys, and all jobs that are not done.
    keys: u64,
    not_done: u64,
    /// Of `Scheduled` and `Retrying`.
    job_due: Option<Timestamp>,
}

impl Due {
    async fn read<S: Reads>(store: &mut S, queue: &QueueName) -> Result<Option<Self>> {
        let due = [
            first_of(Index::Leased, EXPIRIES_MAX),
            first_of(Index::Deadline, DEADLINES_MAX),
            first_of(Index::Expires, RECORDS_MAX),
            first_of(Index::FinishedKey, RECORDS_MAX),
            Read::Len(Len::Index(Index::FinishedKey)),
            Read::Len(Len::Table(Table::Job)),
            Read::Len(Len::Index(Index::Completed)),
            Read::Len(Len::Index(Index::Cancelled)),
            first_of(Index::Scheduled, 1),
            first_of(Index::Retrying, 1),
        ];
        let reads: Vec<_> = QueueFacts::reads(NO_GROUP).into_iter().chain(due).collect();
        let Some(mut found) = ask_if_there(store, queue, &reads).await? else { return Ok(None) };
        // Fields are read in the order in which they stand here.
        Ok(Some(Self {
            facts: QueueFacts::found(NO_GROUP, &mut found)?,
            leased: found.entries(),
            deadlines: found.entries(),
            expires: found.entries(),
            finished_keys: found.entries(),
            keys: found.number(),
            not_done: found.number().saturating_sub(found.number() + found.number()),
            job_due: [found.entries(), found.entries()].iter().filter_map(|entries| first(entries)).min(),
        }))
    }
}

/// Tells what is ready in a queue, as far as it may leave it.
pub(crate) async fn tell_ready<S: Reads>(store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName) -> Result<()> {
    let Some(facts) = QueueFacts::read_anew(store, queue, NO_GROUP, cx).await? else { return Ok(()) };
    let mut ready = ask(store, queue, &[Read::Len(Len::Index(Index::Ready))]).await?.number();
    if facts.keys > 0 {
        let now = store.now();
        if cx.memory.keys_are_old(queue, now) {
            breaker_keys::read_anew(store, cx, queue).await?;
        }
        ready += ask(store, queue, &[Read::Len(Len::Index(Index::Keyed))]).await?.number();
    }
    cx.available(queue, &facts, ready, store.now());
    Ok(())
}

struct Sweeping<'c, 'a, S> {
    store: &'c mut S,
    cx: &'c mut CallContext<'a>,
    queue: &'c QueueName,
    settings: Arc<QueueSettings>,
    now: Timestamp,
    sweep: Sweep,
    swept: &'c mut Swept,
    next: Next,
}

impl<S: Storage> Sweeping<'_, '_, S> {
    async fn run(&mut self, due: &Due) -> Result<()> {
        if due.job_due.is_some_and(|at| at <= self.now) {
            self.promote(&due.facts).await?;
        }
        if due.facts.paused_until().is_some_and(|until| until <= self.now) {
            // Where another call changed it meanwhile, the next sweep looks again.
            breakers::set_pause(self.store, self.cx, self.queue, &due.facts, None).await?;
        }
        let mut groups = BTreeSet::from([NO_GROUP]);
        if due.facts.keys > 0 {
            if self.cx.memory.fits_keys(self.queue, &self.settings) {
                breaker_keys::fit_versions(self.store, self.cx, self.queue).await?;
            }
            let keys = match self.cx.memory.keys_are_old(self.queue, self.now) {
                true => breaker_keys::read_anew(self.store, self.cx, self.queue).await?,
                false => breaker_keys::remembered(self.store, self.cx, self.queue).await?,
            };
            // Those that are closed have nothing that time changes.
            groups.extend(keys.iter().filter(|facts| !facts.breaker.is_at_rest()).map(|facts| facts.group));
            groups.append(&mut self.cx.memory.take_buckets_due(self.queue));
        }
        for group in groups {
            let facts = QueueFacts::read_group(self.store, self.queue, group).await?;
            if facts.is_some_and(|facts| !facts.breaker.returned.is_empty()) {
                returned::return_counted(self.store, self.cx, self.queue, group).await?;
            }
            self.look_at_outcomes(group).await?;
            self.tell_half_open(group).await?;
        }
        if due.facts.keys > 0 && self.cx.memory.keys_are_due(self.queue, KEYS_LOOKED_AT_EVERY, self.now) {
            breaker_keys::forget_idle(self.store, self.cx, self.queue).await?;
        }
        self.expire_leases(&due.leased).await?;
        self.pass_deadlines(&due.deadlines).await?;
        if first(&due.expires).is_some_and(|at| at <= self.now) {
            expired_records::remove_expired(self.store, self.cx, self.queue, &due.expires).await?;
        }
        for index in [Index::Dead, Index::Completed, Index::Cancelled] {
            let removed = match index {
                Index::Dead => &mut self.swept.retention_expired,
                _ => &mut self.swept.completed_removed,
            };
            let left = REMOVALS_MAX.saturating_sub(*removed);
            let (ended, next) =
                retention::end_retention(self.store, self.cx, self.queue, &self.settings, index, left).await?;
            *removed += ended;
            self.next.at(next);
        }
        expired_records::forget_keys(self.store, self.cx, self.queue, due).await?;
        // What was done may have made something else due.
        if let Some(after) = Due::read(self.store, self.queue).await? {
            self.next.after(&after, &self.settings, self.cx, self.queue, self.now);
        }
        Ok(())
    }

    async fn promote(&mut self, facts: &QueueFacts) -> Result<()> {
        let writes = vec![Write::Promote(PROMOTIONS_MAX)];
        let batch = Batch { writes, publish: Publish::IfFirst, ..Batch::default() };
        if let Applied::Done(done) = self.store.apply(self.queue, &batch).await? {
            self.swept.promoted += done.promoted;
            if done.promoted > 0 {
                self.cx.available(self.queue, facts, done.ready, self.store.now());
            }
        }
        Ok(())
    }

    /// Ends a bucket of outcomes, or a step of the ramp, whose time has come.
    async fn look_at_outcomes(&mut self, group: u16) -> Result<()> {
        let queue = self.queue;
        let Some(before) = QueueFacts::read_group(self.store, queue, group).await? else { return Ok(()) };
        let (now, current) = (self.store.now(), epoch(group, &before.breaker));
        let [sums] = OutcomeFacts::reads(current);
        let reads = [sums, Read::Meter(group), breaker_keys::ready_in(group), breaker_keys::leased_in(group)];
        let mut found = ask(self.store, queue, &reads).await?;
        let outcomes = OutcomeFacts::found(&before, current, &mut found, now)?;
        let meter = found.meter().filter(|meter| meter.epoch == current);
        let (ready, leased) = (found.number(), breaker_keys::leased_found(&mut found));
        let mut after = before.clone();
        let mut stats = outcomes.outcome_stats.clone();
        let rests = ready + leased == 0 && stats.last_success.is_none_or(|at| now.since(at) >= OUTCOMES_REST_AFTER);
        let rolled = match &before.breaker.outage {
            None if rests => false,
            // The first bucket begins with the first outcomes.
            None => stats.roll(now) || before.outcomes_record.is_none() && stats.seen.count > 0,
            Some(_) => {
                let meter = Meter {
                    empty_at: meter.map(|it| it.empty_at).unwrap_or_default(),
                    held_at: meter.map(|it| it.held_at).unwrap_or_default(),
                    asked_at: meter.map(|it| it.at).unwrap_or_default(),
                    // No take has looked in this step where it is that of another version.
                    most_leased: meter
                        .filter(|meter| meter.random == before.version.random)
                        .map_or(leased, |meter| meter.most_leased),
                    ready,
                    leased,
                };
                after.breaker.tick(&mut stats, &meter, &self.settings.breaker, now)
            }
        };
        if !rolled {
            return Ok(());
        }
        let mut changes = Changes::default();
        changes.fence(before.version.fence(group));
        changes.fence(outcomes.fence());
        if before.breaker.outage.is_some() {
            breakers::put_breaker(&mut changes, &mut after, queue, self.cx);
            changes.publish(Publish::Always);
        } else if stats.usual.is_news(&before.breaker.usual) {
            // What is usual outlives a restart. It changes nothing about what may leave.
            after.breaker.usual = stats.usual.clone();
            after.put_breaker_record(&mut changes);
        }
        outcomes.put(stats.clone(), &mut after, &mut changes);
        let Applied::Done(done) = self.store.apply(queue, &changes.batch()).await? else {
            // Another server was first, or an outcome came in between: the next one asks again.
            return Ok(());
        };
        if after.breaker.transitions != before.breaker.transitions {
            breakers::tell(self.store, self.cx, queue, &after, &stats).await;
        }
        breakers::tell_degraded(self.cx, queue, &after.breaker, [&outcomes.outcome_stats, &stats], now);
        if before.breaker.outage.is_some() {
            self.cx.available(queue, &after, done.ready, now);
        }
        self.cx.memory.remember(queue, Arc::new(after));
        Ok(())
    }

    /// An open breaker whose time has come is half open, and slots of probes that did not come back are free.
    async fn tell_half_open(&mut self, group: u16) -> Result<()> {
        let queue = self.queue;
        let Some(facts) = QueueFacts::read_anew(self.store, queue, group, self.cx).await? else { return Ok(()) };
        let now = self.store.now();
        let half_open = facts.breaker.state(&self.settings.breaker, now) == BreakerState::HalfOpen;
        match next_gate(&facts, &self.settings, self.cx, queue, now) {
            Some(at) if at > now => {
                self.next.at(Some(at));
                return Ok(());
            }
            None if !half_open => return Ok(()),
            _ => {}
        }
        let transitions = facts.breaker.transitions;
        let announced = self.cx.memory.half_open_announced(queue, group) == transitions;
        self.cx.memory.tell_half_open(queue, group, transitions);
        if !announced && half_open {
            let view = breakers::view_of(self.store, self.cx, queue, group).await?.map(|(_, view)| view);
            self.cx.breaker_moved(queue, BreakerKind::Work, view.unwrap_or_default(), now);
        }
        tell_ready(self.store, self.cx, queue).await
    }

    async fn expire_leases(&mut self, due: &[Entry]) -> Result<()> {
        let now = self.store.now();
        if now.since(self.sweep.asked_at) > LATE {
            self.swept.late |= first(due).is_some_and(|at| at <= now);
            self.next.at(first(due).map(|at| at.max(now)));
            return Ok(());
        }
        let mut entries = due.to_vec();
        let (mut looked_at, mut expired) = (0, Vec::new());
        while let Some(last) = entries.last().cloned() {
            let page = entries.len();
            looked_at += page;
            for entry in entries {
                if entry.score > now.millis() {
                    self.next.at(Some(Timestamp::from_millis(entry.score)));
                    break;
                }
                expired.extend(entry.member.job());
            }
            let spares = now < self.sweep.spare_until;
            let enough = last.score > now.millis() || page < EXPIRIES_MAX || looked_at >= SPARED_MAX;
            if enough || !spares && expired.len() >= EXPIRIES_MAX {
                break;
            }
            let next = range(Index::Leased, Some(last), EXPIRIES_MAX);
            entries = ask(self.store, self.queue, &[next]).await?.entries();
        }
        if expired.len() >= EXPIRIES_MAX {
            // There may be more.
            self.next.at(Some(now));
        }
        for numbers in expired.chunks(EXPIRIES_MAX) {
            self.expire(numbers).await?;
        }
        Ok(())
    }

    /// Ends these leases, or returns their jobs where their claims were not delivered.
    async fn expire(&mut self, numbers: &[u64]) -> Result<()> {
        let (queue, now, sweep) = (self.queue, self.store.now(), self.sweep);
        let reads: Vec<_> = numbers.iter().flat_map(|number| LeaseFacts::reads(*number)).collect();
        let Some(mut found) = ask_if_there(self.store, queue, &reads).await? else { return Ok(()) };
        let mut ends = Vec::new();
        for number in numbers {
            let facts = LeaseFacts::found(queue, *number, &mut found)?.ok();
            let Some(facts) = facts.filter(|facts| facts.score <= now.millis()) else { continue };
            let lease = &facts.lease.lease;
            if facts.lease.tail.undelivered.is_some() {
                undelivered::return_job(self.store, self.cx, queue, &facts).await?;
            } else if lease.started_at < sweep.spare_made_before && now < sweep.spare_until {
                self.next.at(Some(sweep.spare_until));
            } else {
                let (number, epoch) = (*number, lease.epoch);
                ends.push(End { number, epoch, token: None, outcome: &Outcome::Expired, checkpoint: "" });
            }
        }
        if ends.is_empty() {
            return Ok(());
        }
        let ended = outcome::end_all(self.store, self.cx, queue, &ends).await?;
        let expired = ended.into_iter().flatten().map(|ended| {
            let (id, attempt) = (ended.id, ended.attempt);
            ExpiredLease { queue: queue.clone(), id, attempt }
        });
        self.swept.expired.extend(expired);
        Ok(())
    }

    /// Jobs that wait past their deadline die; for one that runs it is decided when its delivery ends.
    async fn pass_deadlines(&mut self, entries: &[Entry]) -> Result<()> {
        let now = self.store.now();
        let (passed, later) = entries.split_at(entries.partition_point(|entry| entry.score <= now.millis()));
        self.next.at(first(later));
        if passed.len() == DEADLINES_MAX {
            self.next.at(Some(now));
        }
        for entry in passed {
            let Some(number) = entry.member.job() else { continue };
            let mut rounds = Rounds::default();
            while !self.pass_deadline(entry, number).await? {
                rounds.next()?;
            }
        }
        Ok(())
    }

    /// False: the facts were old.
    async fn pass_deadline(&mut self, entry: &Entry, number: u64) -> Result<bool> {
        let queue = self.queue;
        let Some(facts) = QueueFacts::read(self.store, queue).await? else { return Ok(true) };
        let located = find::locate(self.store, queue, number).await?;
        let mark = self.cx.events.len();
        let mut changes = Changes::default();
        changes.fence(Fence::At(Index::Deadline, entry.clone()));
        match located {
            Some(Located { job, index, entry: at, .. })
                if matches!(find::state_of(index), State::Ready | State::Scheduled | State::Retrying) =>
            {
                changes.leave(index, at);
                let dying = [(job, index, DeadReason::Expired)];
                dead_letter_all(self.store, self.cx, queue, &facts, &dying, &mut changes).await?;
            }
            // It runs, or is done or dead: the entry is in the way.
            _ => changes.remove(Index::Deadline, entry.clone()),
        }
        match self.store.apply(queue, &changes.batch()).await? {
            Applied::Done(_) => {
                self.cx.memory.forget_facts(queue);
                Ok(true)
            }
            Applied::NoQueue => Ok(true),
            Applied::Changed(failed) => {
                self.cx.events.truncate(mark);
                // Without its entry there is nothing to do.
                Ok(failed.first().is_some_and(|(fence, _)| *fence == 0))
            }
        }
    }
}
