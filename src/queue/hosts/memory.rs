//! A store in memory: calls run where they are made.

use crate::domain::Timestamp;
use crate::queue::{self, Call, Host, Notifier, Queues, Reply, Setup, StoreLimits, View, Viewed};
use crate::store::memory::MemoryStorage;
use crate::store::storage::Reads;
use crate::store::{Health, Result, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A store whose jobs live as long as its storage.
pub type MemoryStore = Queues<MemoryHost>;

pub struct MemoryHost {
    storage: MemoryStorage,
    notifier: Arc<Notifier>,
    limits: StoreLimits,
    closed: AtomicBool,
}

impl MemoryStore {
    pub async fn open_memory(storage: MemoryStorage, limits: StoreLimits, setup: Setup) -> Result<Self> {
        let clock = storage.clone();
        let notifier =
            queue::notifier(setup, move || clock.now()).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let host = MemoryHost { storage, notifier: notifier.clone(), limits, closed: AtomicBool::new(false) };
        Self::open(host, notifier).await
    }
}

impl MemoryHost {
    fn is_open(&self) -> Result<()> {
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

    fn submit(&self, call: Call, reply: Reply) -> Result<()> {
        self.is_open()?;
        let (mut storage, limits) = (self.storage.clone(), self.limits);
        let notifier = self.notifier.clone();
        // A task, as on other engines: subscribers are not called on the caller's stack.
        tokio::spawn(async move {
            let mut cx = notifier.context(call.settings, call.seed, limits);
            let answer = queue::run(&mut storage, &mut cx, call.verb).await;
            notifier.publish(cx.events);
            reply.send(answer);
        });
        Ok(())
    }

    async fn view(&self, view: View) -> Result<Viewed> {
        self.is_open()?;
        queue::view(&mut self.storage.clone(), view).await
    }

    fn health(&self) -> Health {
        match self.is_open() {
            Ok(()) => Health::Well,
            Err(error) => Health::Stopped(error.to_string()),
        }
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}
