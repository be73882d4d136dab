//! Bytes of jobs that claims have taken and no caller has received yet. Bounded, because many claims of large jobs may commit
//! together, and each caller decides only afterwards whether its connection has room for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const MOST: usize = 64 << 20;
/// Beside others, a claim takes at most this part of what is left: claims that run at the same time leave some for each other.
const PART: usize = 16;
/// With less than this left, a claim takes small jobs only; where a large one comes first, it runs again in a moment.
const LEAST: usize = 4 << 20;
const SMALL: usize = 64 << 10;

#[derive(Clone, Debug, Default)]
pub(crate) struct ClaimedBytes(Arc<AtomicUsize>);

impl ClaimedBytes {
    /// For a claim of up to `most` bytes.
    pub(crate) fn reserve(&self, most: usize) -> InHand {
        let left = MOST.saturating_sub(self.0.load(Ordering::Relaxed));
        let tight = left < LEAST;
        let bytes = most.min(match left {
            MOST => MOST,
            ..LEAST => SMALL,
            _ => left / PART,
        });
        self.0.fetch_add(bytes, Ordering::Relaxed);
        InHand { all: self.clone(), bytes, tight }
    }
}

/// What one claim has taken of them; dropped when the jobs are received or returned.
#[derive(Debug, Default)]
pub struct InHand {
    all: ClaimedBytes,
    bytes: usize,
    /// A job that takes more must wait.
    pub(crate) tight: bool,
}

impl InHand {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The claim took this much.
    pub(crate) fn took(&mut self, bytes: usize) {
        self.all.0.fetch_add(bytes, Ordering::Relaxed);
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
