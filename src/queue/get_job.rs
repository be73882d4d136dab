//! Views of jobs: what reads answer about them.

use super::answers::{Answers, ask, ask_if_there, ask_known, by_name, numbered, together};
use super::breaker_keys;
use super::cross_queue;
use super::facts::LeaseFacts;
use super::find::{self, Named};
use super::records::{self, DeadRecord};
use super::refusal;
use super::select::read_dead;
use super::state_changes::{FIRST_FAILURE, LAST_FAILURE, attempt_part, kept_attempts};
use crate::domain::{
    Attempt, Body, Breaker, Delivery, Failure, JobEvent, JobId, Measured, Pause, QueueName, Spec, State, Timestamp,
};
use crate::queue::{Ahead, Death, JobView, UnknownFields};
use crate::store::Result;
use crate::store::storage::{
    Entry, Index, Len, Member, NO_GROUP, Position, Read, Reads, RecordKey, Table, WHOLE_QUEUE,
};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Range;

/// READY jobs ahead are counted up to here.
pub(crate) const AHEAD_MAX: usize = 10_000;
/// Views that are completed by one read, and bytes of their bodies.
const GROUP_JOBS: usize = 25;
const GROUP_BYTES: usize = 1 << 20;
/// Parts that attempts stand in, and events.
const ATTEMPT_PARTS: Range<u8> = 1..51;

/// How much of a job a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Detail {
    /// No more than a line of a list needs.
    Brief,
    /// And attempts, events and checkpoint.
    Attempts,
    /// And body, headers and result.
    Whole,
}

/// The jobs of this id, with their history: one in each queue that has it.
pub(crate) async fn job<S: Reads>(
    store: &mut S, id: &JobId, queue: Option<&QueueName>,
) -> refusal::Result<Vec<JobView>> {
    let mut before = Vec::new();
    loop {
        let named = find::find_job(store, id, queue).await?;
        // A caller that finds several has to ask again, and needs no bodies for that.
        let detail = if named.len() == 1 { Detail::Whole } else { Detail::Attempts };
        let mut found = Vec::with_capacity(named.len());
        for Named { queue, number, .. } in &named {
            found.extend(view(store, queue, *number, detail).await?);
        }
        // Where none is there, another job may have got its id meanwhile.
        if !found.is_empty() || named == before {
            return Ok(found);
        }
        before = named;
    }
}

/// The job of the queue that last had this key, where it is still there.
pub(crate) async fn job_of_key<S: Reads>(store: &mut S, queue: &QueueName, key: &str) -> refusal::Result<Vec<JobView>> {
    let holder = ask_known(store, queue, &[by_name(Table::Key, key)]).await?.parse(records::read_key)?;
    let Some(holder) = holder else { return Ok(Vec::new()) };
    let found = view(store, queue, holder.number, Detail::Whole).await?;
    Ok(found.into_iter().filter(|view| view.spec.key.as_deref() == Some(key)).collect())
}

/// How often a job that moves meanwhile is looked at.
const ROUNDS_MAX: usize = 3;

async fn view<S: Reads>(store: &mut S, queue: &QueueName, number: u64, detail: Detail) -> Result<Option<JobView>> {
    for _ in 0..ROUNDS_MAX {
        let Some(located) = find::locate(store, queue, number).await? else { return Ok(None) };
        let seen = [(located.index, located.entry)];
        let Some(mut view) = views(store, queue, &seen, detail).await?.pop().flatten() else {
            continue;
        };
        if let (Index::Ready | Index::Keyed, Entry { member: Member::Position(position), .. }) = &seen[0] {
            view.ahead = Some(ahead(store, queue, *position).await?);
        }
        return Ok(Some(view));
    }
    Ok(None)
}

/// How many jobs are handed out before this one.
async fn ahead<S: Reads>(store: &mut S, queue: &QueueName, position: Position) -> Result<Ahead> {
    let jobs = ask(store, queue, &[Read::Ahead(position, AHEAD_MAX + 1)]).await?.number();
    Ok(counted(usize::try_from(jobs).unwrap_or(usize::MAX)))
}

pub(crate) fn counted(jobs: usize) -> Ahead {
    Ahead { jobs: jobs.min(AHEAD_MAX), more: jobs > AHEAD_MAX }
}

/// Jobs as views, without what is ahead of them. `seen`: the indexes that have them, and where. `None`: it is there no longer,
/// or has arrived in another queue.
pub(crate) async fn views<S: Reads>(
    store: &mut S, queue: &QueueName, seen: &[(Index, Entry)], detail: Detail,
) -> Result<Vec<Option<JobView>>> {
    let heads = heads(store, queue, seen).await?;
    let mut views = Vec::with_capacity(heads.len());
    while views.len() < heads.len() {
        views.extend(complete_some(store, queue, &heads[views.len()..], detail).await?);
    }
    Ok(views)
}

