//! Enqueue and EnqueueBatch: jobs go in.

use super::{Broker, Error, Refusal};
use crate::{
    domain::job::NewJob,
    store::{Enqueued, Store},
};

impl<S: Store> Broker<S> {
    /// Adds one job. OK means that it is durable.
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued, Error> {
        let mut results = self.enqueue_batch(vec![job]).await?;
        match results.pop() {
            Some(result) => result.map_err(Error::Refused),
            None => Err(Error::Store(crate::store::StoreError::OutcomeUnknown(
                "the store answered for no job".into(),
            ))),
        }
    }

    /// Adds many; each is added or refused by itself, in order.
    pub async fn enqueue_batch(
        &self,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Result<Enqueued, Refusal>>, Error> {
        let results = self.store.enqueue(self.ask(), jobs).await?;
        Ok(results.into_iter().map(|result| result.map_err(Refusal::NotAdded)).collect())
    }
}
