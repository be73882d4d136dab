//! Background work that ends with its owner.

use std::future::Future;
use tokio::task::AbortHandle;

/// A task that ends when this is dropped.
#[derive(Debug)]
pub struct Task(AbortHandle);

impl Task {
    pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
