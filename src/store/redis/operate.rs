//! What operators do to queues and jobs: pause, cancel, run now.

use super::{
    Core,
    connection::{Arg, Script},
    enqueue::state_of,
    record,
    registry::Queue,
    reply::Reply,
    scripts::{CANCEL, PAUSE, RUN_NOW},
};
use crate::{
    domain::{
        ids::{JobId, QueueName},
        job::State,
    },
    store::{Ask, Cancelled, JobRefused, NewPause, QueueRefused, StoreError},
};
use std::sync::Arc;

/// How often a queue may be forgotten while somebody pauses it.
const TRIES_MAX: usize = 5;

impl Core {
    pub(super) async fn pause(
        &self,
        ask: Ask,
        name: QueueName,
        pause: Option<NewPause>,
    ) -> Result<Result<(), QueueRefused>, StoreError> {
        for _ in 0..TRIES_MAX {
            let queue = match self.find(&name).await? {
                Some(queue) => queue,
                None if !ask.settings.queues.contains_key(&name) => {
                    return Ok(Err(QueueRefused::NoSuchQueue));
                }
                // What has not been made is not paused either.
                None if pause.is_none() => return Ok(Ok(())),
                None => match self.queue_for(&name).await? {
                    Ok(queue) => queue,
                    Err(refused) => return Ok(Err(QueueRefused::NotMade(refused))),
                },
            };
            let (duration, reason) = match &pause {
                None => (Arg::from("resume"), ""),
                Some(NewPause { duration, reason }) => {
                    let duration = duration.map(|duration| record::millis(duration).into());
                    (duration.unwrap_or_default(), reason.as_str())
                }
            };
            let args = vec![queue.number.into(), duration, reason.into()];
            let (_, mut reply) = self.run(&PAUSE, &queue, args).await?;
            let available = reply.int()?;
            if available < 0 {
                self.registry.forget(&queue);
                continue;
            }
            if let Some(until) = reply.maybe_time()? {
                self.agenda.note(queue.number, until);
            }
            self.tell(&queue, available).await;
            return Ok(Ok(()));
        }
        Err(StoreError::Unavailable(format!("the queue {name} is forgotten again and again")))
    }

    pub(super) async fn cancel(
        self: &Arc<Self>,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<Cancelled, JobRefused>, StoreError> {
        let done = self.on_one_job(&CANCEL, &id, queue.as_ref()).await?;
        let (queue, state, mut reply) = match done {
            Ok(done) => done,
            Err(refused) => return Ok(Err(refused)),
        };
        if state == State::Leased
            && let Some(lease) = record::read_named_lease(&reply.bytes()?, &queue.name)
        {
            self.listener.cancel_requested(lease);
        }
        Ok(match state {
            State::Ready | State::Scheduled => Ok(Cancelled::Removed),
            State::Leased => Ok(Cancelled::Requested),
            State::Completed | State::Dead => Err(JobRefused::WrongState { state }),
        })
    }

    pub(super) async fn run_now(
        self: &Arc<Self>,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Result<(), JobRefused>, StoreError> {
        let (queue, state, mut reply) = match self.on_one_job(&RUN_NOW, &id, queue.as_ref()).await?
        {
            Ok(done) => done,
            Err(refused) => return Ok(Err(refused)),
        };
        self.tell(&queue, reply.int()?).await;
        Ok(match state {
            State::Ready | State::Scheduled => Ok(()),
            State::Leased | State::Completed | State::Dead => Err(JobRefused::WrongState { state }),
        })
    }

    /// Runs a script on the one job that is meant; says in which queue and in which state it was.
    async fn on_one_job(
        self: &Arc<Self>,
        script: &Script,
        id: &JobId,
        queue: Option<&QueueName>,
    ) -> Result<Result<(Arc<Queue>, State, Reply), JobRefused>, StoreError> {
        let found = self.queues_with(id, queue).await?;
        let queue = match &found[..] {
            [] => return Ok(Err(JobRefused::NoSuchJob)),
            [(queue, _)] => queue,
            [..] => {
                let queues = found.iter().map(|(queue, _)| queue.name.clone()).collect();
                return Ok(Err(JobRefused::Ambiguous { queues }));
            }
        };
        let (_, mut reply) = self.run(script, queue, Self::id_args(id).into()).await?;
        Ok(match reply.int()? {
            0 => Err(JobRefused::NoSuchJob),
            state => Ok((queue.clone(), state_of(state), reply)),
        })
    }
}
