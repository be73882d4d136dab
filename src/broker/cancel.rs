//! CancelJob: a waiting job goes, a running one is asked to stop.

use super::{Broker, Error};
use crate::{
    domain::ids::{JobId, QueueName},
    store::{Cancelled, Store},
};

impl<S: Store> Broker<S> {
    pub async fn cancel_job(
        &self,
        id: JobId,
        queue: Option<QueueName>,
        reason: &str,
    ) -> Result<Cancelled, Error> {
        match self.store.cancel(id.clone(), queue.clone()).await? {
            Ok(cancelled) => {
                tracing::info!(job_id = %id, reason, outcome = ?cancelled, "job cancelled");
                Ok(cancelled)
            }
            Err(refused) => Err(self.job_refused(&id, queue, refused).await),
        }
    }
}
