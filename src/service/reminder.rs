//! While there are dead letters, the log says so every ten minutes.

use super::Service;
use crate::domain::{QueueName, Timestamp};
use crate::queue::{DeadCountQuery, LatestDeath};
use crate::queue::{Error, Host};
use std::{cmp::Reverse, fmt::Write, sync::Arc, time::Duration};

const EVERY: Duration = Duration::from_secs(600);
/// Named in the line; there may be more.
const QUEUES_NAMED: usize = 5;
const LATEST_NAMED: usize = 3;
/// Queues read at a time.
const PAGE: usize = 1_000;

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reminder {
    pub total: u64,
    /// Those with the most, and how many.
    pub queues: Vec<(QueueName, u64)>,
    pub more_queues: usize,
    /// Last death first.
    pub latest: Vec<(QueueName, LatestDeath)>,
}

impl Reminder {
    /// `emails 12, payments 3 and 2 more`.
    pub fn queues(&self) -> String {
        let named: Vec<_> = self.queues.iter().map(|(queue, count)| format!("{queue} {count}")).collect();
        let mut text = named.join(", ");
        if self.more_queues > 0 {
            let _ = write!(text, " and {} more", self.more_queues);
        }
        text
    }

    /// `7f3c in emails (Timeout), a1 in payments`.
    pub fn latest(&self) -> String {
        let named = self.latest.iter().map(|(queue, dead)| match dead.error_type.as_str() {
            "" => format!("{} in {queue}", dead.id),
            error_type => format!("{} in {queue} ({error_type})", dead.id),
        });
        named.collect::<Vec<_>>().join(", ")
    }

    fn log(&self) {
        tracing::warn!(
            dead_letters = self.total,
            queues = self.queues(),
            latest = self.latest(),
            "there are dead letters: ListDeadLetters shows why, Requeue sends them back to work"
        );
    }
}

impl<H: Host> Service<H> {
    /// Runs until the server drains.
    pub async fn run_reminder(self: Arc<Self>) {
        let mut next = self.queues.now();
        let mut draining = self.draining.subscribe();
        loop {
            match self.remind_if_due(&mut next).await {
                Ok(Some(reminder)) => reminder.log(),
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "cannot count the dead letters"),
            }
            tokio::select! {
                () = tokio::time::sleep(next.since(self.queues.now())) => {}
                _ = draining.wait_for(|draining| *draining) => return,
            }
        }
    }

    /// One step of the loop: what to tell, if it is time and there is something to tell.
    pub async fn remind_if_due(&self, next: &mut Timestamp) -> Result<Option<Reminder>, Error> {
        let now = self.queues.now();
        if now < *next {
            return Ok(None);
        }
        *next = now.after(EVERY);
        self.reminder().await
    }

    async fn reminder(&self) -> Result<Option<Reminder>, Error> {
        let (mut total, mut queues, mut latest) = (0, Vec::new(), Vec::new());
        let mut after = None;
        loop {
            let query = DeadCountQuery { queue: None, after, limit: PAGE, types: 0, latest: LATEST_NAMED };
            let page = self.queues.dead_letter_counts(query).await?.queues;
            after = page.last().filter(|_| page.len() == PAGE).map(|last| last.queue.clone());
            for queue in page {
                total += queue.count;
                let name = &queue.queue;
                latest.extend(queue.latest.into_iter().map(|dead| (name.clone(), dead)));
                queues.push((queue.queue, queue.count));
            }
            latest.sort_by_key(|(_, dead): &(QueueName, LatestDeath)| Reverse(dead.died_at));
            latest.truncate(LATEST_NAMED);
            if after.is_none() {
                break;
            }
        }
        if total == 0 {
            return Ok(None);
        }
        queues.sort_by_key(|(_, count)| Reverse(*count));
        let more_queues = queues.len().saturating_sub(QUEUES_NAMED);
        queues.truncate(QUEUES_NAMED);
        Ok(Some(Reminder { total, queues, more_queues, latest }))
    }
}
