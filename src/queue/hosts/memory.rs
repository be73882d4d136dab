//! A store in memory: calls run where they are made.

use crate::{
    domain::time::Timestamp,
    queue::{self, Call, CallContext, Host, Notifier, Queues, Reply, StoreLimits, View, Viewed},
    store::{Health, Listener, StoreError, memory::MemoryStorage, storage::Reads},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// A store whose jobs live as long as its storage.
pub type MemoryStore = Queues<MemoryHost>;

pub struct MemoryHost {
    storage: MemoryStorage,
    notifier: Arc<Notifier>,
    limits: StoreLimits,
    closed: AtomicBool,
}

impl MemoryStore {
    pub async fn open_memory(
        storage: MemoryStorage,
        limits: StoreLimits,
        listener: Arc<dyn Listener>,
    ) -> Result<Self, StoreError> {
        let clock = storage.clone();
        let notifier = queue::notifier(listener, move || clock.now())
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let host = MemoryHost {
            storage,
            notifier: notifier.clone(),
            limits,
            closed: AtomicBool::new(false),
        };
        Self::open(host, notifier).await
    }
}

impl MemoryHost {
    fn is_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable("the store is closed".into()));
        }
        Ok(())
    }
}

impl Host for MemoryHost {
    fn now(&self) -> Timestamp {
        self.storage.now()
    }

    fn submit(&self, call: Call, reply: Reply) -> Result<(), StoreError> {
        self.is_open()?;
        let (mut storage, limits) = (self.storage.clone(), self.limits);
        let notifier = self.notifier.clone();
        // A task, as on other engines: subscribers are not called on the caller's stack.
        tokio::spawn(async move {
            let memory = notifier.memory();
            let mut cx = CallContext::new(call.settings, call.seed, memory, limits);
            let answer = queue::run(&mut storage, &mut cx, call.verb).await;
            notifier.tell(cx.events);
            reply.send(answer);
        });
        Ok(())
    }

    async fn view(&self, view: View) -> Result<Viewed, StoreError> {
        self.is_open()?;
        queue::view(&mut self.storage.clone(), view).await
    }

    fn health(&self) -> Health {
        match self.is_open() {
            Ok(()) => Health::Well,
            Err(error) => Health::Stopped(error.to_string()),
        }
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    fn outages(&self) -> u64 {
        0
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}