// ---- the first read: all but bodies, results, failures and attempts ----

/// A job as far as the first read shows it.
pub(crate) struct Head {
    number: u64,
    /// Of its breaker key, while it waits or runs.
    group: u16,
    job: Option<Bytes>,
    /// It has a record in `History`, which may be damaged.
    has_history: bool,
    /// Attempts and events that were recorded, where its history can be read.
    recorded: Option<[u32; 2]>,
    /// What its lease says of a cancellation.
    cancel_requested: Option<JobEvent>,
    has_failed: bool,
    /// Without body and headers.
    view: JobView,
}

impl Head {
    pub(crate) fn job_type(&self) -> &str {
        &self.view.spec.job_type
    }

    /// About what its body takes.
    fn body_bytes(&self) -> usize {
        let size = self.job.as_ref().and_then(|job| job.first_chunk().copied());
        size.map_or(0, |size| u32::from_be_bytes(size) as usize)
    }
}

fn is_dead(index: Index) -> bool {
    matches!(index, Index::Dead | Index::Overflow)
}

/// See [`views`].
pub(crate) async fn heads<S: Reads>(
    store: &mut S, queue: &QueueName, seen: &[(Index, Entry)],
) -> Result<Vec<Option<Head>>> {
    let mut reads = vec![
        Read::Record(Table::Queue, RecordKey::Only),
        Read::Record(Table::Breaker, RecordKey::Group(NO_GROUP)),
        Read::Len(Len::Index(Index::Leased)),
        Read::Meter(WHOLE_QUEUE),
    ];
    for (index, entry) in seen {
        let number = entry.member.job().unwrap_or_default();
        reads.extend(LeaseFacts::reads(number));
        if is_dead(*index) {
            reads.extend([Table::Dead, Table::Move].map(|table| numbered(table, number)));
            reads.push(Read::Score(*index, Member::Number(number)));
        }
    }
    let Some(mut found) = ask_if_there(store, queue, &reads).await? else {
        return Ok(seen.iter().map(|_| None).collect());
    };
    let pause = found.parse(records::read_queue)?.unwrap_or_default().pause;
    let breaker = found.parse(records::read_breaker)?.unwrap_or_default();
    let leased = found.number();
    let measured = breaker_keys::measured(leased, &mut found);
    let mut heads = Vec::with_capacity(seen.len());
    for (index, entry) in seen {
        let seen = Seen { queue, index: *index, entry, pause: &pause, breaker: &breaker, measured };
        let (mut head, mark) = seen.head(&mut found)?;
        if let (Some(Head { number, .. }), Some(mark)) = (&head, mark)
            && cross_queue::is_moved_away(store, *number, &mark).await?
        {
            head = None;
        }
        heads.push(head);
    }
    let groups: BTreeSet<u16> = heads.iter().flatten().map(|head| head.group).filter(|it| *it != NO_GROUP).collect();
    let of_group = |group: &u16| {
        let breaker = Read::Record(Table::Breaker, RecordKey::Group(*group));
        [breaker, breaker_keys::leased_in(*group), Read::Meter(*group)]
    };
    let mut found = ask(store, queue, &groups.iter().flat_map(of_group).collect::<Vec<_>>()).await?;
    for group in groups {
        let breaker = found.parse(records::read_breaker)?.unwrap_or_default();
        let leased = breaker_keys::leased_found(&mut found);
        let measured = breaker_keys::measured(leased, &mut found);
        for head in heads.iter_mut().flatten().filter(|head| head.group == group) {
            (head.view.breaker, head.view.measured_of_key) = (breaker.clone(), measured);
        }
    }
    Ok(heads)
}

/// Where an index has a job.
struct Seen<'a> {
    queue: &'a QueueName,
    index: Index,
    entry: &'a Entry,
    pause: &'a Option<Pause>,
    breaker: &'a Breaker,
    measured: Measured,
}

