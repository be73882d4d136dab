//! What operators do to queues and jobs.

use super::{Answer, Id, JobRefused, Model, Place};
use crate::steps::name;
use redrive::domain::JobEventKind;
use redrive::queue::Cancelled;
use std::time::Duration;

impl Model {
    pub(super) fn pause(&mut self, queue: usize, duration: Option<Duration>) -> Answer {
        let until = duration.map(|duration| self.now.after(duration));
        self.queues.entry(queue).or_default().paused = Some(until);
        Answer::Nothing
    }

    pub(super) fn resume(&mut self, queue: usize) -> Answer {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.paused = None;
        }
        Answer::Nothing
    }

    pub(super) fn is_paused(&self, queue: usize) -> bool {
        let paused = self.queues.get(&queue).and_then(|queue| queue.paused);
        paused.is_some_and(|until| until.is_none_or(|until| until > self.now))
    }

    pub(super) fn end_pauses(&mut self) {
        for queue in self.queues.values_mut() {
            let now = self.now;
            queue.paused = queue.paused.filter(|until| until.is_none_or(|until| until > now));
        }
    }

    /// The one job that is meant.
    fn meant(&self, id: Id, queue: Option<usize>) -> Result<usize, JobRefused> {
        let found: Vec<_> =
            self.jobs.iter().filter(|(_, job)| job.id == id && queue.is_none_or(|queue| queue == job.queue)).collect();
        match found[..] {
            [] => Err(JobRefused::NoSuchJob),
            [(number, _)] => Ok(*number),
            [..] => {
                let mut queues: Vec<_> = found.iter().map(|(_, job)| name(job.queue)).collect();
                queues.sort();
                Err(JobRefused::Ambiguous { queues })
            }
        }
    }

    pub(super) fn cancel(&mut self, id: Id, queue: Option<usize>) -> Result<Cancelled, JobRefused> {
        let number = self.meant(id, queue)?;
        let Some(job) = self.jobs.get_mut(&number) else {
            return Err(JobRefused::NoSuchJob);
        };
        match job.place {
            Place::Dead(_) | Place::Completed(_) | Place::Cancelled(_) => {
                Err(JobRefused::WrongState { state: job.state() })
            }
            Place::Leased(_) => {
                if !std::mem::replace(&mut job.progress.cancel_requested, true) {
                    job.note(JobEventKind::CancelRequested, self.now);
                }
                Ok(Cancelled::Requested)
            }
            Place::Ready(_) | Place::Scheduled(_) => {
                job.note(JobEventKind::CancelRequested, self.now);
                self.end_cancelled(number);
                Ok(Cancelled::Cancelled)
            }
        }
    }

    /// Gone, or kept like a completed one.
    pub(super) fn end_cancelled(&mut self, number: usize) {
        self.drop_key(number);
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&number) else { return };
        job.place = Place::Cancelled(now);
        let (queue, retried) = (job.queue, job.progress.retries > 0);
        if self.settings(queue).completed_retention.is_none() {
            self.remove(number);
        }
        self.change(queue, |totals| {
            totals.cancelled += 1;
            totals.retried_finished += u64::from(retried);
        });
    }

    pub(super) fn run_now(&mut self, id: Id, queue: Option<usize>) -> Result<(), JobRefused> {
        let number = self.meant(id, queue)?;
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&number) else {
            return Err(JobRefused::NoSuchJob);
        };
        match job.place {
            Place::Ready(_) => Ok(()),
            Place::Scheduled(at) => {
                job.place = Place::Ready(at.min(now));
                job.note(JobEventKind::RunNow, now);
                Ok(())
            }
            Place::Leased(_) | Place::Dead(_) | Place::Completed(_) | Place::Cancelled(_) => {
                Err(JobRefused::WrongState { state: job.state() })
            }
        }
    }

    /// Every job of a queue, in the order of a listing.
    pub(crate) fn listed(&self, queue: usize) -> Vec<usize> {
        let mut jobs: Vec<_> = self.jobs.iter().filter(|(_, job)| job.queue == queue).collect();
        jobs.sort_by_key(|(_, job)| {
            let (rank, arrived) = (-i16::from(job.priority), job.arrived);
            match &job.place {
                Place::Ready(at) => (0, rank, *at, 0, arrived),
                Place::Scheduled(at) => {
                    (1 + u8::from(job.state() == redrive::domain::State::Retrying), 0, *at, rank, arrived)
                }
                Place::Leased(_) => (3, 0, Default::default(), 0, arrived),
                Place::Dead(death) => (4, 0, Default::default(), 0, death.number),
                Place::Completed(at) => (5, 0, *at, 0, arrived),
                Place::Cancelled(at) => (6, 0, *at, 0, arrived),
            }
        });
        jobs.into_iter().map(|(number, _)| *number).collect()
    }
}
