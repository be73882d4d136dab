//! REPLACE_WAITING: a job that waits and was never delivered gives its place, its id and its key to a new one.

use super::Adding;
use super::earlier::{Decision, Earlier};
use super::item::Item;
use crate::domain::{JobEvent, JobEventKind, Progress, Spec, State};
use crate::queue::answers::{ask, ask_record};
use crate::queue::breaker_keys::KeyGroups;
use crate::queue::encoding::Unknown;
use crate::queue::facts::JobFacts;
use crate::queue::find::{self, Located};
use crate::queue::records::{self, History, IdRecord, KeyRecord, Whereabouts};
use crate::queue::state_changes::{Changes, FoundKey, kept_before_next};
use crate::queue::{EnqueueOutcome, Enqueued};
use crate::store::Result;
use crate::store::storage::{Applied, Fence, Read, RecordKey, Storage, Table, flag};
use bytes::Bytes;

impl<S: Storage> Adding<'_, '_, S> {
    /// Where the job that is there is not to be replaced, it is the answer.
    pub(super) async fn replace(&mut self, item: &Item, earlier: Earlier) -> Result<Decision> {
        let located = find::locate(self.store, &self.queue, earlier.number).await?;
        let waits = |old: &Located| matches!(find::state_of(old.index), State::Ready | State::Scheduled);
        let Some(old) = located.filter(|old| waits(old) && old.job.progress().deliveries == 0) else {
            return Ok(Decision::Earlier(earlier));
        };
        let events = self.events(&old.job).await?;
        let (number, sameness) = (item.number, item.sameness.unwrap_or_default());
        let spec = Spec { id: earlier.id, ..item.spec.clone() };
        let record = records::job(&spec, number, item.group, Some(&sameness), &Unknown::default());
        let id = RecordKey::Text(spec.id.to_string().into());
        let mut changes = Changes::default();
        changes.leave(old.index, old.entry);
        changes.unwatch_deadline(&old.job);
        changes.remove_job(old.job.number, old.job.traits);
        changes.fence(match old.job.traits & flag::OWN_ID != 0 {
            true => Fence::Begins(Table::Id, id.clone(), records::owner(old.job.number)),
            // Its id held its number, and so had no record.
            false => Fence::Absent(Table::Id, id.clone()),
        });
        let key_record = KeyRecord { number, until: item.key_until, at: item.key_until, sameness, id: spec.id.clone() };
        let old_key = match &old.job.spec.key {
            Some(key) => FoundKey::read(self.key_record(key).await?)?.filter(|it| it.record.number == old.job.number),
            None => None,
        };
        match (&old.job.spec.key, &spec.key) {
            (Some(old), Some(key)) if old == key => changes.take_key(key, old_key.as_ref(), &key_record),
            (old_name, key) => {
                if let Some(name) = old_name {
                    changes.free_key(name, old_key.as_ref().map(|it| &it.record), old.job.number);
                }
                if let Some(key) = key {
                    changes.take_key(key, item.finished_key.as_ref(), &key_record);
                }
            }
        }
        changes.fence(Fence::Absent(Table::Job, RecordKey::Number(number)));
        changes.put(Table::Job, RecordKey::Number(number), record.record);
        if let Some(body) = record.body {
            changes.put(Table::Body, RecordKey::Number(number), body);
        }
        changes.put(Table::Id, id, records::id(&IdRecord { number, sameness }));
        let detail = format!("it stands for the job that was enqueued at {}", old.job.spec.enqueued_at);
        let mut progress = Progress { events: old.job.progress().events, ..Progress::default() };
        for (part, record) in events {
            changes.put(Table::Event, RecordKey::Part(number, part), record);
        }
        let event = JobEvent::new(self.now, JobEventKind::Replaced, "", detail);
        changes.record_event(number, &mut progress, &event);
        let rank = records::rank(spec.priority);
        let whereabouts = if spec.run_at > self.now { Whereabouts::Scheduled } else { Whereabouts::Ready };
        let group = item.group;
        let history = History { progress, whereabouts, rank, group, at: spec.run_at, ..History::default() };
        changes.put(Table::History, RecordKey::Number(number), records::history(&history));
        let position = records::position(group, number, rank, spec.run_at, true);
        let keys = KeyGroups::of(self.store, self.cx, &self.queue, spec.breaker_key.as_deref().into_iter()).await?;
        let keys = keys.filter(|keys| keys.group(spec.breaker_key.as_deref()) == group);
        let Some(keys) = keys else { return Ok(Decision::TryAgain) };
        keys.enter(spec.breaker_key.as_deref().into_iter(), &mut changes);
        changes.enter(position, spec.expires_at, self.now);
        let made_ready = changes.made_ready;
        match self.store.apply(&self.queue, &changes.batch()).await? {
            Applied::Done(done) => {
                self.cx.applied();
                self.announce(std::slice::from_ref(item), &done, made_ready).await?;
                let (outcome, run_at) = (EnqueueOutcome::Replaced, Some(spec.run_at));
                let answer = Ok(Enqueued { id: spec.id, outcome, state: item.state, run_at });
                Ok(Decision::Replaced(old.job.number, answer))
            }
            Applied::Changed(_) | Applied::NoQueue => Ok(Decision::TryAgain),
        }
    }

    /// The records of the old one's events, by where they stand.
    async fn events(&mut self, old: &JobFacts) -> Result<Vec<(u8, Bytes)>> {
        let parts: Vec<_> = kept_before_next(old.progress().events).collect();
        let read = |part: &u8| Read::Record(Table::Event, RecordKey::Part(old.number, *part));
        let mut found = ask(self.store, &self.queue, &parts.iter().map(read).collect::<Vec<_>>()).await?;
        Ok(parts.into_iter().filter_map(|part| Some((part, found.record()?))).collect())
    }

    async fn key_record(&mut self, key: &str) -> Result<Option<Bytes>> {
        ask_record(self.store, &self.queue, Table::Key, RecordKey::Text(key.into())).await
    }
}
