//! Housekeeping that is in no hurry: keys whose time is over, and queues that nobody uses.

use super::{
    Core,
    connection::Arg,
    registry::Queue,
    scripts::{CLOSE_QUEUE, END_QUEUE, FORGET_KEYS, FORGET_QUEUE},
    stats::{COUNTERS, counter_args, read_elsewhere, read_totals},
};
use crate::{
    domain::{settings::Settings, time::Timestamp},
    store::StoreError,
};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

const TIDY_EVERY: Duration = Duration::from_secs(10);
/// Queues that are looked at each time; the next time goes on from there.
const QUEUES_MAX: usize = 100;
const KEYS_MAX: u64 = 100;
/// No delivery takes longer, and only who had one asks.
const MOVED_KNOWN_FOR: Duration = Duration::from_secs(24 * 3600);
/// Whoever completes a move that is completed already is not slower than this.
const MARKS_KEPT_FOR: Duration = Duration::from_secs(3600);
const QUEUE_FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// When it was last tidied, and where to go on.
#[derive(Debug, Default)]
pub(super) struct Tidying {
    pub(super) last: Timestamp,
    from: usize,
}

impl Core {
    pub(super) async fn tidy(&self, settings: &Settings) -> Result<(), StoreError> {
        let now = self.now();
        let from = {
            let mut tidying = self.tidying.lock().unwrap_or_else(PoisonError::into_inner);
            if now.since(tidying.last) < TIDY_EVERY {
                return Ok(());
            }
            tidying.last = now;
            tidying.from
        };
        let queues = self.all_queues().await?;
        let from = if from < queues.len() { from } else { 0 };
        let part = queues.iter().skip(from).take(QUEUES_MAX);
        for queue in part {
            self.forget_keys(queue).await?;
            if !settings.queues.contains_key(&queue.name) {
                self.forget_unused(queue).await?;
            }
        }
        self.tidying.lock().unwrap_or_else(PoisonError::into_inner).from = from + QUEUES_MAX;
        Ok(())
    }

    async fn forget_keys(&self, queue: &Queue) -> Result<(), StoreError> {
        let moved = MOVED_KNOWN_FOR.as_millis() as u64;
        let marks = MARKS_KEPT_FOR.as_millis() as u64;
        let args = || vec![KEYS_MAX.into(), moved.into(), marks.into()];
        loop {
            let (_, mut reply) = self.run(&FORGET_KEYS, queue, args()).await?;
            if reply.count()?.max(reply.count()?).max(reply.count()?) < KEYS_MAX {
                return Ok(());
            }
        }
    }

    /// Forgets a queue that has nothing in it and that nobody has used for long, but not what it has counted.
    async fn forget_unused(&self, queue: &Arc<Queue>) -> Result<(), StoreError> {
        let unused = QUEUE_FORGOTTEN_AFTER.as_millis() as u64;
        let mut args: Vec<Arg> = vec![queue.number.into(), unused.into()];
        args.extend(counter_args());
        let (_, mut reply) = self.run(&CLOSE_QUEUE, queue, args).await?;
        if reply.int()? == 0 {
            return Ok(());
        }
        let mut totals = read_totals(&mut reply)?;
        totals += read_elsewhere(&mut reply)?;
        let mut args: Vec<Arg> = vec![queue.name.as_str().into(), queue.number.into()];
        for (name, value) in COUNTERS.iter().zip(totals.values()) {
            args.extend([Arg::from(*name), value.into()]);
        }
        self.redis.run(&FORGET_QUEUE, &self.names.registry(), args).await?;
        self.registry.forget(queue);
        self.run(&END_QUEUE, queue, vec![queue.number.into()]).await.map(|_| ())
    }

    /// Somebody began to forget this queue and has not finished.
    pub(super) async fn complete_forgetting(&self, queue: &Arc<Queue>) -> Result<(), StoreError> {
        self.forget_unused(queue).await?;
        self.registry.forget(queue);
        Ok(())
    }
}
