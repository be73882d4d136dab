//! An outage costs no attempt: failures that were counted before the breaker opened are returned to their jobs, and jobs that
//! died of them come back. The breaker's record lists them; each is worked off with its entry in one batch, by the sweep of any
//! server.

use super::answers::{ask, ask_record, by_name, numbered};
use super::breaker_keys::KeyGroups;
use super::bulk;
use super::context::CallContext;
use super::facts::{JobFacts, LeaseFacts, QueueFacts, Rounds, record_fence};
use super::find::{self, Located};
use super::records::{self, History, LeaseRecord, LeaseTail, Whereabouts, read_if};
use super::select::{DeadEntry, read_dead};
use super::state_changes::{Changes, FoundKey};
use crate::domain::{Breaker, CountedFailure, DeadReason, JobEvent, JobEventKind, QueueName, State, Timestamp};
use crate::queue::records::KeyRecord;
use crate::store::Result;
use crate::store::storage::{Applied, Entry, Fence, Index, RecordKey, Storage, Table, Write};

/// Returns all that the breaker lists.
pub(crate) async fn return_counted<S: Storage>(
    store: &mut S, cx: &mut CallContext<'_>, queue: &QueueName, group: u16,
) -> Result<()> {
    let mut rounds = Rounds::default();
    let key = RecordKey::Group(group);
    loop {
        let record = ask_record(store, queue, Table::Breaker, key.clone()).await?;
        let (breaker, unknown) = read_if(record.as_ref(), records::read_breaker_whole)?.unwrap_or_default();
        let Some((failure, rest)) = breaker.returned.split_first() else {
            cx.memory.forget_facts(queue);
            return Ok(());
        };
        let mut changes = Changes::default();
        changes.fence(record_fence(Table::Breaker, key.clone(), record.as_ref()));
        let mut returning = Returning { store, cx, queue, failure, changes };
        let requeued = returning.plan().await?;
        let Returning { mut changes, .. } = returning;
        let after = Breaker { returned: rest.to_vec(), ..breaker.clone() };
        changes.put(Table::Breaker, key.clone(), records::breaker(&after, &unknown));
        match store.apply(queue, &changes.batch()).await? {
            Applied::Done(done) => {
                rounds.won();
                if requeued {
                    bulk::make_room(store, cx, queue).await?;
                    let now = store.now();
                    QueueFacts::tell_ready(store, queue, cx, done.ready, now).await?;
                }
            }
            // The job moved meanwhile, or another server works the list off.
            Applied::Changed(_) => rounds.next()?,
            Applied::NoQueue => return Ok(()),
        }
    }
}

struct Returning<'r, 'a, S> {
    store: &'r mut S,
    cx: &'r mut CallContext<'a>,
    queue: &'r QueueName,
    failure: &'r CountedFailure,
    changes: Changes,
}

impl<S: Storage> Returning<'_, '_, S> {
    /// What the batch changes of the job. True: it was dead, and is ready again.
    async fn plan(&mut self) -> Result<bool> {
        let located = find::locate(self.store, self.queue, self.failure.number).await?;
        let Some(Located { job, index, entry, lease }) = located else { return Ok(false) };
        match (find::state_of(index), lease) {
            (State::Leased, Some(lease)) => {
                self.mark_lease(&lease);
                Ok(false)
            }
            (State::Ready | State::Scheduled | State::Retrying, _) => {
                if let Some(history) = self.returned(&job) {
                    self.changes.fence(Fence::At(index, entry));
                    self.put(&job, history);
                }
                Ok(false)
            }
            (State::Dead, _) => self.requeue(&job, index, &entry).await,
            _ => Ok(false),
        }
    }

    /// A later delivery runs: the decision at its end reads the mark.
    fn mark_lease(&mut self, facts: &LeaseFacts) {
        let LeaseRecord { lease, attempt, position, tail } = &facts.lease;
        let tail = LeaseTail { returned: tail.returned + 1, ..tail.clone() };
        let record = LeaseRecord { lease: lease.clone(), attempt: *attempt, position: *position, tail };
        let expires_at = Timestamp::from_millis(facts.score);
        self.changes.fence(facts.fence());
        self.changes.fence(facts.expiry_fence());
        let record = records::lease(&record);
        self.changes.write(Write::PutLease { number: facts.job.number, expires_at, record });
    }

    /// Its history without the failure. None: nothing of it counts.
    fn returned(&self, job: &JobFacts) -> Option<History> {
        let mut history = job.history.clone().filter(|history| history.progress.tries > 0)?;
        history.progress.tries -= 1;
        history.progress.uncounted += 1;
        history.progress.uncounted_since.get_or_insert(self.failure.at);
        Some(history)
    }

    fn put(&mut self, job: &JobFacts, mut history: History) {
        self.record_event(job, &mut history);
        let key = RecordKey::Number(job.number);
        self.changes.put(Table::History, key, records::history(&history));
    }

    fn record_event(&mut self, job: &JobFacts, history: &mut History) {
        let detail = format!("the failure of delivery {} does not count: an outage began", self.failure.delivery);
        let event = JobEvent::new(self.store.now(), JobEventKind::ReturnedByBreaker, "", detail);
        self.changes.record_event(job.number, &mut history.progress, &event);
    }

    /// A job that died of the failure comes back, unless another one has its key by now.
    async fn requeue(&mut self, job: &JobFacts, index: Index, entry: &Entry) -> Result<bool> {
        let (number, now) = (job.number, self.store.now());
        let mut reads = vec![numbered(Table::Dead, number), numbered(Table::Move, number)];
        reads.extend(job.spec.key.as_deref().map(|key| by_name(Table::Key, key)));
        let mut found = ask(self.store, self.queue, &reads).await?;
        let (dead, moving) = (read_dead(found.record().as_ref())?, found.record());
        let key = FoundKey::read(found.record())?;
        let exhausted = dead.as_ref().is_some_and(|dead| dead.reason == DeadReason::Exhausted);
        let history = self.returned(job).filter(|history| history.progress.deliveries == self.failure.delivery);
        let other = key.as_ref().map(|key| key.record.number).filter(|other| *other != number);
        let taken = match other {
            Some(other) => find::not_done(self.store, self.queue, &[other]).await?.contains(&other),
            None => false,
        };
        let Some(mut history) = history.filter(|_| exhausted && moving.is_none() && !taken) else {
            return Ok(false);
        };
        self.changes.fence(Fence::Absent(Table::Move, RecordKey::Number(number)));
        let letter = DeadEntry { index, death: entry.score, number };
        self.changes.leave_dead(&letter, dead.as_ref());
        if let Some(name) = &job.spec.key {
            let sameness = job.sameness.unwrap_or_default();
            let until = job.spec.key_until(self.cx.settings.queue(self.queue).key_retention);
            let record = KeyRecord { number, until, at: until.max(now), sameness, id: job.spec.id.clone() };
            self.changes.take_key(name, key.as_ref(), &record);
        }
        self.record_event(job, &mut history);
        let keys = || job.breaker_key().into_iter();
        let groups = KeyGroups::of(self.store, self.cx, self.queue, keys()).await?.unwrap_or_default();
        groups.enter(keys(), &mut self.changes);
        history.group = groups.group(job.breaker_key());
        self.changes.enter_waiting(job, history, now, Whereabouts::Retrying, now, self.cx, self.queue);
        Ok(true)
    }
}