impl Seen<'_> {
    /// The head, if the job is still there, and its record in `Move`.
    fn head(&self, found: &mut Answers) -> Result<(Option<Head>, Option<Bytes>)> {
        let number = self.entry.member.job().unwrap_or_default();
        // Behind the lease and its end.
        let job = found.record_after(2);
        let leased = LeaseFacts::found(self.queue, number, found)?;
        let (dead, mark, score) = match is_dead(self.index) {
            true => (found.record(), found.record(), found.score()),
            false => (None, None, None),
        };
        let state = find::state_of(self.index);
        let facts = leased.as_ref().map_or_else(|job| job, |lease| &lease.job);
        let moved = match &facts.history {
            _ if leased.is_ok() != (state == State::Leased) || !facts.exists => true,
            _ if is_dead(self.index) => dead.is_none() || score != Some(self.entry.score),
            Some(history) if state != State::Leased => {
                history.whereabouts.state() == State::Dead
                    || history.whereabouts.is_over() != matches!(state, State::Completed | State::Cancelled)
                    || self.ready_at().is_some_and(|at| at != history.at)
            }
            _ => false,
        };
        if moved {
            return Ok((None, mark));
        }
        let at = facts.history.as_ref().map_or(facts.spec.run_at, |history| history.at);
        let death = dead.map(|dead| self.death(&dead, at)).transpose()?;
        let (group, breaker_key) = (facts.group(), facts.breaker_key().map(str::to_owned));
        let learnt_key = breaker_key.filter(|key| facts.spec.breaker_key.as_ref() != Some(key));
        let (recorded, has_history) = (facts.past().map(|past| [past.recorded, past.events]), facts.has_history);
        let has_failed = has_history && facts.past().is_none_or(|past| past.first_failed_at.is_some());
        let unknown = facts.history.as_ref().map(|history| history.unknown.clone()).unwrap_or_default();
        let (mut delivery, mut old_place, mut cancel_requested) = (None, None, None);
        let (progress, spec) = match leased {
            Ok(lease) => {
                let mut progress = lease.progress();
                if !lease.lease.tail.checkpoint.is_empty() {
                    progress.checkpoint.clone_from(&lease.lease.tail.checkpoint);
                }
                let running = lease.lease.delivery(lease.lease.expires_at(lease.score));
                let token = find::with_own_id(running.lease.clone(), &lease.job.spec.id);
                delivery = Some(Delivery { lease: token, ..running });
                old_place = Some(lease.lease.position.ready_at);
                cancel_requested.clone_from(&lease.lease.tail.cancel_requested);
                (progress, lease.job.spec)
            }
            Err(job) => (job.progress(), job.spec),
        };
        let view = JobView {
            queue: self.queue.clone(),
            corrupt: false,
            state,
            ready_at: self.ready_at(),
            old_place,
            delivery,
            death,
            completed_at: matches!(state, State::Completed | State::Cancelled)
                .then_some(Timestamp::from_millis(self.entry.score)),
            result: Bytes::new(),
            attempts: Vec::new(),
            events: Vec::new(),
            last_failure: None,
            ahead: None,
            pause: self.pause.clone(),
            breaker: self.breaker.clone(),
            forced: self.breaker.forced.clone(),
            measured: self.measured,
            measured_of_key: Measured::default(),
            learnt_key,
            unknown: UnknownFields { history: unknown, ..UnknownFields::default() },
            progress,
            spec: Spec { headers: Vec::new(), ..spec },
        };
        Ok((Some(Head { number, group, job, has_history, recorded, cancel_requested, has_failed, view }), mark))
    }

    /// While it waits.
    fn ready_at(&self) -> Option<Timestamp> {
        match self.entry.member {
            Member::Position(position) => Some(position.ready_at),
            _ => None,
        }
    }

    /// Of a damaged record no more than its number. `at`: when its history says that it died.
    fn death(&self, record: &Bytes, at: Timestamp) -> Result<Death> {
        let (number, overflow) = (self.entry.score, self.index == Index::Overflow);
        let dead = read_dead(Some(record))?.unwrap_or_else(|| DeadRecord::damaged(at));
        let DeadRecord { reason, died_at, context, .. } = dead;
        Ok(Death { number, reason, died_at, overflow, context })
    }
}

// ---- the second read ----

/// The rest of the first of these jobs, as many as one read completes; those that are gone meanwhile are left out.
pub(crate) async fn complete_some<S: Reads>(
    store: &mut S, queue: &QueueName, heads: &[Option<Head>], detail: Detail,
) -> Result<Vec<Option<JobView>>> {
    let most = if detail == Detail::Brief { usize::MAX } else { GROUP_JOBS };
    let body_bytes = |head: &Option<Head>| match detail {
        Detail::Whole => head.as_ref().map_or(0, Head::body_bytes),
        _ => 0,
    };
    let heads = &heads[..together(heads, most, GROUP_BYTES, body_bytes)];
    let mut reads = Vec::new();
    heads.iter().flatten().for_each(|head| head.reads(detail, &mut reads));
    let mut found = ask(store, queue, &reads).await?;
    heads.iter().map(|head| head.as_ref().map_or(Ok(None), |head| head.view(detail, &mut found))).collect()
}

