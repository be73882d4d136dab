//! Which queues workers ask for: those that claims wait for are noted, and one that has ready jobs and is never asked for is
//! named in the log, since its name may be a typing error.

use super::Service;
use crate::domain::{QueueName, Timestamp, near_miss};
use crate::queue::{Error, Host, QueueView};
use std::{collections::HashSet, sync::Arc, time::Duration};

/// How often claims that wait are noted: `last_claim_at` is no older than twice this.
const NOTE_EVERY: Duration = Duration::from_secs(3);
/// How often all queues are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// A job that is ready for so long, in a queue that is not asked for.
const UNCLAIMED_FOR: Duration = Duration::from_secs(60);
/// Queues read at a time.
const PAGE: usize = 1_000;
/// Queues that are named at a time, and names that each is compared with.
const TOLD_AT_ONCE: usize = 10;
const COMPARED_MAX: usize = 1_000;

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclaimed {
    pub queue: QueueName,
    pub ready: u64,
    /// One that workers do ask for, with nearly the same name.
    pub near: Option<String>,
}

impl Unclaimed {
    fn log(&self) {
        let (queue, ready) = (&self.queue, self.ready);
        match &self.near {
            Some(near) => tracing::warn!(
                %queue,
                ready,
                "no worker asks for this queue, which has had ready jobs for a minute; workers ask for {near}: is its \
                 name right?"
            ),
            None => tracing::warn!(
                %queue,
                ready,
                "no worker asks for this queue, which has had ready jobs for a minute: is its name right?"
            ),
        }
    }
}

/// What was found out so far.
#[derive(Debug)]
pub struct UnclaimedQueues {
    /// Workers of before had no time to come back yet.
    since: Timestamp,
    next: Timestamp,
    told: HashSet<QueueName>,
}

impl UnclaimedQueues {
    pub fn new(now: Timestamp) -> Self {
        Self { since: now, next: now.after(UNCLAIMED_FOR), told: HashSet::new() }
    }

    fn is_unclaimed(&self, queue: &QueueView, now: Timestamp) -> bool {
        let waits = |at: Timestamp| now.since(at.max(self.since)) >= UNCLAIMED_FOR;
        queue.last_claim_at.is_none() && queue.oldest_ready_at.is_some_and(waits)
    }
}

impl<H: Host> Service<H> {
    /// Runs until the server drains.
    pub async fn run_claim_watch(self: Arc<Self>) {
        let mut known = UnclaimedQueues::new(self.queues.now());
        let mut draining = self.draining.subscribe();
        loop {
            match self.unclaimed_if_due(&mut known).await {
                Ok(unclaimed) => unclaimed.iter().for_each(Unclaimed::log),
                Err(error) => tracing::debug!(%error, "cannot look which queues no worker asks for"),
            }
            tokio::select! {
                () = tokio::time::sleep(NOTE_EVERY) => {}
                _ = draining.wait_for(|draining| *draining) => return,
            }
        }
    }

    /// One step of the loop: what to tell, if it is time to look.
    pub async fn unclaimed_if_due(&self, known: &mut UnclaimedQueues) -> Result<Vec<Unclaimed>, Error> {
        self.queues.note_claims(self.waiters.queues().iter());
        let now = self.queues.now();
        if now < known.next {
            return Ok(Vec::new());
        }
        known.next = now.after(LOOK_EVERY);
        let (mut unclaimed, mut claimed) = (Vec::new(), self.queues.claimed_queues());
        let mut after = None;
        loop {
            let page = self.queues.queues(after, PAGE).await?;
            after = page.last().filter(|_| page.len() == PAGE).map(|last| last.name.clone());
            for queue in page {
                if known.is_unclaimed(&queue, now) {
                    unclaimed.push((queue.name, queue.depths.ready));
                } else if queue.last_claim_at.is_some() {
                    claimed.push(queue.name);
                }
            }
            if after.is_none() {
                break;
            }
        }
        let still: HashSet<_> = unclaimed.iter().map(|(queue, _)| queue).collect();
        known.told.retain(|queue| still.contains(queue));
        unclaimed.retain(|(queue, _)| !known.told.contains(queue));
        unclaimed.truncate(TOLD_AT_ONCE);
        known.told.extend(unclaimed.iter().map(|(queue, _)| queue.clone()));
        // To compare thousands of long names takes a while.
        let compare = move || {
            let told = unclaimed.into_iter().map(|(queue, ready)| {
                let near = nearest(&queue, &claimed);
                Unclaimed { queue, ready, near }
            });
            told.collect()
        };
        Ok(tokio::task::spawn_blocking(compare).await.unwrap_or_default())
    }
}

/// Of names of about the same length, the one that was probably meant.
fn nearest(queue: &QueueName, claimed: &[QueueName]) -> Option<String> {
    let queue = queue.as_str();
    let similar = |name: &&str| name.len().abs_diff(queue.len()) <= queue.len() / 3 + 1;
    let names: Vec<_> = claimed.iter().map(QueueName::as_str).filter(similar).take(COMPARED_MAX).collect();
    near_miss(queue, &names).map(str::to_owned)
}
