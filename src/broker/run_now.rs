//! RunJobNow: a job does not wait for its time.

use super::{Broker, Error};
use crate::{
    domain::ids::{JobId, QueueName},
    store::Store,
};

impl<S: Store> Broker<S> {
    pub async fn run_job_now(&self, id: JobId, queue: Option<QueueName>) -> Result<(), Error> {
        match self.store.run_now(id.clone(), queue.clone()).await? {
            Ok(()) => Ok(()),
            Err(refused) => Err(self.job_refused(&id, queue, refused).await),
        }
    }
}
