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
    made: Mutex<Made>,
}

/// In this minute.
#[derive(Debug, Default)]
struct Made {
    since: Timestamp,
    count: usize,
    told: bool,
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
        if now.since(made.since) >= MINUTE {
            *made = Made { since: now, ..Made::default() };
        }
        if made.count >= self.per_minute {
            let limit = self.per_minute;
            if !std::mem::replace(&mut made.told, true) {
                let what = "a limit is reached: what is beyond it is refused";
                tracing::warn!(limit = "new_queues_per_minute", value = limit, "{what}");
            }
            return Err(Refusal::NewQueuesTooFast { limit, after: made.since.after(MINUTE).since(now) });
        }
        made.count += 1;
        Ok(())
    }
}
