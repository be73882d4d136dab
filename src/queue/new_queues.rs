//! How many queues come into being by being used, each minute: so a client that makes up names does not use up the limit of
//! queues before an operator notices. Configured queues do not count.

use super::refusal::Refusal;
use crate::domain::Timestamp;
use crate::lock::lock;
use std::sync::Mutex;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct NewQueues {
    per_minute: usize,
    /// When this minute began, and how many were made in it.
    made: Mutex<(Timestamp, usize)>,
}

impl Default for NewQueues {
    fn default() -> Self {
        Self::of(usize::MAX)
    }
}

impl NewQueues {
    pub(crate) fn of(per_minute: usize) -> Self {
        Self { per_minute, made: Mutex::default() }
    }

    /// One more, if it may be made now.
    pub(crate) fn make(&self, now: Timestamp) -> Result<(), Refusal> {
        let mut made = lock(&self.made);
        let (since, count) = &mut *made;
        if now.since(*since) >= MINUTE {
            (*since, *count) = (now, 0);
        }
        if *count >= self.per_minute {
            return Err(Refusal::NewQueuesTooFast { limit: self.per_minute, after: since.after(MINUTE).since(now) });
        }
        *count += 1;
        Ok(())
    }
}
