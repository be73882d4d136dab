//! What operators do, with its line in the log.

use super::Service;
use crate::domain::{JobId, QueueName};
use crate::queue::{Cancelled, NewPause, Purge, Purged};
use crate::queue::{Error, Host};

impl<H: Host> Service<H> {
    pub async fn cancel_job(&self, id: JobId, queue: Option<QueueName>, reason: &str) -> Result<Cancelled, Error> {
        let cancelled = self.queues.cancel(id.clone(), queue, reason.to_owned()).await?;
        tracing::info!(job_id = %id, reason, outcome = ?cancelled, "job cancelled");
        Ok(cancelled)
    }

    pub async fn pause_queue(&self, queue: QueueName, pause: NewPause) -> Result<(), Error> {
        let reason = pause.reason.clone();
        self.queues.pause(queue.clone(), Some(pause)).await?;
        tracing::info!(%queue, reason, "queue paused");
        Ok(())
    }

    pub async fn resume_queue(&self, queue: QueueName) -> Result<(), Error> {
        self.queues.pause(queue.clone(), None).await?;
        tracing::info!(%queue, "queue resumed");
        Ok(())
    }

    pub async fn purge_dead_letters(&self, purge: Purge, reason: &str) -> Result<Purged, Error> {
        let (queue, dry_run) = (purge.part.queue.clone(), purge.dry_run);
        let purged = self.queues.purge(purge).await?;
        if !dry_run && purged.count > 0 {
            tracing::info!(%queue, purged = purged.count, reason, "dead letters purged");
        }
        Ok(purged)
    }
}
