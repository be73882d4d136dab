//! INTEGRATION: the only file that stands in for what is not merged yet. Give `open_store` and `serve_grpc` their real
//! bodies, delete `NoStore`, and everything else in `serve` stays as it is.

use crate::{
    broker::{Broker, Wakeups},
    config::Config,
    domain::{
        ids::{JobId, QueueName},
        job::NewJob,
        lease::Lease,
        time::Timestamp,
    },
    store::{
        Ask, Claim, Claimed, DeadLetterPage, DeadLetterQuery, Enqueued, Health, JobView, QueueView,
        Refused, Requeue, Requeued, Settled, Settlements, Store, StoreError, Sweep, Swept,
    },
};
use std::{convert::Infallible, future::Future, sync::Arc};
use tokio::net::TcpListener;

/// INTEGRATION: `Embedded::open(options, Arc::new(SystemClock::new()), wakeups)`, with the directory `config.data` and
/// `config.durability`. The error is shown after `cannot open the store in <directory>: `.
pub(super) async fn open_store(
    _config: &Config,
    _wakeups: Arc<Wakeups>,
) -> Result<impl Store, String> {
    Err::<NoStore, _>("this build has no store".into())
}

/// INTEGRATION: `grpc::serve(...)`. Must stop accepting and return once `stop` is done and the calls under way are
/// answered.
pub(super) async fn serve_grpc<S: Store>(
    _broker: Arc<Broker<S>>,
    _listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), String> {
    stop.await;
    Ok(())
}

struct NoStore(Infallible);

impl Store for NoStore {
    fn now(&self) -> Timestamp {
        match self.0 {}
    }
    async fn enqueue(
        &self,
        _: Ask,
        _: Vec<NewJob>,
    ) -> Result<Vec<Result<Enqueued, Refused>>, StoreError> {
        match self.0 {}
    }
    async fn claim(&self, _: Ask, _: Claim) -> Result<Claimed, StoreError> {
        match self.0 {}
    }
    async fn settle(&self, _: Ask, _: Settlements) -> Result<Settled, StoreError> {
        match self.0 {}
    }
    async fn unclaim(&self, _: Vec<Lease>) -> Result<(), StoreError> {
        match self.0 {}
    }
    async fn sweep(&self, _: Ask, _: Sweep) -> Result<Swept, StoreError> {
        match self.0 {}
    }
    async fn requeue(&self, _: Ask, _: Requeue) -> Result<Option<Requeued>, StoreError> {
        match self.0 {}
    }
    async fn job(&self, _: JobId, _: Option<QueueName>) -> Result<Vec<JobView>, StoreError> {
        match self.0 {}
    }
    async fn dead_letters(&self, _: DeadLetterQuery) -> Result<Option<DeadLetterPage>, StoreError> {
        match self.0 {}
    }
    async fn queues(&self, _: Option<QueueName>, _: usize) -> Result<Vec<QueueView>, StoreError> {
        match self.0 {}
    }
    fn health(&self) -> Health {
        match self.0 {}
    }
    async fn close(&self) {
        match self.0 {}
    }
}
