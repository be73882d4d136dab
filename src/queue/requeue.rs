//! Requeue: dead letters go back to work, in their own queue or in another. Purge: they are removed for good, with all that
//! belongs to them.

use super::bulk::{self, Action, Bulk};
use super::context::CallContext;
use super::facts::{JobFacts, record_fence};
use super::records::{History, KeyRecord, Whereabouts};
use super::refusal::Result;
use super::removal::LetterFacts;
use super::requests::BulkProgress;
use super::state_changes::{Changes, FoundKey, Total};
use crate::domain::{JobEvent, JobEventKind, QueueName, Spec, Timestamp};
use crate::queue::{Purge, Purged, Requeue, Requeued};
use crate::store::storage::{Fence, RecordKey, Storage, Table};

pub(crate) async fn requeue<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, requeue: Requeue) -> Result<Requeued> {
    let (keep_attempts, reason) = (requeue.keep_attempts, requeue.reason.as_str());
    let action = match &requeue.target {
        Some(to) if *to != requeue.part.queue => Action::Move { to, keep_attempts, reason },
        _ => Action::Requeue { keep_attempts, reason },
    };
    let bulk = Bulk {
        call: "requeue",
        part: &requeue.part,
        which: &requeue.which,
        action,
        dry_run: requeue.dry_run,
        request: requeue.request.as_ref(),
    };
    let BulkProgress { ids, skipped, has_more, left, .. } = bulk::run(store, cx, &bulk).await?;
    Ok(Requeued { ids, skipped, has_more, left })
}

pub(crate) async fn purge<S: Storage>(store: &mut S, cx: &mut CallContext<'_>, purge: Purge) -> Result<Purged> {
    let bulk = Bulk {
        call: "purge",
        part: &purge.part,
        which: &purge.which,
        action: Action::Purge,
        dry_run: purge.dry_run,
        request: purge.request.as_ref(),
    };
    let BulkProgress { count, skipped, has_more, left, .. } = bulk::run(store, cx, &bulk).await?;
    Ok(Purged { count, skipped, has_more, left })
}

/// Where and how dead letters become ready.
pub(super) struct ToReady<'a> {
    pub(super) queue: &'a QueueName,
    pub(super) keep_attempts: bool,
    /// The caller's.
    pub(super) reason: &'a str,
    pub(super) now: Timestamp,
}

impl ToReady<'_> {
    /// DEAD → READY in the same queue. `spec`: the job whole; `key`: what stands under its key; `group`: of its breaker key.
    pub(super) fn put_back(
        &self, letter: &LetterFacts, spec: &Spec, (key, group): (Option<&FoundKey>, u16), cx: &mut CallContext<'_>,
        changes: &mut Changes,
    ) {
        let LetterFacts { letter, job, history_record, dead, .. } = letter;
        let name = RecordKey::Number(letter.number);
        changes.fence(Fence::Absent(Table::Move, name.clone()));
        changes.fence(record_fence(Table::History, name, history_record.as_ref()));
        changes.leave_dead(letter, dead.as_ref());
        let died = dead.as_ref().map(|dead| format!("it died at {}: {}", dead.died_at, dead.reason.as_str()));
        self.enter(job, spec, (key, group), (JobEventKind::Requeued, died.unwrap_or_default()), cx, changes);
        changes.add(Total::Requeued, 1);
    }

    /// The job is ready, and has its key. `why`: the kind and detail of the event that this is.
    pub(super) fn enter(
        &self, job: &JobFacts, spec: &Spec, (key, group): (Option<&FoundKey>, u16), why: (JobEventKind, String),
        cx: &mut CallContext<'_>, changes: &mut Changes,
    ) {
        if let Some(name) = &spec.key {
            let sameness = job.sameness.unwrap_or_else(|| spec.sameness());
            let until = spec.key_until(cx.settings.queue(self.queue).key_retention);
            let at = until.max(self.now);
            let record = KeyRecord { number: job.number, until, at, sameness, id: spec.id.clone() };
            changes.take_key(name, key, &record);
        }
        let mut progress = job.progress();
        progress.requeue(self.now, spec.expires_at, self.keep_attempts);
        changes.record_event(job.number, &mut progress, &JobEvent::new(self.now, why.0, self.reason, why.1));
        let history = History { group, ..job.next_history(progress) };
        changes.enter_waiting(job, history, self.now, Whereabouts::Scheduled, self.now, cx, self.queue);
    }
}
