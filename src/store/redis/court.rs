//! Deliveries of one queue that ended without an Ack: judged one after the other, carried out together.

use super::{
    Core,
    ending::{Applied, AtDeath, Burial, Case, Ended, Heeded, Out, full},
    guards::{self, Memory},
    record::Held,
    registry::Queue,
    tally::Counts,
};
use crate::{
    domain::{
        breaker::{Breaker, Guarded, Signal, Tally},
        chance::Dice,
        ids::JobId,
        job::{Attempt, Next, Progress, Spec, State},
        settings::QueueSettings,
        time::Timestamp,
        verdict::{Ending, Leased, Standing, judge},
    },
    store::StoreError,
};

/// The breaker as it is while they are judged: each may move it for the next.
pub(super) struct Court<'a> {
    settings: &'a QueueSettings,
    now: Timestamp,
    before: Vec<u8>,
    work: Breaker,
    counts: Counts,
    tally: Tally,
    /// Who failed in a way that counts, and the error of the last of them.
    failed: Vec<JobId>,
    error: String,
    changed: bool,
    transitions: u64,
    graves: AtDeath,
    ended: Vec<Ended>,
}

/// A delivery that was judged, and what that comes to.
pub(super) struct Judged {
    pub(super) spec: Spec,
    pub(super) attempt: Attempt,
    burial: Option<Burial>,
    progress: Progress,
}

impl<'a> Court<'a> {
    /// With the breakers as they were just seen.
    pub(super) fn open(queue: &Queue, settings: &'a QueueSettings, now: Timestamp) -> Self {
        let before = queue.guards.record(Guarded::Work);
        let work = guards::read(&before);
        let counts = queue.guards.counts();
        Self {
            settings,
            now,
            transitions: work.transitions,
            graves: guards::at_death(queue, settings, now),
            tally: counts.tally(work.transitions, &settings.breaker),
            counts,
            work,
            before,
            failed: Vec::new(),
            error: String::new(),
            changed: false,
            ended: Vec::new(),
        }
    }

    pub(super) fn judge(
        &mut self,
        out: &Out,
        held: Held,
        ending: Ending,
        checkpoint: &str,
        dice: &mut Dice,
    ) -> Judged {
        let (settings, now) = (self.settings, self.now);
        let spec = out.spec();
        let before = out.progress_under(&held);
        let sent = held.sent();
        let breaker = Standing {
            state: self.work.state(&settings.breaker, now),
            heeds_hold: self.work.heeds_hold(sent, &settings.breaker, now),
        };
        let leased = Leased {
            delivery: &held.delivery,
            progress: &before,
            policy: spec.policy.as_deref(),
            expires_at: spec.expires_at,
            breaker,
        };
        let expired = ending == Ending::Expired;
        let mut verdict = judge(leased, ending, settings, now, dice.chance());
        for newer in [held.checkpoint.as_str(), checkpoint] {
            if !newer.is_empty() {
                verdict.progress.checkpoint = newer.to_owned();
            }
        }
        let (signal, row) = (verdict.signal.clone(), self.tally.row);
        let tally = &mut self.tally;
        self.changed |= self.work.heed(tally, sent, &spec.id, signal, &settings.breaker, now);
        if let Signal::Failure { error } = &verdict.signal
            && self.tally.row > row
        {
            self.failed.push(spec.id.clone());
            self.error.clone_from(error);
        }
        verdict.attempt.breaker = self.work.state(&settings.breaker, now);
        let guards =
            AtDeath { states: [verdict.attempt.breaker, self.graves.states[1]], ..self.graves };
        let (held, before) = (&held, &before);
        let case = Case { spec: &spec, held, verdict: &verdict, before, expired };
        let (ended, burial) = Ended::judged(out, &case, guards, settings);
        self.ended.push(ended);
        Judged { spec, attempt: verdict.attempt, burial, progress: verdict.progress }
    }
}

impl Core {
    /// Applies what was judged, and tells what follows. False: something has changed since it was looked at.
    pub(super) async fn carry_out(
        &self,
        queue: &Queue,
        court: Court<'_>,
        judged: &[&Judged],
        memory: &mut Memory,
    ) -> Result<bool, StoreError> {
        if judged.is_empty() {
            return Ok(true);
        }
        let Court { settings, before, work, counts, tally, failed, changed, ended, .. } = court;
        let moved = work.transitions != court.transitions;
        let after = changed.then(|| guards::write(&work));
        let counted = (moved || !failed.is_empty())
            .then(|| counts.counted(&tally, court.transitions, work.transitions, &failed));
        let heeded = Some(Heeded { before, after, moved, counted });
        let Some(applied) = self.end(queue, heeded, ended).await? else { return Ok(false) };
        let Applied { done, not_alone } = applied;
        for (judged, done) in judged.iter().zip(&done) {
            match (&judged.burial, judged.attempt.next, done.state) {
                (Some(burial), ..) => {
                    self.died(queue, &judged.spec, &judged.progress, burial, done, settings);
                    continue;
                }
                (None, Next::Later { at } | Next::Behind { at }, State::Scheduled) => {
                    self.agenda.note(queue.number, at);
                }
                _ => {}
            }
            if let Some(at) = judged.progress.deadline(judged.spec.expires_at) {
                self.agenda.note(queue.number, at);
            }
        }
        if changed {
            self.note_gate(queue, &work);
        }
        if moved {
            self.tell_breaker(queue, Guarded::Work, settings, &work);
            self.tell_of_gate(queue).await;
        } else if not_alone {
            // They have ended, whatever comes of it.
            drop(self.reconsider(queue, settings, &court.error).await);
        }
        // They are where they are, whatever a breaker makes of it.
        drop(self.heed_deaths(queue, memory, settings, &full(&done)).await);
        Ok(true)
    }
}
