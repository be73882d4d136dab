//! PauseQueue and ResumeQueue: a queue stops handing out jobs, and goes on again.

use super::{Broker, Error, Refusal};
use crate::{
    domain::ids::QueueName,
    store::{NewPause, QueueRefused, Store},
};

impl<S: Store> Broker<S> {
    pub async fn pause_queue(&self, queue: QueueName, pause: NewPause) -> Result<(), Error> {
        let reason = pause.reason.clone();
        self.set_pause(&queue, Some(pause)).await?;
        tracing::info!(%queue, reason, "queue paused");
        Ok(())
    }

    pub async fn resume_queue(&self, queue: QueueName) -> Result<(), Error> {
        self.set_pause(&queue, None).await?;
        tracing::info!(%queue, "queue resumed");
        Ok(())
    }

    async fn set_pause(&self, queue: &QueueName, pause: Option<NewPause>) -> Result<(), Error> {
        let done = self.store.pause(self.ask(), queue.clone(), pause).await?;
        done.map_err(|refused| match refused {
            QueueRefused::NoSuchQueue => Refusal::QueueNotFound { queue: queue.clone() }.into(),
            QueueRefused::NotMade(refused) => Refusal::NotAdded(refused).into(),
        })
    }
}
