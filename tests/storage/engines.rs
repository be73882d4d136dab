//! The engines that the suite runs on, and how each is opened.

use redrive::{env::ManualClock, store::memory::MemoryStorage, store::storage::Storage};
use std::{future::Future, sync::Arc};

/// An engine with a store of its own.
pub(crate) trait TestEngine: Sized {
    type Storage: Storage;

    /// `Outcomes`, counts of successes and marks outlive a restart.
    const KEEPS_OUTCOMES: bool;
    /// It observes `Take::max_leases`.
    const BOUNDS_LEASES: bool;
    /// How many random sequences of calls are tried.
    const CASES: u32;

    /// A new store.
    fn open(clock: Arc<ManualClock>) -> impl Future<Output = Self>;

    /// As after a restart of the server.
    fn reopen(self) -> impl Future<Output = Self>;

    fn storage(&mut self) -> &mut Self::Storage;
}

pub(crate) struct Memory {
    storage: MemoryStorage,
    clock: Arc<ManualClock>,
}

impl TestEngine for Memory {
    type Storage = MemoryStorage;

    const KEEPS_OUTCOMES: bool = true;
    const BOUNDS_LEASES: bool = true;
    // It is compared with itself, which tests the comparison alone.
    const CASES: u32 = 64;

    async fn open(clock: Arc<ManualClock>) -> Self {
        Self { storage: MemoryStorage::new(clock.clone()), clock }
    }

    async fn reopen(self) -> Self {
        Self { storage: self.storage.restarted(self.clock.clone()), clock: self.clock }
    }

    fn storage(&mut self) -> &mut MemoryStorage {
        &mut self.storage
    }
}
