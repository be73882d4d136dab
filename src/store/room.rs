//! The room that an engine has for calls: how many wait for it, and what these take of memory. A part of both is kept for calls
//! that end leases.

use super::{Result, StoreError};
use crate::env;
use crate::log_limit::LogLimit;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const CALLS_MAX: usize = 16_384;
const KIB_MAX: usize = 128 << 10;
/// What is kept.
const RESERVE_PART: usize = 4;

#[derive(Debug)]
pub struct Room {
    /// What the calls wait for.
    engine: &'static str,
    calls: Arc<Semaphore>,
    kib: Arc<Semaphore>,
    refused: Mutex<LogLimit>,
}

/// Of a call, until it is answered.
#[derive(Debug)]
pub struct Taken {
    _call: OwnedSemaphorePermit,
    _kib: OwnedSemaphorePermit,
}

impl Room {
    pub fn new(engine: &'static str) -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        Self { engine, calls: of(CALLS_MAX), kib: of(KIB_MAX), refused: Mutex::default() }
    }

    /// For a call that takes so much.
    pub fn take(&self, bytes: usize, has_reserve: bool) -> Result<Taken> {
        if self.calls.is_closed() {
            return Err(StoreError::Unavailable("the store is closed".into()));
        }
        let engine = self.engine;
        let take = |of: &Arc<Semaphore>, count: usize, most: usize| {
            let kept = if has_reserve { 0 } else { most / RESERVE_PART };
            let taken = of.clone().try_acquire_many_owned(u32::try_from(count).unwrap_or(u32::MAX)).ok()?;
            (of.available_permits() >= kept).then_some(taken)
        };
        let call = take(&self.calls, 1, CALLS_MAX);
        let _call = call.ok_or_else(|| self.refuse(format!("{CALLS_MAX} calls wait for {engine}")))?;
        let kib = take(&self.kib, bytes / 1024 + 1, KIB_MAX);
        let _kib = kib.ok_or_else(|| self.refuse(format!("{} MiB wait for {engine}", KIB_MAX >> 10)))?;
        Ok(Taken { _call, _kib })
    }

    /// Logged once a minute.
    fn refuse(&self, why: String) -> StoreError {
        if let Some(left_out) = self.refused.lock().unwrap_or_else(PoisonError::into_inner).admit(env::instant()) {
            let left_out = (left_out > 0).then_some(left_out);
            tracing::warn!(limit = "store", why, left_out, "a limit is reached: what is beyond it is refused");
        }
        StoreError::Overloaded(why)
    }

    /// Waits until all calls are answered.
    pub async fn is_empty(&self) {
        drop(self.calls.acquire_many(CALLS_MAX as u32).await);
    }

    /// Calls that come later are refused.
    pub fn close(&self) {
        self.calls.close();
    }

    pub fn is_closed(&self) -> bool {
        self.calls.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_leases_finds_room_when_others_are_refused() {
        for (bytes, others) in [(0, 12_288), (1 << 20, 95)] {
            let room = Room::new("the disk");
            let taken: Vec<_> = (0..).map_while(|_| room.take(bytes, false).ok()).collect();
            assert_eq!(taken.len(), others);
            let settles: Vec<_> = (0..).map_while(|_| room.take(bytes, true).ok()).collect();
            assert!(settles.len() >= others / 3, "{}", settles.len());
            let refused = room.take(bytes, true).unwrap_err();
            assert!(
                matches!(&refused, StoreError::Overloaded(why) if why.ends_with("wait for the disk")),
                "{refused:?}"
            );
            drop(taken);
            room.take(bytes, false).unwrap();
        }
    }
}
