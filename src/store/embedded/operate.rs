//! Cancel and run-now: somebody steps in for one job.

use super::{
    leases::Traits,
    lookup,
    places::{Place, Tie},
    read,
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        ids::{JobId, QueueName},
        job::{Progress, Spec, State},
        time::Timestamp,
    },
    store::{Cancelled, JobRefused},
};

/// A job that waits, found by its number.
pub(super) struct Waiting {
    pub(super) place: Place,
    pub(super) at: Timestamp,
    pub(super) state: State,
    pub(super) spec: Spec,
    pub(super) progress: Progress,
}

impl Writer<'_> {
    pub(super) fn cancel(
        &mut self,
        id: &JobId,
        queue: Option<&QueueName>,
    ) -> Result<Result<Cancelled, JobRefused>, Failure> {
        let (number, state) = match self.one_job(id, queue)? {
            Ok(found) => found,
            Err(refused) => return Ok(Err(refused)),
        };
        match state {
            State::Leased => {
                let mark = Traits::CANCEL_REQUESTED;
                self.sql.mark_lease.execute((number.cast_signed(), mark))?;
                self.memory.leases.mark(number, mark);
                self.cancels
                    .extend(self.memory.leases.of_number(number).map(|held| held.lease.clone()));
                Ok(Ok(Cancelled::Requested))
            }
            State::Ready | State::Scheduled => {
                let Some(waiting) = self.waiting(number)? else {
                    return Ok(Err(JobRefused::NoSuchJob));
                };
                self.take_waiting(&waiting)?;
                // By the id that was asked for: that of a damaged head may be lost.
                self.sql.delete_id.execute((id.to_string(), waiting.place.queue))?;
                self.remove_cancelled(&waiting.place, &waiting.spec, &waiting.progress)?;
                Ok(Ok(Cancelled::Removed))
            }
            State::Completed | State::Dead => Ok(Err(JobRefused::WrongState { state })),
        }
    }

    pub(super) fn run_now(
        &mut self,
        id: &JobId,
        queue: Option<&QueueName>,
    ) -> Result<Result<(), JobRefused>, Failure> {
        let (number, state) = match self.one_job(id, queue)? {
            Ok(found) => found,
            Err(refused) => return Ok(Err(refused)),
        };
        if !matches!(state, State::Ready | State::Scheduled) {
            return Ok(Err(JobRefused::WrongState { state }));
        }
        let Some(waiting) = self.waiting(number)? else {
            return Ok(Err(JobRefused::NoSuchJob));
        };
        if waiting.state == State::Scheduled {
            self.take_waiting(&waiting)?;
            // It may have been due already, and keeps its place then.
            let at = waiting.at.min(self.now);
            let place = Place { seen: true, ..waiting.place };
            let state = self.wait(&place, at)?;
            // Nothing but this row tells that it is no longer where its head says.
            self.save_progress(number, state, at, 0, &waiting.progress)?;
        }
        Ok(Ok(()))
    }

    /// The one job that is meant, and its state.
    fn one_job(
        &self,
        id: &JobId,
        queue: Option<&QueueName>,
    ) -> Result<Result<(u64, State), JobRefused>, Failure> {
        let mut found = read::numbers_of(self.connection, id)?;
        if let Some(name) = queue {
            let queue = self.memory.find(name);
            found.retain(|(_, of_queue)| Some(*of_queue) == queue);
        }
        let number = match found[..] {
            [] => return Ok(Err(JobRefused::NoSuchJob)),
            [(number, _)] => number,
            [..] => {
                let queues = found.iter().filter_map(|(_, queue)| self.memory.queue(*queue));
                let queues = queues.map(|queue| queue.name.clone()).collect();
                return Ok(Err(JobRefused::Ambiguous { queues }));
            }
        };
        let place = lookup::place(self.connection, number)?;
        Ok(place.map(|found| (number, found.state)).ok_or(JobRefused::NoSuchJob))
    }

    /// Where a job waits; none if it does not.
    pub(super) fn waiting(&mut self, number: u64) -> Result<Option<Waiting>, Failure> {
        let Some(found) = lookup::place(self.connection, number)? else {
            return Ok(None);
        };
        if !matches!(found.state, State::Ready | State::Scheduled) {
            return Ok(None);
        }
        let Some((spec, queue)) = self.read_head(number)? else {
            return Ok(None);
        };
        let progress = self.read_progress(number)?;
        let mut place = Place::of(queue, number, &spec, progress.is_some());
        let (mut at, mut state) = (found.at, found.state);
        if state == State::Ready && !lookup::is_ready(self.connection, &place, at)? {
            // Its head is damaged and lies about its place.
            let Some(found) = lookup::search(self.connection, number)? else {
                return Ok(None);
            };
            (place, at, state) = found;
        }
        let progress = progress.unwrap_or_default();
        Ok(Some(Waiting { place, at, state, spec, progress }))
    }

    /// Gives up the place of a job that waits.
    pub(super) fn take_waiting(&mut self, waiting: &Waiting) -> Result<(), Failure> {
        if waiting.state == State::Ready {
            return self.take_ready(&waiting.place, waiting.at);
        }
        self.take_scheduled(&waiting.place, waiting.at)?;
        Ok(self.refresh_due(waiting.place.queue)?)
    }

    /// Somebody cancelled it before it ran: it is gone for good, and its place has been given up.
    pub(super) fn remove_cancelled(
        &mut self,
        place: &Place,
        spec: &Spec,
        progress: &Progress,
    ) -> Result<(), Failure> {
        if let Some(key) = &spec.key {
            self.sql.delete_key.execute((place.queue, key, place.number.cast_signed()))?;
        }
        let bits = [
            (place.seen, Traits::SEEN),
            (matches!(place.tie, Tie::Id(_)), Traits::OWN_ID),
            (spec.expires_at.is_some(), Traits::DEADLINE),
        ];
        let traits = bits.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum();
        self.remove(place.number, place.queue, Traits(traits))?;
        self.memory.change(place.queue, |queue| {
            queue.totals.cancelled += 1;
            queue.totals.retried_finished += u64::from(progress.retries > 0);
        });
        Ok(())
    }
}