impl Head {
    fn is_apart(&self) -> bool {
        self.job.as_ref().is_some_and(|job| records::is_apart(job))
    }

    /// Where its attempts and events stand.
    fn parts(&self) -> [Vec<u8>; 2] {
        match self.recorded {
            Some(recorded) => recorded.map(|recorded| kept_attempts(recorded).map(attempt_part).collect()),
            None if self.has_history => [ATTEMPT_PARTS.collect(), ATTEMPT_PARTS.collect()],
            None => [Vec::new(), Vec::new()],
        }
    }

    fn reads(&self, detail: Detail, reads: &mut Vec<Read>) {
        let part = |table, part| Read::Record(table, RecordKey::Part(self.number, part));
        if self.has_failed {
            reads.extend([FIRST_FAILURE, LAST_FAILURE].map(|it| part(Table::Failure, it)));
        }
        if detail >= Detail::Attempts {
            let [attempts, events] = self.parts();
            reads.extend(attempts.into_iter().map(|it| part(Table::Attempt, it)));
            reads.extend(events.into_iter().map(|it| part(Table::Event, it)));
        }
        if detail == Detail::Whole && self.is_apart() {
            reads.extend([Table::Body, Table::Job].map(|table| numbered(table, self.number)));
        }
        if detail == Detail::Whole && self.view.state == State::Completed {
            reads.push(numbered(Table::Result, self.number));
        }
    }

    /// From what was found under [`Head::reads`].
    fn view(&self, detail: Detail, found: &mut Answers) -> Result<Option<JobView>> {
        let mut view = self.view.clone();
        let mut failures = Vec::new();
        if self.has_failed {
            failures.extend(found.parse(records::read_failure)?);
            failures.extend(found.parse(records::read_failure)?);
        }
        if detail >= Detail::Attempts {
            let [kept, events] = self.parts().map(|parts| parts.len());
            let kept: Vec<_> = (0..kept).filter_map(|_| found.record()).collect();
            view.attempts = attempts(&kept, failures.first(), failures.last())?;
            for _ in 0..events {
                // A damaged one is left out.
                view.events.extend(found.parse(records::read_event)?);
            }
            view.events.extend(self.cancel_requested.clone());
        } else {
            view.progress.checkpoint.clear();
        }
        view.last_failure = failures.pop();
        if detail < Detail::Whole {
            return Ok(Some(view));
        }
        let mut body = None;
        if self.is_apart() {
            body = found.record();
            if found.record().is_none() {
                // Its body went with it.
                return Ok(None);
            }
        }
        if let Some(job) = &self.job {
            (view.spec, view.corrupt) = whole(self.number, job, body)?;
            view.unknown.job = records::read_job_rest(job).map(|(_, unknown)| unknown).unwrap_or_default();
        }
        if view.state == State::Completed
            && let Some(record) = found.record()
        {
            let result = records::readable(records::read_result(&record))?;
            view.corrupt |= result.is_none();
            view.result = result.unwrap_or_default();
        }
        Ok(Some(view))
    }
}

/// The job with its body, and whether it is damaged.
fn whole(number: u64, job: &Bytes, body: Option<Bytes>) -> Result<(Spec, bool)> {
    if let Some(spec) = records::readable(records::read_job(job, body.as_ref()))? {
        return Ok((spec, false));
    }
    if let Some(spec) = records::readable(records::read_job_unchecked(job, body.as_ref()))? {
        return Ok((spec, true));
    }
    let spec = records::job_or_stand_in(number, None)?;
    Ok((Spec { body: body.map_or(Body::None, Body::Data), ..spec }, true))
}

/// The attempts in order, with first and last failure whole.
fn attempts(kept: &[Bytes], first: Option<&Failure>, last: Option<&Failure>) -> Result<Vec<Attempt>> {
    let mut all = Vec::with_capacity(kept.len());
    for record in kept {
        let attempt = records::readable(records::read_attempt(record))?;
        all.push(attempt.unwrap_or_else(records::damaged_attempt));
    }
    let failed = |attempt: &&mut Attempt| attempt.failure.is_some();
    if let Some(attempt) = all.iter_mut().rfind(failed) {
        make_whole(attempt, last);
    }
    if let Some(attempt) = all.iter_mut().find(failed) {
        make_whole(attempt, first);
    }
    Ok(all)
}

/// Puts a failure where its summary is; its own attempt may be one of those that were not kept.
fn make_whole(attempt: &mut Attempt, whole: Option<&Failure>) {
    if attempt.failure == whole.map(Failure::summary) {
        attempt.failure = whole.cloned();
    }
}
